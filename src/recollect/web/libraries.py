"""Libraries of a page: the one it was started with, and those that the user switches to."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recollect.core.content import hash_of
from recollect.core.errors import UserError
from recollect.index import Index
from recollect.index.stores.base import is_index_folder
from recollect.web.folder import absolute, data_directory, library_name, open_folder, pictures_in
from recollect.web.session import Session, open_session


class Libraries:
    """Open libraries of a page: the first one at ``/``, others at ``/library/KEY/``.

    Different tabs may show different libraries. A library stays open until `close`. The user can switch to the folder
    indexes in the data directory, to indexes next to the first one, and to any index or folder by its path.
    """

    def __init__(self, first: Session) -> None:
        self.first = first
        self._open: dict[str, Session] = {}
        self._lock = threading.RLock()

    def session(self, key: str) -> Session:
        """Return the session of a library, opening it if needed.

        Raises:
            UserError: there is no such library, or it cannot be opened.
        """
        if not key:
            return self.first
        with self._lock:
            if key not in self._open:
                places = self._places()
                if key not in places:
                    raise UserError("unknown library. Open it by its folder.")
                self._open[key] = self._open_session(places[key][1])
            return self._open[key]

    def known(self, session: Session) -> list[dict[str, Any]]:
        """Return key, name and path of every library, and whether it is the session's."""
        current = self._key(session.library.index.address)
        return [
            {"key": key, "name": name, "place": place, "current": key == current}
            for key, (name, place) in self._places().items()
        ]

    def open(self, place: str) -> str:
        """Open an index, or index and watch a folder of pictures; return the library's key.

        Raises:
            UserError: the path is neither, or the model cannot be opened.
        """
        address, folder = str(absolute(place)), pictures_in(place)
        with self._lock:
            if folder is not None:
                address = open_folder(folder, self.first.library.index.record).address
            key = self._key(address)
            if key and key not in self._open:
                self._open[key] = self._open_session(address, folder)
            return key

    def close(self) -> None:
        """Close every library."""
        with self._lock:
            for session in (self.first, *self._open.values()):
                session.close()
            self._open.clear()

    def _key(self, address: str) -> str:
        """Return the key of the library at an address; empty for the first library."""
        first = self.first.library.index.address
        if "://" in address or Path(address).resolve() == Path(first).resolve():
            return ""
        return hash_of(str(Path(address).resolve()), 5)

    def _places(self) -> dict[str, tuple[str, str]]:
        """Return the name and address of every library by key."""
        open_now = {"": self.first, **self._open}
        found = {key: (each.library.name, each.library.index.address) for key, each in open_now.items()}
        index = self.first.library.index
        neighbors = [index.folder.resolve().parent] if index.folder is not None else []
        for place in _indexes_in([data_directory() / "indexes", *neighbors]):
            found.setdefault(self._key(place), (library_name(place), place))
        return found

    def _open_session(self, address: str, folder: Path | None = None) -> Session:
        index = Index.open(address, self.first.library.index.model)
        session = open_session(index, folder or _folder_of(index), local=self.first.local)
        session.start()
        return session


def _indexes_in(folders: list[Path]) -> Iterator[str]:
    for folder in folders:
        if folder.is_dir():
            yield from sorted(str(each) for each in folder.iterdir() if is_index_folder(each))


def _folder_of(index: Index) -> Path | None:
    """Return the folder of pictures that an index in the data directory was built from."""
    if index.folder is None or index.folder.resolve().parent != (data_directory() / "indexes").resolve():
        return None
    places = (Path(row["files"][0]["place"]) for row in index.store.dicts(["files"]) if row["files"])
    return next((place for place in places if place.name and place.is_dir()), None)
