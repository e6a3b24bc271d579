"""Write search results as JSON or as an HTML page of pictures."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from recollect.core.errors import UserError
from recollect.core.files import write_json, write_text
from recollect.data.sources.images import jpeg_url
from recollect.index import Hit, Hits, Picture
from recollect.index.hits import MODEL

_GALLERY_FORMAT = 4
"""Version of the JSON format."""

_SIDE = 224


def hits_as_json(results: Sequence[Hits], about: Mapping[str, Any]) -> dict[str, Any]:
    """Convert results to JSON."""
    return {
        "format": _GALLERY_FORMAT,
        **about,
        "results": [
            {
                "query": result.query,
                "notes": list(result.notes),
                "searched": result.searched,
                "cut": result.cut,
                "hits": [_hit(hit, rank) for rank, hit in enumerate(result.hits, start=result.first_rank)],
            }
            for result in results
        ],
    }


def save_results(results: Sequence[Hits], about: Mapping[str, Any], path: str | Path) -> None:
    """Write results to a ``.json`` file, or to a self-contained HTML page."""
    if Path(path).suffix == ".json":
        write_json(path, hits_as_json(results, about))
    else:
        write_text(path, _page(results, about))


def scored_parts(result: Hits) -> list[tuple[str, list[tuple[int, Hit]]]]:
    """Split the ranked hits into runs scored by the same model, since scores of different models cannot be compared."""
    ranked = enumerate(result.hits, start=result.first_rank)
    return [(scored_by, list(run)) for scored_by, run in groupby(ranked, key=lambda pair: pair[1].scored_by)]


def _hit(hit: Hit, rank: int) -> dict[str, Any]:
    return {
        "rank": rank,
        "id": hit.id,
        "score": float(hit.score),
        "scored_by": hit.scored_by,
        "model_score": None if hit.model_score is None else float(hit.model_score),
        "zero_shot_rank": hit.zero_shot_rank,
        "captions": list(hit.picture.captions),
        "path": None if hit.path is None else str(hit.path),
        "source": hit.picture.source,
        "metadata": dict(hit.picture.metadata),
    }


def _page(results: Sequence[Hits], about: Mapping[str, Any]) -> str:
    pictures: dict[str, str | None] = {}
    for result in results:
        for hit in result.hits:
            if hit.id not in pictures:
                pictures[hit.id] = thumbnail(hit.picture)
    groups = []
    for result in results:
        parts = scored_parts(result)
        mixed = len(parts) > 1 or any(scored_by != MODEL for scored_by, _ in parts)
        cards = [
            {"scored_by": scored_by if mixed else None, "cards": [_card(hit, rank, pictures) for rank, hit in run]}
            for scored_by, run in parts
        ]
        groups.append({"query": result.query.strip() or "(empty)", "notes": result.notes, "parts": cards})
    summary = ", ".join(f"{name}: {value}" for name, value in about.items() if value is not None)
    from recollect.core.templates import render  # imports jinja2

    return render(Path(__file__).with_name("gallery.html"), groups=groups, summary=summary)


def _card(hit: Hit, rank: int, pictures: Mapping[str, str | None]) -> dict[str, Any]:
    moved = 0 if hit.zero_shot_rank is None else hit.zero_shot_rank - rank
    path = hit.path
    return {
        "rank": rank,
        "picture": pictures[hit.id],
        "id": hit.id,
        "path": None if path is None else str(path),
        "link": None if path is None else path.absolute().as_uri(),
        "score": f"{hit.score:.3f}",
        "caption": hit.caption,
        "up": max(0, moved),
        "down": max(0, -moved),
    }


def thumbnail(picture: Picture, side: int = _SIDE) -> str | None:
    """Return a small JPEG of a picture as a data URL; None if the picture cannot be opened."""
    try:
        return jpeg_url(picture.open(side), side)
    except (UserError, OSError):
        return None
