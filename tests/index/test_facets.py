"""Facets and sort orders of an index, against a loop over its pictures."""

from collections import Counter
from functools import partial

import numpy as np
import pytest

from recollect.core.errors import UserError
from recollect.index import File, Index, Rows
from recollect.index.facets import aspect_ratios, sorted_ids

FOLDERS = ["", "Norway", "Norway/Bergen", "Norway/Bergen/day 1", "Norwegen's #1 100%", "Norway/Oslo"]


@pytest.fixture(scope="module", params=["ram", "disk"])
def index(request, tmp_path_factory):
    """Two hundred pictures in folders with special characters, some without a date, some in two sources."""
    random = np.random.default_rng(0)
    vectors = random.normal(size=(200, 4)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    ids = [f"p{number}" for number in random.permutation(200)]
    pick = lambda values: [values[each] for each in random.integers(len(values), size=200)]  # noqa: E731
    rows = Rows(
        image_vectors=vectors,
        ids=ids,
        folder=pick(FOLDERS),
        taken=pick(["", "2021-07-03T10:00:00", "2021-07-04T10:00:00", "2022-01-01T00:00:00", "1999-12-31T23:59:59"]),
        camera=pick(["", "Canon", "Nikon D1"]),
        labels=pick([(), ("boat",), ("boat", "sea")]),
        width=pick([0, 100, 300]),
        height=pick([0, 100, 200]),
        files=[tuple(File(each, f"x/{id} ä.jpg") for each in sources)
               for id, sources in zip(ids, pick([("one",), ("one", "one"), ("one", "two"), ()]), strict=True)],
    )  # fmt: skip
    address = None if request.param == "ram" else tmp_path_factory.mktemp("facets") / "index"
    index = Index.create(address, width=4, model="m")
    index.insert(rows.take(range(120)))
    index.insert(rows.take(range(120, 200)))
    index.remove(ids[7:17])
    return index


@pytest.mark.parametrize("where", [None, "camera = 'Canon'", "folder = 'Norway/Bergen' or label = 'sea'"])
def test_facets_count_the_pictures(index, where):
    pictures = index.pictures(index.ids if where is None else index.ids_where(where))
    facets = {name: dict(values) for name, values in index.facets(where=where).items()}
    assert facets["camera"] == Counter(each.camera for each in pictures if each.camera)
    assert facets["month"] == Counter(each.taken[:7] for each in pictures if each.taken)
    assert facets["label"] == Counter(label for each in pictures for label in each.labels)
    assert facets["source"] == Counter(source for each in pictures for source in {file.source for file in each.files})


def test_filtering_by_a_facet_value_finds_as_many_pictures_as_counted(index):
    facets = index.facets()
    assert [month for month, _ in facets["month"]] == sorted(dict(facets["month"]), reverse=True)
    conditions = {"month": "taken like '{}%'"}
    for name, values in facets.items():
        for value, count in values:
            where = conditions.get(name, f"{name} = '{{}}'").format(value.replace("'", "''"))
            assert len(index.ids_where(where)) == count, where


def test_user_labels_are_a_facet(tmp_path, index):
    from recollect.web.label_store import LabelStore

    saved = index.save(tmp_path / "saved")
    store = LabelStore(saved.annotations)
    store.mark(store.create("cat").key, [*saved.ids[:5], "gone"], 1)
    assert saved.facets(["clicked"]) == {"clicked": [("cat", 5)]}
    some = [id for id in saved.ids[:5] if saved.pictures([id])[0].camera == "Canon"]
    assert dict(saved.facets(["clicked"], "camera = 'Canon'")["clicked"]).get("cat", 0) == len(some)
    again = saved.save(tmp_path / "again")
    assert again.values("clicked") == saved.values("clicked"), "labels are copied too"
    store.close()


@pytest.mark.parametrize("where", [None, "label = 'boat'"])
@pytest.mark.parametrize("by", ["newest", "oldest", "name"])
def test_sorting_is_stable_and_puts_pictures_without_a_date_last(index, by, where):
    pictures = index.pictures(index.ids if where is None else index.ids_where(where))
    key = {
        "newest": lambda each: (not each.taken, [-ord(letter) for letter in each.taken]),
        "oldest": lambda each: (not each.taken, each.taken),
        "name": lambda each: (not each.files, each.files[0].key if each.files else ""),
    }[by]
    assert sorted_ids(index, by, where) == [each.id for each in sorted(pictures, key=key)]


def test_aspect_ratios_follow_the_order_of_ids(index):
    wanted = [each.width / each.height if each.width and each.height else 1 for each in index]
    np.testing.assert_allclose(aspect_ratios(index), wanted, rtol=1e-6)


def test_a_filter_without_matches_is_an_error(index):
    for call in (index.facets, partial(index.facets, ["clicked"]), partial(sorted_ids, index, "name")):
        with pytest.raises(UserError, match="no picture satisfies"):
            call(where="camera = 'Leica'")


def test_an_empty_index_has_no_facets():
    empty = Index.create(width=4, model="m")
    assert empty.facets() == {name: [] for name in ("folder", "month", "camera", "label", "source")}
    assert sorted_ids(empty, "newest") == []
    assert len(aspect_ratios(empty)) == 0
