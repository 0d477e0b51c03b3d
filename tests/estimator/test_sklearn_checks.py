"""scikit-learn's own checks of an estimator."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

from esmc_pyro import ESMCClassifier

NOT_BINARY = "its labels are 1 and 2; ours are 0, 1, and NaN for unknown"
ONE_COLUMN = "it wants a vector, and a probability for each class, where one label is a column and has one probability"
EXPECTED = {
    "check_estimators_dtypes": NOT_BINARY,
    "check_classifier_data_not_an_array": NOT_BINARY,
    "check_fit2d_1feature": NOT_BINARY,
    "check_estimator_sparse_array": ONE_COLUMN,
    "check_estimator_sparse_matrix": ONE_COLUMN,
    "check_classifiers_train": ONE_COLUMN,
    "check_classifiers_classes": "it wants strings as classes; a label is there or not",
    "check_decision_proba_consistency": "it passes a vector of classes; labels are columns",
    "check_classifier_multioutput": "it cuts at one half; our threshold is tuned on held-out rows",
    "check_methods_subset_invariance": "float32 distances of a row to itself round differently alone and in a batch",
}


def _expected(estimator: ESMCClassifier) -> dict[str, str]:
    return EXPECTED


@parametrize_with_checks([ESMCClassifier(features="standard")], expected_failed_checks=_expected)
def test_scikit_learn_check(estimator: ESMCClassifier, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.EstimatorCheckFailedWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.timeout(1200)
def test_every_check_holds_with_the_whole_search() -> None:
    results = check_estimator(ESMCClassifier(), expected_failed_checks=EXPECTED, on_skip=None)
    assert {r["status"] for r in results} <= {"passed", "xfail", "skipped"}
