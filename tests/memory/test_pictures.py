"""Pictures first: kept without a text, known by their file or content, replaced by newer editions, captioned later."""

import io
import json
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from recollect.core.errors import UserError
from recollect.data.sources import open_source
from recollect.memory import Memory
from recollect.memory.build import building, renamed
from recollect.memory.build.building import BuildOptions, fill_memory, open_for_build
from recollect.memory.build.reading import Reader, ReadOptions

BOTH = pytest.mark.parametrize("address", ["lance", "milvus"], indirect=True)


def draw(number):
    pixels = np.random.default_rng(number).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def encoded(number):
    buffer = io.BytesIO()
    draw(number).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def photos(tmp_path):
    """Six pictures without a word."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(6):
        (folder / f"{number}.png").write_bytes(encoded(number))
    return folder


def fill(memory, encoder, place, options=BuildOptions(), name="", **reading):  # noqa: B008 - frozen
    source = open_source(str(place), keep_textless=True)
    return fill_memory(memory, Reader(encoder, source, encoder.fingerprint, ReadOptions(**reading), name), options)


def table(path, numbers, captions=None, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = captions or [f"caption {number}" for number in numbers]
    pq.write_table(pa.table({"image": [encoded(number) for number in numbers], "caption": texts, **columns}), path)
    return path


def captions_of(memory):
    """The caption of each picture, known by its own pixels."""
    ids = [id for batch in memory.columns(["id"]) for id in batch["id"]]
    return {np.asarray(item.open()).tobytes(): item.caption for item in memory.fetch(ids)}


def pixels(number):
    return np.asarray(draw(number)).tobytes()


def test_a_folder_of_pictures_without_a_word_can_be_searched_and_each_hit_traced(address, photos, encoder):
    memory = open_for_build(address, encoder, "m")
    report = fill(memory, encoder, photos)
    assert (report.added, report.wordless) == (6, 6)
    found = memory.search(encoder.embed_images([draw(4)]), 2)
    best = memory.fetch(found.ids[0], pictures=False)[0]
    assert (best.id, best.caption, best.path) == ("photos:4.png", "", photos / "4.png")
    with pytest.raises(UserError, match=r"none of its 6 rows has a text. Give its pictures captions with `recollect"):
        memory.search(encoder.embed_texts(["a"]), 1, "text")


@BOTH
def test_a_file_that_holds_another_picture_now_is_not_shown_for_it(address, photos, encoder):
    """Two files exchange their names before anybody reads the folder again: rows still have their old vectors."""
    memory = open_for_build(address, encoder, "m")
    fill(memory, encoder, photos)
    (photos / "0.png").write_bytes(encoded(1))
    draw(2).save(photos / "2.png", "PNG", compress_level=0)  # as where a program has noted something in the file
    assert (photos / "2.png").read_bytes() != encoded(2)
    items = {item.id: item for item in memory.fetch([f"photos:{number}.png" for number in range(3)])}
    with pytest.raises(UserError, match=r"0.png holds another picture now, which `recollect memory add` or"):
        items["photos:0.png"].open()
    for number in (1, 2):
        assert np.asarray(items[f"photos:{number}.png"].open()).tobytes() == pixels(number)
    fill(memory, encoder, photos, BuildOptions(same=False))
    assert np.asarray(memory.fetch(["photos:0.png"])[0].open()).tobytes() == pixels(1)


def test_a_link_to_a_picture_is_known_by_its_own_name_wherever_it_leads(photos, tmp_path, encoder):
    """Somebody's selection: a folder of links, of which some lead into each other, and which may itself be a link."""
    chosen = tmp_path / "chosen"
    (chosen / "best").mkdir(parents=True)
    (chosen / "best" / "sea.png").symlink_to(photos / "1.png")
    (chosen / "own.png").write_bytes(encoded(7))
    (chosen / "same.png").symlink_to("own.png")
    (tmp_path / "again").symlink_to(chosen)
    memory = open_for_build(str(tmp_path / "memory"), encoder, "m")
    fill(memory, encoder, chosen, BuildOptions(same=False))
    ids = {id for batch in memory.columns(["id"]) for id in batch["id"]}
    assert ids == {"chosen:best/sea.png", "chosen:own.png", "chosen:same.png"}
    assert str(memory.fetch(["chosen:best/sea.png"])[0].path) == str((photos / "1.png").resolve())
    assert fill(memory, encoder, tmp_path / "again", name="chosen").unchanged == 3, "by another name of the folder"
    assert memory.ids_of([str(chosen / "best" / "sea.png")]) == ["chosen:best/sea.png"]


def test_a_class_folder_gives_labels_and_no_captions(tmp_path, encoder):
    for number in range(4):
        (tmp_path / "pets" / ("cat", "dog")[number % 2]).mkdir(parents=True, exist_ok=True)
        (tmp_path / "pets" / ("cat", "dog")[number % 2] / f"{number}.png").write_bytes(encoded(number))
    memory = open_for_build(tmp_path / "m", encoder, "m")
    fill(memory, encoder, tmp_path / "pets")
    item = memory.fetch(["pets:cat/2.png"])[0]
    assert (item.caption, item.metadata["label"], memory.texts) == ("", "cat", 0)
    assert memory.search(encoder.embed_images([draw(3)]), 2, where="label = 'dog'").ids[0, 0] == "pets:dog/3.png"
    memory.set_captions({"pets:cat/2.png": "a tabby", "pets:dog/1.png": "a terrier"}, encoder, by="somebody")
    memory.set_metadata("clicked_2", {"pets:cat/0.png": "kitten"})
    (tmp_path / "pets/9.png").write_bytes(encoded(9))  # no folder of classes any more: every row says something else
    (tmp_path / "pets/dog/1.png").write_bytes(encoded(11))  # and this one is another picture
    assert fill(memory, encoder, tmp_path / "pets").replaced == 4
    said = {item.id: (item.caption, dict(item.metadata)) for item in memory.fetch(memory.ids_where("source = 'pets'"))}
    assert said["pets:cat/2.png"] == ("a tabby", {"captioned_by": "somebody"}), "what people said of it stays"
    assert said["pets:cat/0.png"] == ("", {"clicked_2": "kitten"})
    assert said["pets:dog/1.png"] == ("", {})
    found = memory.search(encoder.embed_texts(["a tabby"]), 1, "text")
    assert (found.ids[0, 0], round(float(found.scores[0, 0]), 5)) == ("pets:cat/2.png", 1)


@BOTH
def test_a_folder_with_new_changed_and_vanished_pictures_is_followed(address, photos, encoder):
    memory = open_for_build(address, encoder, "m")
    fill(memory, encoder, photos)
    (photos / "2.png").write_bytes(encoded(22))
    (photos / "4.png").unlink()
    (photos / "0 new.png").write_bytes(encoded(77))  # sorts first, so every number of a row shifts
    encoder.images = 0
    report = fill(memory, encoder, photos)
    assert (report.added, report.replaced, report.removed, report.unchanged) == (1, 1, 1, 4)
    assert encoder.images == 2
    expected = {"0 new": 77, "0": 0, "1": 1, "2": 22, "3": 3, "5": 5}
    assert {item for batch in memory.columns(["id"]) for item in batch["id"]} == {f"photos:{n}.png" for n in expected}
    for name, number in expected.items():
        vector = encoder.embed_images([draw(number)]).numpy()[0]
        np.testing.assert_array_equal(memory.vectors([f"photos:{name}.png"], "image")[0], vector)
    again = fill(memory, encoder, photos)
    assert (again.added, again.replaced, again.removed) == (0, 0, 0)


@pytest.mark.parametrize("waiting", [100, 1])
def test_what_is_said_of_pictures_follows_them_where_files_are_renamed_and_exchanged(
    address, photos, encoder, monkeypatch, waiting
):
    memory = open_for_build(address, encoder, "m")
    fill(memory, encoder, photos)
    memory.set_captions({"photos:0.png": "a drawing", "photos:1.png": "one"}, encoder, by="somebody")
    memory.set_metadata("clicked", {"photos:0.png": "cat"})
    (photos / "0.png").rename(photos / "z.png")
    one, other = (photos / "1.png").read_bytes(), (photos / "2.png").read_bytes()
    (photos / "1.png").write_bytes(other), (photos / "2.png").write_bytes(one)
    memory.set_captions({f"photos:{number}.png": f"number {number}" for number in (3, 4, 5)}, encoder)
    memory.set_metadata("clicked_2", {"photos:4.png": "dog"})
    for name, number in ((3, 4), (4, 5), (5, 3)):  # a circle of three
        (photos / f"{name}.png").write_bytes(encoded(number))
    (photos / "9.png").write_bytes(encoded(1))  # a copy, which is new and has no words either
    monkeypatch.setattr(building, "COMMIT", 2)
    monkeypatch.setattr(renamed, "_MOST", waiting)
    for module in ("building", "editions", "reading"):
        monkeypatch.setattr(f"recollect.memory.build.{module}.ROWS_AT_ONCE", 2)
    report = fill(memory, encoder, photos, BuildOptions(same=False))
    assert (report.added, report.replaced, report.removed) == (2, 5, 1)
    assert len(memory) == 7
    for name, number in {"z": 0, "1": 2, "2": 1, "3": 4, "4": 5, "5": 3, "9": 1}.items():
        vector = encoder.embed_images([draw(number)]).numpy()[0]
        np.testing.assert_array_equal(memory.vectors([f"photos:{name}.png"], "image")[0], vector)
    (moved,) = memory.fetch(["photos:z.png"])
    assert (moved.caption, moved.path) == ("a drawing", photos / "z.png")
    assert dict(moved.metadata) == {"clicked": "cat", "captioned_by": "somebody"}
    captions = {item.id[7:-4]: item.caption for item in memory.fetch(memory.ids_where("source = 'photos'"))}
    assert captions == {
        "z": "a drawing",
        "1": "",
        "2": "one",
        "9": "one",
        "3": "number 4",
        "4": "number 5",
        "5": "number 3",
    }
    assert [memory.fetch([f"photos:{n}.png"])[0].metadata.get("clicked_2") for n in (3, 4, 5)] == ["dog", None, None]
    for words, name in {"a drawing": "z", "number 4": "3"}.items():
        assert memory.search(encoder.embed_texts([words]), 1, "text").ids[0, 0] == f"photos:{name}.png"


@BOTH
def test_a_folder_that_was_moved_is_found_again_without_embedding(address, photos, tmp_path, encoder):
    memory = open_for_build(address, encoder, "m")
    fill(memory, encoder, photos)
    memory.set_captions({"photos:3.png": "a drawing"}, encoder)
    moved = photos.rename(tmp_path / "album")
    with pytest.raises(UserError, match="no such file"):
        memory.fetch(["photos:3.png"])[0].open()
    encoder.images = 0
    report = fill(memory, encoder, moved, name="photos")
    assert (report.added, report.removed, report.unchanged, report.moved, encoder.images) == (0, 0, 6, 6, 0)
    (item,) = memory.fetch(["photos:3.png"])
    assert (item.path, item.caption) == (moved / "3.png", "a drawing")
    item.open()
    assert memory.info().places == {"photos": (str(moved),)}
    assert fill(memory, encoder, moved, name="photos").moved == 0


def test_a_picture_that_cannot_be_read_today_keeps_its_row(address, photos, encoder):
    memory = open_for_build(address, encoder, "m")
    fill(memory, encoder, photos)
    (photos / "3.png").write_bytes(b"cut short")
    report = fill(memory, encoder, photos, BuildOptions(broken_share=0.5))
    assert (report.broken, report.removed, len(memory)) == (1, 0, 6)


def test_the_same_pairs_in_another_order_are_the_same_rows(address, tmp_path, encoder):
    order = list(range(12))
    memory = open_for_build(address, encoder, "m")
    fill(memory, encoder, table(tmp_path / "pairs.parquet", order))
    before = {id for batch in memory.columns(["id"]) for id in batch["id"]}
    random.Random(0).shuffle(order)
    report = fill(memory, encoder, table(tmp_path / "pairs.parquet", order))
    assert (report.added, report.replaced, report.removed, report.unchanged) == (0, 0, 0, 12)
    assert {id for batch in memory.columns(["id"]) for id in batch["id"]} == before
    assert captions_of(memory) == {pixels(number): f"caption {number}" for number in range(12)}


@BOTH
def test_a_newer_edition_of_a_file_replaces_its_rows(address, tmp_path, encoder):
    memory = open_for_build(address, encoder, "m")
    fill(memory, encoder, table(tmp_path / "pairs.parquet", range(8), year=[2000] * 8))
    captions = [f"caption {number}" if number != 5 else "better words" for number in range(2, 10)]
    years = [2000] * 4 + [2024] + [2000] * 3
    report = fill(memory, encoder, table(tmp_path / "pairs.parquet", range(2, 10), captions, year=years))
    assert (report.added, report.replaced, report.removed, report.unchanged) == (2, 2, 2, 4)
    assert captions_of(memory) == dict(zip(map(pixels, range(2, 10)), captions, strict=True))
    vector = encoder.embed_texts(["better words"])
    assert memory.fetch(memory.search(vector, 1, "text").ids[0])[0].caption == "better words"
    assert len(memory.ids_where("year = 2024")) == 1


def test_two_files_of_one_name_clash_before_the_work_unless_one_is_named(address, tmp_path, encoder):
    memory = open_for_build(address, encoder, "m")
    one, other = table(tmp_path / "a" / "pairs.parquet", range(4)), table(tmp_path / "b" / "pairs.parquet", range(3, 9))
    fill(memory, encoder, one)
    encoder.images = 0
    with pytest.raises(
        UserError, match=rf"rows of another source called 'pairs' already, read from {one}.*--name NAME"
    ):
        fill(memory, encoder, other)
    assert (encoder.images, len(memory)) == (0, 4)
    fill(memory, encoder, other, BuildOptions(same=False), name="b")
    assert memory.info().sources == {"pairs": 4, "b": 6}
    assert memory.info().places == {"pairs": (str(one),), "b": (str(other),)}
    moved = fill(memory, encoder, table(tmp_path / "c" / "pairs.parquet", range(4)), name="pairs")
    assert (moved.earlier, moved.added, moved.removed, len(memory)) == (4, 0, 0, 10)


@pytest.mark.parametrize(("first", "then"), [(5, 30), (8, 30), (12, 13), (16, 24), (29, 30)])
def test_a_limit_that_is_raised_leaves_no_gap(address, pictures, encoder, monkeypatch, first, then):
    for module in ("building", "editions", "reading"):
        monkeypatch.setattr(f"recollect.memory.build.{module}.ROWS_AT_ONCE", 8)
    monkeypatch.setattr(building, "COMMIT", 16)
    memory, source = open_for_build(address, encoder, "m"), pictures(30)
    reader = Reader(encoder, source, encoder.fingerprint)
    fill_memory(memory, reader, BuildOptions(limit=first))
    report = fill_memory(memory, reader, BuildOptions(limit=then))
    assert report.added == then - first
    numbers = sorted(number for batch in memory.columns(["ordinal"]) for number in batch["ordinal"])
    assert numbers == list(range(then))


def test_one_picture_with_several_captions_has_a_row_for_each(address, tmp_path, encoder):
    memory = open_for_build(address, encoder, "m")
    fill(memory, encoder, table(tmp_path / "pairs.parquet", [1, 1, 2, 1], ["a", "b", "c", "d"]))
    ids = [id for batch in memory.columns(["id"]) for id in batch["id"]]
    assert sorted(id.partition("#")[2] for id in ids) == ["", "", "1", "2"]
    report = fill(memory, encoder, table(tmp_path / "pairs.parquet", [1, 1, 2], ["new", "a", "c"]))
    left = sorted(caption for batch in memory.columns(["caption"]) for caption in batch["caption"])
    assert left == ["a", "c", "new"]
    assert report.removed == 1
    rows = sorted(memory.ids_where("caption in ('a', 'new')"))
    memory.delete(rows[1:])
    assert memory.removals() == [], "the picture is there, with another caption"
    memory.delete(rows[:1])
    assert [each.id for each in memory.removals()] == [rows[0]]


@BOTH
def test_captions_come_later_by_id_or_file_and_can_be_replaced_and_taken_away(address, photos, encoder):
    memory = open_for_build(address, encoder, "m")
    fill(memory, encoder, photos)
    named = {"photos:1.png": "a dog", str(photos / "2.png"): "a cat", "3.png": "a tree"}
    assert memory.set_captions(named, encoder, by="blip") == 3
    assert memory.texts == 3
    found = memory.search(encoder.embed_texts(["a cat"]), 1, "text")
    assert (found.ids[0, 0], round(float(found.scores[0, 0]), 5)) == ("photos:2.png", 1)
    assert memory.fetch(["photos:2.png"])[0].metadata["captioned_by"] == "blip"
    assert memory.set_captions({"photos:1.png": "a wolf", "2.png": "a cat"}, encoder) == 1
    memory.set_captions({"3.png": " "}, encoder)
    assert memory.set_captions({"../photos/1.png": "a wolf"}, encoder, folder=photos) == 0, "named from another place"
    assert (memory.texts, memory.fetch(["photos:1.png"])[0].caption) == (2, "a wolf")
    (photos / "new.png").write_bytes(encoded(99))
    assert fill(memory, encoder, photos).unchanged == 6  # reading the folder again takes no caption away
    assert (len(memory), memory.texts) == (7, 2)
    with pytest.raises(UserError, match=r"no row of '9.png'"):
        memory.set_captions({"9.png": "a", "photos:1.png": "b"}, encoder)
    assert memory.fetch(["photos:1.png"])[0].caption == "a wolf"


def test_rows_of_a_table_that_lack_a_caption_are_pictures_too(tmp_path, encoder):
    memory = open_for_build(tmp_path / "m", encoder, "m")
    report = fill(memory, encoder, table(tmp_path / "pairs.parquet", range(4), ["a", "", None, "d"]))
    assert (report.added, report.wordless) == (4, 2)


def test_memory_of_an_older_format_says_so(tmp_path, encoder):
    from recollect.memory.rows import Record

    old = json.dumps({"width": 4, "model": "m", "model_name": "", "key": "", "format": 1})
    with pytest.raises(UserError, match=r"written by an older recollect. Build it again"):
        Record.read(old, "mine")
    assert Record.read(Record(4, "m").text(), "mine") == Record(4, "m")


def test_half_precision_keeps_cosines_to_a_ten_thousandth(tmp_path, pairs):
    whole, half = (
        Memory.create(tmp_path / name, width=16, model="model-a", precision=name) for name in ("float32", "float16")
    )
    for memory in (whole, half):
        memory.add(pairs(40))
    query = pairs(5, seed=1).image_vectors
    one, other = whole.search(query, 10), half.search(query, 10)
    # Each entry is off by at most 2^-11 of itself, so a cosine by at most 2^-11 · Σ|q_i v_i| ≤ 2^-11.
    np.testing.assert_allclose(one.scores, other.scores, atol=2**-11)
    # Equal vectors are equal whatever the rounding: its change of the norm is divided out (see `lookup.ROUNDING`).
    own = pairs(40).image_vectors
    best = half.search(own, 1)
    assert best.ids[:, 0].tolist() == list(pairs(40).ids)
    np.testing.assert_allclose(best.scores, 1, atol=2**-21 + 18 * 2**-24)
    assert np.abs(np.linalg.norm(half.vectors(list(pairs(40).ids), "image"), axis=1) - 1).max() < 3e-7
    assert set(half.near_duplicates(own, 0.999999)) == set(pairs(40).ids)
    assert half.near_duplicates(own[:1], 1.0) == ["row 0"]
    apart = own[:1] * 0.999 + 0.0447 * own[1:2]
    apart /= np.linalg.norm(apart)
    cosine = float(apart.astype(np.float64)[0] @ half.vectors(["row 0"], "image")[0].astype(np.float64))
    assert half.near_duplicates(apart, cosine + 1e-3) == []
    np.testing.assert_allclose(half.vectors(["row 3"], "text"), whole.vectors(["row 3"], "text"), rtol=2**-10)
