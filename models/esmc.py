"""The model: sparse Gaussian-process layers from features to suitability, and a likelihood on top."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

import pyro
import torch
from pyro.contrib.gp.kernels import Kernel
from pyro.nn import PyroModule
from torch import Tensor

from esmc_pyro.models import rules
from esmc_pyro.models.build import layer_from_data, layer_names, per_layer
from esmc_pyro.models.layer import Layer
from esmc_pyro.models.likelihoods import Likelihood, make_likelihood
from esmc_pyro.models.unused import unused
from esmc_pyro.validation import check_data, check_features, check_labels, check_number

T = TypeVar("T")
PerLayer: TypeAlias = T | Sequence[T]

# Parameters belong to their module and to nobody else: two models never meet in a global store.
pyro.settings.set(module_local_params=True)


def observed(Y: Tensor, rows: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Labels and known-mask of these rows (n x K each). Rows beyond the end of ``Y`` are unlabelled; NaN is unknown.

    Unknown entries come back as zeros: a NaN under a mask would still poison gradients. Of all ``labels``, or of those
    whose places are given.
    """
    labelled = (rows < len(Y)).unsqueeze(-1)
    rows = rows.clamp(max=len(Y) - 1)
    y = Y[rows] if labels is None else Y[rows.unsqueeze(-1), labels]
    known = labelled & ~torch.isnan(y)
    return torch.where(known, y, y.new_zeros(())), known


class ESMC(PyroModule):
    """``x -> c -> z -> y``, site by site; see ``Layer`` and ``likelihoods`` for the distributions.

    Every layer adds ``f_c``, ``u_c`` (outputs x M), ``c_hat`` and ``c`` (instances x outputs); the last one is called
    ``z`` and has an output for each of the K labels. Model and guides share one signature::

        model(X, Y, rows)    X  (N + I) x F    features of labelled and unlabelled instances
                             Y  N x K          1, 0, or NaN where unknown; rows of X beyond Y are unlabelled;
                                               None draws y instead of observing it
                             rows              which rows to look at (a minibatch); None is all of them
    """

    def __init__(self, layers: Sequence[Layer], likelihood: Likelihood) -> None:
        """Layers and a likelihood that were used before, in another model or by themselves, are copied."""
        super().__init__("esmc")
        if not layers or [layer.site for layer in layers] != layer_names(len(layers)):
            raise ValueError(
                f"layers must be named {layer_names(max(1, len(layers)))}; got {[layer.site for layer in layers]}"
            )
        likelihood.check_labels(layers[-1].outputs)
        self.layers = PyroModule[torch.nn.ModuleList]([unused(layer) for layer in layers])
        self.likelihood = unused(likelihood)

    @classmethod
    def from_data(
        cls,
        X: Tensor,
        Y: Tensor,
        widths: Sequence[int] | None = None,
        *,
        likelihood: str | Likelihood = "experts",
        kernel: PerLayer[str | Kernel] = "rbf",
        lengthscale: PerLayer[str | float] = "paper",
        variance: PerLayer[float] = 1.0,
        ard: PerLayer[bool] = False,
        mean: PerLayer[str] = "zero",
        pseudo: PerLayer[int] | None = None,
        pseudo_method: str = "random",
        alpha: PerLayer[float] = 0.1,
        beta: PerLayer[float] = 0.1,
        gamma: PerLayer[float] = 0.1,
        fitc: PerLayer[bool] = False,
        learn: Iterable[str] = (),
        seed: int = 0,
    ) -> ESMC:
        """A model sized by the paper's rules where no size is given.

        ``X`` is (N + I) x F and ``Y`` N x K as in ``forward``. Arguments marked ``PerLayer`` take one value for all
        layers or a list with a value for each. Likelihoods and kernels are copied: no two models share theirs.

        ``widths``       the latent widths: ``[L]`` is the paper's model, ``[]`` one sparse GP from features to labels,
                         longer lists are deeper; None is ``[ceil(K / 4)]``
        ``likelihood``   a name or an object; what a name leaves open is taken from ``Y`` (``Likelihood.from_labels``)
        ``kernel``       a name, a sum such as ``"rbf+matern12"``, or a Pyro kernel (for one layer only)
        ``lengthscale``  a number or a rule of ``rules.lengthscale_from_distances``; ``variance`` is ``k(x, x)``;
                         ``ard`` gives each input a length-scale of its own
        ``mean``         ``"zero"``, ``"constant"`` or ``"linear"`` (slopes start at zero, and move if ``learn`` names
                         ``"mean"``); the constants of the last layer start where they suit the label frequencies
                         (``Likelihood.best_constant``)
        ``pseudo``       ``M``; None is the paper's rule. Pseudo-instances of a latent layer are label scores of data
                         rows (``rules.label_scores``), which the start of a guide moves to ``E f_c(S_c)``
        ``learn``        what every layer learns (``Layer.LEARNABLE``)
        """
        X = check_features(X)
        Y = check_labels(Y, len(X)).to(X.dtype)
        K = Y.shape[1]
        widths = [-(-K // 4)] if widths is None else list(widths)
        for width in widths:
            check_number(width, "widths", low=1, whole=True)
        names = layer_names(len(widths) + 1)
        if len(names) > 1 and isinstance(kernel, Kernel):
            raise ValueError(
                f"kernel must be a list with an object for each of {names}; got one object for all of them"
            )
        likelihood = make_likelihood(copy.deepcopy(likelihood), Y)
        likelihood.check_labels(K)
        each = {
            key: per_layer(value, names, key)
            for key, value in {
                "kernel": copy.deepcopy(kernel), "lengthscale": lengthscale, "variance": variance, "ard": ard,
                "mean": mean, "pseudo": rules.pseudo_count(len(X)) if pseudo is None else pseudo,
                "alpha": alpha, "beta": beta, "gamma": gamma, "fitc": fitc,
            }.items()
        }  # fmt: skip
        layers = [
            layer_from_data(
                name, X, Y, width, outputs, likelihood, {key: values[depth] for key, values in each.items()},
                pseudo_method=pseudo_method, learn=learn, seed=seed,
            )
            for depth, (name, width, outputs) in enumerate(zip(names, [None, *widths], [*widths, K], strict=True))
        ]  # fmt: skip
        return cls(layers, likelihood).to(X.dtype)

    @property
    def labels(self) -> int:
        """``K``."""
        return self.layers[-1].outputs

    def check_data(self, X: Any, Y: Any, X_unlabeled: Any = None) -> tuple[Tensor, Tensor]:
        """``X`` ((N + I) x F) and ``Y`` (N x K) in the model's precision, or a sentence on why they do not fit it."""
        X, Y = check_data(X, Y, X_unlabeled)
        first = self.layers[0].pseudo_instances
        if X.shape[1] != first.shape[1] or Y.shape[1] != self.labels:
            raise ValueError(
                f"X and Y must have the {first.shape[1]} features and {self.labels} labels of the model; "
                f"got {X.shape[1]} and {Y.shape[1]}"
            )
        return X.to(first), Y.to(first)

    def forward(self, X: Tensor, Y: Tensor | None = None, rows: Tensor | None = None) -> None:
        """The generative process, conditioned on ``Y`` where it is known."""
        self.draw_priors()
        us = [layer.sample_functions() for layer in self.layers]
        with pyro.plate("instances", len(X), subsample=rows, dim=-1):
            h = X if rows is None else X[rows]
            for layer, u in zip(self.layers, us, strict=True):
                h = layer(h, u)
            if Y is None:
                self.likelihood(h)
            else:
                self.likelihood(h, *observed(Y, torch.arange(len(X), device=X.device) if rows is None else rows))

    def _priors(self) -> list[tuple[torch.nn.Module, str]]:
        return [(module, name) for module in self.modules() for name in getattr(module, "_pyro_samples", ())]

    @property
    def has_priors(self) -> bool:
        """Whether the user put a prior on any parameter (``PyroSample``)."""
        return bool(self._priors())

    def draw_priors(self) -> None:
        """Draw every parameter on which the user put a prior, once, outside all plates."""
        for module, name in self._priors():
            getattr(module, name)

    def plug_in(self, x: Tensor, us: Sequence[Tensor]) -> list[Tensor]:
        """The mean of every layer's output with each layer's input at its mean: ``[E f_c(x), E f_z(E f_c(x))]``.

        Shapes: ``(n, F), [(L, M), (K, M)] -> [(n, L), (n, K)]``.
        """
        outputs = []
        for layer, u in zip(self.layers, us, strict=True):
            x = layer.predict(x, u)
            outputs.append(x)
        return outputs
