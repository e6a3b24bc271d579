"""Labels in SQLite: undo and redo, kills, full disks, damage, concurrent processes."""

import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.core.errors import UserError
from recollect.web.label_store import LabelStore
from recollect.web.server import exit_after_timeout


@pytest.fixture
def labels(tmp_path):
    """A store with one class."""
    store = LabelStore(tmp_path / "labels.sqlite")
    store.create("reds")
    return store


def state(labels):
    return {each.key: (each.name, each.text, list(each.marks.items())) for each in labels.classes.values()}


def filtered(path):
    """Return the marked ids that filters see, by class name."""
    with sqlite3.connect(path) as database:
        marked: dict = {}
        for name, id, value in database.execute("SELECT name, id, value FROM labels"):
            assert name == "clicked"
            marked.setdefault(value, set()).add(id)
        return marked


actions = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.sampled_from("abc")),
        st.tuples(st.just("mark"), st.integers(1, 3), st.sampled_from(["p", "q"]), st.sampled_from([-1, 0, 1])),
        st.tuples(st.just("rename"), st.integers(1, 3), st.sampled_from("abcd")),
        st.tuples(st.just("drop"), st.integers(1, 3)),
        st.tuples(st.just("undo")),
        st.tuples(st.just("redo")),
    ),
    max_size=25,
)


def test_repeating_a_mark_adds_no_undo_step(tmp_path):
    labels = LabelStore(tmp_path / "labels.sqlite")
    key = labels.create("cats").key
    for ids in (["p"], ["p"], ["p", "q"]):
        labels.mark(key, ids, 1)
    labels.undo()
    assert labels.get(key).marks == {"p": 1}
    labels.undo()
    assert labels.get(key).marks == {}


@given(actions)
def test_undo_and_redo_restore_every_state_and_a_restart_changes_nothing(tmp_path_factory, done):
    path = tmp_path_factory.mktemp("labels") / "labels.sqlite"
    labels = LabelStore(path)
    before, after = [state(labels)], []
    for action, *arguments in done:
        try:
            if action == "undo":
                assert (labels.undo() is None) == (len(before) == 1)
                if len(before) > 1:
                    after.append(before.pop())
            elif action == "redo":
                assert (labels.redo() is None) == (not after)
                if after:
                    before.append(after.pop())
            else:
                if action == "mark":
                    labels.mark(arguments[0], [arguments[1]], arguments[2])
                else:
                    getattr(labels, action)(*arguments)
                if state(labels) != before[-1]:  # repeating a mark is not a change
                    before.append(state(labels))
                    after = []
        except UserError:
            pass
        assert state(labels) == before[-1]
    names = {name: {id for id, mark in marks if mark > 0} for name, _, marks in before[-1].values()}
    assert filtered(path) == {name: ids for name, ids in names.items() if ids}
    labels.close()
    reopened = LabelStore(path)
    assert state(reopened) == before[-1]
    assert reopened.revision == labels_revision(path)
    reopened.close()


def labels_revision(path):
    with sqlite3.connect(path) as database:
        return database.execute("SELECT coalesce(max(number), 0) FROM changes").fetchone()[0]


def test_invalid_and_duplicate_class_names_are_rejected(tmp_path):
    labels = LabelStore(tmp_path / "labels.sqlite")
    labels.create("  two   words ", "in words")
    labels.create("Töne")
    for name in ("two words", "TWO words", "to\u0308ne"):
        with pytest.raises(UserError):
            labels.create(name)
    for name in ("", " ", "\u001c", "\u200b \u200b", "x" * 201):
        with pytest.raises(UserError, match="name"):
            labels.create(name)
    with pytest.raises(UserError, match="longer"):
        labels.create("tones", "x" * 201)
    for name in ("TWO words", "", "x" * 201):
        with pytest.raises(UserError):
            labels.rename(2, name)
    labels.rename(1, "Two Words")  # its own name in other letters
    labels.undo()
    with pytest.raises(UserError):
        labels.mark(7, ["a"], 1)
    with pytest.raises(UserError, match="a mark must be"):
        labels.mark(1, ["a"], 2)
    assert list(state(labels)) == [1, 2]
    assert state(labels)[1] == ("two words", "in words", [])


def test_two_open_stores_share_changes_and_undo(tmp_path):
    one, two = LabelStore(tmp_path / "labels.sqlite"), LabelStore(tmp_path / "labels.sqlite")
    one.create("reds")
    two.mark(1, ["a"], 1)
    one.mark(1, ["b"], -1)
    assert state(one) == state(two) == {1: ("reds", "", [("a", 1), ("b", -1)])}
    assert two.undo()["ids"] == ["b"]
    assert state(one) == {1: ("reds", "", [("a", 1)])}
    with pytest.raises(UserError, match="already"):
        two.create("Reds")


CLICKER = """
import sys
from pathlib import Path
from recollect.web.label_store import LabelStore
labels = LabelStore(Path(sys.argv[1]))
print("ready", flush=True)
for number in range(int(sys.argv[3])):
    labels.mark(1, [f"{sys.argv[2]}{number}"], 1)
    print(number, flush=True)
"""


def clicker(path, name, clicks):
    return subprocess.Popen([sys.executable, "-c", CLICKER, str(path), name, str(clicks)], stdout=subprocess.PIPE,
                            text=True)  # fmt: skip


def test_concurrent_clicks_of_two_processes_are_all_saved(labels):
    both = [clicker(labels.path, name, 60) for name in "ab"]
    assert [process.wait(300) for process in both] == [0, 0]
    assert set(labels.get(1).marks) == {f"{name}{number}" for name in "ab" for number in range(60)}
    for process in both:
        process.stdout.close()


def test_a_killed_process_loses_no_acknowledged_click(labels):
    process = clicker(labels.path, "a", 10**6)
    for _ in range(21):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    acknowledged = 20 + len(process.stdout.read().split())
    process.wait()
    process.stdout.close()
    labels.close()
    reopened = LabelStore(labels.path)
    assert reopened.damaged == 0
    assert acknowledged <= len(reopened.get(1).marks) <= acknowledged + 1
    reopened.mark(1, ["later"], 1)


def test_a_click_on_a_full_disk_is_reported_and_never_saved(labels):
    labels.mark(1, ["saved"], 1)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    usual = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writes fail as on a full disk
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limit[1]))
        for number in range(2):
            with pytest.raises(UserError, match="could not be saved"):
                labels.mark(1, [f"{number}" * 9000], 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, usual)
    assert list(labels.get(1).marks) == ["saved"]
    labels.mark(1, ["later"], 1)
    labels.close()
    assert list(LabelStore(labels.path).get(1).marks) == ["saved", "later"]


def filled(path, clicks=400):
    labels = LabelStore(path)
    labels.create("reds")
    for number in range(clicks):
        labels.mark(1, [f"picture {number}"], 1)
    labels.close()
    return {f"picture {number}" for number in range(clicks)}


def test_a_flipped_bit_loses_one_click_and_is_counted(tmp_path):
    path = tmp_path / "labels.sqlite"
    ids = filled(path)
    data = bytearray(path.read_bytes())
    data[data.index(b'"ids":["picture 7"]') + 9] ^= 4
    path.write_bytes(data)
    reopened = LabelStore(path)
    assert (reopened.damaged, set(reopened.get(1).marks)) == (1, ids - {"picture 7"})


def test_the_undo_of_a_damaged_click_affects_no_other_click(labels):
    labels.mark(1, ["saved"], 1)
    labels.mark(1, ["undone"], 1)
    labels.undo()
    labels.close()
    labels.path.write_bytes(labels.path.read_bytes().replace(b'["undone"]', b'["undome"]'))
    reopened = LabelStore(labels.path)
    assert (reopened.damaged, list(reopened.get(1).marks)) == (1, ["saved"])


@pytest.mark.parametrize("page", [0, 1, 3, 5])
def test_a_damaged_database_page_loses_no_click_in_the_backup(tmp_path, page):
    path = tmp_path / "labels.sqlite"
    ids = filled(path)
    LabelStore(path).close()  # the backup contains everything so far
    labels = LabelStore(path)
    labels.mark(1, ["since the backup"], 1)
    labels.close()
    data = bytearray(path.read_bytes())
    data[4096 * page : 4096 * page + 64] = b"\x7f" * 64
    path.write_bytes(data)
    reopened = LabelStore(path)
    assert ids <= set(reopened.get(1).marks)
    assert (tmp_path / "labels.damaged.sqlite").exists() == (reopened.damaged > 0)
    reopened.mark(1, ["later"], 1)
    assert "later" in reopened.get(1).marks


def test_a_file_moved_away_while_open_accepts_no_clicks(labels, tmp_path):
    os.replace(tmp_path / "labels.sqlite", tmp_path / "elsewhere")
    with pytest.raises(UserError, match="Restart the server"):
        labels.mark(1, ["a"], 1)


def test_an_unwritable_path_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--labels"):
        LabelStore(tmp_path / "file" / "labels.sqlite")


@pytest.mark.parametrize(("patience", "signals"), [(0.05, 1), (99, 2)])
def test_a_server_stops_soon_despite_a_long_request(patience, signals):
    """It stops after its grace period or at the second signal; clicks are saved before they are acknowledged."""
    process = os.fork()
    if not process:
        server = SimpleNamespace(handle_exit=lambda number, frame: None)
        exit_after_timeout(server, patience)
        signal.signal(signal.SIGINT, server.handle_exit)
        for _ in range(signals):
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)  # a long request
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 128 + signal.SIGINT
