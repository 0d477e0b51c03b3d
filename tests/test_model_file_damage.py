"""Damaged, truncated, newer and hostile model files: one clear sentence, nothing run, nothing half-written."""

import copy
import json
import os
import struct
from functools import cache

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from fitted import fitted
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro.contrib.gp import kernels
from pyro.nn import PyroSample
from sklearn.exceptions import NotFittedError

from esmc_pyro import ESMCClassifier, model_file, tensor_file
from esmc_pyro.guides import PaperGuide
from esmc_pyro.model_file import ModelFileError
from esmc_pyro.model_file.errors import FORMAT
from esmc_pyro.models import Bernoulli
from esmc_pyro.tensor_file import Format


@cache
def good(name="default, curved"):
    """A good file's content, description and tensors."""
    tensors = {}
    content = model_file.state.encode(fitted(name)[0], tensors)
    return tensor_file.to_bytes(FORMAT, content, tensors), content, tensors


def rewritten(change, name="default, curved"):
    """A file with a good checksum whose description and tensors were changed by ``change(content, tensors)``."""
    _, content, tensors = good(name)
    content, tensors = copy.deepcopy(content), {key: value.detach().clone() for key, value in tensors.items()}
    change(content, tensors)
    return tensor_file.to_bytes(FORMAT, content, tensors)


def with_header(change):
    """A file whose header, a JSON text, was changed by ``change(text)``."""
    data = good()[0]
    size = struct.unpack("<Q", data[:8])[0]
    text = change(data[8 : 8 + size].decode()).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + size :]


def with_metadata(**changes):
    def change(text):
        header = json.loads(text)
        header["__metadata__"] |= changes
        return json.dumps(header)

    return with_header(change)


def put(*path, value):
    """A change of the description at ``path``, or of its first member."""
    path = ("members", 0, *path) if path[0] in ("model", "guide", "history", "settings") else path

    def change(content, tensors):
        place = content
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return lambda: rewritten(change)


def tensor(name, value, case="default, curved"):
    """A change of one tensor, or of the first member's; None removes it."""
    name = f"members.0.{name}" if name.startswith(("layers", "guide", "likelihood", "features")) else name

    def change(content, tensors):
        tensors[name] = value(tensors[name]) if callable(value) else value
        if tensors[name] is None:
            del tensors[name]

    return lambda: rewritten(change, case)


def filled(value):
    return lambda t: torch.full_like(t, value)


def flipped(place):
    def change():
        data = bytearray(good()[0])
        data[place] ^= 1
        return bytes(data)

    return change


def deep():
    value = {"class": "RBF", "inputs": 1, "dims": None}
    for _ in range(30):
        value = {"class": "Sum", "first": value, "second": 1.0}
    return value


BAD = {
    "empty": (lambda: b"", "cut short or no model file"),
    "a text file": (lambda: b"hello, world, this is a text", "cut short or no model file"),
    "a pickle": (lambda: b"\x80\x04\x95\x1e\x00\x00\x00\x00\x00\x00\x00\x8c\x02os", "cut short or no model file"),
    "seven bytes": (lambda: good()[0][:7], "cut short or no model file"),
    "half a header": (lambda: good()[0][:200], "cut short or no model file"),
    "half a file": (lambda: good()[0][: len(good()[0]) - 100], "its tensors do not fit the file"),
    "bytes at the end": (lambda: good()[0] + b"more", "its tensors do not fit the file"),
    "a header of 2^63 bytes": (lambda: struct.pack("<Q", 2**63) + good()[0][8:], "do not hold the header"),
    "a header of no bytes": (lambda: struct.pack("<Q", 0) + good()[0][8:], "its header is not JSON"),
    "a flipped number": (flipped(-1), "its checksum does not match"),
    "a header that is a list": (lambda: with_header(lambda text: "[]" + " " * 6), "must be a JSON object"),
    "a header nested deeply": (lambda: with_header(lambda text: "[" * 100_000), "its header is not JSON"),
    "a header with NaN": (lambda: with_header(lambda text: text.replace('"F32"', "NaN", 1)), "NaN is no number"),
    "a repeated key": (lambda: with_header(lambda text: '{"a":1,"a":2,' + text[1:]), "a key is repeated"),
    "another format": (lambda: with_metadata(format="pt"), "it is no model file"),
    "no metadata": (lambda: with_header(lambda text: "{}"), "it is no model file"),
    "a newer version": (lambda: with_metadata(version="9", package="9.1"), r"version 9 .*esmc-pyro 9.1.*newer one"),
    "version zero": (lambda: with_metadata(version="0"), "its version must be a whole number"),
    "a version of digits without end": (lambda: with_metadata(version="9" * 5000), "its version must be"),
    "another checksum": (lambda: with_metadata(checksum="0" * 64), "its checksum does not match"),
    "another writer": (lambda: with_metadata(package="0.0.1"), "its checksum does not match"),
    "more metadata": (lambda: with_metadata(run="rm -rf"), "its header must hold the texts"),
    "a dtype of its own": (lambda: with_header(lambda text: text.replace('"F32"', '"BF16"', 1)), "must be of"),
    "negative offsets": (
        lambda: with_header(lambda text: text.replace('"data_offsets":[0', '"data_offsets":[-8', 1)),
        "its tensors do not fit the file",
    ),
    "a huge shape": (
        lambda: with_header(lambda text: text.replace('"shape":[', '"shape":[4611686018427387904,', 1)),
        "its tensors do not fit the file",
    ),
    "a checkpoint": (
        lambda: tensor_file.to_bytes(Format("esmc-pyro checkpoint", 1, "checkpoint", ValueError), {}, {}),
        "it is no model file",
    ),
    "nothing in it": (lambda: tensor_file.to_bytes(FORMAT, {}, {}), "must have the field 'members'"),
    "a class of its own": (
        put("model", "layers", 0, "kernel", "class", value="os.system"),
        "'class' of the kernel .* must be one of .*got 'os.system'",
    ),
    "a kernel of too many inputs": (
        put("model", "layers", 0, "kernel", "inputs", value=2**39),
        "must act on the 5 inputs of its layer",
    ),
    "a kernel of negative inputs": (
        put("model", "layers", 0, "kernel", "inputs", value=-1),
        "'inputs' of the kernel .* must be a whole number of at least 1; got -1",
    ),
    "kernels within kernels": (put("model", "layers", 0, "kernel", value=deep()), "nested at most 20 deep"),
    "a likelihood of its own": (
        put("model", "likelihood", "name", value="builtins.eval"),
        "'name' of the likelihood must be one of .*got 'builtins.eval'",
    ),
    "a likelihood of no slope": (
        put("model", "likelihood", "arguments", "lambda_", value=-1.0),
        "the likelihood 'bernoulli' cannot be made: lambda_ must be a number above 0",
    ),
    "a guide of its own": (put("guide", "name", value="mine"), "'name' of the guide must be one of"),
    "outputs without end": (put("model", "layers", 0, "outputs", value=2**62), "'outputs' of 'layers.0' must be"),
    "outputs that no tensor has": (put("model", "layers", 1, "outputs", value=10**9), "must have shape"),
    "a layer of another name": (put("model", "layers", 0, "site", value="f"), r"the layers must be named \['c', 'z'\]"),
    "plates that clash": (put("model", "layers", 0, "plate", value="labels"), "plates of their own"),
    "no layers": (put("model", "layers", value=[]), "the layers must be named"),
    "a slope that turns the order round": (put("calibration", value=[-1.0, 0.0]), "slope of .* must be above 0"),
    "a calibration of three": (put("suitability_calibration", value=[1.0, 0.0, 0.0]), "a slope and an offset; got 3"),
    "a calibration of text": (put("suitability_calibration", value="1"), "'suitability_calibration' of the descrip"),
    "a threshold of text": (put("threshold", value="0.5"), "'threshold' of the description must be float; got '0.5'"),
    "a threshold of yes": (put("threshold", value=True), "'threshold' of the description must be float; got True"),
    "too few label names": (put("label_names", value=["a"]), "an output for each of 1 labels; got 4"),
    "label names that are numbers": (put("label_names", value=[1, 2, 3, 4]), "must be a list of str; got 1"),
    "an argument of its own": (put("arguments", "__class__", value="x"), "the arguments must be among"),
    "an argument out of range": (put("arguments", "random_state", value=-5), "its arguments do not make an estimator"),
    "a field of its own": (put("hook", value="import os"), r"fields that mean nothing here: \['hook'\]"),
    "a table with a hole": (put("history", 0, "items", value=[]), "must be there once, with as many rows"),
    "a table of other things": (put("history", 0, "items", value=["x"]), "must hold int only; got 'x'"),
    "a tensor missing": (tensor("layers.0.pseudo_instances", None), "must have the tensor 'layers.0.pseudo_instances'"),
    "a tensor too many": (tensor("payload", torch.zeros(3)), r"tensors that mean nothing here: \['payload'\]"),
    "a tensor of NaN": (tensor("layers.0.pseudo_instances", filled(torch.nan)), "must be finite everywhere; got nan"),
    "a tensor of inf": (tensor("guide.c_v_loc", filled(torch.inf)), "must be finite everywhere; got inf"),
    "a noise of nothing": (tensor("layers.0.alpha_unconstrained", filled(-torch.inf)), "must be a positive number"),
    "a tensor of another shape": (tensor("guide.c_v_loc", lambda t: t[:, :1]), "must have shape"),
    "a tensor of another type": (tensor("guide.c_v_loc", lambda t: t.double()), "must be of torch.float32; got"),
    "a scale of zero": (tensor("features.scale", filled(0.0), "default, standard, wide"), "must be above 0 everywhere"),
    "quantiles that fall": (
        tensor("features.quantiles", lambda t: t.flip(0), "default, quantile, laplacian"), "and not fall"
    ),
    "labels beyond the last": (tensor("pseudo_labels.indices", filled(99)), "label numbers from 0 to 3"),
    "labels in no order": (tensor("pseudo_labels.indptr", filled(-1)), "must rise from 0"),
    "rows before the first": (tensor("pseudo_rows", filled(-2)), "or -1; got a smaller number"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_gets_one_sentence(name, tmp_path):
    make, sentence = BAD[name]
    path = tmp_path / "model.esmc"
    path.write_bytes(make())
    with pytest.raises(ModelFileError, match=sentence) as caught:
        ESMCClassifier.load(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    assert os.listdir(tmp_path) == ["model.esmc"]


def test_places_that_are_no_files(tmp_path):
    with pytest.raises(ModelFileError, match="there is no such file"):
        ESMCClassifier.load(tmp_path / "nowhere")
    with pytest.raises(ModelFileError, match="a model file is a file"):
        ESMCClassifier.load(tmp_path)
    with pytest.raises(ModelFileError, match="this is a folder"):
        fitted("default")[0].save(tmp_path)


@settings(max_examples=150)
@given(st.data())
def test_any_damage_is_found_or_does_no_harm(tmp_path_factory, data):
    content = bytearray(good()[0])
    place = data.draw(st.integers(0, len(content) - 1) | st.integers(0, 2000))
    kind = data.draw(st.sampled_from(("set", "cut", "remove", "insert", "swap")))
    if kind == "set":
        content[place] = data.draw(st.integers(0, 255))
    elif kind == "cut":
        del content[place:]
    elif kind == "remove":
        del content[place : place + data.draw(st.integers(1, 16))]
    elif kind == "insert":
        content[place:place] = data.draw(st.binary(min_size=1, max_size=16))
    else:
        other = data.draw(st.integers(0, len(content) - 1))
        content[place], content[other] = content[other], content[place]
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(bytes(content))
    estimator, X, _ = fitted("default, curved")
    try:
        loaded = ESMCClassifier.load(path)
    except ModelFileError:
        return
    np.testing.assert_array_equal(loaded.decision_function(X), estimator.decision_function(X))


JUNK = st.sampled_from(
    [
        None,
        True,
        0,
        -1,
        1,
        7,
        2**31,
        2**70,
        -0.5,
        1e308,
        "",
        "paper",
        "os.system",
        [],
        [1],
        ["a", None],
        {},
        {"a": 1},
        {"float": "nan"},
        {"kernel": {}},
        {"tuple": [1]},
        [[[]]],
        {"guide": {"name": "paper", "options": {"x": 1}}},
    ]
)


def places(value, path=()):
    """The path of everything inside a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield (*path, key)
        yield from places(item, (*path, key))


@pytest.mark.parametrize("name", ["default, curved", "paper", "default, kernel object"])
@settings(max_examples=60)
@given(data=st.data())
def test_a_lying_description_is_found_or_makes_an_estimator(name, tmp_path_factory, data):
    """With a good checksum: whoever made the file knew how, and still only what is allowed is built."""

    def change(content, tensors):
        for _ in range(data.draw(st.integers(1, 2))):
            *path, last = data.draw(st.sampled_from(list(places(content))))
            inside = content
            for key in path:
                inside = inside[key]
            inside[last] = copy.deepcopy(data.draw(JUNK))  # or the next change would be made to the junk itself

    path = tmp_path_factory.getbasetemp() / "lying"
    path.write_bytes(rewritten(change, name))
    try:
        loaded = ESMCClassifier.load(path)
    except ModelFileError:
        return
    assert type(loaded) is ESMCClassifier


class OwnKernel(kernels.RBF):
    """A user's own class, known to no one else."""


class OwnLikelihood(Bernoulli):
    """A user's own class, known to no one else."""


class OwnGuide(PaperGuide):
    """A user's own class, known to no one else."""


def drawn():
    kernel = kernels.RBF(5)
    kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 1.0))
    return kernel


UNSAVEABLE = {
    "own kernel": ({"kernel": OwnKernel(5)}, r"can hold the kernels .*; got OwnKernel"),
    "warped kernel": ({"kernel": kernels.Warping(kernels.RBF(5), torch.exp)}, r"can hold the kernels .*; got Warping"),
    "own likelihood": ({"likelihood": OwnLikelihood()}, r"can hold the likelihoods .*; got OwnLikelihood"),
    "own guide": ({"guide": OwnGuide}, r"guide must be a name, .* guide class of this package .*got OwnGuide"),
    "a function": ({"inference": lambda *data: None}, r"inference must be a name, .*got function"),
    "a prior": ({"kernel": drawn()}, "the kernel RBF has priors in place of parameters"),
    "an array": ({"widths": np.array([1])}, r"widths must be a name, a number, a list of them, .*got ndarray"),
}


@pytest.mark.parametrize("name", UNSAVEABLE)
def test_what_cannot_be_saved_is_said_before_a_file_is_touched(name, tmp_path):
    arguments, sentence = UNSAVEABLE[name]
    estimator = copy.copy(fitted("default")[0]).set_params(**arguments)
    path = tmp_path / "model.esmc"
    path.write_text("an older file")
    with pytest.raises(ModelFileError, match=sentence):
        estimator.save(path)
    assert path.read_text() == "an older file"
    assert os.listdir(tmp_path) == ["model.esmc"]


@pytest.mark.parametrize("part", ["kernel", "likelihood", "guide", "layer", "mean", "model", "number"])
def test_fitted_parts_that_are_not_ours_are_said_too(part, tmp_path):
    estimator = copy.deepcopy(fitted("paper")[0])
    first, last = estimator.model_.layers
    if part == "kernel":
        first.kernel.__class__ = OwnKernel
    elif part == "number":
        first.pseudo_instances.data[0, 0] = torch.nan
    elif part == "mean":
        last.mean.__class__ = type("OwnMean", (type(last.mean),), {})
    else:
        module = {"likelihood": estimator.model_.likelihood, "guide": estimator.guide_, "layer": first}
        target = module.get(part, estimator.model_)
        target.__class__ = type(f"Own{part}", (type(target),), {})
    with pytest.raises(
        ModelFileError, match="finite everywhere; got nan" if part == "number" else "(?i)got own|a OwnMean"
    ):
        estimator.save(tmp_path / "model.esmc")
    assert os.listdir(tmp_path) == []


def test_only_what_is_fitted_is_saved(tmp_path):
    with pytest.raises(NotFittedError):
        ESMCClassifier().save(tmp_path / "model.esmc")
    assert os.listdir(tmp_path) == []


def test_a_full_disk_keeps_the_older_file(tmp_path, monkeypatch):
    path = fitted("default")[0].save(tmp_path / "model.esmc")
    before = path.read_bytes()

    def full(descriptor):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        fitted("paper")[0].save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["model.esmc"]
