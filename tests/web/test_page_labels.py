"""Labels in a real browser: renaming, removing with confirmation, and name conflicts."""

import pytest

from browsing import WIDTHS, Tab


@pytest.mark.parametrize("size", WIDTHS)
def test_removing_a_label_with_marks_needs_confirmation(browser, page, size):
    page.call("/api/classes", {"name": "empty"})
    page.call("/api/classes", {"name": "reds"})
    page.call("/api/classes/2/marks", {"ids": ["red/0.png", "red/3.png"], "mark": 1})
    tab = Tab(browser, page, size)
    tab.panel()
    tab.page.click("#classes [aria-label='Remove empty']")
    tab.wait("document.querySelectorAll('#classes li').length === 1")
    tab.page.click("#classes [aria-label='Remove reds']")
    tab.page.wait_for_selector(".question[open]")
    assert "2 marks" in tab.page.inner_text(".question")
    tab.page.keyboard.press("Escape")
    tab.wait("!document.querySelector('.question')")
    assert len(page.call("/api/classes")[1]["classes"]) == 1
    tab.page.click("#classes [aria-label='Remove reds']")
    tab.page.click(".question .main")
    tab.wait("!document.querySelector('#classes li')")
    tab.page.click("#undo")
    tab.wait("document.querySelector('.counts')?.textContent === '✓2 ✗0'")
    tab.clean()


@pytest.mark.parametrize("size", WIDTHS)
def test_a_renamed_label_keeps_its_marks_in_every_list_filter_and_export(browser, page, size):
    page.call("/api/classes", {"name": "rads"})
    page.call("/api/classes/1/marks", {"ids": ["red/0.png", "red/3.png"], "mark": 1})
    tab = Tab(browser, page, size)
    tab.panel()
    tab.page.click("#classes [aria-label='Rename rads']")
    tab.page.fill(".question input", "reds")
    tab.page.keyboard.press("Enter")
    tab.contains("#classes", "reds")
    assert "✓2" in tab.page.inner_text("#classes")
    assert len(page.call("/api/list", {"where": "clicked = 'reds'"})[1]["tiles"]) == 2
    assert "reds" in page.call("/api/items/red%2F0.png")[1]["labels"]
    page.call("/api/classes", {"name": "greens"})
    page.call("/api/classes/2/marks", {"ids": ["green/1.png", "green/4.png"], "mark": 1})
    tab.page.click("#show-sorted")
    tab.page.click("#sorted-classes button:has-text('reds')")
    tab.wait("document.querySelector('#sorted-classes .chosen').textContent.startsWith('reds')")
    tab.panel()
    tab.page.click("#classes [aria-label='Rename reds']")
    tab.page.fill(".question input", "crimson")
    tab.page.keyboard.press("Enter")
    tab.contains("#sorted-classes", "crimson")
    tab.page.click("#show-grid")
    for _ in range(3):
        page.call("/api/undo", {})
    tab.page.click("#undo")
    tab.contains("#classes", "rads")
    tab.clean(errors=True)  # the list of a renamed label is refused once


def test_a_new_name_ranks_by_the_new_word(page):
    page.call("/api/classes", {"name": "blue"})
    first = page.call("/api/list", {"order": "likely", "label": 1})[1]["tiles"][0]["id"]
    page.call("/api/classes/1/name", {"name": "red"})
    second = page.call("/api/list", {"order": "likely", "label": 1})[1]["tiles"][0]["id"]
    assert (first.split("/")[0], second.split("/")[0]) == ("blue", "red")


def test_a_duplicate_name_stays_in_the_input_field(browser, page):
    page.call("/api/classes", {"name": "reds"})
    tab = Tab(browser, page)
    tab.page.fill("#class-name", "Reds")
    tab.page.press("#class-name", "Enter")
    tab.wait("document.activeElement.id === 'class-name'")
    assert tab.page.input_value("#class-name") == "Reds"
    tab.clean(errors=True)
