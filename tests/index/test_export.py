"""Exports to Parquet, CSV and COCO."""

import csv
import json
import sqlite3
from contextlib import closing

import numpy as np
import pyarrow.parquet as pq
import pytest

from index_rows import WIDTH, make_rows
from recollect.core.errors import UserError
from recollect.index import Index, Rows
from recollect.index.export import export_index


@pytest.fixture
def index():
    return Index.create(width=WIDTH, model="model-a")


def test_parquet_has_vectors_and_captions(index, tmp_path):
    rows = make_rows(40)
    index.insert(rows)
    assert export_index(index, tmp_path / "index.parquet") == 40
    exported = pq.read_table(tmp_path / "index.parquet").to_pylist()
    vectors = dict(zip(rows.ids, rows.image_vectors, strict=True))
    captions = dict(zip(rows.ids, rows.captions, strict=True))
    for row in exported:
        np.testing.assert_allclose(row["image_vector"], vectors[row["id"]], atol=1e-6)
        assert row["captions"] == list(captions[row["id"]])
        assert (row["text_vector"] is None) == (not captions[row["id"]])


def test_selected_pictures_are_exported_in_the_given_order(index, tmp_path):
    index.insert(make_rows(10))
    wanted = ["row 7", "row 2", "row 3"]
    assert export_index(index, tmp_path / "some.parquet", ids=wanted) == 3
    exported = pq.read_table(tmp_path / "some.parquet").to_pylist()
    assert [row["id"] for row in exported] == wanted
    np.testing.assert_allclose([row["text_vector"] for row in exported], index.vectors(wanted, "text"), atol=1e-6)


def test_csv_cells_are_never_formulas(index, tmp_path):
    """Ids, paths, folders and cameras are untrusted texts."""
    index.insert(Rows(ids=["=1+1"], image_vectors=np.eye(1, WIDTH, dtype=np.float32)))
    export_index(index, tmp_path / "index.csv")
    with (tmp_path / "index.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["id"] == "'=1+1"


def test_csv_and_coco_have_every_picture_and_caption(index, tmp_path):
    rows = make_rows(9)
    index.insert(rows)
    index.remove(["row 3"])
    captions = {id: list(each) for id, each in zip(rows.ids, rows.captions, strict=True) if id != "row 3"}
    assert export_index(index, tmp_path / "index.csv") == 8
    with (tmp_path / "index.csv").open(newline="") as file:
        exported = {row["id"]: row for row in csv.DictReader(file)}
    assert {id: json.loads(row["captions"]) for id, row in exported.items()} == captions
    assert json.loads(exported["row 5"]["metadata"])["rare"] == "it's"
    assert export_index(index, tmp_path / "index.json") == 8
    coco = json.loads((tmp_path / "index.json").read_text())
    assert sorted(each["caption"] for each in coco["annotations"]) == sorted(
        caption for each in captions.values() for caption in each
    )
    assert {each["image_id"] for each in coco["annotations"]} <= {each["id"] for each in coco["images"]}


def test_a_label_given_by_the_source_and_the_user_is_exported_once(tmp_path):
    index = Index.create(tmp_path / "index", width=WIDTH, model="model-a")
    index.insert(Rows(ids=["owl"], image_vectors=np.eye(1, WIDTH, dtype=np.float32), labels=[("owl",)]))
    with closing(sqlite3.connect(index.annotations)) as labels, labels:
        labels.execute("CREATE TABLE labels (name, id, value)")
        labels.executemany("INSERT INTO labels VALUES ('clicked', 'owl', ?)", [("owl",), ("bird",)])
    export_index(index, tmp_path / "index.csv")
    with (tmp_path / "index.csv").open(newline="") as file:
        assert [json.loads(row["labels"]) for row in csv.DictReader(file)] == [["owl", "bird"]]


def test_no_pictures_or_an_unknown_format_are_errors_and_write_no_file(index, tmp_path):
    with pytest.raises(UserError):
        export_index(index, tmp_path / "empty.csv")
    index.insert(make_rows(3))
    for name, ids in (("a.parquet", []), ("a.csv", []), ("a.json", []), ("a.xlsx", None)):
        with pytest.raises(UserError):
            export_index(index, tmp_path / name, ids=ids)
    assert not list(tmp_path.glob("a.*"))
