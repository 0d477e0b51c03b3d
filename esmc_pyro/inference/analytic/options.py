"""What can be chosen about the analytic solver, checked before any work is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from pyro.contrib.gp.kernels import RBF
from torch import Tensor

from esmc_pyro.models import ESMC
from esmc_pyro.models.means import Constant
from esmc_pyro.validation import check_choice, check_number


@dataclass(frozen=True)
class Options:
    """The solver's choices; the first of each list is the default.

    ``sweeps``, ``tolerance``   the most sweeps, and the relative change of the bound over one that ends the fit
    ``q_c``         "gradient" steps on the bound, or the authors' "forward" pass ``m_c = E c_hat``, ``s_c = gamma_c``
    ``c_variance``  "shared" by all rows (matrix products only), or a variance for each of the "rows" (the paper's
                    family, many times the work)
    ``c_steps``     gradient steps on ``q(c)`` a sweep
    ``z_steps``     rounds of ``q(z)``, ``xi``, ``q(E)`` a sweep: cheap, and rare labels converge slowly
    ``functions``   "joint" optimum of ``q(f)`` and ``q(u)``, or "alternate", one after the other
    ``sigmoid``     "jaakkola" (``G(t, xi)``) for experts and Bernoulli, or "quadrature", as for other likelihoods
    ``experts``     "integrated" out where ``y = 0`` leaves them free (a tighter bound on the same posterior), or
                    "explicit" factors ``q(E)``
    ``xi``          "optimal", or the "paper"'s ``lambda |E z|``
    ``xi_start``    None (where the rule for ``xi`` says), or the first value of every ``xi``
    ``clamp``       None, or the mean of ``q(z)`` where ``y = 1`` (the authors: 1000)
    ``refresh``     None, or "pseudo": ``S_z <- E f_c(S_c)`` each sweep, or row numbers: ``S_z <- E c`` of those rows
    ``unlabelled``  rows follow the "bound", or "self_training": ``z`` predicted by a short fit to the labelled rows,
                    and then held
    ``block``       rows at a time
    ``history``     the bound after each of the "blocks", or of the "sweeps" only, which is faster

    ``monotone``: no update lowers the bound. So it is unless ``xi="paper"``, ``clamp``, ``refresh``, ``q_c="forward"``.
    """

    sweeps: int = 50
    tolerance: float = 1e-5
    q_c: str = "gradient"
    c_variance: str = "shared"
    c_steps: int = 1
    z_steps: int = 3
    functions: str = "joint"
    sigmoid: str = "jaakkola"
    experts: str = "integrated"
    xi: str = "optimal"
    xi_start: float | None = None
    clamp: float | None = None
    refresh: str | Tensor | None = None
    unlabelled: str = "bound"
    block: int = 4096
    history: str = "blocks"

    def __post_init__(self) -> None:
        check_number(self.sweeps, "sweeps", low=1, whole=True)
        check_number(self.tolerance, "tolerance", low=0)
        check_number(self.c_steps, "c_steps", low=1, whole=True)
        check_number(self.z_steps, "z_steps", low=1, whole=True)
        check_number(self.block, "block", low=1, whole=True)
        for name in ("clamp", "xi_start"):
            if getattr(self, name) is not None:
                check_number(getattr(self, name), name)
        for name, choices in CHOICES.items():
            check_choice(getattr(self, name), choices, name)
        if isinstance(self.refresh, str):
            check_choice(self.refresh, ("pseudo",), "refresh")

    @property
    def monotone(self) -> bool:
        return self.xi == "optimal" and self.q_c == "gradient" and self.clamp is None and self.refresh is None


CHOICES: dict[str, tuple[str, ...]] = {
    "history": ("blocks", "sweeps"),
    "q_c": ("gradient", "forward"),
    "c_variance": ("shared", "rows"),
    "functions": ("joint", "alternate"),
    "sigmoid": ("jaakkola", "quadrature"),
    "experts": ("integrated", "explicit"),
    "xi": ("optimal", "paper"),
    "unlabelled": ("bound", "self_training"),
}


def check_model(model: Any, X: Tensor, Y: Tensor) -> None:
    """The model is one whose bound has a closed form, and the data fit it."""
    if not isinstance(model, ESMC):
        raise ValueError(f"model must be an ESMC; got {type(model).__name__}")
    if Y.shape[1] != model.labels:
        raise ValueError(f"Y must have a column for each of the model's {model.labels} labels; got {Y.shape[1]}")
    features = model.layers[0].pseudo_instances.shape[1]
    if X.shape[1] != features:
        raise ValueError(f"X must have {features} columns, as the model's pseudo-instances; got {X.shape[1]}")
    if any(parameter.requires_grad for parameter in model.likelihood.parameters()):
        raise ValueError(
            f"the analytic solver holds the model's parameters fixed; got the likelihood "
            f"{type(model.likelihood).__name__} with parameters to learn (requires_grad_(False) holds them)"
        )
    for depth, layer in enumerate(model.layers):
        site = layer.site
        if layer.fitc:
            raise ValueError(
                f"layer {site!r} has fitc=True, whose input-dependent variance has no closed-form bound; "
                "expected fitc=False for the analytic solver"
            )
        if any(getattr(part, "_pyro_samples", None) for part in layer.modules()):
            raise ValueError(
                f"the analytic solver needs fixed kernels and noises; got layer {site!r} with a prior on some"
            )
        learned = sorted({path.split(".")[0] for path, p in layer.named_parameters() if p.requires_grad})
        if learned:
            raise ValueError(
                f"the analytic solver holds the model's parameters fixed; got layer {site!r} that learns "
                f"{[name.removesuffix('_unconstrained') for name in learned]} (expected learn=())"
            )
        if depth and type(layer.kernel) is not RBF:  # a class of one's own may have changed it
            raise ValueError(
                f"layer {site!r} must have the kernel 'rbf' for the analytic solver, which averages it over uncertain "
                f"inputs; got {type(layer.kernel).__name__}"
            )
        inputs = list(range(layer.pseudo_instances.shape[1]))
        if depth and list(layer.kernel.active_dims) != inputs:
            raise ValueError(
                f"the kernel of layer {site!r} must see all {len(inputs)} inputs in order for the analytic solver; got "
                f"active_dims={list(layer.kernel.active_dims)}"
            )
        if depth and layer.mean is not None and type(layer.mean) is not Constant:
            raise ValueError(
                f"layer {site!r} must have no mean function or a Constant one for the analytic solver, because its "
                f"inputs are uncertain; got {type(layer.mean).__name__}"
            )


def check_refresh(refresh: str | Tensor | None, model: ESMC, rows: int) -> None:
    """A refresh needs a hidden layer, and as many points as the layer above it has pseudo-instances."""
    if refresh is None:
        return
    if len(model.layers) == 1:
        raise ValueError("refresh moves the pseudo-instances of a layer above the first; got a model with one layer")
    for below, layer in zip(model.layers[:-1], model.layers[1:], strict=True):
        points = below.pseudo_count if isinstance(refresh, str) else len(refresh)
        if points != layer.pseudo_count:
            raise ValueError(
                f"refresh must give {layer.pseudo_count} pseudo-instances to layer {layer.site!r}; it gives {points}"
            )
    if isinstance(refresh, Tensor) and (refresh.dtype != torch.long or not 0 <= refresh.min() <= refresh.max() < rows):
        raise ValueError(f"refresh must be 'pseudo' or row numbers from 0 to {rows - 1}; got {refresh}")
