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

from esmc_pyro import figures
from esmc_pyro.figures import DARK, LIGHT, Suggestion
from esmc_pyro.models import EEOE, MPU

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
