"""What holds for every baseline, the registry, and tuning on held-out rows."""

from collections.abc import Callable

import numpy as np
import pytest
from label_problem import label_problem
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from esmc_pyro import metrics
from esmc_pyro.baselines import BASELINES, BR, GRIDS, KNN, LEML, PLST, SLRM, Baseline, GenEML, tune

# settings that suit a tiny problem
SMALL = {"SLEEC": {"latent": 4, "neighbours": 20, "nearest": 10, "cluster_rows": 60}, "GenEML": {"lambda_u": 10.0}}


def make(name: str) -> Baseline:
    return BASELINES[name](**SMALL.get(name, {}))


every = pytest.mark.parametrize("name", BASELINES)


@every
def test_ranks_new_rows_better_than_label_frequencies_do(name: str) -> None:
    X, Y = label_problem(N=300)
    scores = make(name).fit(X[:200], Y[:200]).decision_function(X[200:])
    frequency = np.tile(Y[:200].mean(axis=0), (100, 1))
    assert scores.shape == (100, 7)
    assert scores.dtype == np.float64
    assert metrics.evaluate(Y[200:], scores)["auc"] > metrics.evaluate(Y[200:], frequency)["auc"] + 0.05


# the same without the usual end of each iteration; SLRM has a sharper test of its own, GenEML has few sweeps by intent
CONVERGED = {
    "BR": {"steps": 100, "tolerance": 1e-7},
    "LEML": {"sweeps": 400, "steps": 50, "tolerance": 1e-13},
    "SLEEC": {"steps": 300},
}


@pytest.mark.parametrize("name", CONVERGED)
def test_the_usual_end_of_an_iteration_ranks_as_well_as_its_limit(name: str) -> None:
    X, Y = label_problem(N=400)
    usual, limit = (
        metrics.evaluate(Y[200:], make(name).set_params(**more).fit(X[:200], Y[:200]).decision_function(X[200:]))
        for more in ({}, CONVERGED[name])
    )
    for metric in ("auc", "lrap"):
        assert usual[metric] == pytest.approx(limit[metric], abs=0.01)


@every
def test_sparse_features_and_labels_give_the_same_scores(name: str) -> None:
    X, Y = label_problem()
    X = X * (X > 0.5)
    dense = make(name).fit(X, Y).decision_function(X)
    thin = make(name).fit(sparse.csr_array(X), sparse.csr_array(Y)).decision_function(sparse.csr_matrix(X))
    assert np.allclose(dense, thin, atol=1e-6)


@every
def test_the_same_fit_twice_gives_the_same_scores_and_leaves_its_input_alone(name: str) -> None:
    X, Y = label_problem()
    before = X.copy(), Y.copy()
    first = make(name).fit(X, Y)
    again = clone(first).fit(X, Y)
    assert first.get_params() == again.get_params()
    assert (first.decision_function(X) == again.decision_function(X)).all()
    assert (before[0] == X).all()
    assert (before[1] == Y).all()


@every
@pytest.mark.parametrize(("N", "F", "K"), [(30, 60, 4), (20, 1, 1), (12, 3, 30)])
def test_wide_narrow_and_label_rich_data_are_fitted(name: str, N: int, F: int, K: int) -> None:
    X, Y = label_problem(N, F, K)
    Y[:, 0] = 0
    assert np.isfinite(make(name).fit(X, Y).decision_function(X)).all()


@every
def test_unlabelled_rows_count_where_the_class_says_so(name: str) -> None:
    X, Y = label_problem()
    more, _ = label_problem(seed=1)
    with_more, without = (make(name).fit(X, Y, extra).decision_function(X) for extra in (more, None))
    assert (not np.array_equal(with_more, without)) is BASELINES[name].uses_unlabeled


@every
def test_unknown_labels_are_taken_or_refused_in_one_sentence(name: str) -> None:
    X, Y = label_problem()
    Y[4, 2] = np.nan
    if BASELINES[name].takes_unknown:
        assert np.isfinite(make(name).fit(X, Y).decision_function(X)).all()
    else:
        with pytest.raises(ValueError, match=r"Y must hold 0 and 1 for .*; got NaN in row 4, column 2"):
            make(name).fit(X, Y)


@every
def test_scores_need_a_fit(name: str) -> None:
    with pytest.raises(NotFittedError):
        make(name).decision_function(np.zeros((2, 5)))


@every
def test_every_number_among_the_settings_is_checked(name: str) -> None:
    X, Y = label_problem()
    kind = BASELINES[name]
    numbers = {k for k, v in kind().get_params().items() if not isinstance(v, str)} - {"p"}
    assert numbers == set(kind.limits)
    for setting in numbers:
        with pytest.raises(ValueError, match=f"{setting} must be a .*; got -1"):
            kind(**{setting: -1}).fit(X, Y)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda X, Y: BR().fit(X, Y[:10]), "same number of rows; got 60 and 10"),
        (lambda X, Y: BR().fit(X, Y + 1), "Y must hold 0, 1, or NaN"),
        (lambda X, Y: BR().fit(X * np.nan, Y), "NaN"),
        (lambda X, Y: SLRM().fit(X, Y, X[:, :2]), "X_unlabeled: X has 2 features"),
        (lambda X, Y: PLST().fit(X, Y).decision_function(X[:, :2]), "X has 2 features"),
        (lambda X, Y: LEML(loss="hinge").fit(X, Y), "loss must be one of"),
        (lambda X, Y: BASELINES["FastTag"](p=1.0).fit(X, Y), "p must be a probability"),
        (lambda X, Y: tune("RAKEL", X, Y), "name must be one of"),
        (lambda X, Y: tune("BR", X, Y, grid=[]), "grid must have at least one setting"),
    ],
)
def test_bad_input_gets_a_sentence(call: Callable[..., object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        call(*label_problem())


def test_neighbours_vote_by_their_distance() -> None:
    X, Y = label_problem()
    method = KNN(neighbours=4, width=0.7).fit(X[:50], Y[:50])
    distance = np.sqrt(((X[50:, None] - X[None, :50]) ** 2).sum(axis=2))
    among = np.sort(np.sqrt(((X[:50, None] - X[None, :50]) ** 2).sum(axis=2)), axis=1)[:, :4]
    expected = []
    for row in distance:
        near = np.argsort(row)[:4]
        weight = np.exp(-((row[near] / (0.7 * among.mean())) ** 2) / 2)
        expected.append(weight @ Y[:50][near] / weight.sum())
    assert np.allclose(method.decision_function(X[50:]), expected, atol=1e-5)


def test_every_grid_names_settings_of_its_method() -> None:
    assert set(GRIDS) == set(BASELINES)
    for name, grid in GRIDS.items():
        for setting in grid:
            BASELINES[name](**setting)


def test_tuning_takes_the_setting_that_scores_best_on_held_out_rows() -> None:
    X, Y = label_problem(N=200)
    chosen = tune("PLST", X, Y, seed=0, grid=[{"penalty": 1e9}, {"penalty": 1.0}, {"penalty": 1e8}])
    assert chosen.get_params() == {"latent": None, "penalty": 1.0}
    assert not hasattr(chosen, "W_")


def test_tuning_gives_its_seed_to_methods_that_draw() -> None:
    X, Y = label_problem()
    assert isinstance(tune("GenEML", X, Y, seed=7, grid=[{"latent": 2}]), GenEML)
    assert tune("GenEML", X, Y, seed=7, grid=[{"latent": 2}]).random_state == 7
    assert (
        tune("GenEML", X[:8], Y[:8], seed=7).get_params() == GenEML(**GRIDS["GenEML"][0], random_state=7).get_params()
    )
