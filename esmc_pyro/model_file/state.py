"""Everything that ``fit`` leaves in an estimator, to and from a model file."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from esmc_pyro.feature_map import KINDS, FeatureMap
from esmc_pyro.model_file import guides, models, values
from esmc_pyro.model_file.errors import Fields, ModelFileError, Tensors
from esmc_pyro.posterior import Posterior

WHOLE = (torch.int64,)


def encode(estimator: Any, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """A description of a fitted estimator; its arrays go to ``tensors``. The estimator stays as it is."""
    posterior, names = estimator.posterior_, getattr(estimator, "feature_names_in_", None)
    arguments = estimator.get_params(deep=False)
    feature_map, searched = estimator.feature_map_, estimator.search_
    for key in ("mean", "scale", "projection", "weights"):
        if getattr(feature_map, key) is not None:
            tensors[f"features.{key}"] = torch.from_numpy(getattr(feature_map, key))
    carried = estimator.pseudo_labels_
    for key in ("data", "indices", "indptr"):
        part = getattr(carried, key)
        tensors[f"pseudo_labels.{key}"] = torch.from_numpy(part if key == "data" else part.astype(np.int64))
    tensors["pseudo_rows"] = torch.from_numpy(estimator.pseudo_rows_.astype(np.int64))
    return {
        "arguments": {key: values.encode(value, f"arguments.{key}", tensors) for key, value in arguments.items()},
        "features": {"kind": feature_map.kind, "inputs": int(estimator.n_features_in_)},
        "feature_names": None if names is None else [str(name) for name in names],
        "label_names": list(estimator.label_names_),
        "labels_in_frame": bool(estimator._labels_in_frame),
        "model": models.encode(posterior.model, tensors),
        "guide": guides.encode(posterior.guide, tensors),
        "history": values.encode_table(posterior.history, "history", tensors),
        "interrupted": bool(posterior.interrupted),
        "calibration": [float(number) for number in estimator.calibration_],
        "threshold": float(estimator.threshold_),
        "settings": values.encode_settings(estimator.settings_, tensors),
        "search": None if searched is None else values.encode_table(searched, "search", tensors),
    }


def decode(content: Any, given: dict[str, Tensor], kind: type[Any]) -> Any:
    """The estimator of this description, of class ``kind``."""
    fields, tensors = Fields(content, "the description"), Tensors(given)
    arguments = _decode_arguments(fields.take("arguments", dict), tensors, kind)
    features = Fields(fields.take("features", dict), "the feature map")
    inputs = features.count("inputs")
    feature_map, width = _decode_features(features, tensors, inputs)
    label_names = fields.items("label_names", str)
    feature_names = fields.items("feature_names", str) if fields.has_list("feature_names") else None
    if feature_names is None:
        fields.take("feature_names", type(None))
    elif len(feature_names) != inputs:
        raise ModelFileError(f"'feature_names' must name each of {inputs} features; got {len(feature_names)}")
    in_frame, interrupted = fields.take("labels_in_frame", bool), fields.take("interrupted", bool)
    calibration, threshold = fields.items("calibration", float), fields.take("threshold", float)
    if len(calibration) != 2:
        raise ModelFileError(f"'calibration' must be a slope and an offset; got {len(calibration)} numbers")
    settings = values.decode_settings(fields.take("settings", dict, type(None)), tensors)
    table = fields.take("search", list, type(None))
    search = None if table is None else values.decode_table(table, "search", tensors)
    history = values.decode_table(fields.take("history", list), "history", tensors)
    model = models.decode(fields.take("model", dict), tensors, width, len(label_names))
    guide_fields = fields.take("guide", dict)
    fields.done()
    pseudo_rows, pseudo_labels = _decode_pseudo(tensors, model.layers[0].pseudo_count, len(label_names))
    guide = guides.decode(guide_fields, tensors, model)
    tensors.done()

    made = kind(**arguments)
    made.posterior_ = Posterior(model, guide, history, interrupted)
    made.feature_map_, made.settings_, made.search_ = feature_map, settings, search
    made.label_names_, made._labels_in_frame = label_names, in_frame
    made.n_labels_, made.classes_, made.n_features_in_ = len(label_names), np.arange(len(label_names)), inputs
    if feature_names is not None:
        made.feature_names_in_ = np.array(feature_names, dtype=object)
    made.calibration_, made.threshold_ = (calibration[0], calibration[1]), threshold
    made.pseudo_rows_, made.pseudo_labels_ = pseudo_rows, pseudo_labels
    return made


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


def _decode_features(fields: Fields, tensors: Tensors, inputs: int) -> tuple[FeatureMap, int]:
    """The feature map, and how many columns it makes of ``inputs``."""
    made, width, single = FeatureMap(fields.choice("kind", KINDS)), inputs, (torch.float32,)
    fields.done()
    if "features.projection" in tensors:
        projection = tensors.take("features.projection", (inputs, None), dtypes=single)
        made.projection, width = projection.numpy(), projection.shape[1]
    if made.kind == "standard":
        made.mean = tensors.take("features.mean", (width,), dtypes=single).numpy()
        made.scale = tensors.take("features.scale", (width,), dtypes=single).numpy()
        if not (made.scale > 0).all():
            raise ModelFileError("tensor 'features.scale' must be above 0 everywhere")
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
