"""What a place keeps of pictures that somebody has taken out of a memory; on disk, a file of lines with checksums."""

import json
import zlib
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from pathlib import Path

from recollect.core.files import write_text

_FILE = "removed.jsonl"


@dataclass(frozen=True, order=True)
class Removal:
    """A picture that was removed.

    Attributes:
        source: name of the source that it came from.
        id: that its row had (`rows.picture_of`).
        content: hash of its encoded bytes, or of its pixels where it had none.
        digest: hash of its pixels.
    """

    source: str
    id: str
    content: str
    digest: str


def write_removals(folder: Path, removals: Iterable[Removal]) -> None:
    """Keep these in the folder of a memory, and none but these: a line each, whole or not at all."""
    texts = [json.dumps(astuple(each), ensure_ascii=False) for each in sorted(set(removals))]
    if texts:
        write_text(folder / _FILE, "".join(f"{zlib.crc32(text.encode()):08x} {text}\n" for text in texts))
    else:
        (folder / _FILE).unlink(missing_ok=True)


def read_removals(folder: Path) -> tuple[list[Removal], int]:
    """What the folder of a memory keeps of them, and how many lines are damaged, each of which costs itself alone."""
    found, damaged = list[Removal](), 0
    try:
        content = (folder / _FILE).read_bytes()
    except FileNotFoundError:
        return found, damaged
    for line in content.splitlines():
        try:
            if int(line[:8], 16) != zlib.crc32(line[9:]):
                raise ValueError
            found.append(Removal(*json.loads(line[9:])))
        except (ValueError, TypeError):
            damaged += 1
    return found, damaged


def removals_damage(folder: Path) -> list[str]:
    """What of them cannot be read, in a line."""
    damaged = read_removals(folder)[1]
    lines = "1 line is" if damaged == 1 else f"{damaged:,} lines are"
    line = f"{folder / _FILE}: {lines} damaged; what was removed there may come back with its file"
    return [line] if damaged else []
