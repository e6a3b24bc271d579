"""EFSA's nine captioned sets: as its Table 1 has them, from the hub or from copies of one's own."""

import json
from importlib import resources

import pytest

from recollect.core.errors import UserError
from recollect.evaluation.tasks.catalogue import captioned_specs

# EFSA, Table 1, read off the paper once more: split and number of pictures.
TABLE_1 = {
    "coco": ("test", 5000), "flickr30k": ("test", 1000), "books": ("train", 4100), "nasa": ("train", 415),
    "artcap": ("test", 3600), "scicap": ("test", 3000), "vizwiz": ("validation", 7700),
    "textcaps": ("validation", 3100), "cc12m": ("train[:1000000]", 1000000),
}  # fmt: skip


def test_the_nine_sets_are_those_of_table_1():
    file = resources.files("recollect.evaluation.tasks") / "catalogue_files" / "captioned.json"
    rows = json.loads(file.read_text(encoding="utf-8"))["suites"]["efsa-9"]["entries"]
    assert {row["set"]: (row["split"], row["size"]) for row in rows} == TABLE_1
    assert {row["set"] for row in rows if not row.get("hub")} == {"artcap", "scicap"}


def test_own_copies_are_read_in_the_same_split_and_the_others_are_named(tmp_path, monkeypatch):
    from recollect.evaluation.tasks import catalogue

    def refuse(spec, **options):
        if not spec.startswith(str(tmp_path)):
            raise UserError(f"{spec}: the hub does not answer")

    monkeypatch.setattr(catalogue, "open_source", refuse)
    copies = (f"artcap={tmp_path}/a.parquet", f"vizwiz={tmp_path}/v.parquet?domain=x", f"nasa={tmp_path}/n?split=all")
    found, left_out = captioned_specs("efsa-9", copies)
    assert found == (f"{tmp_path}/n?split=all", f"{tmp_path}/a.parquet?split=test",
                     f"{tmp_path}/v.parquet?domain=x&split=validation")  # fmt: skip
    assert len(left_out) == 6
    assert any(reason.startswith("scicap: scicap: no copy on the hub is known") for reason in left_out)
    with pytest.raises(UserError, match="coco"):
        captioned_specs("efsa-9")
