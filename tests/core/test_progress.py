"""Progress lines in a redirected log."""

import subprocess
import sys
import time

import pytest

from recollect.core import progress as module
from recollect.core.progress import progress

SLOW = """
import time
from recollect.core.progress import progress
with progress("train", 10, "steps") as counter:
    time.sleep(4)       # a slow first step
    counter.advance(1, "loss 1")
"""


def test_a_redirected_log_gets_a_line_before_the_first_step_ends():
    start = time.monotonic()
    with subprocess.Popen([sys.executable, "-c", SLOW], stderr=subprocess.PIPE, text=True) as running:
        line = running.stderr.readline()
        seconds = time.monotonic() - start
        finished = running.poll()
    assert line == "train: 0 of 10 (0.0%)\n"
    assert finished is None
    assert seconds < 30


@pytest.fixture
def clock(monkeypatch):
    """Fake clock, moved by the test."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module.console, "quiet", False)
    return now


def test_lines_are_frequent_at_first_and_rare_later(clock, capsys, monkeypatch):
    monkeypatch.setattr(module.console, "_file", None)  # so it writes to the captured standard error
    with progress("embed", 1_000, "images") as counter:
        for _ in range(1_000):
            clock[0] += 1
            counter.advance()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("embed: 2 of 1,000")
    assert 30 <= len(lines) <= 45


def test_a_fast_task_logs_nothing(capsys, monkeypatch):
    monkeypatch.setattr(module.console, "_file", None)
    with progress("embed", 10, "images") as counter:
        counter.advance(10)
    assert capsys.readouterr().err == ""
