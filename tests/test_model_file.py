"""A model file gives back the estimator that was saved, and saving changes nothing."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from fitted import CASES, data, fitted, outputs, quick, same
from pyro.contrib.gp import kernels

from esmc_pyro import ESMCClassifier, tensor_file
from esmc_pyro.model_file import ModelFileError
from esmc_pyro.model_file.errors import FORMAT
from esmc_pyro.model_file.state import _with_shared_maps


def parameters(estimator):
    both = (*estimator.model_.named_parameters(), *estimator.guide_.named_parameters())
    return [(name, p.detach().clone(), p.stride(), p.requires_grad) for name, p in both]


def same_parameters(a, b):
    return len(a) == len(b) and all(
        left[0] == right[0] and torch.equal(left[1], right[1]) and left[2:] == right[2:]
        for left, right in zip(a, b, strict=True)
    )


@pytest.mark.parametrize("name", CASES)
def test_what_is_loaded_is_what_was_saved(name, tmp_path):
    estimator, X, Y = fitted(name)
    held, attributes, random = parameters(estimator), dict(vars(estimator)), torch.get_rng_state()
    path = estimator.save(tmp_path / "model.esmc")
    loaded = ESMCClassifier.load(path)
    assert os.listdir(tmp_path) == ["model.esmc"]

    assert same_parameters(parameters(estimator), held)
    assert vars(estimator).keys() == attributes.keys()
    assert all(value is attributes[key] for key, value in vars(estimator).items())
    assert torch.equal(torch.get_rng_state(), random)

    assert vars(loaded).keys() == vars(estimator).keys()
    assert same_parameters(parameters(loaded), held)
    expected, found = outputs(estimator, X, Y), outputs(loaded, X, Y)
    assert [key for key in expected if not same(expected[key], found[key])] == []


@pytest.mark.parametrize("name", ["default, frames", "default, curved", "paper", "preset paper"])
def test_everything_else_is_kept(name, tmp_path):
    estimator, _, _ = fitted(name)
    loaded = ESMCClassifier.load(estimator.save(tmp_path / "model.esmc"))
    assert loaded.get_params() == estimator.get_params()
    assert loaded.settings_ == estimator.settings_
    if estimator.search_ is None:
        assert loaded.search_ is None
    else:
        pd.testing.assert_frame_equal(loaded.search_, estimator.search_)
    assert loaded.label_names_ == estimator.label_names_
    assert (loaded.calibration_, loaded.threshold_) == (estimator.calibration_, estimator.threshold_)
    assert loaded.suitability_calibration_ == estimator.suitability_calibration_
    assert loaded.posterior_.interrupted is estimator.posterior_.interrupted
    np.testing.assert_array_equal(loaded.pseudo_rows_, estimator.pseudo_rows_)
    np.testing.assert_array_equal(loaded.pseudo_labels_.toarray(), estimator.pseudo_labels_.toarray())


def test_the_curved_case_is_curved():
    assert fitted("default, curved")[0].settings_.curvature == 1.0
    assert fitted("default")[0].settings_.curvature == 0.0
    assert fitted("default, wide")[0].feature_map_.projection is not None


def test_members_share_their_feature_maps_as_when_they_were_fitted(tmp_path):
    estimator, _, _ = fitted("default, stacked")
    loaded = ESMCClassifier.load(estimator.save(tmp_path / "model.esmc"))
    count = [len({id(member.feature_map) for member in one.stack_.members}) for one in (estimator, loaded)]
    assert count[0] == count[1] < len(loaded.stack_.members)


def test_members_of_one_kind_with_and_without_weights_of_features_share_nothing():
    estimator, _, _ = fitted("default")
    lead = estimator.stack_.lead
    weighted = replace(lead.feature_map, weights=np.arange(1, 1 + estimator.n_features_in_, dtype=np.float32))
    heavier = replace(weighted, weights=2 * weighted.weights)
    members = [replace(lead, feature_map=one) for one in (lead.feature_map, weighted, heavier, replace(weighted))]
    maps = [member.feature_map for member in _with_shared_maps(members)]
    assert [[id(one) for one in maps].index(id(one)) for one in maps] == [0, 1, 2, 1]


def test_arguments_that_are_objects_come_back_as_such(tmp_path):
    kernel = ESMCClassifier.load(fitted("default, kernel object")[0].save(tmp_path / "a")).kernel
    assert type(kernel) is kernels.Product
    assert kernel.kern1 == 2.0
    assert kernel.kern0.kern1.active_dims == [3, 1]
    torch.testing.assert_close(kernel.kern0.kern0.lengthscale, torch.linspace(1, 2, 5))
    likelihood = ESMCClassifier.load(fitted("mpu")[0].save(tmp_path / "b")).likelihood
    assert (likelihood.c, likelihood.lambda_) == (0.3, 1.2)
    guide = ESMCClassifier.load(fitted("paper, class")[0].save(tmp_path / "c")).guide
    assert (guide.func.__name__, guide.keywords) == ("PaperGuide", {"covariance": "full"})


@pytest.mark.parametrize("stacked", [False, True])
def test_a_loaded_default_takes_in_new_rows_as_the_saved_one_would(tmp_path, stacked):
    _, X, Y = fitted("default")
    with quick(stacked=stacked):
        estimator = ESMCClassifier(epochs=2).fit(X, Y)
        loaded = ESMCClassifier.load(estimator.save(tmp_path / "model.esmc"))
        a = estimator.partial_fit(X[:9] + 0.1, Y[:9]).decision_function(X)
        b = loaded.partial_fit(X[:9] + 0.1, Y[:9]).decision_function(X)
    np.testing.assert_array_equal(a, b)


def test_saving_a_loaded_estimator_writes_the_same_again(tmp_path):
    estimator, _, _ = fitted("default, frames")
    first = estimator.save(tmp_path / "a")
    second = ESMCClassifier.load(first).save(tmp_path / "b")
    (content, tensors), (content_again, tensors_again) = (
        tensor_file.read(first, FORMAT),
        tensor_file.read(second, FORMAT),
    )
    assert content == content_again
    assert tensors.keys() == tensors_again.keys()
    assert all(torch.equal(tensor, tensors_again[name]) for name, tensor in tensors.items())


def test_a_subclass_loads_as_itself(tmp_path):
    class Mine(ESMCClassifier):
        """A user's own."""

    assert type(Mine.load(fitted("analytic")[0].save(tmp_path / "a"))) is Mine


def test_the_error_is_a_value_error():
    assert issubclass(ModelFileError, ValueError)


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_of_an_earlier_version_is_read(tmp_path, version):
    # written by the code of version 2, from the case "default, frames", with what it predicted
    file = Path(__file__).parent / "files" / "version2.esmc"
    if version == 1:
        content, tensors = tensor_file.read(file, FORMAT)
        del content["settings"]["relevance"]  # it had no weights of features
        file = tensor_file.write(tmp_path / "old.esmc", replace(FORMAT, version=1), content, tensors)
    loaded, X = ESMCClassifier.load(file), data("frames")[0]
    assert loaded.settings_.relevance is False
    assert [member.weight for member in loaded.stack_.members] == [1.0]
    assert loaded.search_["weight"].tolist() == [1.0] + [0.0] * (len(loaded.search_) - 1)
    z, p = loaded.decision_function(X).to_numpy()[0], loaded.predict_proba(X).to_numpy()[0]
    assert z == pytest.approx([0.37379482, -1.7555393, 0.30418235, -0.43555731], abs=1e-5)
    assert p == pytest.approx([0.64276797, 0.10698594, 0.6221832, 0.39116973], abs=1e-5)


@pytest.mark.parametrize(("name", "calibration"), [("mpu", (1.0, 0.0)), ("default", None)])
def test_suitability_of_an_earlier_version_is_calibrated_if_all_that_fits_is_written(tmp_path, name, calibration):
    estimator, X, _ = fitted(name)
    content, tensors = tensor_file.read(estimator.save(tmp_path / "new"), FORMAT)
    del content["suitability_calibration"]
    loaded = ESMCClassifier.load(tensor_file.write(tmp_path / "old", replace(FORMAT, version=6), content, tensors))
    assert loaded.suitability_calibration_ == calibration
    if calibration is not None:
        z = torch.as_tensor(np.asarray(loaded.decision_function(X)))
        expected = loaded.model_.likelihood.suitability(z).detach()
        np.testing.assert_allclose(np.asarray(loaded.suitability(X, draws=None)), expected, atol=1e-6)


def test_all_members_come_back(tmp_path):
    estimator, X, _ = fitted("default, stacked")
    loaded = ESMCClassifier.load(estimator.save(tmp_path / "a"))
    members = estimator.stack_.members
    assert len(members) == 5
    assert [m.weight for m in loaded.stack_.members] == [m.weight for m in members]
    assert [m.weight for m in members] == pytest.approx([5 / 15, 4 / 15, 3 / 15, 2 / 15, 1 / 15])
    assert [m.settings for m in loaded.stack_.members] == [m.settings for m in members]
    for ours, theirs in zip(loaded.stack_.members, members, strict=True):
        x = theirs.feature_map(X)
        assert torch.equal(ours.posterior.predict(ours.feature_map(X)), theirs.posterior.predict(x))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda members: members.clear(), "at least one member"),
        (lambda members: members[0].update(weight=0.9), "must sum to 1"),
        (lambda members: members[0].update(weight=-0.5), "must be above 0"),
        (lambda members: members[1].update(more=1), "mean nothing here"),
        (lambda members: members.pop(), "must sum to 1"),
        (lambda members: members[2].pop("guide"), "must have the field 'guide'"),
        (lambda members: members[1]["model"]["likelihood"]["arguments"].update(lambda_=2.0), "one likelihood"),
    ],
)
def test_members_that_do_not_fit_are_refused(tmp_path, change, sentence):
    content, tensors = tensor_file.read(fitted("default, stacked")[0].save(tmp_path / "a"), FORMAT)
    change(content["members"])
    damaged = tensor_file.write(tmp_path / "b", FORMAT, content, tensors)
    with pytest.raises(ModelFileError, match=sentence):
        ESMCClassifier.load(damaged)
