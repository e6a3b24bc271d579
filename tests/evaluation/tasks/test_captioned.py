"""EFSA's nine captioned sets: as its Table 1 has them, from the hub or from copies of one's own."""

import pytest

from recollect.core.errors import UserError
from recollect.evaluation.tasks.captioned import captioned_specs, captioned_suite

# EFSA, Table 1, read off the paper once more: split and number of pictures.
TABLE_1 = {
    "coco": ("test", 5000), "flickr30k": ("test", 1000), "books": ("train", 4100), "nasa": ("train", 415),
    "artcap": ("test", 3600), "scicap": ("test", 3000), "vizwiz": ("validation", 7700),
    "textcaps": ("validation", 3100), "cc12m": ("train[:1000000]", 1000000),
}  # fmt: skip


def test_the_nine_sets_are_those_of_table_1():
    entries = captioned_suite("efsa-9")
    assert {entry.name: (entry.split, entry.size) for entry in entries} == TABLE_1
    assert {entry.name for entry in entries if entry.spec is None} == {"artcap", "scicap"}
    assert {entry.name for entry in entries if entry.seen} == {"books", "nasa"}  # named in the paper's references
    assert next(entry for entry in entries if entry.name == "nasa").address() == (
        "nkasmanoff/nasa_earth_instagram?split=train"
    )


def test_own_copies_are_read_in_the_same_split_and_the_others_are_named(tmp_path, monkeypatch):
    from recollect.evaluation.tasks import captioned

    def refuse(spec, **options):
        if not spec.startswith(str(tmp_path)):
            raise UserError(f"{spec}: the hub does not answer")

    monkeypatch.setattr(captioned, "open_source", refuse)
    copies = (f"artcap={tmp_path}/a.parquet", f"vizwiz={tmp_path}/v.parquet?domain=x", f"nasa={tmp_path}/n?split=all")
    found, left_out = captioned_specs("efsa-9", copies)
    assert found == (f"{tmp_path}/n?split=all", f"{tmp_path}/a.parquet?split=test",
                     f"{tmp_path}/v.parquet?domain=x&split=validation")  # fmt: skip
    assert len(left_out) == 6
    assert any(reason.startswith("scicap: scicap: no copy on the hub is known") for reason in left_out)
    with pytest.raises(UserError, match="coco"):
        captioned_specs("efsa-9")


def test_unknown_names_are_refused():
    with pytest.raises(UserError, match="efsa-8"):
        captioned_suite("efsa-8")
    with pytest.raises(UserError, match="--copies"):
        captioned_specs("efsa-9", ("imagenet=a.parquet",))
