"""The viewer and actions on selected pictures, in a real browser with files on disk."""

import csv
import io
import json

import pyarrow.parquet as pq
import pytest

from browsing import WIDTHS, Tab
from colors import COLORS, ColorEncoder, shade
from pictures import encoded
from recollect.index import Index, transfer
from recollect.index.picture import TRASH

NUMBER = 24


@pytest.fixture
def album(tmp_path, start_page):
    """A page of 24 pictures in a folder with special characters."""
    names, folder = list(COLORS), tmp_path / "photos/Ärger #1 100% 😀"
    folder.mkdir(parents=True)
    for number in range(NUMBER):
        name = names[number % 3]
        (folder / f"{name} {number:02d}'s.png").write_bytes(encoded(shade(COLORS[name], number)))
    Index.build(tmp_path / "photos", ColorEncoder(), out=tmp_path / "index", model_name="colors")
    running = start_page(tmp_path / "index")
    running.session.local = True
    return running


def photos(album):
    return sorted(each.name for each in (album.folder.parent / "photos").rglob("*.png"))


def selected(tab, number):
    tab.wait("n => document.querySelector('#selected-count').textContent === n + ' selected'", number)


def names_of(tab):
    return tab.captions(NUMBER)


def test_pictures_are_selected_by_click_range_rectangle_and_shortcut(browser, album):
    tab = Tab(browser, album)
    tab.page.hover(".tile:not([hidden]) >> nth=0")
    tab.page.click(".tile.focus .check")
    selected(tab, 1)
    tiles = tab.page.locator(".tile:not([hidden]) img")
    tiles.nth(4).click(modifiers=["Shift"])
    selected(tab, 5)
    tiles.nth(2).click(modifiers=["Control"])
    selected(tab, 4)
    tiles.nth(2).click()  # with a selection, a plain click also selects
    selected(tab, 5)
    assert not tab.page.is_visible("#viewer")
    tab.page.keyboard.press("Escape")
    assert not tab.page.is_visible("#selected")
    places = tab.page.evaluate(
        "[...document.querySelectorAll('.tile:not([hidden]) .card')].map(each => each.getBoundingClientRect())"
        ".map(each => [each.y, each.x]).sort((one, two) => one[0] - two[0] || one[1] - two[1])"
    )
    tab.page.mouse.move(places[0][1] + 60, places[0][0] + 60)
    tab.page.mouse.down()
    tab.page.mouse.move(places[1][1] + 20, places[1][0] + 80, steps=6)
    tab.page.mouse.up()
    selected(tab, 2)
    assert not tab.page.is_visible("#viewer"), "drawing a rectangle does not open the viewer"
    tab.page.keyboard.press("Control+a")
    selected(tab, NUMBER)
    tab.page.click("#select-none")
    tiles.nth(0).click()
    tab.page.wait_for_selector("#viewer[open]")
    tab.clean()


def test_pictures_can_be_searched_filtered_labeled_and_exported(browser, album):
    """The journey of a user who finds, labels and exports red pictures."""
    tab = Tab(browser, album)
    tab.search("red")
    tab.shows("red")
    tab.filter("path like '%red%'")
    tab.starts("#status", "8 pictures")
    tab.page.click(".tile.focus img")
    tab.page.wait_for_selector("#viewer[open]")
    tab.page.keyboard.press("f")
    tab.wait("[...document.querySelectorAll('#view-labels .chosen')].some(each => each.textContent === 'Favorites')")
    tab.page.keyboard.press("ArrowRight")
    tab.page.keyboard.press("Escape")
    tab.wait("!document.querySelector('#viewer').open")
    tab.page.keyboard.press("Control+a")
    selected(tab, 8)
    tab.page.select_option("#selected-label", "new")
    tab.page.fill(".question input", "warm")
    tab.page.click(".question .main")
    tab.contains("#notice", "8 pictures labeled warm")
    (warm,) = [each for each in album.call("/api/classes")[1]["classes"] if each["name"] == "warm"]
    assert (warm["yes"], warm["no"]) == (8, 0)
    tab.page.keyboard.press("Control+a")
    read = {
        "csv": lambda data: [json.loads(row["labels"]) for row in csv.DictReader(io.StringIO(data.decode()))],
        "parquet": lambda data: pq.read_table(io.BytesIO(data))["labels"].to_pylist(),
        "coco": lambda data: [["warm", each["file_name"]] for each in json.loads(data)["images"]],
    }
    for kind, labels in read.items():
        with tab.page.expect_download() as download:
            tab.page.select_option("#selected-export", kind)
        with open(download.value.path(), "rb") as file:
            exported = labels(file.read())
        assert len(exported) == 8
        assert all("warm" in each for each in exported)
    tab.page.click("#selected-copy")
    out = album.folder.parent / "new folder/out"
    tab.page.fill(".question input", str(out))
    tab.page.click(".question .main")
    tab.contains("#notice", "8 pictures copied")
    assert len(list(out.glob("red*.png"))) == 8
    tab.page.click("#notice button")
    tab.starts("#notice", "Undone")
    assert list(out.iterdir()) == []
    tab.clean()


def test_removing_and_deleting_need_confirmation_and_can_be_undone(browser, album):
    before = photos(album)
    tab = Tab(browser, album)
    tab.page.keyboard.press("s")
    selected(tab, 1)
    tab.page.click("#selected-remove")
    tab.page.click(".question .main")
    tab.starts("#status", "23 pictures")
    assert photos(album) == before
    tab.page.click("#notice button")
    tab.starts("#status", "24 pictures")
    tab.page.keyboard.press("Control+a")
    tab.page.click("#selected-delete")
    tab.page.click(".question .main")
    tab.contains(".question .folders", "Ärger #1 100% 😀: 24")
    tab.page.click(".question button:not(.main)")
    assert photos(album) == before, "deleting needs a second confirmation"
    tab.page.keyboard.press("Escape")
    tab.page.keyboard.press("s")
    selected(tab, 1)
    tab.page.click("#selected-delete")
    tab.page.click(".question .main")
    tab.page.click(".question .main:has-text('Delete 1 file')")
    tab.starts("#status", "23 pictures")
    folder = album.folder.parent / "photos"
    assert len(list(folder.glob("Ä*/*.png"))) == 23
    assert len(list(folder.glob(".recollect-trash/*.png"))) == 1
    tab.page.click("#notice button")
    tab.starts("#status", "24 pictures")
    assert photos(album) == before
    tab.page.keyboard.press("Control+a")
    tab.page.click("#selected-move")
    tab.page.fill(".question input", str(album.folder.parent / "moved"))
    tab.page.click(".question .main")
    tab.contains("#notice", "24 pictures moved")
    assert len(list((album.folder.parent / "moved").iterdir())) == NUMBER
    tab.page.reload()
    tab.wait("document.querySelector('.tile.focus img')?.naturalWidth > 0")
    tab.clean()


@pytest.mark.parametrize("size", WIDTHS)
def test_the_viewer_zooms_pans_navigates_and_closes_in_three_ways(browser, album, size):
    tab = Tab(browser, album, size)
    opens = lambda: (tab.page.click(".tile.focus img"), tab.page.wait_for_selector("#viewer[open]"))  # noqa: E731
    opens()
    tab.wait("document.querySelector('#view').naturalWidth > 0")
    closed = "!document.querySelector('#viewer').open"
    box = tab.page.locator("#view-stage").bounding_box()
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    zoom = "Number(/scale\\(([\\d.]+)\\)/.exec(document.querySelector('#view').style.transform)?.[1] ?? 1)"
    tab.page.mouse.move(*middle)
    tab.page.mouse.wheel(0, -600)
    tab.wait(f"{zoom} > 2")
    tab.page.keyboard.press("0")
    tab.wait(f"{zoom} === 1")
    tab.page.mouse.dblclick(*middle)
    tab.wait(f"{zoom} > 2")
    before = tab.page.evaluate("document.querySelector('#view').style.transform")
    for _ in range(6):
        tab.page.keyboard.press("+")
    tab.page.mouse.down()
    tab.page.mouse.move(middle[0] + 40, middle[1] + 30, steps=4)
    tab.page.mouse.up()
    assert tab.page.evaluate("document.querySelector('#view').style.transform") != before
    assert not tab.page.evaluate(closed), "dragging does not count as a click"
    shown = tab.page.get_attribute("#view", "src")
    tab.page.keyboard.press("ArrowRight")
    tab.wait("shown => !document.querySelector('#view').src.endsWith(shown)", shown)
    assert tab.page.evaluate(zoom) == 1
    tab.page.keyboard.press("Escape")
    tab.wait(closed)
    opens()
    tab.page.go_back()
    tab.wait(closed)
    opens()
    tab.wait("document.querySelector('#view').naturalWidth > 0")
    tab.page.mouse.click(box["x"] + 3, box["y"] + box["height"] - 3)  # outside the picture
    tab.wait(closed)
    tab.clean()


def test_the_viewer_shows_and_downloads_the_file(browser, album):
    tab = Tab(browser, album)
    name = tab.captions(1)[0]
    tab.page.click(".tile.focus img")
    tab.wait("name => document.querySelector('#view-about').textContent.includes(name)", name)
    with tab.page.expect_download() as download:
        tab.page.click("#download")
    assert download.value.suggested_filename == name
    (file,) = (album.folder.parent / "photos").rglob(name)
    with open(download.value.path(), "rb") as data:
        assert data.read() == file.read_bytes()
    tab.page.click("#more")
    tab.wait("document.querySelector('.term img')")
    tab.clean()


def test_marks_moves_and_removals_share_one_undo_history(album):
    """Undo reverts the latest change of any kind."""
    before = photos(album)
    ids = [tile["id"] for tile in album.list()["tiles"]]
    (key,) = [album.call("/api/classes", {"name": "warm"})[1]["class"]]
    marks = {"ids": ids[:3], "mark": 1}
    assert album.call(f"/api/classes/{key}/marks", marks)[0] == 200
    moved = {"kind": "move", "ids": ids[:2], "folder": str(album.folder.parent / "moved")}
    assert album.call("/api/selection/act", moved)[1]["files"] == 2
    assert album.call("/api/selection/act", {"kind": "remove", "ids": ids[5:9]})[1]["pictures"] == 4
    assert album.call("/api/selection/act", {"kind": "remove", "ids": ids[9:10]})[1]["pictures"] == 1
    assert album.call(f"/api/classes/{key}/marks", {"ids": ids[3:5], "mark": -1})[0] == 200
    undone = []
    while album.call("/api/classes")[1]["undo"] is not None:
        announced = album.call("/api/classes")[1]["undo"]
        answer = album.call("/api/undo", b"")[1]["undone"]
        assert answer["do"] == announced["do"]
        undone.append((answer["do"], answer.get("pictures", len(answer.get("ids", [])))))
    assert undone == [("mark", 2), ("remove", 1), ("remove", 4), ("move", 2), ("mark", 3), ("class", 0)]
    assert photos(album) == before
    assert album.call("/api/info")[1]["pictures"] == NUMBER
    assert album.call("/api/undo", b"")[1]["undone"] is None
    assert album.call("/api/redo", b"")[1]["redone"]["do"] == "class"


def test_undoing_a_copy_keeps_changed_copies_and_the_only_file_left(album):
    ids, out = [tile["id"] for tile in album.list()["tiles"]][:3], album.folder.parent / "out"
    assert album.call("/api/selection/act", {"kind": "copy", "ids": ids, "folder": str(out)})[1]["files"] == 3
    changed, only, _ = sorted(out.iterdir())
    data = bytearray(changed.read_bytes())
    data[-20] ^= 1  # same length
    changed.write_bytes(data)
    next((album.folder.parent / "photos").rglob(only.name)).unlink()
    assert album.call("/api/undo", b"")[1]["undone"]["do"] == "copy"
    assert sorted(out.iterdir()) == [changed, only]


def test_an_action_stopped_by_an_error_can_be_undone(album, monkeypatch):
    before, ids, left = photos(album), [tile["id"] for tile in album.list()["tiles"]], [5]
    real = transfer.move_file

    def fails(source, target):
        left[0] -= 1
        if not left[0]:
            raise OSError("the disk is full")
        return real(source, target)

    monkeypatch.setattr(transfer, "move_file", fails)
    trash = album.folder.parent / "photos" / TRASH
    assert album.call("/api/selection/act", {"kind": "delete", "ids": ids})[0] == 400
    assert len(list(trash.iterdir())) == 4
    assert album.call("/api/undo", b"")[1]["undone"]["do"] == "delete"
    assert (photos(album), list(trash.iterdir())) == (before, [])
    assert album.call("/api/info")[1]["pictures"] == NUMBER


def test_pictures_deleted_in_another_tab_are_skipped(album):
    ids, out = [tile["id"] for tile in album.list()["tiles"]][:4], str(album.folder.parent / "out")
    assert album.call("/api/selection/act", {"kind": "delete", "ids": ids[:2]})[1]["files"] == 2
    assert album.call("/api/selection/act", {"kind": "move", "ids": ids, "folder": out})[1]["files"] == 2
    assert album.call("/api/selection/act", {"kind": "move", "ids": ids[:2], "folder": out})[0] == 400


def test_an_existing_label_name_is_reused_and_a_later_mark_hides_the_undo_button(browser, album):
    album.call("/api/classes", {"name": "warm"})
    tab = Tab(browser, album, address="/?label=1")
    tab.ready()
    tab.page.keyboard.press("s")
    selected(tab, 1)
    tab.page.select_option("#selected-label", "new")
    tab.page.fill(".question input", "warm")
    tab.page.click(".question .main")
    tab.page.wait_for_selector("#notice button")
    tab.wait("document.querySelector('#classes .counts').textContent === '✓1 ✗0'")
    tab.page.focus("#grid")
    tab.page.keyboard.press("ArrowRight")
    tab.ready()
    tab.page.keyboard.press("x")
    tab.wait("document.querySelector('#classes .counts').textContent === '✓1 ✗1'")
    tab.page.wait_for_selector("#notice", state="hidden", timeout=2_000)
    tab.clean()


def test_all_pictures_of_a_filter_can_be_deleted_and_restored(browser, album):
    tab = Tab(browser, album)
    tab.filter("width > 1 and path like '%red%'")
    tab.starts("#status", "8 pictures")
    tab.page.focus("#grid")
    tab.page.keyboard.press("Control+a")
    selected(tab, 8)
    tab.page.click(".tile.focus .check")
    selected(tab, 7)
    tab.page.click(".tile.focus .check")
    selected(tab, 8)
    tab.page.click("#show-map")
    tab.page.click(".map-tools button:has-text('Select visible pictures')")  # works before the map has loaded
    assert tab.page.is_hidden("#selected"), "the map has its own selection"
    tab.page.click("#show-grid")
    tab.page.click("#selected-delete")
    tab.page.click(".question .main")
    tab.page.click(".question .main:has-text('Delete 8 files')")
    tab.contains("#notice", "8 pictures deleted")
    assert tab.page.is_visible("#empty")
    tab.page.keyboard.press(" ")
    tab.page.click("#notice button")
    tab.starts("#status", "8 pictures")
    assert tab.page.is_hidden("#empty")
    assert len(photos(album)) == NUMBER
    tab.clean(errors=True)


def test_removed_and_deleted_pictures_can_be_restored_after_a_restart(browser, album, start_page):
    before, ids = photos(album), album.list()["tiles"]
    removed, deleted = ids[0]["id"], ids[1]["id"]
    album.call("/api/selection/act", {"kind": "remove", "ids": [removed]})
    album.call("/api/selection/act", {"kind": "delete", "ids": [deleted]})
    assert ".recollect-trash" in str(next(each for each in album.folder.parent.rglob(ids[1]["name"])))
    tab = Tab(browser, start_page(album.folder))
    tab.page.click("#open-settings")
    tab.page.click("text=Removed pictures …")
    for number in range(2):
        tab.page.click(f".sheet li button >> nth={number}")
    tab.page.click(".sheet button:has-text('Put back')")
    tab.starts("#status", f"{NUMBER} pictures")
    tab.clean()
    assert photos(album) == before
    assert {removed, deleted} <= set(Index.open(album.folder.parent / "index").ids)


def test_labels_are_exported_as_coco_annotations(album):
    ids = [tile["id"] for tile in album.list()["tiles"]]
    (key,) = [album.call("/api/classes", {"name": "warm"})[1]["class"]]
    album.call(f"/api/classes/{key}/marks", {"ids": ids[:2], "mark": 1})
    status, (data, _) = album.call("/api/selection/export", {"kind": "coco-labels", "ids": ids[:3]}, raw=True)
    assert status == 200
    coco = json.loads(data)
    (category,) = coco["categories"]
    assert category["name"] == "warm"
    images = {each["id"]: each for each in coco["images"]}
    assert len(images) == 3
    assert [each["category_id"] for each in coco["annotations"]] == [category["id"]] * 2
    for each in coco["annotations"]:
        image = images[each["image_id"]]
        assert each["bbox"] == [0, 0, image["width"], image["height"]]
