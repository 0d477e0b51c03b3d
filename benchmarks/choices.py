"""What the default's ways to choose are worth: ``ESMC_DATA=... python benchmarks/choices.py [--dataset D]``.

Each fifth of the training rows is judged by its full labels after the default has searched and fitted on the other
four, and after one thing was done in another way: the candidate with the highest held-out score alone, in place of the
stack of ``esmc_pyro.stack``; whichever of the two scores more on the rows that chose; length-scales as in the search,
though the fit has more pseudo-instances (``judge.denser_lengthscale``); calibration and threshold by the search's own
models (``search.judge_members``); up to 8000 rows, ``f_z`` with ``c`` only, never by rows without their own labels
(``esmc_pyro.cavity``); of wide words (``feature_map.is_wide``), all of them in place of their projection; these two
with searches of their own. Test rows are not touched. Writes benchmarks/results/choices.csv and choices.md.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from accuracy import FOLDS, load
from sklearn.metrics import f1_score

from esmc_pyro import calibration, default, judge, search
from esmc_pyro.data import remove_ones
from esmc_pyro.feature_map import candidate_kinds, is_wide
from esmc_pyro.files import write_atomic
from esmc_pyro.metrics import evaluate, expected_calibration_error, held_out_score

RESULTS = Path(__file__).parent / "results"
DATASETS = ("emotions", "yeast", "cal500", "mediamill-sample", "corel5k", "espgame", "delicious", "rcv1-sub1")
SHOWN = ["auc", "lrap", "coverage", "p@1", "p@3", "ece", "f1"]
DEFAULT, BEST, HIGHER = "the default", "the best alone", "the best alone or the stack, by held-out score"
LONGER, CALIBRATED = "length-scales as in the search", "calibrated by the search's models"
ALL_WORDS = "words not projected"
JOINT = "f_z fitted with c only"


def measure(Y: np.ndarray, z: torch.Tensor, likelihood: Any, judged: judge.Search | None) -> dict[str, float]:
    """Metrics of ``z``; with the rows that ``judged`` it, also of its probabilities and of labels by a threshold."""
    values = evaluate(Y, z.numpy())
    if judged is not None:
        held, new = (calibration.log_odds(likelihood, some) for some in (judged.z, z))
        fitted = calibration.fit(held, judged.Y)
        p = calibration.apply(fitted, new).numpy()
        chosen = p >= calibration.best_threshold(calibration.apply(fitted, held), judged.Y)
        values |= {"ece": expected_calibration_error(Y, p), "f1": f1_score(Y, chosen, average="micro")}
    return {key: float(values.get(key, np.nan)) for key in SHOWN}


def fitted_z(X: np.ndarray, Y: torch.Tensor, members: Any, X_held: np.ndarray, **options: Any) -> torch.Tensor:
    """``z`` of held-out rows by a stack of all these members: Ctrl-C, which may leave some out, ends the benchmark."""
    fitted = default.fit_stack(X, Y, members, spread=False, **options)
    if fitted.lead.posterior.interrupted:
        raise KeyboardInterrupt
    return fitted.predict(X_held)


def run(dataset: str, removed: float, folds: int) -> Iterator[dict[str, Any]]:
    """A line for each of so many fifths and way to choose."""
    X, Y, _, _ = load(dataset, 0.0, 0)
    given = remove_ones(Y, removed, 0) if removed else Y
    fifths = np.array_split(np.random.default_rng(0).permutation(len(Y)), FOLDS)
    for fold, held in enumerate(fifths[:folds]):
        rest = np.setdiff1d(np.arange(len(Y)), held)
        y = torch.as_tensor(given[rest])
        found = search.choose(X[rest], y, None, {}, candidate_kinds(X[rest]))
        judged, likelihood = search.judge_members(found, X[rest], y, None), default.likelihood_of(found.settings)
        if judged.interrupted:
            raise KeyboardInterrupt
        longer = tuple((replace(s, lengthscale=s.lengthscale / found.shorter), weight) for s, weight in found.members)
        best = ((found.for_all_rows(found.settings), 1.0),)
        z: dict[Any, torch.Tensor] = {}
        for members in (found.members, best, longer):
            if members not in z:  # where the length-scale stays, or one is all
                z[members] = fitted_z(X[rest], y, members, X[held])
        higher = found.members if held_out_score(found.Y, found.z) >= found.score else best
        choices = {
            DEFAULT: (found.members, judged), BEST: (best, None), HIGHER: (higher, None), LONGER: (longer, None),
            CALIBRATED: (found.members, found),
        }  # fmt: skip
        line = {"dataset": dataset, "removed": removed, "fold": fold}
        for name, (members, by) in choices.items():
            own = {"choice": name, "members": len(members)}
            yield line | own | measure(Y[held], z[members], likelihood, by)
        others: dict[str, dict[str, Any]] = {}
        if len(y) <= search.LARGE_ROWS:
            others[JOINT] = {
                "candidates": [[one for one in group if not one.get("cavity")] for group in search.CANDIDATES]
            }
        if is_wide(X[rest], found.settings.features):
            others[ALL_WORDS] = {"project": False}
        for name, options in others.items():
            whole = search.choose(X[rest], y, None, {}, candidate_kinds(X[rest]), **options)
            if whole.interrupted:
                raise KeyboardInterrupt
            own = {"choice": name, "members": len(whole.members)}
            made = fitted_z(X[rest], y, whole.members, X[held], project=options.get("project"))
            yield line | own | measure(Y[held], made, likelihood, None)
        print(dataset, removed, fold, len(found.members), "members", flush=True)


def table(results: pd.DataFrame) -> str:
    """Markdown: means over the fifths, and the mean difference to the default ± its standard error."""
    lines = [
        "Command: `ESMC_DATA=... python benchmarks/choices.py`. Fifths of the training rows, each judged after a "
        "search and a fit on the other four; means, in brackets the difference to the default ± its standard error. "
        "ece: expected calibration error; f1: micro-averaged, of labels by the tuned threshold.\n",
        "| dataset | ones removed | fifths | choice | members | " + " | ".join(SHOWN) + " |\n|"
        + "---|" * (len(SHOWN) + 5),
    ]  # fmt: skip
    for (dataset, removed), group in results.groupby(["dataset", "removed"], sort=False):
        by = {name: part.set_index("fold") for name, part in group.groupby("choice", sort=False)}
        for name, part in by.items():
            cells = []
            for key in SHOWN:
                less = part[key] - by[DEFAULT][key]
                error = f" ± {less.sem():.4f}" if len(less) > 1 else ""
                beside = "" if name == DEFAULT else f" ({less.mean():+.4f}{error})"
                cells.append("" if part[key].isna().all() else f"{part[key].mean():.4f}{beside}")
            start = f"| {dataset} | {removed:.0%} | {len(part)} | {name} | {part['members'].mean():.1f} | "
            lines.append(start + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", nargs="+", default=list(DATASETS))
    parser.add_argument("--removed", nargs="+", type=float, default=[0.0, 0.5])
    parser.add_argument("--folds", type=int, default=FOLDS, help="how many of the fifths are judged")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    path = RESULTS / "choices.csv"
    results = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=["dataset", "removed"])
    for dataset in options.dataset:
        for removed in options.removed:
            if len(results[(results["dataset"] == dataset) & (results["removed"] == removed)]):
                continue
            results = pd.concat([results, pd.DataFrame(run(dataset, removed, options.folds))], ignore_index=True)
            write_atomic(path, results.to_csv(index=False))
            write_atomic(path.with_suffix(".md"), table(results))


if __name__ == "__main__":
    main()
