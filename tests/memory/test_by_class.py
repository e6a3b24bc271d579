"""Pairs that fit class names (REACT's retrieval), against a slow search in float64."""

import io

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from recollect.core.errors import UserError
from recollect.core.types import EncoderBase
from recollect.data.sources import open_source
from recollect.memory import Memory
from recollect.memory.by_class import ClassHit, retrieve_by_class, write_retrieved

NAMES, TEMPLATES = ("cat", "owl", "newt"), ("a photo of a {}.", "the {}.", "{}")


def expected(memory, encoder, per_class, modality, excluded=()):
    """Every template of every class against every row, one by one."""
    rows = [row for batch in memory.columns(["id", f"{modality}_vector"])
            for row in zip(batch["id"], np.asarray(batch[f"{modality}_vector"], dtype=np.float64), strict=True)
            if row[0] not in excluded]  # fmt: skip
    best = {}
    for number, name in enumerate(NAMES):
        for template in TEMPLATES:
            query = encoder.embed_texts([template.replace("{}", name)]).numpy()[0].astype(np.float64)
            near = sorted(rows, key=lambda row: -row[1] @ query)[:per_class]
            for id, vector in near:
                best[id] = min(best.get(id, (9.0, 0)), (1 - vector @ query, number))
    return [sorted((distance, id) for id, (distance, number) in best.items() if number == own)[:per_class]
            for own in range(len(NAMES))]  # fmt: skip


@pytest.mark.parametrize("modality", ["image", "text"])
@pytest.mark.parametrize(("per_class", "excluded"), [(3, ()), (12, ("row 3", "row 8")), (100, ())])
def test_each_class_gets_what_is_nearest_to_its_prompts_and_each_picture_one_class(
    on_disk, encoder, modality, per_class, excluded
):
    found = retrieve_by_class(on_disk, encoder, NAMES, TEMPLATES, per_class, modality, excluded)
    wanted = expected(on_disk, encoder, min(per_class, 40), modality, excluded)
    for name, rows in zip(NAMES, wanted, strict=True):
        own = [hit for hit in found if hit.name == name]
        assert [hit.id for hit in own] == [id for _, id in rows]
        assert [hit.distance for hit in own] == pytest.approx([distance for distance, _ in rows], abs=1e-5)
    assert len({hit.id for hit in found}) == len(found)
    assert not {hit.id for hit in found} & set(excluded)
    assert [hit.name for hit in found] == sorted((hit.name for hit in found), key=NAMES.index)


class OneText(EncoderBase):
    """Reads every text alike."""

    width, fingerprint = 16, "model-a"

    def embed_images(self, images):
        raise NotImplementedError

    def embed_texts(self, texts, prefix=None):
        return torch.eye(16)[:1].repeat(len(texts), 1)


def test_a_picture_as_near_to_several_classes_goes_to_the_first(on_disk):
    found = retrieve_by_class(on_disk, OneText(), NAMES, TEMPLATES, 5)
    assert [hit.name for hit in found] == ["cat"] * 5


def test_a_picture_with_several_captions_is_retrieved_once(pairs, encoder, tmp_path):
    memory, rows = Memory.create(tmp_path / "m", width=16, model="model-a"), pairs(6)
    rows.ids[1:3] = ["row 0#1", "row 0#2"]
    memory.add(rows)
    found = retrieve_by_class(memory, encoder, NAMES, TEMPLATES, 6)
    assert sorted(hit.id.split("#")[0] for hit in found) == ["row 0", "row 3", "row 4", "row 5"]


def test_what_is_written_is_a_source_of_captions(on_disk, encoder, tmp_path):
    hits = retrieve_by_class(on_disk, encoder, NAMES, TEMPLATES, 4)
    assert write_retrieved(on_disk, hits, tmp_path / "found.parquet") == 0
    table = pq.read_table(tmp_path / "found.parquet").to_pylist()
    assert [(row["id"], row["class_name"]) for row in table] == [(hit.id, hit.name) for hit in hits]
    assert [row["distance"] for row in table] == pytest.approx([hit.distance for hit in hits], abs=1e-6)
    source = open_source(str(tmp_path / "found.parquet"), kind="caption")
    for place, item in enumerate(on_disk.fetch([hit.id for hit in hits])):
        sample = source[place]
        assert sample.texts == (item.caption,)
        assert np.array_equal(np.asarray(sample.image), np.asarray(Image.open(io.BytesIO(item.image))))


def test_pictures_that_cannot_be_read_are_left_out_and_counted(pairs, encoder, tmp_path):
    memory, rows = Memory.create(tmp_path / "m", width=16, model="model-a"), pairs(4)
    rows.images[0], rows.images[1] = b"no picture", None
    memory.add(rows)
    hits = [ClassHit(f"row {number}", "cat", 0.5) for number in range(4)]
    assert write_retrieved(memory, hits, tmp_path / "found.parquet") == 2
    assert pq.read_table(tmp_path / "found.parquet").num_rows == 2
    with pytest.raises(UserError, match="no pair with a text and a picture"):
        write_retrieved(memory, hits[:2], tmp_path / "none.parquet")
    assert not (tmp_path / "none.parquet").exists()


@pytest.mark.parametrize(
    ("names", "per_class", "message"),
    [((), 5, "at least one"), (("cat", "cat"), 5, "each once"), (("cat",), 0, "at least 1")],
)
def test_bad_questions_are_refused(on_disk, encoder, names, per_class, message):
    with pytest.raises(UserError, match=message):
        retrieve_by_class(on_disk, encoder, names, TEMPLATES, per_class)


def test_a_memory_without_texts_is_refused(pairs, encoder, tmp_path):
    memory, rows = Memory.create(tmp_path / "m", width=16, model="model-a"), pairs(4)
    rows.captions[:] = [""] * 4
    rows.text_vectors[:] = 0
    memory.add(rows)
    with pytest.raises(UserError, match="no row has a text"):
        retrieve_by_class(memory, encoder, NAMES, TEMPLATES)
