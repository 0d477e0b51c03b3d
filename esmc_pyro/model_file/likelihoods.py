"""Likelihoods to and from a model file: by name and arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from esmc_pyro.model_file.errors import Fields, ModelFileError, Tensors
from esmc_pyro.model_file.kernels import refuse_priors
from esmc_pyro.models import LIKELIHOODS, Likelihood, make_likelihood

# the constructor's arguments, which are attributes of the same names: numbers, or parameters
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "experts": ("B", "lambda_", "explicit"),
    "eeoe": ("B", "lambda_"),
    "eeoe_learned": ("B", "lambda_"),
    "bernoulli": ("lambda_",),
    "polya_gamma": ("lambda_",),
    "probit": ("lambda_",),
    "gaussian": ("noise",),
    "mpu": ("c", "lambda_"),
    "mpu_learned": ("c", "lambda_"),
    "propensity": ("propensity", "lambda_"),
    "noisy_or": ("miss", "leak", "lambda_"),
}
# a value that any parameter of this name may have, in place of what its tensor says
PLACEHOLDERS = {"B": 2.0}


def encode(likelihood: Likelihood, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """A description of ``likelihood``; what is learned, or differs by label, goes to ``tensors`` under ``name``."""
    kinds = {kind: key for key, kind in LIKELIHOODS.items() if key in ARGUMENTS}
    if type(likelihood) not in kinds:
        raise ModelFileError(
            f"a model file can hold the likelihoods {sorted(ARGUMENTS)}; got {type(likelihood).__name__}"
        )
    refuse_priors(likelihood, f"the likelihood {type(likelihood).__name__}")
    kind = kinds[type(likelihood)]
    parameters = dict(likelihood.named_parameters())
    tensors.update({f"{name}.{path}": value for path, value in parameters.items()})
    arguments = {key: getattr(likelihood, key) for key in ARGUMENTS[kind] if f"{key}_unconstrained" not in parameters}
    for key, value in arguments.items():
        if not isinstance(value, bool | int | float):
            raise ModelFileError(f"{key} of the likelihood {kind!r} must be a number to be saved; got {value!r:.60}")
    return {
        "name": kind,
        "arguments": arguments,
        "learned": sorted(p for p, v in parameters.items() if v.requires_grad),
    }


def decode(value: Any, name: str, tensors: Tensors, labels: int | None = None) -> Likelihood:
    """The likelihood of this description, for ``labels`` labels (any number if None)."""
    fields = Fields(value, "the likelihood")
    kind = fields.choice("name", ARGUMENTS)
    given = Fields(fields.take("arguments", dict), f"the arguments of the likelihood {kind!r}")
    learned = fields.items("learned", str)
    fields.done()
    options: dict[str, Any] = {}
    parameters: dict[str, Tensor] = {}
    for key in ARGUMENTS[kind]:
        path = f"{key}_unconstrained"
        if f"{name}.{path}" in tensors:
            parameters[path] = tensors.take(f"{name}.{path}", (), *([] if kind == "gaussian" else [(labels,)]))
            if kind == "gaussian":
                options["learn_noise"] = True
            else:
                options[key] = torch.full_like(parameters[path], PLACEHOLDERS.get(key, 0.5))
        elif key == "explicit":
            options[key] = given.take(key, bool)
        else:
            options[key] = given.take(key, int, float)
    given.done()
    try:
        likelihood = make_likelihood(kind, **options)
    except (ValueError, OverflowError) as error:
        raise ModelFileError(f"the likelihood {kind!r} cannot be made: {error}") from None
    expected = sorted(path for path, _ in likelihood.named_parameters())
    if sorted(parameters) != expected:
        raise ModelFileError(f"the tensors of the likelihood {kind!r} must be {expected}; got {sorted(parameters)}")
    for path, parameter in likelihood.named_parameters():
        parameter.data = parameters[path]
        key = path.removesuffix("_unconstrained")
        kept = getattr(likelihood, key).detach()
        if not (torch.isfinite(kept) & (kept > 0)).all():
            raise ModelFileError(f"tensor '{name}.{path}' must give positive finite values of {key}; got {kept!s:.60}")
        parameter.requires_grad_(path in learned)
    return likelihood
