"""Options that a command does not read beside the others are refused before anything is opened."""

import pytest
from PIL import Image

from recollect import cli
from recollect.cli.memory import Remove

SEARCH, REMOVE = ("search", "MEMORY", "a cat"), ("memory", "remove", "MEMORY", "--ids", "1")
BUILD = ("memory", "build", "MODEL", "glyphs:captions", "--out", "OUT", "--limit", "5")
RETRIEVE = ("memory", "retrieve", "MEMORY", "--names", "n.txt", "--out", "o.parquet")
UNREAD = (
    (SEARCH, ("--image-weight", "2"), "--image-weight: is of pictures. Name one with --image FILE."),
    (SEARCH, ("--minus-weight", "2"), "--minus-weight: is of words to take away"),
    (("search", "MEMORY", "--image", "a.png"), ("--literal",), "--literal: is for queries in words"),
    (SEARCH, ("--episode.k", "8"), "--episode.k: is of --rerank episode. Add that, or leave this out."),
    (SEARCH, ("--rerank", "episode", "--episode.parameters", "all"), "--episode.parameters: --rerank says it"),
    (SEARCH, ("--rerank", "episode-paper", "--episode.soft", "0.5"), "--episode.soft: --rerank episode-paper has the"),
    (SEARCH, ("--rerank", "episode-full", "--episode.rank", "4"), "--episode.rank: is of adapters"),
    (BUILD, ("--caption-column", "text"), "--caption-column: is for files with columns; glyphs:captions has none"),
    (("memory", "add", "MEMORY", "a.csv?split=test"), ("--split", "train"), "names another split"),
    (("memory", "remove", "MEMORY", "--near", "a.csv?split=val"), ("--split", "train"), "names another split"),
    (RETRIEVE, ("--threshold", "0.5"), "--threshold: is for --exclude SOURCE"),
    (RETRIEVE, ("--exclude", "a.csv?split=val", "--split", "train"), "--split train: a.csv?split=val names another"),
    *((REMOVE, words, f"{words[0]}: is for --near SOURCE. Leave it out.")
      for words in (("--model", "m"), ("--split", "train"), ("--threshold", "0.5"), ("--device", "cpu"))),
    (SEARCH, ("--read.k", "3"), "--read.k: says how a memory is read"),
)  # fmt: skip
BY_DEFAULT = (
    (SEARCH, ("--image_weight=1.0",), "--image-weight: is of pictures"),
    (("search", "MEMORY", "--image", "a.png"), ("--no-literal",), "--literal: is for queries in words"),
    (SEARCH, ("--episode.k", "16"), "--episode.k: is of --rerank episode"),
    (SEARCH, ("--read.k", "10"), "--read.k: says how a memory is read"),
    (BUILD, ("--caption-column", "None"), "--caption-column: is for files with columns"),
)
"""Options that are given as they are by themselves."""


@pytest.mark.parametrize(("command", "words", "message"), [*UNREAD, *BY_DEFAULT], ids=lambda part: " ".join(part[-2:]))
def test_what_a_command_would_not_read_is_refused(command, words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main([*command, *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_split_that_an_address_names_is_the_one_that_is_read(tmp_path, monkeypatch):
    """And not the one that an option has by itself."""
    Image.new("RGB", (8, 8), "red").save(tmp_path / "0.png")
    (tmp_path / "a.csv").write_text("path,caption,split\n0.png,one,train\n0.png,two,val\n0.png,three,test\n")
    place = str(tmp_path / "a.csv")
    compared = {spec: Remove("MEMORY", near=spec)._compared(spec).texts(0) for spec in (place, f"{place}?split=val")}
    assert list(compared.values()) == [("three",), ("two",)]
