"""Progress on standard error: a bar with a rate and the time left, or lines in a log."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

_FIRST_LINE_SECONDS = 2.0
"""Delay before the first progress line if standard error is not a terminal; the delay doubles after each line."""

_LINE_SECONDS = 30.0
"""Maximum delay between two progress lines."""


class _LiteralConsole(Console):
    """Console that prints strings literally, since nearly every line contains a file, class or model name.

    Markup is off ("[/b]" in a name does not end bold text, ":train:" is not an emoji), and control characters are
    escaped, so a name cannot send commands to the terminal.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(escape_control(text, keep="\n\t"), **options)

    def on_broken_pipe(self) -> None:
        """Raise, so `recollect.cli` handles it like all other output; rich would end the process."""
        self.quiet = True
        raise BrokenPipeError


console = _LiteralConsole(stderr=True)

_watcher: ContextVar[Callable[[str, float, float | None], None] | None] = ContextVar("watcher", default=None)


@contextmanager
def watched(watcher: Callable[[str, float, float | None], None]) -> Iterator[None]:
    """Report the progress of all work that this thread does in the block.

    Args:
        watcher: called at every step with the description, the amount done and the total (None if unknown); an
            exception that it raises stops the work.
    """
    before = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(before)


def output() -> Console:
    """Return a console for standard output, wide enough for the widest table if it is not a terminal."""
    return _LiteralConsole(width=None if Console().is_terminal else 160)


def printable(text: str) -> Text:
    """Return text from files or users as one line that is safe to print on a terminal."""
    return Text(escape_control(text))


def escape_control(text: str, keep: str = "") -> str:
    """Replace whitespace by spaces and escape other control characters, except those in ``keep``."""
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
    """Advances a progress bar or writes progress lines; created by `progress`."""

    def __init__(self, bar: Progress, task: TaskID, unit: str, lines: bool) -> None:
        self._bar = bar
        self._task = task
        self._unit = unit
        self._start = time.monotonic()
        self._before = bar.tasks[-1].completed
        self._pause = _FIRST_LINE_SECONDS
        self._next_line = self._start + self._pause if lines else math.inf
        self._writing = threading.Lock()
        # The first step may take minutes; the timer shows that work has started.
        self._timer = threading.Timer(_FIRST_LINE_SECONDS, self._write_line)
        self._timer.daemon = True
        if lines:
            self._timer.start()

    def advance(self, amount: int | float = 1, note: str = "") -> None:
        """Add ``amount`` to the count and show ``note`` (a loss, a file) after the bar."""
        self._bar.update(self._task, advance=amount, note=escape_control(note))
        if (watcher := _watcher.get()) is not None:
            task = self._bar.tasks[-1]
            watcher(str(task.description), task.completed, task.total)
        if time.monotonic() >= self._next_line:
            self._write_line(note)

    def stop(self) -> None:
        """Stop writing lines."""
        self._timer.cancel()

    def _write_line(self, note: str = "") -> None:
        with self._writing:
            now = time.monotonic()
            if now < self._next_line and self._bar.tasks[-1].completed > self._before:
                return  # the timer and a step wrote at the same moment
            console.print(self._line(now - self._start, note), highlight=False, soft_wrap=True)
            self._pause = min(2 * self._pause, _LINE_SECONDS)
            self._next_line = now + self._pause

    def _line(self, seconds: float, note: str) -> str:
        task = self._bar.tasks[-1]
        line = f"{task.description}: {task.completed:,.0f}"
        if task.total:
            line += f" of {task.total:,.0f} ({task.completed / task.total:.1%})"
        if (done := task.completed - self._before) and seconds:
            rate = done / seconds
            line += f", {rate:,.0f} {self._unit}/s" if rate >= 10 else f", {rate:.2g} {self._unit}/s"
            if task.total:
                line += f", {timedelta(seconds=round((task.total - task.completed) / rate))} left"
        return f"{line}, {note}" if note else line


@contextmanager
def progress(
    description: str, total: int | float | None, unit: str = "it", done: int | float = 0, *, shown: bool = True
) -> Iterator[Counter]:
    """Show a bar on standard error while the block runs, or plain lines when standard error is not a terminal.

    Args:
        done: amount already done at the start.
        shown: pass False in all but one of several processes that do the same work.
    """
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        _Rate(unit),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    terminal = console.is_terminal
    with Progress(*columns, console=console, disable=not (terminal and shown)) as bar:
        task = bar.add_task(escape_control(description), total=total, completed=int(done), note="")
        counter = Counter(bar, task, unit, shown and not terminal)
        try:
            yield counter
        finally:
            counter.stop()


def note(text: str) -> None:
    """Print a line on standard error, literally."""
    console.print(text, highlight=False, soft_wrap=True)
