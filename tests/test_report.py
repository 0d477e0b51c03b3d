"""The report on tiny models of every kind: what it says, that it stands alone, and what it refuses."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from scipy import sparse
from sklearn.metrics import average_precision_score, roc_auc_score

from esmc_pyro import Dataset, ESMCClassifier, figures, report, report_content, report_numbers, search
from esmc_pyro.metrics import expected_calibration_error, paper_auc
from esmc_pyro.page import both_themes
from esmc_pyro.report import write_report

QUICK = {"inference": "svi", "epochs": 2, "pseudo": 8}
HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=1>', "$\\frac", "猫 & 狗", "nul\x00\ud800"]


def make_dataset(rows=50, test=20, labels=5, seed=0, **parts):
    """Labels that follow the features, the first the most frequent."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows + test, 4)).astype(np.float32)
    scores = X @ rng.normal(size=(4, labels)) - np.linspace(0, 2, labels)
    Y = (scores > 0).astype(np.float32)
    split = {} if test == 0 else {"X_test": X[rows:], "Y_test": Y[rows:]}
    return Dataset("tiny set", X[:rows], Y[:rows], **(split | parts))


class Page(HTMLParser):
    """Elements and visible text of a page; every element is closed where it should be."""

    VOID = frozenset({"meta", "img", "source", "br", "link"})

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.words = [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture
def page_of(tmp_path, monkeypatch):
    """Fit if need be, write, read. Only the light figures are drawn, which takes half of the time."""

    def light_only(figure, *args, reader_fonts=False):
        def drawn(*args, theme):
            return figure(*args, theme=theme) if theme is figures.LIGHT else Figure()

        return both_themes(drawn, *args, reader_fonts=reader_fonts)

    monkeypatch.setattr(report_content, "both_themes", light_only)

    def make(classifier, dataset):
        if not hasattr(classifier, "posterior_"):
            classifier.fit(dataset.X_train, dataset.Y_train)
        return Page(write_report(classifier, dataset, tmp_path / "report.html").read_text(encoding="utf-8"))

    return make


@pytest.fixture(scope="module")
def dataset():
    return make_dataset(label_names=["sun", "sea", "sand", "snow", "storm"])


@pytest.fixture(scope="module")
def classifier(dataset):
    """The default, with a short search."""
    Y = pd.DataFrame(dataset.Y_train, columns=list(dataset.label_names))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "CANDIDATES", (({"B": 3.0},), ({"curvature": 1.0},)))
        return ESMCClassifier(epochs=2, pseudo=20).fit(dataset.X_train, Y)


@pytest.fixture(scope="module")
def written(classifier, dataset, tmp_path_factory):
    path = write_report(classifier, dataset, tmp_path_factory.mktemp("report") / "new folder" / "page.html")
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(written):
    return Page(written)


def test_it_says_what_was_fitted_and_what_the_held_out_rows_tried(page, classifier):
    assert "An ESMC classifier for 5 labels, looked at on 20 test rows." in page.text
    assert f"the {len(classifier.search_)} that held-out training rows compared" in page.text
    members = len(classifier.stack_.members)
    assert len([row for row in page.all("tr") if row.get("class") == "chosen"]) == members
    assert (f"the {members} whose scores are averaged" in page.text) == (members > 1)
    assert f"{classifier.search_['score'].max():.4g}" in page.text
    assert "x (4) → c (5) → z (5)" in page.text
    assert "flatters" not in page.text


def test_metrics_are_those_of_the_test_rows(page, classifier, dataset):
    scores, probabilities = classifier.decision_function(dataset.X_test), classifier.predict_proba(dataset.X_test)
    assert f"{paper_auc(dataset.Y_test, scores):.3f}" in page.text
    ece = expected_calibration_error(dataset.Y_test, probabilities)
    assert f"Expected calibration error: {ece:.3f}" in page.text
    assert re.search(r"P@1 share of first suggestions that are true (\d\.\d{3}) \d\.\d{3} – \d\.\d{3}", page.text)


def test_every_picture_has_words_and_both_themes(page):
    pictures = page.all("img")
    assert len(pictures) == len(page.all("source")) == 7
    assert all(len(picture["alt"]) > 30 for picture in pictures)
    assert all(source["media"] == "(prefers-color-scheme: dark)" for source in page.all("source"))
    assert all(source["srcset"] != picture["src"] for source, picture in zip(page.all("source"), pictures, strict=True))


def test_it_stands_alone(written, page):
    links = [value for _, attrs in page.tags for key, value in attrs.items() if key in ("src", "srcset", "href")]
    assert all(link.startswith(("data:image/svg+xml;base64,", "#")) for link in links)
    assert {link[1:] for link in links if link[0] == "#"} <= {a["id"] for _, a in page.tags if "id" in a}
    assert not re.search(r"https?://|url\(|@import|<script|<link", written)


def test_completions_are_the_classifiers_own(page, classifier, dataset):
    found = classifier.complete(dataset.X_train, dataset.Y_train, n=report_content.COMPLETIONS)
    assert "Among all 50 training rows that have a zero." in page.text
    for row, label, probability, spread in found.itertuples(index=False):
        assert f"{row} {label} {probability:.2f} ±{spread:.2f}" in page.text


def test_annotation_suggestions_are_the_classifiers_own(page, classifier, dataset):
    for row, gain, ask in classifier.suggest_annotations(dataset.X_test, report_content.QUESTIONS).itertuples(
        index=False
    ):
        assert f"{row} {gain:.3g} {', '.join(ask)}" in page.text


def test_rotation_and_sign_of_the_latent_space_are_said_to_be_arbitrary(page):
    assert "Rotation and sign are arbitrary" in page.text
    assert "coloured in turn by" in " ".join(picture["alt"] for picture in page.all("img"))


def test_same_classifier_same_page(classifier, dataset, written, tmp_path):
    again = write_report(classifier, dataset, tmp_path / "again.html").read_text(encoding="utf-8")
    assert again == written


def test_one_layer_without_test_rows(page_of):
    page = page_of(ESMCClassifier(widths=[], **QUICK), make_dataset(test=0))
    assert "The dataset has no test rows" in page.text
    assert "looked at on 50 training rows" in page.text
    assert "Nothing was searched" in page.text
    assert "there is no latent space to show" in page.text


def test_names_from_outside_are_escaped(page_of, tmp_path):
    dataset = replace(make_dataset(feature_names=list("abcd"), label_names=HOSTILE), name="<b>set</b>\u202e")
    X = pd.DataFrame(dataset.X_train, columns=list("abcd"))
    classifier = ESMCClassifier(widths=[1], **QUICK).fit(X, dataset.Y_train)
    page = page_of(classifier, dataset)
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    for raw in ("<script", "<b>", "\x00", "\u202e"):
        assert raw not in html
    assert not [picture for picture in page.all("img") if "onerror" in picture]
    for name in (*HOSTILE[:-1], "nul\ufffd\ufffd", "<b>set</b>\ufffd", "in the 1 dimension of c"):
        assert name in page.text
    # the report leaves its classifier as it was
    assert list(classifier.feature_names_in_) == list("abcd")
    assert classifier.label_names_ == ["y0", "y1", "y2", "y3", "y4"]


def test_analytic_posterior(page_of):
    page = page_of(ESMCClassifier(inference="analytic", epochs=2), make_dataset())
    assert len(page.all("img")) == 7
    assert "after each block update" in page.text


def test_paper_guide_and_test_rows_without_labels(page_of):
    dataset = make_dataset()
    dataset = replace(dataset, Y_test=np.full_like(dataset.Y_test, np.nan))
    page = page_of(ESMCClassifier(guide="paper", **QUICK), dataset)
    assert "The test rows have no known labels" in page.text
    assert "SVI, PaperGuide" in page.text


def test_preset_with_one_label(page_of):
    page = page_of(ESMCClassifier(preset="authors_b0", epochs=2), make_dataset(labels=1))
    assert "preset authors_b0, analytic" in page.text
    assert "for 1 label," in page.text
    assert "Correlations take at least two labels" in page.text
    assert "P@3" not in page.text


def test_a_thousand_labels_stay_a_light_page(page_of, tmp_path):
    page = page_of(ESMCClassifier(widths=[3], **QUICK), make_dataset(labels=1000))
    assert "for 1,000 labels" in page.text
    assert (tmp_path / "report.html").stat().st_size < 700_000  # with the dark figures, less than twice that


def test_sparse_features_unknown_labels_and_more_rows_than_are_looked_at(page_of, monkeypatch):
    monkeypatch.setattr(report_content, "SAMPLED", 8)
    monkeypatch.setattr(report_content, "POINTS", 9)
    dataset = make_dataset()
    Y = dataset.Y_train.copy()
    Y[:10] = np.nan
    Y[12, 1] = np.nan
    sparse_X = {part: sparse.csr_array(getattr(dataset, part)) for part in ("X_train", "X_test")}
    page = page_of(ESMCClassifier(**QUICK), replace(dataset, Y_train=Y, **sparse_X))
    assert "Training rows with unknown labels, by how much their labels would teach the model." in page.text
    assert "Among 8 of 11 such rows, picked at random." in page.text
    assert "Where 9 test rows lie" in page.text
    rows = [int(row) for row in re.findall(r"(\d+) [\d.e-]+ y\d, y\d, y\d", page.text)]
    assert len(rows) == 8
    assert set(rows) <= {*range(10), 12}


def test_nothing_to_complete_and_no_history(page_of):
    dataset = make_dataset()
    dataset = replace(dataset, Y_train=np.ones_like(dataset.Y_train))
    classifier = ESMCClassifier(**QUICK).fit(dataset.X_train, dataset.Y_train)
    classifier.posterior_.history = pd.DataFrame()
    page = page_of(classifier, dataset)
    assert "No training row has a zero" in page.text
    assert "carries no record of its training" in page.text


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_per_label_scores_leave_unknown_entries_out():
    rng = np.random.default_rng(1)
    Y, scores = (rng.random((40, 3)) < 0.4).astype(float), rng.normal(size=(40, 3))
    Y[:8, 0] = np.nan
    Y[:, 2] = 0
    scores = scores.round(1)  # some are tied
    table = report_numbers.per_label(Y, scores, Y, ["a", "b", "c"])
    assert table["auc"][0] == pytest.approx(roc_auc_score(Y[8:, 0], scores[8:, 0]))
    assert table["ap"][1] == pytest.approx(average_precision_score(Y[:, 1], scores[:, 1]))
    assert np.isnan(table["auc"][2])
    assert np.isnan(table["ap"][2])
    assert table["seen"].tolist() == np.nansum(Y, axis=0).tolist()


def test_reliability_bins_hold_every_known_entry_once():
    rng = np.random.default_rng(2)
    p = rng.random((200, 4))
    Y = (rng.random(p.shape) < p).astype(float)
    Y[0, 0] = np.nan
    bins = report_numbers.reliability_bins(Y, p)
    assert bins["count"].sum() == 799
    gap = (bins["count"] * (bins["probability"] - bins["share"]).abs()).sum() / 799
    assert gap == pytest.approx(expected_calibration_error(Y, p))
    assert ((bins["low"] <= bins["share"]) & (bins["share"] <= bins["high"])).all()


def test_two_directions_keep_the_distances_of_a_plane():
    rng = np.random.default_rng(3)
    plane = rng.normal(size=(30, 2))
    points, shares = report_numbers.two_directions(plane @ np.linalg.qr(rng.normal(size=(6, 2)))[0].T + 4)
    assert sum(shares) == pytest.approx(1)
    expected = np.linalg.norm(plane[:, None] - plane, axis=2)
    np.testing.assert_allclose(np.linalg.norm(points[:, None] - points, axis=2), expected, atol=1e-9)


def test_thirds_count_every_label_once_the_most_frequent_first():
    table = pd.DataFrame({"label": list("abcdefg"), "seen": [1, 9, 4, 7, 2, 3, 8], "auc": 0.5, "ap": 0.25})
    thirds = report_numbers.thirds(table)
    assert thirds["labels"].sum() == 7
    assert thirds["most"].tolist() == [9, 4, 2]


# --- files and failure ------------------------------------------------------------------------------------------------


def test_a_failed_write_leaves_the_old_page(classifier, dataset, tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("old")
    monkeypatch.setattr(report, "page_content", lambda view: {})
    monkeypatch.setattr(report, "render_page", lambda template, **content: "new")

    def fail(*names):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_report(classifier, dataset, path)
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    assert path.read_text() == "old"


def test_bad_arguments_get_a_sentence_before_any_work(classifier, dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "View", None)  # any work would fail on it
    (tmp_path / "file").write_text("")
    good = tmp_path / "report.html"
    swapped = replace(dataset, label_names=["sea", "sun", "sand", "snow", "storm"])
    unknown = replace(make_dataset(test=0), Y_train=np.full((50, 5), np.nan))
    cases = [
        ("a model", dataset, good, "classifier must be an ESMCClassifier; got str"),
        (ESMCClassifier(), dataset, good, "classifier must be fitted; got one on which fit was not called"),
        (classifier, dataset.X_train, good, "dataset must be a Dataset; got ndarray"),
        (classifier, dataset, 3, "path must be the name of a file; got int"),
        (classifier, dataset, tmp_path, "path must be the name of a file; got the folder"),
        (classifier, dataset, tmp_path / "file" / "report.html", "path must be in a folder; got"),
        (classifier, make_dataset(labels=4), good, "dataset must have the 5 labels of the classifier; got 4"),
        (
            classifier,
            Dataset("wide", np.ones((3, 7)), np.ones((3, 5))),
            good,
            "dataset must have the 4 features of the",
        ),
        (classifier, swapped, good, "got 'sea' where the classifier has 'sun', in column 0"),
        (classifier, unknown, good, "dataset must have at least one known label; got NaN everywhere"),
    ]
    for model, data, path, sentence in cases:
        with pytest.raises(ValueError, match=re.escape(sentence)) as error:
            write_report(model, data, path)
        assert "\n" not in str(error.value)
    assert not good.exists()
