"""Filling a memory: whole whatever happens, resumable, without what is broken or there already."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from recollect.core.errors import UserError
from recollect.data.sources import open_source
from recollect.memory import Memory
from recollect.memory.build import building
from recollect.memory.build.building import BuildOptions, check_alone, fill_memory, open_for_build
from recollect.memory.build.reading import Reader, ReadOptions
from recollect.models import build_model, load_model

BOTH = pytest.mark.parametrize("address", ["lance", "milvus"], indirect=True)


def rows_of(memory):
    """Every row as plain values, by id."""
    names = ["id", "caption", "source", "metadata", "ordinal", "digest", "image_vector", "text_vector"]
    found = {}
    for batch in memory.columns(names):
        for values in zip(*(batch[name] for name in names), strict=True):
            assert values[0] not in found
            found[values[0]] = [value.tolist() if isinstance(value, np.ndarray) else value for value in values[1:]]
    return found


def reader_of(source, encoder, **options):
    return Reader(encoder, source, encoder.fingerprint, ReadOptions(**options))


@pytest.fixture
def small_blocks(monkeypatch):
    for module in ("building", "editions", "reading"):
        monkeypatch.setattr(f"recollect.memory.build.{module}.ROWS_AT_ONCE", 8)
    monkeypatch.setattr(building, "COMMIT", 16)


@BOTH
@pytest.mark.usefixtures("small_blocks")
def test_every_sample_becomes_a_row_with_its_vectors(address, pictures, encoder):
    source = pictures(30)
    memory = open_for_build(address, encoder, "m")
    report = fill_memory(memory, reader_of(source, encoder), BuildOptions())
    assert (report.read, report.added, report.earlier) == (30, 30, 0)
    rows = rows_of(memory)
    assert set(rows) == {f"pictures:{number}" for number in range(30)}
    for number in range(30):
        caption, name, metadata, ordinal, _, image, text = rows[f"pictures:{number}"]
        assert (caption, name, ordinal) == (f"caption {number}", "pictures", number)
        assert json.loads(metadata) == {"number": number, "domain": "even"}
        np.testing.assert_array_equal(image, encoder.embed_images([source[number].image])[0])
        np.testing.assert_array_equal(text, encoder.embed_texts([caption])[0])
    stored = memory.fetch(["pictures:17"])[0].open()
    np.testing.assert_array_equal(np.asarray(stored), source[17].image)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("address", "stopped"),
    [("lance", 1), ("lance", 13), ("lance", 16), ("lance", 17), ("lance", 29), ("milvus", 13)],
    indirect=["address"],
)
def test_a_build_that_was_stopped_anywhere_goes_on_to_the_rows_of_an_unbroken_one(
    tmp_path, address, pictures, encoder, stopped
):
    whole = open_for_build(tmp_path / "whole", encoder, "m")
    fill_memory(whole, reader_of(pictures(30, broken=(3, 16)), encoder), BuildOptions(broken_share=1.0))

    source = pictures(30, broken=(3, 16))
    calls = iter(range(1000))

    class Failing(type(encoder)):
        def embed_images(self, images):
            if next(calls) == stopped // 8:
                raise KeyboardInterrupt
            return super().embed_images(images)

    memory = open_for_build(address, encoder, "m")
    with pytest.raises(KeyboardInterrupt):
        fill_memory(memory, reader_of(source, Failing()), BuildOptions(broken_share=1.0))
    assert len(memory) < 28
    again = Memory.open(address)
    report = fill_memory(again, reader_of(source, encoder), BuildOptions(broken_share=1.0))
    assert report.earlier % 8 == 0
    assert {id: row[:2] + row[3:] for id, row in rows_of(again).items()} == {
        id: row[:2] + row[3:] for id, row in rows_of(whole).items()
    }


@pytest.mark.usefixtures("small_blocks")
def test_a_finished_build_has_nothing_left_to_do(address, pictures, encoder):
    reader = reader_of(pictures(20), encoder)
    memory = open_for_build(address, encoder, "m")
    fill_memory(memory, reader, BuildOptions())
    encoder.images = 0
    report = fill_memory(Memory.open(address), reader, BuildOptions())
    assert (report.added, report.earlier, encoder.images) == (0, 20, 0)
    more = fill_memory(memory, reader_of(pictures(20), encoder), BuildOptions(limit=99))
    assert more.added == 0


@pytest.mark.usefixtures("small_blocks")
def test_a_part_of_a_newer_edition_takes_no_row_away(tmp_path, pictures, encoder):
    """Only a source that was read to its end can say what it has no more."""
    memory = open_for_build(tmp_path / "memory", encoder, "m")
    fill_memory(memory, reader_of(pictures(30), encoder), BuildOptions())
    report = fill_memory(memory, reader_of(pictures(28), encoder), BuildOptions(limit=10))
    assert (report.removed, len(memory)) == (0, 30)
    report = fill_memory(memory, reader_of(pictures(28), encoder), BuildOptions())
    assert (report.removed, len(memory)) == (2, 28)


@pytest.mark.usefixtures("small_blocks")
def test_a_name_that_is_too_long_for_an_id_stops_nothing(tmp_path, pictures, encoder):
    """Deep folders have such; the row is known by a digest of the name, the same one each time."""

    class Deep(pictures):
        def __getitem__(self, index):
            return replace(super().__getitem__(index), id="ü" * 300 + str(index))

    memory = open_for_build(tmp_path / "memory", encoder, "m")
    assert fill_memory(memory, reader_of(Deep(12), encoder), BuildOptions()).added == 12
    report = fill_memory(memory, reader_of(Deep(13), encoder, captions="first"), BuildOptions())
    assert (report.added, report.unchanged, len(memory)) == (1, 12, 13)
    assert all(len(id.encode()) < 100 and id.startswith("pictures:") for id in rows_of(memory))


def test_where_searches_cannot_be_measured_again_the_rows_are_added_all_the_same(
    tmp_path, pictures, encoder, monkeypatch, capsys
):
    memory = open_for_build(tmp_path / "memory", encoder, "m")
    monkeypatch.setattr(Memory, "outgrown_indexes", lambda self: [SimpleNamespace(modality="image", target=0.9)])

    def full(*_, **__):
        raise UserError("the index of images cannot be written (No space left on device)")

    monkeypatch.setattr(type(memory.backend), "index", full)
    assert fill_memory(memory, reader_of(pictures(5), encoder), BuildOptions()).added == 5
    assert "No space left on device" in capsys.readouterr().err


@pytest.mark.usefixtures("small_blocks")
def test_a_commit_that_is_there_in_part_is_completed(pictures, encoder, tmp_path):
    memory = open_for_build(f"milvus://{tmp_path}/lite.db/pairs", encoder, "m")
    reader = reader_of(pictures(30), encoder)
    block = next(reader.blocks(8, 16)).pairs
    memory.add(next(reader.blocks(0, 8)).pairs)
    memory.add(block.take(range(3)))
    report = fill_memory(memory, reader, BuildOptions())
    assert (report.earlier, report.unchanged, report.added) == (8, 3, 19)
    assert sorted(row[3] for row in rows_of(memory).values()) == list(range(30))


@BOTH
@pytest.mark.usefixtures("small_blocks")
def test_a_limit_can_be_raised_later(address, pictures, encoder):
    memory = open_for_build(address, encoder, "m")
    reader = reader_of(pictures(30), encoder)
    assert fill_memory(memory, reader, BuildOptions(limit=16)).added == 16
    report = fill_memory(memory, reader, BuildOptions(limit=24))
    assert report.earlier in (8, 16)  # where a commit can be there in part, its last block is looked at again
    assert (report.added, len(memory)) == (8, 24)


@pytest.mark.usefixtures("small_blocks")
def test_pictures_and_captions_that_are_there_already_are_left_out(address, pictures, encoder):
    memory = open_for_build(address, encoder, "m")
    report = fill_memory(memory, reader_of(pictures(30, same=12), encoder), BuildOptions())
    assert (report.added, report.same) == (12, 18)
    other = fill_memory(memory, reader_of(pictures(20, name="others"), encoder), BuildOptions())
    assert (other.added, other.same) == (8, 12)
    kept = fill_memory(memory, reader_of(pictures(10, name="kept"), encoder), BuildOptions(same=False))
    assert (kept.added, kept.same) == (10, 0)


@pytest.mark.usefixtures("small_blocks")
def test_near_duplicates_are_left_out_as_one_at_a_time_would(tmp_path, pictures, encoder):
    class Clustered(type(encoder)):
        """Ten centres with a little noise."""

        def embed_images(self, images):
            rows = super().embed_images([np.asarray(image)[:1] * 0 + int(image.sum()) % 10 for image in images])
            noise = super().embed_images(images)
            mixed = rows + 0.3 * noise
            return mixed / mixed.norm(dim=1, keepdim=True)

    model, source = Clustered(), pictures(60)
    vectors = model.embed_images([source[number].image for number in range(60)]).numpy().astype(np.float64)
    kept = []
    for number in range(60):
        if not any(vectors[number] @ vectors[other] >= 0.94 for other in kept):
            kept.append(number)
    assert 10 <= len(kept) < 50
    memory = open_for_build(tmp_path / "m", model, "m")
    fill_memory(memory, reader_of(source, model), BuildOptions(near=0.94, limit=24))
    report = fill_memory(Memory.open(tmp_path / "m"), reader_of(source, model), BuildOptions(near=0.94))
    assert sorted(row[3] for row in rows_of(Memory.open(tmp_path / "m")).values()) == kept
    assert report.near + report.added + 24 == 60


@pytest.mark.usefixtures("small_blocks")
def test_a_broken_picture_is_left_out_and_too_many_stop_the_build_with_nothing_lost(address, pictures, encoder):
    memory = open_for_build(address, encoder, "m")
    report = fill_memory(memory, reader_of(pictures(30, broken=(2, 29)), encoder), BuildOptions(broken_share=0.1))
    assert (report.added, report.broken) == (28, 2)
    bad = reader_of(pictures(40, name="bad", broken=tuple(range(24, 40))), encoder)
    with pytest.raises(UserError, match=r"bad, row 24: not a picture; 8 of 32 images .*allow .* --broken-share\.$"):
        fill_memory(memory, bad, BuildOptions(broken_share=0.1, same=False))
    assert len(memory) == 28 + 16  # the commits before the one that went wrong


@pytest.mark.usefixtures("small_blocks")
def test_each_caption_can_have_a_row(address, pictures, encoder):
    memory = open_for_build(address, encoder, "m")
    fill_memory(memory, reader_of(pictures(10), encoder, captions="each"), BuildOptions())
    items = memory.fetch(["pictures:7", "pictures:7#1"])
    assert [item.caption for item in items] == ["caption 7", "other words for 7"]
    one, other = memory.vectors([item.id for item in items], "image")
    np.testing.assert_array_equal(one, other)
    assert len(memory) == 20


def test_labelled_images_get_a_text_from_their_class_where_that_is_asked(tmp_path, encoder):
    source = open_source("glyphs:labels")
    memory = open_for_build(tmp_path / "m", encoder, "m")
    fill_memory(memory, reader_of(source, encoder), BuildOptions(limit=5))
    assert (len(memory), memory.texts) == (5, 0)  # a class is a label, and no text
    fill_memory(memory, reader_of(source, encoder, template="a glyph, {}"), BuildOptions(limit=5))
    assert len(memory) == 5
    for item, number in zip(memory.fetch([f"glyphs:labels:{number}" for number in range(5)]), range(5), strict=True):
        name = source.class_names[source[number].label]
        assert item.caption == f"a glyph, {name}"
        assert item.metadata["label"] == name


@pytest.mark.parametrize(("keep", "kind"), [("source", "path"), ("bytes", "bytes"), ("path", "path"), ("none", "none")])
def test_what_is_kept_of_a_picture(tmp_path, encoder, keep, kind):
    from PIL import Image

    for number in range(3):
        folder = tmp_path / "images" / ("cat", "dog")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / f"{number}.png")
    source = open_source(str(tmp_path / "images"))
    memory = open_for_build(tmp_path / "m", encoder, "m")
    fill_memory(memory, reader_of(source, encoder, pictures=keep), BuildOptions())
    item = memory.fetch([next(iter(rows_of(memory)))])[0]
    if kind == "none":
        assert item.image is None
        return
    assert isinstance(item.image, bytes) == (kind == "bytes")
    assert item.open().size == (8, 8)
    if kind == "bytes":
        assert item.image == (tmp_path / "images" / "cat" / "0.png").read_bytes()


@BOTH
def test_pictures_without_a_text_are_kept_and_counted(address, pictures, encoder):
    class Wordless(pictures):
        def __getitem__(self, index):
            sample = super().__getitem__(index)
            return replace(sample, texts=() if index % 3 else (" ",)) if index < 5 else sample

    memory = open_for_build(address, encoder, "m")
    report = fill_memory(memory, reader_of(Wordless(9), encoder), BuildOptions())
    assert (report.read, report.added, report.wordless) == (9, 9, 5)
    assert (len(memory), memory.texts) == (9, 4)


def test_paths_cannot_be_kept_of_pictures_that_are_no_files(tmp_path, pictures, encoder):
    memory = open_for_build(tmp_path / "m", encoder, "m")
    with pytest.raises(UserError, match=r"pictures: its pictures are no files"):
        fill_memory(memory, reader_of(pictures(5), encoder, pictures="path"), BuildOptions())


def test_another_model_and_another_source_are_refused(address, pictures, encoder, other_encoder):
    memory = open_for_build(address, encoder, "first")
    fill_memory(memory, reader_of(pictures(5), encoder), BuildOptions())
    with pytest.raises(UserError, match=r"embedded by first \(model-a\), but second is another model \(model-b\)"):
        open_for_build(address, other_encoder, "second")
    check_alone(memory, reader_of(pictures(5), encoder))
    check_alone(memory, reader_of(pictures(6), encoder))
    with pytest.raises(UserError, match="holds rows of other sources already"):
        check_alone(memory, reader_of(pictures(5, name="others"), encoder))
    with pytest.raises(UserError, match="these are of another model"):
        fill_memory(memory, reader_of(pictures(6), other_encoder), BuildOptions())
    assert len(memory) == 5


def test_a_picture_too_large_for_milvus_says_what_to_do(tmp_path, pairs):
    memory = Memory.create(f"milvus://{tmp_path}/lite.db/pairs", width=16, model="model-a")
    more = pairs(1)
    with pytest.raises(UserError, match=r"row 'row 0': its image does not fit in 65,535 bytes. Keep pictures as files"):
        memory.add(type(more)(**{**vars(more), "images": [b"x" * 60_000]}))
    assert len(memory) == 0


BUILD = """
import sys, time
from recollect.data.sources import open_source
from recollect.memory.build import building
from recollect.memory.build.reading import Reader
from recollect.models import load_model
building.COMMIT = 128
model = load_model(sys.argv[1], "cpu")
memory = building.open_for_build(sys.argv[2], model, "m")
building.fill_memory(memory, Reader(model, open_source("latents:captions"), model.fingerprint),
              building.BuildOptions(limit=2500))
"""


def test_a_build_killed_in_the_middle_opens_whole_and_resumes_without_duplicates_or_gaps(tmp_path):
    model = build_model("vector-mlp", texts=["sort15 quality0is4"])
    model.save(tmp_path / "model")
    command = [sys.executable, "-c", BUILD, str(tmp_path / "model"), str(tmp_path / "memory")]
    killed = subprocess.Popen(command)
    table = tmp_path / "memory" / "pairs.lance"
    deadline = time.monotonic() + 60
    while not (table.is_dir() and len(list((table / "data").glob("*"))) >= 3):
        assert killed.poll() is None, "the build ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL

    memory = Memory.open(tmp_path / "memory")
    there = sorted(row[3] for row in rows_of(memory).values())
    assert 0 < len(there) < 2500
    assert there == list(range(len(there)))
    assert len(there) % 128 == 0
    reader = reader_of(open_source("latents:captions"), load_model(tmp_path / "model", "cpu"))
    fill_memory(Memory.open(tmp_path / "memory"), reader, BuildOptions(limit=2500))
    rows = rows_of(Memory.open(tmp_path / "memory"))
    assert sorted(row[3] for row in rows.values()) == list(range(2500))
    source = open_source("latents:captions")
    for number in (0, len(there) - 1, len(there), 2499):
        row = rows[f"latents:captions:{number}"]
        np.testing.assert_allclose(row[5], model.embed_images([source[number].image])[0], atol=1e-6)
        np.testing.assert_allclose(row[6], model.embed_texts([row[0]])[0], atol=1e-6)
