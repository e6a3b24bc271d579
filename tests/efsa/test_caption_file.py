"""Captions in a file survive a kill and are found again by id."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.core.errors import UserError
from recollect.efsa.caption_file import CaptionFile, captions_of


@given(st.dictionaries(st.text(min_size=1), st.text()), st.dictionaries(st.text(min_size=1), st.text()))
def test_what_is_written_is_read_again(tmp_path_factory, one, two):
    path = tmp_path_factory.mktemp("captions") / "captions.jsonl"
    file = CaptionFile(path)
    file.write(one)
    CaptionFile(path).write(two)
    assert CaptionFile(path).captions == one | two


def test_a_line_that_was_cut_short_is_written_again(tmp_path):
    path = tmp_path / "captions.jsonl"
    CaptionFile(path).write({"1": "a tree", "2": "a car"})
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        file = CaptionFile(path)
        complete = whole[:cut].count(b"}")  # with or without its newline: people's files often end without one
        assert list(file.captions) == ["1", "2"][:complete]
        file.write({"2": "a car"})
        assert CaptionFile(path).captions["2"] == "a car"
        assert len(path.read_text().splitlines()) == min(complete, 2) + 1


@pytest.mark.parametrize("text", ["hello\n", "[1, 2]\n", '{"id": 3}\n'])
def test_another_file_is_no_caption_file(tmp_path, text):
    path = tmp_path / "captions.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match="line 1"):
        CaptionFile(path)


def test_captions_of_a_source_by_id(tmp_path, pictures):
    path = tmp_path / "captions.jsonl"
    CaptionFile(path).write({"picture-3": "three", "picture-20": "twenty"})
    found = captions_of(path, pictures)
    assert {row: caption for row, caption in enumerate(found) if caption} == {3: "three", 20: "twenty"}
    path.unlink()
    with pytest.raises(UserError, match="no such file"):
        captions_of(path, pictures)
    CaptionFile(path).write({"other": "three"})
    with pytest.raises(UserError, match="none of an image"):
        captions_of(path, pictures)


def test_two_captioners_of_one_file_lose_no_line(tmp_path):
    path = tmp_path / "captions.jsonl"
    one, other = CaptionFile(path), CaptionFile(path)
    for number in range(5):
        one.write({f"a{number}": "a tree " * 40})
        other.write({f"b{number}": "a car"})
    assert len(CaptionFile(path).captions) == 10
