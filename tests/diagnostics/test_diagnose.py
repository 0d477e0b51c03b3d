"""The page of ``diagnose`` and its command."""

import re

import pytest
import torch
from tiny import tiny_data, tiny_model

from esmc_pyro import diagnose
from esmc_pyro.diagnose import write_diagnosis
from esmc_pyro.guides import DoublyStochasticGuide
from esmc_pyro.guides.draws import DrawsGuide
from esmc_pyro.inference import fit_svi
from esmc_pyro.models import ESMC
from esmc_pyro.posterior import Posterior

STRANGE = ["sky", "<script>alert(1)</script>", "$x_1$", "µ-tree"]


def variational() -> Posterior:
    X, Y = tiny_data()
    model = tiny_model(X, Y)
    return Posterior(model, DoublyStochasticGuide(model, X, Y))


def chains(model: ESMC, rows: int, shift: float) -> Posterior:
    """Two chains of noise, the second of which has a ``z`` larger by ``shift``."""
    draws = {}
    for layer in model.layers:
        for letter in "vu":
            draws[f"{letter}_{layer.site}"] = torch.randn(2, 60, layer.outputs, layer.pseudo_count)
        draws[layer.site] = torch.randn(2, 60, rows, layer.outputs)
    draws["z"][1] += shift
    stats = {"energy": torch.zeros(2, 60), "diverging": torch.zeros(2, 60, dtype=torch.bool)}
    return Posterior(model, DrawsGuide(model, draws, stats))


def test_the_page_holds_everything_and_needs_no_other_file(tmp_path):
    X, Y = tiny_data()
    page = write_diagnosis(variational(), X, Y, tmp_path / "new" / "page.html", label_names=STRANGE, draws=100)
    text = page.read_text()
    for words in ("k-hat of q", "PSIS-LOO", "WAIC", "Forest", "Trace", "Labels of an instance", "8 of 11 rows"):
        assert words in text
    assert "Ranks" not in text  # one chain has nobody to be ranked among
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert not re.findall(r'(?:src|href)="(?!data:)', text)
    assert text.count("data:image/svg+xml") == 2 * 5
    again = write_diagnosis(variational(), X, Y, tmp_path / "again.html", label_names=STRANGE, draws=100)
    assert again.read_text() == text


def test_chains_are_compared_with_one_another(tmp_path):
    X, Y = tiny_data(unlabelled=0)
    model = tiny_model(X, Y)
    apart = write_diagnosis(chains(model, len(X), 5.0), X, Y, tmp_path / "apart.html").read_text()
    assert "do not agree yet" in apart
    assert "Ranks" in apart
    assert "k-hat" not in apart
    assert "divergent draws: <strong>0" in apart


def test_a_point_is_not_taken_for_a_posterior(tmp_path):
    X, Y = tiny_data(0)
    point = fit_svi(tiny_model(X, Y, depth=1), X, Y, guide="auto_delta", epochs=1, progress=False)
    page = write_diagnosis(point, X, Y, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "A single point has no spread" in page


def test_k_hat_is_left_out_where_it_would_take_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr(diagnose, "KHAT_BUDGET", 10)
    X, Y = tiny_data()
    text = write_diagnosis(variational(), X, Y, tmp_path / "page.html", draws=100).read_text()
    assert "was not looked at" in text


def test_large_data_are_looked_at_in_part(tmp_path, monkeypatch):
    monkeypatch.setattr(diagnose, "TERMS", 12)
    X, Y = tiny_data()
    text = write_diagnosis(variational(), X, Y, tmp_path / "page.html", draws=100, unit="instances").read_text()
    assert "on 3 of 11 rows" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [({"draws": 3}, "draws must be"), ({"unit": "labels"}, "unit must be one of"), ({"label_names": ["a"]}, "names")],
)
def test_bad_arguments_leave_no_file(tmp_path, change, message):
    X, Y = tiny_data()
    with pytest.raises(ValueError, match=message):
        write_diagnosis(variational(), X, Y, tmp_path / "page.html", **change)
    with pytest.raises(ValueError, match="name of a file; got the folder"):
        write_diagnosis(variational(), X, Y, tmp_path)
    with pytest.raises(ValueError, match="posterior must be a Posterior; got str"):
        write_diagnosis("model", X, Y, tmp_path / "page.html")
    assert not list(tmp_path.iterdir())
