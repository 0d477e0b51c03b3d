"""Pictures of several handwritten digits: "which digits are in this picture, where, and what of them together?"

A picture is a 2 × 2 grid of 8 × 8 cells, two pixels apart (18 × 18 pixels). Two to four cells hold a digit of
scikit-learn's `load_digits`, which comes with that package, so nothing is downloaded. The lower a digit the more often
it is drawn, `p(d) ∝ 0.75^d`, which gives the labels a tail: 33 of the 78 hold for less than one picture in twenty, the
rarest for one in three hundred.
"""

from __future__ import annotations

from functools import cache
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

from esmc_pyro.data.dataset import Dataset

__all__ = ["DigitPictures", "load_digit_pictures", "make_digit_pictures"]

CELL = 8
GAP = 2
PICTURE_SHAPE = (2 * CELL + GAP, 2 * CELL + GAP)
POSITIONS = ("top left", "top right", "bottom left", "bottom right")
EMPTY = -1  # a cell without a digit

Part = Literal["all", "train", "test"]


class DigitPictures(NamedTuple):
    """`X` n × 324 float32 in [0, 1], row by row of the picture; `Y` n × K float32 of 0 and 1."""

    X: npt.NDArray[np.float32]
    Y: npt.NDArray[np.float32]
    label_names: list[str]
    picture_shape: tuple[int, int]


def make_digit_pictures(
    n: int, seed: int, *, part: Part = "all", digits: tuple[int, int] = (2, 4), noise: float = 0.15
) -> DigitPictures:
    """n pictures with their labels, each with a number of digits between the two of `digits`.

    Every third source digit belongs to `part="test"`, the others to `part="train"`: pictures of the two parts never
    share a handwritten digit, whatever their seeds. `noise` is the standard deviation of what is added to each pixel
    before pixels are cut off at 0 and 1; it changes neither digits nor labels.
    """
    fewest, most = digits
    if n < 1:
        raise ValueError(f"n must be at least 1, but it is {n}.")
    if not 1 <= fewest <= most <= len(POSITIONS):
        raise ValueError(f"digits must be two numbers from 1 to 4, the smaller first, but it is {digits}.")
    if not noise >= 0:
        raise ValueError(f"noise must not be negative, but it is {noise}.")
    images, targets = _source(part)
    rng = np.random.default_rng(seed)
    layout = _layouts(n, fewest, most, rng)

    pictures = np.zeros((n, *PICTURE_SHAPE), dtype=np.float32)
    for position in range(len(POSITIONS)):
        top, left = (step * (CELL + GAP) for step in divmod(position, 2))
        cell = pictures[:, top : top + CELL, left : left + CELL]
        for digit in range(10):
            where = layout[:, position] == digit
            cell[where] = images[rng.choice(np.flatnonzero(targets == digit), size=where.sum())]
    X = pictures.reshape(n, -1)
    if noise > 0:
        X = np.clip(X + noise * rng.standard_normal(X.shape, dtype=np.float32), 0, 1)
    columns = _labels(layout)
    Y = np.stack(list(columns.values()), axis=1).astype(np.float32)
    return DigitPictures(X, Y, list(columns), PICTURE_SHAPE)


def load_digit_pictures(n_train: int = 1500, n_test: int = 500, seed: int = 0) -> Dataset:
    """Training and test pictures as one dataset; no handwritten digit is in both."""
    train = make_digit_pictures(n_train, 2 * seed, part="train")
    test = make_digit_pictures(n_test, 2 * seed + 1, part="test")
    height, width = train.picture_shape
    return Dataset(
        "digit pictures",
        train.X,
        train.Y,
        test.X,
        test.Y,
        feature_names=[f"row {y} column {x}" for y in range(height) for x in range(width)],
        label_names=train.label_names,
    )


@cache
def _all_digits() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    source = load_digits()
    return (source.images / 16).astype(np.float32), source.target


def _source(part: Part) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    images, targets = _all_digits()
    # digits that follow each other in the list look alike: every third keeps the two parts alike, a cut would not
    test = np.arange(len(targets)) % 3 == 2
    chosen = {"all": np.ones_like(test), "train": ~test, "test": test}
    if part not in chosen:
        raise ValueError(f"part must be one of 'all', 'train' and 'test', but it is {part!r}.")
    return images[chosen[part]], targets[chosen[part]]


def _layouts(n: int, fewest: int, most: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """n × 4: the digit of each position, or EMPTY."""
    share = 0.75 ** np.arange(10)
    layout = rng.choice(10, size=(n, len(POSITIONS)), p=share / share.sum())
    place = np.argsort(rng.random(layout.shape), axis=1)
    count = rng.integers(fewest, most, size=n, endpoint=True)
    layout[place >= count[:, None]] = EMPTY
    return layout


def _labels(layout: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.bool_]]:
    """Every label by name, as a column of n truth values."""
    filled = layout != EMPTY
    count, total = filled.sum(axis=1), np.where(filled, layout, 0).sum(axis=1)
    times = np.stack([(layout == d).sum(axis=1) for d in range(10)], axis=1)
    odd, most = times[:, 1::2].sum(axis=1), times.max(axis=1)

    columns = {f"has {d}": times[:, d] > 0 for d in range(10)}
    columns |= {f"{d} at {name}": layout[:, i] == d for d in range(10) for i, name in enumerate(POSITIONS)}
    columns |= {f"sum {low} to {low + 4}": (total >= low) & (total < low + 5) for low in (0, 5, 10, 15)}
    columns |= {"sum 20 or more": total >= 20, "sum even": total % 2 == 0}
    columns |= {"all digits even": odd == 0, "all digits odd": odd == count}
    columns |= {"a digit twice": most == 2, "a digit three times": most >= 3}
    columns |= {f"two {d}s": times[:, d] >= 2 for d in range(5)}
    pairs = [(d, d + 1) for d in range(9)] + [(d, 9 - d) for d in range(4)]
    columns |= {f"{d} and {e}": (times[:, d] > 0) & (times[:, e] > 0) for d, e in pairs}
    return columns
