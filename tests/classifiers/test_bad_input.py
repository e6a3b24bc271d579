import warnings

import numpy as np
import pytest
import torch

from recollect import classifiers
from recollect.classifiers.classifier import Classifier
from recollect.classifiers.teaching import ClassifierModel, Support
from recollect.core.errors import UserError

GOOD = np.eye(4)[[0, 0, 1, 1, 2, 2]]
LABELS = np.array([0, 0, 1, 1, 2, 2])
ESTIMATORS = [
    classifiers.PrototypeClassifier(),
    classifiers.TipAdapter(),
    classifiers.SoftmaxVoting(),
    classifiers.LinearProbe(),
]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda estimator: type(estimator).__name__)
class TestEveryClassifier:
    def test_rejects_a_row_of_zeros_and_reports_its_number(self, estimator):
        broken = GOOD.copy()
        broken[3] = 0
        with pytest.raises(ValueError, match="row 3"):
            estimator.fit(broken, LABELS)
        with pytest.raises(ValueError, match="row 0"):
            estimator.fit(GOOD, LABELS).predict(np.zeros((1, 4)))

    def test_normalizes_other_rows_and_warns_once(self, estimator):
        with pytest.warns(UserWarning, match="not unit-norm") as caught:
            estimator.fit(GOOD * 3, LABELS)
        assert len(caught) == 1
        with_warning = estimator.scores(GOOD)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            np.testing.assert_allclose(estimator.fit(GOOD, LABELS).scores(GOOD), with_warning, atol=1e-6)


@pytest.mark.parametrize("texts", [np.eye(4), np.eye(3), np.eye(4)[:2]])
def test_class_texts_of_the_wrong_shape_are_rejected(texts):
    with pytest.raises(ValueError):
        classifiers.TipAdapter(text_features=texts).fit(GOOD, LABELS)


def test_a_probe_on_separable_classes_has_finite_scores():
    angles = np.array([0, 0.1, 0.499, 0.501, 1.4, 1.5])  # a narrow margin, and examples far from it
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    probe = classifiers.LinearProbe(strengths=(1e9,), max_iter=5000).fit(rows, [0, 0, 0, 1, 1, 1])
    assert np.isfinite(probe.scores(rows)).all()
    assert np.isfinite(probe.temperature_)


@pytest.mark.filterwarnings("ignore:embeddings are not unit-norm")
def test_a_loaded_classifier_ignores_vector_length_and_dtype():
    support = Support(GOOD.astype(np.float32), LABELS, ("",) * 6, tuple("abcdef"))
    classifier = Classifier(tuple("abc"), {}, np.eye(3, 4, dtype=np.float32), support, ClassifierModel("", "", 100.0))
    far = np.eye(4, dtype=np.float32)[3:]
    for scale in (0.1, 1, 10):
        assert classifier.is_unknown(np.concatenate([GOOD, far]) * scale).tolist() == [False] * 6 + [True]
        assert classifier.similarity(GOOD * scale).max() == pytest.approx(1)
    assert classifier.predict(torch.from_numpy(GOOD).bfloat16()).tolist() == list("aabbcc")
    with pytest.raises(UserError):
        classifier.predict(np.zeros((1, 4)))
