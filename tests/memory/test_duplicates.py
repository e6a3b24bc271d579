"""Which pictures are there more than once: every level against a slow reference, dense groups, and bounded work."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elsewhere import CARD, card
from recollect.core.errors import UserError
from recollect.memory import Memory, duplicates, near_pairs
from recollect.memory.build.looks import bits_apart, near_looks
from recollect.memory.duplicates import LEVELS, find_duplicates
from recollect.memory.near_pairs import Bounds, DisjointSets, join_all, join_neighbourhoods

WIDTH = 16


def clustered(generator, count, width=WIDTH, spread=0.25, centres=4):
    """Unit vectors around a few centres: many cosines lie near any threshold."""
    middle = generator.normal(size=(centres, width))
    rows = middle[generator.integers(centres, size=count)] + spread * generator.normal(size=(count, width))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def slow_components(count, edges):
    """Which rows hang together, by walking."""
    near = {row: {row} for row in range(count)}
    for one, other in edges:
        near[one].add(other)
        near[other].add(one)
    found = {}
    for row in range(count):
        if row not in found:
            open_, found[row] = [row], row
            while open_:
                for each in near[open_.pop()] - found.keys():
                    found[each] = row
                    open_.append(each)
    return [found[row] for row in range(count)]


class Rows(Memory):
    """As much of a memory as duplicates are found by."""

    whole_commits = False

    def __init__(self, rows):
        self.rows, self.backend = rows, self

    def columns(self, names, **where):
        for start in range(0, len(self.rows), 7):
            some = self.rows[start : start + 7]
            yield {name: [row[name] for row in some] for name in ("id", "stamp", "digest", "look")} | {
                "has_text": [False] * len(some),
                "metadata": ["{}"] * len(some),
            }

    def matrix(self, modality):
        return [row["id"] for row in self.rows], np.stack([row["vector"] for row in self.rows])


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 300), st.integers(0, 7), st.sampled_from([1, 3, 40]))
def test_near_hashes_are_those_of_all_pairs_each_once(seed, count, bits, kinds):
    generator = np.random.default_rng(seed)
    looks = generator.integers(0, 2**63, kinds, dtype=np.uint64)[generator.integers(kinds, size=count)]
    for _ in range(6):
        looks = looks ^ (np.uint64(1) << generator.integers(0, 64, count).astype(np.uint64))
    looks = np.unique(looks)
    one, other = np.triu_indices(len(looks), 1)
    near = bits_apart(looks[one], looks[other]) <= bits
    found = [(int(a), int(b)) for some in near_looks(looks, bits) for a, b in zip(some[0], some[1], strict=True)]
    assert len(found) == len(set(found))
    assert {tuple(sorted(each)) for each in found} == set(zip(one[near].tolist(), other[near].tolist(), strict=True))
    assert not any(cut for _, _, cut in near_looks(looks, bits))
    few = [
        pair for some in near_looks(looks, bits, 50) for pair in zip(some[0].tolist(), some[1].tolist(), strict=True)
    ]
    assert set(few) <= set(found)


def test_equal_rows_are_one_group_without_a_pair_of_each(monkeypatch):
    """Twenty thousand equal pictures are two hundred million pairs; few are compared, and none is kept."""
    compared = []
    reach = Bounds.reach
    monkeypatch.setattr(
        Bounds, "reach", lambda self, one, other, least: compared.append(len(one)) or reach(self, one, other, least)
    )
    vectors = np.tile(clustered(np.random.default_rng(0), 2), (10_000, 1))  # two kinds, one after the other
    bounds, joined = Bounds(vectors, 0.94), DisjointSets(len(vectors))
    join_all(bounds, joined, 0.94)
    assert np.array_equal(joined.all(), np.arange(20_000) % 2)
    assert sum(compared) < 40 * len(vectors)


def test_a_bound_of_few_coordinates_loses_no_pair(monkeypatch):
    generator = np.random.default_rng(1)
    vectors = clustered(generator, 600, width=96, spread=0.2, centres=30)
    products = vectors.astype(np.float64) @ vectors.T.astype(np.float64)
    bounds = Bounds(1.003 * vectors, 0.8)  # of norms that are not quite one
    assert bounds.short.shape[1] < 96, "this is what is tested"
    bound = (bounds.short @ bounds.short.T).numpy()
    assert (bound >= products - 1e-5).all()
    joined = DisjointSets(len(vectors))
    join_all(bounds, joined, 0.8)
    near = products >= 0.8
    assert near.sum() > 2 * len(vectors)
    assert joined.all().tolist() == slow_components(600, np.argwhere(near).tolist())


def test_all_of_it_runs_on_a_card_too(monkeypatch):
    vectors, found = clustered(np.random.default_rng(3), 500, width=48, spread=0.05, centres=100), []
    for place in (nullcontext, card):
        with place() as device:
            monkeypatch.setattr(near_pairs, "best_device", lambda device=device: device or torch.device("cpu"))
            bounds, exact, fast = Bounds(vectors, 0.9), DisjointSets(500), DisjointSets(500)
            join_all(bounds, exact, 0.9)
            join_neighbourhoods(bounds, fast, 0.9)
            found.append([exact.all().tolist(), fast.all().tolist()])
    assert bounds.short.device == CARD
    assert found[0] == found[1]


def test_neighbourhoods_join_nothing_that_is_not_near_and_miss_little(monkeypatch):
    monkeypatch.setattr(near_pairs, "CELL", 100)
    monkeypatch.setattr(near_pairs, "MOST_IN_CELL", 150)
    generator = np.random.default_rng(2)
    vectors = clustered(generator, 2_000, width=32, spread=0.03, centres=800)
    exact, fast = (DisjointSets(2_000) for _ in range(2))
    bounds = Bounds(vectors, 0.94)
    join_all(bounds, exact, 0.94)
    assert join_neighbourhoods(bounds, fast, 0.94) >= 20
    whole, parts = exact.all(), fast.all()
    assert len(np.unique(whole)) < 900
    assert all(len(np.unique(whole[parts == root])) == 1 for root in np.unique(parts)), "no group too many"
    assert len(np.unique(parts)) < 1.1 * len(np.unique(whole))


def test_a_row_that_goes_while_a_store_without_versions_is_read_is_said():
    class Shrinking(Rows):
        address = "milvus://there"

        def matrix(self, modality):
            ids, vectors = super().matrix(modality)
            return ids[1:], vectors[1:]

    rows = [
        {"id": str(row), "vector": np.eye(4, dtype=np.float32)[row], "look": "", "stamp": "", "digest": ""}
        for row in range(4)
    ]
    with pytest.raises(UserError, match="rows were removed while it was read"):
        find_duplicates(Shrinking(rows))


def test_what_need_not_all_be_compared_says_what_was_not(tmp_path, pairs, monkeypatch):
    memory = Memory.create(tmp_path / "memory", width=WIDTH, model="model-a")
    memory.add(replace(pairs(30), looks=[f"{number:016x}" for number in range(1, 31)]))
    assert find_duplicates(memory).left_out == ()
    (said,) = find_duplicates(memory, everything=False).left_out
    assert said.startswith("similar ones were looked for within 1 neighbourhoods, and a few")
    monkeypatch.setattr(duplicates, "MOST_HASHES", 10)
    first, _ = find_duplicates(memory, everything=False).left_out
    assert first == "of pictures whose perceptual hashes are near to those of thousands, not all were compared"
    assert find_duplicates(memory).left_out == ()
    assert find_duplicates(Memory.create(tmp_path / "empty", width=4, model="m")).groups == {
        each: [] for each in LEVELS
    }
