"""Screenshots of the page for the guides, at desktop and phone width: one PNG per view.

    recollect demo
    python benchmarks/screenshots.py demo/index --out docs/images

Labels are written to a temporary file, so the index stays unchanged.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from PIL import Image

from page import CHROMIUM, serve
from recollect.cli.parser import Arg
from recording import script_options

SIZES = {"": (1200, 760), "-phone": (390, 780)}


@dataclass(frozen=True)
class Options:
    """Command-line options.

    Attributes:
        index: index to serve.
        words: search text.
        yes: folders whose pictures are labeled by clicks.
        clicks: number of clicks per folder.
        out: folder for the screenshots.
    """

    index: Annotated[Path, Arg(place="INDEX")]
    words: str = "a cup of coffee"
    yes: tuple[str, ...] = ("rocket launch", "cat")
    clicks: int = 28
    out: Path = Path("docs/images")


@contextmanager
def served(index: Path) -> Iterator[str]:
    """Serve the index while the block runs; yield the page's address."""
    with tempfile.TemporaryDirectory() as folder:
        process, address, _ = serve(index, "--labels", f"{folder}/labels.sqlite")
        try:
            yield address
        finally:
            process.terminate()
            process.wait(20)


class Camera:
    """A browser tab of one size."""

    def __init__(self, browser: Any, address: str, size: str, out: Path) -> None:
        width, height = SIZES[size]
        self.page = browser.new_page(viewport={"width": width, "height": height}, has_touch=bool(size))
        self.size, self.out = size, out
        self.page.goto(address)
        self.page.wait_for_selector(".tile .caption:not(:empty)")

    def shot(self, name: str) -> None:
        """Save a screenshot once all visible pictures have loaded."""
        images = "[...document.querySelectorAll('.tile:not([hidden]) img:not([hidden])')]"
        self.until(f"{images}.every(i => i.complete && i.naturalWidth)")
        self.page.evaluate(f"Promise.all({images}.map(i => i.decode().catch(() => 0))).then(() => 0)")
        self.page.wait_for_timeout(600)
        file = self.out / f"page-{name}{self.size}.png"
        self.page.screenshot(path=file)
        Image.open(file).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(file, optimize=True)
        print(file, f"{file.stat().st_size / 1024:.0f} kB")

    def until(self, script: str) -> None:
        """Wait until a script returns true."""
        for _ in range(1200):
            if self.page.evaluate(script):
                return
            self.page.wait_for_timeout(50)
        raise SystemExit(f"timed out waiting for: {script}")

    def search(self, words: str) -> None:
        """Search by words."""
        self.page.fill("#words", words)
        self.page.press("#words", "Enter")
        self.until("document.querySelector('#status').textContent.includes('best first')")

    def teach(self, name: str, clicks: int) -> None:
        """Label pictures like a person who looks for those of one folder."""
        if not self.page.is_visible("#panel"):
            self.page.click("#toggle-classes")
        self.page.fill("#class-name", name)
        with self.page.expect_response(lambda answer: answer.url.endswith("/api/list")):
            self.page.press("#class-name", "Enter")
        self.until(f"document.querySelector('#classes .chosen .word')?.textContent === {name!r}")
        self.page.wait_for_timeout(1000)
        self.page.click("[data-show=next]")
        self.wait_for_status("suggested to mark")
        self.page.focus("#grid")
        for number in range(1, clicks + 1):
            self.until("document.querySelector('.tile.focus:not([hidden]) .caption')?.textContent > ''")
            seen = self.page.get_attribute(".tile.focus:not([hidden])", "title") or ""
            self.page.keyboard.press("Space" if seen.startswith(name) else "x")
            counts = "document.querySelector('#classes .chosen .counts').textContent.match(/\\d+/g)"
            self.until(f"{counts}.reduce((a, b) => +a + +b, 0) == {number}")
            self.page.wait_for_timeout(100)
        self.page.click("[data-show=likely]")
        self.wait_for_status("best matches first")

    def wait_for_status(self, text: str) -> None:
        """Wait for a text in the status line above the pictures."""
        self.until(f"document.querySelector('#status').textContent.includes({text!r})")


def main() -> None:
    """Take all screenshots."""
    from playwright.sync_api import sync_playwright

    options = script_options(Options)
    options.out.mkdir(parents=True, exist_ok=True)
    with served(options.index) as address, sync_playwright() as starter:
        browser = starter.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        desk = Camera(browser, address, "", options.out)
        phone = Camera(browser, address, "-phone", options.out)
        for camera in (desk, phone):
            camera.search(options.words)
            camera.shot("search")
        for name in options.yes:
            desk.teach(name, options.clicks)
        desk.until("document.querySelector('#notice').hidden")
        desk.shot("class")
        phone.page.reload()
        phone.page.wait_for_selector(".tile .caption:not(:empty)")
        phone.page.click("#toggle-classes")
        phone.page.click(f"#classes .name:has-text('{options.yes[-1]}')")
        phone.wait_for_status("best matches first")
        phone.shot("class")
        desk.page.click("#show-sorted")
        desk.until("!document.querySelector('#sorted').hidden")
        desk.shot("sorted")
        desk.page.click("#show-map")
        desk.wait_for_status("Map of")
        desk.page.wait_for_timeout(2000)
        desk.shot("map")
        desk.page.click("#show-duplicates")
        desk.until("document.querySelector('.alike img')?.naturalWidth > 0")
        desk.shot("duplicates")
        browser.close()


if __name__ == "__main__":
    main()
