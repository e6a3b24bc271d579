"""REACT's retrieval of pictures for class names, compared with a slow search in float64."""

import io

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from index_rows import WIDTH, HashEncoder, make_rows
from recollect.core.errors import UserError
from recollect.core.types import Encoder
from recollect.data.sources import open_source
from recollect.index import Index
from recollect_papers.reco.by_class import ClassHit, retrieve_by_class, write_retrieved

NAMES, TEMPLATES = ("cat", "owl", "newt"), ("a photo of a {}.", "the {}.", "{}")


@pytest.fixture
def encoder():
    return HashEncoder()


@pytest.fixture
def index():
    """An index of forty pictures, some without a caption, others with several."""
    index = Index.create(width=WIDTH, model="model-a")
    rows = make_rows(40)
    rows.images = [picture(number) for number in range(40)]
    index.insert(rows)
    return index


def picture(number):
    buffer = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def expected(encoder, per_class, by, excluded=()):
    """Compare every template with every vector in loops."""
    rows = make_rows(40)
    vectors = {
        id: [(vector, number) for number, vector in enumerate(texts if by == "text" else [image])]
        for id, image, texts in zip(rows.ids, rows.image_vectors, rows.caption_vectors, strict=True)
        if len(texts) and id not in excluded
    }
    best = {}
    for number, name in enumerate(NAMES):
        for template in TEMPLATES:
            query = encoder.embed_texts([template.replace("{}", name)]).numpy()[0].astype(np.float64)
            near = sorted(
                (min((1 - vector.astype(np.float64) @ query, place) for vector, place in each), id)
                for id, each in vectors.items()
            )
            for (distance, place), id in near[:per_class]:
                best[id] = min(best.get(id, (9.0, 0, 0)), (distance, number, place))
    return [
        sorted((distance, id, place) for id, (distance, number, place) in best.items() if number == own)[:per_class]
        for own in range(len(NAMES))
    ]


@pytest.mark.parametrize("by", ["image", "text"])
@pytest.mark.parametrize(("per_class", "excluded"), [(3, ()), (12, ("row 3", "row 9")), (100, ())])
def test_each_class_gets_the_pictures_nearest_to_its_prompts_and_each_picture_one_class(
    index, encoder, by, per_class, excluded
):
    found = retrieve_by_class(index, encoder, NAMES, TEMPLATES, per_class, by, excluded)
    wanted = expected(encoder, min(per_class, 30), by, excluded)
    for name, rows in zip(NAMES, wanted, strict=True):
        own = [hit for hit in found if hit.name == name]
        assert [(hit.id, hit.caption) for hit in own] == [(id, place) for _, id, place in rows]
        assert [hit.distance for hit in own] == pytest.approx([distance for distance, *_ in rows], abs=1e-5)
    assert len({hit.id for hit in found}) == len(found)
    assert not {hit.id for hit in found} & set(excluded)
    assert [hit.name for hit in found] == sorted((hit.name for hit in found), key=NAMES.index)


class OneText(Encoder):
    """Embeds all texts alike."""

    width, fingerprint = WIDTH, "model-a"

    def embed_images(self, images):
        raise NotImplementedError

    def embed_texts(self, texts, prefix=None):
        return torch.eye(WIDTH)[:1].repeat(len(texts), 1)


def test_ties_between_classes_go_to_the_first(index):
    found = retrieve_by_class(index, OneText(), NAMES, TEMPLATES, 5)
    assert [hit.name for hit in found] == ["cat"] * 5


def test_the_written_file_is_a_caption_source(index, encoder, tmp_path):
    hits = retrieve_by_class(index, encoder, NAMES, TEMPLATES, 4, "text")
    assert write_retrieved(index, hits, tmp_path / "found.parquet") == 0
    table = pq.read_table(tmp_path / "found.parquet").to_pylist()
    assert [(row["id"], row["class_name"]) for row in table] == [(hit.id, hit.name) for hit in hits]
    assert [row["distance"] for row in table] == pytest.approx([hit.distance for hit in hits], abs=1e-6)
    source = open_source(str(tmp_path / "found.parquet"), kind="caption")
    for place, found in enumerate(index.pictures([hit.id for hit in hits])):
        sample = source[place]
        assert sample.texts == (found.captions[hits[place].caption],)
        assert np.array_equal(np.asarray(sample.image), np.asarray(found.open()))
    assert any(hit.caption for hit in hits)


def test_unreadable_pictures_are_left_out_and_counted(tmp_path):
    index, rows = Index.create(width=WIDTH, model="model-a"), make_rows(4, captions=1)
    rows.images = [b"no picture", None, picture(2), picture(3)]
    index.insert(rows)
    hits = [ClassHit(f"row {number}", "cat", 0.5) for number in range(4)]
    assert write_retrieved(index, hits, tmp_path / "found.parquet") == 2
    assert pq.read_table(tmp_path / "found.parquet").num_rows == 2
    with pytest.raises(UserError):
        write_retrieved(index, hits[:2], tmp_path / "none.parquet")
    assert not (tmp_path / "none.parquet").exists()


def test_invalid_arguments_are_rejected(index, encoder):
    empty = Index.create(width=WIDTH, model="model-a")
    empty.insert(make_rows(4, captions=0))
    for place, names, per_class in (
        (index, (), 5),
        (index, ("cat", "cat"), 5),
        (index, ("cat",), 0),
        (empty, NAMES, 5),
    ):
        with pytest.raises(UserError):
            retrieve_by_class(place, encoder, names, TEMPLATES, per_class)
