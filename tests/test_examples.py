"""Every script in examples/ runs as its docstring says, and leaves a figure."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import matplotlib.image as image
import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


def test_there_are_examples_and_each_says_how_to_run_it() -> None:
    assert len(EXAMPLES) >= 6
    for path in EXAMPLES:
        text = path.read_text(encoding="utf-8")
        assert f"python examples/{path.name} --out {path.stem}." in text, path.name


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs_and_draws(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "figure.png"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(path), "--quick", "--out", str(out)])
    runpy.run_path(str(path), run_name="__main__")
    assert out.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    height, width = image.imread(out).shape[:2]
    assert 300 <= width <= 4000
    assert 200 <= height <= 6000
    assert out.stat().st_size > 5000  # not an empty sheet
