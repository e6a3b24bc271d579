"""`recollect index` from the command line."""

import json
import shutil

import pyarrow.parquet as pq
import pytest

from index_rows import scene
from recollect.index import Index
from recollect.models import build_model


@pytest.fixture(scope="module")
def built(tmp_path_factory, recollect):
    """A model, a folder of eight pictures and their index."""
    folder = tmp_path_factory.mktemp("index")
    build_model("tiny", texts=["a"], seed=0).save(folder / "model")
    (folder / "photos").mkdir()
    for number in range(8):
        scene(number).save(folder / "photos" / f"{number}.png")
    recollect("index", "build", folder / "photos", "--model", folder / "model", "--out", folder / "index")
    return folder


@pytest.fixture
def world(built, tmp_path):
    """A copy of the folder and index in `built`."""
    for name in ("photos", "index"):
        shutil.copytree(built / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def run(recollect, built, world):
    """Run a command of `recollect index` on the copy."""
    return lambda name, *words, **more: recollect("index", name, world / "index", *words, **more).stdout


def test_building_and_adding_again_skip_known_pictures(recollect, built, world, run):
    again = ("index", "build", world / "photos", "--model", built / "model", "--out", world / "index", "--name")
    done = recollect(*again, "photos", "--precision", "float32")
    assert "8 unchanged" in done.stdout
    assert "warning: --precision" in done.stderr, "the index exists"
    scene(50).save(world / "photos" / "new.png")
    shutil.copy(world / "photos" / "1.png", world / "photos" / "copy.png")
    assert "1 added" in run("add", world / "photos", "--name", "photos")
    assert len(Index.open(world / "index")) == 9


def test_duplicates_are_previewed_removed_and_restored(run, world):
    scene(1).resize((60, 60)).save(world / "photos" / "smaller.jpg", quality=60)
    run("add", world / "photos", "--name", "photos")
    text = run("duplicates", "--remove", "--out", world / "groups.json")
    assert "add --yes" in text
    assert len(Index.open(world / "index")) == 9, "nothing is removed without --yes"
    (group,) = json.loads((world / "groups.json").read_text())["near-identical"]
    assert {each["path"] for each in group} == {str(world / "photos" / name) for name in ("1.png", "smaller.jpg")}
    run("duplicates", "--remove", "--yes")
    run("add", world / "photos", "--name", "photos")
    assert len(Index.open(world / "index")) == 8, "removed pictures stay removed"
    assert "smaller.jpg" in run("restore", "--show")
    run("restore")
    assert len(Index.open(world / "index")) == 9
    assert (world / "photos" / "smaller.jpg").exists()


def test_pictures_can_be_removed_by_id_filter_and_source(run, world, built):
    index = Index.open(world / "index")
    first, second = index.ids[:2]
    run("remove", "--ids", first, "--yes")
    run("remove", "--where", f"id = '{second}'", "--yes")
    index.refresh()
    assert set(index.ids) == set(Index.open(built / "index").ids) - {first, second}
    run("restore", "--ids", first)
    run("add", world / "photos", "--name", "again")
    assert "0 of 7 pictures" in run("remove", "--source", "photos"), "the other source has the same pictures"
    assert run("remove", "--source", "nowhere", check=False) == ""
    run("remove", "--source", "photos", "--yes")
    index.refresh()
    assert len(index) == 7
    run("remove", "--source", "again", "--yes")
    index.refresh()
    assert len(index) == 0
    assert run("remove", "--ids", first, "--where", "width > 0", check=False) == ""


def test_an_index_is_described_exported_compacted_and_verified(run, recollect, world):
    run("info", "--out", world / "info.json")
    info = json.loads((world / "info.json").read_text())
    assert (info["pictures"], info["sources"]) == (8, {"photos": 8})
    run("export", "--out", world / "index.parquet")
    assert pq.read_table(world / "index.parquet").num_rows == 8
    run("compact", "--keep-days", 0)
    assert "no damaged files" in run("verify")
    file = max((world / "index" / "pictures.lance" / "data").iterdir(), key=lambda file: file.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(bytes(content))
    done = recollect("index", "verify", world / "index", check=False)
    assert done.returncode == 2
    assert file.name in done.stdout


def test_the_device_is_used_also_with_the_default_model(recollect, world):
    """It was ignored without --model."""
    for words in (("build", world / "photos", "--out", world / "new"), ("add", world / "index", world / "photos")):
        done = recollect("index", *words, "--device", "nonsense", check=False)
        assert done.returncode == 2
        assert "nonsense" in done.stderr


def test_invalid_options_are_rejected(recollect, world, built):
    index = world / "index"
    for words in (
        ("index", "build", "photos?", "--model", built / "model", "--out", index, "--near", 2),
        ("index", "add", index, world / "photos", "--limit", 0),
        ("index", "remove", index),
        ("index", "watch", index, world / "nowhere"),
        ("index", "compact", index, "--keep-days", -1),
        ("index", "accelerate", index),
        ("index", "info", world / "nowhere"),
    ):
        done = recollect(*words, check=False)
        assert done.returncode == 2, words
        assert len(done.stderr.strip().splitlines()) == 1
