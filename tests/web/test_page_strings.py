"""The page's texts, in two languages."""

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


def test_every_text_has_both_languages_with_the_same_placeholders():
    assert len(ROWS) > 100
    for key, texts in ROWS.items():
        assert len(texts) == 2, key
        assert all(texts), key
        english, german = map(names, texts)
        assert english == german, key


def test_every_text_used_by_the_page_exists():
    sources = [each.read_text() for each in STATIC.iterdir() if each.name.endswith((".js", ".html"))]
    used = {key for source in sources for key in re.findall(r'(?:data-t(?:-[a-z-]+)?=|\bt\()"([^"]+)"', source)}
    assert len(used) > 50
    assert used <= set(ROWS)


@pytest.mark.parametrize("locale", ["en-US", "de-DE"])
def test_the_page_uses_the_language_of_the_browser(browser, shared_page, locale):
    tab = Tab(browser, shared_page, locale=locale)
    column = ["en-US", "de-DE"].index(locale)
    assert tab.page.get_attribute("html", "lang") == locale[:2]
    assert tab.page.inner_text("#show-duplicates") == ROWS["view.duplicates"][column]
    assert tab.page.get_attribute("#words", "placeholder") == ROWS["search.box"][column]
    assert tab.page.inner_text("#status").startswith(["60 pictures", "60 Bilder"][column])
    empty = "[...document.querySelectorAll('[data-t]')].filter(each => !each.textContent).length"
    assert tab.page.evaluate(empty) == 0
    tab.clean()
