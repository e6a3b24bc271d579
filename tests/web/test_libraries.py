"""Switching between libraries, dropping pictures, and saved searches."""

from pathlib import Path

import pytest

from browsing import WIDTHS, Tab
from colors import COLORS, paint, shade
from pages import color_index, until
from pictures import encoded
from recollect.web import folder as folders


@pytest.fixture
def photos(tmp_path, monkeypatch, start_page):
    """The page of an index next to a smaller one and to a folder of pictures, all with the same model."""
    monkeypatch.setenv("RECOLLECT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(folders, "POLL_SECONDS", 0.05)
    color_index(tmp_path / "indexes/large")
    color_index(tmp_path / "indexes/small", rows=9)
    for number in range(4):
        paint(tmp_path / "Ärger & Co" / f"red {number}.png", COLORS["red"], number)
    return start_page(tmp_path / "indexes/large")


def libraries(page, prefix=""):
    return {each["name"]: each for each in page.call(f"{prefix}/api/libraries")[1]["libraries"]}


def test_each_library_has_its_own_address_and_labels(photos):
    known = libraries(photos)
    assert list(known) == ["large", "small"]
    assert known["large"]["current"]
    small = f"/library/{known['small']['key']}"
    assert photos.call(f"{small}/api/info")[1]["pictures"] == 9
    assert photos.call("/api/info")[1]["pictures"] == 60
    assert libraries(photos, small)["small"]["current"]
    photos.call(f"{small}/api/classes", {"name": "warm"})
    assert photos.call("/api/classes")[1]["classes"] == []
    assert (photos.folder.parent / "small" / "annotations.sqlite").exists()
    assert b"<!doctype html>" in photos.call(f"{small}/", raw=True)[1][0]
    for path in ("", "api/info", "static/app.js"):
        status, answer = photos.call(f"/library/0123456789/{path}")
        assert status == 404
        assert "unknown library" in answer["error"]


def test_opening_a_folder_indexes_and_watches_it(photos, tmp_path):
    folder = tmp_path / "Ärger & Co"
    status, answer = photos.call("/api/libraries", {"place": str(folder)})
    assert status == 200, answer
    opened = f"/library/{answer['key']}"
    until(lambda: photos.call(f"{opened}/api/info")[1]["pictures"] == 4)
    paint(folder / "green.png", COLORS["green"], 9)
    until(lambda: photos.call(f"{opened}/api/info")[1]["pictures"] == 5)
    assert photos.call("/api/info")[1]["pictures"] == 60
    for place, message in (("relative", "absolute path"), (str(tmp_path / "none"), "no such folder")):
        status, answer = photos.call("/api/libraries", {"place": place})
        assert status == 400
        assert message in answer["error"]


def test_a_dropped_picture_is_copied_and_added_without_overwriting_files(photos, tmp_path):
    place = Path(photos.call("/api/info")[1]["adds_to"])
    assert place.is_relative_to(tmp_path / "home")
    for number, name in enumerate(("../../new.png", "new.png")):
        added = photos.call(f"/api/added?name={name}", encoded(shade(COLORS["red"], 100 + number)))[1]
        assert Path(added["file"]).parent == place
    assert len(list(place.iterdir())) == 2
    assert photos.call("/api/added?name=text.png", b"not a picture")[0] == 400
    assert len(list(place.iterdir())) == 2
    assert photos.call("/api/folders", {"folder": str(place)})[0] == 200
    until(lambda: photos.call("/api/info")[1]["pictures"] == 62)


def test_libraries_with_the_same_name_keep_dropped_pictures_in_separate_folders(photos, tmp_path):
    places = []
    for place in ("home/indexes/Photos-aaaaaaaaaa", "home/indexes/Photos-bbbbbbbbbb", "Photos", "elsewhere/Photos"):
        color_index(tmp_path / place, rows=3)
        key = photos.call("/api/libraries", {"place": str(tmp_path / place)})[1]["key"]
        info = photos.call(f"/library/{key}/api/info")[1]
        assert info["name"] == "Photos"
        places.append(Path(info["adds_to"]))
    assert len(set(places)) == 4
    assert all(each.parent == tmp_path / "home/pictures" and each.name.startswith("Photos-") for each in places)


def test_pictures_dropped_on_a_folder_library_go_to_that_folder(photos, tmp_path):
    folder = tmp_path / "Ärger & Co"
    key = photos.call("/api/libraries", {"place": str(folder)})[1]["key"]
    added = photos.call(f"/library/{key}/api/added?name=blue.png", encoded(shade(COLORS["blue"], 50)))[1]
    assert added == {"file": str(folder / "Added/blue.png"), "folder": str(folder / "Added"), "watched": True}
    until(lambda: photos.call(f"/library/{key}/api/info")[1]["pictures"] == 5)


def test_saved_searches_are_shared_by_all_tabs_and_can_be_removed(photos):
    assert photos.call("/api/searches")[1]["searches"] == {}
    photos.call("/api/searches", {"name": "warm ones", "address": "q=red"})
    photos.call("/api/searches", {"name": "cold", "address": "q=blue"})
    assert photos.call("/api/searches")[1]["searches"] == {"warm ones": "q=red", "cold": "q=blue"}
    photos.call("/api/searches", {"name": "warm ones", "address": None})
    assert photos.call("/api/searches")[1]["searches"] == {"cold": "q=blue"}


@pytest.mark.parametrize("size", WIDTHS)
def test_a_saved_search_can_be_reopened_and_the_library_switched(browser, photos, size):
    tab = Tab(browser, photos, size)
    show_browse = lambda: tab.page.is_visible("#browse") or tab.page.click("#toggle-browse")  # noqa: E731
    tab.search("red")
    show_browse()
    tab.page.click("#searches .more")
    tab.page.fill(".question input", "my reds")
    tab.page.click(".question .main")
    tab.page.wait_for_selector("#searches .word:has-text('my reds')")
    if size == "phone":
        tab.page.click("#close-browse")
    tab.search("blue")
    show_browse()
    tab.contains("#searches", "blue")
    tab.page.click("#searches .word:has-text('my reds')")
    tab.wait("document.querySelector('#words').value === 'red'")
    tab.shows("red")
    show_browse()
    tab.page.click("#open-libraries")
    tab.page.click(".libraries button:has-text('small')")
    tab.starts("#status", "9 pictures")
    assert "/library/" in tab.page.url
    tab.page.reload()
    tab.wait("document.querySelector('.tile.focus img')?.naturalWidth > 0")
    tab.starts("#status", "9 pictures")
    tab.clean()


def test_a_dropped_picture_can_be_searched_by_or_added(browser, photos):
    tab = Tab(browser, photos)
    drop = """([target, name, bytes]) => {
      const files = new DataTransfer();
      files.items.add(new File([new Uint8Array(bytes)], name, { type: "image/png" }));
      const about = { dataTransfer: files, bubbles: true, cancelable: true };
      const send = (place, kind) => place.dispatchEvent(new DragEvent(kind, about));
      send(document.body, "dragover");
      if (document.querySelector("#drop-add").hidden) throw new Error("the drop target for adding is hidden");
      send(document.querySelector(target), "drop");
    }"""
    data = list(encoded(shade(COLORS["red"], 77)))
    tab.page.evaluate(drop, ["#grid", "red.png", data])
    tab.page.wait_for_selector(".term img")
    tab.shows("red")
    assert tab.page.is_hidden("#drop-add")
    tab.page.click(".term button:last-child")
    tab.starts("#status", "60 pictures")
    tab.page.evaluate(drop, ["#drop-add", "new.png", data])
    tab.starts("#status", "61 pictures")
    assert photos.call("/api/info")[1]["pictures"] == 61
    tab.clean()
