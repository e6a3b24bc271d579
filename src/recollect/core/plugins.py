"""Tables that installed packages can extend through the entry-point group `recollect.plugins`."""

from collections import UserDict
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import TypeVar

from recollect.core.errors import user_errors

_Entry = TypeVar("_Entry")


class Table(UserDict[str, _Entry]):
    """A dictionary that plugins extend.

    A plugin declares an entry point with the table's name that refers to a mapping of additional entries:

        [project.entry-points."recollect.plugins"]
        presets = "my_package:PRESETS"

    Plugins are imported once, when a name is missing or all names are listed. They cannot replace existing names.
    """

    def __init__(self, name: str, entries: Mapping[str, _Entry] | None = None) -> None:
        self.name, self.extended = name, False
        super().__init__(entries or {})

    def extend(self) -> None:
        """Add the entries of all installed plugins."""
        if self.extended:
            return
        self.extended = True
        for entry in entry_points(group="recollect.plugins", name=self.name):
            package = entry.dist.name if entry.dist else entry.value
            with user_errors(f"the plugin {package} cannot be imported", ImportError, then=". Install it again."):
                entries = entry.load()
            for key, value in entries.items():
                self.data.setdefault(key, value)

    def __missing__(self, key: str) -> _Entry:
        self.extend()
        return self.data[key]

    def __contains__(self, key: object) -> bool:
        if key not in self.data:
            self.extend()
        return key in self.data

    def __iter__(self) -> Iterator[str]:
        self.extend()
        return iter(self.data)

    def __len__(self) -> int:
        self.extend()
        return len(self.data)
