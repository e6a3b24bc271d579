"""EFSA's nine captioned sets (its Table 1), from the hub or from local copies."""

import json
from importlib import resources

import pytest

from recollect.core.errors import UserError
from recollect.evaluation.tasks.catalogue import captioned_specs

# EFSA, Table 1, transcribed independently from the paper: split and number of pictures.
TABLE_1 = {
    "coco": ("test", 5000), "flickr30k": ("test", 1000), "books": ("train", 4100), "nasa": ("train", 415),
    "artcap": ("test", 3600), "scicap": ("test", 3000), "vizwiz": ("validation", 7700),
    "textcaps": ("validation", 3100), "cc12m": ("train[:1000000]", 1000000),
}  # fmt: skip


def test_the_nine_sets_match_table_1():
    file = resources.files("recollect.evaluation.tasks") / "catalogue_files" / "captioned.json"
    rows = json.loads(file.read_text(encoding="utf-8"))["suites"]["efsa-9"]["entries"]
    assert {row["set"]: (row["split"], row["size"]) for row in rows} == TABLE_1
    assert {row["set"] for row in rows if not row.get("hub")} == {"artcap", "scicap"}


def test_local_copies_use_the_same_split_and_missing_sets_are_listed(tmp_path, monkeypatch):
    from recollect.evaluation.tasks import catalogue

    def open_local(spec, **options):
        if not spec.startswith(str(tmp_path)):
            raise UserError(f"{spec}: the hub does not answer")

    monkeypatch.setattr(catalogue, "open_source", open_local)
    copies = (f"artcap={tmp_path}/a.parquet", f"vizwiz={tmp_path}/v.parquet?domain=x", f"nasa={tmp_path}/n?split=all")
    specs, left_out = captioned_specs("efsa-9", copies)
    assert specs == (f"{tmp_path}/n?split=all", f"{tmp_path}/a.parquet?split=test",
                     f"{tmp_path}/v.parquet?domain=x&split=validation")  # fmt: skip
    assert len(left_out) == 6
    assert any(reason.startswith("scicap: scicap: no known copy on the hub") for reason in left_out)
    with pytest.raises(UserError, match="coco"):
        captioned_specs("efsa-9")
