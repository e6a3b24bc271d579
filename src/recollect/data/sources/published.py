"""Published few-shot splits: one JSON file with lists of ``[path, label, class name]`` for each split.

The form of CoOp's ``split_zhou_NAME.json``, which the literature that compares with it reads (2SFS among it).
"""

import json
from pathlib import Path
from typing import Any

import datasets

from recollect.core.errors import UserError

_FORM = '{"train": [["path", label, "class name"], ...], "val": ..., "test": ...}'


def read_published(path: Path) -> tuple[dict[str, datasets.Dataset], Path]:
    """Read such a file.

    Returns:
        The rows of each split, with columns image (a path), label and class_name; and the folder that paths start from:
        the file's own, or one in it, whichever has the first picture.

    Raises:
        UserError: not JSON, of another form, or its pictures are nowhere near.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not JSON ({error})") from None
    if not isinstance(value, dict) or not value or not all(isinstance(rows, list) for rows in value.values()):
        raise UserError(f"{path}: not published splits; they read {_FORM}")
    splits = {str(name): _rows(path, str(name), rows) for name, rows in value.items() if rows}
    if not splits:
        raise UserError(f"{path}: its splits are empty")
    return splits, _base(path, next(iter(splits.values()))[0]["image"])


def _rows(path: Path, split: str, rows: list[Any]) -> datasets.Dataset:
    for number, row in enumerate(rows):
        if not (isinstance(row, list) and len(row) == 3 and isinstance(row[0], str) and type(row[1]) is int):
            raise UserError(f"{path}: entry {number} of '{split}' is {str(row)[:60]}; published splits read {_FORM}")
    columns = zip(*rows, strict=True)
    return datasets.Dataset.from_dict(dict(zip(("image", "label", "class_name"), map(list, columns), strict=True)))


def _base(path: Path, picture: str) -> Path:
    folders = [path.parent, *sorted(each for each in path.parent.iterdir() if each.is_dir())]
    if found := next((folder for folder in folders if (folder / picture).is_file()), None):
        return found
    raise UserError(
        f"{path}: no picture {picture} in its folder or one below. Put the file beside the pictures' folder."
    )
