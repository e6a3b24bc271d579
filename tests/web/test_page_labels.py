"""Labels in a real browser: removing with confirmation, and name conflicts."""

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


def test_a_duplicate_name_stays_in_the_input_field(browser, page):
    page.call("/api/classes", {"name": "reds"})
    tab = Tab(browser, page)
    tab.page.fill("#class-name", "Reds")
    tab.page.press("#class-name", "Enter")
    tab.wait("document.activeElement.id === 'class-name'")
    assert tab.page.input_value("#class-name") == "Reds"
    tab.clean(errors=True)
