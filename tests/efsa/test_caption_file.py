"""Caption files survive a kill, and captions are looked up by id."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.core.errors import UserError
from recollect.efsa.caption_file import CaptionFile, captions_of


@given(st.dictionaries(st.text(min_size=1), st.text()), st.dictionaries(st.text(min_size=1), st.text()))
def test_written_captions_are_read_again(tmp_path_factory, one, two):
    path = tmp_path_factory.mktemp("captions") / "captions.jsonl"
    file = CaptionFile(path)
    file.write(one)
    CaptionFile(path).write(two)
    assert CaptionFile(path).captions == one | two


def test_an_incomplete_line_is_rewritten(tmp_path):
    path = tmp_path / "captions.jsonl"
    CaptionFile(path).write({"1": "a tree", "2": "a car"})
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        file = CaptionFile(path)
        complete = whole[:cut].count(b"}")  # the last line may lack its newline, as in many user files
        assert list(file.captions) == ["1", "2"][:complete]
        file.write({"2": "a car"})
        assert CaptionFile(path).captions["2"] == "a car"
        assert len(path.read_text().splitlines()) == min(complete, 2) + 1


@pytest.mark.parametrize("text", ["hello\n", "[1, 2]\n", '{"id": 3}\n'])
def test_other_files_are_rejected(tmp_path, text):
    path = tmp_path / "captions.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match="line 1"):
        CaptionFile(path)


def test_captions_are_matched_to_a_source_by_id(tmp_path, pictures):
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


def test_two_writers_of_one_file_lose_no_line(tmp_path):
    path = tmp_path / "captions.jsonl"
    one, other = CaptionFile(path), CaptionFile(path)
    for number in range(5):
        one.write({f"a{number}": "a tree " * 40})
        other.write({f"b{number}": "a car"})
    assert len(CaptionFile(path).captions) == 10
