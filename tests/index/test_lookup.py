"""Lookups, against a slow reference in double precision."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from index_rows import WIDTH, make_rows, unit
from recollect.core.errors import UserError
from recollect.index import Index, Rows


def reference(rows, query, k, by, read, exclude=(), max_score=None):
    """Return negated scores, positions, ids and vectors for one query, in a loop over pictures."""
    scored = []
    for place, id in enumerate(rows.ids):
        texts = np.asarray(rows.caption_vectors[place], dtype=np.float64)
        image = rows.image_vectors[place].astype(np.float64)
        if id in exclude or ((by == "text" or read == "text") and not len(texts)):
            continue
        scores = texts @ query if by == "text" else np.array([image @ query])
        best = int(scores.argmax())
        if max_score is not None and scores[best] >= max_score:
            continue
        mean = texts.mean(axis=0) if len(texts) else np.zeros(len(query))
        text = texts[best] if by == "text" else mean / max(np.linalg.norm(mean), 1e-12)
        scored.append((-scores[best], place, id, image if read == "image" else text))
    scored.sort(key=lambda each: each[:2])
    return scored[:k]


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 30),
    k=st.integers(1, 12),
    by=st.sampled_from(["image", "text"]),
    read=st.sampled_from(["image", "text"]),
    precision=st.sampled_from(["float32", "float16"]),
    excluded=st.sampled_from(["none", "own", "some"]),
    max_score=st.sampled_from([None, 0.5]),
    seed=st.integers(0, 5),
)
def test_a_lookup_matches_the_slow_reference(count, k, by, read, precision, excluded, max_score, seed):
    index = Index.create(width=WIDTH, model="m", precision=precision)
    index.insert(make_rows(count))
    stored = make_rows(count)
    stored.image_vectors = unit(stored.image_vectors.astype(precision).astype(np.float64)).astype(np.float32)
    stored.caption_vectors = [
        unit(each.astype(precision).astype(np.float64)) if len(each) else each for each in stored.caption_vectors
    ]
    queries = unit(np.random.default_rng(seed).normal(size=(3, WIDTH)))
    own, some = [stored.ids[place % count] for place in range(3)], set(stored.ids[:2])  # of each query, of all
    exclude = {"none": None, "own": own, "some": some}[excluded]
    result = index.lookup(queries, k, by, read, exclude=exclude, max_score=max_score)
    for row, query in enumerate(queries.astype(np.float64)):
        gone = {"none": (), "own": [own[row]], "some": some}[excluded]
        expected = reference(stored, query, k, by, read, gone, max_score)
        ids = [id for id in result.ids[row] if id]
        assert ids == [each[2] for each in expected]
        assert np.allclose(result.scores[row][: len(ids)], [-each[0] for each in expected], atol=1e-6)
        assert np.isneginf(result.scores[row][len(ids) :]).all()
        if expected:
            assert np.allclose(result.vectors[row][: len(ids)], [each[3] for each in expected], atol=1e-6)
        assert not result.vectors[row][len(ids) :].any()


def test_queries_of_another_width_or_norm_are_rejected():
    index = Index.create(width=WIDTH, model="m")
    index.insert(make_rows(3))
    for wrong in (np.ones((1, 5), dtype=np.float32), np.full((1, WIDTH), 2.0), np.full((1, WIDTH), np.nan)):
        with pytest.raises(UserError):
            index.lookup(wrong.astype(np.float32), 1)


def test_near_finds_every_picture_at_or_above_a_cosine():
    index = Index.create(width=WIDTH, model="m", precision="float16")
    index.insert(make_rows(300))
    queries = index.vectors(["row 5", "row 9"])
    cosines = (index.vectors().astype(np.float64) @ queries.T.astype(np.float64)).max(axis=1)
    assert set(index.near(queries, 0.5)) == {index.ids[row] for row in np.flatnonzero(cosines >= 0.5 - 2**-21)}


def test_an_index_is_a_sequence_of_pictures(index):
    index.insert(make_rows(5))
    assert [picture.id for picture in index] == index.ids == [index[place].id for place in range(5)]
    assert [picture.id for picture in index[-2:]] == index.ids[-2:]
    assert index[-1].id == index.ids[-1]
    with pytest.raises(IndexError):
        index[5]


def test_a_hit_has_a_path_and_a_picture(photos, encoder):
    hit = Index.build(photos, encoder).search("anything", k=1)[0]
    with Image.open(hit.path) as stored:
        assert hit.image.tobytes() == stored.convert("RGB").tobytes()


def test_metadata_never_replaces_the_fields_of_a_hit():
    index = Index.create(width=WIDTH, model="model-a")
    metadata = {"score": "high", "rank": 9, "id": "x", "path": "y", "labels": 1, "year": 1999}
    index.insert(Rows(ids=["a"], image_vectors=np.eye(1, WIDTH, dtype=np.float32), metadata=[metadata]))
    (row,) = index.search(np.eye(1, WIDTH)[0]).to_pandas().to_dict("records")
    assert (row["rank"], row["score"], row["id"], row["path"], row["labels"]) == (1, pytest.approx(1), "a", "", [])
    assert row["year"] == 1999


@pytest.mark.usefixtures("unchecked")
def test_constructing_an_index_directly_suggests_open():
    with pytest.raises(TypeError, match=r"Index\.open"):
        Index("mine")
