"""The bound never falls over a block update, whatever the problem and the options that claim so."""

import numpy as np
import torch
from analytic_problems import LIKELIHOODS, make_data, make_likelihood, make_model, random_guide
from hypothesis import given, settings
from hypothesis import strategies as st

from esmc_pyro.inference.analytic import Options, Solver

MONOTONE = st.fixed_dictionaries(
    {
        "c_variance": st.sampled_from(["shared", "rows"]),
        "functions": st.sampled_from(["joint", "alternate"]),
        "sigmoid": st.sampled_from(["jaakkola", "quadrature"]),
        "experts": st.sampled_from(["integrated", "explicit"]),
        "c_steps": st.integers(1, 3),
        "z_steps": st.integers(1, 3),
        "block": st.sampled_from([1, 4, 64]),
    }
)


@settings(max_examples=30)
@given(
    options=MONOTONE,
    likelihood=st.sampled_from(LIKELIHOODS),
    covariance=st.sampled_from(["full", "diagonal"]),
    widths=st.lists(st.integers(1, 3), max_size=2),
    labelled=st.integers(1, 10),
    unlabelled=st.integers(0, 4),
    K=st.integers(1, 4),
    M=st.integers(1, 6),
    noise=st.floats(0.05, 2.0),
    seed=st.integers(0, 1000),
)
def test_never_falls(
    options: dict[str, object], likelihood: str, covariance: str, widths: list[int], labelled: int, unlabelled: int,
    K: int, M: int, noise: float, seed: int,
) -> None:  # fmt: skip
    X, Y = make_data(seed, labelled + unlabelled, labelled, K=K, unknown=0.2)
    model = make_model(X, K, widths, make_likelihood(likelihood), M, seed, noise)
    chosen = Options(**options)  # type: ignore[arg-type]
    assert chosen.monotone
    solver = Solver(model, X, Y, random_guide(model, X, Y, covariance, seed), chosen)
    values = [solver.bound()]
    for _ in range(3):
        solver.sweep()
    values += [row["elbo"] for row in solver.history]
    rises = np.diff(np.array(values, dtype=float)) / np.abs(values[1:])
    worst = int(rises.argmin())
    assert rises[worst] >= -1e-8, solver.history[worst]
    # the sums that the history is made of agree with a fresh look at all rows
    last = solver.bound()
    solver.gather()
    assert abs(solver.bound() - last) <= 1e-9 * abs(last)


def test_options_that_may_lower_it_say_so() -> None:
    assert Options().monotone
    rows = torch.arange(3)
    for option in ({"xi": "paper"}, {"clamp": 5.0}, {"refresh": "pseudo"}, {"refresh": rows}, {"q_c": "forward"}):
        assert not Options(**option).monotone  # type: ignore[arg-type]
