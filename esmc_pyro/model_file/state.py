"""Everything that ``fit`` leaves in an estimator, to and from a model file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import sparse
from torch import Tensor

from esmc_pyro import calibration
from esmc_pyro.feature_map import KINDS, FeatureMap
from esmc_pyro.model_file import guides, models, values
from esmc_pyro.model_file.errors import Fields, ModelFileError, Tensors
from esmc_pyro.posterior import Posterior
from esmc_pyro.stack import Member, Stack
from esmc_pyro.tensor_file import fingerprint

WHOLE = (torch.int64,)
MEMBER = "members.{}."  # before the names of a member's tensors


def encode(estimator: Any, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """A description of a fitted estimator; its arrays go to ``tensors``. The estimator stays as it is."""
    names, searched = getattr(estimator, "feature_names_in_", None), estimator.search_
    arguments = estimator.get_params(deep=False)
    carried, fits = estimator.pseudo_labels_, estimator.suitability_calibration_
    for key in ("data", "indices", "indptr"):
        part = getattr(carried, key)
        tensors[f"pseudo_labels.{key}"] = torch.from_numpy(part if key == "data" else part.astype(np.int64))
    tensors["pseudo_rows"] = torch.from_numpy(estimator.pseudo_rows_.astype(np.int64))
    members = []
    for place, member in enumerate(estimator.stack_.members):
        own: dict[str, Tensor] = {}
        members.append(_encode_member(member, own))
        tensors.update({f"{MEMBER.format(place)}{name}": tensor for name, tensor in own.items()})
    return {
        "arguments": {key: values.encode(value, f"arguments.{key}", tensors) for key, value in arguments.items()},
        "inputs": int(estimator.n_features_in_),
        "feature_names": None if names is None else [str(name) for name in names],
        "label_names": list(estimator.label_names_),
        "labels_in_frame": estimator._label_columns is not None,
        "members": members,
        "calibration": [float(number) for number in estimator.calibration_],
        "suitability_calibration": None if fits is None else [float(number) for number in fits],
        "threshold": float(estimator.threshold_),
        "search": None if searched is None else values.encode_table(searched, "search", tensors),
    }


def _encode_member(member: Member, tensors: dict[str, Tensor]) -> dict[str, Any]:
    for key, array in _arrays(member.feature_map).items():
        tensors[f"features.{key}"] = torch.from_numpy(array)
    return {
        "weight": float(member.weight),
        "features": member.feature_map.kind,
        "model": models.encode(member.posterior.model, tensors),
        "guide": guides.encode(member.posterior.guide, tensors),
        "history": values.encode_table(member.posterior.history, "history", tensors),
        "interrupted": bool(member.posterior.interrupted),
        "settings": values.encode_settings(member.settings, tensors),
    }


def decode(content: Any, given: dict[str, Tensor], kind: type[Any]) -> Any:
    """The estimator of this description, of class ``kind``."""
    content, given = _as_now(content, given)
    fields = Fields(content, "the description")
    described = fields.items("members", dict)
    if not described:
        raise ModelFileError("'members' of the description must hold at least one member; got none")
    prefixes = [MEMBER.format(place) for place in range(len(described))]
    tensors = Tensors({name: tensor for name, tensor in given.items() if not name.startswith(tuple(prefixes))})
    arguments = _decode_arguments(fields.take("arguments", dict), tensors, kind)
    inputs = fields.count("inputs")
    label_names = fields.items("label_names", str)
    feature_names = fields.items("feature_names", str) if fields.has_list("feature_names") else None
    if feature_names is None:
        fields.take("feature_names", type(None))
    elif len(feature_names) != inputs:
        raise ModelFileError(f"'feature_names' must name each of {inputs} features; got {len(feature_names)}")
    in_frame = fields.take("labels_in_frame", bool)
    written, threshold = _decode_calibration(fields, "calibration"), fields.take("threshold", float)
    fits, is_old = None, "suitability_calibration" not in fields  # as before version 7
    if fields.has_list("suitability_calibration"):
        fits = _decode_calibration(fields, "suitability_calibration")
    elif not is_old:
        fields.take("suitability_calibration", type(None))
    table = fields.take("search", list, type(None))
    search = None if table is None else values.decode_table(table, "search", tensors)
    fields.done()
    members = [
        _decode_member(description, _part(given, prefix), inputs, len(label_names))
        for description, prefix in zip(described, prefixes, strict=True)
    ]
    _check_members(members, described)
    if is_old and not calibration.is_written(members[0].posterior.model.likelihood, len(label_names)):
        fits = (1.0, 0.0)
    members = _with_shared_maps(members)
    if search is not None and (
        search.get("weight", pd.Series(["none"])).dtype != float or (search["weight"] < 0).any()
    ):
        raise ModelFileError("the table 'search' must have a column 'weight' of numbers that are not negative")
    pseudo_rows, pseudo_labels = _decode_pseudo(
        tensors, members[0].posterior.model.layers[0].pseudo_count, len(label_names)
    )
    tensors.done()

    made = kind(**arguments)
    made.stack_, made.search_ = Stack(members), search
    made.label_names_, made._label_columns = label_names, pd.Index(label_names) if in_frame else None
    made.n_labels_, made.n_features_in_ = len(label_names), inputs
    if feature_names is not None:
        made.feature_names_in_ = np.array(feature_names, dtype=object)
    made.calibration_, made.suitability_calibration_, made.threshold_ = written, fits, threshold
    made.pseudo_rows_, made.pseudo_labels_ = pseudo_rows, pseudo_labels
    return made


def _decode_calibration(fields: Fields, name: str) -> tuple[float, float]:
    numbers = fields.items(name, float)
    if len(numbers) != 2:
        raise ModelFileError(f"{name!r} must be a slope and an offset; got {len(numbers)} numbers")
    if not numbers[0] > 0:
        raise ModelFileError(f"the slope of {name!r} must be above 0; got {numbers[0]}")
    return numbers[0], numbers[1]


def _as_now(content: Any, given: dict[str, Tensor]) -> tuple[Any, dict[str, Tensor]]:
    """The content of a file of version 1 or 2, whose one fit stood beside the rest, as this version writes it."""
    if not isinstance(content, dict) or "members" in content or "model" not in content:
        return content, given
    own = ("features.", "layers.", "likelihood", "guide.", "history", "settings")
    moved = {f"{MEMBER.format(0)}{name}" if name.startswith(own) else name: tensor for name, tensor in given.items()}
    content = dict(content)
    features = Fields(content.pop("features", None), "the feature map")
    taken = ("model", "guide", "history", "interrupted", "settings")
    member = {key: content.pop(key) for key in taken if key in content}
    content["inputs"] = features.count("inputs")
    content["members"] = [member | {"weight": 1.0, "features": features.choice("kind", KINDS)}]
    features.done()
    if isinstance(content.get("search"), list):
        content["search"] = [*content["search"], _old_weights(content["search"], member.get("settings"))]
    return content, moved


def _old_weights(columns: list[Any], settings: Any) -> dict[str, Any]:
    """The column of weights that a search of version 1 or 2 lacks: one for the last line with these settings.

    A kernel that is an object is the same in all lines.
    """
    given = {column["name"]: column["items"] for column in columns if isinstance(column, dict) and "items" in column}
    rows = len(given.get("score", []))
    names = [name for name in given if isinstance(settings, dict) and not isinstance(settings.get(name, {}), dict)]
    chosen = [row for row in range(rows) if all(given[name][row : row + 1] == [settings[name]] for name in names)]
    return {
        "name": "weight",
        "kind": "float64",
        "items": [float(row == chosen[-1]) if chosen else 0.0 for row in range(rows)],
    }


def _check_members(members: list[Member], described: list[dict[str, Any]]) -> None:
    """They can be one stack."""
    total = sum(member.weight for member in members)
    if abs(total - 1) > 1e-9:
        raise ModelFileError(f"the weights of the members must sum to 1; got {total}")
    points = [member.posterior.model.layers[0].pseudo_instances for member in members]
    if len({(len(point), point.dtype) for point in points}) > 1:
        raise ModelFileError("the members must have equally many pseudo-instances of one type")
    likelihoods = [description["model"]["likelihood"] for description in described]
    if any(likelihood != likelihoods[0] for likelihood in likelihoods):
        raise ModelFileError(f"the members must have one likelihood; got {likelihoods!s:.200}")


def _arrays(feature_map: FeatureMap) -> dict[str, Any]:
    """What a feature map has learned, by its name."""
    names = ("mean", "scale", "quantiles", "projection", "weights")
    return {name: getattr(feature_map, name) for name in names if getattr(feature_map, name) is not None}


def _with_shared_maps(members: list[Member]) -> list[Member]:
    """Members whose feature maps are alike share one, as when they were fitted: rows are mapped once for all."""
    maps: dict[Any, FeatureMap] = {}
    shared = []
    for member in members:
        arrays = _arrays(member.feature_map)
        content = tuple((name, fingerprint(torch.from_numpy(array))) for name, array in arrays.items())
        feature_map = maps.setdefault((member.feature_map.kind, content), member.feature_map)
        shared.append(replace(member, feature_map=feature_map))
    return shared


def _part(given: dict[str, Tensor], prefix: str) -> Tensors:
    return Tensors({name[len(prefix) :]: tensor for name, tensor in given.items() if name.startswith(prefix)})


def _decode_member(described: dict[str, Any], tensors: Tensors, inputs: int, labels: int) -> Member:
    fields = Fields(described, "a member")
    weight, interrupted = fields.take("weight", float), fields.take("interrupted", bool)
    if not 0 < weight <= 1:
        raise ModelFileError(f"'weight' of a member must be above 0, and 1 at most; got {weight}")
    feature_map, width = _decode_features(fields.choice("features", KINDS), tensors, inputs)
    settings = values.decode_settings(fields.take("settings", dict, type(None)), tensors)
    history = values.decode_table(fields.take("history", list), "history", tensors)
    model = models.decode(fields.take("model", dict), tensors, width, labels)
    guide = guides.decode(fields.take("guide", dict), tensors, model)
    fields.done()
    tensors.done()
    return Member(weight, feature_map, Posterior(model, guide, history, interrupted), settings)


def _decode_arguments(described: dict[str, Any], tensors: Tensors, kind: type[Any]) -> dict[str, Any]:
    known = kind().get_params(deep=False)
    unknown = sorted(set(described) - set(known))
    if unknown:
        raise ModelFileError(f"the arguments must be among {sorted(known)}; got {unknown!s:.100}")
    arguments = {key: values.decode(value, f"arguments.{key}", tensors) for key, value in described.items()}
    try:
        kind(**arguments)._check_arguments()
    except (ValueError, TypeError) as error:
        raise ModelFileError(f"its arguments do not make an estimator: {error}") from None
    return arguments


def _decode_features(kind: str, tensors: Tensors, inputs: int) -> tuple[FeatureMap, int]:
    """The feature map, and how many columns it makes of ``inputs``."""
    made, width, single, either = FeatureMap(kind), inputs, (torch.float32,), (torch.float32, torch.float64)
    if "features.projection" in tensors:
        projection = tensors.take("features.projection", (inputs, None), dtypes=single)
        made.projection, width = projection.numpy(), projection.shape[1]
    if made.kind == "standard":
        made.mean = tensors.take("features.mean", (width,), dtypes=either).numpy()
        made.scale = tensors.take("features.scale", (width,), dtypes=either).numpy()
        if not (made.scale > 0).all():
            raise ModelFileError("tensor 'features.scale' must be above 0 everywhere")
    if made.kind == "quantile":
        made.quantiles = tensors.take("features.quantiles", (None, width), dtypes=either).numpy()
        if not len(made.quantiles) or not (np.diff(made.quantiles, axis=0) >= 0).all():
            raise ModelFileError("tensor 'features.quantiles' must have rows, and not fall from row to row")
    if "features.weights" in tensors:
        made.weights = tensors.take("features.weights", (width,), dtypes=single).numpy()
    return made, width


def _decode_pseudo(tensors: Tensors, M: int, K: int) -> tuple[Any, Any]:
    """The training row of each of ``M`` pseudo-instances, and the labels that it carries (M x K)."""
    rows = tensors.take("pseudo_rows", (M,), dtypes=WHOLE)
    if (rows < -1).any():
        raise ModelFileError("tensor 'pseudo_rows' must hold row numbers, or -1; got a smaller number")
    count = tensors.size("pseudo_labels.data")
    data = tensors.take("pseudo_labels.data", (count,), dtypes=(torch.float32,)).numpy()
    indices = tensors.take("pseudo_labels.indices", (count,), dtypes=WHOLE)
    indptr = tensors.take("pseudo_labels.indptr", (M + 1,), dtypes=WHOLE)
    if indptr[0] != 0 or indptr[-1] != count or (indptr.diff() < 0).any():
        raise ModelFileError("tensor 'pseudo_labels.indptr' must rise from 0 to the number of labels carried")
    if ((indices < 0) | (indices >= K)).any():
        raise ModelFileError(f"tensor 'pseudo_labels.indices' must hold label numbers from 0 to {K - 1}")
    small = (part.numpy().astype(np.int32) for part in (indices, indptr))
    return rows.numpy(), sparse.csr_array((data, *small), shape=(M, K))
