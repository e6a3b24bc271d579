"""Write predictions as CSV, JSON and an HTML page."""

import io
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from recollect.classifiers.predictions import NONE_OF_THESE, Classification, Prediction
from recollect.core.cells import write_cells
from recollect.core.files import write_json, write_text
from recollect.core.templates import render
from recollect.data.sources.images import BrokenImageError, decode, jpeg_url

_SHEET_COLUMNS = (
    "file", "prediction", "confidence", "runner_up", "unknown", "possible", "nearest_example", "nearest_similarity",
)  # fmt: skip


def save_csv(found: Classification, path: str | Path) -> None:
    """Write one line per image: prediction, confidence, runner-up, possible classes, nearest example.

    ``|`` separates possible classes; in their names it becomes ``\\|``.
    """
    text, rows = io.StringIO(), []
    for item in found.predictions:
        near = item.nearest[0] if item.nearest else None
        example, similarity = (near.file, f"{near.similarity:.4f}") if near else ("", "")
        confidence, possible = f"{item.confidence:.4f}", "|".join(name.replace("|", "\\|") for name in item.possible)
        about = (item.label, confidence, item.runner_up, item.unknown, possible, str(example), similarity)
        rows.append((str(item.file), *about))
    write_cells(text, _SHEET_COLUMNS, rows)
    write_text(path, text.getvalue())


def save_json(found: Classification, path: str | Path, about: Mapping[str, Any]) -> None:
    """Write predictions with all neighbors; ``about`` describes model, method and measured accuracy."""
    predictions = [
        {
            **asdict(item),
            "file": str(item.file),
            "possible": list(item.possible),
            "nearest": [{**asdict(near), "file": str(near.file)} for near in item.nearest],
        }
        for item in found.predictions
    ]
    classes, warnings = list(found.class_names), list(found.warnings)
    write_json(path, {"format": 1, **about, "classes": classes, "warnings": warnings, "predictions": predictions})


def _thumbnail(file: Path, size: int) -> str:
    """Return a small JPEG of a picture as a data URL; an empty URL if the picture cannot be read."""
    try:
        return jpeg_url(decode(file, str(file), needed=size), size)
    except BrokenImageError:  # an example of a saved classifier may have moved
        return "data:,"


def save_sheet(found: Classification, path: str | Path, summary: str, folder: Path | None = None) -> None:
    """Write an HTML page of pictures with their nearest examples, least certain first.

    Args:
        folder: folder to show file names relative to.
    """
    small: Callable[[Path], str] = cache(lambda file: _thumbnail(file, 96))
    groups = {name: index for index, name in enumerate((NONE_OF_THESE, *found.class_names))}
    counts = Counter(NONE_OF_THESE if item.unknown else item.label for item in found.predictions)

    def card(item: Prediction) -> dict[str, Any]:
        file = item.file.relative_to(folder) if folder and item.file.is_relative_to(folder) else item.file
        return {
            "file": str(file),
            "picture": _thumbnail(item.file, 256),
            "group": groups[NONE_OF_THESE if item.unknown else item.label],
            "label": item.label,
            "percent": f"{100 * item.confidence:.0f}",
            "runner_up": item.runner_up,
            "possible": [name for name in item.possible if name != item.label],
            "unknown": item.unknown,
            "nearest": [
                {"picture": small(near.file), "label": near.label, "similarity": f"{near.similarity:.2f}"}
                for near in item.nearest
            ],
        }

    shown = [
        {"name": name, "group": group, "count": counts[name]}
        for name, group in groups.items()
        if counts[name] or name != NONE_OF_THESE
    ]
    cards = [card(item) for item in sorted(found.predictions, key=lambda item: item.doubt_key)]
    template = Path(__file__).with_name("sheet.html")
    write_text(path, render(template, summary=summary, groups=shown, cards=cards, warnings=found.warnings))
