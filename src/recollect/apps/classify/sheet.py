"""Predictions to look at: a table for programs and a sheet of pictures for people."""

import base64
import csv
import io
from collections.abc import Callable
from functools import cache
from pathlib import Path

from recollect.apps.classify.classifier import Classification
from recollect.core.files import write_text
from recollect.data.sources.images import decode
from recollect.reports.page import TEMPLATES

SHEET_COLUMNS = ("file", "prediction", "confidence", "runner_up", "unknown", "nearest_example", "nearest_similarity")


def save_csv(found: Classification, path: str | Path) -> None:
    """One line for each image: prediction, confidence, runner-up, nearest example."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(SHEET_COLUMNS)
    for item in found.predictions:
        near = item.nearest[0]
        confidence, similarity = f"{item.confidence:.4f}", f"{near.similarity:.4f}"
        writer.writerow([item.file, item.label, confidence, item.runner_up, item.unknown, near.file, similarity])
    write_text(path, text.getvalue())


def thumbnail(file: Path, size: int) -> str:
    """The picture as a small JPEG in a data URL."""
    picture = decode(file, str(file), needed=size)
    picture.thumbnail((size, size))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def save_sheet(found: Classification, path: str | Path, summary: str) -> None:
    """A page of pictures by predicted class, least sure first, each with the examples it is nearest to."""
    small: Callable[[Path], str] = cache(lambda file: thumbnail(file, 96))
    groups = []
    for name in found.class_names:
        chosen = sorted((item for item in found.predictions if item.label == name), key=lambda item: item.confidence)
        cards = [
            {
                "file": item.file.name,
                "picture": thumbnail(item.file, 256),
                "percent": f"{100 * item.confidence:.0f}",
                "runner_up": item.runner_up,
                "unknown": item.unknown,
                "nearest": [
                    {"picture": small(near.file), "label": near.label, "similarity": f"{near.similarity:.2f}"}
                    for near in item.nearest
                ],
            }
            for item in chosen
        ]
        groups.append({"name": name, "cards": cards})
    page = TEMPLATES.get_template("sheet.html")
    write_text(path, page.render(title="Predictions", summary=summary, groups=groups, warnings=found.warnings))
