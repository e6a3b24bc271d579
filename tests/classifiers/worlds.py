"""Small synthetic support sets."""

import inspect

import numpy as np

from recollect import classifiers

CLASSIFIERS = [
    name
    for name in classifiers.__all__
    if inspect.isclass(getattr(classifiers, name))
    and issubclass(getattr(classifiers, name), classifiers.EmbeddingClassifier)
    and name != "EmbeddingClassifier"
]
"""Names of all estimators."""


def unit(matrix):
    return matrix / np.linalg.norm(matrix, axis=-1, keepdims=True)


def world(counts=(5, 5, 5, 5), width=12, queries=15, noise=1.0, seed=3):
    """Return support, labels, queries, query labels and class texts around random centers, one per entry of counts."""
    generator = np.random.default_rng(seed)
    centers = generator.normal(size=(len(counts), width))
    labels = generator.permutation(np.repeat(np.arange(len(counts)), counts))
    query_labels = generator.integers(len(counts), size=queries)

    def around(which, spread=noise):
        return unit(centers[which] + spread * generator.normal(size=(len(which), width)))

    return around(labels), labels, around(query_labels), query_labels, around(np.arange(len(counts)))
