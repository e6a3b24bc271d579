"""Files of an index on disk: what a reader notes of the newest version, and whether they are as they were written."""

import hashlib
import json
import zlib
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from recollect.core.checksums import CHECKSUMS, damaged_files, read_checksums
from recollect.core.errors import UserError
from recollect.core.files import write_text
from recollect.index.rows import Record

TABLE = "pictures"
CACHE = "cache"
HINT = "_versions/latest_version_hint.json"
_VIEW = "view.json"


@dataclass(frozen=True)
class TableView:
    """What a search needs to know of the newest version, so that it need not import lancedb, which takes seconds.

    It is kept in the cache, and holds as long as the files of the table are the same ones.

    Attributes:
        version: of the table.
        record: of the index.
        numbers: rising row numbers of the visible rows.
    """

    version: int
    record: Record
    numbers: Int64[np.ndarray, " rows"]

    @classmethod
    def read(cls, folder: Path) -> "TableView | None":
        """The view of the newest version; None where nobody noted it, or it is damaged."""
        try:
            about = cls._about(folder)
            if about["files"] != _files_digest(folder):
                return None
            numbers = [np.arange(first, last + 1, dtype=np.int64) for first, last in about["numbers"]]
            record = Record.from_json(json.dumps(about["record"]), str(folder))
            return cls(about["version"], record, np.concatenate([np.empty(0, dtype=np.int64), *numbers]))
        except (OSError, ValueError, KeyError, TypeError, UserError):
            return None

    @staticmethod
    def intact(folder: Path) -> bool:
        """Whether the file agrees with its checksum."""
        try:
            return bool(TableView._about(folder))
        except (OSError, ValueError, KeyError, TypeError):
            return False

    @staticmethod
    def _about(folder: Path) -> dict[str, Any]:
        noted = json.loads((folder / CACHE / _VIEW).read_text(encoding="utf-8"))
        if noted["crc32"] != _crc32(noted["view"]):
            raise ValueError("differs from its checksum")
        return dict(noted["view"])

    def write(self, folder: Path) -> None:
        """Note it, unless a newer version exists already or the folder cannot be written to."""
        files = _files_digest(folder)
        versions = (int(file.stem) for file in (folder / f"{TABLE}.lance" / "_versions").glob("*.manifest"))
        if max((each if each < 2**63 else 2**64 - 1 - each for each in versions), default=-1) != self.version:
            return
        ends = np.flatnonzero(np.diff(self.numbers) != 1)
        firsts, lasts = np.append(0, ends + 1), np.append(ends, len(self.numbers) - 1)
        runs = [self.numbers[each].tolist() for each in (firsts, lasts)] if len(self.numbers) else [[], []]
        about = {
            "files": files, "version": self.version, "record": asdict(self.record),
            "numbers": list(zip(*runs, strict=True)),
        }  # fmt: skip
        with suppress(OSError, UserError):
            (folder / CACHE).mkdir(exist_ok=True)
            about = json.loads(json.dumps(about))
            write_text(folder / CACHE / _VIEW, json.dumps({"view": about, "crc32": _crc32(about)}))


def _crc32(about: Any) -> int:
    return zlib.crc32(json.dumps(about, sort_keys=True).encode())


def _files_digest(folder: Path) -> str:
    """Changes with every commit, and when a file of the table is deleted or written again."""
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted((folder / f"{TABLE}.lance").rglob("*")):
        if file.name != Path(HINT).name and file.is_file():
            found = file.stat()
            digest.update(f"{file.relative_to(folder)} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def verify_folder(folder: Path) -> list[str]:
    """One line for each file of an index that differs from its checksum; the index need not open.

    Files without a checksum, because a writer was killed, are skipped. Lance's version hint is written again and
    again: where a writer was killed it is only checked to name a version that exists.
    """
    table, known = folder / f"{TABLE}.lance", read_checksums(folder)
    hint = f"{TABLE}.lance/{HINT}"
    there = {file.relative_to(folder).as_posix() for file in table.rglob("*") if file.is_file()}
    found = damaged_files(folder, [name for name in known if name != hint and name in there])
    if not known and (folder / CHECKSUMS).exists():
        found = damaged_files(folder)
    if hint in known and not there - known.keys():
        found += damaged_files(folder, [hint])
    elif (table / HINT).exists() and not _names_a_version(table / HINT):
        found.append(f"{table / HINT}: names no version of the table")
    if not (folder / CHECKSUMS).exists():
        found.append(f"{folder / CHECKSUMS}: is missing, so nothing was compared with its checksum")
    if (folder / CACHE / _VIEW).exists() and not TableView.intact(folder):
        found.append(f"{folder / CACHE / _VIEW}: differs from its checksum")
    for part in sorted((folder / CACHE).glob("*")) if (folder / CACHE).is_dir() else []:
        if part.is_dir() and not part.name.startswith("."):
            missing = not (part / CHECKSUMS).exists()
            found += [f"{part / CHECKSUMS}: is missing"] if missing else damaged_files(part)
    return found


def _names_a_version(hint: Path) -> bool:
    try:
        version = json.loads(hint.read_text())["version"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    names = {file.stem for file in hint.parent.glob("*.manifest")}
    return bool({str(version), str(2**64 - 1 - version)} & names) if isinstance(version, int) else False
