"""What queries found, as a file for programs and a page of pictures for people."""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from recollect.core.errors import UserError
from recollect.core.files import write_json, write_text
from recollect.reports.page import TEMPLATES
from recollect.search.pool import PoolItem
from recollect.search.searcher import Hit, SearchReport, SearchResult

GALLERY_FORMAT = 1
_SIDE = 224
_REPORT = {
    "empty": "empty queries",
    "not_finite": "episodes that broke down, whose ranking is zero-shot",
    "without_captions": "queries without an episode, for want of captioned images",
    "captions_missing": "candidates without a caption",
    "images_gone": "candidates that cannot be opened any more",
}


def hits_as_json(results: Sequence[SearchResult], report: SearchReport, about: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that was found and what was not as it should be.

    Args:
        about: what was searched and how.
    """
    return {
        "format": GALLERY_FORMAT,
        **about,
        "report": asdict(report),
        "results": [
            {
                "query": result.query,
                "notes": list(result.notes),
                "hits": [_hit(hit, rank) for rank, hit in enumerate(result.hits, start=1)],
            }
            for result in results
        ],
    }


def save_results(
    results: Sequence[SearchResult], report: SearchReport, about: Mapping[str, Any], path: str | Path
) -> None:
    """Write what was found to a ``.json`` file, or to an ``.html`` page that needs nothing else.

    Raises:
        UserError: another ending.
    """
    ending = Path(path).suffix
    if ending == ".json":
        write_json(path, hits_as_json(results, report, about))
    elif ending == ".html":
        write_text(path, _page(results, report, about))
    else:
        raise UserError(f"{path}: results are written as .json or .html. Name a file that ends so.")


def _hit(hit: Hit, rank: int) -> dict[str, Any]:
    item = hit.item
    return {
        "rank": rank,
        "id": item.id,
        "score": float(hit.score),
        "zero_shot_rank": hit.zero_shot_rank,
        "caption": item.caption,
        **({"extra": dict(item.extra)} if item.extra else {}),
    }


def _page(results: Sequence[SearchResult], report: SearchReport, about: Mapping[str, Any]) -> str:
    pictures: dict[str, str | None] = {}
    for result in results:
        for hit in result.hits:
            if hit.item.id not in pictures:
                pictures[hit.item.id] = thumbnail(hit.item)
    groups = [
        {
            "query": result.query.strip() or "(empty)",
            "notes": result.notes,
            "cards": [_card(hit, rank, pictures) for rank, hit in enumerate(result.hits, start=1)],
        }
        for result in results
    ]
    summary = ", ".join(f"{name}: {value}" for name, value in about.items() if value is not None)
    words = {_REPORT[name]: count for name, count in asdict(report).items() if count and name in _REPORT}
    return TEMPLATES.get_template("gallery.html").render(groups=groups, summary=summary, report=words)


def _card(hit: Hit, rank: int, pictures: Mapping[str, str | None]) -> dict[str, Any]:
    moved = 0 if hit.zero_shot_rank is None else hit.zero_shot_rank - rank
    return {
        "rank": rank,
        "picture": pictures[hit.item.id],
        "id": hit.item.id,
        "score": f"{hit.score:.3f}",
        "caption": hit.item.caption,
        "up": max(0, moved),
        "down": max(0, -moved),
    }


def thumbnail(item: PoolItem, side: int = _SIDE) -> str | None:
    """An item's picture as a small JPEG in a data URL; None where it cannot be opened any more."""
    try:
        image = item.image()
    except (UserError, OSError):
        return None
    if isinstance(image, np.ndarray):
        if image.ndim != 3:  # a vector of the latent world has no picture
            return None
        image = Image.fromarray(image)
    picture = image.convert("RGB")
    picture.thumbnail((side, side))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=82)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
