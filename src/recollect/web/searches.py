"""Saved searches: names for addresses of the page, in a JSON file that all tabs share."""

from pathlib import Path

from recollect.core.errors import UserError
from recollect.core.files import locked, read_json, write_json

MOST = 100


class SavedSearches:
    """Saved searches of one library.

    Args:
        path: JSON file, made when the first search is saved.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def all(self) -> dict[str, str]:
        """The address of each name, in the order they were saved."""
        return dict(read_json(self.path)) if self.path.exists() else {}

    def save(self, name: str, address: str | None) -> dict[str, str]:
        """Save a search, or remove it where the address is None; returns all.

        Raises:
            UserError: there are too many, or the file cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with locked(self.path.with_suffix(".lock")):
                found = {key: value for key, value in self.all().items() if key != name}
                if address is not None:
                    found[name] = address
                if len(found) > MOST:
                    raise UserError(f"at most {MOST} searches can be saved. Remove one first.")
                write_json(self.path, found)
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written ({error.strerror or error})") from error
        return found
