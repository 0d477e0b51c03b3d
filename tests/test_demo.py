"""The main job at a small size: what it writes, what it prints, and that nobody sees what they must not see."""

import io
import os
import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.image import imread
from rich.console import Console

from esmc_pyro import demo

METHODS = {"ESMC", "logistic regression", "nearest neighbours", "label frequency"}


class Page(HTMLParser):
    """The elements of a page, and its visible text."""

    VOID = frozenset({"meta", "img", "source", "br", "link"})

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.text = [], [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open and data.strip():
            self.text.append(data.strip())

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """Scores, folder and printed text of one small run."""
    out = tmp_path_factory.mktemp("demo") / "report"
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "PENALTIES", (0.1, 1.0))  # a regression for each of 78 labels takes its time
        scores = demo.run(out, train=300, test=100, pseudo=60, epochs=20, console=Console(file=printed, width=80))
    return scores, out, printed.getvalue()


@pytest.fixture(scope="module")
def html(result):
    return (result[1] / "index.html").read_text(encoding="utf-8")


def test_table_has_a_row_for_each_method_best_auc_first(result):
    scores, _, printed = result
    assert {score.method for score in scores} == METHODS
    aucs = [score.values["auc"] for score in scores]
    assert aucs == sorted(aucs, reverse=True)
    for score in scores:
        (line,) = [line for line in printed.splitlines() if line.strip().startswith(score.method)]
        assert re.findall(r"\d+\.\d+", line)[0] == f"{score.values['auc']:.3f}"
    for metric in demo.METRICS:
        assert metric.title in printed


def test_esmc_beats_label_frequency_by_every_metric(result):
    by_name = {score.method: score.values for score in result[0]}
    for metric in demo.METRICS:
        gain = by_name["ESMC"][metric.key] - by_name["label frequency"][metric.key]
        assert gain * (-1 if metric.smaller_is_better else 1) > 0, metric.key


def test_writes_a_whole_page_and_a_picture_and_nothing_else(result, html):
    scores, out, _ = result
    assert sorted(os.listdir(out)) == ["index.html", "suggestions.png"]
    assert imread(out / "suggestions.png").ndim == 3
    page = Page(html)
    assert page.open == []
    assert html.rstrip().endswith("</html>")
    for score in scores:
        assert score.method in [text.lower() for text in page.text] + page.text
        for metric in demo.METRICS:
            assert metric.write(score.values[metric.key]) in page.text


def test_page_needs_no_network_and_runs_no_script(html):
    page = Page(html)
    assert not re.search(r"(https?:)?//[a-z]", re.sub(r"data:[^\"]+", "", html))
    assert page.all("script") == page.all("link") == []
    sources = [attrs["src"] for attrs in page.all("img")] + [attrs["srcset"] for attrs in page.all("source")]
    assert len(sources) == 2 + 2 + 6 + 3
    assert all(source.startswith("data:image/") for source in sources)


def test_every_picture_says_what_it_shows(html):
    alts = [attrs["alt"] for attrs in Page(html).all("img")]
    assert all(len(alt) > 20 for alt in alts)
    assert sum(alt.startswith("Training picture") for alt in alts) == 6


def test_page_escapes_what_it_is_given():
    task = demo.make_task(40, 20)
    task.label_names[:] = [f"<b>{name}&" for name in task.label_names]
    posterior = demo.fit_esmc(task.X, task.given, pseudo=5, epochs=1, progress=False)
    scores = [demo.Score("<script>", "", 0.0, {metric.key: 0.5 for metric in demo.METRICS})]
    html = demo.make_page(task, posterior, scores, demo.training_examples(task, posterior, 1), 0.0)
    assert "<script>" not in html
    assert "<b>" not in html
    assert "&lt;b&gt;" in html


def test_half_of_the_training_ones_are_removed_and_no_test_label():
    task = demo.make_task(100, 50)
    assert (task.given <= task.Y).all()
    assert task.given.sum() == task.Y.sum() - round(0.5 * task.Y.sum())
    assert set(np.unique(task.Y_test)) == {0, 1}
    assert len(task.label_names) == task.Y.shape[1] == task.Y_test.shape[1]


def test_settings_are_chosen_without_the_true_or_the_test_labels(monkeypatch):
    task = demo.make_task(60, 30)
    posterior = demo.fit_esmc(task.X, task.given, pseudo=5, epochs=1, progress=False)
    seen = []

    def watch(method):
        def watched(X, Y, *rest):
            seen.append((X, Y))
            return method(X, Y, *rest)

        return watched

    monkeypatch.setattr(demo, "PENALTIES", (0.1, 1.0))
    for name in ("nearest_neighbours", "logistic_regression", "label_frequency"):
        monkeypatch.setattr(demo, name, watch(getattr(demo, name)))
    demo.compare(task, posterior, 0.0)
    given = {x.tobytes(): y for x, y in zip(task.X, task.given, strict=True)}
    assert len(seen) == 1 + len(demo.NEIGHBOURS) + 1 + 2 + 1
    for X, Y in seen:
        for x, y in zip(X, Y, strict=True):
            np.testing.assert_array_equal(y, given[x.tobytes()])


def test_choose_setting_takes_the_best_on_rows_it_did_not_fit():
    rng = np.random.default_rng(0)
    X, Y = rng.random((40, 3)), (rng.random((40, 5)) < 0.4).astype(float)
    rows = {x.tobytes(): y for x, y in zip(X, Y, strict=True)}

    def method(X_fit, Y_fit, X_new, setting):
        assert not {x.tobytes() for x in X_fit} & {x.tobytes() for x in X_new}
        truth = np.stack([rows[x.tobytes()] for x in X_new])
        return truth * setting  # a perfect order if positive, the worst if negative, none if zero

    assert demo.choose_setting(method, (-1.0, 2.0, 0.0), X, Y) == 2.0


def test_logistic_regression_scores_labels_that_never_vary():
    rng = np.random.default_rng(0)
    X = rng.random((30, 2))
    Y = np.stack([np.zeros(30), np.ones(30), X[:, 0] > 0.5], axis=1).astype(float)
    scores = demo.logistic_regression(X, Y, X, 1.0)
    assert np.isfinite(scores).all()
    assert (scores[:, 0] < scores[:, 2]).all()
    assert (scores[:, 2] < scores[:, 1]).all()


def test_examples_suggest_as_many_new_labels_as_are_missing():
    task = demo.make_task(60, 30)
    posterior = demo.fit_esmc(task.X, task.given, pseudo=10, epochs=2, progress=False)
    for example in demo.training_examples(task, posterior):
        names = {item.label for item in example.suggested}
        assert not names & set(example.given)
        assert len(names) == len(example.true) - len(example.given)
        assert [item.true for item in example.suggested] == [item.label in example.true for item in example.suggested]
        assert set(example.shows.split(", ")) <= set(example.true)
    for example in demo.unseen_examples(task, posterior):
        assert example.given is None
        assert len(example.suggested) == len(example.true)
        suitability = [item.suitability for item in example.suggested]
        assert suitability == sorted(suitability, reverse=True)


def test_recovered_counts_removed_labels_only():
    task = demo.make_task(60, 30)

    class Oracle:
        """Knows the truth."""

        def predict(self, X):
            return torch.as_tensor(task.Y)

    enough = (task.Y - task.given).sum(axis=1) >= 1
    assert demo.recovered(task, Oracle()) == pytest.approx(enough.mean())


def test_same_seed_same_scores():
    first, second = (
        demo.fit_esmc(task.X, task.given, pseudo=10, epochs=2, seed=3, progress=False).predict(task.X)
        for task in (demo.make_task(60, 30, 3), demo.make_task(60, 30, 3))
    )
    np.testing.assert_array_equal(first, second)


def test_a_fit_stopped_at_once_is_not_reported(tmp_path, monkeypatch):
    class Stopped:
        history = pd.DataFrame()

    monkeypatch.setattr(demo, "fit_esmc", lambda *args, **options: Stopped())
    with pytest.raises(KeyboardInterrupt, match="nothing to report"):
        demo.run(tmp_path / "report", train=40, test=20, console=Console(file=io.StringIO()))
    assert not (tmp_path / "report").exists()
