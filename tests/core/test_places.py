"""Names of files and models in published results."""

import pytest

from recollect.core.places import model_name, public_place


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("/data/me/pairs.parquet?split=train&domain=a", "pairs.parquet?split=train&domain=a"),
        ("captions=/data/me/run=1/pairs.csv?split=all", "captions=pairs.csv?split=all"),
        ("/data/run=1/pairs.csv", "pairs.csv"),
        ("~/runs/base/model", "base/model"),
        ("../../elsewhere/index", "index"),
        ("runs/base/model", "runs/base/model"),
        ("openai/clip-vit-base-patch32", "openai/clip-vit-base-patch32"),
        ("glyphs:labels?seed=1", "glyphs:labels?seed=1"),
        ("https://me:word@host/s-{0..9}.tar?key=secret", "https://host/s-{0..9}.tar"),
    ],
)
def test_a_public_name_reveals_no_local_path_or_secret(place, shown):
    assert public_place(place) == shown


def test_all_spellings_of_a_path_give_the_same_model_name(tmp_path, monkeypatch):
    run, other = tmp_path / "here" / "runs" / "a" / "model", tmp_path / "there" / "a" / "model"
    for folder in (run, other):
        folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "link").symlink_to(tmp_path / "here")
    spelled = ("runs/a/model", "./runs/a/model/", "runs/../runs/a/model", run, tmp_path / "link" / "runs/a/model")
    assert {model_name(str(place), "0123456789") for place in spelled} == {"runs/a/model"}
    elsewhere = (other, "../there/a/model", f"{other}/")
    assert {model_name(str(place), "0123456789") for place in elsewhere} == {"a/model 01234567"}
    assert model_name("google/siglip2-base-patch16-224", "0") == "google/siglip2-base-patch16-224"
    assert model_name(".", "0123456789") == "here 01234567"
