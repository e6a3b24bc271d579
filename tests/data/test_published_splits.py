"""Published few-shot splits: CoOp's JSON and JSON lines, with pictures where those files expect them."""

import json

import numpy as np
import pytest
from PIL import Image

from recollect.core.errors import UserError
from recollect.data.sources import open_source
from recollect.evaluation.tasks.classification import classification_task

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


def shots(folder, part, rows):
    """A draw as 2SFS publishes it, paths from the folder above the set's."""
    (folder / "split_fewshot").mkdir(exist_ok=True)
    keys = ("_impath", "_label", "_classname", "_domain")
    lines = [json.dumps(dict(zip(keys, (f"{folder.name}/images/{path}", label, name, 0), strict=True)))
             for path, label, name in rows]  # fmt: skip
    file = folder / "split_fewshot" / f"shot_1-seed_1_{part}.jsonl"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_the_draws_of_2sfs_are_read_with_the_test_split_of_the_whole_set(folder):
    file = shots(folder, "train", ROWS["train"])
    shots(folder, "val", ROWS["val"])
    task = classification_task(str(file))
    assert task.class_names == ("cat", "dog")
    assert [len(task.support), len(task.query)] == [2, 2]
    reds = [np.asarray(part[1].image)[0, 0, 0] for part in (task.support, task.query)]
    assert reds == [1, 4]  # the second picture and the fifth
    assert len(open_source(str(file), split="validation", kind="label")) == 1
    before = open_source(str(file), split="train", kind="label").fingerprint
    shots(folder, "train", ROWS["train"][::-1])
    assert open_source(str(file), split="train", kind="label").fingerprint != before


def test_a_draw_without_its_whole_set_has_the_splits_that_are_there(folder):
    (folder / "split_zhou_Pets.json").unlink()
    file = shots(folder, "train", ROWS["train"])
    shots(folder, "val", [["gone.png", 1, "dog"]])
    assert len(classification_task(str(file)).query) == 1
    shots(folder, "train", [["gone.png", 0, "cat"]])
    with pytest.raises(UserError, match=r"gone\.png"):
        open_source(str(file))
    file.write_text('{"_impath": "a.png"}\n')
    with pytest.raises(UserError, match=r"line 1"):
        open_source(str(file))


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        '{"train": []}',
        '{"train": [["a.png", 0]]}',
        '{"train": [["a.png", "0", "cat"]]}',
        '{"train": [["gone.png", 0, "cat"]]}',
    ],
)
def test_other_json_is_refused(folder, text):
    (folder / "split.json").write_text(text)
    with pytest.raises(UserError, match=r"split\.json"):
        open_source(str(folder / "split.json"), split="train", kind="label")
