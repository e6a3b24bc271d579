"""Duplicates on the page: finding, moving, removing and undoing."""

import time
from pathlib import Path

import pytest

import guide_world
from browsing import WIDTHS, Tab
from colors import COLORS, ColorEncoder, paint
from pages import until
from recollect.core.progress import progress
from recollect.index import Index

NEAR = "/api/duplicates?kind=near-identical"


def find_duplicates(page, address="/api/duplicates"):
    """Search for duplicates and wait for the result."""
    page.call("/api/duplicates", b"")
    until(lambda: page.call(address)[1]["state"] != "running")
    return page.call(address)[1]


@pytest.fixture
def photos(tmp_path, start_page):
    """A page with a picture in two folders, three shades of blue, and three drawings in two sizes each."""
    for place in ("one/red.png", "two/red.png"):
        paint(tmp_path / "photos" / place, COLORS["red"], 1)
    for number in range(2, 5):
        paint(tmp_path / "photos" / f"blue {number}.png", COLORS["blue"], number)
    for number in range(3):
        drawn = guide_world.drawing(number).resize((320, 240))
        drawn.save(tmp_path / "photos" / f"drawing {number}.png")
        drawn.resize((200, 150)).save(tmp_path / "photos" / f"small {number}.jpg", quality=85)
    Index.build(tmp_path / "photos", ColorEncoder(), out=tmp_path / "index")
    return start_page(tmp_path / "index")


def test_the_page_shows_the_duplicates_of_the_index(page):
    index = Index.open(page.folder)
    expected = index.duplicates()
    assert page.call("/api/duplicates")[1]["state"] == "idle"
    for kind, groups in (("near-identical", expected.near_identical), ("similar", expected.similar)):
        answer = find_duplicates(page, f"/api/duplicates?kind={kind}")
        shown = {frozenset(each["id"] for each in group["pictures"]) for group in answer["groups"]}
        assert shown == {frozenset(group[:48]) for group in groups}
        assert answer["counts"][kind] == {"groups": len(groups), "pictures": sum(map(len, groups))}
    assert expected.near_identical or expected.similar
    some = page.call(f"{NEAR}&where=number%20%3C%2030")[1]["groups"]
    assert all(int(each["id"].split("/")[1][:-4]) < 30 for group in some for each in group["pictures"])


def test_a_failed_search_for_duplicates_is_reported(page, monkeypatch):
    def fails(index, threshold=0.94):
        raise RuntimeError("the store has a bad day")

    monkeypatch.setattr(Index, "duplicates", fails)
    answer = find_duplicates(page)
    assert (answer["state"], "bad day" in answer["error"]) == ("failed", True)


def test_a_symlink_does_not_count_as_a_file(photos, tmp_path):
    (tmp_path / "photos/a link.png").symlink_to("one/red.png")
    photos.session.library.index.add(tmp_path / "photos")
    (group,) = find_duplicates(photos, "/api/duplicates?kind=identical")["groups"]
    paths = [file["path"] for file in group["pictures"][0]["files"]]
    assert paths == [str(tmp_path / "photos" / place / "red.png") for place in ("one", "two")]
    plan = photos.call("/api/selection/plan", {"ids": [group["pictures"][0]["id"]]})[1]
    assert plan["files"] == 2


def test_moving_the_second_file_of_a_picture_can_be_undone(photos, tmp_path):
    (group,) = find_duplicates(photos, "/api/duplicates?kind=identical")["groups"]
    (picture,) = group["pictures"]
    second = Path(picture["files"][1]["path"])
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved" / second.name).write_bytes(b"another file")
    body = {"kind": "move", "ids": [picture["id"]], "files": [str(second)], "folder": str(tmp_path / "moved")}
    assert photos.call("/api/selection/act", body)[1]["files"] == 1
    assert not second.exists()
    assert (tmp_path / "moved" / second.name).read_bytes() == b"another file", "files are not overwritten"
    assert len(list((tmp_path / "moved").iterdir())) == 2
    assert photos.call("/api/info")[1]["pictures"] == 10, "the picture keeps its other file"
    assert photos.call("/api/undo", b"")[0] == 200
    assert second.exists()


def test_deleting_files_to_another_folder_can_be_undone(photos, tmp_path):
    ids = [tile["id"] for tile in photos.list()["tiles"] if tile["name"].startswith("blue")]
    body = {"kind": "delete", "ids": ids[1:], "folder": str(tmp_path / "moved")}
    assert photos.call("/api/selection/act", body)[1]["files"] == 2
    assert photos.call("/api/info")[1]["pictures"] == 8
    assert len(list((tmp_path / "photos").glob("blue*"))) == 1
    assert photos.call("/api/undo", b"")[1]["undone"]["pictures"] == 2
    assert photos.call("/api/info")[1]["pictures"] == 10
    assert len(list((tmp_path / "photos").glob("blue*"))) == 3
    assert photos.call("/api/selection/act", {"kind": "delete", "ids": ids, "folder": "relative"})[0] == 400


def search_forever(monkeypatch):
    """Make the search for duplicates run until it is stopped."""

    def never_ends(self):
        with progress("compare pixels", 10_000, "pictures") as counter:
            for _ in range(10_000):
                counter.advance(1)
                time.sleep(0.01)
        raise AssertionError

    monkeypatch.setattr(Index, "duplicates", never_ends)


@pytest.mark.parametrize("size", WIDTHS)
def test_duplicates_can_be_selected_previewed_removed_and_restored(browser, photos, size):
    page, tab = photos, Tab(browser, photos, size)
    tab.page.click("#show-duplicates")
    tab.page.click(".found button:has-text('Near')")
    tab.page.wait_for_selector(".alike >> nth=2")
    cards, groups = 6, 3
    assert tab.page.locator(".alike figure.goes").count() == 3, "one picture per group is kept"
    tab.page.press(".alike figure.goes .keep >> nth=0", "Enter")
    tab.wait("rest => document.querySelectorAll('.alike figure.goes').length === rest", cards - groups - 1)
    tab.page.click(".resolve .main")
    tab.page.wait_for_selector(".preview img")
    assert tab.page.locator(".preview li").count() == cards - groups - 1
    tab.page.click(".question .main")
    tab.starts("#notice", "Removed")
    left = 10 - (cards - groups - 1)
    tab.page.wait_for_selector("#notice button")
    assert page.call("/api/info")[1]["pictures"] == left
    if size == "desktop":
        tab.page.keyboard.press("Control+z")
    else:
        tab.page.click("#notice button")
    tab.starts("#notice", "Undone")
    tab.page.wait_for_selector(".alike >> nth=2")
    assert page.call("/api/info")[1]["pictures"] == 10
    wide = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    assert tab.page.evaluate(wide), "the page is not wider than the window"
    tab.clean()


def test_the_search_for_duplicates_can_be_stopped(browser, page, monkeypatch):
    search_forever(monkeypatch)
    tab = Tab(browser, page)
    tab.page.click("#show-duplicates")
    tab.wait("document.querySelector('.found progress')?.value > 0")
    tab.page.click(".found button")
    tab.contains(".found", "Stopped")
    tab.clean()


def test_a_late_response_does_not_change_another_list(browser, photos):
    tab, held = Tab(browser, photos), []
    tab.page.route("**/api/duplicates?*kind=identical*", lambda route: held.append(route))
    tab.page.click("#show-duplicates")
    with tab.page.expect_response(lambda answer: "kind=near-identical" in answer.url):
        tab.page.click(".found button:has-text('Near')")
    tab.page.wait_for_selector(".alike >> nth=2")
    with tab.page.expect_response(lambda answer: "kind=identical" in answer.url) as late:
        held.pop().continue_()
    late.value.finished()
    tab.page.evaluate("fetch('/api/info').then((answer) => answer.text())")  # wait until the page has processed it
    assert tab.page.locator(".alike").count() == 3
    tab.clean()
