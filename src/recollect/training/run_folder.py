"""The folder of a run: its recipe, its metrics, its checkpoints and, at the end, its model."""

import dataclasses
import json
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from recollect.core.errors import UserError
from recollect.core.files import new_folder, read_json, write_json, write_text
from recollect.training.checkpoints import prune_checkpoints, remove_leftovers


def check_run_folder(out: Path, recipe: Any, resume: bool) -> None:
    """Refuse to start over an existing run, or to resume one whose recipe was another.

    Raises:
        UserError: saying which, and what differs.
    """
    file = out / "recipe.json"
    if not resume:
        if file.exists():
            raise UserError(f"{out}: a run is there already. Add --resume to continue it, or name another --out.")
        new_folder(out, "run")
    elif file.exists():
        then, now = _flat(read_json(file)), _flat(as_json(recipe))
        changed = [
            f"{name} was {then.get(name)}, is {now.get(name)}"
            for name in sorted(then.keys() | now.keys())
            if then.get(name) != now.get(name)
        ]
        if changed:
            raise UserError(f"{file}: --resume needs the same recipe, but {'; '.join(changed)}. Name another --out.")
    elif out.exists() and any(path for path in out.iterdir() if not path.name.startswith(".")):
        raise UserError(f"{out}: no run to resume there, and the folder is not empty. Name another --out.")


def prepare_run_folder(out: Path, recipe: Any, checkpoints_kept: int) -> None:
    """Write the recipe, and clear away what a killed process left half-written."""
    remove_leftovers(out)
    prune_checkpoints(out / "checkpoints", checkpoints_kept)
    if not (out / "recipe.json").exists():
        write_json(out / "recipe.json", as_json(recipe))  # first of all: it is what makes the folder a run
    (out / "checkpoints").mkdir(exist_ok=True)


def as_json(recipe: Any) -> Any:
    """A dataclass as what JSON makes of it."""
    return json.loads(json.dumps(dataclasses.asdict(recipe)))


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {name: value}
    return {
        key: leaf for part, inner in value.items() for key, leaf in _flat(inner, f"{name}.{part}".strip(".")).items()
    }


class Metrics:
    """``metrics.jsonl``: one line for each logged step, none for a step after the checkpoint a run resumes from."""

    def __init__(self, path: Path, step: int) -> None:
        if path.exists():
            kept = [line for line in path.read_text(encoding="utf-8").splitlines() if _step(line) <= step]
            write_text(path, "".join(f"{line}\n" for line in kept))
        self._file = path.open("a", encoding="utf-8")

    def write(self, values: Mapping[str, Any]) -> None:
        """Add one line, so that a reader sees it at once."""
        self._file.write(json.dumps(values, allow_nan=False) + "\n")
        self._file.flush()

    def sync(self) -> None:
        """Bring every line to the disk, before a checkpoint says that they are there."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _step(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except json.JSONDecodeError:
        return float("inf")  # the last line of a killed run may be cut short


class StopRequest:
    """Whether SIGINT or SIGTERM has asked the run to stop; made by `stop_requests`."""

    signal: int = 0

    def leave(self) -> None:
        """End the process as the signal would have."""
        if self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + (self.signal or signal.SIGTERM))


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Note the first SIGINT or SIGTERM instead of dying of it; a second one acts as usual."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request  # only the main thread may set handlers
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, frame: FrameType | None) -> None:
        request.signal = number
        restore()

    for number in before:
        signal.signal(number, note)
    try:
        yield request
    finally:
        restore()
