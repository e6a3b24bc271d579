"""Published few-shot splits: CoOp's JSON and JSON lines, with pictures where those files expect them."""

import json

import numpy as np
import pytest
from PIL import Image

from recollect.core.errors import UserError
from recollect.data.sources import open_source
from recollect.tasks.classification import classification_task

ROWS = {
    "train": [["cat_1.png", 0, "cat"], ["dog_1.png", 1, "dog"]],
    "val": [["dog_2.png", 1, "dog"]],
    "test": [["cat_2.png", 0, "cat"], ["dog_3.png", 1, "dog"]],
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "images").mkdir()
    for number, (name, *_) in enumerate(row for rows in ROWS.values() for row in rows):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / "images" / name)
    (tmp_path / "split_zhou_Pets.json").write_text(json.dumps(ROWS))
    return tmp_path


def test_a_published_file_is_a_task_with_its_splits(folder):
    spec = str(folder / "split_zhou_Pets.json")
    task = classification_task(spec)
    assert task.class_names == ("cat", "dog")
    assert [len(task.support), len(task.query)] == [2, 2]
    assert task.query.labels.tolist() == [0, 1]
    assert np.asarray(task.query[1].image)[0, 0, 0] == 4  # the fifth picture
    assert len(open_source(spec, split="validation", kind="label")) == 1


def test_json_lines_with_the_same_names_are_read_too(folder):
    lines = [json.dumps({"impath": f"images/{path}", "label": label, "classname": name, "split": split})
             for split, rows in ROWS.items() for path, label, name in rows]  # fmt: skip
    (folder / "pets.jsonl").write_text("\n".join(lines))
    task = classification_task(str(folder / "pets.jsonl"))
    assert task.class_names == ("cat", "dog")
    assert np.asarray(task.query[1].image)[0, 0, 0] == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "not published splits; they read"),
        ('{"train": []}', "its splits are empty"),
        ('{"train": [["a.png", 0]]}', "entry 0 of 'train' is"),
        ('{"train": [["a.png", "0", "cat"]]}', "entry 0 of 'train' is"),
        ('{"train": [["gone.png", 0, "cat"]]}', r"no picture gone\.png in its folder"),
    ],
)
def test_other_json_is_refused(folder, text, message):
    (folder / "split.json").write_text(text)
    with pytest.raises(UserError, match=message):
        open_source(str(folder / "split.json"), split="train", kind="label")
