"""What is run: the paper's figures and tables as cells, a cell being dataset x setting x method x seed.

Nothing heavy is imported here, so that the command line can check names before it waits for PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

OURS, EXPERTS, PLAIN, PAPER = "ESMC", "ESMC-experts", "ESMC-B0", "ESMC-paper"
SUBJECTS = (OURS, EXPERTS, PLAIN, PAPER)
RIVALS = ("SLRM", "FaIE", "FastTag")  # those of the paper's figures
LINEAR = ("PLST", "CPLST", "LEML", "FaIE")  # those that code labels linearly
BASELINE_NAMES = ("BR", "PLST", "CPLST", "FaIE", "LEML", "SLRM", "FastTag", "SLEEC", "GenEML", "kNN")
METHOD_NAMES = (*SUBJECTS, *BASELINE_NAMES)
DATASET_NAMES = ("cal500", "corel5k", "iaprtc12", "espgame", "delicious", "mediamill", "nus-wide")
BUILT_IN = "digits"

CURVES = (OURS, EXPERTS, PLAIN, *RIVALS, "LEML", "GenEML", "kNN")  # methods drawn as curves
ONCE = tuple(name for name in METHOD_NAMES if name != PAPER)  # methods of the tables; PAPER is slow, and by wish only
UNLABELLED = (OURS, EXPERTS, "SLRM")  # asked whether unlabelled rows help


@dataclass(frozen=True)
class Setting:
    """How the training labels are made worse.

    "removed": that share of the ones become zeros; "kept": only that share of the rows have labels, the others are
    given without; "alone": the same rows, and no others; "official": the published split, all labels.
    """

    kind: str
    share: float = 0.0

    def __str__(self) -> str:
        return self.kind if self.kind == "official" else f"{self.kind} {self.share:g}"

    @classmethod
    def parse(cls, text: str) -> Setting:
        kind, _, share = text.partition(" ")
        return cls(kind, float(share or 0))

    @property
    def tuned_at(self) -> Setting:
        """Where settings of the methods are chosen for this one: the middle of its figure."""
        if self.kind in ("kept", "alone"):
            return replace(self, share=0.15)
        return replace(self, share=0.3) if self.share else self


FULL = Setting("removed", 0.0)
OFFICIAL = Setting("official")


@dataclass(frozen=True)
class Tuning:
    """The choice of a method's settings on held-out training rows; ``rows``: at most so many training rows, 0 all."""

    dataset: str
    setting: Setting
    method: str
    seed: int = 0
    rows: int = 0


@dataclass(frozen=True)
class Cell:
    """One fit, and what is measured of it on test rows."""

    dataset: str
    setting: Setting
    method: str
    seed: int
    rows: int = 0

    @property
    def tuning(self) -> Tuning:
        """On the training rows of the same partition: those of another may be test rows of this one."""
        return Tuning(self.dataset, self.setting.tuned_at, self.method, self.seed, self.rows)


@dataclass(frozen=True)
class Experiment:
    """A figure or table of the paper on one dataset: ``curves`` at all settings, ``others`` at the first one only."""

    name: str
    dataset: str
    settings: tuple[Setting, ...]
    curves: tuple[str, ...]
    others: tuple[str, ...] = ()
    once: bool = False  # the published split has one partition

    def cells(self, seeds: int, methods: Sequence[str] = (), rows: int = 0) -> Iterator[Cell]:
        """Seed by seed, so that a figure that is cut short has all of its curves; ``methods``: only these."""
        for seed in range(1 if self.once else seeds):
            for setting in self.settings:
                names = self.curves + (self.others if setting == self.settings[0] else ())
                for name in names:
                    wanted = not methods or name in methods
                    if wanted and (setting.kind != "alone" or name in UNLABELLED):
                        yield Cell(self.dataset, setting, name, seed, rows)


def _missing(name: str, dataset: str, shares: Iterable[float], curves: tuple[str, ...] = CURVES) -> Experiment:
    others = tuple(method for method in ONCE if method not in curves)
    return Experiment(name, dataset, tuple(Setting("removed", share) for share in shares), curves, others)


def _semi(name: str, dataset: str, shares: Iterable[float], curves: tuple[str, ...] = CURVES) -> Experiment:
    settings = tuple(Setting(kind, share) for share in shares for kind in ("kept", "alone"))
    return Experiment(name, dataset, settings, curves)


def _official(dataset: str, methods: tuple[str, ...]) -> Experiment:
    return Experiment("Table II", dataset, (OFFICIAL,), methods, once=True)


_REMOVED, _KEPT = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5), (0.1, 0.15, 0.2)
_COARSE = (0.0, 0.3, 0.5)  # of the large sets first: a figure of fewer points is there sooner, and then filled in
_FAST = tuple(name for name in CURVES if name != "GenEML")
_LARGE = (OURS, PLAIN, EXPERTS, "LEML", *RIVALS)
# in the order in which they are run: what is soonest complete comes first
EXPERIMENTS: tuple[Experiment, ...] = (
    _missing("Figure 4", "cal500", _REMOVED),
    _semi("Figure 8", "corel5k", _KEPT),
    _missing("Figure 5", "corel5k", _REMOVED),
    _official("delicious", ONCE),
    _missing("Figure 7", "espgame", _COARSE, _FAST),
    _semi("Figure 10", "espgame", _KEPT, _FAST),
    _missing("Figure 6", "iaprtc12", _COARSE, _FAST),
    _semi("Figure 9", "iaprtc12", _KEPT, _FAST),
    _official("mediamill", _LARGE),
    _official("nus-wide", (OURS, PLAIN, "LEML")),
    _missing("Figure 7", "espgame", _REMOVED, _FAST),
    _missing("Figure 6", "iaprtc12", _REMOVED, _FAST),
)
QUICK: tuple[Experiment, ...] = (
    _missing("Figures 4-7", BUILT_IN, (0.0, 0.3, 0.5)),
    _semi("Figures 8-10", BUILT_IN, (0.1, 0.2)),
    _official(BUILT_IN, ONCE),
)


def plan(experiments: Sequence[Experiment], seeds: int, methods: Sequence[str] = (), rows: int = 0) -> tuple[Cell, ...]:
    """All cells in order, each once; ``methods`` that are named are the only ones.

    One that no experiment here has, such as ``PAPER``, is run at the first setting of each.
    """
    planned = {name for e in experiments for name in (*e.curves, *e.others)}
    wished = tuple(name for name in methods if name not in planned)
    every = [replace(e, others=e.others + wished) for e in experiments]
    return tuple(dict.fromkeys(cell for e in every for cell in e.cells(seeds, methods, rows)))
