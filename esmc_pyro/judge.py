"""How good settings of the default are: models of them are fitted to some rows and judged by others held out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import compress
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm

from esmc_pyro import default, feature_map, relevance, stack
from esmc_pyro.default import Settings
from esmc_pyro.folds import Folds
from esmc_pyro.inference.checkpoint import Checkpoint
from esmc_pyro.metrics import held_out_score
from esmc_pyro.models import Likelihood, NotPositiveDefiniteError
from esmc_pyro.search_memory import SearchMemory

LABELS = 2048  # at most, that say how much each member of a stack weighs
SHORTER = 0.25  # as pseudo-instances get denser, the length-scale shrinks with this power of their number


class Times(float):
    """So many times the best value before the group of changes that it stands in."""

    def __repr__(self) -> str:
        return f"Times({super().__repr__()})"


@dataclass
class Search:
    """The best settings, what was tried, and held-out ``z`` and labels for thresholds and calibration.

    ``members`` are the settings to fit to all rows (``for_all_rows``), with their weights, the heaviest first: the best
    alone, or a stack of several (``stack.member_weights``). ``member_z`` are theirs, as judged (``judge_members``:
    once more, as they will be fitted); ``tried`` has the weights too.
    """

    settings: Settings
    tried: pd.DataFrame
    member_z: tuple[Tensor, ...]
    Y: Tensor
    members: tuple[tuple[Settings, float], ...]
    interrupted: bool = False
    shorter: float = 1.0  # what a length-scale is multiplied by (``denser_lengthscale``)
    score: float = -np.inf  # ``held_out_score`` of ``settings``

    def for_all_rows(self, settings: Settings) -> Settings:
        """These settings, as they did well in the search, for the models that are fitted to all rows."""
        return replace(settings, lengthscale=settings.lengthscale * self.shorter)

    @property
    def z(self) -> Tensor:
        """The held-out ``z`` of the stack, n x K."""
        parts = [weight * z for (_, weight), z in zip(self.members, self.member_z, strict=True)]
        return torch.stack(parts).sum(0)

    def only(self, fitted: Collection[Settings | None]) -> Search:
        """What remains if only these members are fitted."""
        stay = [settings in fitted for settings, _ in self.members]
        if all(stay):
            return self
        total = sum(weight for _, weight in compress(self.members, stay))
        heaviest = self.tried["weight"].sort_values(ascending=False, kind="stable").index  # in the members' order
        weights = self.tried["weight"].where(self.tried.index.isin([*compress(heaviest, stay)]), 0.0) / total
        members = tuple((settings, weight / total) for settings, weight in compress(self.members, stay))
        z = tuple(compress(self.member_z, stay))
        return replace(self, tried=self.tried.assign(weight=weights), members=members, member_z=z)

    @classmethod
    def untried(cls, settings: Settings, Y: Tensor, interrupted: bool = False) -> Search:
        """Settings that no row has judged."""
        columns = [*asdict(settings), "score", "weight"]
        return cls(settings, pd.DataFrame(columns=columns), (Y[:0],), Y[:0], ((settings, 1.0),), interrupted)


def denser_lengthscale(few: int, many: int) -> float:
    """``(few / many) ** SHORTER``, at most 1: the share of a length-scale that did well with ``few`` pseudo-instances
    that is left for ``many``, since denser ones bear a shorter one (benchmarks/results/ablation.md).
    """
    return min(1.0, few / many) ** SHORTER


class Judge:
    """Fits settings to the rows of ``X`` and ``Y`` that ``folds`` leave, scores them by those they hold out, and
    remembers all, in the ``section`` of a checkpoint if there is one (``given`` is what the search depends on).

    ``fitted`` pseudo-instances will the models have that are fitted to all rows; None leaves the length-scale alone.
    ``epochs`` and ``lr`` are ``default.fit_settings``'s. Ctrl-C ends the judging: settings that have no score by then
    have the lowest, as have those whose ``z`` are not finite or that have no Cholesky factor.
    """

    def __init__(
        self, X: Any, Y: Tensor, *, folds: Sequence[tuple[np.ndarray, np.ndarray]], pseudo: int,
        likelihood: Likelihood | None, seed: int, project: bool, progress: bool, checkpoint: Checkpoint | None,
        section: str, given: Mapping[str, Any], fitted: int | None, epochs: int | None = None, lr: float = default.LR,
    ) -> None:  # fmt: skip
        self.interrupted = False
        self._X, self._Y, self._folds, self._section = X, Y, folds, section
        self._Y_rest = Y[torch.as_tensor(np.stack([rest for _, rest in folds]))]
        self.Y_held = torch.cat([Y[held] for held, _ in folds])
        self._likelihood, self._seed, self._project, self._progress = likelihood, seed, project, progress
        self._fits = Folds(self._Y_rest, likelihood, pseudo=pseudo, epochs=epochs, lr=lr, seed=seed)
        few = min(len(self._Y_rest[0]), pseudo)
        self._shorter = 1.0 if fitted is None else denser_lengthscale(few, fitted)
        self._mapped: dict[tuple[str, bool], list[tuple[Tensor, Tensor]]] = {}
        self._found: dict[Settings, tuple[float, Tensor]] = {}
        training = (
            default.EPOCHS, default.LR, default.LEAST_STEPS, default.CURVED_EPOCHS, default.CURVED_STEPS,
            default.CURVED_LR, default.CAVITY_STEPS, pseudo, relevance.TRAINING, epochs, lr,
        )  # fmt: skip
        absent = default.absent_labels(Y.shape[1], likelihood)
        of_some = ({"projected": feature_map.PROJECTED} if project else {}) | ({"absent": absent} if absent else {})
        self._memory = SearchMemory(
            checkpoint, section, X, Y, likelihood=likelihood, seed=seed, training=training, **given, **of_some
        )

    def score(self, settings: Settings) -> float:
        """``held_out_score`` of these settings."""
        if settings not in self._found and (kept := self._memory.get(settings)) is not None:
            self._found[settings] = kept
        if settings not in self._found and not self.interrupted:
            try:
                self._judge(settings)
            except KeyboardInterrupt:
                self.interrupted = True
        return self._found[settings][0] if settings in self._found else -np.inf

    def held_out_z(self, settings: Settings) -> Tensor | None:
        """``z`` of all held-out rows, n x K; None after Ctrl-C."""
        self.score(settings)
        return self._found[settings][1] if settings in self._found else None

    def write(self) -> None:
        """Write what was judged since the checkpoint was written, if there is one."""
        try:
            self._memory.write()
        except KeyboardInterrupt:
            self.interrupted = True

    def _judge(self, settings: Settings) -> None:
        try:
            x, held = zip(*self._features(settings), strict=True)
            z = self._fits.predict(x, held, settings)
        except NotPositiveDefiniteError:  # hopeless settings, not a reason to end the search
            z = torch.full_like(self.Y_held, torch.nan)
        score = held_out_score(self.Y_held, z) if torch.isfinite(z).all() else -np.inf
        self._memory.put(settings, score, z)
        self._found[settings] = score, z

    def _features(self, settings: Settings) -> list[tuple[Tensor, Tensor]]:
        key = settings.features, settings.relevance
        if key not in self._mapped:
            parts = []
            for (held, rest), y in zip(self._folds, self._Y_rest, strict=True):
                made, x = default.map_features(self._X[rest], y, settings, self._seed, project=self._project)
                parts.append((x, made(self._X[held])))
            self._mapped[key] = parts
        return self._mapped[key]

    def climb(self, best: Settings, groups: Sequence[Sequence[Mapping[str, Any]]]) -> Settings:
        """From ``best``, make each change that raises the score, one group of changes after the other.

        Another likelihood must explain the held-out labels better too: what it says of labels that are missing is about
        probabilities, and few rows' ranking would often be raised by chance.
        """
        self.score(best)
        total = sum(len(group) for group in groups)
        with tqdm(total=total, disable=not self._progress, desc=self._section, unit="candidate") as bar:
            for group in groups:
                before = best
                for change in group:
                    made = {key: v * getattr(before, key) if isinstance(v, Times) else v for key, v in change.items()}
                    candidate = replace(best, **made)
                    if self.score(candidate) > self.score(best) and (
                        candidate.link == best.link or self._explained(candidate) > self._explained(best)
                    ):
                        best = candidate
                    bar.update()
                    if self.interrupted:
                        return best
        return best

    def _explained(self, settings: Settings) -> float:
        """``sum ln p(y | z)`` over the known held-out labels, by the likelihood of the settings."""
        z, known = self._found[settings][1], ~torch.isnan(self.Y_held)
        log_prob = default.likelihood_of(settings).log_prob(torch.nan_to_num(self.Y_held), z)
        return float(log_prob[known].double().sum()) if torch.isfinite(z).all() else -np.inf

    def rival(self, best: Settings) -> Settings | None:
        """The best settings with another kernel than ``best``, and the same likelihood, if any."""
        others = [one for one in self._found if one.kernel != best.kernel and one.link == best.link]
        return max(others, key=self.score, default=None)

    def _weighing_labels(self) -> slice | np.ndarray:
        """Those that say how much the members of a stack weigh: ``LABELS`` of so many that steps look at some."""
        K = self.Y_held.shape[1]
        if default.absent_labels(K, self._likelihood) is None:
            return slice(None)
        return np.random.default_rng(self._seed).permutation(K)[:LABELS]

    def verdict(self, best: Settings, members: int | None) -> Search:
        """``best``, and those that were judged with their weights; at most so many ``members`` have one above zero."""
        self.write()
        if best not in self._found:
            return Search.untried(best, self._Y, interrupted=True)
        shares, likelihood = {best: 1.0}, self._likelihood
        learns = likelihood is not None and any(parameter.requires_grad for parameter in likelihood.parameters())
        if members != 1 and not learns and not self.interrupted and np.isfinite(self.score(best)):
            # with one likelihood, so that their z mean the same
            alike = [one for one, (score, _) in self._found.items() if one.link == best.link and score > -np.inf]
            shared = default.likelihood_of(best) if likelihood is None else likelihood
            try:
                asked = self._weighing_labels()
                judged = [self._found[settings][1][:, asked] for settings in alike]
                weights = stack.member_weights(judged, self.Y_held[:, asked], shared, members)
                shares = {settings: share for settings, share in zip(alike, weights.tolist(), strict=True) if share}
            except KeyboardInterrupt:
                self.interrupted = True
        ordered = tuple(sorted(shares.items(), key=lambda member: -member[1]))
        tried = [
            asdict(settings) | {"score": score, "weight": shares.get(settings, 0.0)}
            for settings, (score, _) in self._found.items()
        ]
        z = tuple(self._found[settings][1] for settings, _ in ordered)
        found = Search(
            best, pd.DataFrame(tried), z, self.Y_held, ordered, self.interrupted, self._shorter, self.score(best)
        )
        return replace(found, members=tuple((found.for_all_rows(settings), share) for settings, share in ordered))
