"""Folds that are fitted together get the means that each would get by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from esmc_pyro import default, objectives
from esmc_pyro.default import Settings
from esmc_pyro.folds import Folds
from esmc_pyro.models import Bernoulli, LearnedMPU, Likelihood, Propensity

CURVED = Settings(kernel="rbf", curvature=2.0, curve_lengthscale=0.5)
CAVITY = replace(CURVED, cavity=True)


def made(rows: int = 60, labels: int = 4, gaps: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, generator=generator, dtype=torch.float32)
    z = x @ torch.randn(3, labels, generator=generator, dtype=torch.float32)
    Y = (z + 0.5 * torch.randn(z.shape, generator=generator) > 0.5).float()
    if gaps:
        Y[torch.rand(Y.shape, generator=generator) < 0.2] = torch.nan
    return x, Y


def thirds(rows: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Rows that are held out, and the others."""
    order = torch.arange(rows)
    return [(order[k::3], order[order % 3 != k]) for k in range(3)]


def one_by_one(x: torch.Tensor, Y: torch.Tensor, settings: Settings, *given: Any, **options: Any) -> torch.Tensor:
    return torch.cat(
        [
            default.fit_settings(x[rest], Y[rest], settings, *given, spread=False, **options).predict(x[held])
            for held, rest in thirds(len(x))
        ]
    )


Rows = tuple[list[torch.Tensor], list[torch.Tensor]]


def parted(x: torch.Tensor) -> Rows:
    return [x[rest] for _, rest in thirds(len(x))], [x[held] for held, _ in thirds(len(x))]


def together(folds: Folds, x: torch.Tensor, settings: Settings) -> torch.Tensor:
    return folds.predict(*parted(x), settings)


class Weighted(Bernoulli):
    """The first label counts three times; written for labels n x K."""

    def log_prob(self, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        _, labels = z.shape
        weight = torch.ones(labels)
        weight[0] = 3.0
        return super().log_prob(y, z) * weight


class Shifted(Bernoulli):
    """A number for each label that is learned, its memory not in the order of its indices, and one that plays no part;
    the first is made when it is first needed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unused = torch.nn.Parameter(torch.zeros(3))

    def log_prob(self, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "shift"):
            self.shift = torch.nn.Parameter(torch.zeros(2, z.shape[-1]).mT)
        return super().log_prob(y, z * (1 + self.shift[:, 0]) + self.shift[:, 1])


def folds_of(Y: torch.Tensor, *given: Any, **options: Any) -> Folds:
    return Folds(torch.stack([Y[rest] for _, rest in thirds(len(Y))]), *given, **options)


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize(
    ("settings", "likelihood"),
    [
        (Settings(), None),
        (Settings(kernel="laplacian", amplitude=2.0, coupling=0.5), None),
        (Settings(B=3.0), None),
        (Settings(miss=0.3), None),
        (Settings(), Bernoulli(lambda_=2.0)),
        (Settings(), Propensity([0.3, 0.5, 0.7, 0.9])),
        (Settings(), LearnedMPU(0.3)),
        (Settings(), Weighted()),
        (Settings(), Shifted()),
        (CURVED, None),
        (CURVED, LearnedMPU(0.3)),
        (CAVITY, None),
        (CAVITY, Propensity([0.3, 0.5, 0.7, 0.9])),
        (CAVITY, LearnedMPU(0.3)),
        (CAVITY, Shifted()),
    ],
)
def test_folds_get_the_means_of_fits_one_by_one(settings: Settings, likelihood: Likelihood | None, gaps: bool) -> None:
    x, Y = made(gaps=gaps)
    z = together(folds_of(Y, likelihood), x, settings)
    torch.testing.assert_close(z, one_by_one(x, Y, settings, likelihood), rtol=1e-3, atol=1e-3)
    assert z.std() > 0.5


@pytest.mark.parametrize("settings", [CURVED, CAVITY])
@pytest.mark.parametrize("options", [{"pseudo": 7}, {"epochs": 3, "lr": 0.02}, {"seed": 5}])
def test_folds_take_the_options_of_a_fit(options: dict[str, Any], settings: Settings) -> None:
    x, Y = made()
    z = together(folds_of(Y, **options), x, settings)
    torch.testing.assert_close(z, one_by_one(x, Y, settings, **options), rtol=1e-3, atol=1e-3)
    assert not torch.allclose(z, together(folds_of(Y), x, settings), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("settings", [CURVED, CAVITY])
def test_features_beyond_the_memory_are_made_a_batch_at_a_time(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, Y = made()
    kept = together(folds_of(Y, pseudo=20), x, settings)
    monkeypatch.setattr(objectives.FrozenFeatures, "BUDGET", 20)
    torch.testing.assert_close(together(folds_of(Y, pseudo=20), x, settings), kept, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("likelihood", [None, LearnedMPU(0.3)])
def test_what_is_kept_of_the_last_fit_changes_nothing(
    likelihood: Likelihood | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, Y = made()
    folds, counts = folds_of(Y, likelihood), {"first_layer": 0, "linear_layer": 0}
    for name in counts:
        inner = getattr(default, name)

        def count(*given: Any, name: str = name, inner: Any = inner) -> Any:
            counts[name] += 1
            return inner(*given)

        monkeypatch.setattr(default, name, count)
    rows, plain = parted(x), replace(CURVED, curvature=0.0)
    # of three folds: features once, a fit without f_z once for each amplitude; then features of another length-scale
    tried = [plain, CURVED, CAVITY, replace(CAVITY, curvature=1.0), replace(CURVED, amplitude=2.0)]
    found = [folds.predict(*rows, settings) for settings in tried]
    assert counts == {"first_layer": 3, "linear_layer": 6}
    tried.append(replace(CURVED, lengthscale=2.0))
    found.append(folds.predict(*rows, tried[-1]))
    assert counts == {"first_layer": 6, "linear_layer": 9}
    for settings, z in zip(tried, found, strict=True):
        torch.testing.assert_close(together(folds_of(Y, likelihood), x, settings), z, rtol=0, atol=0)
    # other rows, the same settings
    other = folds.predict(*parted(2 * x), replace(tried[-1], features="other"))
    torch.testing.assert_close(other, together(folds_of(Y, likelihood), 2 * x, tried[-1]), rtol=0, atol=0)
    assert not torch.equal(folds.predict(*parted(x.square()), tried[-1]), other)


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("settings", [Settings(), CURVED])
def test_a_sample_of_all_labels_changes_nothing(
    settings: Settings, gaps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, Y = made(gaps=gaps)
    whole = together(folds_of(Y), x, settings)
    monkeypatch.setattr(default, "MANY_LABELS", 3)
    monkeypatch.setattr(default, "ABSENT", 4)
    torch.testing.assert_close(together(folds_of(Y), x, settings), whole, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(one_by_one(x, Y, settings), whole, rtol=1e-3, atol=1e-3)


def test_labels_that_are_drawn_stand_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were the zeros of a tenth of the labels taken for all there are, rare labels would seem far more frequent."""
    x = made(120)[0]
    Y = (torch.rand(120, 200, generator=torch.Generator().manual_seed(1)) < 0.005).float()
    settings, options = Settings(amplitude=0.5), {"epochs": 150, "lr": 0.03}
    whole = torch.sigmoid(together(folds_of(Y, **options), x, settings)).mean().item()
    monkeypatch.setattr(default, "MANY_LABELS", 199)
    monkeypatch.setattr(default, "ABSENT", 20)
    some = torch.sigmoid(together(folds_of(Y, **options), x, settings)).mean().item()
    assert some == pytest.approx(whole, rel=0.25)


def test_a_likelihood_of_the_users_sees_all_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    x, Y = made()
    whole = together(folds_of(Y, Weighted()), x, Settings())
    monkeypatch.setattr(default, "MANY_LABELS", 3)
    monkeypatch.setattr(default, "ABSENT", 1)
    assert torch.equal(together(folds_of(Y, Weighted()), x, Settings()), whole)
    torch.testing.assert_close(one_by_one(x, Y, Settings(), Weighted()), whole, rtol=1e-3, atol=1e-3)


def test_a_likelihood_for_other_labels_is_refused_at_once() -> None:
    _, Y = made()
    with pytest.raises(ValueError, match="must be for the model's 4 labels; got one for 3"):
        folds_of(Y, Propensity([0.3, 0.5, 0.7]))
