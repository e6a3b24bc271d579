"""Typical mistakes of new users: a one-line error, status 2 and no files left behind."""

import shutil
from dataclasses import dataclass

import pytest

import guide_world

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("first")
    guide_world.checkpoint(folder / "MODEL")
    guide_world.folders(folder / "examples", ["crane", "owl"], 3, 300)
    guide_world.classes(folder, "birds", ["crane", "owl", "robin"])
    guide_world.pairs(folder, "pairs", {"train": 24, "test": 8}, 10_000)
    (folder / "nameless.txt").write_text("a photo\n")
    for name, first in (("photos", 600), ("new", 700)):
        (folder / name).mkdir()
        for number in range(6):
            guide_world.drawing(first + number).save(folder / name / f"{number}.jpg")
    return folder


@pytest.fixture(scope="module")
def index(world, recollect):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(world)
        recollect("index", "build", "pairs.parquet", "--model", "MODEL", "--split", "train", "--out", "indexes/pairs")
    return world / "indexes/pairs"


@pytest.fixture
def here(world, index, monkeypatch):
    monkeypatch.chdir(world)
    return world


@dataclass(frozen=True)
class Wrong:
    """A command that fails, and texts that its error line contains."""

    words: str
    messages: tuple[str, ...]


WRONG = [
    Wrong("search indexes/none red", ("indexes/none", "no such index")),
    Wrong("search indexes/pairs red --min-score learned --normalize", ("--min-score learned",)),
    Wrong("search indexes/pairs red --model ./MODLE", ("MODLE", "no such folder")),
    Wrong("search indexes/pairs red --device tpu", ("error: --device tpu",)),
    Wrong("search indexes/pairs red --adapt --episode.learning-rate nan", ("learning_rate", "nan")),
    Wrong("classify --support examples --images none --model MODEL", ("none", "no such folder")),
    Wrong("classify --support examples --images new --model ./MODLE", ("MODLE", "no such folder")),
    Wrong("caption indexes/pairs --captions none.csv", ("none.csv", "no such file")),
    Wrong("caption indexes/none --model MODEL", ("indexes/none",)),
    Wrong("train siglip-tiny --data none.parquet --out runs/new", ("none.parquet",)),
    Wrong("evaluate zero-shot MODEL --data none.parquet", ("none.parquet",)),
    Wrong("evaluate zero-shot MODEL --data birds.parquet --templates none.txt", ("none.txt", "no such file")),
    Wrong("evaluate zero-shot MODEL --data birds.parquet --templates photos/0.jpg", ("photos/0.jpg", "UTF-8")),
    Wrong("evaluate zero-shot MODEL --data birds.parquet --templates nameless.txt", ("nameless.txt", "{}")),
    Wrong("evaluate retrieval MODEL --data pairs.parquet --queries 0", ("--queries", "at least 1")),
    Wrong("evaluate zero-shot ./MODLE --data birds.parquet --out pairs.parquet", ("pairs.parquet", "is a file")),
    Wrong("evaluate zero-shot ./MODLE --data birds.parquet --out MODEL/config.json", ("config.json",)),
    Wrong("classify --support examples --model ./MODLE --save photos", ("photos", "already exists")),
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.words)
def test_a_mistake_gives_one_error_line(recollect, here, wrong):
    before = sorted(here.rglob("*"))
    done = recollect(*wrong.words.split(), check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith("error: ")
    for each in wrong.messages:
        assert each in line
    assert "Traceback" not in done.stderr
    assert sorted(here.rglob("*")) == before, "no files are left behind"


def test_an_index_can_be_searched_from_any_folder_unless_it_was_copied(recollect, world, tmp_path, monkeypatch):
    """The index was built with a relative path to its model."""
    monkeypatch.chdir(tmp_path)
    assert "a red bridge" in recollect("search", world / "indexes/pairs", "a red bridge", "--k", 3).stdout
    shutil.copytree(world / "indexes/pairs", tmp_path / "alone")
    error = recollect("search", "alone", "a red bridge", check=False).stderr
    assert "MODEL" in error
    assert "--model" in error


def test_escape_codes_in_names_never_reach_the_terminal(recollect, here, tmp_path):
    names = "[/b]owl\x1b[31m", "[red]crane"
    done = recollect("classify", "--names", *names, "--images", "new", "--model", "MODEL", "--out", tmp_path / "[/x]")
    assert "[/b]owl\\x1b[31m" in done.stdout
    assert "[red]crane" in done.stdout
    done = recollect("index", "remove", "indexes/pairs", "--ids", "none\x1b[31m", check=False)
    assert "none\\x1b[31m" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_a_learned_cut_off_is_reported(recollect, here):
    done = recollect("search", "indexes/pairs", "a red bridge", "--k", 24, "--min-score", "learned")
    assert "cut-off: 90% of 24 captions" in " ".join(done.stdout.split())
    assert "nothing is cut" not in done.stdout
    done = recollect("search", "indexes/pairs", "--image", "new/0.jpg", "--k", 24, "--min-score", "learned")
    assert "nothing is cut" in done.stdout


def test_resuming_a_run_that_never_started_is_reported(recollect, here):
    done = recollect("train", "siglip-tiny", "--data", "pairs.parquet", "--out", "runs/late", "--resume",
                     "--steps", 1, "--batch-size", 4, check=False)  # fmt: skip
    assert "no run in runs/late yet" in done.stdout


def test_the_smallest_class_limits_the_default_shots(recollect, here, tmp_path):
    out = tmp_path / "few.json"
    done = recollect("evaluate", "few-shot", "MODEL", "--data", "birds.parquet", "--seeds", 1,
                     "--methods", "prototype", "--out", out)  # fmt: skip
    assert "shots up to 4: the smallest class has 4 examples" in done.stdout
    done = recollect("evaluate", "few-shot", "MODEL", "--data", "birds.parquet", "--shots", 8, check=False)
    assert done.returncode == 2
    assert "4 examples, fewer than 8" in done.stderr
