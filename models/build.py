"""Layers sized by the data: what ``ESMC.from_data`` is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from esmc_pyro.models import rules
from esmc_pyro.models.kernels import make_kernel
from esmc_pyro.models.layer import Layer
from esmc_pyro.models.likelihoods import Likelihood
from esmc_pyro.models.means import make_mean
from esmc_pyro.validation import check_number


def layer_names(depth: int) -> list[str]:
    """``["c", "z"]`` for two layers, ``["z"]`` for one, ``["c1", "c2", "z"]`` for three, and so on."""
    return ["z"] if depth == 1 else ["c", "z"] if depth == 2 else [f"c{i + 1}" for i in range(depth - 1)] + ["z"]


def plate_name(layer: str) -> str:
    """The plate over the outputs of a layer: ``labels`` for ``z``, ``latent`` for ``c``, ``latent2`` for ``c2``."""
    return "labels" if layer == "z" else f"latent{layer[1:]}"


def per_layer(value: Any, names: Sequence[str], argument: str) -> list[Any]:
    """``value`` for each of the layers ``names``: itself, or its items if it is a list or tuple of the right length."""
    if not isinstance(value, list | tuple):
        return [value] * len(names)
    if len(value) != len(names):
        raise ValueError(
            f"{argument} must be one for all layers or a list with one for each of {list(names)}; got {len(value)}"
        )
    return list(value)


def layer_from_data(
    name: str,
    X: Tensor,
    Y: Tensor,
    width: int | None,
    outputs: int,
    likelihood: Likelihood,
    given: dict[str, Any],
    *,
    pseudo_method: str,
    learn: Iterable[str],
    seed: int,
) -> Layer:
    """The layer called ``name``: on ``X`` ((N + I) x F) if ``width`` is None, else on ``width`` label scores of ``Y``.

    ``given`` are its arguments of ``ESMC.from_data``, one value each.
    """
    M, kernel, lengthscale, rule = given["pseudo"], given["kernel"], given["lengthscale"], None
    check_number(M, "pseudo", low=1, whole=True)
    check_number(given["variance"], "variance", low=0, above=True)
    if width is None:
        inputs = X
        points = rules.choose_pseudo_instances(X, M, pseudo_method, seed)
    else:
        inputs = rules.label_scores(Y, width)
        points = inputs[rules.choose_pseudo_rows(len(inputs), M, seed)]
    if isinstance(lengthscale, str):
        rule = lengthscale if isinstance(kernel, str) else None  # a kernel that was passed keeps its own
        lengthscale = partial(rules.lengthscale_from_distances, inputs, lengthscale, seed=seed)
    else:
        check_number(lengthscale, "lengthscale", low=0, above=True)
    constant = likelihood.best_constant(rules.label_frequencies(Y)) if name == "z" else X.new_zeros(outputs)
    return Layer(
        name,
        make_kernel(kernel, inputs.shape[1], lengthscale=lengthscale, variance=given["variance"], ard=given["ard"]),
        points,
        outputs,
        plate=plate_name(name),
        alpha=given["alpha"],
        beta=given["beta"],
        gamma=given["gamma"],
        mean=make_mean(given["mean"], inputs.shape[1], constant),
        fitc=given["fitc"],
        lengthscale_rule=rule,
        learn=learn,
    )
