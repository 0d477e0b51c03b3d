"""The paper's rules against hand computations."""

import numpy as np
import pytest
import torch

from esmc_pyro.models import Layer, make_kernel, rules


@pytest.mark.parametrize(
    ("ones", "zeros", "unknown", "cap", "B"),
    [(10, 25, 0, 100, 2), (10, 25, 7, 100, 2), (10, 5, 0, 100, 1), (1, 999, 0, 100, 100), (1, 999, 0, 50, 50),
     (0, 12, 0, 100, 100), (12, 0, 0, 100, 1), (10, 1000, 0, 100, 100), (10, 999, 0, 100, 99)],
)  # fmt: skip
def test_experts_from_ratio(ones: int, zeros: int, unknown: int, cap: int, B: int) -> None:
    Y = torch.cat([torch.ones(ones), torch.zeros(zeros), torch.full((unknown,), torch.nan)]).unsqueeze(1)
    assert rules.experts_from_ratio(Y, cap) == B


@pytest.mark.parametrize(
    ("N", "M"), [(1, 1), (4, 1), (100, 10), (9999, 1000), (10000, 100), (19999, 200), (20000, 400), (10**6, 400)]
)
def test_pseudo_count(N: int, M: int) -> None:
    assert rules.pseudo_count(N) == M


def test_lengthscale_is_twice_the_mean_distance_or_the_median() -> None:
    X = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]])  # distances 5, 1, sqrt(18)
    assert rules.lengthscale_from_distances(X) == pytest.approx(2 * (5 + 1 + 18**0.5) / 3)
    assert rules.lengthscale_from_distances(X, "authors") == pytest.approx(18**0.5)
    assert rules.lengthscale_from_distances(X, norm=1) == pytest.approx(2 * (7 + 1 + 6) / 3)
    with pytest.raises(ValueError, match="rule must be 'paper' or 'authors'; got 'mean'"):
        rules.lengthscale_from_distances(X, "mean")


@pytest.mark.parametrize("X", [torch.ones(5, 2), torch.ones(1, 2), torch.zeros(3, 1)])
def test_identical_rows_give_a_lengthscale_of_one(X: torch.Tensor) -> None:
    assert rules.lengthscale_from_distances(X) == 1.0


def test_a_median_of_zero_gives_way_to_the_distances_that_are_not() -> None:
    X = torch.cat([torch.zeros(9, 1), torch.full((1, 1), 2.0)])
    assert rules.lengthscale_from_distances(X, "authors") == 2.0


def test_lengthscale_of_many_rows_looks_at_some_of_them_and_is_repeatable() -> None:
    X = torch.randn(3000, 2)
    few = rules.lengthscale_from_distances(X, rows=500, seed=3)
    assert few == rules.lengthscale_from_distances(X, rows=500, seed=3)
    assert few == pytest.approx(rules.lengthscale_from_distances(X, rows=3000), rel=0.1)


def test_pseudo_rows_take_each_row_once_before_any_twice() -> None:
    assert len(set(rules.choose_pseudo_rows(10, 7))) == 7
    counts = np.bincount(rules.choose_pseudo_rows(4, 10), minlength=4)
    assert counts.sum() == 10
    assert set(counts) == {2, 3}


def test_pseudo_instances_are_rows_or_centres() -> None:
    X = torch.cat([torch.randn(40, 2) * 0.01, torch.randn(40, 2) * 0.01 + 5])
    rows = rules.choose_pseudo_instances(X, 6, "random", seed=1)
    assert all((row == X).all(1).any() for row in rows)
    centres = rules.choose_pseudo_instances(X, 2, "kmeans")
    assert torch.allclose(centres.sort(0).values, torch.tensor([[0.0, 0.0], [5.0, 5.0]]), atol=0.02)
    assert rules.choose_pseudo_instances(torch.ones(9, 2), 4, "kmeans").tolist() == [[1, 1]] * 4
    with pytest.raises(ValueError, match="pseudo-instances must be chosen by 'random' or 'kmeans'; got 'grid'"):
        rules.choose_pseudo_instances(X, 3, "grid")


def test_latent_pseudo_instances_are_the_layers_own_mean() -> None:
    S, u = torch.randn(4, 3), torch.randn(2, 4)
    layer = Layer("c", make_kernel("rbf", 3), S, 2, alpha=0.3)
    k = layer.covariance()
    by_hand = (k @ torch.linalg.solve(k + 0.09 * torch.eye(4), u.mT)).detach()
    assert torch.allclose(rules.latent_pseudo_instances(layer, u), by_hand, atol=1e-4)


def test_label_frequencies_count_what_is_known() -> None:
    Y = torch.tensor([[1, 0, torch.nan], [1, 0, torch.nan], [0, torch.nan, torch.nan]])
    assert rules.label_frequencies(Y).tolist() == pytest.approx([2.5 / 4, 0.5 / 3, 2.5 / 6])
    assert rules.label_frequencies(torch.full_like(Y, torch.nan)).tolist() == [0.5] * 3


@pytest.mark.parametrize("K", [5, 40])  # the dense and the randomised factorisation
@pytest.mark.usefixtures("double")
def test_label_scores_span_the_leading_directions(K: int) -> None:
    Y = (torch.randn(200, 2) @ torch.randn(2, K) + 0.1 * torch.randn(200, K) > 0).double()
    before = torch.get_rng_state()
    scores = rules.label_scores(Y, 2)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(scores, rules.label_scores(Y, 2))
    standard = (Y - Y.mean(0)) / Y.std(0, correction=0)
    left = torch.linalg.svd(standard, full_matrices=False).U[:, :2]
    assert torch.allclose((left.mT @ scores / 200**0.5).abs(), torch.eye(2), atol=0.02)
    assert torch.allclose(scores.square().mean(0), torch.ones(2))


def test_label_scores_of_poor_labels_are_finite() -> None:
    Y = torch.zeros(6, 3)
    assert rules.label_scores(Y, 2).tolist() == [[0, 0]] * 6  # nothing varies
    Y[:3, 0] = 1
    Y[5, 0] = torch.nan
    scores = rules.label_scores(Y, 4)  # wider than the rank, than K
    assert torch.isfinite(scores).all()
    assert scores[:, 0].abs().min() < scores[:, 0].abs().max()
    assert scores[:, 1:].abs().max() < 1e-4
