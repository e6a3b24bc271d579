"""Drive the page in a real browser."""

import os
import shutil
import time

CHROMIUM = os.environ.get("RECOLLECT_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
SWITCHES = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", "--no-first-run", "--disable-features=SpareRendererForSitePerProcess"]  # fmt: skip
WIDTHS = {"desktop": (1200, 760), "phone": (390, 780)}


class Tab:
    """Browser tab that records every error and every request to another host."""

    def __init__(self, browser, page, size="desktop", address="", **settings):
        width, height = WIDTHS[size]
        self.tab = browser.new_page(viewport={"width": width, "height": height}, has_touch=size == "phone", **settings)
        self.tab.set_default_timeout(60_000)
        self.problems, self.external, self.pending = [], [], set()
        self.tab.on("request", lambda request: self.pending.add(request))
        for ended in ("requestfinished", "requestfailed"):
            self.tab.on(ended, lambda request: self.pending.discard(request))
        self.tab.on("pageerror", lambda error: self.problems.append(str(error)))
        self.tab.on("console", lambda message: self.problems.append(message.text) if message.type == "error" else None)
        self.tab.on("request", lambda request: None if request.url.startswith((page.address, "blob:")) else
                    self.external.append(request.url))  # fmt: skip
        self.tab.goto(page.address + address)
        self.tab.wait_for_selector(".tile .caption:not(:empty)")

    def wait(self, script, given=None, seconds=60):
        """Poll until the script returns true. The page's CSP blocks playwright's own wait, which evaluates strings."""
        end = time.monotonic() + seconds
        while not self.tab.evaluate(script, given):
            assert time.monotonic() < end, f"never true: {script} {given or ''}"
            self.tab.wait_for_timeout(20)

    def ready(self, seconds=60):
        """Wait until the focused picture is shown and no request can reorder the list: earlier keys may be ignored."""
        shown, calm = "document.querySelector('.tile.focus:not([hidden]) .caption')?.textContent > ''", 0
        end = time.monotonic() + seconds
        while calm < 3:
            assert time.monotonic() < end, f"never ready: {len(self.pending)} requests pending"
            calm = calm + 1 if not self.pending and self.tab.evaluate(shown) else 0
            self.tab.wait_for_timeout(20)

    def calm(self, seconds=60):
        """Wait until all requests are answered and their results shown."""
        end, still = time.monotonic() + seconds, 0
        while still < 5:
            assert time.monotonic() < end, f"{len(self.pending)} requests pending"
            still = 0 if self.pending else still + 1
            self.tab.wait_for_timeout(10)

    def starts(self, selector, text):
        """Wait until the text of an element starts with the given text."""
        self.wait(
            "([selector, text]) => document.querySelector(selector)?.textContent.startsWith(text)", [selector, text]
        )

    def contains(self, selector, text):
        """Wait until the text of an element contains the given text."""
        self.wait(
            "([selector, text]) => document.querySelector(selector)?.textContent.includes(text)", [selector, text]
        )

    def search(self, words):
        self.tab.fill("#words", words)
        self.tab.press("#words", "Enter")
        self.contains("#status", "best first")

    def filter(self, text):
        """Enter a filter, after opening the sidebar where it is hidden, as on a phone."""
        if not self.tab.is_visible("#where"):
            self.tab.click("#toggle-browse")
        self.tab.fill("#where", text)
        self.tab.press("#where", "Enter")

    def captions(self, count=6):
        """Return the captions of the first tiles, top to bottom."""
        return self.tab.evaluate(
            "count => [...document.querySelectorAll('.tile:not([hidden])')].map(t => [t.getBoundingClientRect(), t])"
            ".sort((a, b) => a[0].y - b[0].y || a[0].x - b[0].x).slice(0, count)"
            ".map(([, t]) => t.querySelector('.caption').textContent)",
            count,
        )

    def shows(self, word, count=6):
        self.wait(
            "([word, count]) => { const t = [...document.querySelectorAll('.tile:not([hidden])')].map(t => "
            "[t.getBoundingClientRect(), t]).sort((a, b) => a[0].y - b[0].y || a[0].x - b[0].x).slice(0, count); "
            "return t.length === count && t.every(([, t]) => "
            "t.querySelector('.caption').textContent.includes(word)); }",
            [word, count],
        )

    def panel(self):
        """Open the class panel, which starts hidden on a phone."""
        if not self.tab.is_visible("#panel"):
            self.tab.click("#toggle-classes")

    def new_class(self, name, text=""):
        self.panel()
        self.tab.fill("#class-name", name)
        self.tab.fill("#class-text", text)
        self.tab.press("#class-name", "Enter")
        self.tab.wait_for_selector("#about:not([hidden])")

    def clean(self, errors=False):
        """Check that the page had no error, unless some are expected, and made no external request; close the tab."""
        problems = [text for text in self.problems if "404" not in text]  # one picture is broken on purpose
        assert errors or problems == []
        assert self.external == [], "requests to other hosts"
        self.tab.close()
