"""Empty results, a stopped server, settings, help, adding a folder, and accessibility."""

import pytest

from browsing import Tab
from colors import COLORS, ColorEncoder, paint
from pages import color_index, start
from recollect.index import Index
from recollect.web import Page


def test_an_empty_filter_is_shown_and_can_be_removed(browser, shared_page):
    tab = Tab(browser, shared_page)
    tab.page.fill("#where", "number = 99")
    tab.page.press("#where", "Enter")
    tab.page.wait_for_selector("#empty:not([hidden])")
    assert "number = 99" in tab.page.inner_text("#empty")
    tab.page.click("#empty-off")
    tab.page.wait_for_selector("#empty", state="hidden")
    tab.page.wait_for_selector(".tile .caption:not(:empty)")
    assert tab.page.input_value("#where") == ""
    tab.page.fill("#where", "nmuber = 9")
    tab.page.press("#where", "Enter")
    tab.contains("#empty-note", "Known names: id, ")
    tab.clean(errors=True)


def test_a_library_being_indexed_does_not_ask_for_a_folder(browser, tmp_path, start_page):
    Index.create(tmp_path / "index", width=3, model=ColorEncoder().fingerprint, model_name="colors")
    page = start_page(tmp_path / "index")
    filling = {"done": 0, "total": 0, "note": "", "busy": True}
    page.session.additions.progress = lambda: filling
    tab = browser.new_page()
    tab.goto(page.address)
    tab.wait_for_selector("#empty-note:has-text('appear here')")
    assert tab.is_hidden("#empty-off")
    tab.close()


def test_uploads_that_are_not_pictures_are_skipped(browser, shared_page, tmp_path):
    paint(tmp_path / "red.png", COLORS["red"], 1)
    (tmp_path / "notes.png").write_text("no picture")
    tab = Tab(browser, shared_page)
    tab.page.evaluate(
        "files => { const dataTransfer = new DataTransfer();"
        "for (const [name, bytes] of files) dataTransfer.items.add(new File([new Uint8Array(bytes)], name));"
        "document.dispatchEvent(new DragEvent('drop', { dataTransfer })); }",
        [[file.name, list(file.read_bytes())] for file in (tmp_path / "red.png", tmp_path / "notes.png")],
    )
    tab.shows("red")
    assert tab.page.inner_text("#notice").startswith("notes.png")
    assert tab.page.locator("#terms .term").count() == 1
    tab.clean(errors=True)


def test_undo_works_after_an_address_with_an_empty_filter(browser, page):
    tab = Tab(browser, page)
    tab.page.goto(page.address + "/?where=number+%3D+99")
    tab.page.wait_for_selector("#empty:not([hidden])")
    page.call("/api/selection/act", {"kind": "remove", "ids": ["red/0.png"]})
    tab.page.focus("#show-grid")
    tab.page.keyboard.press("u")
    tab.wait("document.querySelector('#notice').textContent === 'Undone: removing 1 picture.'")
    tab.clean(errors=True)


def test_pictures_stay_visible_without_a_server_and_the_page_recovers(browser, tmp_path):
    color_index(tmp_path / "index")
    page, stop = start(tmp_path / "index")
    port = int(page.address.rpartition(":")[2])
    tab = Tab(browser, page)
    shown = tab.captions()
    stop()
    tab.page.wait_for_selector("#banner:not([hidden])", timeout=30_000)
    assert tab.captions() == shown
    tab.page.fill("#words", "green")
    tab.page.press("#words", "Enter")
    again = Page(Index.open(tmp_path / "index", ColorEncoder()), port=port).start()
    tab.page.wait_for_selector("#banner", state="hidden", timeout=30_000)
    tab.shows("green")
    tab.search("red")
    tab.shows("red")
    tab.page.close()
    again.stop()


def test_settings_change_appearance_and_language(browser, shared_page):
    tab = Tab(browser, shared_page, color_scheme="light")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = tab.page.evaluate(paper)
    tab.page.click("#open-settings")
    tab.page.select_option(".sheet select >> nth=0", "dark")
    tab.wait(f"light => {paper} !== light", light)
    with tab.page.expect_navigation():
        tab.page.select_option(".sheet select >> nth=1", "de")
    tab.page.wait_for_selector("#show-duplicates:has-text('Duplikate')")
    assert tab.page.evaluate(paper) != light
    tab.clean()


def test_a_question_mark_opens_the_help(browser, shared_page):
    tab = Tab(browser, shared_page)
    tab.page.focus("#grid")
    tab.page.keyboard.press("?")
    tab.page.wait_for_selector(".sheet[open]")
    tab.page.keyboard.press("Escape")
    tab.wait("!document.querySelector('.sheet')")
    tab.clean()


def test_a_folder_can_be_added_on_the_page(browser, page, tmp_path):
    for number in range(5):
        paint(tmp_path / "more" / f"{number}.png", COLORS["red"], 100 + number)
    tab = Tab(browser, page)
    tab.page.click("#open-settings")
    tab.page.click(".sheet button:has-text('Add a folder')")
    tab.page.fill(".question input", str(tmp_path / "more"))
    tab.page.press(".question input", "Enter")
    tab.starts("#status", "65 pictures")
    tab.contains("#filling-note", "5 new pictures")
    tab.clean()


def test_missing_and_empty_folders_are_rejected(page, tmp_path):
    (tmp_path / "none").mkdir()
    for folder in ("relative", str(tmp_path / "none"), str(tmp_path / "gone")):
        status, answer = page.call("/api/folders", {"folder": folder})
        assert (status, folder in answer["error"]) == (400, True)
    assert page.call("/api/info")[1]["filling"] is None


VIEWS = {
    "pictures": lambda tab: None,
    "label": lambda tab: tab.new_class("reds", "red"),
    "viewer": lambda tab: tab.page.click(".tile:not([hidden]) img >> nth=0"),
    "settings": lambda tab: tab.page.evaluate("document.querySelector('#open-settings').click()"),
    "help": lambda tab: tab.page.evaluate("document.querySelector('#open-help').click()"),
    "map": lambda tab: tab.page.click("#show-map"),
    "duplicates": lambda tab: tab.page.click("#show-duplicates"),
}


@pytest.mark.parametrize(("size", "scheme"), [("desktop", "light"), ("phone", "dark")])
def test_axe_finds_no_serious_violation_in_any_view(browser, page, size, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs recollect[dev]").Axe()
    tab, violations = Tab(browser, page, size, color_scheme=scheme), {}
    for name, show in VIEWS.items():
        show(tab)
        tab.calm()
        for each in axe.run(tab.page).response["violations"]:
            if each["impact"] in ("serious", "critical"):
                violations[name, each["id"]] = [node["html"][:120] for node in each["nodes"][:3]]
        if name in ("viewer", "settings", "help"):
            tab.page.keyboard.press("Escape")
            tab.wait("!document.querySelector('dialog[open]')")
    tab.page.close()
    assert violations == {}
