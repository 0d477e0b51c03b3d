"""A model file gives back the estimator that was saved, and saving changes nothing."""

import os
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from fitted import CASES, fitted, outputs, quick, same
from pyro.contrib.gp import kernels

from esmc_pyro import ESMCClassifier, tensor_file
from esmc_pyro.model_file import ModelFileError
from esmc_pyro.model_file.errors import FORMAT


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
    assert loaded.posterior_.interrupted is estimator.posterior_.interrupted
    np.testing.assert_array_equal(loaded.pseudo_rows_, estimator.pseudo_rows_)
    np.testing.assert_array_equal(loaded.pseudo_labels_.toarray(), estimator.pseudo_labels_.toarray())


def test_the_curved_case_is_curved():
    assert fitted("default, curved")[0].settings_.curvature == 1.0
    assert fitted("default")[0].settings_.curvature == 0.0
    assert fitted("default, wide")[0].feature_map_.projection is not None


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


def test_a_loaded_default_takes_in_new_rows_as_the_saved_one_would(tmp_path):
    _, X, Y = fitted("default")
    with quick():
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


def test_a_file_of_the_first_version_is_read(tmp_path):
    estimator, X, _ = fitted("default, frames")
    content, tensors = tensor_file.read(estimator.save(tmp_path / "new.esmc"), FORMAT)
    del content["settings"]["relevance"]  # it had no weights of features
    old = tensor_file.write(tmp_path / "old.esmc", replace(FORMAT, version=1), content, tensors)
    loaded = ESMCClassifier.load(old)
    assert loaded.settings_.relevance is False
    assert same(loaded.decision_function(X), estimator.decision_function(X))
