"""Figures draw the numbers they are given, look the same each time, and are whole files of the kind asked for."""

import base64
import io
import xml.etree.ElementTree as ElementTree

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.image import imread
from matplotlib.patches import Rectangle

from esmc_pyro import figures
from esmc_pyro.figures import DARK, LIGHT, Suggestion
from esmc_pyro.models import EEOE, MPU
from esmc_pyro.sbc import SBC

HISTORY = pd.DataFrame({"epoch": [1, 2, 3], "elbo": [-900.0, -420.5, -400.0]})


def curves(figure):
    return {line.get_label(): line.get_xydata() for line in figure.axes[0].lines}


def test_elbo_curve_draws_the_history():
    (line,) = figures.elbo_curve(HISTORY).axes[0].lines
    np.testing.assert_array_equal(line.get_xydata(), HISTORY.to_numpy())


def test_elbo_curve_of_a_single_epoch():
    assert figures.render(figures.elbo_curve(HISTORY[:1])).startswith(b"<?xml")


def test_label_probability_has_a_curve_for_each_number_of_experts_and_mpu():
    drawn = curves(figures.label_probability((1, 3, 20), 0.4))
    assert list(drawn) == ["B = 1", "B = 3", "B = 20", "MPU, c = 0.4"]
    sigma = drawn["B = 3"][:, 0]
    np.testing.assert_allclose(drawn["B = 1"][:, 1], sigma, atol=1e-12)
    np.testing.assert_allclose(drawn["B = 3"][:, 1], sigma**3 / (sigma**3 + 1 - sigma), atol=1e-12)
    np.testing.assert_allclose(drawn["MPU, c = 0.4"][:, 1], 0.6 * sigma, atol=1e-12)


def test_label_probability_is_what_the_likelihoods_say(monkeypatch):
    monkeypatch.setattr(EEOE, "prob", lambda self, z: torch.full_like(z, self.B / 100))
    monkeypatch.setattr(MPU, "prob", lambda self, z: torch.full_like(z, self.c))
    drawn = curves(figures.label_probability((7,), 0.25))
    assert set(drawn["B = 7"][:, 1]) == {0.07}
    assert set(drawn["MPU, c = 0.25"][:, 1]) == {0.25}


def test_picture_keeps_every_pixel_in_its_place():
    pixels = np.zeros((4, 6))
    pixels[1, 2], pixels[3, 5] = 1.0, 0.5
    image = imread(io.BytesIO(figures.render(figures.picture(pixels), "png")))
    assert image.shape[:2] == (24, 36)
    grey = image[3::6, 3::6, 0]
    np.testing.assert_allclose(grey, 1 - pixels, atol=0.01)


def test_suggestions_write_every_label_with_its_mark():
    figure = figures.suggestions(
        [np.zeros((3, 3)), np.ones((3, 3))],
        [["has 1"], []],
        [[Suggestion("has $2$", 0.9, True), Suggestion("has 3", 0.8, False)], []],
    )
    texts = [text.get_text() for text in figure.texts]
    assert texts == ["given", "has 1", "suggested", "✓ has $2$", "✗ has 3", "given", "suggested"]
    assert len(figure.axes) == 2
    height = figure.get_size_inches()[1]
    renderer = FigureCanvasAgg(figure).get_renderer()
    for text in figure.texts:  # nothing is cut off at the bottom
        assert 0 <= text.get_window_extent(renderer).y0 <= height * figure.dpi


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_embedded_svg_is_whole_and_the_same_each_time(theme):
    uri, again = (figures.embed(figures.label_probability(theme=theme)) for _ in range(2))
    assert uri == again
    kind, content = uri.split(",", 1)
    assert kind == "data:image/svg+xml;base64"
    root = ElementTree.fromstring(base64.b64decode(content, validate=True))
    assert root.tag.endswith("svg")


def test_themes_differ():
    assert figures.embed(figures.elbo_curve(HISTORY)) != figures.embed(figures.elbo_curve(HISTORY, theme=DARK))


def test_embedded_png_is_a_png():
    kind, content = figures.embed(figures.picture(np.eye(3)), "png").split(",", 1)
    assert kind == "data:image/png;base64"
    assert imread(io.BytesIO(base64.b64decode(content, validate=True))).shape[:2] == (18, 18)


def ranks_of(values, draws=19):
    table = pd.DataFrame({"simulation": range(len(values)), "quantity": "a", "rank": values})
    other = table.assign(quantity="b", rank=0)
    return SBC(pd.concat([table, other], ignore_index=True), draws)


def test_rank_histograms_draw_the_counts_and_the_binomial_band():
    even, narrow = ranks_of(np.arange(100) % 20), ranks_of(np.repeat([0, 19], 50))
    figure = figures.rank_histograms({"exact": even, "narrow": narrow}, ["a"])
    assert [axes.get_ylabel() for axes in figure.axes] == ["exact", "narrow"]
    assert [bar.get_height() for bar in figure.axes[0].patches if isinstance(bar, Rectangle)] == [10] * 10
    assert [bar.get_height() for bar in figure.axes[1].patches if isinstance(bar, Rectangle)] == [50] + [0] * 8 + [50]
    assert [axes.get_xlabel() for axes in figure.axes] == ["p = 1", "p < 0.001"]
    band = figure.axes[0].patches[0].get_data()
    # 99 in 100 of Binomial(100, 0.1): from 3 to 18
    assert (set(band.baseline), set(band.values)) == ({3.0}, {18.0})
    both = figures.rank_histograms({"exact": even, "narrow": narrow})
    assert [axes.get_title("left") for axes in both.axes] == ["a", "b", "", ""]
    assert figures.render(figure).startswith(b"<?xml")


def test_latent_map_draws_every_instance_once_by_its_label():
    c, label = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]), np.array([1, 0, np.nan, 1])
    figure = figures.latent_map(c, label, "has 3")
    drawn = {points.get_label(): points.get_offsets().tolist() for points in figure.axes[0].collections}
    assert drawn == {"others": [[2, 3]], "has 3": [[0, 1], [6, 7]], "unknown": [[4, 5]]}
    cloud = figures.latent_map(c, label, draws=np.stack([c, c + 1])).axes[0].collections
    assert sum(len(points.get_offsets()) for points in cloud) == 12


def test_latent_map_of_many_dimensions_shows_the_principal_axes():
    rng = np.random.default_rng(0)
    c = rng.standard_normal((50, 4)) * [0.1, 5.0, 0.1, 2.0]
    (points,) = figures.latent_map(c, np.zeros(50)).axes[0].collections
    deviation = points.get_offsets().std(0)
    assert deviation[0] > 4
    assert 1.5 < deviation[1] < 2.5
    (points,) = figures.latent_map(c[:, :1], np.zeros(50)).axes[0].collections
    np.testing.assert_allclose(points.get_offsets(), np.column_stack([c[:, 0], np.zeros(50)]))


def test_latent_map_says_what_shapes_it_needs():
    with pytest.raises(ValueError, match=r"label a number for each row; got shapes \(3, 2\) and \(2,\)"):
        figures.latent_map(np.zeros((3, 2)), np.zeros(2))
