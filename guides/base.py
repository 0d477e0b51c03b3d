"""What a guide owes: one small protocol, so that the model never knows which guide it is fitted with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyro
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn

from esmc_pyro.models import ESMC, Layer, observed


class Guide(PyroModule):
    """``q`` over every latent site of ``ESMC``, with the model's own signature ``guide(X, Y, rows)``.

    A guide is made from the model and the data it will be fitted to, ``SomeGuide(model, X, Y, **options)``, and owes::

        sample_globals()                     the Pyro statements of every f_*, u_*; returns [u_c, ..., u_z],
                                             (..., O, M) each
        u_means()                            [E u_c, ..., E u_z], (O, M) each: all that plug-in prediction needs

    and inherits, or overrides to learn something about single rows::

        sample_locals(x, y, known, rows, us) the Pyro statements of c_hat, c, z_hat, z for the rows of a batch, inside
                                             the plate over instances; returns the z at which q(E) is taken (..., n, K)

    Everything else (prediction, draws for new rows, saving) is made of these. ``rows`` are positions in the training
    data, for guides that keep parameters for each row.
    """

    rows: int | None = None  # how many rows it keeps parameters for; None if it takes any data
    needs_all_rows: bool = False  # whether it can only be called with all rows at once, never with a minibatch
    is_point: bool = False  # whether it is a single point while it is fitted, so that the objective is ln p, no bound

    def __init__(self, model: ESMC) -> None:
        super().__init__("guide")
        # in a tuple, so that the model is not a submodule: its parameters are the model's, not the guide's
        self._model = (model,)

    @property
    def model(self) -> ESMC:
        """The model that this is a guide of."""
        return self._model[0]

    @property
    def joint(self) -> nn.Module:
        """The Pyro program whose latent sites this guide draws: the model, unless a guide says otherwise."""
        return self.model

    def finish(self, X: Tensor, Y: Tensor) -> None:
        """What is left to do after the last step of a fit that was not interrupted; for most guides nothing."""

    def sample_globals(self) -> list[Tensor]:
        """Every ``f`` and ``u``; returns the draws of ``u``."""
        raise TypeError(f"{type(self).__name__} must define sample_globals()")

    def sample_locals(self, x: Tensor, y: Tensor, known: Tensor, rows: Tensor, us: list[Tensor]) -> Tensor:
        """The local sites of these rows, given the draws of ``u``: by the model's own conditionals."""
        for layer, u in zip(self.model.layers, us, strict=True):
            x = layer(x, u)
        return x

    def u_means(self) -> list[Tensor]:
        """The mean of ``u``, layer by layer."""
        raise TypeError(f"{type(self).__name__} must define u_means()")

    def plug_in(self, x: Tensor) -> list[Tensor]:
        """``ESMC.plug_in`` at the mean of ``u``: ``(n, F) -> [(n, L), (n, K)]``."""
        return self.model.plug_in(x, self.u_means())

    def forward(self, X: Tensor, Y: Tensor, rows: Tensor | None = None) -> None:
        """Draw every latent site, as the model's ``forward`` does; same arguments."""
        us = self.sample_globals()
        with pyro.plate("instances", len(X), subsample=rows, dim=-1):
            rows = torch.arange(len(X), device=X.device) if rows is None else rows
            y, known = observed(Y, rows)
            z = self.sample_locals(X[rows], y, known, rows, us)
            self.model.likelihood.guide(z, y, known)

    def _plates(self) -> Iterable[tuple[Layer, Any]]:
        """Each layer with the plate over its outputs."""
        for layer in self.model.layers:
            yield layer, pyro.plate(layer.plate, layer.outputs, dim=-1)
