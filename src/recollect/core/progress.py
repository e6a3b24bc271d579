"""One way to show progress: a bar with a rate and the time left, on standard error."""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

Step = TypeVar("Step")

LINE_SECONDS = 30.0
"""Between two lines of progress where there is no terminal: a log that one can follow and still read."""


class _AsItIs(Console):
    """Says every string as it is: names of files, classes and models are other people's, and nearly every line has one.

    No markup is read ("[/b]" in a name is no end of bold text, nor ":train:" a picture of a train), and no control
    character reaches the terminal (an escape could do there what it likes).
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(inert(text, keep="\n\t"), **options)

    def on_broken_pipe(self) -> None:
        """Leave a reader that has gone to `recollect.cli`, as of all that is written; rich would end the process."""
        self.quiet = True
        raise BrokenPipeError


console = _AsItIs(stderr=True)


def output() -> Console:
    """Standard output; where it is no terminal, wide enough for the widest table."""
    return _AsItIs(width=None if sys.stdout.isatty() else 160)


def printable(text: str) -> Text:
    """What others wrote, on one line of a terminal."""
    return Text(inert(text))


def inert(text: str, keep: str = "") -> str:
    """Text without control characters: white space is a space, the others are named. Those in ``keep`` stay."""
    return "".join(each if each.isprintable() or each in keep else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return " " if character.isspace() else f"\\x{ord(character):02x}"


class _Rate(ProgressColumn):
    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f} {self.unit}/s" if speed and speed >= 10 else f"{speed or 0:.2g} {self.unit}/s")


class Counter:
    """Advances one bar; made by `progress`."""

    def __init__(self, bar: Progress, task: int, unit: str, lines: bool) -> None:
        self._bar = bar
        self._task = task
        self._unit = unit
        self._lines = lines
        self._start = self._said = time.monotonic()
        self._before = bar.tasks[-1].completed

    def advance(self, amount: int | float = 1, note: str = "") -> None:
        """Add ``amount`` to what is done, and show ``note`` (a loss, a file) behind the bar."""
        self._bar.update(self._task, advance=amount, note=inert(note))  # type: ignore[arg-type]
        now = time.monotonic()
        if self._lines and now - self._said >= LINE_SECONDS:
            self._said = now
            console.print(self._line(now - self._start, note), highlight=False, soft_wrap=True)

    def _line(self, seconds: float, note: str) -> str:
        task = self._bar.tasks[-1]
        rate = (task.completed - self._before) / seconds
        of, left = "", ""
        if task.total:
            of = f" of {task.total:,.0f} ({task.completed / task.total:.1%})"
            left = f", {timedelta(seconds=round((task.total - task.completed) / rate))} left" if rate else ""
        speed = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
        words = f"{task.description}: {task.completed:,.0f}{of}, {speed} {self._unit}/s{left}"
        return f"{words}, {note}" if note else words


@contextmanager
def progress(
    description: str, total: int | float | None, unit: str = "it", done: int | float = 0, *, shown: bool = True
) -> Iterator[Counter]:
    """Show a bar on standard error while the block runs; where it is no terminal, a plain line now and then.

    Args:
        shown: of several processes that do the same, one shows it.
    """
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        _Rate(unit),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    terminal = sys.stderr.isatty()
    with Progress(*columns, console=console, disable=not (terminal and shown)) as bar:
        task = bar.add_task(inert(description), total=total, completed=int(done), note="")
        yield Counter(bar, task, unit, shown and not terminal)


def track(
    items: Iterable[Step], description: str, total: int | float | None = None, unit: str = "it"
) -> Iterator[Step]:
    """Yield ``items`` with a progress bar."""
    if total is None and hasattr(items, "__len__"):
        total = len(items)  # type: ignore[arg-type]
    with progress(description, total, unit) as counter:
        for item in items:
            yield item
            counter.advance()
