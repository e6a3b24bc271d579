"""Published few-shot splits: whole sets as CoOp publishes them, and the shots of each draw as 2SFS does.

CoOp's ``split_zhou_NAME.json`` holds lists of ``[path, label, class name]`` for each split. 2SFS publishes the draws as
``SET/split_fewshot/shot_16-seed_1_train.jsonl`` and ``..._val.jsonl``, each line ``{"_impath": "SET/images/...",
"_label": 0, "_classname": "..."}`` with the path from the folder that contains SET.
"""

import json
from pathlib import Path
from typing import Any

import datasets

from recollect.core.errors import UserError, user_errors
from recollect.core.files import read_json, read_text
from recollect.core.validation import refuse

_FORM = '{"train": [["path", label, "class name"], ...], "val": ..., "test": ...}'


def read_published(path: Path) -> tuple[dict[str, datasets.Dataset], Path]:
    """Read CoOp's splits of a whole set.

    Returns:
        The rows of each split, with columns image (a path), label and class_name; and the folder that paths start from:
        the file's own or one in it, whichever has the first picture.

    Raises:
        UserError: not JSON, of another form, or the pictures are not found.
    """
    value = read_json(path)
    fits = isinstance(value, dict) and all(isinstance(rows, list) for rows in value.values())
    refuse((not fits, f"{path}: not published splits; they read {_FORM}"))
    splits = {str(name): _rows(path, str(name), rows) for name, rows in value.items() if rows}
    refuse((not splits, f"{path}: its splits are empty"))
    return splits, _base(path, next(iter(splits.values()))[0]["image"])


_SHOTS_FORM = '{"_impath": "SET/images/...", "_label": 0, "_classname": "class name"}'


def is_published_shots(path: Path) -> bool:
    """Whether a file of JSON lines holds the shots of a draw, judged by its first line."""
    with path.open("rb") as file:
        return b'"_impath"' in file.readline(1 << 16)


def read_published_shots(path: Path) -> tuple[dict[str, datasets.Dataset], Path, tuple[Path, ...]]:
    """Read the shots of one draw: train, validation if there is a ``..._val.jsonl`` next to ``..._train.jsonl``, and
    the whole test split if the parent folder has the set's ``split_zhou_*.json``.

    Returns:
        The rows of each split as `read_published` returns them, the folder that paths start from, and the files read.

    Raises:
        UserError: a line of another form, or no folder above has the pictures.
    """
    files = {"train": path}
    if (validation := path.with_name(path.name.replace("_train.jsonl", "_val.jsonl"))) != path and validation.is_file():
        files["validation"] = validation
    splits = {split: _shots(file) for split, file in files.items()}
    first = splits["train"][0]["image"]
    root = next((folder for folder in path.resolve().parents if (folder / first).is_file()), None)
    if root is None:
        raise UserError(f"{path}: no picture {first} in a folder above. Put the file in SET/split_fewshot/")
    for whole in sorted(path.resolve().parent.parent.glob("split_zhou_*.json"))[:1]:
        published, base = read_published(whole)
        if "test" in published:
            prefix = base.relative_to(root).as_posix()
            named = [f"{prefix}/{picture}" for picture in published["test"]["image"]]
            splits["test"] = published["test"].remove_columns("image").add_column("image", named)
            files["test"] = whole
    return splits, root, tuple(files.values())


def _shots(path: Path) -> datasets.Dataset:
    rows = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        message = f"{path}, line {number}: is {line[:60]}; published shots read {_SHOTS_FORM}"
        with user_errors(message, json.JSONDecodeError, KeyError, TypeError):
            row = json.loads(line)
            rows.append([row["_impath"], row["_label"], row["_classname"]])
    return _rows(path, "train", rows)


def _rows(path: Path, split: str, rows: list[Any]) -> datasets.Dataset:
    for number, row in enumerate(rows):
        fits = isinstance(row, list) and len(row) == 3 and isinstance(row[0], str) and type(row[1]) is int
        refuse((not fits, f"{path}: entry {number} of '{split}' is {str(row)[:60]}; published splits read {_FORM}"))
    columns = zip(*rows, strict=True)
    return datasets.Dataset.from_dict(dict(zip(("image", "label", "class_name"), map(list, columns), strict=True)))


def _base(path: Path, picture: str) -> Path:
    folders = [path.parent, *sorted(each for each in path.parent.iterdir() if each.is_dir())]
    if found := next((folder for folder in folders if (folder / picture).is_file()), None):
        return found
    raise UserError(
        f"{path}: no picture {picture} in its folder or one below. Put the file next to the pictures' folder."
    )
