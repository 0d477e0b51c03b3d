"""``write_report``: one page about a fitted classifier and a dataset, for whoever has to decide whether to use it."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from esmc_pyro.data import Dataset
from esmc_pyro.estimator import ESMCClassifier
from esmc_pyro.files import write_atomic
from esmc_pyro.page import render_page
from esmc_pyro.report_content import View, has_known, numbered, page_content

__all__ = ["write_report"]


def write_report(classifier: ESMCClassifier, dataset: Dataset, path: str | PathLike[str]) -> Path:
    """Write a self-contained HTML page about ``classifier`` on ``dataset`` to ``path``, and return the path.

    The classifier should have been fitted to the dataset's training rows. Figures of merit are those of the test rows;
    without labelled test rows they are those of the training rows, and the page says so.
    """
    target = _check(classifier, dataset, path)
    view = View.of(classifier, dataset)
    return write_atomic(target, render_page("report.html", **page_content(view)))


def _check(classifier: Any, dataset: Any, path: Any) -> Path:
    """Everything that can be refused is refused before any work."""
    if not isinstance(classifier, ESMCClassifier):
        raise ValueError(f"classifier must be an ESMCClassifier; got {type(classifier).__name__}")
    if not hasattr(classifier, "posterior_"):
        raise ValueError("classifier must be fitted; got one on which fit was not called")
    if not isinstance(dataset, Dataset):
        raise ValueError(f"dataset must be a Dataset; got {type(dataset).__name__}")
    if not isinstance(path, str | PathLike):
        raise ValueError(f"path must be the name of a file; got {type(path).__name__}")
    target = Path(path)
    if target.is_dir():
        raise ValueError(f"path must be the name of a file; got the folder {str(target)!r}")
    blocked = next((parent for parent in target.parents if parent.exists() and not parent.is_dir()), None)
    if blocked is not None:
        raise ValueError(f"path must be in a folder; got {str(target)!r}, and {str(blocked)!r} is a file")
    for what, fitted, given in (
        ("features", classifier.n_features_in_, dataset.n_features),
        ("labels", classifier.n_labels_, dataset.n_labels),
    ):
        if fitted != given:
            raise ValueError(f"dataset must have the {fitted} {what} of the classifier; got {given}")
    _same_names("labels", classifier.label_names_, dataset.label_names, "y")
    if hasattr(classifier, "feature_names_in_"):
        _same_names("features", classifier.feature_names_in_, dataset.feature_names, "x")
    if not any(has_known(Y) for Y in (dataset.Y_test, dataset.Y_train)):
        raise ValueError("dataset must have at least one known label; got NaN everywhere")
    return target


def _same_names(what: str, fitted: Sequence[str], given: Sequence[str], prefix: str) -> None:
    """Names that were only counted agree with all others."""
    if numbered(fitted, prefix) or numbered(given, prefix):
        return
    for place, (ours, theirs) in enumerate(zip(fitted, given, strict=True)):
        if str(ours) != theirs:
            raise ValueError(
                f"dataset must have the {what} of the classifier in their order; "
                f"got {theirs!r} where the classifier has {str(ours)!r}, in column {place}"
            )
