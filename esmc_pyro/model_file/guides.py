"""Guides to and from a model file: by name and options, with their parameters as tensors."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any, Literal, cast

import torch
from torch import Tensor

from esmc_pyro.guides import AmortizedGuide, DoublyStochasticGuide, Guide, PaperGuide, paper, whitened
from esmc_pyro.model_file.errors import Fields, ModelFileError, Tensors
from esmc_pyro.models import ESMC
from esmc_pyro.randomness import seeded

CLASSES: dict[str, type[Guide]] = {
    "paper": PaperGuide,
    "doubly_stochastic": DoublyStochasticGuide,
    "amortized": AmortizedGuide,
}
# the options of each that a file may give back to the estimator
OPTIONS = {
    "paper": ("covariance", "functions", "start"),
    "doubly_stochastic": ("covariance", "start", "scale"),
    "amortized": ("hidden", "covariance", "start", "scale"),
}
Shape = tuple[int, ...]


def encode(guide: Guide, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """A description of a fitted guide; its parameters go to ``tensors`` under "guide"."""
    name = next((name for name, kind in CLASSES.items() if type(guide) is kind), None)
    if name is None:
        raise ModelFileError(f"a model file can hold the guides {sorted(CLASSES)}; got {type(guide).__name__}")
    parameters = dict(guide.named_parameters())
    tensors.update({f"guide.{path}": value for path, value in parameters.items()})
    described: dict[str, Any] = {
        "name": name,
        "covariance": cast(Any, guide).covariance,
        "learned": sorted(path for path, value in parameters.items() if value.requires_grad),
    }
    if isinstance(guide, PaperGuide):
        described |= {"functions": guide.functions, "rows": guide.rows}
    if isinstance(guide, AmortizedGuide):
        described["hidden"] = guide.hidden
    return described


def decode(value: Any, tensors: Tensors, model: ESMC) -> Guide:
    """The guide of this description for ``model``, made only once every tensor has the size it should have."""
    fields = Fields(value, "the guide")
    name = fields.choice("name", CLASSES)
    learned = fields.items("learned", str)
    if name == "paper":
        covariance = fields.choice("covariance", paper.COVARIANCES)
        functions = fields.choice("functions", paper.FUNCTIONS)
        shapes = _paper_shapes(model, covariance, rows := fields.count("rows"))
    else:
        covariance = fields.choice("covariance", whitened.COVARIANCES)
        shapes = _whitened_shapes(model, covariance)
        if name == "amortized":
            shapes |= _encoder_shapes(model, hidden := fields.items("hidden", int))
    fields.done()
    dtype = model.layers[0].pseudo_instances.dtype
    values = {path: tensors.take(f"guide.{path}", shape, dtypes=(dtype,)) for path, shape in shapes.items()}
    guide: Guide
    if name == "paper":
        like = torch.zeros(rows, 1, dtype=dtype)
        guide = PaperGuide(model, like, like, covariance=_any(covariance), functions=_any(functions), start="zero")
    elif name == "amortized":
        like = torch.zeros(1, 1, dtype=dtype)
        with seeded(0):  # networks begin at random numbers, which must not move the caller's
            guide = AmortizedGuide(model, like, like, hidden=hidden, covariance=_any(covariance), start="zero")
    else:
        like = torch.zeros(1, 1, dtype=dtype)
        guide = DoublyStochasticGuide(model, like, like, covariance=_any(covariance), start="zero")
    for path, parameter in guide.named_parameters():
        parameter.data = values[path]
        parameter.requires_grad_(path in learned)
    return guide


def _any(name: str) -> Any:
    """A name that was checked already, for an argument that takes literals."""
    return name


def _paper_shapes(model: ESMC, covariance: str, rows: int) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {}
    for layer in model.layers:
        s, O, M = layer.site, layer.outputs, layer.pseudo_count
        shapes |= {f"{s}_f_loc": (O, M), f"{s}_f_tril_unconstrained": (M, M), f"{s}_u_loc": (O, M)}
        shapes |= (
            {f"{s}_u_tril_unconstrained": (M, M)} if covariance == "full" else {f"{s}_u_scale_unconstrained": (O, M)}
        )
        shapes |= {f"{s}_loc": (rows, O), f"{s}_scale_unconstrained": (rows, O)}
    return shapes


def _whitened_shapes(model: ESMC, covariance: str) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {}
    for layer in model.layers:
        s, O, M = layer.site, layer.outputs, layer.pseudo_count
        spread: dict[str, tuple[Literal["scale", "tril"], Shape]] = {
            "common": ("scale", (1, M)),
            "diagonal": ("scale", (O, M)),
            "shared": ("tril", (M, M)),
            "full": ("tril", (O, M, M)),
        }
        what, shape = spread[covariance]
        shapes |= {f"{s}_v_loc": (O, M), f"{s}_v_{what}_unconstrained": shape}
    return shapes


def _encoder_shapes(model: ESMC, hidden: list[int]) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {}
    for layer in list(model.layers)[:-1]:
        widths = [layer.pseudo_instances.shape[1] + 2 * model.labels, *hidden, 2 * layer.outputs]
        for step, (inputs, outputs) in enumerate(pairwise(widths)):
            place = f"{layer.site}_encoder.network.{2 * step}"  # between two linear maps stands an activation
            shapes |= {f"{place}.weight": (outputs, inputs), f"{place}.bias": (outputs,)}
    return shapes


def encode_class(value: Any) -> dict[str, Any] | None:
    """A guide class, or ``partial`` of one with plain options, as the estimator takes them; None for anything else."""
    options: dict[str, Any] = {}
    if isinstance(value, partial) and not value.args:
        value, options = value.func, value.keywords
    name = next((name for name, kind in CLASSES.items() if value is kind), None)
    plain = all(isinstance(option, str | int | float) for option in options.values())
    return {"name": name, "options": options} if name is not None and plain else None


def decode_class(value: Any) -> Any:
    """What ``encode_class`` was given."""
    fields = Fields(value, "the argument 'guide'")
    name, options = fields.choice("name", CLASSES), fields.take("options", dict)
    fields.done()
    allowed = OPTIONS[name]
    for key, option in options.items():
        if key not in allowed or not isinstance(option, str | int | float):
            raise ModelFileError(f"the options of the guide {name!r} must be among {list(allowed)}; got {key!r:.60}")
    made: Any = CLASSES[name]
    return partial(made, **options) if options else made
