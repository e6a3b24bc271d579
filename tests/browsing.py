"""The page in a real browser."""

import os
import shutil
import time

CHROMIUM = os.environ.get("RECOLLECT_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
SWITCHES = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", "--no-first-run", "--disable-features=SpareRendererForSitePerProcess"]  # fmt: skip
WIDTHS = {"desktop": (1200, 760), "phone": (390, 780)}


class Tab:
    """A tab of the page that notes every error and every request that leaves it."""

    def __init__(self, browser, page, size="desktop", address="", **settings):
        width, height = WIDTHS[size]
        self.tab = browser.new_page(viewport={"width": width, "height": height}, has_touch=size == "phone", **settings)
        self.tab.set_default_timeout(60_000)
        self.problems, self.elsewhere, self.asking = [], [], set()
        self.tab.on("request", lambda asked: self.asking.add(asked))
        for ended in ("requestfinished", "requestfailed"):
            self.tab.on(ended, lambda asked: self.asking.discard(asked))
        self.tab.on("pageerror", lambda error: self.problems.append(str(error)))
        self.tab.on("console", lambda said: self.problems.append(said.text) if said.type == "error" else None)
        self.tab.on("request", lambda asked: None if asked.url.startswith((page.address, "blob:")) else
                    self.elsewhere.append(asked.url))  # fmt: skip
        self.tab.goto(page.address + address)
        self.tab.wait_for_selector(".tile .caption:not(:empty)")

    def wait(self, script, given=None, seconds=60):
        """Until the script says true; the page's own policy forbids playwright's waiting, which evaluates texts."""
        end = time.monotonic() + seconds
        while not self.tab.evaluate(script, given):
            assert time.monotonic() < end, f"never true: {script} {given or ''}"
            self.tab.wait_for_timeout(20)

    def ready(self, seconds=60):
        """Until the picture in focus is shown and nothing is under way that sorts anew: till then no key may count."""
        shown, calm = "document.querySelector('.tile.focus:not([hidden]) .caption')?.textContent > ''", 0
        end = time.monotonic() + seconds
        while calm < 3:
            assert time.monotonic() < end, f"never ready: {len(self.asking)} requests under way"
            calm = calm + 1 if not self.asking and self.tab.evaluate(shown) else 0
            self.tab.wait_for_timeout(20)

    def calm(self, seconds=60):
        """Until what was asked for is answered and shown."""
        end, still = time.monotonic() + seconds, 0
        while still < 5:
            assert time.monotonic() < end, f"{len(self.asking)} requests under way"
            still = 0 if self.asking else still + 1
            self.tab.wait_for_timeout(10)

    def search(self, words):
        self.tab.fill("#words", words)
        self.tab.press("#words", "Enter")
        self.wait("document.querySelector('#status').textContent.includes('best first')")

    def filter(self, text):
        """Type a filter, for which a phone opens the sidebar first."""
        if not self.tab.is_visible("#where"):
            self.tab.click("#toggle-browse")
        self.tab.fill("#where", text)
        self.tab.press("#where", "Enter")

    def captions(self, count=6):
        """Of the first tiles, from the top."""
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
        """Open the panel of classes, which a phone hides at first."""
        if not self.tab.is_visible("#panel"):
            self.tab.click("#toggle-classes")

    def new_class(self, name, text=""):
        self.panel()
        self.tab.fill("#class-name", name)
        self.tab.fill("#class-text", text)
        self.tab.press("#class-name", "Enter")
        self.tab.wait_for_selector("#about:not([hidden])")

    def clean(self):
        known = [said for said in self.problems if "404" not in said]  # a picture that is broken on purpose
        assert known == []
        assert self.elsewhere == [], "nothing is asked from anywhere else"
        self.tab.close()
