"""Keeping a memory: following a folder, exporting, duplicates in three levels, and saying what goes before it goes."""

import io
import json
import os
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageDraw

from recollect import cli
from recollect.core.errors import UserError
from recollect.data.sources import open_source
from recollect.memory import Memory
from recollect.memory.build import watching
from recollect.memory.build.building import BuildOptions, fill_memory, open_for_build
from recollect.memory.build.reading import Reader
from recollect.memory.build.watching import FolderWatch, folder_state
from recollect.memory.duplicates import Duplicates, find_duplicates
from recollect.memory.export import export_memory
from recollect.models import build_model


def scene(number, size=96):
    """A picture with shapes, as photographs have them: not noise, which no encoding keeps."""
    draw = np.random.default_rng(number)
    image = Image.new("RGB", (size, size), tuple(draw.integers(0, 256, 3).tolist()))
    pen = ImageDraw.Draw(image)
    for _ in range(6):
        corners = np.sort(draw.integers(0, size, (2, 2)), axis=0).reshape(-1).tolist()
        pen.rectangle(corners, fill=tuple(draw.integers(0, 256, 3).tolist()))
    return image


class Thumbnails:
    """Embeds a picture by its colours at 8 × 8: like pictures get like vectors."""

    width = 192
    fingerprint = "thumbnails"
    scale, prefixes, base = None, {}, None

    def __init__(self):
        self.seen = 0

    def embed_images(self, images):
        import torch

        self.seen += len(images)
        small = [np.asarray(Image.fromarray(np.asarray(each)).resize((8, 8), Image.Resampling.BOX)) for each in images]
        rows = torch.tensor(np.array(small).reshape(len(small), -1).astype(np.float32)) / 128 - 1
        return torch.nn.functional.normalize(rows, dim=1)

    def embed_texts(self, texts, prefix=None):
        raise AssertionError("nothing has a text")

    def refine_images(self, embeddings):
        return embeddings


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(8):
        scene(number).save(folder / f"{number}.png")
    return folder


@pytest.fixture
def followed(tmp_path, photos):
    encoder = Thumbnails()
    memory = open_for_build(tmp_path / "memory", encoder, "m")
    return memory, encoder, FolderWatch(memory, encoder, photos)


def names(memory):
    return sorted(id for batch in memory.columns(["id"]) for id in batch["id"])


def test_a_watched_folder_is_followed(followed, photos):
    memory, encoder, watch = followed
    assert watch.look(settled=True).added == 8
    assert watch.look() is None  # nothing has changed
    scene(100).save(photos / "new.png")
    scene(101).save(photos / "3.png")
    (photos / "5.png").unlink()
    (photos / "below").mkdir()
    scene(102).save(photos / "below" / "deep.png")
    (photos / ".hidden.png").write_bytes(b"not a picture")
    encoder.seen = 0
    assert watch.look() is None  # perhaps still being copied
    report = watch.look()
    assert (report.added, report.replaced, report.removed) == (2, 1, 1)
    assert encoder.seen == 3
    expected = {f"photos:{name}.png" for name in (0, 1, 2, 3, 4, 6, 7, "new", "below/deep")}
    assert set(names(memory)) == expected
    vector = encoder.embed_images([scene(101)]).numpy()
    assert memory.search(vector, 1).ids.tolist() == [["photos:3.png"]]
    assert watch.look() is None


def test_files_of_one_size_and_time_that_exchange_their_names_are_followed(followed, photos):
    """As of uncompressed pictures that were unpacked: whoever writes a file may set the time of its bytes."""
    memory, encoder, watch = followed
    for number in (0, 1):
        (photos / f"{number}.png").unlink()
        scene(number).save(photos / f"{number}.bmp")
        os.utime(photos / f"{number}.bmp", (1e9, 1e9))
    watch.look(settled=True)
    (photos / "0.bmp").rename(photos / "other")
    (photos / "1.bmp").rename(photos / "0.bmp")
    (photos / "other").rename(photos / "1.bmp")
    watch.look()
    assert watch.look().replaced == 2
    assert memory.search(encoder.embed_images([scene(1)]).numpy(), 1).ids.tolist() == [["photos:0.bmp"]]


def test_a_folder_whose_path_has_a_double_colon_is_followed(tmp_path):
    folder, encoder = tmp_path / "2024::summer", Thumbnails()
    folder.mkdir()
    for number in range(3):
        scene(number).save(folder / f"{number}.png")
    memory = open_for_build(tmp_path / "memory", encoder, "m")
    watch = FolderWatch(memory, encoder, folder)
    assert watch.look(settled=True).added == 3
    (folder / "0.png").unlink()
    scene(9).save(folder / "new.png")
    report = watch.look(settled=True)
    assert (report.added, report.removed) == (1, 1)
    assert set(names(memory)) == {f"2024::summer:{name}.png" for name in (1, 2, "new")}
    assert memory.search(encoder.embed_images([scene(9)]).numpy(), 1).ids.tolist() == [["2024::summer:new.png"]]
    assert memory.fetch(["2024::summer:1.png"])[0].path == folder / "1.png"
    assert memory.ids_of([str(folder / "2.png")]) == ["2024::summer:2.png"]
    memory.delete(["2024::summer:2.png"])
    assert watch.look(settled=True) is None or set(names(memory)) == {"2024::summer:1.png", "2024::summer:new.png"}


def test_a_picture_that_vanishes_under_the_first_look_ends_no_watch_and_a_wrong_folder_does(
    followed, photos, monkeypatch, capsys
):
    memory, _, watch = followed
    opened, told = watching.open_source, []

    def vanish(*given, **options):
        (photos / "5.png").unlink()
        monkeypatch.setattr(watching, "open_source", opened)
        raise UserError("photos: cannot be read (5.png does not exist)")

    def vanish_later(*given, **options):
        monkeypatch.setattr(watching, "open_source", opened)
        scene(301).save(photos / "5.png")
        raise FileNotFoundError("no such file: 6.png")

    def tell(report):
        told.append((report.added, report.removed, len(memory)))
        if len(told) == 2:
            raise KeyboardInterrupt
        (photos / "6.png").unlink()
        monkeypatch.setattr(watching, "open_source", vanish_later)

    monkeypatch.setattr(watching, "open_source", vanish)
    with pytest.raises(KeyboardInterrupt):
        watch.follow(0.01, tell)
    assert told == [(7, 0, 7), (1, 1, 7)]
    said = capsys.readouterr().err
    assert "5.png does not exist" in said
    assert "no such file: 6.png" in said

    def wrong(*given, **options):
        raise UserError("photos: is no source")

    monkeypatch.setattr(watching, "open_source", wrong)
    scene(300).save(photos / "other.png")
    with pytest.raises(UserError, match="is no source"):
        watch.follow(0.01, told.append)


def test_a_picture_that_is_half_copied_is_read_when_it_is_whole(followed, photos):
    memory, _, watch = followed
    watch.look(settled=True)
    whole = io.BytesIO()
    scene(200).save(whole, "PNG")
    (photos / "8.png").write_bytes(whole.getvalue()[:60])
    watch.look(), watch.look()
    assert len(memory) == 8
    (photos / "8.png").write_bytes(whole.getvalue())
    watch.look(), watch.look()
    assert len(memory) == 9


def test_what_somebody_has_removed_stays_away_until_it_is_brought_back(followed, photos):
    memory, encoder, watch = followed

    def change(name="new"):
        scene(100 + len(list(photos.iterdir()))).save(photos / f"{name}.png")

    def add(**options):
        reader = Reader(encoder, open_source(str(photos), keep_textless=True), encoder.fingerprint)
        return fill_memory(memory, reader, BuildOptions(**options))

    watch.look(settled=True)
    assert memory.delete(["photos:3.png", "photos:7.png"]) == 2
    change()
    encoder.seen = 0
    report = watch.look(settled=True)
    assert (report.added, report.away, encoder.seen, len(memory)) == (1, 2, 1, 7)
    (photos / "3.png").rename(photos / "another name.png")
    assert (report := add()).added == 0
    assert (report.away, len(memory)) == (2, 7), "nor under another name"
    assert memory.info().removed == {"photos": 2}
    listed, whole = Path(memory.address) / "removed.jsonl", memory.removals()
    content = listed.read_bytes()
    listed.write_bytes(bytes([content[20] ^ 1]).join([content[:20], content[21:]]))  # one bit of the first line
    assert memory.removals() == whole[1:], "a damaged line costs itself alone"
    assert [line.partition(": ")[::2] for line in memory.damage()] == [
        (str(listed), "1 line is damaged; what was removed there may come back with its file")
    ]
    listed.write_bytes(content)
    scene(50).save(photos / "7.png")  # another picture of that name
    assert (add().added, len(memory)) == (1, 8)
    scene(7).save(photos / "again.bmp")  # and the old one, encoded otherwise
    assert (add().away, len(memory)) == (2, 8)
    with pytest.raises(
        UserError, match=r"--bring-back 4.png: no such picture was removed of photos; what was: 'photos:3"
    ):
        add(bring_back=("4.png",))
    assert add(bring_back=(str(photos / "7.png"),)).added == 1, "by the name that it had"
    assert (add(bring_back=("all",)).added, add().away, memory.removals()) == (1, 0, [])
    everything = names(memory)
    assert {"photos:again.bmp", "photos:another name.png"} <= set(everything)
    memory.delete(where="source = 'photos'")
    change("newer")
    assert (watch.look(settled=True).added, names(memory)) == (1, ["photos:newer.png"])
    memory.delete(["photos:newer.png"])
    assert (add().added, len(memory)) == (11, 11), "a source of which nothing is left begins anew"


def test_of_doubles_the_one_that_was_removed_stays_away_while_the_other_is_there(followed, photos):
    memory, encoder, watch = followed
    (photos / "copy.png").write_bytes((photos / "1.png").read_bytes())
    source = open_source(str(photos), keep_textless=True)
    fill_memory(memory, Reader(encoder, source, encoder.fingerprint), BuildOptions(same=False))
    memory.delete(["photos:copy.png"])
    (photos / "1.png").rename(photos / "renamed.png")
    assert watch.look(settled=True).away == 1
    assert {"photos:renamed.png"} == set(names(memory)) & {"photos:renamed.png", "photos:copy.png", "photos:1.png"}
    (photos / "renamed.png").unlink()
    report = watch.look(settled=True)
    assert (report.added, report.removed, report.away, memory.removals()) == (1, 1, 0, [])
    assert "photos:copy.png" in names(memory)


def test_build_watch_and_duplicates_agree_about_copies(followed, photos):
    """A copy is no row of its own, whoever reads the folder; it takes over when its original goes."""
    memory, encoder, watch = followed
    (photos / "0 copy.png").write_bytes((photos / "0.png").read_bytes())
    reader = Reader(encoder, open_source(str(photos), keep_textless=True), encoder.fingerprint)
    assert (fill_memory(memory, reader, BuildOptions()).same, len(memory)) == (1, 8)
    report = watch.look(settled=True)
    assert (report.added, report.same, len(memory)) == (0, 1, 8)
    assert find_duplicates(memory).groups["identical"] == []
    kept = next(id for id in names(memory) if id.startswith("photos:0"))
    (photos / kept.removeprefix("photos:")).unlink()
    assert (watch.look(settled=True).added, len(memory)) == (1, 8)
    assert FolderWatch(memory, encoder, photos).look(settled=True).added == 0


def test_an_emptied_or_missing_folder_takes_no_row_away(followed, photos):
    memory, _, watch = followed
    watch.look(settled=True)
    for file in photos.iterdir():
        file.unlink()
    assert [watch.look(), watch.look(settled=True)] == [None, None]
    photos.rmdir()
    assert watch.look(settled=True) is None
    assert len(memory) == 8
    with pytest.raises(UserError, match="no such folder to watch"):
        FolderWatch(memory, watch.encoder, photos)


def test_what_may_not_be_looked_at_takes_no_row_away(followed, photos, monkeypatch, capsys):
    """A folder, and a picture, of another user: root may look at all, so it is the system that refuses here."""
    memory, _, watch = followed
    (photos / "below").mkdir()
    scene(50).save(photos / "below" / "deep.png")
    os.symlink(".", photos / "again")  # its pictures are these: forty times over, to one who follows it
    assert len(folder_state(photos)) == 9
    assert watch.look(settled=True).added == 9
    (photos / "1.png").unlink()

    def refusing(work, refused):
        def refuse(path, *more, **options):
            if isinstance(path, str | os.PathLike) and refused(os.fspath(path)):
                raise PermissionError(13, "Permission denied", os.fspath(path))
            return work(path, *more, **options)

        return refuse

    with monkeypatch.context() as other:
        other.setattr(os, "scandir", refusing(os.scandir, lambda path: path == str(photos / "below")))
        other.setattr(os, "stat", refusing(os.stat, lambda path: path.startswith(str(photos / "below/"))))
        other.setattr(io, "open", refusing(io.open, lambda path: path == str(photos / "0.png")))
        report = watch.look(settled=True)
    assert (report.removed, report.broken, report.unchanged, len(memory)) == (1, 1, 6, 8)
    said = capsys.readouterr().err
    assert "left out what you may not look into: below\n" in said
    assert "1 row stays, whose file lies where you may not look" in said
    assert "0.png: cannot be read (Permission denied); left out" in said


def test_a_watch_goes_on_where_another_ended_and_touches_no_other_source(followed, photos, tmp_path):
    memory, encoder, watch = followed
    watch.look(settled=True)
    other = tmp_path / "other" / "photos"
    other.mkdir(parents=True)
    scene(300).save(other / "0.png")
    with pytest.raises(UserError, match="rows of another source called 'photos' already"):
        FolderWatch(memory, encoder, other).look(settled=True)
    FolderWatch(memory, encoder, other, "more").look(settled=True)
    assert len(memory) == 9
    (photos / "0.png").unlink()
    encoder.seen = 0
    report = FolderWatch(Memory.open(memory.address), encoder, photos).look(settled=True)
    assert (report.removed, encoder.seen) == (1, 0)
    memory.refresh()
    assert "more:0.png" in names(memory)


def test_duplicates_come_in_three_levels_apart(doubles):
    found = find_duplicates(doubles, threshold=0.7)
    assert found.groups["identical"] == [["photos:1.png", "photos:copy of 1.png"]]
    assert [(group[0], set(group)) for group in found.groups["near-identical"]] == [
        ("photos:2 again.jpg", {"photos:2 again.jpg", "photos:2 small.png", "photos:2.png"})
    ]
    assert ["photos:3 later.png", "photos:3.png"] in found.groups["similar"]
    assert found.spare("identical") == ["photos:copy of 1.png"]
    assert set(found.spare("near-identical")) == {"photos:copy of 1.png", "photos:2 small.png", "photos:2.png"}
    assert find_duplicates(doubles, threshold=1.0).groups["similar"] == []
    assert find_duplicates(doubles, threshold=0.7, everything=False).groups == found.groups, "of few, none is left out"
    with pytest.raises(UserError, match="a cosine lies above 0"):
        find_duplicates(doubles, threshold=0.0)
    rows = doubles.backend.rows(["photos:2 small.png", "photos:copy of 1.png", "photos:2.png"])
    texts = rows.image_vectors * np.float32([[1], [0], [0]])
    said = replace(rows, metadata=[{}, {"clicked_2": "cat"}, {}], captions=["two", "", ""], text_vectors=texts)
    doubles.upsert(said)
    doubles.add(replace(rows.take([2]), ids=["photos:2.png#1"]))
    found = find_duplicates(doubles, threshold=0.7)
    assert found.groups["identical"] == [["photos:copy of 1.png", "photos:1.png"]], "what somebody has worked at stays"
    (near,) = found.groups["near-identical"]
    assert near[0] == "photos:2 small.png"
    gone = {"photos:1.png", "photos:2 again.jpg", "photos:2.png", "photos:2.png#1"}
    assert set(found.spare("near-identical")) == gone, "with all captions of a picture"


def test_removing_duplicates_never_removes_the_first_of_a_group():
    found = Duplicates({"identical": [["b", "c"]], "near-identical": [["a", "b", "d"]]})
    assert set(found.spare("identical")) == {"c"}
    assert set(found.spare("near-identical")) == {"b", "c", "d"}


def test_an_exported_memory_opens_as_parquet_with_a_map_and_true_neighbours(memory, pairs, tmp_path):
    silent = pairs(1, first=40)
    memory.add(type(silent)(**{**vars(silent), "text_vectors": silent.text_vectors * 0, "captions": [""]}))
    assert export_memory(memory, tmp_path / "memory.parquet", k=4) == 41
    rows = pq.read_table(tmp_path / "memory.parquet").to_pylist()
    everything = pairs(41)
    vectors = dict(zip(everything.ids, everything.image_vectors, strict=True))
    for number, row in enumerate(rows):
        np.testing.assert_allclose(row["image_vector"], vectors[row["id"]], atol=1e-6)
        cosines = np.array([vectors[other["id"]] @ vectors[row["id"]] for other in rows])
        cosines[number] = -2
        assert row["neighbors"]["ids"] == np.argsort(-cosines)[:4].tolist()
        np.testing.assert_allclose(row["neighbors"]["distances"], 1 - np.sort(cosines)[::-1][:4], atol=1e-5)
        assert (row["text_vector"] is None) == (row["id"] == "row 40")
    places = np.array([[row["x"], row["y"]] for row in rows])
    centred = np.array([vectors[row["id"]] for row in rows], dtype=np.float64)
    centred -= centred.mean(0)
    spread = np.linalg.svd(centred, compute_uv=False)[:2]
    np.testing.assert_allclose(np.linalg.norm(places, axis=0), spread, rtol=1e-4)
    with pytest.raises(UserError, match=r"written as .parquet"):
        export_memory(memory, tmp_path / "memory.csv")


def test_the_commands_as_their_users_run_them(photos, tmp_path, capsys):
    model, memory = tmp_path / "model", tmp_path / "memory"
    build_model("tiny", texts=["a"]).save(model)

    def run(*words, status=0):
        assert cli.main([str(word) for word in words]) == status
        printed = capsys.readouterr()
        return printed.out if status == 0 else printed.err + printed.out

    run("memory", "build", model, photos, "--out", memory)
    scene(50).save(photos / "new.png")
    (photos / "copy.png").write_bytes((photos / "1.png").read_bytes())
    scene(1).save(photos / "smaller.jpg", quality=60)
    assert "2 added; 10 rows" in run("memory", "watch", memory, photos, "--once"), "a copy is not added"
    assert "nothing is damaged" in run("memory", "info", memory, "--check")
    remove = ("memory", "duplicates", memory, "--remove", "near-identical")
    text = run(*remove, "--out", tmp_path / "groups.json")
    assert "1 group, 1 picture to spare" in text
    assert "1 of 10 rows (10.0%) would be removed" in text
    assert len(Memory.open(memory)) == 10, "nothing goes before it is confirmed"
    groups = json.loads((tmp_path / "groups.json").read_text())
    assert {row["path"] for row in groups["near-identical"][0]} == {str(photos / "1.png"), str(photos / "smaller.jpg")}
    text = run(*remove, "--yes")
    assert "1 of 10 rows (10.0%) removed, 9 left" in text
    (command,) = [line for line in text.splitlines() if line.startswith("  recollect ")]
    assert "9 rows" in run("memory", "watch", memory, photos, "--once"), "what was removed stays out"
    assert "10 rows" in run(*shlex.split(command)[1:]), "and comes back by the command that was shown"
    run(*remove, "--yes")
    near = ("--near", photos, "--model", model, "--threshold", "-1")
    text = run("memory", "remove", memory, *near, "--dry-run")
    assert "has no split 'test'; all of it is compared" in text
    assert "9 of 9 rows (100.0%) would be removed" in text
    text = run("memory", "remove", memory, "--ids", photos / "2.png", "photos:3.png", "--dry-run")
    assert "2 of 9 rows (22.2%) would be removed\n  photos:2.png\n  photos:3.png" in text
    assert len(Memory.open(memory)) == 9
    assert "9 rows:" in run("memory", "export", memory, "--out", tmp_path / "memory.parquet", "--map", "tsne")
    assert "9 rows of images need no index" in run("memory", "index", memory, status=2)
    assert "no index" in run("memory", "index", memory, "--drop")
    assert "no such folder to watch" in run("memory", "watch", memory, tmp_path / "nowhere", status=2)
    assert "files of rows" in run("memory", "optimize", memory, "--keep-days", 0)
    assert "--keep-days -1: from 0 on" in run("memory", "optimize", memory, "--keep-days", -1, status=2)
    assert len(Memory.open(memory)) == 9
    data = (memory / "pairs.lance" / "data").iterdir()
    largest = max(data, key=lambda file: os.stat(file).st_size)
    content = bytearray(largest.read_bytes())
    content[200:600] = bytes(255 - byte for byte in content[200:600])
    largest.write_bytes(bytes(content))
    said = run("memory", "info", memory, "--check", status=2)
    assert "1 damages found" in said
    assert f"{largest}: differs from its checksum" in said
