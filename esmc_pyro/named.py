"""Fits that a user names: an inference, a guide or a preset, as the estimator's arguments give them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyro.contrib.gp.kernels import Kernel
from torch import Tensor

from esmc_pyro import search
from esmc_pyro.guides import DoublyStochasticGuide, Guide
from esmc_pyro.inference import PRESETS, fit_analytic, fit_svi
from esmc_pyro.inference.analytic import Setting
from esmc_pyro.inference.checkpoint import Section
from esmc_pyro.models import ESMC, Likelihood
from esmc_pyro.posterior import Posterior


@dataclass(frozen=True)
class Choice:
    """The estimator's arguments that decide how a model is made and fitted; see ``ESMCClassifier``."""

    kernel: str | Kernel = "auto"
    inference: str | Callable[..., Posterior] = "auto"
    guide: str | Guide | type[Guide] | None = None
    preset: str | Setting | Callable[..., Setting] | None = None
    widths: Sequence[int] | None = None
    pseudo: int | None = None
    epochs: int | None = None
    lr: float | None = None
    random_state: int = 0
    verbose: bool = False

    @property
    def is_analytic(self) -> bool:
        """Whether the analytic solver does the work."""
        return self.preset is not None or self.inference in ("analytic", fit_analytic)

    def check_checkpoint(self) -> None:
        """A checkpoint needs an inference that keeps one."""
        if self.is_analytic or (callable(self.inference) and self.inference is not fit_svi):
            raise ValueError(
                "checkpoint needs the default inference or inference='svi'; got "
                f"inference={self.inference!r}, preset={self.preset!r}"
            )

    @property
    def is_for_all_rows(self) -> bool:
        """Whether an object was given that belongs to all rows, and so cannot be fitted to some of them."""
        return isinstance(self.guide, Guide) or isinstance(self.preset, Setting)

    def fit(self, X: Tensor, Y: Tensor, likelihood: Likelihood, checkpoint: Section | None = None) -> Posterior:
        """Fit to mapped features ``X`` ((N + I) x F) and labels ``Y`` (N x K); objects given are copied."""
        data = X[: len(Y)], Y, X[len(Y) :] if len(X) > len(Y) else None
        options: dict[str, Any] = {"seed": self.random_state, "progress": self.verbose}
        if self.epochs is not None:
            options["sweeps" if self.is_analytic else "epochs"] = self.epochs
        if self.lr is not None:
            options["lr"] = self.lr
        if checkpoint is not None:
            options["checkpoint"] = checkpoint
        if isinstance(self.preset, Setting):
            return copy.deepcopy(self.preset).fit(*data, **options)
        if self.preset is not None:
            make = PRESETS[self.preset] if isinstance(self.preset, str) else self.preset
            return make(*data, seed=self.random_state).fit(*data, **options)
        if isinstance(self.guide, Guide):
            given: Any = copy.deepcopy(self.guide)
            return fit_svi(given.model, *data, guide=given, objective=_objective(given), **options)
        model = self._model(X, Y, likelihood)
        if callable(self.inference):
            return self.inference(model, *data, **options)
        if self.is_analytic:
            return fit_analytic(model, *data, **options)
        guide = "doubly_stochastic" if self.guide is None else self.guide
        return fit_svi(model, *data, guide=guide, objective=_objective(guide), **options)

    def held_out(
        self, X: Tensor, Y: Tensor, likelihood: Likelihood, checkpoint: Section | None = None
    ) -> tuple[Tensor, Tensor, bool]:
        """``z`` and labels of rows that a fit to the others (``search.hold_out``) did not see, and whether Ctrl-C cut
        that fit short; no rows where there are few.
        """
        held, rest = search.hold_out(len(Y), self.random_state)
        if not len(held):
            return Y[:0], Y[:0], False
        fitted = self.fit(X[rest], Y[rest], likelihood, checkpoint)
        return fitted.predict(X[held]), Y[held], fitted.interrupted

    def _model(self, X: Tensor, Y: Tensor, likelihood: Likelihood) -> ESMC:
        latent = 1 if self.widths is None else len(self.widths)
        kernel: Any = "rbf" if self.kernel == "auto" else self.kernel
        if isinstance(kernel, Kernel):
            kernel = [copy.deepcopy(kernel), *["rbf"] * latent]
        return ESMC.from_data(
            X,
            Y,
            self.widths,
            likelihood=copy.deepcopy(likelihood),
            kernel=kernel,
            pseudo=self.pseudo,
            mean=["zero"] * latent + ["constant"],
            variance=[1.0] * latent + [9.0],
            seed=self.random_state,
        )


def _objective(guide: Any) -> str:
    """The objective of least variance that the guide allows."""
    doubly = guide == "doubly_stochastic" or isinstance(guide, DoublyStochasticGuide)
    doubly = doubly or (isinstance(guide, type) and issubclass(guide, DoublyStochasticGuide))
    return "collapsed" if doubly else "trace"
