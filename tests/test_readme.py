"""The README and the pages of docs/ tell the truth: code runs, files exist, tables are those that were measured."""

import importlib.util
import re
from pathlib import Path

import pandas as pd
import pytest
import torch

from esmc_pyro import search
from esmc_pyro.demo import METRICS
from esmc_pyro.metrics import evaluate
from esmc_pyro.models import KERNELS, LIKELIHOODS
from esmc_pyro.objectives import OBJECTIVES

ROOT = Path(__file__).parents[1]
SUBJECTS = ("ESMC-experts", "ESMC-B0", "ESMC")
PAGES = {path: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
README, ALL = PAGES[ROOT / "README.md"], "\n\n".join(PAGES.values())


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)


def run(name):
    """What the Python code of a page leaves behind, run from top to bottom as a reader would, with a shorter search."""
    scope = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "CANDIDATES", ())
        for code in blocks(PAGES[ROOT / name], "python"):
            exec(compile(code, name, "exec"), scope)
    return scope


@pytest.fixture(scope="module")
def names():
    return run("docs/laboratory.md")


def test_the_code_of_other_pages_is_the_readmes():
    assert {path.name for path, text in PAGES.items() if blocks(text, "python")} == {"README.md", "laboratory.md"}


def test_the_readmes_example_learns_to_rank():
    names = run("README.md")
    assert names["scores"]["auc"] > 0.85
    assert len(names["classifier"].complete(names["data"].X_train, names["Y"], n=3)) == 3


def test_the_first_example_of_the_laboratory_learns_to_rank(names):
    assert evaluate(names["data"].Y_test, names["z"])["auc"] > 0.85
    assert names["draws"].shape == (20, 100, 78)
    assert ((names["draws"] >= 0) & (names["draws"] <= 1)).all()


def test_the_example_of_a_likelihood_is_fitted(names):
    fitted = names["careless"]
    assert isinstance(fitted.model.likelihood, names["Careless"])
    assert fitted.history["elbo"].iloc[-1] > fitted.history["elbo"].iloc[0]
    probability = fitted.model.likelihood.prob(torch.tensor([-30.0, 0.0, 30.0]))
    torch.testing.assert_close(probability, torch.tensor([0.01, 0.505, 1.0]), atol=1e-4, rtol=0)


def anchors(page):
    """What a link to a heading of the page may be called."""
    return {
        re.sub(r"[^\w -]", "", line).strip().lower().replace(" ", "-") for line in re.findall(r"^#+ (.*)$", page, re.M)
    }


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_everything_it_links_to_exists(path):
    links = [link for link in re.findall(r"\]\(([^)]+)\)", PAGES[path]) if "://" not in link]
    for link in links:
        name, _, anchor = link.partition("#")
        found = (path.parent / name).resolve()
        assert found.exists(), link
        assert not anchor or anchor in anchors(PAGES[found]), link


def test_the_readme_links_to_every_page():
    links = {(ROOT / link.partition("#")[0]).resolve() for link in re.findall(r"\]\(([^)]+)\)", README)}
    assert {*PAGES} - {ROOT / "README.md"} <= links
    assert (ROOT / "docs/suggestions.png") in links
    assert (ROOT / "docs/suggestions.png").stat().st_size < 150_000


def test_every_path_of_its_tree_and_its_seams_exists():
    (tree,) = [block for block in blocks(README, "text") if block.startswith("models/")]
    entries = re.findall(r"^( *)(\S+)  +\S", tree, flags=re.MULTILINE)
    assert len(entries) > 8
    parent = ROOT
    for indent, name in entries:
        parent = parent if indent else ROOT / name
        path = parent / name if indent else parent
        assert path.exists(), path
    for path in re.findall(r"\| `([a-z_]+/[a-z_/.]*)` \|", README):
        assert (ROOT / path).exists(), path


def test_its_table_has_the_columns_of_the_demo():
    (table,) = [block for block in blocks(README, "text") if "ESMC  " in block]
    header, _, *rows = table.splitlines()
    for metric in METRICS:
        assert metric.title in header
    assert len(rows) == 4
    assert all(len(re.findall(r"\d+\.\d+", row)) == len(METRICS) + 1 for row in rows)


def test_it_names_every_choice_there_is():
    for name in [*KERNELS, *OBJECTIVES, *(likelihood.__name__ for likelihood in LIKELIHOODS.values())]:
        assert f"`{name}`" in README, name


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"\bmake ([a-z-]+)", README):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_its_tables_of_accuracy_are_those_that_were_measured():
    path = ROOT / "benchmarks" / "accuracy.py"
    spec = importlib.util.spec_from_file_location("accuracy", path)
    accuracy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(accuracy)
    for removed in (0.0, 0.5):
        assert accuracy.summary(accuracy.read(), removed) in ALL


def test_its_table_of_completions_is_the_one_that_was_measured():
    found = (ROOT / "benchmarks" / "results" / "completion.md").read_text(encoding="utf-8")
    assert found.split("\n\n")[1] in ALL


def test_its_verdicts_are_those_of_the_reproduction():
    judged = pd.read_csv(ROOT / "benchmarks" / "results" / "reproduce" / "verdicts.csv")
    found = judged.drop_duplicates(["claim", "of"]).set_index(["claim", "of"])["verdict"]
    table = ALL[ALL.index("| the paper says |") :].split("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    said = {
        (row[0], of): cell.split(":")[0] for row in rows for of, cell in zip(SUBJECTS, row[1:], strict=True) if cell
    }
    assert len(said) == 17
    del said["Experts help when labels are missing", "ESMC"]  # there is no such comparison
    assert said == {key: found[key] for key in said}
