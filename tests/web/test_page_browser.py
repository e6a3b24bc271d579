"""User journeys in a real browser, at desktop and phone width."""

from dataclasses import replace

import pytest

from browsing import WIDTHS, Tab
from colors import COLORS, ColorEncoder, shade
from pages import HOSTILE
from pictures import encoded
from recollect.classifiers.classifier import Classifier
from recollect.core.errors import UserError
from recollect.core.recent import LruCache
from recollect.index import Index
from recollect.index.search import rank_pictures
from recollect.web.session import Listing


@pytest.mark.parametrize("size", WIDTHS)
def test_searching_by_text_by_picture_and_away_from_a_picture(browser, shared_page, size):
    tab = Tab(browser, shared_page, size)
    tab.search("red")
    tab.shows("red")
    data = encoded(shade(COLORS["blue"], 999))
    tab.page.fill("#words", "")
    tab.page.set_input_files("#file", {"name": "blue.png", "mimeType": "image/png", "buffer": data})
    tab.page.wait_for_selector(".term img")
    tab.shows("blue")
    tab.page.click(".term button >> nth=0")  # search away from the picture
    tab.page.wait_for_selector(".term.away")
    tab.wait("!document.querySelector('.tile .caption').textContent.includes('blue')")
    tab.page.click(".term button >> nth=1")
    tab.filter("number < 4")
    tab.starts("#status", "4 pictures")
    tab.clean()


@pytest.mark.parametrize("size", WIDTHS)
def test_a_class_learned_from_clicks_is_saved_and_survives_a_reload(browser, page, size):
    tab = Tab(browser, page, size)
    tab.new_class("reds", "red")
    tab.shows("red", 4)
    for _ in range(3):
        before = tab.page.inner_text(".counts")
        tab.ready()
        tab.page.click(".tile.focus:not([hidden]) .marks .yes")
        tab.wait("before => document.querySelector('.counts').textContent !== before", before)
    tab.search("green")
    tab.shows("green")
    for index in (0, 1, 2):
        before = tab.page.inner_text(".counts")
        tab.page.click(f".tile:not([hidden]):not(.no) .marks .no >> nth={index}")
        tab.wait("before => document.querySelector('.counts').textContent !== before", before)
    assert tab.page.inner_text(".counts") == "✓3 ✗3"
    tab.page.click("[data-show=likely]")
    tab.contains("#cut", "likely matches")
    tab.shows("red", 4)
    tab.page.fill("#save-name", "reds")
    tab.page.press("#save-name", "Enter")
    tab.starts("#notice", "Saved")
    folder = page.folder / "page/classifiers/reds"
    assert tab.page.inner_text("#saved code") == str(folder)
    saved = Classifier.load(folder)
    assert saved.predict(ColorEncoder().embed_images([shade(COLORS["red"], 77)])).tolist() == ["reds"]
    tab.page.reload()
    tab.page.wait_for_selector(".tile .caption:not(:empty)")
    tab.panel()
    tab.page.wait_for_selector(".counts")
    assert tab.page.inner_text(".counts") == "✓3 ✗3"
    tab.clean()


def test_tab_reaches_the_pictures_from_the_search_box(browser, page):
    tab = Tab(browser, page)
    focused = "document.activeElement.id"
    tab.page.focus("#words")
    for _ in range(8):
        tab.page.keyboard.press("Tab")
        if tab.page.evaluate(focused) == "skip":
            break
    assert tab.page.locator("#skip").bounding_box()["width"] > 50, "visible while it has the focus"
    tab.page.keyboard.press("Enter")
    assert tab.page.evaluate(focused) == "grid"
    tab.page.keyboard.press("Tab")
    assert tab.page.evaluate("getComputedStyle(document.querySelector('#skip')).opacity") == "0"


def test_keyboard_shortcuts_mark_undo_and_navigate(browser, page):
    tab = Tab(browser, page)
    tab.new_class("reds", "red")
    tab.shows("red")
    tab.wait("document.activeElement.id === 'grid'")
    for key, counts in (
        (" ", "✓1 ✗0"),
        ("x", "✓1 ✗1"),
        ("u", "✓1 ✗0"),
        ("r", "✓1 ✗1"),
        ("u", "✓1 ✗0"),
        ("Control+z", "✓0 ✗0"),
        ("1", "✓1 ✗0"),
    ):
        tab.ready()
        tab.page.keyboard.press("Space" if key == " " else key)
        tab.wait("counts => document.querySelector('.counts').textContent === counts", counts)
    tab.ready()
    page.call("/api/classes", {"name": "others"})
    tab.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    tab.wait("document.querySelectorAll('#classes li').length === 2")
    tab.ready()
    tab.page.keyboard.press("2")
    tab.starts("#status", "✓ for others: red")
    tab.page.keyboard.press("ArrowRight")
    tab.ready()
    active = "document.getElementById(document.querySelector('#grid').getAttribute('aria-activedescendant'))"
    assert tab.page.evaluate(f"{active} === document.querySelector('.tile.focus:not([hidden])')")
    assert "red" in tab.page.evaluate(f"{active}.getAttribute('aria-label')")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector("#viewer[open]")
    tab.wait("document.querySelector('#view').naturalWidth > 0")
    opened = tab.page.inner_text("#view-caption")
    tab.page.keyboard.press("ArrowRight")
    tab.wait("caption => ![caption, ''].includes(document.querySelector('#view-caption').innerText)", opened)
    tab.page.click("#before")
    tab.wait("caption => document.querySelector('#view-caption').innerText === caption", opened)
    tab.page.keyboard.press("Escape")
    tab.page.keyboard.press("/")
    assert tab.page.evaluate("document.activeElement.id") == "words"
    tab.clean()


def test_pressing_a_key_twice_before_the_response_marks_once(browser, page):
    page.call("/api/classes", {"name": "reds"})
    tab = Tab(browser, page, address="/?label=1")
    tab.ready()
    requests = []
    tab.page.on("request", lambda request: requests.append(request) if request.url.endswith("/marks") else None)
    tab.page.focus("#grid")
    tab.page.evaluate(
        "for (const _ of [1, 2]) document.querySelector('#grid').dispatchEvent("
        "new KeyboardEvent('keydown', { key: ' ', bubbles: true }))"
    )
    tab.wait("document.querySelector('#classes .counts').textContent === '✓1 ✗0'")
    tab.calm()
    assert len(requests) == 1
    assert tab.page.evaluate("document.querySelector('.tile.focus').getAttribute('aria-posinset')") == "2"
    tab.clean()


def test_hostile_captions_are_plain_text_and_the_viewer_shows_all_captions(browser, page):
    index = Index.open(page.folder, ColorEncoder())
    (id,) = index.ids_where("number = 58")
    captions = [HOSTILE, f"{HOSTILE} again", "a wordofone" + "hundredandmanyletters" * 12]
    index.set_captions({id: captions})
    tab = Tab(browser, page)
    tab.filter("number = 58")
    tab.starts("#status", "1 picture")
    tab.wait("caption => document.querySelector('.tile:not([hidden]) .caption').textContent === caption",
                              HOSTILE)  # fmt: skip
    tab.page.click(".tile:not([hidden]) img")
    shown = "[...document.querySelectorAll('#view-caption li')].map(each => each.textContent).join('|')"
    tab.wait(f"captions => {shown} === captions", "|".join(captions))
    tab.page.set_viewport_size({"width": 390, "height": 780})
    width = "[...document.querySelectorAll('#viewer, #view-caption')].every(e => e.scrollWidth <= e.clientWidth)"
    assert tab.page.evaluate(width), "nothing is wider than a phone"
    tab.page.click("#more")
    tab.page.wait_for_selector(".term")
    tab.new_class(HOSTILE)
    assert tab.page.evaluate("window.hacked") is None
    tab.clean()


def test_two_tabs_show_the_same_marks_and_pictures(browser, page):
    one, two = Tab(browser, page), Tab(browser, page)
    one.new_class("reds", "red")
    two.panel()
    two.page.wait_for_selector("#classes .counts")
    one.shows("red")
    one.page.click(".tile.focus:not([hidden]) .marks .yes")
    one.wait("document.querySelector('.counts').textContent === '✓1 ✗0'")
    two.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # the user returns to the tab
    two.wait("document.querySelector('.counts').textContent === '✓1 ✗0'")
    page.session._lists = LruCache(16)  # evict the lists cached by the server
    one.page.focus("#grid")
    one.page.keyboard.press("End")
    one.wait("document.querySelector('.tile.focus .caption')?.textContent > ''")
    two.page.click("#classes [aria-label='Remove reds']")
    two.page.click(".question .main")
    two.wait("!document.querySelector('#classes li')")
    one.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    one.wait("document.querySelector('#about').hidden")
    one.wait("document.querySelector('.tile.focus .caption')?.textContent > ''")
    page.call("/api/classes", {"name": "blues"})
    page.call("/api/classes/2/marks", {"ids": ["blue/2.png", "blue/5.png"], "mark": 1})
    one.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    one.contains("#facets", "blues2")  # counts in the sidebar follow marks, without a search
    Index.open(page.folder).remove(["red/0.png", "blue/5.png"])
    for tab in (one, two):
        tab.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        tab.wait("document.querySelector('#status').textContent.startsWith('58 pictures')", seconds=20)
        tab.contains("#facets", "blues1")
    one.new_class("greens", "green")
    one.shows("green")
    one.clean()
    two.clean()


@pytest.mark.parametrize("size", WIDTHS)
def test_the_sorted_view_shows_classes_and_filters_see_labels(browser, page, size):
    for key, name in enumerate(("red", "green", "blue"), start=1):
        page.call("/api/classes", {"name": name})
        ids = [f"{name}/{number}.png" for number in range(key - 1, 36, 3)]
        page.call(f"/api/classes/{key}/marks", {"ids": ids, "mark": 1})
    tab = Tab(browser, page, size)
    tab.page.click("#show-sorted")
    tab.page.wait_for_selector("#sorted-classes button >> nth=4")
    tab.contains("#sorted-note", "held-out marks")
    tab.page.click("#sorted-classes button:has-text('green')")
    tab.shows("green", 4)
    assert tab.page.evaluate("document.querySelector('#sorted-classes .chosen').textContent").startswith("green")
    tab.page.click("#show-grid")
    tab.filter("clicked = 'blue'")
    tab.starts("#status", "12 pictures")
    scope = "document.querySelector('#scope-note').textContent"
    tab.wait(f"{scope}.startsWith(\"Only where clicked = 'blue': 12 of 60.\")")
    tab.panel()
    tab.page.click("#classes .name:has-text('blue')")
    tab.shows("blue", 4)
    tab.starts("#status", "12 pictures, best matches for ")
    page.call("/api/classes/3/marks", {"ids": ["red/0.png", "green/1.png"], "mark": -1})
    tab.page.click("[data-show=clicked]")
    tab.starts("#cut", "With this filter: 12 likely matches")
    tab.page.click("[data-show=next]")
    tab.starts("#status", "0 pictures: all of these are marked")
    tab.page.click("#show-sorted")
    tab.starts("#status", "12 pictures")
    tab.page.click("#show-map")
    tab.starts("#status", "Map of 12 pictures")
    tab.panel()
    link = tab.page.get_attribute(".links a >> nth=0", "href")
    assert page.call(f"/{link}", raw=True)[1][0].decode().count("\nblue/") == 12, "only the pictures shown"
    tab.page.click("#scope-off")
    tab.wait("document.querySelector('#scope').hidden")
    tab.contains("#cut", "Checked against your 14 marks")
    tab.clean()


def test_an_adapted_search_shows_previous_ranks_and_its_training_pairs(browser, drawings, monkeypatch):
    """The session's results are tested without a browser."""

    def rank_with_cut_off(*args, **options):
        (ranked,) = rank_pictures(*args, **options)
        return [replace(ranked, limit=float(ranked.scores[12]))]

    monkeypatch.setattr("recollect.web.session.rank_pictures", rank_with_cut_off)
    tab = Tab(browser, drawings)
    tab.page.set_viewport_size({"width": 1600, "height": 1200})  # shows all adapted results
    tab.search("a red bridge")
    assert not tab.page.is_visible("#episode")
    tab.page.click("#adapt")
    tab.wait("!document.querySelector('#episode').hidden")
    assert "reordered them" in tab.page.inner_text("#episode-note")
    tab.page.click("#episode-note")
    tab.wait("document.querySelectorAll('#episode-pairs figure').length > 1")
    tab.wait(
        "[...document.querySelectorAll('.tile:not([hidden]) .before')].some(b => /^\\d+ ← \\d+$/.test(b.textContent))"
    )
    assert "13 likely matches" in tab.page.inner_text("#status")
    tiles = tab.page.evaluate(
        "[...document.querySelectorAll('.tile:not([hidden])')].filter(t => t.querySelector('.before').textContent)"
        ".map(t => [Number(t.querySelector('.before').textContent.split(' ← ')[1]), t.classList.contains('below')])"
    )
    assert {below for _, below in tiles} == {True, False}
    assert all(below == (rank > 13) for rank, below in tiles), "the cut-off uses the ranks of the original model"
    tab.page.click("#adapt")
    tab.wait("document.querySelector('#episode').hidden")
    tab.clean()


def test_results_below_the_cut_off_are_counted_and_dimmed(browser, shared_page):
    tab = Tab(browser, shared_page)
    tab.search("red")
    tab.contains("#status", "likely matches")
    tab.wait("!document.querySelector('.tile.focus').classList.contains('below')")
    tab.page.focus("#grid")
    tab.page.keyboard.press("End")
    tab.wait("document.querySelectorAll('.tile:not([hidden]).below').length > 5")
    below = "[...document.querySelectorAll('.tile.below:not([hidden]) .caption')]"
    tab.wait(f"!{below}.some(caption => !caption.textContent)")
    assert not tab.page.evaluate(f"{below}.every(caption => caption.textContent.includes('red'))")
    tab.clean()


def test_a_search_that_takes_long_says_so(browser, shared_page):
    tab, held = Tab(browser, shared_page), []
    tab.page.route("**/api/list", lambda route: held.append(route), times=1)
    tab.page.fill("#words", "red")
    tab.page.press("#words", "Enter")
    tab.starts("#status", "Searching …")
    held[0].continue_()
    tab.shows("red")
    tab.contains("#status", "best first")
    tab.clean()


def test_adapt_explains_what_it_needs_and_stays_off(browser, shared_page):
    tab = Tab(browser, shared_page)
    tab.wait("document.querySelector('#adapt').title.includes('cannot refine')")
    tab.search("red")
    tab.page.click("#adapt", force=True)
    tab.contains("#notice", "cannot refine")
    assert tab.page.get_attribute("#adapt", "aria-pressed") == "false"
    tab.search("green")
    tab.shows("green")
    tab.clean()


def test_a_failed_adapted_search_falls_back_to_plain_results(browser, drawings, monkeypatch):
    def fail(self, query, where):
        raise UserError("the model broke down")

    monkeypatch.setattr(type(drawings.session), "_adapted", fail)
    tab = Tab(browser, drawings)
    tab.search("a red bridge")
    tab.page.fill("#words", "a green river")
    tab.page.click("#adapt")
    tab.contains("#notice", "broke down")
    tab.wait("document.querySelector('#adapt').getAttribute('aria-pressed') === 'false'")
    first = drawings.list(terms=[{"words": "a green river"}])["tiles"][0]
    tab.wait("shown => document.querySelector('.tile.focus .caption').textContent === shown",
             first["caption"] or first["id"])  # fmt: skip
    tab.clean(errors=True)


def test_the_address_contains_search_filter_label_view_and_picture(browser, page):
    """Reloading, going back and opening a copied link restore the view."""
    page.call("/api/classes", {"name": "reds", "text": "red"})
    tab = Tab(browser, page)
    tab.search("green")
    tab.shows("green")
    tab.filter("number < 30")
    tab.starts("#status", "30 pictures")
    tab.page.click(".tile:not([hidden]) img >> nth=0")
    tab.page.wait_for_selector("#viewer[open]")
    link = tab.page.url
    tab.page.go_back()
    tab.wait("!document.querySelector('#viewer').open")
    tab.starts("#status", "30 pictures")
    tab.page.go_back()
    tab.starts("#status", "60 pictures")
    assert tab.page.input_value("#where") == ""
    assert tab.page.input_value("#words") == "green"
    tab.page.goto(link)
    tab.page.wait_for_selector("#viewer[open]")
    tab.wait("document.querySelector('#view').naturalWidth > 0")
    assert tab.page.input_value("#where") == "number < 30"
    tab.page.keyboard.press("Escape")
    tab.wait("!location.search.includes('open=')")
    tab.panel()
    tab.page.click("#classes .name")
    tab.wait("location.search.includes('order=likely')")
    tab.page.reload()
    tab.page.wait_for_selector("#about:not([hidden])")
    tab.contains("#status", "best matches for ")
    tab.page.click("#show-map")
    tab.wait("location.search.includes('view=map')")
    tab.page.reload()
    tab.starts("#status", "Map of 30")
    tab.clean()


@pytest.mark.parametrize("size", WIDTHS)
def test_map_and_duplicates_open_and_late_responses_do_not_leave_them(browser, shared_page, size):
    tab, held = Tab(browser, shared_page, size), []
    tab.page.route("**/api/list", lambda route: held.append(route))  # playwright needs a function that it can annotate
    for words in ("red", "green"):
        tab.page.fill("#words", words)
        tab.page.press("#words", "Enter")
    tab.page.click("#show-map")
    tab.starts("#status", "Map of 60")
    while len(held) < 2:
        tab.page.wait_for_timeout(10)
    for route in reversed(held):  # the later request is answered first
        with tab.page.expect_response("**/api/list"):
            route.continue_()
    tab.calm()
    assert tab.page.inner_text("#status").startswith("Map of"), "the map stays open"
    tab.wait("document.querySelector('#map').width > 0")
    stays = tab.page.evaluate("""async () => {
      const { PictureMap } = await import("/static/map.js"), canvas = document.querySelector("#map").cloneNode();
      document.querySelector("#map-view").append(canvas);
      const map = Object.assign(new PictureMap(canvas, () => {}), { points: [0.9, 0.2], ids: ["red/0.png"] });
      const [x, y] = map.place(0);
      map.zoomAt(x, y, 3);
      const [x2, y2] = map.place(0);
      canvas.remove();
      return Math.hypot(x2 - x, y2 - y);
    }""")
    assert stays < 1e-6, "the point under the pointer stays in place when zooming"
    tab.page.press("#map", "Enter")
    tab.page.wait_for_selector("#viewer[open]")
    tab.page.click("#close")
    tab.page.click("#show-duplicates")
    tab.page.wait_for_selector("#duplicates img >> nth=0")
    tab.page.press("#duplicates img >> nth=0", "Enter")
    tab.page.wait_for_selector("#viewer[open]")
    tab.page.click("#close")
    tab.page.click("#show-grid")
    tab.shows("green", 4)
    tab.clean()


def test_a_million_rows_scroll_to_the_end_with_few_elements(browser, page, monkeypatch):
    """The list, sixty pictures repeated, is longer than a browser can lay out."""
    ids = Index.open(page.folder).ids
    million = [ids[row % 60] for row in range(1_000_000)]
    monkeypatch.setattr(type(page.session), "_everything", lambda self, ask, view: Listing(million, None, len(million)))
    tab = Tab(browser, page)
    tab.starts("#status", "1,000,000")
    tab.page.focus("#grid")
    tab.page.keyboard.press("End")
    tab.wait(
        "[...document.querySelectorAll('.tile:not([hidden]) .caption')].some(c => c.textContent.includes('number 39'))"
    )
    assert tab.page.evaluate("document.querySelectorAll('.tile').length") < 120
    tab.page.keyboard.press("Home")
    tab.wait(
        "[...document.querySelectorAll('.tile:not([hidden]) .caption')].some(c => c.textContent === 'red number 0')"
    )
    tab.clean()
