"""Recall both ways, against a loop over the whole matrix."""

import numpy as np
import pytest
import torch

from recollect.data.tasks import RetrievalTask
from recollect.evaluation.retrieval import bootstrap_interval, retrieval


class Fixed:
    """An encoder whose embeddings are looked up."""

    width = 6
    fingerprint = "fixed"

    def __init__(self, images, texts):
        self.images, self.texts = images, texts

    def embed_images(self, images):
        return self.images[[int(image[0]) for image in images]]

    def embed_texts(self, texts, prefix=None):
        return self.texts[[int(text) for text in texts]]


@pytest.fixture
def problem(make_source):
    random = torch.Generator().manual_seed(0)
    images, texts = (torch.nn.functional.normalize(torch.randn(n, 6, generator=random), dim=1) for n in (30, 20))
    source = make_source("pool", size=30)
    source.__class__ = type("Numbered", (type(source),), {"__getitem__": _numbered})
    matches = tuple((index, index + 20) if index < 10 else (index,) for index in range(20))
    domains = tuple("a" if index % 2 else "b" for index in range(30))
    ambiguous = tuple(index in (3, 23, 12) for index in range(30))
    task = RetrievalTask("pool", source, tuple(map(str, range(20))), matches, (1,) * 20, domains, ambiguous)
    return Fixed(images, texts), task


def _numbered(self, index):
    from recollect.core.types import Sample

    return Sample(np.array([index], dtype=np.float32), (), 0, "pool", "caption", str(index))


def by_hand(encoder, task, k, domain):
    """Text to image and image to text, one query after the other."""
    scores = encoder.texts.double() @ encoder.images.double().T
    forward, backward = [], []
    for text, found in enumerate(task.matches):
        if all(task.ambiguous[image] for image in found) or domain not in ("all", task.domains[found[0]]):
            continue
        forward.append(any(image in scores[text].topk(k).indices for image in found))
    for image in range(30):
        right = [text for text, found in enumerate(task.matches) if image in found]
        if task.ambiguous[image] or not right or domain not in ("all", task.domains[image]):
            continue
        backward.append(any(text in scores[:, image].topk(k).indices for text in right))
    return 100 * np.mean(forward), 100 * np.mean(backward)


@pytest.mark.parametrize("k", [1, 5, 10])
@pytest.mark.parametrize("domain", ["all", "a", "b"])
def test_recall_is_that_of_a_loop(problem, k, domain):
    encoder, task = problem
    rows = retrieval(encoder, task, model="fixed").rows
    values = {row["direction"]: row["value"] for row in rows if row["k"] == k and row["domain"] == domain}
    forward, backward = by_hand(encoder, task, k, domain)
    assert values == {"text to image": pytest.approx(forward), "image to text": pytest.approx(backward)}


def test_the_mean_of_domains_weighs_each_the_same(problem):
    rows = retrieval(*problem, model="fixed").rows
    for direction in ("text to image", "image to text"):
        values = {row["domain"]: row["value"] for row in rows if row["k"] == 5 and row["direction"] == direction}
        assert values["mean of domains"] == pytest.approx((values["a"] + values["b"]) / 2)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        low, high = bootstrap_interval(random.random(200) < 0.3)
        covered += low <= 0.3 <= high
    assert 0.91 < covered / 400 < 0.98
    assert bootstrap_interval(np.ones(50, dtype=bool)) == (1.0, 1.0)
