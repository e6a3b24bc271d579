"""Every click on disk before it is answered: a log that a killed server, a full disk or a flipped bit cannot empty."""

import json
import os
import zlib
from pathlib import Path
from typing import Any

from recollect.core.errors import UserError
from recollect.core.files import hold


class Journal:
    """Entries in the order in which they were made, each a line with its checksum, synced before `append` returns.

    Args:
        path: made if it is not there. A line that a kill cut short is dropped; one that was damaged is passed over and
            counted, and stays in the file.

    Attributes:
        entries: what was read and appended.
        damaged: lines passed over.

    Raises:
        UserError: another page has it open, or it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b", buffering=0)  # what cannot be written is not tried again with a later entry
            alone = hold(self._file, wait=False)
        except OSError as error:
            raise UserError(
                f"{path}: clicks cannot be kept there ({error.strerror}). Name a file with --log."
            ) from None
        if not alone:
            self._file.close()
            raise UserError(f"{path}: another page has it open. Close that, or name another file with --log.")
        self._file.seek(0)
        data = self._file.read()
        self.entries: list[dict[str, Any]] = []
        self.damaged = 0
        whole = data.rfind(b"\n") + 1
        if whole < len(data):  # cut short by a kill: it was never answered
            self._file.truncate(whole)
        for line in data[:whole].split(b"\n")[:-1]:
            entry = _read(line)
            if entry is None:
                self.damaged += 1
            else:
                self.entries.append(entry)

    def append(self, entry: dict[str, Any]) -> None:
        """Keep an entry; it is on disk when this returns.

        Raises:
            UserError: the disk is full, or it or the log is gone; then the log is as it was.
        """
        text = json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode()
        line = f"{zlib.crc32(text):08x} ".encode() + text + b"\n"
        if not self._there():
            raise UserError(
                f"{self.path}: was removed or replaced while its page is open, so no click can be kept. Start the page "
                "again."
            )
        end = self._file.seek(0, os.SEEK_END)
        try:
            left = memoryview(line)
            while left:  # a disk that is nearly full takes a part
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(end)
            raise UserError(f"{self.path}: the click could not be kept ({error.strerror})") from None
        self.entries.append(entry)

    def _there(self) -> bool:
        """Whether the file that is open is the one that will be read again."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self._file.fileno()))
        except OSError:
            return False

    def close(self) -> None:
        """Let another page open it."""
        self._file.close()


def _read(line: bytes) -> dict[str, Any] | None:
    try:
        if int(line[:8], 16) != zlib.crc32(line[9:]):
            return None
        entry = json.loads(line[9:])
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None
