"""The table of guide x algorithm x likelihood: every cell runs and predicts, or is refused in one sentence.

The fast tests look at every pair of guide and algorithm, each with one likelihood in turn; the slow one at everything.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch

from esmc_pyro import compatibility
from esmc_pyro.compatibility import ALGORITHMS, OWN_GUIDE, TABLE_GUIDES, fit, markdown, refusal
from esmc_pyro.guides import GUIDES
from esmc_pyro.guides.auto import AUTOGUIDES
from esmc_pyro.models import ESMC, LIKELIHOODS
from esmc_pyro.objectives import OBJECTIVES

PAGE = (Path(__file__).parents[1] / "docs" / "laboratory.md").read_text(encoding="utf-8")
LEARNED = ("eeoe_learned", "mpu_learned", "noisy_or")
PAIRS = list(product(TABLE_GUIDES, ALGORITHMS))


def likelihood_of(place: int) -> str:
    """Another likelihood for each guide in a column, so that every algorithm meets most of them."""
    names = list(LIKELIHOODS)
    return names[(place // len(ALGORITHMS) + 4 * (place % len(ALGORITHMS))) % len(names)]


def expected_to_run(guide: str, algorithm: str, likelihood: str) -> bool:
    """What theory says, written without the refusals themselves."""
    if algorithm == "analytic" and likelihood in LEARNED:
        return False  # coordinate ascent has no update for the likelihood's own parameters
    if guide == "draws" or algorithm in OWN_GUIDE:
        return OWN_GUIDE.get(algorithm) == guide
    objective = algorithm.removeprefix("svi-")
    if objective in ("collapsed", "map"):
        return guide == "doubly_stochastic"  # u is integrated row by row, or only the means count
    if objective == "trace":
        return True
    if objective == "mean_field" and guide in ("doubly_stochastic", "amortized"):
        return False  # u is drawn before f
    if objective == "renyi" and guide in ("auto_delta", "auto_laplace_approximation"):
        return False  # a point
    return likelihood != "experts" or guide in AUTOGUIDES  # explicit experts are not reparametrised


def check(guide: str, algorithm: str, likelihood: str, sentence: str | None) -> None:
    cell = f"{guide}, {algorithm}, {likelihood}: {sentence}"
    assert (sentence is None) == expected_to_run(guide, algorithm, likelihood), cell
    if sentence is not None:
        assert "\n" not in sentence, cell
        assert len(sentence) < 300, cell
        assert any(word in sentence for word in (" needs ", " gives", " holds ")), cell


def test_the_table_has_everything() -> None:
    assert set(GUIDES) | {"draws"} == set(TABLE_GUIDES)
    assert {f"svi-{objective}" for objective in OBJECTIVES} | {"analytic", "nuts"} == set(ALGORITHMS)


@pytest.mark.parametrize("place", range(len(PAIRS)), ids=lambda place: "-".join(PAIRS[place]))
def test_guide_and_algorithm_run_or_say_why_not(place: int) -> None:
    guide, algorithm = PAIRS[place]
    check(guide, algorithm, likelihood_of(place), refusal(guide, algorithm, likelihood_of(place)))


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_every_likelihood_has_a_guide_and_an_algorithm(likelihood: str) -> None:
    for guide, algorithm in (("doubly_stochastic", "svi-collapsed"), ("paper", "svi-mean_field")):
        check(guide, algorithm, likelihood, refusal(guide, algorithm, likelihood))


def test_the_table_of_the_docs_says_so_too() -> None:
    """Its cells without the notes; the slow test looks at every word."""
    head = f"| guide | {' | '.join(ALGORITHMS)} |"
    assert head in PAGE
    lines = {line.split("|")[1].strip(): line.split("|")[2:-1] for line in PAGE.splitlines() if line.startswith("| `")}
    for guide in TABLE_GUIDES:
        for algorithm, cell in zip(ALGORITHMS, lines[f"`{guide}`"], strict=True):
            refused = [name for name in LIKELIHOODS if not expected_to_run(guide, algorithm, name)]
            said = "yes" if not refused else "–" if len(refused) == len(LIKELIHOODS) else f"not {', '.join(refused)}"
            assert cell.split("[")[0].strip() == said, (guide, algorithm)


@pytest.mark.slow
def test_the_whole_table_is_as_expected_and_is_that_of_the_docs() -> None:
    table = compatibility.table()
    assert len(table) == len(PAIRS) * len(LIKELIHOODS)
    for (guide, algorithm, likelihood), sentence in table.items():
        check(guide, algorithm, likelihood, sentence)
    assert markdown(table) in PAGE


def test_the_markdown_says_what_is_refused() -> None:
    """On a made-up table, so that nothing is fitted."""
    made: dict[tuple[str, str, str], str | None] = {
        (guide, algorithm, likelihood): None for guide, algorithm in PAIRS for likelihood in LIKELIHOODS
    }
    first, second = list(ALGORITHMS)[:2]
    made["paper", first, "experts"] = "some do not; got one"
    for likelihood in LIKELIHOODS:
        made["amortized", second, likelihood] = "none does"
    lines = markdown(made).splitlines()
    assert lines[0] == f"| guide | {' | '.join(ALGORITHMS)} |"
    assert lines[2 + list(TABLE_GUIDES).index("paper")].startswith("| `paper` | not experts [1] | yes |")
    assert lines[2 + list(TABLE_GUIDES).index("amortized")].startswith("| `amortized` | yes | – [2] |")
    assert [line for line in lines if line.startswith("- [")] == ["- [1] some do not", "- [2] none does"]


def test_bad_algorithms_and_guides_are_said() -> None:
    X, Y = torch.randn(6, 2), torch.eye(6, 2)
    model = ESMC.from_data(X, Y, [1], likelihood="bernoulli", pseudo=2)
    with pytest.raises(ValueError, match=r"algorithm must be one of \[.*\]; got 'vi'"):
        fit(model, X, Y, algorithm="vi")
    with pytest.raises(ValueError, match="the algorithm 'nuts' gives a guide of its own, 'draws', and fits no other"):
        fit(model, X, Y, algorithm="nuts", guide=GUIDES["paper"])
    assert fit(model, X, Y, algorithm="analytic", sweeps=1, progress=False).guide.rows == 6
