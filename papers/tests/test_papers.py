"""The papers' figures in paper.json match the text of the papers."""

import json
import re
from importlib.resources import files
from pathlib import Path

import pytest

from recollect_papers.study import public_names

PAPERS = Path(__file__).resolve().parents[3] / "shared" / "papers"
TEXTS = {"lixp": "lixp", "prefix": "prefix-conditioning", "reco": "reco", "efsa": "efsa"}
COUNTS = {"lixp": 248, "prefix": 344, "reco": 199, "efsa": 468}


def kept(paper):
    return json.loads(files("recollect_papers").joinpath(paper, "paper.json").read_text(encoding="utf-8"))


def numbers(text):
    """Return the numbers of a text in order, without signs."""
    return [number.replace(",", "") for number in re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?", text)]


def longest(row, stream):
    """Return the length of the longest prefix of a row that occurs in the text, with gains in between."""
    best = 0
    for start in (place for place, number in enumerate(stream) if number == row[0]):
        found = 0
        for number in stream[start : start + 2 * len(row) + 4]:
            found += found < len(row) and number == row[found]
        best = max(best, found)
    return best


@pytest.mark.parametrize("paper", TEXTS)
def test_every_row_is_in_the_papers_text(paper):
    """A row may be in two pieces, if the table is printed in two halves."""
    file = PAPERS / f"{TEXTS[paper]}.txt"
    if not file.exists():
        pytest.skip(f"the text of the paper is not on this machine: {file.name}")
    stream = numbers(re.sub(r"[*$\\{}_]|textbf", " ", file.read_text(encoding="utf-8")))
    checked = 0
    for name, table in kept(paper)["tables"].items():
        for row, cells in table["rows"].items():
            wanted = numbers(" ".join(cells))
            checked += len(wanted)
            first = longest(wanted, stream)
            rest = wanted[first:]
            assert not rest or longest(rest, stream) == len(rest), (name, row, rest)
    assert checked == COUNTS[paper]


def test_public_names_are_unique():
    assert public_names(("/a/one/model", "/b/two/model", "x/y")) == {
        "/a/one/model": "one/model", "/b/two/model": "two/model", "x/y": "x/y",
    }  # fmt: skip
    assert list(public_names(("/a/one/model", "/b/one/model")).values()) == ["a/one/model", "b/one/model"]
    assert public_names(()) == {}
