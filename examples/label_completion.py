"""Label completion: remove ones, find them again, and count how many of the labels found were really lost.

python examples/label_completion.py --out label_completion.png
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from esmc_pyro import ESMCClassifier
from esmc_pyro.data import load_digit_pictures, remove_ones
from esmc_pyro.figures import LIGHT, name_axes, plain_axes, render
from esmc_pyro.files import write_atomic


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="nine pictures: a check that it runs")
    parser.add_argument("--out", type=Path, default=Path("label_completion.png"), help="where the figure goes")
    options = parser.parse_args(argv)

    data = load_digit_pictures(n_train=9 if options.quick else 300, n_test=1)
    Y = pd.DataFrame(remove_ones(data.Y_train, 0.3, seed=0), columns=data.label_names)
    lost = (data.Y_train == 1) & (Y.to_numpy() == 0)

    # every zero by how probable it is that the label fits all the same
    classifier = ESMCClassifier(epochs=2 if options.quick else None).fit(data.X_train, Y)
    found = classifier.complete(data.X_train, Y)
    columns = [data.label_names.index(label) for label in found["label"]]
    right = lost[found["row"], columns]

    # beside it: the same zeros by how frequent their label is, which knows nothing of the pictures
    zeros = np.argwhere(Y.to_numpy() == 0)
    order = np.argsort(-Y.mean().to_numpy()[zeros[:, 1]], kind="stable")
    by_frequency = lost[tuple(zeros[order].T)]

    count = np.arange(1, lost.sum() + 1)
    figure, axes = plain_axes(LIGHT)
    curves = {"ESMC": (right, LIGHT.accent), "label frequency": (by_frequency, LIGHT.muted)}
    for name, (hits, colour) in curves.items():
        axes.plot(count, np.cumsum(hits)[: len(count)] / count, color=colour, linewidth=2.2, label=name)
    axes.axhline(lost.sum() / len(zeros), color=LIGHT.bad, linestyle=(0, (4, 2)), label="any zero")
    axes.set_ylim(0, 1.02)
    axes.legend(frameon=False)
    name_axes(axes, LIGHT, "labels completed", "share of them that had been removed")
    write_atomic(options.out, render(figure, "png", dpi=150))

    precision = {name: float(hits[: lost.sum()].mean()) for name, (hits, _) in curves.items()}
    precision["any zero"] = float(lost.sum() / len(zeros))
    print(f"{lost.sum()} labels removed; of as many completions this share is right:")
    print({name: round(value, 3) for name, value in precision.items()})
    print(found.head(5).assign(removed=right[:5]).to_string(index=False))
    print(f"{options.out} written.")
    return precision


if __name__ == "__main__":
    main()
