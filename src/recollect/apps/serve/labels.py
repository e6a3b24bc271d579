"""Classes and their clicks: the state that the journal's entries add up to."""

import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, zip_longest
from typing import Any

from recollect.apps.classify.predictions import looks_of
from recollect.apps.serve.journal import Journal
from recollect.core.errors import UserError
from recollect.memory.naming import LABELLED

MOST_CLASSES = 200
LONGEST_NAME = 200


@dataclass(eq=False)
class ClickedClass:
    """One class.

    Attributes:
        key: does not change.
        name: what people call it.
        text: words that describe it, the prior of its order.
        marks: +1 or −1 by the digest of the picture's pixels, or by its id where that is not known, in the order of the
            clicks.
    """

    key: int
    name: str
    text: str
    marks: dict[str, int] = field(default_factory=dict)

    def count(self, mark: int) -> int:
        """How many pictures have this mark."""
        return sum(each == mark for each in self.marks.values())


class ClickedLabels:
    """Classes by clicks, each change kept in the journal first; any can be undone, last first.

    Attributes:
        classes: by key.
        revision: grows with every change, so that two tabs can tell.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.classes: dict[int, ClickedClass] = {}
        self._done: list[dict[str, Any]] = []
        for entry in journal.entries:
            self._replay(entry)

    @property
    def revision(self) -> int:
        """Entries so far."""
        return len(self.journal.entries)

    def create(self, name: str, text: str = "") -> ClickedClass:
        """A new class.

        Raises:
            UserError: no name, one that is too long or taken, or too many classes.
        """
        name, text = (" ".join(unicodedata.normalize("NFC", words).split()) for words in (name, text))
        if not name:
            raise UserError("a class needs a name")
        if max(len(name), len(text)) > LONGEST_NAME:
            raise UserError(f"a name or text of more than {LONGEST_NAME} letters")
        for each in self.classes.values():
            if looks_of(each.name) == looks_of(name):  # nobody could tell them apart, least of all in a filter
                raise UserError(f"there is a class {each.name!r} already")
        if len(self.classes) >= MOST_CLASSES:
            raise UserError(f"more than {MOST_CLASSES} classes")
        key = 1 + max((entry["class"] for entry in self.journal.entries if entry["do"] == "class"), default=0)
        self._do({"do": "class", "class": key, "name": name, "text": text})
        return self.classes[key]

    def mark(self, key: int, ids: list[str], mark: int, digests: Sequence[str] = ()) -> ClickedClass:
        """Say that pictures are (+1) or are not (−1) of a class, or take a mark away (0).

        Args:
            ids: of the pictures.
            digests: of their pixels, "" where that is not known: an id may be another picture's tomorrow.
        """
        found = self.get(key)
        if mark not in (-1, 0, 1):
            raise UserError("a mark is 1, -1 or 0")
        if ids:
            more = {"digests": list(digests)} if any(digests) else {}
            self._do({"do": "mark", "class": key, "ids": ids, "mark": mark, **more})
        return found

    def drop(self, key: int) -> None:
        """Remove a class."""
        self.get(key)
        self._do({"do": "drop", "class": key})

    def undo(self) -> dict[str, Any] | None:
        """Take the last change back; None where there is none."""
        if not self._done:
            return None
        last = self._done[-1]
        self._do({"do": "undo", "of": last})
        return last

    def get(self, key: int) -> ClickedClass:
        """A class.

        Raises:
            UserError: it is not there (any more).
        """
        if key not in self.classes:
            raise UserError("this class is not there any more")
        return self.classes[key]

    def wrote(self, column: str) -> None:
        """Note that labels of these classes are in a column of the memory."""
        if column not in self._columns():
            self._do({"do": "wrote", "column": column})

    def free_column(self, there: Mapping[str, Mapping[str, Any]]) -> tuple[str, tuple[str, ...]]:
        """The first column for labels that nobody else has filled, and those before it that somebody has.

        A column is this log's own where the log says that it wrote there and it holds names of its classes alone; one
        of before the log said so, where each picture has classes that it was clicked for.

        Args:
            there: values by id of each column that labels may be in.
        """
        noted, foreign = self._columns(), list[str]()
        for column in _label_names():
            values = there.get(column, {})
            known = self._ever() if values else {}
            every = set().union(*known.values()) if known else set()
            if all(_made_of(value, every if column in noted else known.get(id, ())) for id, value in values.items()):
                return column, tuple(foreign)
            foreign.append(column)
        raise AssertionError("names do not end")

    def _columns(self) -> set[str]:
        return {entry["column"] for entry in self.journal.entries if entry["do"] == "wrote"}

    def _ever(self) -> dict[str, set[str]]:
        """Names of the classes that each picture was ever clicked for, whatever was undone since."""
        names = {entry["class"]: entry["name"] for entry in self.journal.entries if entry["do"] == "class"}
        found: dict[str, set[str]] = {}
        for entry in self.journal.entries:
            if entry["do"] == "mark" and entry["mark"] > 0 and entry["class"] in names:
                for id in entry["ids"]:
                    found.setdefault(id, set()).add(names[entry["class"]])
        return found

    def _do(self, entry: dict[str, Any]) -> None:
        self.journal.append(entry)
        self._replay(entry)

    def _replay(self, entry: dict[str, Any]) -> None:
        if entry["do"] == "wrote":  # into the memory, where the next writing changes it: nothing to undo here
            return
        if entry["do"] != "undo":
            self._done.append(entry)
            self._apply(entry)
            return
        undone = entry.get("of")
        if undone is not None:  # what it takes back is said, so that no other goes where that line was damaged
            last = next((n for n in reversed(range(len(self._done))) if self._done[n] == undone), None)
        else:
            last = len(self._done) - 1 if self._done else None
        if last is not None:
            del self._done[last]
            self.classes = {}
            for each in self._done:
                self._apply(each)

    def _apply(self, entry: dict[str, Any]) -> None:
        key = entry["class"]
        if entry["do"] == "class":
            self.classes[key] = ClickedClass(key, entry["name"], entry["text"])
        elif entry["do"] == "drop":
            self.classes.pop(key, None)
        elif key in self.classes:
            marks = self.classes[key].marks
            for id, digest in zip_longest(entry["ids"], entry.get("digests", ())):
                marks.pop(id, None)  # of before the log said which picture it was
                marks.pop(picture := digest or id, None)
                if entry["mark"]:
                    marks[picture] = entry["mark"]


def _label_names() -> Iterator[str]:
    yield LABELLED
    yield from (f"{LABELLED}_{number}" for number in count(2))


def _made_of(value: Any, names: Collection[str]) -> bool:
    """Whether a label is some of these names, with ``; `` between; a name may have one in it too."""
    if not isinstance(value, str):
        return False
    return any(
        value == name or (value.startswith(f"{name}; ") and _made_of(value[len(name) + 2 :], names)) for name in names
    )
