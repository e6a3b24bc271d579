"""Small result files of long runs, one a run: each says what it was made from, so that none is read for another's."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recollect.core.errors import UserError
from recollect.core.files import read_json, write_json
from recollect.data.sources.images import note
from recollect.training.options import Recipe
from recollect_papers.store import file_content

MADE_FROM = "made from"
_OF_NO_ACCOUNT = ("workers", "log_every", "checkpoint_every", "checkpoints_kept")


@dataclass(frozen=True)
class RunOrigin:
    """All that decides what a file says.

    Attributes:
        data: digest of each data file, by its name.
        recipe: of the training, as JSON; sources by the name of their file.
        measured: a key of everything that the measuring goes by.
        told: the part of the recipe that a file has told from the beginning.
    """

    data: Mapping[str, str]
    recipe: Mapping[str, Any]
    measured: str
    told: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """What a file keeps of it."""
        return {"data": dict(self.data), "recipe": dict(self.recipe), "measured": self.measured}

    def changed(self, record: Mapping[str, Any]) -> str | None:
        """What is other now than it was for a file, in words; of a file without `MADE_FROM` what can be known."""
        made = record.get(MADE_FROM)
        if made is None:
            return next(_differences(record["recipe"], _plain(self.told), {}), None)
        for name in sorted({*self.data, *made["data"]}):
            if made["data"].get(name) != self.data.get(name):
                return f"{name} has changed"
        if found := next(_differences(made["recipe"], self.recipe, recipe_as_json(Recipe())), None):
            return found
        return None if made["measured"] == self.measured else "how it is measured has changed"


def digests(files: Iterable[Path]) -> dict[str, str]:
    """The content of data files, by their names."""
    return {file.name: file_content(file) for file in sorted(files)}


def recipe_as_json(recipe: Recipe) -> dict[str, Any]:
    """Everything in a recipe that decides the outcome; a source in a folder by the name of its file."""
    found = {key: value for key, value in _plain(asdict(recipe)).items() if key not in _OF_NO_ACCOUNT}
    for kind in ("sources", "captions", "labels"):
        found["data"][kind] = [_without_folder(spec) for spec in found["data"][kind]]
    return found


def _without_folder(spec: str) -> str:
    place, mark, filters = spec.partition("?")
    return f"{Path(place).name}{mark}{filters}"


def _plain(value: Any) -> Any:
    """As a file gives it back."""
    return json.loads(json.dumps(value))


def _differences(said: Mapping[str, Any], now: Mapping[str, Any], usual: Mapping[str, Any]) -> Iterator[str]:
    """Each setting that is other now; what a file does not say was as usual, since the setting is a later one."""
    for key, value in now.items():
        before = said.get(key, usual.get(key, value))
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            yield from _differences(before, value, usual.get(key) or {})
        elif before != value:
            short = not isinstance(value, Mapping) and not isinstance(before, Mapping)
            yield f"{key} was {before} and is {value}" if short else f"{key} has changed"


@dataclass(frozen=True)
class RunFiles:
    """The files of a study.

    Attributes:
        folder: where they are.
        origin: of an arm with a seed, whether it is asked for or not; None if the study has no such arm.
    """

    folder: Path
    origin: Callable[[str, int], RunOrigin | None]

    def make(self, arm: str, seed: int, run: Callable[[], Mapping[str, Any]]) -> None:
        """Run what has no file, or one that was made from something else."""
        file, origin = self.folder / f"{slug(arm)}-seed{seed}.json", self.origin(arm, seed)
        assert origin is not None
        if file.exists():
            why = self._why_again(file, origin)
            if why is None:
                return
            note(f"{file}: {why}; this run is made again")
        write_json(file, {**run(), MADE_FROM: origin.as_json()})

    @staticmethod
    def _why_again(file: Path, origin: RunOrigin) -> str | None:
        try:
            why = origin.changed(read_json(file))
        except (UserError, KeyError):
            return "damaged"
        return None if why is None else f"{why} since it was written"

    def read(self) -> list[dict[str, Any]]:
        """Every file that was made from what is there now; others are named and left out."""
        found, silent = [], 0
        for file in sorted(self.folder.glob("*.json")):
            record = read_json(file)
            origin = self.origin(record["arm"], record["seed"])
            why = "the study has no such arm" if origin is None else origin.changed(record)
            if why is None:
                found.append(record)
                silent += MADE_FROM not in record
            else:
                note(f"{file}: {why}; left out of the tables")
        if silent:
            note(f"{self.folder}: {silent} files do not say what data they were made from; they are taken as they are")
        return found


def slug(name: str) -> str:
    """An arm's name as a part of file names."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Every file of a folder as it is, for tables without data."""
    return [read_json(file) for file in sorted(folder.glob("*.json"))] if folder.is_dir() else []
