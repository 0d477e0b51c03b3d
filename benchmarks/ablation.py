"""What each part of the default is worth: ``ESMC_DATA=... python benchmarks/ablation.py [--dataset D]``.

Held-out training rows choose the settings of the default (``esmc_pyro.default``), as always: *as chosen* is the stack
that they weigh. Then one thing at a time is changed in the best settings alone, and the model fitted anew. Another
kernel gets a search of its own, for its length-scale and the rest. Judged by full test labels. A finished line is not
run again. Writes benchmarks/results/ablation.csv and ablation.md.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from accuracy import load, with_error
from torch import Tensor

from esmc_pyro import default, search
from esmc_pyro.default import Settings
from esmc_pyro.feature_map import candidate_kinds
from esmc_pyro.files import write_atomic
from esmc_pyro.inference import fit_svi
from esmc_pyro.metrics import evaluate
from esmc_pyro.objectives import MAP, CollapsedELBO
from esmc_pyro.posterior import Posterior

RESULTS = Path(__file__).parent / "results"
DATASETS = ("corel5k", "yeast", "mediamill-sample", "cal500", "emotions")
KEY = ["dataset", "removed", "seed", "part", "variant"]
SHOWN = ["auc", "coverage", "p@1", "p@3"]
Fit = Callable[[Tensor, Tensor, Settings, int], Posterior]


def sized(**options: Any) -> Fit:
    """The default with another number of pseudo-instances or epochs."""
    return lambda x, y, settings, seed: default.fit_settings(x, y, settings, seed=seed, **options)


def tempered(weight: float) -> Fit:
    """The most probable means under a prior of this weight, without ``f_z``."""

    def fit(x: Tensor, y: Tensor, settings: Settings, seed: int) -> Posterior:
        model = default.build(x, y, settings, default.likelihood_of(settings), default.pseudo_count(len(x)), seed)
        return default.fit_means(default.start(model, x, y), x, y, objective=MAP(kl_weight=weight), seed=seed)

    return fit


def collapsed(x: Tensor, y: Tensor, settings: Settings, seed: int) -> Posterior:
    """The collapsed bound in place of the most probable means: spread and noise of ``c`` take part, without ``f_z``."""
    model = default.build(x, y, settings, default.likelihood_of(settings), default.pseudo_count(len(x)), seed)
    return fit_svi(
        model, x, y, guide=default.start(model, x, y), objective=CollapsedELBO(), batch_size=default.batch_size(len(x)),
        epochs=2 * default.epoch_count(len(x), default.EPOCHS, default.LEAST_STEPS), lr=0.05, seed=seed, progress=False,
        optimizer=partial(torch.optim.Adam, fused=True),
    )  # fmt: skip


# the part that is changed and what it becomes: other settings, or another way to fit
VARIANTS: dict[tuple[str, str], dict[str, Any] | Fit | str] = {
    ("as chosen", ""): "stack",
    ("stack", "none: the best settings alone"): {},
    ("length-scale", "as in the search"): "as judged",
    ("search", "none"): {name: value for name, value in asdict(Settings()).items() if name != "features"},
    ("second layer", "linear, c W + b"): {"curvature": 0.0},
    ("second layer", "with f_z"): {"curvature": 1.0, "curve_lengthscale": 1.0},
    ("second layer", "with a shorter and larger f_z"): {"curvature": 2.0, "curve_lengthscale": 0.5},
    ("second layer", "none: W diagonal, no f_z"): {"coupling": 0.0, "curvature": 0.0},
    ("label coupling", "0.5"): {"coupling": 0.5},
    ("label coupling", "0.8"): {"coupling": 0.8},
    ("label coupling", "0.95"): {"coupling": 0.95},
    ("experts", "B = 1"): {"B": 1.0},
    ("experts", "B = 3"): {"B": 3.0},
    ("experts", "B = 10"): {"B": 10.0},
    ("features", "identity"): {"features": "identity"},
    ("features", "standard"): {"features": "standard"},
    ("features", "quantile"): {"features": "quantile"},
    ("relevance", "one length-scale"): {"relevance": False},
    ("relevance", "a length-scale a feature"): {"relevance": True},
    ("M", "250"): sized(pseudo=250),
    ("M", "1000"): sized(pseudo=1000),
    ("kernel", "matern12"): {"kernel": "matern12"},
    ("kernel", "matern32"): {"kernel": "matern32"},
    ("kernel", "rbf"): {"kernel": "rbf"},
    ("kernel", "laplacian"): {"kernel": "laplacian"},
    ("KL weight", "0.3"): tempered(0.3),
    ("KL weight", "1"): tempered(1.0),
    ("KL weight", "3"): tempered(3.0),
    ("objective", "collapsed"): collapsed,
    ("epochs", "5"): sized(epochs=5),
    ("epochs", "40"): sized(epochs=40),
}


def run(dataset: str, removed: float, seed: int, done: set[tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """A line for each variant that is not done yet, on one dataset."""
    left = [name for name in VARIANTS if (dataset, removed, seed, *name) not in done]
    if not left:
        return
    X, Y, X_test, Y_test = load(dataset, removed, seed)
    y = torch.as_tensor(Y)
    found = search.choose(X, y, None, {}, candidate_kinds(X), seed=seed)
    if found.interrupted:
        raise KeyboardInterrupt
    settings = found.for_all_rows(found.settings)
    mapped: dict[tuple[str, bool], tuple[Tensor, Tensor]] = {}

    def features(wanted: Settings) -> tuple[Tensor, Tensor]:
        key = wanted.features, wanted.relevance
        if key not in mapped:
            feature_map, x = default.map_features(X, y, wanted, seed)
            mapped[key] = x, feature_map(X_test)
        return mapped[key]

    known: dict[Settings, Tensor] = {}
    for part, variant in left:
        change = VARIANTS[part, variant]
        if change == "as judged":
            change = {"lengthscale": found.settings.lengthscale}
        if change == "stack":
            z = default.fit_stack(X, y, found.members, seed=seed, spread=False).predict(X_test)
        elif isinstance(change, dict):
            wanted = replace(settings, **change)
            if part == "kernel" and wanted != settings:
                other = search.choose(X, y, None, change, (settings.features,), seed=seed)
                wanted = other.for_all_rows(other.settings)
            if wanted not in known:  # one variant of each part is what was chosen
                x, x_test = features(wanted)
                known[wanted] = default.fit_settings(x, y, wanted, seed=seed).predict(x_test)
            z = known[wanted]
        else:
            assert not isinstance(change, str)
            x, x_test = features(settings)
            z = change(x, y, settings, seed).predict(x_test)
        values = evaluate(Y_test, z.numpy())
        print(dataset, removed, seed, part, variant, *(f"{values[key]:.4g}" for key in SHOWN), flush=True)
        line = {"dataset": dataset, "removed": removed, "seed": seed, "part": part, "variant": variant}
        yield line | {key: values[key] for key in SHOWN} | {"settings": str(settings)}


def table(results: pd.DataFrame) -> str:
    """Markdown: for each dataset, each variant's mean ± standard error over the seeds."""
    parts = [
        "Command: `ESMC_DATA=... python benchmarks/ablation.py`. Mean ± standard error over seeds. *As chosen* is the "
        "stack that held-out rows weigh; below it, one thing is changed in the best settings alone (*search, none*: "
        "all but the feature map); another kernel has its own search; *KL weight* and *objective* are without f_z."
    ]
    for (dataset, removed), group in results.groupby(["dataset", "removed"], sort=False):
        by = group.groupby(["part", "variant"], sort=False)[SHOWN]
        mean, error = by.mean(), by.sem()
        parts.append(f"\n## {dataset}, {removed:.0%} of the ones removed, {group.seed.nunique()} seeds\n")
        parts.append("| part | variant | " + " | ".join(SHOWN) + " |\n|" + "---|" * (len(SHOWN) + 2))
        for name in mean.index:
            cells = [with_error(mean.loc[name, key], error.loc[name, key]) for key in SHOWN]
            parts.append(f"| {name[0]} | {name[1]} | " + " | ".join(cells) + " |")
    return "\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", nargs="+", default=list(DATASETS))
    parser.add_argument("--removed", nargs="+", type=float, default=[0.0, 0.5])
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    path = RESULTS / "ablation.csv"
    results = pd.read_csv(path, keep_default_na=False) if path.exists() else pd.DataFrame(columns=KEY)
    for dataset in options.dataset:
        for removed in options.removed:
            for seed in range(options.seeds):
                done = set(results[KEY].itertuples(index=False, name=None))
                for line in run(dataset, removed, seed, done):
                    results = pd.concat([results, pd.DataFrame([line])], ignore_index=True)
                    write_atomic(path, results.to_csv(index=False))
                    write_atomic(path.with_suffix(".md"), table(results))


if __name__ == "__main__":
    main()
