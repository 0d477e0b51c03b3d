"""The default's fit: sizes by the number of rows, the model that settings make, and its phases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from ctrl_c import stop_at

from esmc_pyro import default, online
from esmc_pyro.default import Settings
from esmc_pyro.folds import Folds
from esmc_pyro.inference.checkpoint import Checkpoint
from esmc_pyro.models import Bernoulli, Likelihood, Propensity, rules

Make = Callable[..., tuple[np.ndarray, np.ndarray]]


@pytest.fixture(autouse=True)
def _few_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default, "EPOCHS", 2)
    monkeypatch.setattr(default, "CURVED_EPOCHS", 1)


@pytest.mark.parametrize(
    ("rows", "expected"), [(1, 1), (500, 500), (10_000, 10_000), (30_000, 2**29 // 30_000), (22_000, 20_000)]
)
def test_pseudo_count(rows: int, expected: int) -> None:
    assert default.pseudo_count(rows) == expected


def test_the_model_is_what_the_settings_say(make_data: Make) -> None:
    X, Y = (torch.as_tensor(part) for part in make_data())
    model = default.build(X, Y, Settings(amplitude=2.0, coupling=0.5, kernel="rbf", lengthscale=1.5), Bernoulli(), 7, 0)
    first, last = model.layers
    assert (first.pseudo_count, first.outputs, last.outputs) == (7, 3, 3)
    scale = 1.5 * rules.lengthscale_from_distances(X, "authors")
    assert first.kernel.lengthscale.item() == pytest.approx(scale, rel=1e-5)
    assert torch.allclose(
        last.mean.weight, 2.0 * rules.label_coupling(rules.label_directions(Y, 3), 0.5).to(Y.dtype), atol=1e-6
    )
    assert torch.allclose(last.mean.offset, torch.logit(rules.label_frequencies(Y)), atol=1e-3)
    assert [name for name, p in model.named_parameters() if p.requires_grad] == ["layers.1.mean.offset"]
    manhattan = default.build(X, Y, Settings(kernel="laplacian", lengthscale=1.5), Bernoulli(), 7, 0).layers[0]
    scale = 1.5 * rules.lengthscale_from_distances(X, "authors", norm=1)
    assert manhattan.kernel.lengthscale.item() == pytest.approx(scale, rel=1e-5)
    # without curvature the second layer is its mean
    c = torch.randn(5, 3)
    assert torch.allclose(last.predict(c, torch.zeros(3, 1)), last.mean(c))


def test_each_fit_has_a_likelihood_of_its_own(make_data: Make) -> None:
    X, Y = (torch.as_tensor(part) for part in make_data())
    given = Bernoulli()
    assert default.build(X, Y, Settings(), given, 5, 0).likelihood is not given


@pytest.mark.parametrize(
    ("rows", "batch", "epochs"),
    [(1, 32, 100), (100, 32, 25), (400, 100, 25), (1500, 375, 25), (4000, 512, 13), (16616, 512, 10)],
)
def test_batches_and_epochs_by_the_number_of_rows(rows: int, batch: int, epochs: int) -> None:
    assert default.batch_size(rows) == batch
    assert default.epoch_count(rows, 10, 100) == epochs


def test_every_phase_makes_its_steps(make_data: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    X, Y = make_data(40)
    steps = 2  # of an epoch: 40 rows in batches of at most 32
    for cavity, more in ((False, default.CURVED_STEPS), (True, default.CAVITY_STEPS)):
        settings = Settings(curvature=1.0, cavity=cavity)
        history = default.fit_settings(torch.as_tensor(X), torch.as_tensor(Y), settings).history
        assert len(history) * steps == default.LEAST_STEPS + more
        assert (history["epoch"].diff()[1:] == 1).all()
        assert (history["seconds"].diff()[1:] > 0).all()


def test_the_length_scale_of_f_z_is_in_medians_of_the_distance_between_c(make_data: Make) -> None:
    X, Y = (torch.as_tensor(part) for part in make_data(40))
    for times in (1.0, 0.5):
        settings = Settings(curvature=3.0, curve_lengthscale=times)
        first = default.fit_settings(X, Y, replace(settings, curvature=0.0), spread=False)
        layer = first.model.layers[0]
        c = layer.predict(X, first.guide.u_means()[0])
        kernel = default.fit_settings(X, Y, settings, spread=False).model.layers[1].kernel
        assert kernel.lengthscale.item() == pytest.approx(
            times * torch.nn.functional.pdist(c).median().item(), rel=1e-3
        )
        assert kernel.variance.item() == pytest.approx(9.0)


def test_f_z_learns_what_is_not_linear_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels are the signs of two numbers, and whether these agree: three smooth functions do not tell the third."""
    monkeypatch.undo()
    x = torch.randn(600, 2, generator=torch.Generator().manual_seed(0))
    y = torch.stack([x[:, 0] > 0, x[:, 1] > 0, x[:, 0] * x[:, 1] > 0], 1).float()
    settings = Settings(kernel="rbf", lengthscale=3.0, amplitude=4.0, coupling=0.0)
    missed = []
    for curvature, cavity in ((0.0, False), (3.0, False), (3.0, True)):
        changed = replace(settings, curvature=curvature, cavity=cavity)
        fitted = default.fit_settings(x[:300], y[:300], changed, pseudo=3)
        missed.append(((fitted.predict(x[300:])[:, 2] > 0) != (y[300:, 2] > 0)).float().mean())
    assert missed[0] > 0.4
    assert max(missed[1:]) < 0.2


def test_f_z_by_rows_without_their_own_labels_leaves_c_as_it_is(make_data: Make) -> None:
    X, Y = (torch.as_tensor(part) for part in make_data(40))
    settings = Settings(curvature=1.0, cavity=True)
    plain, curved = (default.fit_settings(X, Y, one) for one in (settings.plain, settings))
    torch.testing.assert_close(plain.predict_layers(X)[0], curved.predict_layers(X)[0], rtol=0, atol=0)
    assert curved.guide.z_v_loc.any()
    assert curved.guide.z_v_scale.max() < 1  # Laplace's, less than the prior's
    assert not torch.equal(plain.model.layers[1].mean.offset, curved.model.layers[1].mean.offset)
    assert "by rows without their own labels" in settings.second_layer


def test_ctrl_c_before_there_is_an_f_z_leaves_the_fit_without_it(
    make_data: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    X, Y = (torch.as_tensor(part) for part in make_data(40))
    settings, kept = Settings(curvature=1.0, cavity=True), tmp_path / "kept"
    with monkeypatch.context() as patch:
        stop_at(patch, default, "cavity", 1)
        early = default.fit_settings(X, Y, settings, checkpoint=Checkpoint(kept))
    assert early.interrupted
    torch.testing.assert_close(early.predict(X), default.fit_settings(X, Y, settings.plain).predict(X), rtol=0, atol=0)
    again = default.fit_settings(X, Y, settings, checkpoint=Checkpoint(kept))
    assert not again.interrupted
    torch.testing.assert_close(again.predict(X), default.fit_settings(X, Y, settings).predict(X), rtol=0, atol=0)


def test_what_f_z_learns_from_is_found_once(make_data: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Other threads would round it otherwise, and the checkpoint of ``f_z`` would be of other rows."""
    X, Y = (torch.as_tensor(part) for part in make_data(40))
    settings, kept = Settings(curvature=1.0, cavity=True), tmp_path / "kept"
    whole = default.fit_settings(X, Y, settings).predict(X)
    with monkeypatch.context() as patch:
        stop_at(patch, default, "fit_svi", 2)  # of c, then of f_z
        with pytest.raises(KeyboardInterrupt):
            default.fit_settings(X, Y, settings, checkpoint=Checkpoint(kept))
    monkeypatch.setattr(default, "cavity", None)
    again = default.fit_settings(X, Y, settings, checkpoint=Checkpoint(kept))
    torch.testing.assert_close(again.predict(X), whole, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("likelihood", "many", "absent"),
    [(None, 2, 1), (None, 3, None), (Bernoulli(), 2, 1), (Propensity([0.5, 0.6, 0.7]), 2, None)],
)
def test_of_many_labels_every_phase_looks_at_some(
    likelihood: Likelihood | None, many: int, absent: int | None, make_data: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, Y = (torch.as_tensor(part) for part in make_data())
    monkeypatch.setattr(default, "MANY_LABELS", many)
    monkeypatch.setattr(default, "ABSENT", 1)
    seen, inner = [], default.fit_svi
    monkeypatch.setattr(
        default, "fit_svi", lambda *data, **given: seen.append(given["objective"].absent) or inner(*data, **given)
    )
    fitted = default.fit_settings(X, Y, Settings(curvature=1.0), likelihood)
    assert seen == [absent] * 2  # without f_z, and with it
    online.take_in(fitted, X[:20], Y[:20])
    assert seen == [absent] * 3


def test_c_is_no_wider_than_few_rows_bear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 20 labels, more than twice ``WIDTH``, four rows tell four directions apart, in fits alone and together."""
    monkeypatch.setattr(default, "WIDTH", 8)
    x, Y = torch.randn(8, 3), (torch.rand(8, 20) < 0.3).float()
    assert default.fit_settings(x, Y, Settings()).model.layers[0].outputs == 8
    alone = [default.fit_settings(x[rest], Y[rest], Settings()) for rest in (slice(4), slice(4, 8))]
    assert [posterior.model.layers[0].outputs for posterior in alone] == [4, 4]
    z = Folds(torch.stack([Y[:4], Y[4:]])).predict([x[:4], x[4:]], [x[4:], x[:4]], Settings())
    expected = torch.cat([alone[0].predict(x[4:]), alone[1].predict(x[:4])])
    torch.testing.assert_close(z, expected, rtol=1e-3, atol=1e-3)
