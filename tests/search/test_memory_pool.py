"""A memory searched like any other pool: filters, captions of one's own and of a model, pictures that are gone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from recollect.core.errors import UserError
from recollect.efsa.caption_file import CaptionFile
from recollect.efsa.options import EpisodeOptions
from recollect.memory.store import Memory
from recollect.search.episodes.searcher import EpisodicSearcher
from recollect.search.memory_pool import CAPTIONS_FILE, MemoryPool
from recollect.search.searcher import Searcher

QUERIES = ["a red snowman", "large river", "the bridge right of a tree"]
OPTIONS = EpisodeOptions(k=6, rank=4, scale=15.0)


@pytest.fixture(scope="module")
def encoder(make_encoder):
    return make_encoder("clip").double()


@pytest.fixture
def memory(make_memory, encoder):
    return make_memory(encoder)


def ids(result):
    return [hit.item.id for hit in result.hits]


def test_a_memory_is_searched_like_a_source(memory, encoder, make_pool, pictures):
    from_source = Searcher(encoder, make_pool(encoder)).search(QUERIES, 10)
    from_memory = Searcher(encoder, MemoryPool(memory)).search(QUERIES, 10)
    for one, other in zip(from_source, from_memory, strict=True):
        assert [f"picture-{id}" for id in ids(one)] == ids(other)
        assert [hit.score for hit in one.hits] == pytest.approx([hit.score for hit in other.hits], abs=1e-5)
        for hit in other.hits:
            row = int(hit.item.id.removeprefix("picture-"))
            assert np.array_equal(np.asarray(hit.item.read()), pictures[row].image)
            assert (hit.item.source, hit.item.metadata) == ("odd" if row % 2 else "even", {"number": row})


def test_a_filter_leaves_what_satisfies_it(memory, encoder):
    pool = MemoryPool(memory, "source = 'odd' and number > 10")
    wanted = {f"picture-{row}" for row in range(11, 24, 2)}
    assert len(pool) == len(wanted)
    assert set(pool.ids()) == wanted
    for result in Searcher(encoder, pool).search(QUERIES, 20):  # more than there are
        assert set(ids(result)) == wanted
    with pytest.raises(UserError, match=r"no row satisfies number > 100\. `"):
        MemoryPool(memory, "number > 100")
    with pytest.raises(UserError, match="no column 'nubmer'; there are id, caption, source, number"):
        MemoryPool(memory, "nubmer > 1")
    with pytest.raises(UserError):
        MemoryPool(memory, "number >>> 100")


def test_an_image_with_a_row_for_each_caption_is_found_once(memory, encoder):
    plain = Searcher(encoder, MemoryPool(memory)).search(QUERIES, 24)
    for count in (1, 2, 3):
        for start in (0, 2, 4):
            rows = memory.backend.rows([f"picture-{start}"])
            memory.add(replace(rows, ids=[f"picture-{start}#{count}"], captions=[f"in other words {count}"]))
    pool = MemoryPool(memory)
    assert len(pool) == len(pool.ids()) == 24
    for k, page in ((3, 1), (3, 2), (24, 1)):
        for one, other in zip(plain, Searcher(encoder, pool).search(QUERIES, k, page=page), strict=True):
            assert ids(other) == ids(one)[(page - 1) * k : page * k]
    (found,) = Searcher(encoder, pool).search(QUERIES[:1], 9, where="caption = 'in other words 2'")
    assert sorted(ids(found)) == [f"picture-{start}#2" for start in (0, 2, 4)]
    memory.set_metadata("changed", {"picture-0": 1})  # lies behind its further captions now
    assert "picture-0" in MemoryPool(memory).ids()
    every = MemoryPool(memory, each_caption=True)
    assert (len(every), len(every.ids()), len(every.filtered("number = 2"))) == (33, 33, 4), "captions are searched all"


def test_a_caption_of_another_picture_is_none(memory):
    """A file keeps its name, and so its id, when another picture takes its place."""
    names = ["picture-0", "picture-1", "picture-2"]
    rows = memory.backend.rows(names)
    bare = replace(rows, captions=[""] * 3, text_vectors=np.zeros_like(rows.text_vectors), digests=["a", "b", "c"])
    memory.upsert(bare)
    file = CaptionFile(Path(memory.address) / CAPTIONS_FILE)
    file.write(dict.fromkeys(names, "a tree"), {"picture-0": "a", "picture-1": "another"})
    assert [item.caption for item in MemoryPool(memory).items(names)] == ["a tree", "", "a tree"]
    memory.upsert(replace(bare, digests=["a", "another", "c"]))
    assert [item.caption for item in MemoryPool(memory).items(names)] == ["a tree"] * 3


def test_more_than_the_memory_holds_finds_it_whole(memory, encoder):
    for result in EpisodicSearcher(encoder, MemoryPool(memory), options=OPTIONS).search(QUERIES, 100):
        assert len(set(ids(result))) == 24


def test_ones_own_captions_are_used_and_written_ones_fill_the_gaps(memory):
    assert MemoryPool(memory).has_captions()
    gap = MemoryPool(memory).items(["picture-3"])[0]
    assert not (gap.caption or "").strip()
    CaptionFile(f"{memory.address}/{CAPTIONS_FILE}").write({"picture-3": "a written one", "picture-4": "not needed"})
    own, written = MemoryPool(memory).items(["picture-4", "picture-3"])
    assert written.caption == "a written one"
    assert own.caption != "not needed"
    elsewhere = CaptionFile(f"{memory.address}/other.jsonl")
    elsewhere.write({"picture-3": "another"})
    assert MemoryPool(memory, written=elsewhere).items(["picture-3"])[0].caption == "another"


def test_a_memory_whose_files_are_gone_is_searched_without_them(memory, encoder, tmp_path):
    CaptionFile(f"{memory.address}/{CAPTIONS_FILE}").write({f"picture-{row}": f"number {row}" for row in range(24)})
    plain = Searcher(encoder, MemoryPool(memory)).search(QUERIES, 6)
    for row in range(1, 24, 2):
        (tmp_path / f"{row}.png").unlink()
    searcher = EpisodicSearcher(encoder, MemoryPool(memory), options=OPTIONS)
    for before, after in zip(plain, searcher.search(QUERIES, 6), strict=True):
        lost = [place for place, id in enumerate(ids(before)) if int(id.removeprefix("picture-")) % 2]
        assert [ids(after)[place] for place in lost] == [ids(before)[place] for place in lost]
        assert (not lost) == (not after.notes)
    assert searcher.report.images_gone > 0


def test_pictures_are_read_together_and_only_when_they_are_wanted(memory, monkeypatch):
    read = []
    fetch = Memory.fetch

    def counted(self, wanted, *, pictures=True):
        read.append((len(wanted), pictures))
        return fetch(self, wanted, pictures=pictures)

    monkeypatch.setattr(Memory, "fetch", counted)
    items = MemoryPool(memory).items([f"picture-{row}" for row in range(8)])
    assert read == [(8, False)]
    for item in items:
        item.read()
    assert read == [(8, False), (8, True)]


def test_vectors_of_a_memory_are_those_of_its_images(memory, encoder, pictures):
    vectors = MemoryPool(memory).vectors(["picture-5", "picture-2"])
    wanted = encoder.embed_images([pictures[5].image, pictures[2].image]).numpy()
    np.testing.assert_allclose(vectors, wanted, atol=1e-6)
