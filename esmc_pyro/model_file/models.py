"""The layers and the likelihood of a model to and from a model file."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from esmc_pyro.model_file import kernels, likelihoods
from esmc_pyro.model_file.errors import Fields, ModelFileError, Tensors
from esmc_pyro.models import ESMC, Layer
from esmc_pyro.models.build import layer_names
from esmc_pyro.models.means import Constant, Linear

NOISES = ("alpha", "beta", "gamma")
RULES = ("paper", "authors")  # of rules.lengthscale_from_distances


def encode(model: ESMC, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """A description of ``model``; its parameters go to ``tensors`` under "layers" and "likelihood"."""
    if type(model) is not ESMC:
        raise ModelFileError(f"a model file can hold an ESMC as it is; got {type(model).__name__}")
    layers = [_encode_layer(layer, f"layers.{depth}", tensors) for depth, layer in enumerate(model.layers)]
    return {"layers": layers, "likelihood": likelihoods.encode(model.likelihood, "likelihood", tensors)}


def _encode_layer(layer: Layer, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    if type(layer) is not Layer:
        raise ModelFileError(f"a model file can hold layers of the class Layer; got {type(layer).__name__}")
    kernels.refuse_priors(layer, f"layer {layer.site!r}")
    described: dict[str, Any] = {
        "site": layer.site,
        "plate": layer.plate,
        "outputs": int(layer.outputs),
        "fitc": bool(layer.fitc),
        "lengthscale_rule": layer.lengthscale_rule,
        "kernel": kernels.encode(layer.kernel, f"{name}.kernel", tensors),
        "mean": None,
        "learned": sorted(path for path, value in layer.named_parameters() if value.requires_grad),
    }
    if layer.mean is not None:
        if type(layer.mean) not in (Constant, Linear):
            raise ModelFileError(
                f"a model file can hold the means 'zero', 'constant' and 'linear'; layer {layer.site!r} has a "
                f"{type(layer.mean).__name__}"
            )
        described["mean"] = type(layer.mean).__name__.lower()
        tensors.update({f"{name}.mean.{path}": value for path, value in layer.mean.named_parameters()})
    tensors[f"{name}.pseudo_instances"] = layer.pseudo_instances
    for noise in NOISES:
        tensors[f"{name}.{noise}_unconstrained"] = getattr(layer, f"{noise}_unconstrained")
    return described


def decode(value: Any, tensors: Tensors, inputs: int, labels: int) -> ESMC:
    """The model of this description, from ``inputs`` features to ``labels`` labels."""
    fields = Fields(value, "the model")
    layers: list[Layer] = []
    described = fields.items("layers", dict)
    for depth, description in enumerate(described):
        layers.append(_decode_layer(description, f"layers.{depth}", tensors, inputs))
        inputs = layers[-1].outputs
    names = [layer.site for layer in layers]
    if not layers or names != layer_names(len(layers)):
        raise ModelFileError(f"the layers must be named {layer_names(max(1, len(layers)))}; got {names!s:.100}")
    if len({layer.plate for layer in layers} - {"instances", "draws", "experts_plate", ""}) != len(layers):
        raise ModelFileError(
            f"the layers must have plates of their own; got {[layer.plate for layer in layers]!s:.100}"
        )
    if inputs != labels:
        raise ModelFileError(f"the last layer must have an output for each of {labels} labels; got {inputs}")
    if len({parameter.dtype for layer in layers for parameter in layer.parameters()}) != 1:
        raise ModelFileError("the tensors of all layers must be of one type; got float32 and float64")
    likelihood = likelihoods.decode(fields.take("likelihood", dict), "likelihood", tensors, labels)
    fields.done()
    return ESMC(layers, likelihood)


def _decode_layer(value: dict[str, Any], name: str, tensors: Tensors, inputs: int) -> Layer:
    fields = Fields(value, f"{name!r}")
    site, plate, outputs = fields.take("site", str), fields.take("plate", str), fields.count("outputs")
    fitc, rule = fields.take("fitc", bool), fields.take("lengthscale_rule", str, type(None))
    if rule is not None and rule not in RULES:
        raise ModelFileError(f"'lengthscale_rule' of {name!r} must be null or one of {list(RULES)}; got {rule!r:.60}")
    kernel = kernels.decode(fields.take("kernel", dict), f"{name}.kernel", tensors, inputs)
    mean_name, learned = fields.take("mean", str, type(None)), fields.items("learned", str)
    fields.done()
    pseudo = tensors.take(f"{name}.pseudo_instances", (None, inputs))
    mean: nn.Module | None = None
    if mean_name is not None:
        if mean_name not in ("constant", "linear"):
            raise ModelFileError(f"'mean' of {name!r} must be null, 'constant' or 'linear'; got {mean_name!r:.60}")
        offset = tensors.take(f"{name}.mean.offset", (outputs,))
        mean = Constant(offset)
        if mean_name == "linear":
            mean = Linear(tensors.take(f"{name}.mean.weight", (inputs, outputs)), offset)
    noises = {noise: tensors.take(f"{name}.{noise}_unconstrained", ()) for noise in NOISES}
    layer = Layer(site, kernel, pseudo, outputs, plate=plate, mean=mean, fitc=fitc, lengthscale_rule=rule)
    for noise, raw in noises.items():
        getattr(layer, f"{noise}_unconstrained").data = raw
        made = getattr(layer, noise)
        if not (torch.isfinite(made) and made > 0):
            raise ModelFileError(f"{noise} of {name!r} must be a positive number; got {made.item()}")
    for path, parameter in layer.named_parameters():
        parameter.requires_grad_(path in learned)
    return layer
