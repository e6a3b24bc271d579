"""The newest version of a memory that was asked for: another process may change it while its page is open."""

import threading
from collections.abc import Callable
from typing import TypeVar

from recollect.core.errors import UserError
from recollect.memory.store import Memory
from recollect.web.collection import Collection
from recollect.web.orders import ListGoneError
from recollect.web.session import Session

_Answer = TypeVar("_Answer")

_GRACE = 120.0
"""Seconds that answers of an older version may still take."""


class MemoryChangedError(UserError):
    """A browser shows rows of another version: whoever sees them can ask for the list anew."""


class OpenMemory:
    """A session on a memory, and another one on each version that comes after.

    What was opened stays as it is; a request keeps to the session that it began with, so that no number of a row ever
    means a picture of another version.

    Attributes:
        session: the newest.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._lock = threading.Lock()

    def refresh(self) -> Session:
        """The session, on the newest version where the memory has changed: asked whenever the page is loaded.

        Raises:
            UserError: the memory is gone or empty, or holds vectors of another model now.
        """
        with self._lock:
            session = self.session
            if "://" in session.collection.memory.address:  # which shows every change at once, and no versions
                return session
            newest = Memory.open(session.collection.memory.address)
            if newest.fingerprint == session.collection.known:
                return session
            newest.check_encoder(session.encoder, session.model_name)
            self.session = session.on(Collection(newest))
            threading.Thread(target=self.session.prepare, name="prepare", daemon=True).start()
            closing = threading.Timer(_GRACE, session.collection.close)
            closing.daemon = True
            closing.start()
            return self.session

    def ask(self, question: Callable[[Session], _Answer]) -> _Answer:
        """An answer; where the version that is open cannot give it any more, that of the newest.

        Raises:
            UserError: the question is wrong, or there is nothing newer.
        """
        session = self.session
        try:
            return question(session)
        except (ListGoneError, MemoryChangedError):
            raise
        except UserError:
            if self.refresh() is session:
                raise
            return question(self.session)
