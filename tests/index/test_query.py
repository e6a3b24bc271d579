"""Queries of texts and images, and their embeddings."""
# ruff: noqa: F401, F811

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from dual_encoders import family, make_encoder
from recollect.core.errors import UserError
from recollect.index.query import Query, embed_queries


def test_queries_can_be_added_subtracted_and_weighted():
    query = Query.words("red boat") + 2 * Query.picture("a b.jpg") - 0.5 * Query.words('"sun"')
    assert [(term.words or term.picture, term.weight) for term in query.terms] == [
        ("red boat", 1), (Path("a b.jpg"), 2), ('"sun"', -0.5),
    ]  # fmt: skip
    assert query.text is None
    assert Query.words(" ").empty
    assert not Query.picture("a.jpg").empty


@pytest.fixture
def encoder(make_encoder):
    return make_encoder("clip").double()


def test_the_embedding_is_the_weighted_sum_of_unit_embeddings(encoder, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "boat.png")
    query = Query.words("a river") + 0.7 * Query.picture(tmp_path / "boat.png") - 0.3 * Query.words("queen")
    embeddings = embed_queries(encoder, [Query.words("queen"), query, Query.words("a river")])
    plain, mixed, same = torch.from_numpy(embeddings)
    river, queen = encoder.embed_texts(["a river", "queen"])
    image = encoder.embed_images([pixels])[0]
    torch.testing.assert_close(plain, queen, atol=1e-6, rtol=0)
    torch.testing.assert_close(same, river, atol=1e-6, rtol=0)
    torch.testing.assert_close(mixed, F.normalize(river + 0.7 * image - 0.3 * queen, dim=0), atol=1e-6, rtol=0)


def test_queries_that_cancel_out_or_lack_a_picture_are_rejected(encoder, tmp_path):
    (tmp_path / "text.png").write_text("not a picture")
    for query, message in (
        (Query.words("queen") - Query.words("queen"), "cancel out"),
        (3e6 * Query.words("queen") - 1e6 * Query.words("queen") - 2e6 * Query.words("queen"), "cancel out"),
        (Query.picture(tmp_path / "gone.png"), "no such picture"),
        (Query.picture(tmp_path / "text.png"), "text.png"),
    ):
        with pytest.raises(UserError, match=message):
            embed_queries(encoder, [query])
