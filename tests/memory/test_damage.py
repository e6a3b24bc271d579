"""A flipped bit in any file of a memory is reported, and a damaged manifest is one line."""

import random
import re
import shutil
from pathlib import Path

import pytest

from recollect.core.errors import UserError
from recollect.memory import Memory


@pytest.fixture
def everything(tmp_path, pairs):
    """A memory with every kind of file: rows, deletions, versions, a cache, indexes and removals."""
    memory = Memory.create(tmp_path / "whole", width=16, model="model-a", precision="float16")
    memory.add(pairs(25))
    memory.add(pairs(300, first=25))
    memory.delete(["row 3"])
    memory.index(0.9)
    for modality in ("image", "text"):
        memory.search(pairs(2).image_vectors, 5, modality)
    return memory.address


def flip(file, at, bit=1):
    content = bytearray(file.read_bytes())
    content[at] ^= bit
    file.write_bytes(bytes(content))


def kinds_of_files(folder):
    """One file of each kind, the youngest, without the lock, which is empty."""
    found = {}
    for file in sorted(Path(folder).rglob("*")):
        if file.is_file() and file.stat().st_size:
            kind = (re.sub("[0-9a-f-]{8,}", "", str(file.relative_to(folder))), file.suffix)
            found.setdefault(kind, file)
    return list(found.values())


def test_a_check_names_every_file_of_which_a_bit_has_flipped(everything, tmp_path, capfd):
    assert Memory.examine(everything) == []
    kinds = kinds_of_files(everything)
    names = {file.name for file in kinds} | {file.suffix for file in kinds} | {file.parent.name for file in kinds}
    assert {"_transactions", "_versions", "_deletions", "latest_version_hint.json", ".npy", ".arrow"} <= names
    draw = random.Random(0)
    for file in kinds:
        for _ in range(3):
            copy = shutil.copytree(everything, tmp_path / "copy")
            damaged = copy / file.relative_to(everything)
            flip(damaged, draw.randrange(damaged.stat().st_size), 1 << draw.randrange(8))
            assert any(str(damaged) in line for line in Memory.examine(copy)), damaged
            shutil.rmtree(copy)
    assert "panicked" not in capfd.readouterr().err


@pytest.mark.parametrize("at", [0, 0.3, 0.6, 0.9, -1])
def test_a_damaged_manifest_is_one_line_in_our_words(everything, tmp_path, capfd, at):
    copy = shutil.copytree(everything, tmp_path / "copy")
    newest = min((copy / "pairs.lance" / "_versions").glob("*.manifest"))
    flip(newest, int(at * newest.stat().st_size) if at >= 0 else -1, 0xFF)
    with pytest.raises(UserError) as caught:
        Memory.open(copy)
    assert str(newest) in str(caught.value)
    assert "panicked" not in capfd.readouterr().err
