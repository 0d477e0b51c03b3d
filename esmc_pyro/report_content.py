"""What stands on the page of ``report``: the rows it looks at, and each of its parts as plain values and figures."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from esmc_pyro import report_figures as drawn
from esmc_pyro import report_numbers as numbers
from esmc_pyro.data import Dataset
from esmc_pyro.data.matrix import stored
from esmc_pyro.estimator import ESMCClassifier
from esmc_pyro.metrics import expected_calibration_error
from esmc_pyro.page import both_themes

Array = npt.NDArray[Any]

SAMPLED = 2000  # rows of which many posterior draws are taken
POINTS = 1000  # rows that are drawn
COMPLETIONS, QUESTIONS = 15, 10  # lines of the tables for annotators
MAPPED = 25  # labels of the correlation maps
COLOURED = 4  # labels that colour the latent space


def numbered(names: Sequence[str], prefix: str) -> bool:
    """Whether the names are only counted: "y0", "y1", ..."""
    return all(name == f"{prefix}{place}" for place, name in enumerate(names))


def has_known(Y: Any) -> bool:
    """Whether any label of ``Y`` (rows x K, or None) is known."""
    # zeros of a sparse matrix are known without being stored
    return Y is not None and int(np.isnan(stored(Y)).sum()) < Y.shape[0] * Y.shape[1]


def _dense(Y: Any) -> Array:
    return (Y if isinstance(Y, np.ndarray) else Y.toarray()).astype(np.float32, copy=False)


def _some(rows: Array, count: int) -> Array:
    """``count`` of the rows at random, in order; all of them if there are no more."""
    return rows if len(rows) <= count else np.sort(np.random.default_rng(0).choice(rows, count, replace=False))


def _clean(name: str) -> str:
    """The name without characters that have no shape; they can break files, or turn the text around them."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name)


# --- what is looked at ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class View:
    """A classifier and the rows that the page is about: ``X`` (n x F), ``Y`` (n x K of 0, 1 and NaN), their scores."""

    classifier: ESMCClassifier
    dataset: Dataset
    names: list[str]
    unseen: bool  # the rows are test rows
    X: Any
    Y: Array
    Y_train: Array

    @classmethod
    def of(cls, classifier: ESMCClassifier, dataset: Dataset) -> View:
        """The test rows if they have a known label, else the training rows."""
        unseen = has_known(dataset.Y_test)
        given = classifier.label_names_ if numbered(dataset.label_names, "y") else dataset.label_names
        names = [_clean(str(name)) for name in given]
        # names were compared: without its own, the copy takes plain arrays and answers with the names of the page
        named = copy.copy(classifier)
        named.label_names_ = names
        if hasattr(named, "feature_names_in_"):
            del named.feature_names_in_
        Y_train = _dense(dataset.Y_train)
        return cls(
            named,
            dataset,
            names,
            unseen,
            dataset.X_test if unseen else dataset.X_train,
            _dense(dataset.Y_test) if unseen else Y_train,
            Y_train,
        )

    @cached_property
    def z(self) -> Array:
        """``E[z]``, n x K."""
        return np.asarray(self.classifier.decision_function(self.X), dtype=float)

    @cached_property
    def probabilities(self) -> Array:
        """``P(y = 1)``, n x K."""
        return np.asarray(self.classifier.predict_proba(self.X), dtype=float)


# --- the parts of the page --------------------------------------------------------------------------------------------


def page_content(view: View) -> dict[str, Any]:
    """Everything that ``templates/report.html`` asks for."""
    classifier = view.classifier
    summary = view.dataset.summary()
    labels = numbers.per_label(view.Y, view.z, view.Y_train, view.names)
    bins = numbers.reliability_bins(view.Y, view.probabilities)
    return {
        "name": _clean(view.dataset.name),
        "summary": summary,
        "unseen": view.unseen,
        "test_without_labels": view.dataset.n_test > 0 and not view.unseen,
        "rows": len(view.Y),
        "model": _model_facts(classifier),
        "search": _search_table(classifier),
        "members": len(classifier.stack_.members),
        "curve": _curve(classifier),
        "metrics": numbers.metric_rows(view.Y, view.z, view.probabilities, view.Y_train),
        "ece": expected_calibration_error(view.Y, view.probabilities),
        "bins": bins,
        "reliability": both_themes(drawn.reliability, bins),
        "head_and_tail": _head_and_tail(labels),
        "latent": _latent(view),
        "correlations": _correlations(view),
        "completions": _completions(view),
        "questions": _questions(view),
    }


def _model_facts(classifier: ESMCClassifier) -> list[tuple[str, str]]:
    model, posterior = classifier.model_, classifier.posterior_
    widths = " → ".join(
        ["x (" + str(model.layers[0].pseudo_instances.shape[1]) + ")"]
        + [f"{layer.site} ({layer.outputs})" for layer in model.layers]
    )
    likelihood = type(model.likelihood).__name__
    for name in inspect.signature(type(model.likelihood)).parameters:
        if name in ("B", "c", "propensity", "miss", "leak"):
            values = torch.as_tensor(getattr(model.likelihood, name)).detach()
            low, high = f"{values.min():.3g}", f"{values.max():.3g}"
            likelihood += f", {name} = {low if low == high else f'{low} to {high}'}"
    members = classifier.stack_.members
    weights = ", ".join(f"{member.weight:.2f}" for member in members)
    facts = [
        ("Fitted by", _fitted_by(classifier)),
        ("Likelihood", likelihood),
        (
            "Cut-off of predict",
            f"{classifier.threshold_:.2f}" if classifier.top_k is None else f"top {classifier.top_k}",
        ),
        *([("Members", f"{len(members)} fits with weights {weights}; of the first:")] if len(members) > 1 else []),
        ("Features", str(classifier.feature_map_)),
        ("Layers", widths),
        *([("Second layer", classifier.settings_.second_layer)] if classifier.settings_ else []),
        ("Kernels", ", ".join(type(layer.kernel).__name__ for layer in model.layers)),
        ("Pseudo-instances", ", ".join(f"{layer.pseudo_count:,}" for layer in model.layers)),
    ]
    if "seconds" in posterior.history and len(posterior.history):
        facts.append(("Time of the last fit", f"{posterior.history['seconds'].iloc[-1]:,.1f} s"))
    return facts


def _fitted_by(classifier: ESMCClassifier) -> str:
    if classifier.settings_ is not None:
        return "the default: most probable functions, Laplace spread"
    if classifier.preset is not None:
        return f"preset {classifier.preset}, analytic"
    guide = type(classifier.guide_).__name__
    return "analytic coordinate ascent" if classifier.inference == "analytic" else f"SVI, {guide}"


def _search_table(classifier: ESMCClassifier) -> dict[str, Any] | None:
    """What the held-out rows compared, as text, and which lines they chose; None where nothing was searched."""
    tried = classifier.search_
    if tried is None or tried.empty:
        return None
    rows = [
        {"cells": [_cell(record[column]) for column in tried.columns], "chosen": record["weight"] > 0}
        for record in tried.to_dict("records")
    ]
    return {"columns": [str(column) for column in tried.columns], "rows": rows}


def _cell(value: Any) -> str:
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int | float | np.number):
        return f"{value:.4g}"
    return type(value).__name__


def _minus(number: str) -> str:
    return number.replace("-", "−")


def _curve(classifier: ESMCClassifier) -> dict[str, Any] | None:
    history = classifier.posterior_.history
    if history.empty or "elbo" not in history:
        return None
    step, what = ("epoch", "log posterior density") if classifier.settings_ else ("epoch", "ELBO (nats)")
    if "block" in history:
        step = "block update"
    return {
        "images": both_themes(drawn.training_curve, history, step, what),
        "step": step,
        "what": what,
        "first": _minus(f"{history['elbo'].iloc[0]:,.0f}"),
        "last": _minus(f"{history['elbo'].iloc[-1]:,.0f}"),
        "steps": len(history),
        "interrupted": classifier.posterior_.interrupted,
        "curved": bool(classifier.settings_ and classifier.settings_.curvature),
    }


def _head_and_tail(labels: pd.DataFrame) -> dict[str, Any]:
    figures = {}
    for score, title in (("auc", "AUC of the label"), ("ap", "average precision of the label")):
        if labels[score].notna().any():
            figures[score] = both_themes(drawn.head_and_tail, labels, score, title)
    judged = labels[labels["ap"].notna()]
    return {
        "figures": figures,
        "left_out": int(labels["auc"].isna().sum()),
        "labels": len(labels),
        "thirds": numbers.thirds(judged).to_dict("records") if len(judged) >= 6 else [],
        "weakest": judged[judged["auc"].notna()].nsmallest(5, "auc").to_dict("records") if len(judged) >= 12 else [],
    }


def _latent(view: View) -> dict[str, Any] | None:
    """The last layer before ``z``; None if there is none."""
    layers = view.classifier.model_.layers
    if len(layers) < 2:
        return None
    rows = _some(np.arange(len(view.Y)), POINTS)
    c = view.classifier.posterior_.predict_layers(view.classifier.feature_map_(view.X[rows]))[-2].numpy()
    frequent = numbers.most_frequent(view.Y_train, len(view.names))
    # a label that most rows carry colours nothing
    share = numbers.label_frequency(view.Y_train)
    chosen = np.array([*frequent[share[frequent] <= 0.5], *frequent[share[frequent] > 0.5]][:COLOURED], dtype=int)
    if len(chosen) == 0:
        chosen = np.array([0])
    points, shares = numbers.two_directions(c)
    names = [view.names[k] for k in chosen]
    return {
        "images": both_themes(
            drawn.latent_space, points, shares, names, view.Y[np.ix_(rows, chosen)], reader_fonts=True
        ),
        "names": names,
        "rows": len(rows),
        "dimensions": c.shape[1],
        "site": layers[-2].site,
        "shares": shares,
    }


def _correlations(view: View) -> dict[str, Any] | None:
    """Maps of the most frequent labels, in one order; None where there is no pair of labels or of rows."""
    columns = numbers.most_frequent(view.Y_train, MAPPED)
    if len(columns) < 2 or len(view.Y) < 3:
        return None
    predicted = numbers.label_correlations(view.z[:, columns])
    given = numbers.label_correlations(view.Y[:, columns])
    order = numbers.similar_together(predicted)
    names = [view.names[k] for k in columns[order]]
    maps = {
        key: both_themes(drawn.correlation_map, values[np.ix_(order, order)], names, reader_fonts=True)
        for key, values in (("given", given), ("predicted", predicted))
    }
    upper = np.triu_indices(len(columns), 1)
    strongest = int(np.nanargmax(np.abs(predicted[upper]))) if np.isfinite(predicted[upper]).any() else None
    pair = None
    if strongest is not None:
        i, j = upper[0][strongest], upper[1][strongest]
        pair = {
            "names": (view.names[columns[i]], view.names[columns[j]]),
            "predicted": _minus(f"{predicted[i, j]:.2f}"),
        }
    return {"maps": maps, "count": len(columns), "pair": pair}


def _completions(view: View) -> dict[str, Any]:
    """Zeros of training rows that are probably missing labels."""
    labelled = np.flatnonzero((view.Y_train == 0).any(axis=1))
    rows = _some(labelled, SAMPLED)
    found: list[dict[str, Any]] = []
    if len(rows):
        Y, numbers = view.Y_train[rows], view.dataset.row_numbers()[rows]
        table = view.classifier.complete(view.dataset.X_train[rows], Y, n=COMPLETIONS)
        for row, label, probability, spread in table[["row", "label", "probability", "spread"]].itertuples(index=False):
            carried = [view.names[k] for k in np.flatnonzero(Y[row] == 1)]
            found.append(
                {
                    "row": int(numbers[row]),
                    "label": label,
                    "probability": probability,
                    "spread": spread,
                    "given": carried[:8],
                    "more": len(carried[8:]),
                }
            )
    return {"rows": found, "looked_at": len(rows), "all": len(labelled)}


def _questions(view: View) -> dict[str, Any]:
    """Rows worth labelling: training rows with unknown labels, else the rows of the page as if theirs were unknown."""
    unknown = np.flatnonzero(np.isnan(view.Y_train).any(axis=1))
    X, part = (view.dataset.X_train, "training") if len(unknown) else (view.X, "test" if view.unseen else "training")
    pool = unknown if len(unknown) else np.arange(len(view.Y))
    rows, numbers = _some(pool, SAMPLED), view.dataset.row_numbers(test=part == "test")
    asked = view.classifier.suggest_annotations(X[rows], QUESTIONS).to_dict("records")
    return {
        "rows": [record | {"row": int(numbers[rows[record["row"]]])} for record in asked],
        "part": part,
        "unknown": len(unknown) > 0,
        "looked_at": len(rows),
        "all": len(pool),
    }
