"""Small data in several formats, and one model that the tests of the command line share."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from esmc_pyro.cli import app
from esmc_pyro.data import Dataset, write_npz

LABELS = "abcde"
QUICK = ("--set", "inference=svi", "--set", "epochs=15", "--set", "pseudo=15")


@pytest.fixture(scope="session")
def esmc() -> Callable[..., Result]:
    """Run a command in this process."""
    runner = CliRunner(env={"COLUMNS": "120", "TERMINAL_WIDTH": "120"})

    def run(*arguments: object) -> Result:
        result = runner.invoke(app, [str(argument) for argument in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception  # a traceback, which no input may cause
        return result

    return run


@pytest.fixture(scope="session")
def esmc_json(esmc: Callable[..., Result]) -> Callable[..., Any]:
    """Run a command with --json: it ends well, and stdout is one JSON value."""

    def run(*arguments: object) -> Any:
        result = esmc(*arguments, "--json")
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))

    return run


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the same 60 rows (6 features, 5 labels) in several formats."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 6)).round(4)
    Y = (X @ rng.normal(size=(6, 5)) > 0.5).astype(int)
    features = pd.DataFrame(X, columns=[f"f{i}" for i in range(6)])
    features.to_csv(folder / "features.csv", index=False)
    table = features.assign(**{f"label_{name}": Y[:, k] for k, name in enumerate(LABELS)})
    table.to_csv(folder / "table.csv", index=False)
    table.to_parquet(folder / "table.parquet", index=False)
    table.drop(columns="f2").to_csv(folder / "narrow.csv", index=False)
    table[table.columns[::-1]].to_csv(folder / "turned.csv", index=False)
    blank = table.copy()
    blank[[f"label_{name}" for name in LABELS]] = np.nan
    blank.to_csv(folder / "blank.csv", index=False)
    zeros = table.copy()
    zeros[[f"label_{name}" for name in LABELS]] = 0
    zeros.to_csv(folder / "zeros.csv", index=False)
    tags = [";".join(name for name, y in zip(LABELS, row, strict=True) if y) for row in Y]
    features.assign(tags=tags).to_csv(folder / "tags.csv", index=False)
    names = {"feature_names": list(features.columns), "label_names": list(LABELS)}
    write_npz(Dataset("split", X[:45], Y[:45], X[45:], Y[45:], **names), folder / "split.npz")
    write_npz(Dataset("numbered", X, Y), folder / "numbered.npz")
    write_npz(Dataset("strange", X, Y, feature_names=list("uvwxyz")), folder / "strange.npz")
    np.savez(folder / "bare.npz", X=X, feature_names=np.array(features.columns, dtype=np.str_))
    turned = Dataset("turned", X[:, ::-1], Y, feature_names=list(features.columns)[::-1])
    write_npz(turned, folder / "turned.npz")
    write_npz(Dataset("few labels", X, Y[:, :3]), folder / "few.npz")
    write_npz(Dataset("other", X, Y, label_names=list("vwxyz")), folder / "other.npz")
    lines = [
        ",".join(str(k) for k in np.flatnonzero(y)) + " " + " ".join(f"{i + 1}:{v}" for i, v in enumerate(x))
        for x, y in zip(X, Y, strict=True)
    ]
    (folder / "rows.svm").write_text("\n".join(lines) + "\n")
    attributes = [f"@attribute f{i} numeric" for i in range(6)] + [f"@attribute {name} {{0,1}}" for name in LABELS]
    rows = [",".join(map(str, [*x, *y])) for x, y in zip(X.tolist(), Y.tolist(), strict=True)]
    (folder / "mulan").mkdir()
    (folder / "mulan" / "songs.arff").write_text("\n".join(["@relation songs", *attributes, "@data", *rows]) + "\n")
    labels = "".join(f'<label name="{name}"></label>' for name in LABELS)
    (folder / "mulan" / "songs.xml").write_text(
        f'<labels xmlns="http://mulan.sourceforge.net/labels">{labels}</labels>'
    )
    (folder / "ragged.csv").write_text("f0,label_a\n1,0\n2\n")
    (folder / "good.toml").write_text("epochs = 1\n")
    (folder / "broken.toml").write_text("epochs = \n")
    (folder / "unknown.toml").write_text("epoch = 3\n")
    (folder / "wrong.toml").write_text('epochs = "many"\n')
    (folder / "truncated.esmc").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    return folder


@pytest.fixture(scope="session")
def model(data: Path, esmc: Callable[..., Result]) -> Path:
    """A model of the table's training rows, made by the command line."""
    path = data / "models" / "table.esmc"
    result = esmc("fit", data / "table.csv", "--test-fraction", 0.25, *QUICK, "--out", path, "--quiet")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == ""
    return path


@pytest.fixture
def untouched(data: Path, model: Path) -> Any:
    """Fail if a test leaves a file that was not there, or changes one."""

    def files() -> dict[str, tuple[int, int]]:
        found = [Path(folder) / name for folder, _, names in os.walk(data) for name in names]
        return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in found}

    before = files()
    yield
    assert files() == before
