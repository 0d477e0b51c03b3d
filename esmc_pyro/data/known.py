"""Datasets known by name: where their files are, and what must come out when they are read."""

from __future__ import annotations

from dataclasses import dataclass

from esmc_pyro.data.dataset import Dataset
from esmc_pyro.data.errors import DataError


@dataclass(frozen=True)
class KnownSet:
    """A published dataset in the folder of its name.

    `train` and `test` are file name patterns; without `test`, one file holds all rows. A set without a split of
    its own is split by seed into `n_train` and `n_test` rows. `labels_per_row` is over all rows.
    """

    name: str
    format: str
    train: str
    test: str | None
    n_train: int
    n_test: int
    n_features: int
    n_labels: int
    labels_per_row: float
    about: str

    def check(self, dataset: Dataset) -> None:
        """Compare what was read, whole or split, with what is expected."""
        rows = (dataset.n_train, dataset.n_test) if dataset.n_test else (dataset.n_train,)
        expected = (self.n_train, self.n_test) if dataset.n_test else (self.n_train + self.n_test,)
        summary = dataset.summary()
        compared = (
            ("rows", " and ".join(map(str, rows)), " and ".join(map(str, expected))),
            ("features", str(dataset.n_features), str(self.n_features)),
            ("labels", str(dataset.n_labels), str(self.n_labels)),
        )
        for what, came, wanted in compared:
            if came != wanted:
                raise DataError(f"{self.name}: {came} {what} came, expected {wanted}.")
        labels_per_row = summary["labels_per_row"]
        if abs(labels_per_row - self.labels_per_row) > 0.01:  # published to two decimals
            raise DataError(f"{self.name}: {labels_per_row:.3f} labels a row came, expected {self.labels_per_row:.2f}.")


def _mulan_pair(
    name: str, n_train: int, n_test: int, n_features: int, n_labels: int, labels_per_row: float, about: str
) -> KnownSet:
    return KnownSet(
        name, "mulan", "*train*.arff*", "*test*.arff*", n_train, n_test, n_features, n_labels, labels_per_row, about
    )


_SETS = (
    KnownSet("corel5k", "matlab", "*.mat", None, 3999, 1000, 100, 260, 3.40, "images, the ESMC authors' split"),
    KnownSet("espgame", "matlab", "*.mat", None, 16616, 4154, 100, 268, 4.69, "images, split by seed"),
    KnownSet("iaprtc12", "matlab", "*.mat", None, 15701, 3926, 100, 291, 5.72, "images, split by seed"),
    KnownSet("cal500", "mulan", "*.arff*", None, 400, 102, 68, 174, 26.04, "music, split by seed"),
    _mulan_pair("delicious", 12920, 3185, 500, 983, 19.02, "web pages, official split"),
    _mulan_pair("mediamill", 30993, 12914, 120, 101, 4.38, "video, official split"),
    _mulan_pair("mediamill-sample", 1500, 500, 120, 101, 4.39, "video, a sample of mediamill with its own split"),
    _mulan_pair("nus-wide", 161789, 107859, 500, 81, 1.87, "images, bags of words, official split"),
    _mulan_pair("emotions", 391, 202, 72, 6, 1.87, "music, official split"),
    _mulan_pair("yeast", 1500, 917, 103, 14, 4.24, "genes, official split"),
    KnownSet("imdb", "meka", "*.arff*", None, 96735, 24184, 1001, 28, 2.00, "film plots, a fifth for testing, by seed"),
    KnownSet(
        "rcv1-sub1", "extreme", "*.txt*", None, 4800, 1200, 47236, 101, 2.88, "news, a fifth for testing, by seed"
    ),
)

KNOWN_SETS: dict[str, KnownSet] = {known.name: known for known in _SETS}
