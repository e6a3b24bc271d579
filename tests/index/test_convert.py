"""Memories of older versions become indexes when they are opened; nothing is lost and nothing is embedded again."""

import numpy as np

from index_rows import HashEncoder, Pictures
from recollect.index import Index
from recollect.index.convert import BEFORE
from recollect.memory.build.building import BuildOptions, fill_memory, open_for_build
from recollect.memory.build.reading import Reader, ReadOptions


def old_memory(folder, captions="each"):
    encoder = HashEncoder()
    memory = open_for_build(folder, encoder, "the model")
    source = Pictures(12)
    fill_memory(memory, Reader(encoder, source, encoder.fingerprint, ReadOptions(captions=captions)), BuildOptions())
    memory.set_metadata("stars", {"pictures:3": 5})
    memory.delete([id for id in memory.matrix("image")[0] if id.split("#")[0] == "pictures:7"])
    return memory


def test_a_memory_becomes_an_index_of_its_pictures(tmp_path):
    memory = old_memory(tmp_path / "memory")
    old_ids, old_images = memory.matrix("image")
    encoder = HashEncoder()
    index = Index.open(tmp_path / "memory", encoder)
    assert len(index) == 11
    assert len(index.removed()) == 1
    assert all(len(each.captions) == 2 for each in index.pictures(index.ids))
    assert index.ids_where("stars = 5") == index.find(["3"])
    for id, vector in zip(old_ids, old_images, strict=True):
        (found,) = index.find([id.removeprefix("pictures:").split("#")[0]])
        assert np.allclose(index.vectors([found])[0], vector, atol=1e-6)
    report = index.add(Pictures(12))
    assert encoder.images == 0
    assert (len(index), report.kept_out, report.added) == (11, 1, 0)
    assert all(len(each.captions) == 2 and len(each.files) == 1 for each in index.pictures(index.ids))
    assert index.verify() == []
    assert (tmp_path / "memory" / BEFORE / "pairs.lance").is_dir()


def test_a_look_up_by_one_caption_a_picture_is_the_search_of_the_memory(tmp_path):
    memory = old_memory(tmp_path / "memory", "first")
    queries = HashEncoder().embed_texts([f"query {number}" for number in range(5)])
    wanted = {by: memory.search(queries, 6, by) for by in ("image", "text")}
    names = {id: place for place, id in enumerate(memory.matrix("image")[0])}
    index = Index.open(tmp_path / "memory")
    order = {id: place for place, id in enumerate(index.ids)}
    for by, hits in wanted.items():
        found = index.lookup(queries, 6, by)
        assert np.array_equal(found.scores, hits.scores)
        assert [[order[id] for id in row] for row in found.ids] == [[names[id] for id in row] for row in hits.ids]
