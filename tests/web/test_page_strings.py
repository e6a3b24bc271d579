"""The words of the page: in one place, and in two languages."""

import json
import re
from importlib.resources import files

import pytest

from browsing import Tab

STATIC = files("recollect.web") / "static"
ROWS = {
    key: json.loads(texts)
    for key, texts in re.findall(r'^  "([^"]+)": (\[.*\]),$', (STATIC / "strings.js").read_text(), re.MULTILINE)
}


def names(text):
    return {name for name, _ in re.findall(r"\{(\w+)(:[^}]*)?\}", text)}


def test_every_text_exists_in_each_language_with_the_same_values():
    assert len(ROWS) > 100
    for key, texts in ROWS.items():
        assert len(texts) == 2, key
        assert all(texts), key
        english, german = map(names, texts)
        assert english == german, key


def test_every_text_that_the_page_asks_for_exists():
    sources = [each.read_text() for each in STATIC.iterdir() if each.name.endswith((".js", ".html"))]
    asked = {key for source in sources for key in re.findall(r'(?:data-t(?:-[a-z-]+)?=|\bt\()"([^"]+)"', source)}
    assert len(asked) > 50
    assert asked <= set(ROWS)


@pytest.mark.parametrize("locale", ["en-US", "de-DE"])
def test_the_page_speaks_the_language_of_the_browser(browser, shared_page, locale):
    tab = Tab(browser, shared_page, locale=locale)
    column = ["en-US", "de-DE"].index(locale)
    assert tab.tab.get_attribute("html", "lang") == locale[:2]
    assert tab.tab.inner_text("#show-duplicates") == ROWS["view.duplicates"][column]
    assert tab.tab.get_attribute("#words", "placeholder") == ROWS["search.box"][column]
    assert tab.tab.inner_text("#status").startswith(["60 pictures", "60 Bilder"][column])
    empty = "[...document.querySelectorAll('[data-t]')].filter(each => !each.textContent).length"
    assert tab.tab.evaluate(empty) == 0
    tab.clean()
