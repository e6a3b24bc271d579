"""Every classifier passes scikit-learn's estimator checks."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer
from sklearn.utils.estimator_checks import parametrize_with_checks

from classifiers.worlds import CLASSIFIERS
from recollect import classifiers
from recollect.testing import check_estimator

ESTIMATORS = {name: getattr(classifiers, name)() for name in CLASSIFIERS}


pytestmark = pytest.mark.usefixtures("unchecked")  # scikit-learn sets any parameter to -1


@pytest.fixture(autouse=True)
def quiet():
    """scikit-learn's checks feed rows of any norm; the warning has its own test."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not unit-norm.*")
        yield


def expected_failures(estimator):
    return {"check_estimators_dtypes": "feeds rows of zeros, which are rejected"}


@parametrize_with_checks(list(ESTIMATORS.values()), expected_failed_checks=expected_failures)
def test_scikit_learn_accepts_the_estimator(estimator, check):
    check(estimator)


def clusters(count=60, classes=3, width=8, seed=0):
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    points = generator.normal(size=(count, width)) * 0.35 + np.eye(width)[labels]
    return points / np.linalg.norm(points, axis=1, keepdims=True), np.array(["ant", "bee", "cat"])[labels]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_classifier_passes_our_own_checks_and_accepts_tensors(name):
    check_estimator(ESTIMATORS[name])
    points, labels = clusters()
    estimator = clone(ESTIMATORS[name]).fit(points, labels)
    expected = estimator.scores(points)
    from_tensors = clone(estimator).fit(torch.from_numpy(points), labels)
    np.testing.assert_allclose(from_tensors.scores(torch.from_numpy(points)), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["PrototypeClassifier", "CrossValidatedTipAdapter", "SoftmaxVoting", "LinearProbe"])
def test_a_classifier_works_in_pipelines_and_searches(name):
    points, labels = clusters()
    pipeline = make_pipeline(Normalizer(), clone(ESTIMATORS[name]))
    assert cross_val_score(pipeline, points * 3, labels, cv=3).mean() > 0.8
