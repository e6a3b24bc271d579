"""Browsing in a real browser: justified rows, facets, sorting, the timeline."""

import numpy as np
import pytest

from browsing import WIDTHS, Tab
from colors import COLORS, ColorEncoder, shade
from pages import start
from pictures import encoded
from recollect.core.recent import LruCache
from recollect.index import File, Index, Rows

FOLDERS = ["Norway/Bergen", "Norway/Oslo's #1 100%", "Ärger & Söhne 😀", ""]
NUMBER = 240


@pytest.fixture(scope="module")
def album(tmp_path_factory):
    """A page of pictures of various shapes in folders with special characters, from 2019 to 2022 or undated."""
    folder = tmp_path_factory.mktemp("album") / "index"
    encoder, random = ColorEncoder(), np.random.default_rng(0)
    names = list(COLORS)
    images = [shade(COLORS[names[number % 3]], number) for number in range(NUMBER)]
    taken = [f"{2019 + number // 60}-{1 + number // 5 % 12:02d}-{1 + number % 28:02d}T12:00:00" if number % 12 else ""
             for number in range(NUMBER)]  # fmt: skip
    index = Index.create(folder, width=3, model=encoder.fingerprint, model_name="colors")
    index.insert(
        Rows(
            ids=[f"{number:032x}" for number in range(NUMBER)],
            image_vectors=encoder.embed_images(images).numpy(),
            files=[(File("album", f"{names[number % 3]} {number:03d}.png",
                         f"/album/{names[number % 3]} {number:03d}.png"),) for number in range(NUMBER)],
            folder=[FOLDERS[number % 4] for number in range(NUMBER)],
            taken=taken,
            camera=["Canon" if number % 8 < 4 else "Nikon D1" for number in range(NUMBER)],
            width=random.integers(50, 200, NUMBER).tolist(),
            height=random.integers(50, 200, NUMBER).tolist(),
            images=[encoded(image) for image in images],
        )
    )  # fmt: skip
    running, stop = start(folder)
    yield running
    stop()


BOXES = """() => [...document.querySelectorAll('.tile:not([hidden])')].map(tile => {
  const box = tile.querySelector('.card').getBoundingClientRect();
  return [box.left, box.top, box.width, box.height, tile.querySelector('.caption').textContent];
}).sort((one, two) => one[1] - two[1] || one[0] - two[0])"""


def rows_of(tab):
    rows = {}
    for box in tab.page.evaluate(BOXES):
        rows.setdefault(round(box[1]), []).append(box)
    return list(rows.values())


@pytest.mark.parametrize("size", WIDTHS)
def test_rows_fill_the_width_and_pictures_keep_their_shape(browser, album, size):
    tab = Tab(browser, album, size)
    shapes = {each.path.name: each.width / each.height for each in Index.open(album.folder)}
    tab.calm()  # the timeline appears with the counts and takes some width
    tab.page.wait_for_selector("#timeline")
    width = tab.page.evaluate("document.querySelector('#grid').clientWidth")
    rows = rows_of(tab)
    assert len(rows) > 3
    for row in rows[:-1]:
        assert abs(row[-1][0] + row[-1][2] - row[0][0] - width) < 2
        assert len({round(box[3], 1) for box in row}) == 1
        for _, _, wide, high, name in row:
            assert abs(wide / high / np.clip(shapes[name], 0.45, 3) - 1) < 0.03
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= WIDTHS[size][0]
    tab.clean()


@pytest.mark.parametrize("size", WIDTHS)
def test_pictures_have_margins_and_can_be_clicked_next_to_the_timeline(browser, album, size):
    tab = Tab(browser, album, size)
    tab.page.wait_for_selector("#timeline")
    tab.calm()
    boxes = [box for row in rows_of(tab) for box in row]
    end = tab.page.locator("#list").bounding_box()
    assert min(box[0] for box in boxes) - end["x"] >= 3
    assert end["x"] + end["width"] - max(box[0] + box[2] for box in boxes) >= 3
    last = next(row[-1] for row in rows_of(tab)[1:])
    at = [last[0] + last[2] - 12, last[1] + last[3] / 2]
    assert tab.page.evaluate("([x, y]) => document.elementFromPoint(x, y).tagName", at) == "IMG"
    if size == "phone":
        hand = tab.page.locator("#timeline-hand").bounding_box()
        assert min(hand["width"], hand["height"]) >= 44, "large enough for a finger"
        assert hand["x"] + hand["width"] <= WIDTHS[size][0]
    tab.clean()


def test_resizing_pictures_keeps_the_scroll_position(browser, album):
    tab = Tab(browser, album)
    tab.page.evaluate("document.querySelector('#grid').scrollTop = 1500")
    tab.calm()
    before = rows_of(tab)
    slide = """size => { const place = document.querySelector('#size'); place.value = size;
      place.dispatchEvent(new Event('input')); }"""
    tab.page.evaluate(slide, 330)
    tab.calm()
    after = rows_of(tab)
    assert len(after[1]) < len(before[1])
    assert np.mean([row[0][3] for row in after]) > 1.3 * np.mean([row[0][3] for row in before])
    visible = {box[4] for row in before[1:3] for box in row}
    assert visible & {box[4] for row in after for box in row}
    tab.page.reload()
    tab.wait("document.querySelector('#size').value === '330'")
    tab.clean()


@pytest.mark.parametrize("size", WIDTHS)
def test_facets_filter_and_are_kept_in_the_address(browser, album, size):
    tab = Tab(browser, album, size)

    def choose(text):
        if not tab.page.is_visible("#browse"):
            tab.page.click("#toggle-browse")
        tab.page.click(f'#browse li button:has-text("{text}")')

    def total(number):
        tab.wait("n => document.querySelector('#status').textContent.startsWith(n + ' pictures')", number)

    total(NUMBER)
    choose("Norway")
    total(120)
    choose("Oslo's #1 100%")
    total(60)
    choose("Canon")
    total(30)
    choose("2021")
    where = "folder = 'Norway/Oslo''s #1 100%' and camera = 'Canon' and taken like '2021%'"
    wanted = len(Index.open(album.folder).ids_where(where))
    total(wanted)
    tab.page.reload()
    total(wanted)
    tab.page.go_back()
    total(30)
    assert tab.page.locator("#scope-chips button").count() == 2
    if tab.page.is_visible("#close-browse"):
        tab.page.click("#close-browse")
    tab.page.click("#scope-off")
    total(NUMBER)
    tab.clean()


def test_pictures_sort_by_date_and_name_and_the_timeline_jumps_to_a_month(browser, album):
    pictures = list(Index.open(album.folder))
    tab = Tab(browser, album)
    newest = max(pictures, key=lambda each: each.taken)
    tab.wait("name => document.querySelector('.tile.focus .caption')?.textContent === name", newest.path.name)
    tab.page.select_option("#sort", "name")
    first = min(each.path.name for each in pictures)
    tab.wait("name => document.querySelector('.tile.focus .caption')?.textContent === name", first)
    assert not tab.page.is_visible("#timeline")
    tab.page.select_option("#sort", "oldest")
    tab.page.wait_for_selector("#timeline .year")
    years = tab.page.evaluate("[...document.querySelectorAll('#timeline .year')].map(each => each.textContent)")
    assert years == ["2019", "2020", "2021", "2022"]
    bar = tab.page.locator("#timeline").bounding_box()
    tab.page.mouse.move(bar["x"] + 20, bar["y"] + 5)
    tab.page.mouse.down()
    tab.page.mouse.move(bar["x"] + 20, bar["y"] + bar["height"] * 0.6, steps=5)
    tab.calm()
    dates = {each.path.name: each.taken for each in pictures}
    shown = [dates[box[4]][:4] for row in rows_of(tab) for box in row]
    assert {"2021"} <= set(shown) <= {"2020", "2021"}
    tab.page.mouse.up()
    tab.page.focus("#timeline")
    tab.page.keyboard.press("Home")
    tab.wait("document.querySelector('#timeline').ariaValueText === 'January 2019'")
    tab.clean()


def test_a_search_can_be_sorted_by_date_and_show_scores(browser, album):
    tab = Tab(browser, album)
    tab.search("red")
    tab.shows("red")
    assert not tab.page.evaluate("[...document.querySelectorAll('.tile .score')].some(each => each.textContent)")
    tab.page.check("#show-scores")
    score = "document.querySelector('.tile.focus .score')?.textContent"
    tab.wait(f"/^[01]\\.\\d{{3}}$/.test({score})")
    tab.page.select_option("#sort", "newest")
    tab.wait("location.search.includes('sort=newest')")
    tab.calm()
    pictures = list(Index.open(album.folder))
    newest = max(pictures, key=lambda each: each.taken).path.name
    tab.wait("name => document.querySelector('.tile.focus .caption')?.textContent === name", newest)
    tab.search("blue")
    tab.shows("blue")
    tab.clean()


def test_a_long_list_loads_its_shapes_when_scrolled(browser, album, monkeypatch):
    monkeypatch.setattr("recollect.web.session._FIRST", 50)
    album.session._lists = LruCache(16)
    tab = Tab(browser, album)
    with tab.page.expect_response("**/api/shapes") as answer:
        tab.page.focus("#grid")
        tab.page.keyboard.press("End")
    assert len(answer.value.body()) == NUMBER
    tab.calm()
    width = tab.page.evaluate("document.querySelector('#grid').clientWidth")
    for row in rows_of(tab)[:-1]:
        assert abs(row[-1][0] + row[-1][2] - row[0][0] - width) < 2
    album.session._lists = LruCache(16)
    tab.clean()


def test_arrow_keys_move_between_rows(browser, album):
    tab = Tab(browser, album)
    tab.wait("document.activeElement.id === 'grid'")
    rows = rows_of(tab)
    focus = "document.querySelector('.tile.focus .caption').textContent"
    for key, row in (("ArrowDown", 1), ("ArrowDown", 2), ("ArrowUp", 1), ("ArrowUp", 0)):
        tab.page.keyboard.press(key)
        assert tab.page.evaluate(focus) in {box[4] for box in rows[row]}
    tab.clean()


SMALL = """() => [...document.querySelectorAll('button, select, a, input:not([type=checkbox])')]
  .filter(each => each.checkVisibility()).map(each => [each.id || each.textContent, each.getBoundingClientRect()])
  .filter(([, box]) => box.height < 43.5 || box.width < 43.5).map(([name]) => name)"""


def test_a_phone_has_a_low_header_and_large_touch_targets(browser, album):
    tab = Tab(browser, album, "phone")
    tab.page.set_viewport_size({"width": 360, "height": 740})
    tab.calm()
    fits = "document.documentElement.scrollWidth <= 360"
    assert tab.page.evaluate("document.querySelector('header').offsetHeight") <= 112
    assert tab.page.evaluate(SMALL) == []
    camera = tab.page.locator("#picture").bounding_box()
    assert camera["x"] + camera["width"] <= 360, "the camera button is visible without scrolling"
    for opens, closes in (("#toggle-browse", "#close-browse"), ("#toggle-classes", "#toggle-classes")):
        tab.page.click(opens)
        assert tab.page.evaluate(SMALL) == []
        assert tab.page.evaluate(fits)
        tab.page.click(closes)
    press = """() => document.querySelector('.tile:not([hidden]) img').dispatchEvent(
      new PointerEvent('pointerdown', { pointerType: 'touch', bubbles: true }))"""
    tab.page.evaluate(press)
    tab.wait("document.querySelector('#selected-count').textContent === '1 selected'")
    assert tab.page.evaluate(SMALL) == []
    assert tab.page.evaluate(fits)
    tab.page.evaluate("document.querySelector('#select-none').click()")
    tab.page.evaluate("document.querySelector('#select-none').click()")  # the first click only ends the long press
    tab.page.click(".tile.focus img")
    tab.page.wait_for_selector("#viewer[open]")
    tab.page.click("#view-info")
    assert tab.page.evaluate(SMALL) == []
    assert tab.page.evaluate(fits)
    tab.clean()
