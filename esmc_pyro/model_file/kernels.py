"""Kernels to and from a model file: classes by name, from a list, and their parameters as tensors."""

from __future__ import annotations

from typing import Any

from pyro.contrib.gp import kernels
from pyro.contrib.gp.kernels import Combination, Kernel
from pyro.nn import PyroModule
from torch import Tensor, nn

from esmc_pyro.model_file.errors import Fields, ModelFileError, Tensors
from esmc_pyro.models.kernels import Laplacian

# classes made from (input_dim, active_dims) and parameters alone; no functions, which a file could not hold
SINGLE: dict[str, type[Kernel]] = {
    name: getattr(kernels, name)
    for name in (
        "RBF", "RationalQuadratic", "Exponential", "Matern32", "Matern52", "Linear", "Constant", "WhiteNoise", "Cosine",
        "Periodic",
    )
} | {"Laplacian": Laplacian}  # fmt: skip
COMBINED: dict[str, type[Combination]] = {name: getattr(kernels, name) for name in ("Sum", "Product")}
DEPTH = 20  # sums within sums; more of them only a hostile file has


def refuse_priors(module: nn.Module, what: str) -> None:
    """Distributions that the user put in place of parameters cannot be written down."""
    if any(part._pyro_samples for part in module.modules() if isinstance(part, PyroModule)):
        raise ModelFileError(f"{what} has priors in place of parameters, which no model file holds; use plain values")


def encode(kernel: Kernel, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """A description of ``kernel``; its parameters go to ``tensors`` under ``name``."""
    refuse_priors(kernel, f"the kernel {type(kernel).__name__}")
    kind = type(kernel).__name__
    if COMBINED.get(kind) is type(kernel):
        second = kernel.kern1
        return {
            "class": kind,
            "first": encode(kernel.kern0, f"{name}.kern0", tensors),
            "second": encode(second, f"{name}.kern1", tensors) if isinstance(second, Kernel) else float(second),
        }
    if SINGLE.get(kind) is not type(kernel):
        raise ModelFileError(
            f"a model file can hold the kernels {sorted(SINGLE)} and sums and products of them; got {kind}"
        )
    dims = list(kernel.active_dims)
    parameters = dict(kernel.named_parameters())
    if set(parameters) != set(_parameter_names(SINGLE[kind])):
        raise ModelFileError(f"the kernel {kind} must have its own parameters to be saved; got {sorted(parameters)}")
    tensors.update({f"{name}.{path}": value for path, value in parameters.items()})
    return {
        "class": kind,
        "inputs": kernel.input_dim,
        "dims": None if dims == list(range(kernel.input_dim)) else [int(dim) for dim in dims],
    }


def decode(value: Any, name: str, tensors: Tensors, inputs: int | None, depth: int = 0) -> Kernel:
    """The kernel of this description, over at most ``inputs`` dimensions (any number if None)."""
    fields = Fields(value, f"the kernel {name!r}")
    kind = fields.choice("class", (*SINGLE, *COMBINED))
    if depth > DEPTH:
        raise ModelFileError(f"the kernel {name!r:.60} must be nested at most {DEPTH} deep")
    if kind in COMBINED:
        first = decode(fields.take("first", dict), f"{name}.kern0", tensors, inputs, depth + 1)
        second = fields.take("second", dict, float)
        fields.done()
        if isinstance(second, dict):
            return COMBINED[kind](first, decode(second, f"{name}.kern1", tensors, inputs, depth + 1))
        return COMBINED[kind](first, second)
    return _decode_single(fields, kind, name, tensors, inputs)


def _decode_single(fields: Fields, kind: str, name: str, tensors: Tensors, inputs: int | None) -> Kernel:
    width = fields.count("inputs")
    dims = fields.items("dims", int) if fields.has_list("dims") else fields.take("dims", type(None))
    fields.done()
    highest = width - 1 if dims is None else max(dims, default=-1)
    if dims is not None and (len(dims) != width or min(dims) < 0 or len(set(dims)) != width):
        raise ModelFileError(f"the kernel {name!r} must act on {width} different inputs; got {dims!r:.60}")
    if highest >= (2**24 if inputs is None else inputs):
        raise ModelFileError(f"the kernel {name!r} must act on the {inputs} inputs of its layer; got input {highest}")
    kernel = SINGLE[kind](width, active_dims=dims)
    for path, parameter in kernel.named_parameters():
        shapes: tuple[tuple[int, ...], ...] = ((), (1,), (width,)) if path.startswith("lengthscale") else ((), (1,))
        parameter.data = tensors.take(f"{name}.{path}", *shapes)
    return kernel


def _parameter_names(kind: type[Kernel]) -> list[str]:
    return [path for path, _ in kind(1).named_parameters()]
