"""The folder of a run: recipe, metrics, checkpoints and, at the end, the model."""

import dataclasses
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from recollect.core.errors import user_errors
from recollect.core.files import hold, make_folder, read_json, sync_file, write_json, write_text
from recollect.core.progress import note
from recollect.core.validation import refuse
from recollect.training.checkpoints import (
    CONTENT,
    MODIFIED,
    WHOLE_CONTENT,
    Facts,
    prune_checkpoints,
    remove_leftovers,
    rename_for_removal,
)
from recollect.training.trackers import MetricsTracker

_MAY_CHANGE = frozenset(
    {"workers", "chunk", "steps", "log_every", "checkpoint_every", "checkpoints_kept", "shard_weights"}
)
"""Options that may change on resume: how to compute, what to log and keep, and the number of steps."""


@contextmanager
def run_lock(out: Path) -> Iterator[None]:
    """Lock the folder of a run, which is created if missing.

    Raises:
        UserError: another process is training there.
    """
    created = [folder for folder in (out, *out.parents) if not folder.exists()]
    make_folder(out)
    path, own = out / ".lock", False
    while not own:
        with path.open("ab") as file:
            busy = not hold(file, wait=False)
            refuse((busy, f"{out}: another process is training there. Wait for it, or choose another --out."))
            # The previous holder may have removed the file between our open and our lock.
            own = path.exists() and path.stat().st_ino == os.fstat(file.fileno()).st_ino
            if own:
                try:
                    yield
                finally:
                    with suppress(PermissionError):  # Windows cannot remove an open file
                        path.unlink(missing_ok=True)
                    for folder in created:  # remove them if the run did not start
                        if any(folder.iterdir()):
                            break
                        folder.rmdir()


def check_run_folder(out: Path, recipe: Any, resume: bool) -> None:
    """Check that a run may start, or resume with this recipe.

    Raises:
        UserError: a run exists, or its recipe differs; the message lists the differences.
    """
    check_free(out, resume)
    file = out / "recipe.json"
    if not file.exists():
        return
    changed = {name: values for name, values in _changes(file, recipe).items() if name not in _MAY_CHANGE}
    words = "; ".join(f"{name} was {then}, is {now}" for name, (then, now) in changed.items())
    advice = "Choose another --out. If files only moved, put links in the old place (ln -s)."
    refuse((changed, f"{file}: --resume needs the same recipe, but {words}. {advice}"))


def check_free(out: Path, resume: bool) -> None:
    """Check that a run may start or resume in this folder.

    Raises:
        UserError: the folder contains a run and ``resume`` is False, or it contains other files.
    """
    files = [path for path in out.iterdir() if not path.name.startswith(".")] if out.is_dir() else []
    run = (out / "recipe.json").exists()
    refuse(
        (run and not resume, f"{out}: already contains a run. Add --resume to continue it, or choose another --out."),
        (not run and files, f"{out}: not empty, and contains no run to resume. Choose another --out."),
    )


def check_data(checkpoint: Path, data: Facts) -> None:
    """Check that the data is unchanged since the checkpoint, as far as possible without reading all of it.

    Args:
        checkpoint: checkpoint to resume from; facts it does not record are not compared, with a note about contents.
        data: current facts (`recollect.training.assembly.Parts`).

    Raises:
        UserError: the data differs; the message lists the differences.
    """
    saved: Facts = read_json(checkpoint / "state.json").get("data", {})
    before, current = ({os.path.abspath(name): facts for name, facts in each.items()} for each in (saved, data))
    words, unsure = [], []
    for name, facts in saved.items():
        now = current.get(os.path.abspath(name), {})
        changed = [fact for fact, then in facts.items() if fact != MODIFIED and now.get(fact, then) != then]
        shown = [fact for fact in changed if fact not in (CONTENT, WHOLE_CONTENT)] or changed[:1]
        words += [f"{name} had {_counted(facts[fact], fact)}, has {_counted(now[fact], fact)}" for fact in shown]
        written = now.get(MODIFIED, facts.get(MODIFIED)) != facts.get(MODIFIED)
        if written and WHOLE_CONTENT not in facts.keys() & now.keys():
            unsure.append(name)
    advice = "Restore it, or choose another --out."
    refuse((words, f"{checkpoint}: --resume needs the same data, but {'; '.join(words)}. {advice}"))
    for name in unsure:
        note(
            f"{name}: modified or copied since {checkpoint.name} and too large to compare in full; its size and the "
            "parts compared match"
        )
    known = {name for name, facts in before.items() if CONTENT in facts}
    if unknown := [name for name, facts in data.items() if CONTENT in facts and os.path.abspath(name) not in known]:
        names = ", ".join(unknown[:3]) + (" …" if len(unknown) > 3 else "")
        note(f"{checkpoint}: does not record the content of {names}; assuming it has not changed")


def _counted(value: int | str, fact: str) -> str:
    return f"{value:,} {fact}" if isinstance(value, int) else f"{fact} {value}"


def _changes(file: Path, recipe: Any) -> dict[str, tuple[Any, Any]]:
    """Return the differences between the recipe in ``file`` and ``recipe``."""
    then, now = _flat(read_json(file)), _flat(as_json(recipe))
    # An option missing in the file had its default value, if the file has other options of its group.
    groups = {name.rpartition(".")[0] for name in then}
    then = {name: value for name, value in _flat(_defaults(recipe)).items() if name.rpartition(".")[0] in groups} | then
    changes = _differing(then, now)
    return {name: values for name, values in changes.items() if not (name.startswith("data.") and _same_files(*values))}


def _same_files(one: Any, other: Any) -> bool:
    """Return whether two values name the same existing files; `check_data` compares their contents."""
    if isinstance(one, str) and isinstance(other, str):
        (first, *query), (second, *other_query) = one.split("?", 1), other.split("?", 1)
        exist = os.path.exists(first) and os.path.exists(second)
        return one == other or (exist and query == other_query and os.path.samefile(first, second))
    lists = isinstance(one, list) and isinstance(other, list) and len(one) == len(other)
    return lists and all(map(_same_files, one, other))


def differences(one: Any, other: Any) -> dict[str, tuple[Any, Any]]:
    """Return the options that differ between two recipes, with both values, by name."""
    return _differing(_flat(as_json(one)), _flat(as_json(other)))


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    names = sorted(one.keys() | other.keys())
    return {name: (one.get(name), other.get(name)) for name in names if one.get(name) != other.get(name)}


def run_finished(out: Path, recipe: Any) -> bool:
    """Return whether the run has finished all steps and written its model."""
    return (out / "model").exists() and "steps" not in _changes(out / "recipe.json", recipe)


def prepare_run_folder(out: Path, recipe: Any, last: Path | None) -> None:
    """Write the recipe, and remove leftovers of interrupted processes.

    Args:
        out: folder of the run.
        recipe: current recipe.
        last: checkpoint to resume from; None to start from step 0.
    """
    remove_leftovers(out)
    folder, file = out / "checkpoints", out / "recipe.json"
    prune_checkpoints(folder, recipe.checkpoints_kept, last)  # checkpoints newer than ``last`` are damaged
    changes = _changes(file, recipe) if file.exists() else {}
    for name, (then, now) in changes.items():
        follows = "; the learning rate schedule now follows the new length" if name == "steps" else ""
        note(f"{out}: continues with {name.replace('_', '-')} {now} (was {then}){follows}")
    if "steps" in changes:
        rename_for_removal(out / "model")  # before writing the new number of steps
        remove_leftovers(out)
    if changes or not file.exists():
        write_json(file, as_json(recipe))  # first, since this file marks the folder as a run
    make_folder(folder)


@contextmanager
def remove_failed_start(out: Path) -> Iterator[None]:
    """Remove the files of a new run that fails before its first metrics or checkpoint.

    Otherwise the corrected command would fail because the folder contains a run.
    """
    metrics, folder, recipe = own = [out / "metrics.jsonl", out / "checkpoints", out / "recipe.json"]
    new = not recipe.exists()
    try:
        yield
    except Exception:
        foreign = {path for path in out.iterdir() if path.name != ".lock"} - set(own)
        started = (metrics.exists() and metrics.stat().st_size > 0) or (folder.exists() and any(folder.iterdir()))
        if new and not foreign and not started:
            metrics.unlink(missing_ok=True)
            if folder.exists():
                folder.rmdir()
            recipe.unlink(missing_ok=True)  # last, since files without a recipe block a new run
        raise


def _defaults(options: Any) -> dict[str, Any]:
    """Return the defaults of all options that have one, as JSON values."""
    defaults: dict[str, Any] = {}
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if dataclasses.is_dataclass(value):
            defaults[field.name] = _defaults(value)
        elif field.default is not dataclasses.MISSING:
            defaults[field.name] = json.loads(json.dumps(field.default))
    return defaults


def as_json(recipe: Any) -> Any:
    """Convert a dataclass to plain JSON values."""
    return json.loads(json.dumps(dataclasses.asdict(recipe)))


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {name: value}
    return {
        key: leaf for part, inner in value.items() for key, leaf in _flat(inner, f"{name}.{part}".strip(".")).items()
    }


class Metrics:
    """``metrics.jsonl``: one line per logged step; lines after the resumed checkpoint are dropped.

    Args:
        path: path of the file.
        step: step of the resumed checkpoint; 0 for a new run.
        trackers: trackers that also receive each new line.

    Attributes:
        last: last line with a loss; empty before the first.
        measured: last evaluated step; 0 before the first evaluation.
    """

    def __init__(self, path: Path, step: int, trackers: Sequence[MetricsTracker] = ()) -> None:
        self.last: Mapping[str, Any] = {}
        self.measured = 0
        if path.exists():
            lines = [(line, _read_line(line)) for line in path.read_bytes().split(b"\n")]
            if damaged := sum(read is None for _, read in lines[:-1]):  # the last line is empty or truncated
                note(f"{path}: dropped {damaged:,} damaged line{'s' if damaged > 1 else ''}")
            kept = [(line, read) for line, read in lines if read and read["step"] <= step]
            write_text(path, "".join(f"{line.decode()}\n" for line, _ in kept))
            steps = [read for _, read in kept if "loss" in read]
            self.last = steps[-1] if steps else {}
            self.measured = max((read["step"] for _, read in kept if "evaluation" in read), default=0)
        self._file = path.open("a", encoding="utf-8")
        self._trackers, self._path = trackers, path

    def write(self, values: Mapping[str, Any]) -> None:
        """Append one line and flush; non-finite numbers become null."""
        values = _with_nulls(values)
        if "loss" in values:
            self.last = values
        with self._full_disk():
            self._file.write(json.dumps(values, allow_nan=False) + "\n")
            self._file.flush()
        for tracker in self._trackers:
            tracker.write(values)

    def sync(self) -> None:
        """Flush to disk (fsync), so a checkpoint never refers to lines that could be lost."""
        with self._full_disk():
            sync_file(self._file)

    @contextmanager
    def _full_disk(self) -> Iterator[None]:
        advice = ". Free some space, then continue with --resume."
        with user_errors(f"{self._path}: cannot be written", OSError, then=advice):
            yield

    def close(self) -> None:
        for tracker in self._trackers:
            tracker.close()
        with suppress(OSError):  # a failed write has already been reported
            self._file.close()


def _with_nulls(value: Any) -> Any:
    """Replace non-finite numbers by None."""
    if isinstance(value, Mapping):
        return {name: _with_nulls(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _read_line(line: bytes) -> dict[str, Any] | None:
    """Parse a line of the metrics; None if damaged."""
    try:
        read = json.loads(line.decode("ascii"))
    except ValueError:
        return None
    return read if isinstance(read, dict) and isinstance(read.get("step"), int) else None
