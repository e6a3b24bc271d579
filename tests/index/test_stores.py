"""The behavior of every store: RAM, Lance on disk and Milvus."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index_rows import WIDTH, make_rows, unit
from recollect.core.errors import UserError
from recollect.index import Index, Rows, parse_filter
from recollect.index.stores.base import STORES, is_index

FILTERS = (
    "source = 'emoji'",
    "id in ('row 3', 'row 4')",
    "caption like '%owl%'",
    "caption not like '%picture 1%'",
    "label = 'cat'",
    "label != 'dog'",
    "not label in ('cat', 'dog')",
    "folder = 'Norway'",
    "folder = 'Bergen' and taken > '2020'",
    "width >= 120 and width < 130",
    "height = 0",
    "year >= 2030 and domain != 'd1'",
    "year < 2003 or (good = true and not domain in ('d0', 'd2'))",
    "rare = 'it''s'",
    "not (rare = 'it''s' or source = 'emoji')",
    "rare != 'other'",
    "year = 2007.0",
    "year > -1e3 and year <= 2.004e3",
    "year = '2007' or id = 'row 8'",
    "note like '%lines%'",
    "domain like 'd_'",
)


def values_of(rows, position, name):
    """Return the values of a column for one picture."""
    file = rows.files[position][0]
    folder = rows.folder[position]
    many = {
        "id": [rows.ids[position]], "source": [file.source], "path": [file.path],
        "caption": list(rows.captions[position]), "label": list(rows.labels[position]),
        "folder": [folder, *folder.split("/")] if folder else [],
        "taken": [rows.taken[position]] if rows.taken[position] else [], "width": [rows.width[position]],
        "height": [rows.height[position]] if rows.height[position] else [],
    }  # fmt: skip
    value = rows.metadata[position].get(name)
    return many.get(name, [] if value is None else [value])


def satisfied(where, rows, position):
    """Return whether one picture matches the filter."""
    if hasattr(where, "parts"):
        return (all if where.word == "and" else any)(satisfied(part, rows, position) for part in where.parts)
    kind = type(where.value) if isinstance(where.value, bool | str) else (int, float)
    values = [
        each
        for each in values_of(rows, position, where.name)
        if isinstance(each, kind) and isinstance(each, bool) == isinstance(where.value, bool)
    ]
    pattern = re.escape(str(where.value)).replace("%", ".*").replace("_", ".")
    holds = {
        "=": lambda value: value == where.value, "<": lambda value: value < where.value,
        "<=": lambda value: value <= where.value, ">": lambda value: value > where.value,
        ">=": lambda value: value >= where.value,
        "like": lambda value: re.fullmatch(pattern, value, re.DOTALL) is not None,
    }  # fmt: skip
    if where.operator in ("!=", "not like"):
        opposite = holds["=" if where.operator == "!=" else "like"]
        return bool(values) and not any(opposite(value) for value in values)
    return any(holds[where.operator](value) for value in values)


def test_filters_match_a_predicate_on_every_store(index):
    rows = make_rows(40)
    index.insert(rows)
    for where in FILTERS:
        expected = {id for position, id in enumerate(rows.ids) if satisfied(parse_filter(where), rows, position)}
        if not expected:
            with pytest.raises(UserError):
                index.ids_where(where)
            continue
        assert set(index.ids_where(where)) == expected, where
        result = index.lookup(index.vectors(["row 1"]), 40, where=where)
        assert {id for id in result.ids[0] if id} == expected, where


def test_custom_columns_of_any_name_and_type_can_be_filtered_on_every_store(index):
    """Includes integers beyond 2^53, lists, and names of built-in columns or of columns that a store uses itself."""
    big = 12345678901234567
    values = [
        {"number": big, "width": 7, "caption": "mine", "tags": ["it's", "50%"]},
        {"number": big + 1, "folder": "mine", "count": "many", "tags": "it's", "label": ["x"]},
        {"number": -big, "taken": "2020", "entry": 3, "tags": ["a_b", "other"], "source": "mine"},
        {"number": 0.5, "width": "wide", "camera": "mine", "row": None, "tags": []},
    ]
    rows = Rows(ids=list("abcd"), image_vectors=np.eye(4, WIDTH, dtype=np.float32), metadata=values)
    index.insert(rows)
    expected = {
        f"number = {big}": "a", f"number = {big + 1}": "b", f"number != {big}": "bcd", f"number > {big}": "b",
        f"number in ({big}, {-big})": "ac", "number < 1": "cd", "width = 7": "", "width > 0": "",
        "caption like '%mine%'": "", "caption = 'mine'": "", "folder = 'mine'": "", "camera = 'mine'": "",
        "taken > '2000'": "", "label = 'x'": "", "source = 'mine'": "", "count = 'many'": "b", "entry = 3": "c",
        "tags = 'it''s'": "ab", "tags != 'it''s'": "c", "tags in ('a_b', '50%')": "ac", "tags like '%ther%'": "c",
        "tags not like '%ther%'": "ab",
    }  # fmt: skip
    for where, ids in expected.items():
        assert "".join(index.store.ids(parse_filter(where))) == ids, where
    assert index.columns()["width"] == "number"


def test_conditions_on_lists_agree_in_every_store_or_are_refused(index):
    values = [{"tags": ["b", "c"]}, {"tags": "b"}, {"tags": [1, 2.5]}, {"tags": 2}]
    index.insert(Rows(ids=list("abcd"), image_vectors=np.eye(4, WIDTH, dtype=np.float32), metadata=values))
    expected = {
        "tags < 'c'": "ab", "tags > 'b'": "a", "tags like 'c%'": "a", "tags not like 'c%'": "b", "tags = 2.5": "c",
        "tags in (1, 2)": "cd", "tags != 2": "c", "tags < 2": "c", "not (tags >= 'c')": "ab",
    }  # fmt: skip
    for where, ids in expected.items():
        if index.address.startswith("milvus"):
            for use in (
                index.ids_where,
                index.count_where,
                lambda each: index.lookup(index.vectors(["a"]), 2, where=each),
            ):
                with pytest.raises(UserError, match="tags"):
                    use(where)
        else:
            assert "".join(index.store.ids(parse_filter(where))) == ids, where
    assert index.ids_where("other < 'c' or tags = 'b'") == ["a", "b"]


def test_true_does_not_equal_one():
    index = Index.create(width=WIDTH, model="m")
    values = [{"good": 1}, {"good": True}, {"good": 1.0}]
    index.insert(Rows(ids=list("abc"), image_vectors=np.eye(3, WIDTH, dtype=np.float32), metadata=values))
    for _ in range(2):
        assert index.ids_where("good = 1") == ["a", "c"]
        assert index.ids_where("good = true") == ["b"]


def test_huge_filters_work_or_are_rejected(index):
    index.insert(make_rows(8))
    assert index.ids_where(" or ".join(["year = 2001"] * 500)) == ["row 1"]
    with pytest.raises(UserError):
        index.ids_where("not " * 50_000 + "year = 2001")


_NAMES = st.sampled_from(["source", "label", "caption", "folder", "taken", "domain", "rare", "unknown"])
_TEXTS = st.sampled_from(["emoji", "cat", "Norway", "d1", "it's", "2010-07-01T12:00:00"])
_CONDITIONS = st.one_of(
    st.builds(
        lambda name, operator, text: f"{name} {operator} '{text.replace(chr(39), chr(39) * 2)}'",
        _NAMES, st.sampled_from(["=", "!=", "<", ">=", "like", "not like"]), _TEXTS,
    ),
    st.builds(lambda name, sign, value: f"{name} {sign} {value}", st.sampled_from(["year", "width", "good"]),
              st.sampled_from(["=", "!=", "<", ">="]), st.integers(1995, 2040)),
)  # fmt: skip
_WHERE = st.recursive(
    _CONDITIONS,
    lambda inner: st.one_of(
        st.builds("({} and {})".format, inner, inner), st.builds("({} or {})".format, inner, inner),
        st.builds("not ({})".format, inner),
    ),
    max_leaves=5,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(where=_WHERE)
def test_random_filters_match_a_predicate(where):
    rows, index = make_rows(40), Index.create(width=WIDTH, model="m")
    index.insert(rows)
    expected = {id for position, id in enumerate(rows.ids) if satisfied(parse_filter(where), rows, position)}
    try:
        assert set(index.ids_where(where)) == expected
    except UserError:
        assert not expected


def assert_same(pictures, rows, places):
    for position, picture in zip(places, pictures, strict=True):
        assert picture.id == rows.ids[position]
        assert picture.captions == tuple(rows.captions[position])
        assert picture.labels == tuple(rows.labels[position])
        assert [file.path for file in picture.files] == [file.path for file in rows.files[position]]
        assert dict(picture.metadata) == dict(rows.metadata[position])
        assert (picture.width, picture.taken) == (rows.width[position], rows.taken[position])
        assert rows.images[position] in (picture._bytes(), None)


def test_inserted_rows_are_read_back_unchanged(index):
    rows = make_rows(40)
    assert index.insert(rows) == 0
    order = [31, 2, 17]
    assert_same(index.pictures([rows.ids[position] for position in order]), rows, order)
    assert np.allclose(index.vectors([rows.ids[position] for position in order]), rows.image_vectors[order], atol=1e-6)
    assert len(index) == 40
    assert index.texts == sum(len(each) > 0 for each in rows.captions)
    assert index.info().sources == {"emoji": 20, "birds": 20}
    with pytest.raises(UserError, match="unknown"):
        index.pictures(["row 1", "unknown"])


def test_a_removed_picture_keeps_its_vectors_but_is_not_found_until_it_is_restored(index):
    index.insert(make_rows(20))
    vectors = {by: index.vectors(["row 2", "row 3"], by) for by in ("image", "text")}
    index.remove(["row 1", "row 2"])
    index.remove(where="id = 'row 5'")
    for by, expected in vectors.items():
        np.testing.assert_allclose(index.vectors(["row 2", "row 3"], by), expected, atol=1e-6)
    assert index.store.ids(parse_filter("id = 'row 2'"), removed=True) == ["row 2"]
    assert index.store.ids(parse_filter("id = 'row 3'"), removed=True) == []
    removed = {"row 1", "row 2", "row 5"}
    assert {each.id for each in index.removed()} == removed
    assert not removed & set(index.ids)
    assert not removed & set(index.lookup(index.vectors(["row 3"]), 20).ids[0])
    assert not removed & set(index.ids_where("width >= 0"))
    assert len(index) == 17
    with pytest.raises(UserError):
        index.restore(["row 3"])
    assert index.restore(["row 1"]) == 1
    assert index.restore() == 2
    assert len(index) == 20


def test_user_captions_can_be_set_searched_and_deleted(index, encoder):
    index.model.use(encoder, "the model")
    index.insert(make_rows(10))
    assert index.set_captions({"row 4": "a whale"}) == 1
    (whale,) = index.ids_where("caption = 'a whale'")
    assert index.lookup(encoder.embed_texts(["a whale"]), 1, "text").ids[0, 0] == whale == "row 4"
    assert index.set_captions({"row 4": "a whale"}) == 0
    assert index.set_captions({"row 4": ""}) == 1
    assert len(index.pictures(["row 1"])[0].captions) == 1


def test_rows_may_lack_captions_or_pictures_and_an_index_may_be_empty(index):
    index.insert(Rows(image_vectors=unit(np.eye(WIDTH)[:3]), ids=["a", "b", "c"]))
    index.insert(Rows(captions=[("words",)], caption_vectors=[np.eye(WIDTH)[5:6]], ids=["d"]))
    assert index.lookup(np.eye(WIDTH, dtype=np.float32)[1:2], 4).ids[0].tolist()[0] == "b"
    assert "d" not in index.lookup(np.eye(WIDTH, dtype=np.float32)[5:6], 4).ids[0]
    assert index.lookup(np.eye(WIDTH, dtype=np.float32)[5:6], 4, "text").ids[0].tolist() == ["d", "", "", ""]
    index.store.delete(index.ids)
    assert index.lookup(np.eye(WIDTH, dtype=np.float32)[:2], 3).ids.tolist() == [[""] * 3] * 2
    assert len(index.search(np.eye(WIDTH, dtype=np.float32)[0])) == 0


def test_an_index_is_a_folder_with_a_table_or_a_url_of_a_store(tmp_path, monkeypatch):
    monkeypatch.setitem(STORES.data, "shelf", "shelves:ShelfStore")
    Index.create(tmp_path / "index", width=4, model="m")
    assert [is_index(each) for each in ("shelf://one", "milvus://host:1/one", str(tmp_path / "index"))] == [True] * 3
    assert not any(is_index(each) for each in ("https://host/one.tar", str(tmp_path), str(tmp_path / "none")))


def test_messages_about_a_milvus_address_do_not_contain_its_password():
    for address in (
        "milvus://me:secret@localhost:1/no-name",
        "milvus://me:secret@localhost:1/name",
        "milvs://me:secret@localhost",
    ):
        with pytest.raises(UserError, match="localhost") as caught:
            Index.open(address)
        assert "secret" not in str(caught.value)
