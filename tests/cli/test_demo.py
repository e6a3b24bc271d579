"""The demo: its report and its index."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from recollect import RECIPES, Index, cli
from recollect.cli import demo_photographs


@pytest.fixture
def folder(tmp_path):
    """Two classes that any image tower can distinguish: light and dark noise."""
    generator = np.random.default_rng(0)
    for name, low in (("light", 200), ("dark", 0)):
        (tmp_path / "own" / name).mkdir(parents=True)
        for number in range(8):
            pixels = generator.integers(low, low + 55, (48, 48, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "own" / name / f"{number}.png")
    return tmp_path / "own"


def test_the_demo_writes_a_report_and_an_index(folder, trained, recollect, tmp_path):
    before = sorted(file.stat().st_mtime_ns for file in folder.rglob("*.png"))
    recollect("demo", "--pictures", str(folder), "--model", str(trained[0]), "--out", str(tmp_path / "out"))
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert len(re.findall(r'src="data:image/jpeg', page)) >= 6
    assert not re.search(r'(src|href)="(?!data:)', page)  # self-contained
    assert len(Index.open(tmp_path / "out" / "index")) == 16
    assert sorted(file.stat().st_mtime_ns for file in folder.rglob("*.png")) == before


def test_the_commands_in_the_report_exist():
    text = Path(cli.__file__).with_name("demo.html").read_text(encoding="utf-8")
    commands = [line.split() for line in re.findall(r"<code>recollect ([^<]*)</code>", text)]
    assert len(commands) >= 4
    for words in commands:
        name, rest = cli.choose("recollect", cli.COMMANDS, words)
        assert name != "train" or rest[0] in RECIPES


def test_a_folder_without_pictures_is_rejected(trained, recollect, tmp_path):
    (tmp_path / "empty").mkdir()
    words = ("demo", "--pictures", tmp_path / "empty", "--model", trained[0], "--out", tmp_path)
    assert recollect(*words, check=False).returncode == 2


def test_the_crops_of_the_photographs_are_reproducible(tmp_path, monkeypatch):
    pytest.importorskip("skimage")
    monkeypatch.setattr(demo_photographs, "CROPS", 3)
    one, other = (demo_photographs.make_pictures(tmp_path / name) for name in ("one", "other"))
    files = sorted(file.relative_to(one) for file in one.rglob("*.jpg"))
    assert len(files) == 3 * len(demo_photographs.PHOTOGRAPHS)
    assert all((one / file).read_bytes() == (other / file).read_bytes() for file in files)
