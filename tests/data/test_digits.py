"""The pictures hold the digits that their labels say; the two parts share no source digit; the labels have a tail."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from esmc_pyro.data.digits import load_digit_pictures, make_digit_pictures

POSITIONS = {"top left": (0, 0), "top right": (0, 10), "bottom left": (10, 0), "bottom right": (10, 10)}


@pytest.fixture(scope="module")
def digit_of():
    """What digit a clean cell shows, by its pixels."""
    source = load_digits()
    return {
        (image / 16).astype(np.float32).tobytes(): int(d) for image, d in zip(source.images, source.target, strict=True)
    }


def cells(pictures):
    """For each picture, position -> bytes of its cell, empty cells left out."""
    images = pictures.X.reshape(-1, *pictures.picture_shape)
    return [
        {
            name: np.ascontiguousarray(image[y : y + 8, x : x + 8]).tobytes()
            for name, (y, x) in POSITIONS.items()
            if image[y : y + 8, x : x + 8].any()
        }
        for image in images
    ]


def labels_by_hand(at):
    """All labels that hold for digits at positions."""
    digits = list(at.values())
    total, times = sum(digits), {d: digits.count(d) for d in digits}
    names = {f"has {d}" for d in digits} | {f"{d} at {name}" for name, d in at.items()}
    names.add("sum 20 or more" if total >= 20 else f"sum {total // 5 * 5} to {total // 5 * 5 + 4}")
    if total % 2 == 0:
        names.add("sum even")
    if all(d % 2 == 0 for d in digits):
        names.add("all digits even")
    if all(d % 2 == 1 for d in digits):
        names.add("all digits odd")
    if 2 in times.values():
        names.add("a digit twice")
    if max(times.values()) >= 3:
        names.add("a digit three times")
    names |= {f"two {d}s" for d, n in times.items() if n >= 2 and d < 5}
    names |= {f"{d} and {e}" for d in digits for e in digits if e == d + 1 or (d < 4 and d + e == 9)}
    return names


def test_labels_say_what_the_pixels_show(digit_of):
    pictures = make_digit_pictures(400, seed=3, noise=0)
    counts = set()
    for y, cell in zip(pictures.Y, cells(pictures), strict=True):
        at = {name: digit_of[pixels] for name, pixels in cell.items()}
        counts.add(len(at))
        assert {name for name, value in zip(pictures.label_names, y, strict=True) if value} == labels_by_hand(at)
    assert counts == {2, 3, 4}


def test_the_gap_between_cells_is_empty():
    pictures = make_digit_pictures(50, seed=0, noise=0)
    images = pictures.X.reshape(-1, *pictures.picture_shape)
    assert not images[:, 8:10].any()
    assert not images[:, :, 8:10].any()


def test_training_and_test_pictures_share_no_source_digit(digit_of):
    train, test = (
        {pixels for cell in cells(make_digit_pictures(3000, seed=0, part=part, noise=0)) for pixels in cell.values()}
        for part in ("train", "test")
    )
    assert not train & test
    assert {digit_of[pixels] for pixels in train} == {digit_of[pixels] for pixels in test} == set(range(10))


def test_types_names_and_a_tail():
    pictures = make_digit_pictures(4000, seed=0)
    assert pictures.picture_shape == (18, 18)
    assert pictures.X.shape == (4000, 18 * 18)
    assert pictures.X.dtype == pictures.Y.dtype == np.float32
    assert pictures.X.min() >= 0
    assert pictures.X.max() <= 1
    assert set(np.unique(pictures.Y)) == {0, 1}
    assert len(set(pictures.label_names)) == pictures.Y.shape[1] == 78
    frequency = pictures.Y.mean(axis=0)
    assert (frequency > 0).all()
    assert (frequency < 0.02).sum() >= 8
    assert (frequency > 0.2).sum() >= 8
    assert 0.05 < frequency.mean() < 0.15


def test_seeds_decide_and_noise_changes_only_pixels():
    one, again, other = (make_digit_pictures(30, seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(one.X, again.X)
    np.testing.assert_array_equal(one.Y, again.Y)
    assert not np.array_equal(one.Y, other.Y)
    clean = make_digit_pictures(30, seed=1, noise=0)
    np.testing.assert_array_equal(one.Y, clean.Y)
    inside = (clean.X > 0.4) & (clean.X < 0.6)
    assert (one.X - clean.X)[inside].std() == pytest.approx(0.15, rel=0.2)


def test_the_number_of_digits_can_be_set():
    pictures = make_digit_pictures(50, seed=0, digits=(1, 1), noise=0)
    assert {len(cell) for cell in cells(pictures)} == {1}


def test_loaded_as_one_dataset():
    data = load_digit_pictures(n_train=40, n_test=20, seed=3)
    assert (data.n_train, data.n_test, data.n_features, data.n_labels) == (40, 20, 324, 78)
    assert data.feature_names[19] == "row 1 column 1"
    assert data.label_names[0] == "has 0"
    np.testing.assert_array_equal(data.X_train, make_digit_pictures(40, 6, part="train").X)
    np.testing.assert_array_equal(data.Y_test, make_digit_pictures(20, 7, part="test").Y)
    assert load_digit_pictures(seed=3).X_train.shape == (1500, 324)
    assert not np.array_equal(load_digit_pictures(40, 20, seed=4).Y_test, data.Y_test)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, r"^n must be at least 1, but it is 0\.$"),
        ({"digits": (3, 2)}, r"^digits must be two numbers from 1 to 4, the smaller first, but it is \(3, 2\)\.$"),
        ({"digits": (2, 5)}, r"^digits must be two numbers from 1 to 4, the smaller first, but it is \(2, 5\)\.$"),
        ({"noise": -1}, r"^noise must not be negative, but it is -1\.$"),
        ({"part": "valid"}, r"^part must be one of 'all', 'train' and 'test', but it is 'valid'\.$"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(options, message):
    with pytest.raises(ValueError, match=message):
        make_digit_pictures(**({"n": 3, "seed": 0} | options))
