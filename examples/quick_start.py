"""Quick start: fit ``ESMCClassifier`` to pictures that lost half of their labels, rank the labels of new ones.

python examples/quick_start.py --out quick_start.png
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from esmc_pyro import ESMCClassifier
from esmc_pyro.data import load_digit_pictures, remove_ones
from esmc_pyro.data.digits import PICTURE_SHAPE
from esmc_pyro.figures import Suggestion, render, suggestions
from esmc_pyro.files import write_atomic
from esmc_pyro.metrics import evaluate


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="nine pictures: a check that it runs")
    parser.add_argument("--out", type=Path, default=Path("quick_start.png"), help="where the figure goes")
    options = parser.parse_args(argv)

    # pictures of two to four digits, and 78 labels such as "has 3" and "sum even"; half of the training ones get lost
    data = load_digit_pictures(n_train=9 if options.quick else 300, n_test=20 if options.quick else 300)
    Y = remove_ones(data.Y_train, 0.5, seed=0)

    classifier = ESMCClassifier(epochs=2 if options.quick else None).fit(data.X_train, Y)
    scores = evaluate(data.Y_test, classifier.decision_function(data.X_test))
    print({name: round(float(scores[name]), 3) for name in ("auc", "coverage", "p@1", "p@3")})

    # four training pictures: the labels that are left, and the first three that the model would add to them
    names = np.array(data.label_names)
    suitability = np.where(Y[:4] == 1, -1.0, classifier.suitability(data.X_train[:4], draws=None))
    given = [list(names[row == 1]) for row in Y[:4]]
    added = [
        [Suggestion(names[k], float(row[k]), bool(truth[k])) for k in np.argsort(-row)[:3]]
        for row, truth in zip(suitability, data.Y_train, strict=False)
    ]
    pictures = [row.reshape(PICTURE_SHAPE) for row in data.X_train[:4]]
    write_atomic(options.out, render(suggestions(pictures, given, added), "png", dpi=150))
    print(f"{options.out} written.")
    return {name: float(scores[name]) for name in ("auc", "coverage", "p@1", "p@3")}


if __name__ == "__main__":
    main()
