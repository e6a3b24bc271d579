"""Queries as people write them, and what is searched for."""
# ruff: noqa: F401, F811

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dual_encoders import family, make_encoder
from recollect.core.errors import UserError
from recollect.index.query import Query, Term, embed_queries


def terms(text):
    return [(term.words if term.picture is None else term.picture, term.weight) for term in Query.parse(text).terms]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("a red boat", [("a red boat", 1)]),
        ("rock - paper + 3*scissors", [("rock - paper + 3*scissors", 1)]),  # no quotes: words as they are
        ('"red boat" + harbour.jpg - "sunset"', [("red boat", 1), (Path("harbour.jpg"), 1), ("sunset", -1)]),
        ('-"sunset"', [("sunset", -1)]),
        ('2*"a"-.5 * "b"', [("a", 2), ("b", -0.5)]),
        ('1e-2*"a" + "b"', [("a", 0.01), ("b", 1)]),
        ('image:"my harbour.jpg"', [(Path("my harbour.jpg"), 1)]),
        ("image:harbour.jpg", [(Path("harbour.jpg"), 1)]),
        ('my-harbour.jpg+"a"', None),  # the sign is part of the name, so no sign stands between the two
        (r'"say \"hi\" \\ there"', [(r'say "hi" \ there', 1)]),
        ('"a\nb" + "- c"', [("a\nb", 1), ("- c", 1)]),
        ('"a" "b"', None),
        ('"a" +', None),
        ('"a" + "b', None),
        ('0*"a"', None),
        ('9e999*"a"', None),
    ],
)
def test_a_query_is_words_or_a_sum(text, read):
    if read is None:
        with pytest.raises(UserError):
            Query.parse(text)
    else:
        assert terms(text) == read


texts = st.text(min_size=1, max_size=12)
weights = st.floats(-4, 4, allow_nan=False).filter(lambda each: abs(each) > 1e-3)
a_term = st.one_of(
    st.builds(Term, words=texts, weight=weights),
    st.builds(lambda name, weight: Term(picture=Path(name), weight=weight), texts, weights),
)


@given(st.lists(a_term, min_size=1, max_size=4))
def test_what_is_written_is_read_again(parts):
    query = Query(tuple(parts))
    assert Query.parse(str(query)) == query


@given(st.text(max_size=20))
def test_words_stay_what_they_are_whatever_they_hold(text):
    query = Query.words(text)
    assert query.text == text
    if text.strip():
        assert Query.parse(str(query)) == query


def test_queries_are_added_and_taken_away():
    query = Query.words("red boat") + 2 * Query.picture("a b.jpg") - 0.5 * Query.words('"sun"')
    assert str(query) == r'"red boat" + 2 * image:"a b.jpg" - 0.5 * "\"sun\""'
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
    made = embed_queries(encoder, [Query.words("queen"), query, Query.words("a river")])
    plain, mixed, same = torch.from_numpy(made)
    river, queen = encoder.embed_texts(["a river", "queen"])
    image = encoder.embed_images([pixels])[0]
    torch.testing.assert_close(plain, queen, atol=1e-6, rtol=0)
    torch.testing.assert_close(same, river, atol=1e-6, rtol=0)
    torch.testing.assert_close(mixed, F.normalize(river + 0.7 * image - 0.3 * queen, dim=0), atol=1e-6, rtol=0)


def test_what_asks_for_nothing_is_refused(encoder, tmp_path):
    (tmp_path / "text.png").write_text("not a picture")
    for query, said in (
        (Query.words("queen") - Query.words("queen"), "cancel out"),
        (3e6 * Query.words("queen") - 1e6 * Query.words("queen") - 2e6 * Query.words("queen"), "cancel out"),
        (Query.picture(tmp_path / "gone.png"), "no such picture"),
        (Query.picture(tmp_path / "text.png"), "text.png"),
    ):
        with pytest.raises(UserError, match=said):
            embed_queries(encoder, [query])
