"""A memory against a dictionary, whatever is done to it in whatever order; and killed at any write."""

import multiprocessing
import os
import shutil
import signal
import tempfile

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from recollect.core.errors import UserError
from recollect.memory import Memory, Pairs
from recollect.memory.backends.lance import LanceBackend

WIDTH = 8
STEP = 1 if os.environ.get("RECOLLECT_ALL_KILLS") else 8
"""Every eighth write is killed at, unless all are asked for; of a watch, which has more of them, every twelfth."""

NAMES = st.sampled_from([f"r{number}" for number in range(12)] + ["a\\b", "a#1", "it's", "tab\t"])


class Words:
    """Embeds a text by its letters."""

    width, fingerprint, scale, prefixes, base = WIDTH, "m", None, {}, None

    def embed_texts(self, texts, prefix=None):
        import torch

        return torch.from_numpy(np.stack([vector(f"text {text}") for text in texts]))

    def embed_images(self, images):
        raise AssertionError("no picture is embedded")

    def refine_images(self, embeddings):
        return embeddings


def vector(name):
    row = np.random.default_rng(list(name.encode())).normal(size=WIDTH)
    return (row / np.linalg.norm(row)).astype(np.float32)


def rows(names, edition, silent=()):
    captions = ["" if name in silent else f"{name} {edition}" for name in names]
    texts = np.stack([vector(f"text {caption}") if caption else np.zeros(WIDTH, np.float32) for caption in captions])
    images = np.stack([vector(f"{name} {edition}") for name in names])
    return Pairs(names, images, texts, captions, "m", metadata=[{"edition": edition} for _ in names])


class AgainstADictionary(RuleBasedStateMachine):
    """Two handles on one memory; the dictionary says what each id holds."""

    kind = "lance"

    @initialize()
    def create(self):
        self.folder = tempfile.mkdtemp()
        self.address = f"{self.folder}/memory" if self.kind == "lance" else f"milvus://{self.folder}/lite.db/rows"
        self.handles = [Memory.create(self.address, width=WIDTH, model="m")]
        if self.kind == "lance":
            self.handles.append(Memory.open(self.address))
        self.held = {}

    def handle(self, which):
        chosen = self.handles[which % len(self.handles)]
        chosen.refresh()
        return chosen

    @rule(
        names=st.lists(NAMES, min_size=1, max_size=4, unique=True), edition=st.integers(0, 2), which=st.integers(0, 1)
    )
    def add(self, names, edition, which):
        memory = self.handles[which % len(self.handles)]  # not refreshed: a writer looks for itself
        if any(name in self.held for name in names):
            with pytest.raises(UserError, match="are there already"):
                memory.add(rows(names, edition))
            return
        memory.add(rows(names, edition))
        self.held |= {name: (edition, f"{name} {edition}") for name in names}

    @rule(
        names=st.lists(NAMES, min_size=1, max_size=4, unique=True),
        edition=st.integers(0, 2),
        which=st.integers(0, 1),
        silent=st.booleans(),
    )
    def upsert(self, names, edition, which, silent):
        known = sum(name in self.held for name in names)
        mute = names[:1] if silent else []
        assert self.handles[which % len(self.handles)].upsert(rows(names, edition, mute)) == known
        self.held |= {name: (edition, "" if name in mute else f"{name} {edition}") for name in names}

    @precondition(lambda self: self.held)
    @rule(data=st.data(), which=st.integers(0, 1))
    def remove(self, data, which):
        names = data.draw(st.lists(st.sampled_from(sorted(self.held)), min_size=1, max_size=3, unique=True))
        assert self.handle(which).delete(names) == len(names)
        for name in names:
            del self.held[name]

    @rule(edition=st.integers(0, 2), which=st.integers(0, 1))
    def remove_by_filter(self, edition, which):
        gone = [name for name, (held, _) in self.held.items() if held == edition]
        if not gone:
            if self.held:
                with pytest.raises(UserError, match="no row satisfies"):
                    self.handle(which).delete(where=f"edition = {edition}")
            return
        assert self.handle(which).delete(where=f"edition = {edition}") == len(gone)
        for name in gone:
            del self.held[name]

    @precondition(lambda self: self.held)
    @rule(data=st.data(), caption=st.sampled_from(["", "new words", "it's\n"]), which=st.integers(0, 1))
    def caption(self, data, caption, which):
        name = data.draw(st.sampled_from(sorted(self.held)))
        self.handle(which).set_captions({name: caption}, Words())
        self.held[name] = (self.held[name][0], caption.strip())

    @rule()
    def reopen(self):
        self.handles[0] = Memory.open(self.address)

    @rule()
    def lose_the_cache(self):
        shutil.rmtree(f"{self.address}/cache", ignore_errors=True)

    @invariant()
    def holds_what_the_dictionary_holds(self):
        if not hasattr(self, "held"):
            return
        memory = self.handle(len(self.held))
        assert len(memory) == len(self.held)
        assert memory.texts == sum(bool(caption) for _, caption in self.held.values())
        if not self.held:
            return
        names = sorted(self.held)
        assert {item.id: item.caption for item in memory.fetch(names)} == {n: self.held[n][1] for n in names}
        truth = {name: vector(f"{name} {self.held[name][0]}") for name in names}
        query = vector("a query")
        found = memory.search(query[None], len(names))
        best = sorted(names, key=lambda name: -float(truth[name] @ query))
        assert [truth[id] @ query for id in found.ids[0]] == pytest.approx([truth[id] @ query for id in best], abs=1e-6)
        assert sorted(found.ids[0]) == names
        np.testing.assert_allclose(memory.vectors(names, "image"), np.stack([truth[name] for name in names]), atol=1e-6)
        spoken = [name for name in names if self.held[name][1]]
        if spoken:
            assert sorted(memory.search(query[None], len(spoken), "text").ids[0]) == spoken

    def teardown(self):
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder, ignore_errors=True)


@pytest.mark.parametrize(("kind", "examples"), [("lance", 5), ("milvus", 2)])
def test_a_memory_holds_what_a_dictionary_would(kind, examples):
    machine = type(f"On{kind}", (AgainstADictionary,), {"kind": kind})
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=examples, stateful_step_count=10, deadline=None, phases=[Phase.generate]),
    )


def test_the_comparison_catches_a_memory_that_keeps_what_was_replaced(monkeypatch):
    """A planted bug: rows are added beside those they should replace."""
    monkeypatch.setattr(LanceBackend, "upsert", LanceBackend.append)
    machine = type("Planted", (AgainstADictionary,), {})
    with pytest.raises(Exception, match=r".") as caught:
        run_state_machine_as_test(
            machine, settings=settings(max_examples=5, stateful_step_count=10, deadline=None, phases=[Phase.generate])
        )
    assert not isinstance(caught.value, KeyboardInterrupt)


def die_at(moment):
    """Kill this process before or after its ``moment``-th write: of rows, or of a file that becomes what it is."""
    left = moment

    def step():
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(function):
        def call(*args, **more):
            step()
            result = function(*args, **more)
            step()
            return result

        return call

    for name in ("append", "upsert", "delete"):
        setattr(LanceBackend, name, counted(getattr(LanceBackend, name)))
    os.rename, os.replace = counted(os.rename), counted(os.replace)


def write(address, moment):
    """Everything that writes, in a process that kills itself."""
    die_at(moment)
    memory = Memory.open(address)
    query = np.eye(WIDTH, dtype=np.float32)
    memory.add(rows([f"new {number}" for number in range(3)], 0))
    memory.search(query, 1)
    memory.upsert(rows(["old 1", "old 2", "new 9"], 1))
    memory.set_captions({"old 3": "words", "old 4": ""}, Words())
    memory.search(query, 1)
    memory.index(0.9)
    memory.delete(["old 5"])
    memory.search(query, 1)


def states():
    """Every state that the writes of `write` go through, as captions by id."""
    held = {f"old {number}": f"old {number} 0" for number in range(60)}
    yield dict(held)
    held |= {f"new {number}": f"new {number} 0" for number in range(3)}
    yield dict(held)
    held |= {"old 1": "old 1 1", "old 2": "old 2 1", "new 9": "new 9 1"}
    yield dict(held)
    held |= {"old 3": "words", "old 4": ""}
    yield dict(held)
    del held["old 5"]
    yield dict(held)


def killed(target, folder, moment, *more):
    """Run a writer on a copy of a memory until it kills itself; returns the copy, or None where it came to its end."""
    copy = folder.parent / f"copy {moment}"
    shutil.copytree(folder, copy)
    context = multiprocessing.get_context("forkserver")
    # What Lance imports is imported once; Lance itself has threads, which a fork would not take along.
    context.set_forkserver_preload([__name__, "pydantic", "lance_namespace"])
    process = context.Process(target=target, args=(str(copy), moment, *more))
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return None if process.exitcode == 0 else copy


def ids_of(memory):
    """All of them, each once."""
    ids = [id for batch in memory.columns(["id"]) for id in batch["id"]]
    assert len(ids) == len(set(ids))
    return ids


def test_a_writer_that_is_killed_at_any_write_leaves_a_whole_memory(tmp_path, capsys):
    made = Memory.create(tmp_path / "memory", width=WIDTH, model="m")
    made.add(rows([f"old {number}" for number in range(60)], 0))
    allowed, kills = list(states()), 0
    for moment in range(1, 90, STEP):
        copy = killed(write, tmp_path / "memory", moment)
        if copy is None:
            break
        memory = Memory.open(copy)
        ids = ids_of(memory)
        assert {item.id: item.caption for item in memory.fetch(ids)} in allowed
        assert sorted(memory.search(vector("q")[None], len(memory)).ids[0]) == sorted(ids)
        assert memory.damage() == []
        memory.upsert(rows(["after"], 0))  # and nobody holds the writers' lock any more
        kills += 1
    with capsys.disabled():
        print(f"\n{kills} kills during add, upsert, caption, index and delete")
    assert kills >= 4
