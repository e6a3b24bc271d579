"""Clicks on disk: kills, full disks, flipped bits, two servers."""

import os
import resource
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.apps.serve.journal import Journal
from recollect.apps.serve.labels import ClickedLabels
from recollect.core.errors import UserError


def test_what_was_appended_is_there_again(tmp_path):
    log = Journal(tmp_path / "deep" / "log")
    entries = [{"do": "mark", "ids": ["ä\n", "b"]}, {"do": "undo"}]
    for entry in entries:
        log.append(entry)
    log.close()
    assert Journal(tmp_path / "deep" / "log").entries == entries


def test_a_line_cut_short_by_a_kill_is_dropped_and_the_rest_goes_on(tmp_path):
    log = Journal(tmp_path / "log")
    log.append({"n": 1})
    log.append({"n": 2})
    log.close()
    whole = (tmp_path / "log").read_bytes()
    for length in range(len(whole)):
        (tmp_path / "log").write_bytes(whole[:length])
        cut = Journal(tmp_path / "log")
        cut.append({"n": 3})
        cut.close()
        again = Journal(tmp_path / "log")
        again.close()
        assert again.damaged == 0
        assert again.entries in ([{"n": 3}], [{"n": 1}, {"n": 3}])


def test_a_flipped_bit_costs_one_entry_and_is_counted(tmp_path):
    log = Journal(tmp_path / "log")
    for n in range(5):
        log.append({"n": n})
    log.close()
    data = bytearray((tmp_path / "log").read_bytes())
    data[data.index(b'"n":2')] ^= 4
    (tmp_path / "log").write_bytes(data)
    damaged = Journal(tmp_path / "log")
    assert damaged.damaged == 1
    assert len(damaged.entries) == 4


def test_an_undo_whose_click_was_damaged_takes_back_no_other(tmp_path):
    labels = ClickedLabels(Journal(tmp_path / "log"))
    labels.create("reds")
    labels.mark(1, ["kept"], 1)
    labels.mark(1, ["undone"], 1)
    labels.undo()
    labels.journal.close()
    data = (tmp_path / "log").read_bytes()
    (tmp_path / "log").write_bytes(data.replace(b"undone", b"undome", 1))
    again = ClickedLabels(Journal(tmp_path / "log"))
    assert again.journal.damaged == 1
    assert again.classes[1].marks == {"kept": 1}


def test_two_servers_do_not_share_a_log(tmp_path):
    first = Journal(tmp_path / "log")
    with pytest.raises(UserError, match="another page has it open"):
        Journal(tmp_path / "log")
    first.close()
    Journal(tmp_path / "log").close()


def test_a_full_disk_is_said_and_leaves_the_log_whole(tmp_path, monkeypatch):
    log = Journal(tmp_path / "log")
    log.append({"n": 1})

    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(UserError, match="No space left"):
            log.append({"n": 2})
    log.append({"n": 3})
    log.close()
    assert Journal(tmp_path / "log").entries == [{"n": 1}, {"n": 3}]


def test_a_click_that_did_not_fit_is_not_written_with_a_later_one(tmp_path):
    log = Journal(tmp_path / "log")
    log.append({"n": 1})
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    usual = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as on a full disk: an error, after a part is written
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limit[1]))
        for n in (2, 3):
            with pytest.raises(UserError, match="could not be kept"):
                log.append({"n": n, "ids": ["x" * 200]})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, usual)
    log.append({"n": 4})
    log.close()
    again = Journal(tmp_path / "log")
    again.close()
    assert (again.damaged, again.entries) == (0, [{"n": 1}, {"n": 4}])


def test_a_killed_process_loses_no_click_that_was_answered(tmp_path):
    code = (
        "import sys; from pathlib import Path; from recollect.apps.serve.journal import Journal\n"
        "log = Journal(Path(sys.argv[1])); n = 0\n"
        "while True:\n  log.append({'n': n}); print(n, flush=True); n += 1\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True)
    seen = [process.stdout.readline() for _ in range(20)]
    process.send_signal(signal.SIGKILL)
    rest = process.stdout.read()
    process.wait()
    answered = [int(line) for line in "".join([*seen, rest]).split()]
    kept = [entry["n"] for entry in Journal(tmp_path / "log").entries]
    assert kept[: len(answered)] == answered


actions = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.sampled_from("abc")),
        st.tuples(st.just("mark"), st.integers(1, 3), st.sampled_from(["p", "q"]), st.sampled_from([-1, 0, 1])),
        st.tuples(st.just("drop"), st.integers(1, 3)),
        st.tuples(st.just("undo")),
    ),
    max_size=25,
)


def state(labels):
    return {each.key: (each.name, each.text, dict(each.marks)) for each in labels.classes.values()}


@given(actions)
def test_undo_is_the_state_before_and_a_restart_changes_nothing(tmp_path_factory, done):
    path = tmp_path_factory.mktemp("log") / "log"
    labels = ClickedLabels(Journal(path))
    history = [state(labels)]
    for action, *given_ in done:
        try:
            if action == "create":
                labels.create(*given_)
            elif action == "mark":
                labels.mark(given_[0], [given_[1]], given_[2])
            elif action == "drop":
                labels.drop(*given_)
            elif labels.undo() is not None:
                history.pop()
                assert state(labels) == history[-1]
                continue
            else:
                assert len(history) == 1
                continue
        except UserError:
            assert state(labels) == history[-1]
            continue
        history.append(state(labels))
    labels.journal.close()
    again = ClickedLabels(Journal(path))
    again.journal.close()
    assert state(again) == history[-1]
    assert again.revision == labels.revision


def test_names_that_cannot_be_meant_are_refused(tmp_path):
    labels = ClickedLabels(Journal(tmp_path / "log"))
    labels.create("  two   words ", "in words")
    for name in ("", "   ", "two words", "x" * 201):
        with pytest.raises(UserError):
            labels.create(name)
    with pytest.raises(UserError, match="not there any more"):
        labels.mark(7, ["a"], 1)
    with pytest.raises(UserError, match="a mark is"):
        labels.mark(1, ["a"], 2)


ENDING = """
import os, signal, sys, threading, time
from types import SimpleNamespace
from recollect.apps.serve.stopping import end_in_time
server = SimpleNamespace(handle_exit=lambda number, frame: None)
ended = end_in_time(server, float(sys.argv[1]))
signal.signal(signal.SIGINT, server.handle_exit)
threading.Thread(target=time.sleep, args=[20]).start()  # an answer that takes its time
for _ in range(int(sys.argv[2])):
    os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.parametrize(("patience", "signals"), [("0.05", "1"), ("99", "2")])
def test_a_server_ends_soon_though_it_is_in_the_middle_of_something_long(patience, signals):
    """Clicks are on disk before they are answered; two who are in a hurry wait for nothing."""
    began = time.monotonic()
    words = [sys.executable, "-c", ENDING, patience, signals]
    result = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert (result.returncode, result.stderr) == (128 + signal.SIGINT, "interrupted\n")
    assert time.monotonic() - began < 15
