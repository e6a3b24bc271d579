"""Recall in both directions, against a loop over the whole matrix."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from recollect.core.errors import UserError
from recollect.core.types import Encoder, Sample
from recollect.efsa.options import EpisodeOptions
from recollect.evaluation.pools import held_out
from recollect.evaluation.retrieval import (
    MISSED,
    Comparison,
    QueryGroups,
    compare_methods,
    first_match,
    query_indices,
    recall_rows,
    retrieval,
)
from recollect.evaluation.tasks.retrieval import RetrievalTask, merged_tasks
from recollect.index import Hit, Hits, Picture
from recollect.models import build_model
from recollect.testing import SampleList
from recollect_papers.efsa.cost import measured
from recollect_papers.efsa.methods import MethodOptions, search_methods
from recollect_papers.efsa.options import TuningOptions
from recollect_papers.efsa.rewording import corrupted_captions


class Fixed(Encoder):
    """An encoder with fixed embeddings."""

    width = 6
    fingerprint = "fixed"

    def __init__(self, images, texts):
        self.images, self.texts = images, texts

    def embed_images(self, images):
        return self.images[[int(image[0]) for image in images]]

    def embed_texts(self, texts, prefix=None):
        return self.texts[[int(text) for text in texts]]


@pytest.fixture
def problem():
    random = torch.Generator().manual_seed(0)
    images, texts = (torch.nn.functional.normalize(torch.randn(n, 6, generator=random), dim=1) for n in (30, 20))
    rows = [Sample(np.array([n], dtype=np.float32), (), 0, "pool", "caption", str(n)) for n in range(30)]
    matches = tuple((index, index + 20) if index < 10 else (index,) for index in range(20))
    domains = tuple("a" if index % 2 else "b" for index in range(30))
    ambiguous = tuple(index in (3, 23, 12) for index in range(30))
    task = RetrievalTask("pool", SampleList("pool", rows), tuple(map(str, range(20))), matches, domains, ambiguous)
    return Fixed(images, texts), task


def test_pictures_that_are_stored_twice_are_reported(problem, capsys):
    encoder, task = problem
    retrieval(encoder, task)
    assert "like another" not in capsys.readouterr().err
    encoder.images[4] = encoder.images[20]
    retrieval(encoder, task)
    assert "2 of 30" in capsys.readouterr().err


def recall_by_loop(encoder, task, k, domain):
    """Compute recall from text to image and from image to text in a loop over queries."""
    scores = encoder.texts.double() @ encoder.images.double().T
    forward, backward = [], []
    for text, images in enumerate(task.matches):
        if all(task.ambiguous[image] for image in images) or domain not in ("all", task.domains[images[0]]):
            continue
        forward.append(any(image in scores[text].topk(k).indices for image in images))
    for image in range(30):
        right = [text for text, images in enumerate(task.matches) if image in images]
        if task.ambiguous[image] or not right or domain not in ("all", task.domains[image]):
            continue
        backward.append(any(text in scores[:, image].topk(k).indices for text in right))
    return 100 * np.mean(forward), 100 * np.mean(backward)


def plain_groups(domains):
    """Groups in which every entry is a query for a different picture of one source."""
    number = len(domains)
    return QueryGroups(np.ones(number, dtype=bool), domains, np.zeros(number, dtype=np.int64), np.arange(number))


@pytest.mark.parametrize("k", [1, 5, 10])
@pytest.mark.parametrize("domain", ["all", "a", "b"])
def test_recall_matches_a_loop(problem, k, domain):
    encoder, task = problem
    rows = retrieval(encoder, task, model="fixed").rows
    values = {row["direction"]: row["value"] for row in rows if row["k"] == k and row["domain"] == domain}
    forward, backward = recall_by_loop(encoder, task, k, domain)
    assert values == {"text to image": pytest.approx(forward), "image to text": pytest.approx(backward)}


def test_a_source_is_one_domain_if_most_names_occur_in_several_styles(problem):
    """Otherwise each name counts for the style of its first image."""
    encoder, task = problem
    for styled, expected in (
        (12, {"pool": 20, "all": 20}),  # most names are in both styles
        (1, {"a": 10, "b": 10, "all": 20}),  # one name is
    ):
        matches = (*((number, number + 1) for number in range(styled)), *task.matches[styled:])
        other = replace(task, matches=matches, ambiguous=(False,) * 30)
        rows = retrieval(encoder, other, model="fixed").rows
        queries = {row["domain"]: row["queries"] for row in rows if row["k"] == 1 and row.get("queries")
                   and row["direction"] == "text to image"}  # fmt: skip
        assert queries == expected


def test_queries_are_sampled_separately_per_domain():
    """Two domains of twenty images with one text each."""
    pool, places = SampleList.of_pictures("pool", 40), range(40)
    matches, domains = tuple((place,) for place in places), ("a",) * 20 + ("b",) * 20
    task = RetrievalTask("pool", pool, tuple(map(str, places)), matches, domains, (False,) * 40)
    queries = query_indices(task, None, 5)
    first, second = [row for row in queries if row < 20], [row - 20 for row in queries if row >= 20]
    assert (len(first), len(second)) == (5, 5)
    assert first != second
    assert query_indices(task, None, 5) == queries


def test_a_source_counts_once_in_the_mean_of_domains_whatever_its_styles():
    domains = np.array(["noto", "twemoji", "noto", "photo"])
    groups = replace(plain_groups(domains), sources=np.array(["emoji", "emoji", "emoji", "photos"]))
    rows = recall_rows("m", "image to text", np.array([1, 9, 9, 1]), groups, (1,))
    (mean,) = [row["value"] for row in rows if row["domain"] == "mean of domains"]
    assert mean == pytest.approx((((100 + 0) / 2 + 0) / 2 + 100) / 2)


# --- several methods ----------------------------------------------------------------------------------------------

COLORS, THINGS = ("red", "green", "blue", "white"), ("tree", "car", "river", "queen", "bridge")


def scenes(name="scenes", size=24):
    """Return noise pictures with two texts each; the last four are identical."""
    samples = []
    for index in range(size):
        seed = min(index, size - 4)
        color, thing = COLORS[seed % 4], THINGS[seed // 4 % 5]
        texts = (
            f"a {color} {thing} {'left' if seed > 19 else 'right'} of a car",
            f"{thing} in {color}, number {COLORS[seed // 8]}",
        )
        pixels = np.random.default_rng(seed).integers(0, 256, (32, 32, 3), dtype=np.uint8)
        samples.append(Sample(pixels, texts, -1, name, "caption", f"scene-{index}", {"domain": name}))
    return SampleList(name, samples)


def scenes_task(name="scenes", size=24):
    source = scenes(name, size)
    owners = {}
    for index in range(size):
        for text in source.texts(index):
            owners.setdefault(text, []).append(index)
    matches = tuple(tuple(rows) for rows in owners.values())
    domains = tuple(name if index % 3 else f"{name} again" for index in range(size))
    return RetrievalTask(name, source, tuple(owners), matches, domains, (False,) * size)


@pytest.fixture(scope="module")
def encoder():
    source = scenes()
    return build_model("tiny", texts=[text for index in range(24) for text in source.texts(index)]).eval()


OPTIONS = MethodOptions(EpisodeOptions(k=8, rank=4, scale=15.0), TuningOptions(epochs=1))


def recalls(result, method, direction="text to image"):
    return {
        (row["domain"], row["k"]): row["value"]
        for row in result.rows
        if row["method"] == method and row["metric"] == "recall" and row["direction"] == direction
    }


def test_zero_shot_by_search_matches_zero_shot_by_ranks(encoder):
    """This includes ties: four images are identical, as are their texts."""
    task = scenes_task()
    streamed = retrieval(encoder, task, model="tiny")
    searched = compare_methods(encoder, task, None, Comparison(("zero-shot",)), model="tiny")
    again = compare_methods(encoder, task, None, Comparison(("zero-shot",)), model="tiny")
    assert again.file_name == searched.file_name  # measured costs are not part of the identity
    for direction in ("text to image", "image to text"):
        assert recalls(searched, "zero-shot", direction) == recalls(streamed, "zero-shot", direction)


def test_one_table_has_every_method_with_its_cost(encoder):
    task = scenes_task()
    methods = search_methods(OPTIONS, teacher=encoder)
    comparison = Comparison(tuple(methods), OPTIONS.episode, queries=2, known=methods, measure=measured)
    result = compare_methods(encoder, task, corrupted_captions(task.images), comparison, model="tiny", seed=3)
    assert result.settings["queries"] == 4  # two per domain
    cost = {(row["method"], row["metric"]): row["value"] for row in result.rows if row["metric"] != "recall"}
    for name in methods:
        assert set(recalls(result, name)) == set(recalls(result, "zero-shot"))
        assert cost[name, "seconds per query"] > 0
    forward = [row for row in result.rows if row.get("direction") == "text to image" and "low" in row]
    assert {row["queries"] for row in forward} <= {2, 4}
    both_ways = {row["method"] for row in result.rows if row.get("direction") == "image to text"}
    assert both_ways == {"zero-shot", "fine-tuning"}
    assert cost["zero-shot", "backward_products per query"] == 0
    assert cost["episode-full", "backward_products per query"] > cost["episode", "backward_products per query"] > 0
    gains = [row for row in result.rows if "gain" in row]
    assert {row["method"] for row in gains} == set(methods) - {"zero-shot"}
    for row in gains:
        before = recalls(result, "zero-shot", row["direction"])[row["domain"], row["k"]]
        assert row["gain"] == pytest.approx(row["value"] - before)
        assert row["gain_low"] <= row["gain"] <= row["gain_high"]


@pytest.mark.parametrize("method", ["normalized", "text-to-text", "episode"])
def test_methods_that_learn_from_captions_are_not_measured_without_any(encoder, method):
    with pytest.raises(UserError, match="no captions to learn from"):
        compare_methods(encoder, scenes_task(), None, Comparison(("zero-shot", method)), model="tiny")


def test_a_held_out_caption_is_not_a_query(encoder):
    task = scenes_task()
    captions = held_out(task.images)
    result = compare_methods(encoder, task, captions, Comparison(("zero-shot",)), model="tiny")
    assert captions.captions[0] == task.images.texts(0)[1]
    first = tuple(dict.fromkeys(task.images.texts(index)[0] for index in range(24)))
    assert result.settings["queries"] == len(first)
    matches = tuple(tuple(row for row in range(24) if task.images.texts(row)[0] == text) for text in first)
    alone = replace(task, texts=first, matches=matches)
    for direction in ("text to image", "image to text"):  # nor is it a target of image queries
        expected = recalls(retrieval(encoder, alone, model="tiny"), "zero-shot", direction)
        assert recalls(result, "zero-shot", direction) == expected


def test_a_merged_pool_keeps_every_match():
    first, second = scenes_task("first", 24), scenes_task("second", 20)
    pool = merged_tasks([first, second])
    assert len(pool.images) == 44
    assert pool.images[30].id == "second:scene-6"
    for text, rows in zip(pool.texts, pool.matches, strict=True):
        expected = {row for row in range(24) if text in first.images.texts(row)}
        expected |= {24 + row for row in range(20) if text in second.images.texts(row)}
        assert set(rows) == expected
    assert pool.domains == first.domains + second.domains


@pytest.mark.parametrize(
    ("scores", "true", "rank"),
    [
        ([0.9, 0.8, 0.7], {"a"}, 1),
        ([0.9, 0.9, 0.7], {"a"}, 2),
        ([0.9, 0.9, 0.9], {"a", "b"}, 2),
        ([0.9, 0.8, 0.8], {"b"}, 3),
        ([0.9, 0.8, 0.7], {"z"}, MISSED),
        ([0.5, 0.5, 0.5], {"c"}, 3),
    ],
)
def test_wrong_results_rank_before_true_ones_of_equal_score(scores, true, rank):
    hits = Hits([Hit(Picture(id), score) for id, score in zip("abc", scores, strict=True)], "q")
    assert first_match(hits, true) == rank


def test_other_pictures_texts_or_depths_change_the_file_name(problem):
    encoder, task = problem
    other = Fixed(encoder.images, encoder.texts)
    other.fingerprint = "other weights"
    results = [
        retrieval(encoder, task, model="m"),
        retrieval(other, task, model="m"),
        retrieval(encoder, task, model="m", depths=(1, 5)),
        retrieval(encoder, replace(task, texts=task.texts[::-1]), model="m"),
        retrieval(encoder, replace(task, domains=("a",) * 30), model="m"),
    ]
    assert len({result.file_name for result in results}) == len(results)
    assert retrieval(encoder, task, model="m").file_name == results[0].file_name
