"""The libraries of one page: the one it was started with, and those that a user switches to."""

import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from recollect.core.errors import UserError
from recollect.index import Index
from recollect.web.folder import (
    FolderFiller,
    absolute,
    check_folder,
    data_directory,
    folder_name,
    open_folder,
    pictures_in,
)
from recollect.web.guard import ASGI
from recollect.web.session import Session

_PREFIX = re.compile(r"/library/([0-9a-f]{10})(?=/)")


class Libraries:
    """ASGI application of all libraries: the first is at ``/``, others are at ``/library/KEY/``.

    Two tabs may show two libraries. A library stays open until `close`. Those that can be switched to are the indexes
    of folders in the user's data directory, indexes next to the first one, and whatever was opened by its path.

    Args:
        app_of: its pages and its API.
    """

    def __init__(
        self,
        first: Session,
        session_of: Callable[[Index], Session],
        app_of: Callable[[Session, "Libraries"], ASGI],
    ) -> None:
        self.first, self._session_of, self._app_of = first, session_of, app_of
        self._app = app_of(first, self)
        self._open: dict[str, tuple[Session, Any]] = {}
        self._added: list[Path] = []
        self._folders: dict[str, Path] = {}
        self._lock = threading.RLock()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request to any of the libraries."""
        from starlette.concurrency import run_in_threadpool
        from starlette.responses import JSONResponse

        app, found = self._app, _PREFIX.match(scope.get("path", ""))
        if found is not None:
            try:
                _, app = await run_in_threadpool(self._opened, found[1])
            except UserError as error:
                await JSONResponse({"error": " ".join(str(error).split())}, 404)(scope, receive, send)
                return
            rest = scope["path"][found.end() :]
            scope = {**scope, "path": rest, "raw_path": rest.encode()}
        await app(scope, receive, send)

    def known(self, session: Session) -> list[dict[str, Any]]:
        """Key, name and place of every library, and whether it is the one of a session."""
        return [
            {"key": key, "name": name, "place": str(place), "current": self._key(session.library.index.address) == key}
            for key, (name, place) in self._places().items()
        ]

    def open(self, place: str) -> str:
        """Open an index, or the index of a folder of pictures, which is filled and watched; returns its key.

        Raises:
            UserError: there is neither, or its model cannot be opened.
        """
        path = absolute(place)
        pictures = pictures_in(str(path))
        with self._lock:
            if pictures is not None:
                check_folder(pictures)
                index = self.first.library.index
                path = Path(open_folder(pictures, index.record).address)
                self._folders[self._key(path)] = pictures
            self._added.append(path)
            key = self._key(path)
            if key:
                self._opened(key)
            return key

    def close(self) -> None:
        """Close every library that was switched to."""
        with self._lock:
            for session, _ in self._open.values():
                session.close()
            self._open.clear()

    def _key(self, address: str | Path) -> str:
        """Of the library at an address; empty for the first."""
        first = self.first.library.index.address
        if "://" in str(address) or Path(address).resolve() == Path(first).resolve():
            return ""
        return hashlib.blake2b(str(Path(address).resolve()).encode(), digest_size=5).hexdigest()

    def _places(self) -> dict[str, tuple[str, Path | str]]:
        """Name and place of each key."""
        index = self.first.library.index
        found: dict[str, tuple[str, Path | str]] = {"": (self.first.library.name, index.address)}
        neighbors = [index.folder.resolve().parent] if index.folder is not None else []
        for place in [*self._added, *_indexes_in([data_directory() / "indexes", *neighbors])]:
            found.setdefault(self._key(place), (folder_name(place), place))
        return found

    def _opened(self, key: str) -> tuple[Session, ASGI]:
        """An open library.

        Raises:
            UserError: there is no such library, or it cannot be opened.
        """
        with self._lock:
            if key in self._open:
                return self._open[key]
            places = self._places()
            if key not in places:
                raise UserError("this library is not known here. Open it by its folder.")
            name, address = places[key]
            index = Index.open(address, self.first.library.index.model)
            session = self._session_of(index)
            session.library.name, session.local = name, self.first.local
            folder = self._folders.get(key) or _folder_of(index)
            if folder is not None:
                session.additions.watched = FolderFiller(Index.open(index.address, index.model), folder)
            session.start()
            self._open[key] = session, self._app_of(session, self)
            return self._open[key]


def _indexes_in(folders: list[Path]) -> Iterator[Path]:
    for folder in folders:
        if folder.is_dir():
            yield from sorted(each for each in folder.iterdir() if (each / "pictures.lance").is_dir())


def _folder_of(index: Index) -> Path | None:
    """The folder of pictures that an index in the data directory was made of."""
    if index.folder is None or index.folder.resolve().parent != (data_directory() / "indexes").resolve():
        return None
    for table in index.store.scan(["files"]):
        for files in table["files"].to_pylist():
            if files and files[0]["place"] and Path(files[0]["place"]).is_dir():
                return Path(files[0]["place"])
    return None
