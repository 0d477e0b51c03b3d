"""Every argument as a name and as an object, in scikit-learn's tools, and the sentence for each bad one."""

from __future__ import annotations

import copy
import pickle
import random
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyro.contrib.gp.kernels as kernels
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from esmc_pyro import ESMCClassifier
from esmc_pyro.guides import DoublyStochasticGuide, PaperGuide
from esmc_pyro.inference import PRESETS, fit_analytic, fit_svi
from esmc_pyro.models import EEOE, ESMC, LIKELIHOODS, MPU, Gaussian

Make = Callable[..., tuple[np.ndarray, np.ndarray]]


def small(**options: Any) -> ESMCClassifier:
    return ESMCClassifier(**{"features": "standard", "epochs": 2} | options)


NAMED: dict[str, dict[str, Any]] = {
    "svi": {"inference": "svi"},
    "analytic": {"inference": "analytic"},
    "a function": {"inference": partial(fit_svi, guide="paper")},
    "another function": {"inference": fit_analytic},
    "paper guide": {"guide": "paper"},
    "doubly stochastic guide": {"guide": "doubly_stochastic"},
    "guide class": {"guide": PaperGuide},
    "analytic with its guide": {"inference": "analytic", "guide": "paper"},
    "widths": {"inference": "svi", "widths": [2, 2]},
    "no latent layer": {"inference": "svi", "widths": []},
    "kernel object, svi": {"inference": "svi", "kernel": kernels.Matern32(4)},
    "kernel name": {"kernel": "rbf"},
    "kernel sum": {"kernel": "rbf+matern12"},
    "kernel object": {"kernel": kernels.RationalQuadratic(4)},
    "likelihood object": {"likelihood": EEOE(3)},
    "likelihood mpu": {"likelihood": MPU(0.3)},
    "likelihood object that learns": {"inference": "svi", "likelihood": Gaussian(learn_noise=True)},
    "experts": {"likelihood": "experts", "B": 4},
    "preset function": {"preset": PRESETS["paper"]},
}
NAMED |= {f"likelihood {name}": {"likelihood": name} for name in LIKELIHOODS if name != "mpu"}
NAMED |= {f"preset {name}": {"preset": name, "epochs": 1} for name in PRESETS}


@pytest.mark.parametrize("name", NAMED)
def test_names_and_objects(make_data: Make, name: str) -> None:
    X, Y = make_data(25)
    model = small(**NAMED[name])
    before = copy.deepcopy(model.get_params())
    model.fit(X, Y, X_unlabeled=X[:4] + 0.1)
    p = model.predict_proba(X)
    assert p.shape == Y.shape
    assert ((p >= 0) & (p <= 1)).all()
    assert model.posterior_.model is model.model_
    assert model.guide_.model is model.model_
    for key, value in before.items():  # nothing that was given is changed
        now = getattr(model, key)
        if isinstance(value, torch.nn.Module):
            assert all(torch.equal(a, b) for a, b in zip(value.parameters(), now.parameters(), strict=True))
            assert model.model_.likelihood is not now
    again = small(**NAMED[name]).fit(X, Y, X_unlabeled=X[:4] + 0.1)
    assert np.array_equal(again.predict_proba(X), p)


@pytest.mark.parametrize("kind", [PaperGuide, DoublyStochasticGuide])
def test_a_guide_object_brings_its_model(make_data: Make, kind: Any) -> None:
    X, Y = make_data(25)
    x, y = torch.as_tensor(X), torch.as_tensor(Y)
    guide = kind(ESMC.from_data(x, y, pseudo=5), x, y)
    before = copy.deepcopy(guide.state_dict())
    model = small(guide=guide, features="auto").fit(X, Y)
    assert model.feature_map_.kind == "identity"
    assert type(model.guide_) is kind
    assert model.guide_ is not guide
    assert all(torch.equal(before[key], value) for key, value in guide.state_dict().items())
    moved = model.guide_.state_dict()
    assert any(not torch.equal(before[key], moved[key]) for key in before)


def test_a_setting_object(make_data: Make) -> None:
    X, Y = make_data(25)
    setting = PRESETS["paper"](torch.as_tensor(X), torch.as_tensor(Y))
    by_object, by_name = small(preset=setting, features="auto"), small(preset="paper", features="auto")
    assert np.allclose(by_object.fit(X, Y).decision_function(X), by_name.fit(X, Y).decision_function(X), atol=1e-4)


def test_parameters_are_plain_and_cloned() -> None:
    given: dict[str, Any] = {
        "likelihood": "eeoe", "B": 3, "kernel": "rbf", "inference": "svi", "guide": "paper", "preset": None,
        "widths": [2], "pseudo": 5, "search": False, "features": "unit", "epochs": 7, "lr": 0.1, "top_k": 2,
        "random_state": 4, "verbose": True,
    }  # fmt: skip
    model = ESMCClassifier(**given)
    assert model.get_params() == given
    assert clone(model).get_params() == given
    assert ESMCClassifier().set_params(**given).get_params() == given
    kernel = kernels.Matern52(2)
    assert ESMCClassifier(kernel=kernel).get_params()["kernel"] is kernel
    assert isinstance(clone(ESMCClassifier(kernel=kernel)).kernel, kernels.Matern52)


def test_pipeline_and_grid_search_with_unknown_labels(make_data: Make) -> None:
    X, Y = make_data(30)
    Y[np.random.default_rng(0).random(Y.shape) < 0.2] = np.nan
    piped = make_pipeline(StandardScaler(), small(features="identity"))
    assert 0 < piped.fit(X, Y).score(X, Y) <= 1
    grid = GridSearchCV(piped, {"esmcclassifier__kernel": ["rbf", "matern12"]}, cv=KFold(2), error_score="raise")
    grid.fit(X, Y)
    assert grid.best_params_["esmcclassifier__kernel"] in ("rbf", "matern12")
    assert np.isfinite(grid.cv_results_["mean_test_score"]).all()
    assert np.isfinite(cross_val_score(small(), X, Y, cv=KFold(2), error_score="raise")).all()


def test_the_same_seed_gives_the_same_and_no_random_state_moves(make_data: Make) -> None:
    X, Y = make_data(25)
    states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    first, second = small(random_state=3).fit(X, Y), small(random_state=3).fit(X, Y)
    assert np.array_equal(first.decision_function(X), second.decision_function(X))
    assert np.array_equal(first.suitability(X), second.suitability(X))
    assert first.complete(X, Y).equals(second.complete(X, Y))
    assert np.array_equal(first.sample_posterior(X, 5)["y"], second.sample_posterior(X, 5)["y"])
    assert random.getstate() == states[0]
    assert np.array_equal(np.random.get_state()[1], states[1])  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), states[2])
    other = small(random_state=4).fit(X, Y)
    assert not np.array_equal(first.decision_function(X), other.decision_function(X))


def test_pickling_keeps_everything(fitted: ESMCClassifier, make_data: Make) -> None:
    X, Y = make_data()
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.predict_proba(X), fitted.predict_proba(X))
    assert again.complete(X, Y, n=5).equals(fitted.complete(X, Y, n=5))


def test_threshold_and_top_k(fitted: ESMCClassifier, make_data: Make) -> None:
    X, _ = make_data()
    p = fitted.predict_proba(X)
    assert np.array_equal(fitted.predict(X), (p >= fitted.threshold_).astype(int))
    top = copy.copy(fitted).set_params(top_k=2).predict(X)
    assert (top.sum(1) == 2).all()
    assert (np.where(top == 1, p, 2).min(1) >= np.where(top == 0, p, -1).max(1)).all()


@pytest.mark.parametrize("options", [{}, {"inference": "svi"}, {"inference": "analytic"}])
def test_an_interrupted_fit_is_a_fit(make_data: Make, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    from esmc_pyro.inference import svi
    from esmc_pyro.inference.analytic import solver

    X, Y = make_data(25)

    def stop(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(svi._Run, "epoch", stop)
    monkeypatch.setattr(solver.Solver, "sweep", stop)
    model = small(**options).fit(X, Y)
    assert model.posterior_.interrupted
    assert np.isfinite(model.predict_proba(X)).all()


METHODS = ("decision_function", "predict_proba", "suitability", "predict", "sample_posterior", "suggest_annotations")


@pytest.mark.parametrize("method", METHODS)
def test_nothing_is_predicted_before_a_fit(make_data: Make, method: str) -> None:
    with pytest.raises(NotFittedError):
        getattr(ESMCClassifier(), method)(make_data()[0])


NAN, INF = np.nan, np.inf
BAD_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"inference": "mcmc"}, "inference must be one of .*'svi'.*; got 'mcmc'"),
    ({"inference": None}, "inference must be one of .*; got 'None'"),
    ({"guide": "best"}, "guide must be one of .*'paper'.*; got 'best'"),
    ({"guide": 3}, "guide must be one of .*; got '3'"),
    ({"preset": "theirs"}, "preset must be one of .*'authors_b0'.*; got 'theirs'"),
    ({"preset": 1}, "preset must be one of .*; got '1'"),
    ({"likelihood": "poisson"}, "likelihood must be one of .*'bernoulli'.*; got 'poisson'"),
    ({"likelihood": "mpu"}, r"likelihood must be an object .*models.MPU\(c\), or 'mpu_learned'; got 'mpu'"),
    ({"likelihood": None}, "likelihood must be one of .*; got 'None'"),
    ({"kernel": "cosine"}, "kernel must be one of .*'rbf'.*; got 'cosine'"),
    ({"kernel": "rbf+cosine"}, "kernel must be one of .*'rbf'.*; got 'cosine'"),
    ({"kernel": 2.0}, "kernel must be one of .*; got '2.0'"),
    ({"features": "log"}, "features must be one of .*'hellinger'.*; got 'log'"),
    ({"B": 0, "likelihood": "eeoe"}, "B must be a whole number of at least 1; got 0"),
    ({"B": 3}, "B needs likelihood='experts', 'eeoe' or 'eeoe_learned'; got B=3 with likelihood='auto'"),
    ({"pseudo": 0}, "pseudo must be a whole number of at least 1; got 0"),
    ({"pseudo": 2.5}, "pseudo must be a whole number of at least 1; got 2.5"),
    ({"pseudo": 2.0}, "pseudo must be a whole number of at least 1; got 2.0"),
    ({"epochs": 0}, "epochs must be a whole number of at least 1; got 0"),
    ({"epochs": "ten"}, "epochs must be a whole number of at least 1; got 'ten'"),
    ({"lr": 0}, "lr must be a number above 0; got 0"),
    ({"lr": NAN}, "lr must be a number above 0; got nan"),
    ({"top_k": -1}, "top_k must be a whole number of at least 1; got -1"),
    ({"random_state": 2**32}, r"random_state must be below 2\*\*32; got 4294967296"),
    ({"top_k": 9}, "top_k must be at most the 3 labels; got 9"),
    ({"random_state": -1}, "random_state must be a whole number of at least 0; got -1"),
    ({"random_state": None}, "random_state must be a whole number of at least 0; got None"),
    ({"widths": 3, "inference": "svi"}, "widths must be a list of whole numbers; got 3"),
    ({"widths": [0], "inference": "svi"}, "widths must be a whole number of at least 1; got 0"),
    ({"widths": [2]}, "widths must be left at None without a named inference"),
    ({"preset": "paper", "guide": "paper"}, "guide must be left at None with a preset"),
    ({"preset": "paper", "inference": "svi"}, "inference must be 'auto' or 'analytic' with a preset; got 'svi'"),
    ({"preset": "paper", "kernel": "rbf"}, "kernel must be left at 'auto' with a preset, .*; got 'rbf'"),
    ({"inference": "analytic", "guide": "doubly_stochastic"}, "guide must be 'paper' for inference='analytic'"),
    ({"inference": "analytic", "lr": 0.1}, "lr must be left at None with inference='analytic'"),
    ({"inference": fit_svi, "guide": "paper"}, "guide must be left at None with a function as inference"),
]


@pytest.mark.parametrize(
    ("options", "sentence"), BAD_ARGUMENTS, ids=lambda value: re.sub(r" at 0x\w+", "", str(value))[:40]
)
def test_bad_arguments(make_data: Make, monkeypatch: pytest.MonkeyPatch, options: Any, sentence: str) -> None:
    monkeypatch.setattr("esmc_pyro.feature_map.FeatureMap.from_data", _no_work)
    with pytest.raises(ValueError, match=sentence):
        ESMCClassifier(**options).fit(*make_data())


@pytest.mark.parametrize(
    "options",
    [{"search": False, "pseudo": 9, "top_k": 2, "lr": 0.05}, {"likelihood": "eeoe", "B": 2, "search": False},
     {"inference": "svi", "pseudo": 9, "B": 3, "likelihood": "experts"}],
)  # fmt: skip
def test_numbers_of_numpy_are_numbers(make_data: Make, tmp_path: Path, options: dict[str, Any]) -> None:
    X, Y = make_data()
    options |= {"random_state": 3, "epochs": 2, "features": "standard"}
    taken = {
        name: np.int64(value) if type(value) is int else np.float64(value) if isinstance(value, float) else value
        for name, value in options.items()
    }
    given, plain = clone(ESMCClassifier(**taken)).fit(X, Y, checkpoint=tmp_path / "a"), ESMCClassifier(**options)
    assert np.array_equal(given.predict(X), plain.fit(X, Y, checkpoint=tmp_path / "b").predict(X))
    loaded = ESMCClassifier.load(given.save(tmp_path / "model.esmc"))
    assert loaded.get_params() == plain.get_params()


def _no_work(*args: Any, **kwargs: Any) -> None:
    raise AssertionError("work began before the check")


def _with(array: np.ndarray, value: float) -> np.ndarray:
    array = array.copy()
    array[1, 0] = value
    return array


BAD_DATA: dict[str, tuple[Callable[[Any, Any], tuple[Any, ...]], str]] = {
    "NaN in X": (lambda X, Y: (_with(X, NAN), Y), "Input X contains NaN"),
    "infinity in X": (lambda X, Y: (_with(X, INF), Y), "Input X contains infinity"),
    "one-dimensional X": (lambda X, Y: (X[0], Y), "Expected 2D array, got 1D array"),
    "words in X": (lambda X, Y: (np.full(X.shape, "a"), Y), "could not convert string to float"),
    "no rows": (lambda X, Y: (X[:0], Y[:0]), "0 sample"),
    "no Y": (lambda X, Y: (X, None), "Y must be a matrix of labels; .* the target y is None"),
    "one-dimensional Y": (lambda X, Y: (X, Y[:, 0]), r"for one label pass Y.reshape\(-1, 1\)"),
    "sets of names": (lambda X, Y: (X, [{"a"}] * len(X)), "got names of labels .*MultiLabelBinarizer"),
    "names": (lambda X, Y: (X, ["a"] * len(X)), "got names of labels .*MultiLabelBinarizer"),
    "lists of names": (lambda X, Y: (X, [["a", "b"], ["c"]] * 20), "got names of labels .*MultiLabelBinarizer"),
    "a series of sets": (lambda X, Y: (X, pd.Series([{"a"}] * len(X))), "got names of labels .*MultiLabelBinarizer"),
    "too large for float32": (lambda X, Y: (_with(X.astype(float), 1e39), Y), "Input X contains a value too large"),
    "a series": (lambda X, Y: (X, pd.Series(Y[:, 0])), r"got float32 values of shape \(40,\)"),
    "two in Y": (lambda X, Y: (X, _with(Y, 2)), "0, 1, or NaN for unknown; got 2 in row 1, column 0"),
    "minus one in Y": (lambda X, Y: (X, _with(Y, -1)), "0, 1, or NaN for unknown; got -1 in row 1, column 0"),
    "a half in sparse Y": (lambda X, Y: (X, sparse.csr_array(_with(Y, 0.5))), "got 0.5 in row 1, column 0"),
    "nothing known": (lambda X, Y: (X, np.full_like(Y, NAN)), "at least one known entry; got NaN everywhere"),
    "fewer rows in Y": (lambda X, Y: (X, Y[:-1]), "same number of rows; got 40 and 39"),
    "no labels": (lambda X, Y: (X, Y[:, :0]), r"one label a column; got shape \(40, 0\)"),
    "words in Y": (lambda X, Y: (X, np.full(Y.shape, "a")), "Y must be an array of numbers; got ndarray"),
    "words among features": (
        lambda X, Y: (pd.DataFrame(X, columns=[*"abcd"]).assign(b="red"), Y),
        "X must have columns of numbers; got (str|object) in column 'b'",
    ),
    "days among features": (
        lambda X, Y: (pd.DataFrame(X, columns=[*"abcd"]).assign(d=pd.Timestamp("2020-01-01")), Y),
        r"X must have columns of numbers; got datetime64\[\w+\] in column 'd'",
    ),
    "masked features": (
        lambda X, Y: (np.ma.masked_greater(X, 1.0), Y),
        r"X must have a number for each feature; got \d+ that are masked",
    ),
    "NaN made a class": (lambda X, Y: (X, _with(Y, 2)), "got 2 in row 1, column 0 .cross_val_predict of scikit-learn"),
    "words in a frame": (lambda X, Y: (X, pd.DataFrame(Y).astype(str) + "x"), "Y must hold 0, 1, or a missing value"),
    "a label twice": (lambda X, Y: (X, pd.DataFrame(Y, columns=list("aab"))), r"got \['a'\] more than once"),
    "other width": (lambda X, Y: (X, Y, X[:, :2]), "X_unlabeled: X has 2 features, but .* expecting 4"),
    "NaN unlabelled": (lambda X, Y: (X, Y, _with(X, NAN)), "X_unlabeled: Input X contains NaN"),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_bad_data(make_data: Make, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("esmc_pyro.feature_map.FeatureMap.from_data", _no_work)
    make, sentence = BAD_DATA[name]
    with pytest.raises(ValueError, match=sentence):
        ESMCClassifier().fit(*make(*make_data()))


BAD_CALLS: dict[str, tuple[Callable[[Any, Any, Any], Any], str]] = {
    "width": (lambda m, X, Y: m.predict(X[:, :2]), "X has 2 features, but ESMCClassifier is expecting 4"),
    "labels": (lambda m, X, Y: m.score(X, Y[:, :2]), "Y must have the 3 labels of the training data; got 2"),
    "top_k": (lambda m, X, Y: copy.copy(m).set_params(top_k=4).predict(X), "top_k must be at most the 3 labels; got 4"),
    "no top_k": (
        lambda m, X, Y: copy.copy(m).set_params(top_k=0).predict(X),
        "top_k must be a whole number of at least 1; got 0",
    ),
    "n": (lambda m, X, Y: m.complete(X, Y, n=0), "n must be a whole number of at least 1; got 0"),
    "draws": (lambda m, X, Y: m.complete(X, Y, draws=1), "draws must be a whole number of at least 2; got 1"),
    "no draws": (lambda m, X, Y: m.suitability(X, draws=0), "draws must be a whole number of at least 1; got 0"),
    "no n": (lambda m, X, Y: m.suggest_annotations(X, n=0), "n must be a whole number of at least 1; got 0"),
    "two rows": (lambda m, X, Y: m.explain(X[:2]), "x must be one instance; got 2 rows"),
    "no neighbours": (lambda m, X, Y: m.explain(X[0], n=0), "n must be a whole number of at least 1; got 0"),
    "site": (lambda m, X, Y: m.sample_posterior(X, 2, ["w"]), "sites must be one of .*; got 'w'"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_calls(fitted: ESMCClassifier, make_data: Make, name: str) -> None:
    call, sentence = BAD_CALLS[name]
    with pytest.raises(ValueError, match=sentence):
        call(fitted, *make_data())


def test_partial_fit_needs_the_default(make_data: Make) -> None:
    with pytest.raises(ValueError, match="partial_fit needs the default inference; got inference='svi'"):
        small(inference="svi").partial_fit(*make_data())


def test_verbose_and_checkpoint_are_checked_and_numpys_booleans_are_taken(make_data: Make) -> None:
    X, Y = make_data()
    with pytest.raises(ValueError, match="verbose must be True or False; got 'yes'"):
        ESMCClassifier(verbose="yes").fit(X, Y)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="checkpoint must be the name of a file, or a Checkpoint; got 3"):
        ESMCClassifier().fit(X, Y, checkpoint=3)  # type: ignore[arg-type]
    assert ESMCClassifier(search=np.False_, verbose=0).fit(X, Y).search is False  # type: ignore[arg-type]
