"""Run by test_checkpoint.py: fits that are killed at random moments and gone on with; prints what came of it as JSON.

Imports take seconds and a kill needs a process: one process imports, and each fit to be killed runs in a fork of it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from tiny import tiny_data, tiny_model

from esmc_pyro import ESMCClassifier
from esmc_pyro.inference import fit_svi
from esmc_pyro.inference.checkpoint import Checkpoint


def fit_functions(checkpoint: Checkpoint | None) -> list[np.ndarray]:
    """A dozen epochs of a bound that is estimated from random draws."""
    X, Y = tiny_data()
    posterior = fit_svi(
        tiny_model(X, Y), X[: len(Y)], Y, X[len(Y) :], guide="doubly_stochastic", objective="collapsed", epochs=12,
        batch_size=4, progress=False, checkpoint=checkpoint,
    )  # fmt: skip
    return [p.detach().numpy() for p in posterior.guide.parameters()] + [posterior.history["elbo"].to_numpy()]


def fit_estimator(checkpoint: Checkpoint | None) -> list[np.ndarray]:
    """The default: search, fit, and the phase that adds ``f_z`` where the search chose it."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(30, 3)).astype(np.float32)
    Y = (X @ rng.normal(size=(3, 3)) > 0.5).astype(np.float32)
    estimator = ESMCClassifier(epochs=15).fit(X, Y, checkpoint=checkpoint)
    elbo = estimator.posterior_.history["elbo"].to_numpy()
    return [estimator.decision_function(X), estimator.predict_proba(X), elbo, estimator.search_["score"].to_numpy()]


def killed(work: Callable[[], object], after: float) -> bool:
    """Do ``work`` in a child that dies ``after`` so many processor seconds; False if it was done before that.

    Nothing handles SIGPROF, so it ends a process as SIGKILL does; and how busy the machine is does not move the moment.
    """
    child = os.fork()
    if child == 0:
        signal.setitimer(signal.ITIMER_PROF, after)
        signal.alarm(60)  # should it wait for ever
        work()
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def main(kind: str, rounds: int, folder: Path) -> dict[str, object]:
    torch.set_num_threads(1)
    fit = {"functions": fit_functions, "estimator": fit_estimator}[kind]
    path = folder / "fit.checkpoint"
    expected = fit(None)
    begun = time.process_time()
    fit(Checkpoint(path, every_seconds=0))
    whole = time.process_time() - begun
    moments, result = random.Random(7), {"killed": 0, "found": 0, "equal": 0, "left": 0}
    for _ in range(rounds):
        path.unlink(missing_ok=True)
        for _ in range(2):  # what is gone on with is killed again
            result["killed"] += killed(
                lambda: fit(Checkpoint(path, every_seconds=0)), moments.uniform(0.01, 0.7) * whole
            )
        result["found"] += path.exists()
        found = fit(Checkpoint(path, every_seconds=0))
        result["equal"] += all(np.array_equal(a, b) for a, b in zip(expected, found, strict=True))
        result["left"] += len(os.listdir(folder)) - 1
    return {"rounds": rounds, "seconds": whole, **result}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))))
