"""Drive the page in a real browser."""

import os
import shutil
import time

CHROMIUM = os.environ.get("RECOLLECT_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
SWITCHES = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", "--no-first-run", "--disable-features=SpareRendererForSitePerProcess"]  # fmt: skip
WIDTHS = {"desktop": (1200, 760), "phone": (390, 780)}


class Tab:
    """Browser tab (`page` in Playwright) that records every error and every request to another host."""

    def __init__(self, browser, server, size="desktop", address="", **settings):
        width, height = WIDTHS[size]
        self.page = browser.new_page(viewport={"width": width, "height": height}, has_touch=size == "phone", **settings)
        self.page.set_default_timeout(60_000)
        self.problems, self.external, self.pending = [], [], set()
        self.page.on("request", lambda request: self.pending.add(request))
        for ended in ("requestfinished", "requestfailed"):
            self.page.on(ended, lambda request: self.pending.discard(request))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", lambda message: self.problems.append(message.text) if message.type == "error" else None)
        self.page.on("request", lambda request: None if request.url.startswith((server.address, "blob:")) else
                    self.external.append(request.url))  # fmt: skip
        self.page.goto(server.address + address)
        self.page.wait_for_selector(".tile .caption:not(:empty)")

    def wait(self, script, given=None, seconds=60):
        """Poll until the script returns true. The page's CSP blocks playwright's own wait, which evaluates strings."""
        end = time.monotonic() + seconds
        while not self.page.evaluate(script, given):
            assert time.monotonic() < end, f"timed out waiting for: {script} {given or ''}"
            self.page.wait_for_timeout(20)

    def ready(self, seconds=60):
        """Wait until the focused picture is shown and no request can reorder the list: earlier keys may be ignored."""
        shown, calm = "document.querySelector('.tile.focus:not([hidden]) .caption')?.textContent > ''", 0
        end = time.monotonic() + seconds
        while calm < 3:
            assert time.monotonic() < end, f"never ready: {len(self.pending)} requests pending"
            calm = calm + 1 if not self.pending and self.page.evaluate(shown) else 0
            self.page.wait_for_timeout(20)

    def calm(self, seconds=60):
        """Wait until all requests are answered and their results shown."""
        end, still = time.monotonic() + seconds, 0
        while still < 5:
            assert time.monotonic() < end, f"{len(self.pending)} requests pending"
            still = 0 if self.pending else still + 1
            self.page.wait_for_timeout(10)

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
        self.page.fill("#words", words)
        self.page.press("#words", "Enter")
        self.contains("#status", "best first")

    def filter(self, text):
        """Enter a filter, after opening the sidebar where it is hidden, as on a phone."""
        if not self.page.is_visible("#where"):
            self.page.click("#toggle-browse")
        self.page.fill("#where", text)
        self.page.press("#where", "Enter")

    def captions(self, count=6):
        """Return the captions of the first tiles, top to bottom."""
        return self.page.evaluate(
            "count => [...document.querySelectorAll('.tile:not([hidden])')].map(t => [t.getBoundingClientRect(), t])"
            ".sort((a, b) => a[0].y - b[0].y || a[0].x - b[0].x).slice(0, count)"
            ".map(([, t]) => t.querySelector('.caption').textContent)",
            count,
        )

    def shows(self, word, count=6, seconds=60):
        """Wait until each of the first tiles has a caption with the word."""
        end = time.monotonic() + seconds
        while sum(word in caption for caption in self.captions(count)) < count:
            assert time.monotonic() < end, f"timed out waiting for {word}: {self.captions(count)}"
            self.page.wait_for_timeout(20)

    def panel(self):
        """Open the class panel, which starts hidden on a phone."""
        if not self.page.is_visible("#panel"):
            self.page.click("#toggle-classes")

    def new_class(self, name, text=""):
        self.panel()
        self.page.fill("#class-name", name)
        self.page.fill("#class-text", text)
        self.page.press("#class-name", "Enter")
        self.page.wait_for_selector("#about:not([hidden])")

    def clean(self, errors=False):
        """Check that the page had no error, unless some are expected, and made no external request; close the tab."""
        problems = [text for text in self.problems if "404" not in text]  # one picture is broken on purpose
        assert errors or problems == []
        assert self.external == [], "requests to other hosts"
        self.page.close()
