"""The page with a million generated pictures in a real browser: frame times, memory, and time to the first answer.

    python benchmarks/page.py --rows 1000000 --out results/page/million.json

Builds an index of generated pictures (kept in ``--work`` for the next run), serves it with the command, opens it in
Debian's Chromium with Playwright, and scrolls. *Frames* are intervals between animation frames while the list is
scrolled by wheel and by jumps of its scroll bar. *Memory* is the renderer's private memory, that of an empty tab, and
the JavaScript heap. *First answer* is the time from the start of the command to the answer of a text search, and its
CPU time, which depends less on other load.
"""

import io
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from recollect.core.files import write_json
from recollect.core.progress import progress
from recollect.core.types import caption_prefix
from recollect.index import File, Index, Rows
from recollect.models import build_model, load_model
from recording import script_options, this_command

CHROMIUM = os.environ.get("RECOLLECT_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
SWITCHES = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--enable-precise-memory-info"]
COLORS = ("red", "green", "blue", "gray")
_BLOCK = 50_000
_PICTURES = 4_096
"""Number of distinct pictures; rows share them, but each row has its own address, so the browser loads each."""

_SCROLL = """async ({ seconds, leap }) => {
  const grid = document.getElementById("grid"), times = [];
  let last = performance.now(), moved = 0;
  const end = last + 1000 * seconds;
  while (last < end) {
    if (leap) grid.scrollTop = Math.abs(Math.sin(moved++ / 40)) * grid.scrollHeight;
    else grid.dispatchEvent(new WheelEvent("wheel", { deltaY: 60, bubbles: true, cancelable: true }));
    const now = await new Promise(requestAnimationFrame);
    times.push(now - last); last = now;
  }
  return times.slice(2);
}"""


@dataclass(frozen=True)
class Options:
    """Command-line options.

    Attributes:
        rows: number of pictures in the index.
        seconds: duration of each kind of scrolling.
        work: folder for the index, which is built once.
        browser: also measure a browser, not only the server.
        out: JSON file for the figures.
    """

    rows: int = 1_000_000
    seconds: float = 5.0
    work: Path = Path("page-benchmark")
    browser: bool = True
    out: Path = Path("results/page/million.json")


@cache
def picture(number: int) -> bytes:
    """Create a small picture, different for each number."""
    generator = np.random.default_rng(number)
    pixels = generator.integers(0, 90, (4, 4, 3), dtype=np.uint8)
    pixels[..., number % 3] += 120
    buffer = io.BytesIO()
    Image.fromarray(pixels).resize((24, 24), Image.Resampling.NEAREST).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def build(options: Options) -> Path:
    """Build the index and its model, unless they exist; return the index's folder."""
    folder, model = options.work / f"index-{options.rows}", options.work / "model"
    if not model.exists():
        build_model("glyph-strong", texts=[f"a {color} picture number {i}" for color in COLORS for i in range(9)]).save(
            model
        )
    if folder.exists():
        len(Index.open(folder))
        return folder
    encoder = load_model(str(model))
    generator = np.random.default_rng(0)
    index = Index.create(
        folder,
        width=encoder.width,
        model=encoder.fingerprint,
        model_name=str(model.resolve()),
        prefix=caption_prefix(encoder),
        precision="float16",
    )

    def unit(rows: np.ndarray) -> np.ndarray:
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)

    with progress("generated pictures", options.rows, "pictures") as counter:
        for start in range(0, options.rows, _BLOCK):
            numbers = range(start, min(start + _BLOCK, options.rows))
            images = unit(generator.normal(size=(len(numbers), encoder.width)))
            texts = unit(images + generator.normal(size=images.shape))
            index.insert(
                Rows(
                    ids=[f"made/{number}" for number in numbers],
                    image_vectors=images,
                    captions=[(f"a {COLORS[number % 3]} picture number {number}",) for number in numbers],
                    caption_vectors=list(texts[:, None]),
                    files=[(File("made", f"made/{number}"),) for number in numbers],
                    images=[picture(number % _PICTURES) for number in numbers],
                )
            )
            counter.advance(len(numbers))
    len(index)
    return folder


def serve(folder: Path, *options: str) -> tuple[subprocess.Popen[str], str, float]:
    """Start the command; return its process, its address, and the seconds until it printed the address."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "recollect", "serve", str(folder), "--port", "0", "--no-open", *options],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"page: (http://\S+)", line):
            return process, found[1].rstrip("/"), round(time.perf_counter() - start, 2)
    raise SystemExit("the server exited without printing the address of the page")


def search(address: str, words: str) -> dict[str, Any]:
    """Search through the API."""
    request = urllib.request.Request(
        f"{address}/api/list",
        json.dumps({"terms": [{"words": words}]}).encode(),
        {"content-type": "application/json", "x-recollect": "1"},
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        return dict(json.load(answer))


def private_megabytes(process: int) -> float:
    """Return the private memory of a process."""
    text = Path(f"/proc/{process}/smaps_rollup").read_text()
    return sum(int(each) for each in re.findall(r"Private_\w+:\s+(\d+) kB", text)) / 1024


def processor_seconds(process: int) -> float:
    """Return the CPU time used by a process."""
    words = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def renderers(parent: int) -> list[int]:
    """Return the browser's renderer processes among the descendants of ``parent``."""
    processes, family = [], {parent}
    for entry in sorted(Path("/proc").iterdir(), key=lambda path: path.name.zfill(9)):
        if not entry.name.isdigit():
            continue
        try:
            above = int(entry.joinpath("stat").read_text().rsplit(")", 1)[1].split()[1])
            line = entry.joinpath("cmdline").read_bytes()
        except OSError:
            continue
        if above in family:
            family.add(int(entry.name))
            if b"--type=renderer" in line:
                processes.append(int(entry.name))
    return processes


def frames(times: list[float]) -> dict[str, float]:
    """Summarize the intervals between frames, in milliseconds."""
    return {
        "frames": len(times),
        "a_second": round(1000 * len(times) / sum(times), 1),
        "median_ms": round(statistics.median(times), 2),
        "p95_ms": round(float(np.percentile(times, 95)), 2),
        "worst_ms": round(max(times), 1),
    }


def in_browser(address: str, seconds: float) -> dict[str, Any]:
    """Measure frames and memory of the page."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as starter:
        browser = starter.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        empty = browser.new_page(viewport={"width": 1200, "height": 760})
        empty.goto("about:blank")
        before = {each: private_megabytes(each) for each in renderers(os.getpid())}
        tab = browser.new_page(viewport={"width": 1200, "height": 760})
        start = time.perf_counter()
        tab.goto(address)
        tab.wait_for_selector(".tile .caption:not(:empty)", timeout=120_000)
        shown = time.perf_counter() - start
        wheel = tab.evaluate(_SCROLL, {"seconds": seconds, "leap": False})
        leaps = tab.evaluate(_SCROLL, {"seconds": seconds, "leap": True})
        tab.wait_for_timeout(2000)
        own = {each: private_megabytes(each) for each in renderers(os.getpid()) if each not in before}
        figures = {
            "first_tiles_s": round(shown, 2),
            "wheel": frames(wheel),
            "leaps": frames(leaps),
            "renderer_mb": round(max(own.values(), default=float("nan")), 1),
            "empty_renderer_mb": round(min(before.values(), default=float("nan")), 1),
            "heap_mb": round(tab.evaluate("performance.memory.usedJSHeapSize") / 2**20, 1),
            "elements": tab.evaluate("document.querySelectorAll('*').length"),
            "tiles": tab.evaluate("document.querySelectorAll('.tile').length"),
            "chromium": browser.version,
        }
        browser.close()
    return figures


def main() -> None:
    """Measure, print and write."""
    options = script_options(Options)
    folder = build(options)
    process, address, opened = serve(folder)
    try:
        start = time.perf_counter()
        search(address, "a red picture")
        first = time.perf_counter() - start
        cpu_time = processor_seconds(process.pid)
        answers = [search(address, f"a blue picture {number}")["milliseconds"] for number in range(5)]
        figures = {
            "rows": options.rows,
            "opened_s": opened,
            "first_answer_s": round(opened + first, 2),
            "first_answer_processor_s": round(cpu_time, 2),
            "later_search_ms": statistics.median(answers),
            "server_mb": round(private_megabytes(process.pid)),
            "processors": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),  # values above "processors" mean that other load slowed this run
            **(in_browser(address, options.seconds) if options.browser else {}),
        }
    finally:
        process.terminate()
        process.wait(20)
    command = this_command()
    write_json(options.out, {"format": 1, "command": command, **figures})
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
