"""A fit that was stopped goes on from its checkpoint to the result that it would have had."""

import copy
import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from fitted import data, quick
from pyro.contrib.gp.kernels import RBF, Matern32, Matern52, Sum
from tiny import tiny_data, tiny_model

from esmc_pyro import ESMCClassifier, judge, search
from esmc_pyro.default import Settings
from esmc_pyro.guides import DoublyStochasticGuide
from esmc_pyro.inference import fit_svi
from esmc_pyro.inference.checkpoint import Checkpoint, CheckpointError
from esmc_pyro.inference.svi_state import SVIState
from esmc_pyro.models import Bernoulli, Gaussian
from esmc_pyro.search_memory import key_of


class Stopped(Exception):
    """The process died."""


def stop_after(patch, writes):
    """Every fit dies right after its checkpoint was written so many times."""
    put, done = Checkpoint.put, []

    def counted(self, *arguments):
        put(self, *arguments)
        done.append(1)
        if len(done) == writes:
            raise Stopped

    patch.setattr(Checkpoint, "put", counted)


def fit(path=None, rows=None, **options):
    X, Y = tiny_data()
    model = tiny_model(X, Y, likelihood=options.pop("likelihood", None))
    checkpoint = None if path is None else Checkpoint(path, every_seconds=0)
    usual = {"guide": "doubly_stochastic", "objective": "collapsed", "epochs": 4, "batch_size": 4, "progress": False}
    options = usual | options
    return fit_svi(model, X[: len(Y)], Y[:rows], X[len(Y) :], checkpoint=checkpoint, **options)


def state(posterior):
    parameters = [*posterior.guide.parameters(), *posterior.model.parameters()]
    return [p.detach().clone() for p in parameters], posterior.history.drop(columns=["seconds", "rows_per_second"])


def equal(a, b):
    (parameters_a, history_a), (parameters_b, history_b) = state(a), state(b)
    pd.testing.assert_frame_equal(history_a, history_b, check_exact=True)
    return all(torch.equal(left, right) for left, right in zip(parameters_a, parameters_b, strict=True))


KINDS = {
    "paper": {"guide": "paper", "objective": "trace"},
    "collapsed": {},
    "full covariance": {"guide": partial(DoublyStochasticGuide, covariance="full"), "objective": "collapsed"},
    "map, fused": {
        "guide": "doubly_stochastic",
        "objective": "map",
        "optimizer": partial(torch.optim.Adam, fused=True),
        "clip": None,
    },
    "cosine": {"schedule": "cosine"},
    "constant rate": {"schedule": "constant"},
    "momentum": {"optimizer": partial(torch.optim.SGD, momentum=0.9), "lr": 1e-3},
    "patience": {"patience": 2, "tolerance": 0.5},
    "learned noise": {"likelihood": Gaussian(0.5, learn_noise=True)},
    "within a warm-up": {"kl_warm_up": 3},
    "within a warm-up, with patience": {"kl_warm_up": 3, "patience": 2, "epochs": 8, "tolerance": 10.0},
}


@pytest.mark.parametrize("name", KINDS)
def test_a_stopped_fit_goes_on_to_the_same_result(name, tmp_path):
    options = copy.deepcopy(KINDS[name])
    path = tmp_path / "fit.checkpoint"
    expected = fit(**copy.deepcopy(options))
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(Stopped):
            fit(path, **copy.deepcopy(options))
    resumed = fit(path, **options)
    assert equal(resumed, expected)
    assert resumed.history["seconds"].is_monotonic_increasing
    assert os.listdir(tmp_path) == ["fit.checkpoint"]


def test_a_checkpoint_changes_nothing_and_a_finished_fit_is_not_fitted_again(tmp_path, monkeypatch):
    path = tmp_path / "fit.checkpoint"
    expected = fit()
    random = torch.get_rng_state()
    assert equal(fit(path), expected)
    monkeypatch.setattr(SVIState, "save", lambda *_: pytest.fail("an epoch was run"))
    assert equal(fit(path), expected)
    assert torch.equal(torch.get_rng_state(), random)


def test_written_after_the_last_epoch_and_not_more_often_than_asked(tmp_path, monkeypatch):
    written = []
    save = SVIState.save
    monkeypatch.setattr(SVIState, "save", lambda self, history: (written.append(len(history)), save(self, history)))
    X, Y = tiny_data()
    options = {"epochs": 4, "progress": False}
    fit_svi(tiny_model(X, Y), X, Y_all(Y, X), checkpoint=Checkpoint(tmp_path / "a", every_seconds=1e6), **options)
    assert written == [4]
    written.clear()
    fit_svi(tiny_model(X, Y), X, Y_all(Y, X), checkpoint=Checkpoint(tmp_path / "b", every_seconds=0), **options)
    assert written == [1, 2, 3, 4]


def Y_all(Y, X):
    return torch.cat([Y, torch.full((len(X) - len(Y), Y.shape[1]), torch.nan)])


OTHER = {
    "epochs": ({"epochs": 7}, "with other epochs;"),
    "rate": ({"lr": 0.3, "batch_size": 3}, "with other batch_size, lr;"),
    "seed": ({"seed": 1}, "with other seed;"),
    "guide": ({"guide": "paper", "objective": "trace"}, "with other model, objective, parameters;"),
    "likelihood": ({"likelihood": Gaussian(0.3)}, "with other model;"),
    "optimizer": ({"optimizer": torch.optim.SGD}, "with other optimizer;"),
    "data": ({"rows": 7}, "X and Y must have the same number of rows"),
}


@pytest.mark.parametrize("name", OTHER)
def test_a_checkpoint_of_another_fit_is_refused(name, tmp_path):
    options, sentence = OTHER[name]
    path = tmp_path / "fit.checkpoint"
    fit(path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=sentence):
        fit(path, **options)
    assert path.read_bytes() == before


def test_other_data_and_another_start_are_refused(tmp_path):
    path = tmp_path / "fit.checkpoint"
    X, Y = tiny_data(unlabelled=0)
    options = {"epochs": 2, "progress": False}
    fit_svi(tiny_model(X, Y), X, Y, checkpoint=Checkpoint(path), **options)
    with pytest.raises(CheckpointError, match=r"of another fit, with other X;.*remove it, or name another file"):
        fit_svi(tiny_model(X, Y), X + 1e-6, Y, checkpoint=Checkpoint(path), **options)
    with pytest.raises(CheckpointError, match=r"with other Y;"):
        fit_svi(tiny_model(X, Y), X, Y.flip(0), checkpoint=Checkpoint(path), **options)
    model = tiny_model(X, Y, alpha=0.7)
    with pytest.raises(CheckpointError, match=r"began with other .*alpha_unconstrained.*made as they were then"):
        fit_svi(model, X, Y, checkpoint=Checkpoint(path), **options)


KERNELS = {
    "other columns": (RBF(2, active_dims=[0, 1]), RBF(2, active_dims=[1, 2])),
    "another part": (Sum(RBF(5), Matern32(5)), Sum(RBF(5), Matern52(5))),
    "another number": (RBF(5, variance=torch.tensor(1.0)), RBF(5, variance=torch.tensor(2.0))),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_search_with_another_kernel_is_refused_and_a_fit_of_it_begins_anew(name, tmp_path):
    X, Y = data()
    kernel, other = KERNELS[name]
    make = partial(ESMCClassifier, epochs=2, features="standard")
    with quick():
        make(kernel=kernel).fit(X, Y, checkpoint=tmp_path / "a")
        make(kernel=copy.deepcopy(kernel)).fit(X, Y, checkpoint=tmp_path / "a")  # the same
        with pytest.raises(CheckpointError, match="of another fit, with other fixed"):
            make(kernel=other).fit(X, Y, checkpoint=tmp_path / "a")
        make(kernel=kernel, search=False).fit(X, Y, checkpoint=tmp_path / "b")
        kept, alone = (make(kernel=other, search=False).fit(X, Y, checkpoint=path) for path in (tmp_path / "b", None))
    assert kept.calibration_ == alone.calibration_
    np.testing.assert_array_equal(kept.predict_proba(X), alone.predict_proba(X))


def test_buffers_tell_likelihoods_apart():
    class Careless(Bernoulli):
        def __init__(self, rate):
            super().__init__()
            self.register_buffer("rate", torch.tensor(rate))

    one, same, other = (key_of(replace(Settings(), B=Careless(rate))) for rate in (0.1, 0.1, 0.2))
    assert one == same != other


BAD = {
    "empty": (lambda content: b"", "cut short or no checkpoint"),
    "text": (lambda content: b"not a checkpoint at all", "cut short or no checkpoint"),
    "cut": (lambda content: content[:-9], "its tensors do not fit the file"),
    "flipped": (lambda content: content[:-9] + b"x" + content[-8:], "its checksum does not match"),
    "a model file": (
        lambda content: content.replace(b"esmc-pyro checkpoint", b"esmc-pyro modelfiles"),
        "no checkpoint",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_damaged_checkpoint_gets_one_sentence(name, tmp_path):
    change, sentence = BAD[name]
    path = tmp_path / "fit.checkpoint"
    fit(path)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(CheckpointError, match=sentence) as caught:
        fit(path)
    assert str(caught.value).startswith(str(path))


def test_a_section_that_lacks_something_gets_one_sentence(tmp_path):
    path = tmp_path / "fit.checkpoint"
    fit(path)
    checkpoint = Checkpoint(path)
    origin, (config, tensors) = checkpoint._sections["fit"]
    checkpoint.put("fit", origin, config, {key: value for key, value in tensors.items() if key != "random"})
    with pytest.raises(CheckpointError, match="does not fit the model"):
        fit(path)


def test_arguments(tmp_path):
    with pytest.raises(ValueError, match="every_seconds must be a number of at least 0; got -1"):
        Checkpoint(tmp_path / "a", every_seconds=-1)
    with pytest.raises(CheckpointError, match="a checkpoint is a file; this is none"):
        Checkpoint(tmp_path)
    for arguments in ({"inference": "analytic"}, {"preset": "paper"}):
        with pytest.raises(ValueError, match="checkpoint needs the default inference or inference='svi'; got"):
            ESMCClassifier(**arguments).fit(*data(), checkpoint=tmp_path / "b")
    assert os.listdir(tmp_path) == []


def test_what_a_kill_left_half_written_is_removed_and_nothing_else(tmp_path):
    for name in (".a.0123abcd", ".a.0123abcdef", ".b.0123abcd", "a.0123abcd"):
        (tmp_path / name).write_text("half")
    Checkpoint(tmp_path / "a")
    assert sorted(os.listdir(tmp_path)) == [".a.0123abcdef", ".b.0123abcd", "a.0123abcd"]


# the search writes once a candidate (three of them), the calibration once (for one member), the fit once an epoch
# (three), the phase that adds f_z twice
@pytest.mark.parametrize(("curved", "writes"), [(False, 2), (False, 4), (False, 5), (True, 3), (True, 8)])
def test_the_default_goes_on_from_any_stage(curved, writes, tmp_path):
    """Nothing that was done is done again, and the result is the same."""
    X, Y = data()
    with quick(curved):
        expected = ESMCClassifier(epochs=3, features="standard").fit(X, Y)
    path = tmp_path / "fit.checkpoint"
    with quick(curved), pytest.MonkeyPatch.context() as patch:
        stop_after(patch, writes)
        with pytest.raises(Stopped):
            ESMCClassifier(epochs=3, features="standard").fit(X, Y, checkpoint=Checkpoint(path, every_seconds=0))
    # scores that count must go on counting where they were
    judged = min(writes, 4)
    with quick(curved), pytest.MonkeyPatch.context() as patch:
        scores = iter(range(judged, 4) if curved else range(-judged, -4, -1))
        patch.setattr(judge, "held_out_score", lambda Y, z: float(next(scores)))
        resumed = ESMCClassifier(epochs=3, features="standard").fit(X, Y, checkpoint=path)
    assert next(scores, None) is None
    assert resumed.calibration_ == expected.calibration_
    assert expected.settings_.curvature == float(curved)
    pd.testing.assert_frame_equal(resumed.search_, expected.search_)
    np.testing.assert_array_equal(resumed.decision_function(X), expected.decision_function(X))
    np.testing.assert_array_equal(resumed.predict_proba(X), expected.predict_proba(X))


@pytest.mark.parametrize(("every", "expected"), [(0, 3), (1e6, 1)])
def test_a_search_writes_when_it_is_due_and_at_its_end(every, expected, tmp_path, monkeypatch):
    X, Y = data()
    put, written = Checkpoint.put, []
    monkeypatch.setattr(Checkpoint, "put", lambda self, *arguments: (written.append(1), put(self, *arguments)))
    path = tmp_path / "kept"
    with quick():
        found = search.choose(X, torch.as_tensor(Y), None, {}, ("standard",), checkpoint=Checkpoint(path, every))
    assert len(written) == expected
    (config, _) = Checkpoint(path)._sections["search"][1]
    assert sorted(map(float, config["scores"].values())) == sorted(found.tried["score"])


def test_ctrl_c_while_the_search_writes_ends_it_at_the_best(tmp_path, monkeypatch):
    X, Y = data()
    put, calls = Checkpoint.put, []

    def interrupted(self, *arguments):
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        put(self, *arguments)

    monkeypatch.setattr(Checkpoint, "put", interrupted)
    with quick():
        kept = Checkpoint(tmp_path / "kept", 1e6)
        found = search.choose(X, torch.as_tensor(Y), None, {}, ("standard",), checkpoint=kept)
    assert found.interrupted
    assert len(found.tried) == 3


def test_a_named_inference_goes_on_too(tmp_path):
    X, Y = data("frames")
    make = partial(ESMCClassifier, inference="svi", guide="paper", epochs=2)
    expected = make().fit(X, Y)
    for writes in (1, 3):
        path = tmp_path / f"{writes}"
        with pytest.MonkeyPatch.context() as patch:
            stop_after(patch, writes)
            with pytest.raises(Stopped):
                make().fit(X, Y, checkpoint=Checkpoint(path, every_seconds=0))
        resumed = make().fit(X, Y, checkpoint=path)
        pd.testing.assert_frame_equal(resumed.predict_proba(X), expected.predict_proba(X))


def kills(kind, rounds, folder):
    tests = Path(__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": str(tests), "OMP_NUM_THREADS": "1"}
    script = Path(__file__).with_name("killed_fit.py")
    command = [sys.executable, str(script), kind, str(rounds), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")
@pytest.mark.parametrize(
    ("kind", "rounds"),
    [
        ("functions", 3),
        pytest.param("functions", 20, marks=pytest.mark.slow),
        pytest.param("estimator", 8, marks=pytest.mark.slow),
    ],
)
def test_killed_at_random_moments(kind, rounds, tmp_path):
    """Killed twice a round: the checkpoint always loads, the result is always the same."""
    result = kills(kind, rounds, tmp_path)
    assert result["equal"] == result["rounds"] == rounds
    assert result["killed"] >= rounds
    assert result["found"] >= rounds // 2
    assert result["left"] == 0
