"""The contract of a memory, the same on disk and on Milvus."""

import json

import numpy as np
import pytest
import torch

from recollect.core.errors import UserError
from recollect.memory import Memory

BOTH = pytest.mark.parametrize("address", ["lance", "milvus"], indirect=True)


def brute(pairs, queries, k, modality, keep=lambda row: True):
    """Sort every row by its cosine, in double precision."""
    vectors = (pairs.image_vectors if modality == "image" else pairs.text_vectors).astype(np.float64)
    rows = [row for row in range(len(pairs)) if keep(row)]
    ids, scores = [], []
    for query in queries.astype(np.float64):
        cosines = [(float(vectors[row] @ query), row) for row in rows]
        best = sorted(cosines, reverse=True)[:k]
        ids.append([pairs.ids[row] for _, row in best])
        scores.append([score for score, _ in best])
    return ids, np.array(scores)


@pytest.mark.parametrize("modality", ["image", "text"])
def test_search_finds_what_sorting_every_row_finds(memory, pairs, modality):
    everything, queries = pairs(40), pairs(7, seed=1).image_vectors
    found = memory.search(queries, k=5, modality=modality)
    ids, scores = brute(everything, queries, 5, modality)
    assert found.ids.tolist() == ids
    np.testing.assert_allclose(found.scores, scores, atol=1e-6)
    assert found.scores.dtype == np.float32


def test_tensors_are_as_good_as_arrays(memory, pairs):
    queries = pairs(3, seed=1).image_vectors
    one, other = memory.search(queries, k=4), memory.search(torch.from_numpy(queries), k=4)
    assert one.ids.tolist() == other.ids.tolist()


def test_no_queries_find_nothing(memory):
    assert memory.search(np.empty((0, 16), dtype=np.float32), k=3).ids.shape == (0, 3)


def test_fetched_rows_are_those_that_were_added_in_the_order_asked(memory, pairs):
    everything = pairs(40)
    wanted = ["row 31", "row 2", "row 31", "row 17"]
    for id, item in zip(wanted, memory.fetch(wanted), strict=True):
        row = everything.ids.index(id)
        assert (item.id, item.caption, item.source) == (id, everything.captions[row], everything.sources[row])
        assert dict(item.metadata) == everything.metadata[row]
        assert item.image == everything.images[row]
        assert item.open().size == (8, 8)
    assert [item.image for item in memory.fetch(wanted, pictures=False)] == [None] * 4


@pytest.mark.parametrize("modality", ["image", "text"])
def test_vectors_come_back_as_they_were(memory, pairs, modality):
    everything = pairs(40)
    rows = [3, 39, 3, 0]
    vectors = memory.vectors([f"row {row}" for row in rows], modality)
    np.testing.assert_array_equal(vectors, getattr(everything, f"{modality}_vectors")[rows])


def test_what_is_added_is_found_at_once_and_what_is_deleted_never(memory, pairs):
    more = pairs(5, first=40)
    memory.add(more)
    assert len(memory) == 45
    assert memory.search(more.image_vectors, k=1).ids[:, 0].tolist() == list(more.ids)
    assert memory.delete(["row 41", "row 3"]) == 2
    assert len(memory) == 43
    found = memory.search(more.image_vectors, k=43)
    assert not {"row 41", "row 3"} & set(found.ids.ravel())
    assert memory.search(more.text_vectors[:1], k=1, modality="text").ids.tolist() == [["row 40"]]


def test_the_fingerprint_changes_with_the_rows(memory, pairs):
    before = memory.fingerprint
    assert memory.fingerprint == before
    memory.add(pairs(1, first=40))
    added = memory.fingerprint
    memory.delete(["row 40"])
    assert len({before, added, memory.fingerprint}) == 3


@BOTH
def test_a_memory_opened_again_is_the_same(memory, address, pairs):
    again = Memory.open(address)
    assert (len(again), again.width, again.model, again.fingerprint) == (40, 16, "model-a", memory.fingerprint)
    query = pairs(1, seed=2).text_vectors
    assert again.search(query, 3, "text").ids.tolist() == memory.search(query, 3, "text").ids.tolist()
    info = again.info()
    assert info.sources == {"emoji": 20, "birds": 20}
    assert info.model_name == "the model"


FILTERS = [
    ("source = 'emoji'", lambda row, meta: row % 2 == 0),
    ("id in ('row 3', 'row 4')", lambda row, meta: row in (3, 4)),
    ("caption like '%_wl'", lambda row, meta: row % 2 == 0),
    ("caption not like 'picture 1%'", lambda row, meta: not str(row).startswith("1")),
    ("year >= 2030 and domain != 'd1'", lambda row, meta: row >= 30 and row % 3 != 1),
    ("year < 2003 or (good = true and not domain in ('d0', 'd2'))", lambda r, m: r < 3 or (r % 4 == 0 and r % 3 == 1)),
    ("rare = 'it''s'", lambda row, meta: row % 5 == 0),
    ("not (rare = 'it''s' or source = 'emoji')", lambda row, meta: False),
    ("rare != 'other'", lambda row, meta: row % 5 == 0),
    ("year = 2007.0", lambda row, meta: row == 7),
    ("year > -1e3 and year <= 2.004e3", lambda row, meta: row <= 4),
    ("year = '2007' or id = 'row 8'", lambda row, meta: row == 8),
]


@pytest.mark.parametrize(("where", "keep"), FILTERS, ids=[where for where, _ in FILTERS])
def test_a_filter_limits_the_search_to_what_satisfies_it(memory, pairs, where, keep):
    everything, queries = pairs(40), pairs(3, seed=3).text_vectors
    kept = [row for row in range(40) if keep(row, everything.metadata[row])]
    if not kept:
        with pytest.raises(UserError, match=r"no row satisfies"):
            memory.search(queries, k=2, where=where)
        return
    found = memory.search(queries, k=10, modality="text", where=where)
    ids, scores = brute(everything, queries, 10, "text", lambda row: row in kept)
    assert found.ids.tolist() == ids
    np.testing.assert_allclose(found.scores, scores, atol=1e-6)


def test_rows_can_be_deleted_by_filter(memory):
    assert memory.delete(where="domain = 'd0' and year < 2012") == 4
    assert len(memory) == 36
    assert set(memory.info().sources.items()) == {("emoji", 18), ("birds", 18)}


def test_near_duplicates_can_be_passed_over(memory, pairs):
    everything = pairs(40)
    found = memory.search(everything.image_vectors, k=3, max_score=0.94)
    vectors = everything.image_vectors.astype(np.float64)
    for row in range(40):
        cosines = vectors @ vectors[row]
        expected = [f"row {other}" for other in np.argsort(-cosines) if cosines[other] < 0.94][:3]
        assert found.ids[row].tolist() == expected


def test_a_row_can_be_kept_from_finding_itself(memory, pairs):
    everything = pairs(40)
    found = memory.search(everything.image_vectors, k=39, modality="text", exclude=everything.ids)
    assert all(id not in row for id, row in zip(everything.ids, found.ids.tolist(), strict=True))
    assert (found.ids != "").all()


def test_where_too_few_rows_count_the_last_places_stay_empty(memory, pairs):
    query = pairs(1).image_vectors
    found = memory.search(query, k=40, max_score=0.0)
    cosines = np.sort(pairs(40).image_vectors @ query[0])[::-1]
    left = int((cosines < 0).sum())
    assert (found.ids[0] != "").tolist() == [True] * left + [False] * (40 - left)
    np.testing.assert_allclose(found.scores[0, :left], cosines[cosines < 0], atol=1e-6)
    assert (found.scores[0, left:] == -np.inf).all()


def test_near_duplicates_are_all_found_however_many(memory, pairs):
    more = pairs(36, first=100)
    nearby = more.image_vectors * 0 + pairs(1, seed=9).image_vectors
    memory.add(type(more)(**{**vars(more), "image_vectors": nearby}))
    assert set(memory.near_duplicates(nearby[:1])) == set(more.ids)
    assert memory.near_duplicates(nearby[:1], modality="text") == []


def test_a_memory_of_other_vectors_is_refused(memory, pairs):
    with pytest.raises(UserError, match=r"vectors of the model \(model-a\), these are of another model \(model-b\)"):
        memory.add(pairs(2, first=40, model="model-b"))
    with pytest.raises(UserError, match=r"image vectors have shape \(2, 8\), but the memory's have 16 entries"):
        memory.add(pairs(2, first=40, width=8))
    with pytest.raises(UserError, match=r"embedded by the model \(model-a\), but mine is another model \(model-b\)"):
        memory.check_model("model-b", "mine")
    assert len(memory) == 40


def test_queries_of_another_width_or_norm_are_refused(memory, pairs):
    with pytest.raises(UserError, match=r"queries have shape \(2, 8\), but the memory's have 16 entries"):
        memory.search(pairs(2, width=8).image_vectors)
    with pytest.raises(UserError, match=r"not of unit norm"):
        memory.search(pairs(2).image_vectors * np.nan)


def test_an_id_that_is_there_already_is_refused_and_nothing_is_added(memory, pairs):
    with pytest.raises(UserError, match=r"5 of 10 ids are there already, first 'row 35'"):
        memory.add(pairs(10, first=35))
    assert len(memory) == 40


def test_an_id_given_twice_is_refused(memory, pairs):
    more = pairs(2, first=40)
    with pytest.raises(UserError, match=r"id 'row 40' is given twice"):
        memory.add(more.take([0, 1, 0]))


def test_an_unknown_id_is_named_and_nothing_is_deleted(memory):
    for ask in (memory.fetch, memory.delete, lambda ids: memory.vectors(ids, "text")):
        with pytest.raises(UserError, match=r"no row with id 'row 77' \(1 of 2 are not there\)"):
            ask(["row 7", "row 77"])
    assert len(memory) == 40


def test_k_larger_than_the_memory_says_how_large_it_is(memory, pairs):
    with pytest.raises(UserError, match=r"k = 41, but the memory holds 40 rows. Ask for at most 40"):
        memory.search(pairs(1).image_vectors, k=41)


@BOTH
def test_an_empty_memory_says_how_to_fill_it(address, pairs):
    memory = Memory.create(address, width=16, model="model-a")
    with pytest.raises(UserError, match=r"the memory is empty. Fill it with `recollect memory add"):
        memory.search(pairs(1).image_vectors)
    assert memory.near_duplicates(pairs(1).image_vectors) == []
    assert memory.info().sources == {}


@BOTH
def test_a_memory_is_never_made_over_another(memory, address):
    with pytest.raises(UserError, match="already exists"):
        Memory.create(address, width=16, model="model-a")
    assert len(memory) == 40


def test_a_picture_that_cannot_be_decoded_is_named_and_its_row_stays(memory, pairs):
    more = pairs(2, first=40)
    memory.add(type(more)(**{**vars(more), "images": [b"no picture", None]}))
    damaged, absent = memory.fetch(more.ids)
    with pytest.raises(UserError, match=r"row 'row 40': not a picture"):
        damaged.open()
    with pytest.raises(UserError, match=r"row 'row 41': the memory keeps no picture of it"):
        absent.open()
    assert damaged.caption == more.captions[0]


def test_a_picture_without_a_text_is_found_among_images_and_never_among_texts(memory, pairs):
    more = pairs(10, first=40)
    silent = more.text_vectors * (np.arange(10) < 3)[:, None].astype(np.float32)
    captions = [caption if row < 3 else "" for row, caption in enumerate(more.captions)]
    memory.add(type(more)(**{**vars(more), "text_vectors": silent, "captions": captions}))
    assert (len(memory), memory.texts) == (50, 43)
    assert memory.search(more.image_vectors, 1).ids[:, 0].tolist() == list(more.ids)
    among = memory.search(more.text_vectors, 43, "text")
    assert set(among.ids.ravel()) == {f"row {row}" for row in range(43)}
    assert set(memory.search(more.image_vectors, 43, with_text=True).ids.ravel()) == {f"row {row}" for row in range(43)}
    kept = memory.search(more.image_vectors[5:6], 2, with_text=True, where="year > 2038").ids[0].tolist()
    assert set(kept) <= {"row 39", "row 40", "row 41", "row 42"}
    with pytest.raises(UserError, match=r"k = 44, but 43 of its 50 rows have a text. Give its pictures captions"):
        memory.search(more.text_vectors, 44, "text")
    assert memory.near_duplicates(more.text_vectors[:1], 0.99, "text") == ["row 40"]


def test_rows_can_be_replaced_and_added_in_one_go(memory, pairs):
    before, other = pairs(40), pairs(10, first=35, seed=5)
    assert memory.upsert(other) == 5
    assert len(memory) == 45
    np.testing.assert_array_equal(memory.vectors(["row 36"], "image")[0], other.image_vectors[1])
    np.testing.assert_array_equal(memory.vectors(["row 3"], "image")[0], before.image_vectors[3])
    assert memory.search(other.text_vectors, 1, "text").ids[:, 0].tolist() == list(other.ids)
    assert set(memory.search(before.image_vectors, 45).ids.ravel()) == {f"row {row}" for row in range(45)}


def test_no_row_of_the_own_picture_is_found_whatever_its_number(memory, pairs):
    more = pairs(3, first=40)
    shared = np.repeat(more.image_vectors[:1], 3, axis=0)
    memory.add(type(more)(**{**vars(more), "ids": ["p", "p#1", "p#2"], "image_vectors": shared}))
    found = memory.search(shared, 5, exclude=["p", "p#1", "p#2"])
    assert not {"p", "p#1", "p#2"} & set(found.ids.ravel())
    assert set(memory.search(shared[:1], 3).ids[0]) == {"p", "p#1", "p#2"}


def test_columns_come_in_one_order(memory, pairs):
    everything = pairs(40)
    seen = {}
    for batch in memory.columns(["id", "digest", "text_vector", "metadata"], source="birds"):
        for place, id in enumerate(batch["id"]):
            seen[id] = (
                batch["digest"][place],
                batch["text_vector"][place].tolist(),
                json.loads(batch["metadata"][place]),
            )
    assert len(seen) == 20
    for id, (digest, vector, metadata) in seen.items():
        row = everything.ids.index(id)
        assert digest == everything.digests[row]
        assert vector == everything.text_vectors[row].tolist()
        assert metadata == everything.metadata[row]


@BOTH
def test_ids_may_hold_any_sign(memory, pairs):
    nasty = ["a\\b", "a\\nb", "a\nb", 'say "x"', "it's", "tab\t", "\\", "ü%_", "\x01", "[1]"]
    more = pairs(len(nasty), first=40)
    memory.add(type(more)(**{**vars(more), "ids": nasty}))
    assert [item.id for item in memory.fetch(nasty)] == nasty
    np.testing.assert_array_equal(memory.vectors(nasty, "image"), more.image_vectors)
    assert memory.search(more.text_vectors, 1, "text").ids[:, 0].tolist() == nasty
    with pytest.raises(UserError, match="are there already"):
        memory.add(type(more)(**{**vars(more), "ids": nasty}).take([0]))
    assert memory.delete(nasty) == len(nasty)
    assert len(memory) == 40
