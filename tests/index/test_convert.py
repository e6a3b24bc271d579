"""Memories of older versions become indexes when they are opened; nothing is lost and nothing is embedded again."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from index_rows import HashEncoder, Pictures
from recollect.index import Index
from recollect.index.convert import BEFORE

OLD = Path(__file__).with_name("old_memories.zip")
"""Two memories of `Pictures(12)` as format 2 kept them, one with all captions and one with the first of each picture:
``pictures:3`` has metadata, ``pictures:7`` was removed. Beside each what it held and found."""


@pytest.fixture
def old(tmp_path):
    """The two memories, unpacked."""
    shutil.unpack_archive(OLD, tmp_path)
    return tmp_path


def test_a_memory_becomes_an_index_of_its_pictures(old):
    held = np.load(old / "each.npz")
    encoder = HashEncoder()
    index = Index.open(old / "each", encoder)
    assert len(index) == 11
    assert len(index.removed()) == 1
    assert all(len(each.captions) == 2 for each in index.pictures(index.ids))
    assert index.ids_where("stars = 5") == index.find(["3"])
    for id, vector in zip(held["ids"].tolist(), held["images"], strict=True):
        (found,) = index.find([id.removeprefix("pictures:").split("#")[0]])
        assert np.allclose(index.vectors([found])[0], vector, atol=1e-6)
    report = index.add(Pictures(12))
    assert encoder.images == 0
    assert (len(index), report.kept_out, report.added) == (11, 1, 0)
    assert all(len(each.captions) == 2 and len(each.files) == 1 for each in index.pictures(index.ids))
    assert index.verify() == []
    assert (old / "each" / BEFORE / "pairs.lance").is_dir()


def test_a_look_up_by_one_caption_a_picture_is_the_search_of_the_memory(old):
    held = np.load(old / "first.npz")
    queries = HashEncoder().embed_texts([f"query {number}" for number in range(5)])
    names = {id: place for place, id in enumerate(held["ids"].tolist())}
    index = Index.open(old / "first")
    order = {id: place for place, id in enumerate(index.ids)}
    for by in ("image", "text"):
        found = index.lookup(queries, 6, by)
        assert np.array_equal(found.scores, held[f"{by}_scores"])
        wanted = [[names[id] for id in row] for row in held[f"{by}_ids"].tolist()]
        assert [[order[id] for id in row] for row in found.ids] == wanted
