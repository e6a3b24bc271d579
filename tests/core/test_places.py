"""Names for files and models in results, which strangers read."""

import pytest

from recollect.core.places import public_names, public_place


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("/data/me/pairs.parquet?split=train&domain=a", "pairs.parquet?split=train&domain=a"),
        ("captions=/data/me/run=1/pairs.csv?split=all", "captions=pairs.csv?split=all"),
        ("/data/run=1/pairs.csv", "pairs.csv"),
        ("~/runs/base/model", "base/model"),
        ("../../elsewhere/memory", "memory"),
        ("runs/base/model", "runs/base/model"),
        ("openai/clip-vit-base-patch32", "openai/clip-vit-base-patch32"),
        ("glyphs:labels?seed=1", "glyphs:labels?seed=1"),
        ("https://me:word@host/s-{0..9}.tar?key=secret", "https://host/s-{0..9}.tar"),
    ],
)
def test_a_name_tells_nothing_of_the_machine(place, shown):
    assert public_place(place) == shown


def test_names_tell_places_apart():
    assert public_names(("/a/one/model", "/b/two/model", "x/y")) == {
        "/a/one/model": "one/model", "/b/two/model": "two/model", "x/y": "x/y",
    }  # fmt: skip
    assert list(public_names(("/a/one/model", "/b/one/model")).values()) == ["a/one/model", "b/one/model"]
    assert public_names(()) == {}
