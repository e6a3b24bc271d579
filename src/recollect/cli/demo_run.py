"""The demo: pictures are indexed, found by words, named from a few examples and sorted; a page shows how well."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recollect.classifiers.classifier import Classifier
from recollect.classifiers.heads.trust import share_text
from recollect.cli.defaults import default_model
from recollect.cli.demo import Demo
from recollect.cli.demo_photographs import PHOTOGRAPHS, QUERIES, make_pictures
from recollect.cli.parser import say
from recollect.core.errors import UserError
from recollect.core.files import atomic_path
from recollect.core.paths import check_writable
from recollect.core.seeding import numpy_generator
from recollect.core.templates import render
from recollect.core.types import Encoder
from recollect.evaluation.reports.gallery import thumbnail
from recollect.index import Index, Picture
from recollect.models import load_model
from recollect.models.starter import class_names

SHOTS = 5
_FOUND, _QUERIES, _SHOWN, _SIDE = 6, 4, 8, 160
_NEIGHBORS = 10


@dataclass(frozen=True)
class DemoClasses:
    """What five examples of each class teach.

    Attributes:
        classifier: the one that was taught.
        right: share of the other pictures that it names right.
        by_name: the same from the names of the classes alone.
        by_name_read: the same where each name is averaged with the pictures of the index that it finds.
        others: how many pictures these are.
        sorted: for each class the pictures that were sorted into it, and how many of them belong there.
    """

    classifier: Classifier
    right: float
    by_name: float
    by_name_read: float
    others: int
    sorted: Mapping[str, tuple[list[Picture], int]]


def run_demo(options: Demo) -> None:
    """Index, search, teach, sort, and write the page."""
    check_writable(options.out, "--out")
    start = time.monotonic()
    own = options.pictures is not None
    folder = options.pictures if options.pictures is not None else make_pictures(options.out / "pictures")
    name = options.model or default_model()
    encoder = load_model(name)
    index = Index.build(folder, encoder, out=options.out / "index", model_name=name)
    if not len(index):
        raise UserError(f"{folder}: no pictures that can be read. Name another folder with --pictures.")
    indexed = time.monotonic() - start
    folders = dict(zip(index.ids, index.values("folder"), strict=True))
    words = _common_words(index, encoder) if own else QUERIES
    taught = _teach(index, encoder, {id: _innermost(each) for id, each in folders.items() if each})
    page = {
        "own": own,
        "count": len(index),
        "folder": str(folder),
        "seconds": indexed,
        "searches": [_found(index, encoder, query) for query in words],
        "taught": taught and _described(taught),
        "sources": () if own else PHOTOGRAPHS,
        "shots": SHOTS,
        "neighbors": _NEIGHBORS,
        "serve": f"recollect serve {options.out / 'index'}",
        "model": name,
    }
    report = options.out / "report.html"
    with atomic_path(report) as unfinished:
        html = render(Path(__file__).with_name("demo.html"), total=time.monotonic() - start, **page)
        unfinished.write_text(html, encoding="utf-8")
    say(f"{report}, after {time.monotonic() - start:.0f} s")
    say(f"open the index in the browser: {page['serve']}")


def _innermost(folders: list[str]) -> str:
    """The folder that holds a picture: `Index.values` gives its path and all parts of it."""
    return folders[0].rpartition("/")[2]


def _common_words(index: Index, encoder: Encoder) -> list[str]:
    """The names of ImageNet's classes that most pictures are nearest to."""
    names = [each[0] for each in class_names()]
    texts = encoder.embed_texts([f"a photo of a {name}." for name in names]).numpy()
    nearest = Counter((index.vectors() @ texts.T).argmax(axis=1).tolist())
    return [f"a photo of a {names[number]}" for number, _ in nearest.most_common(_QUERIES)]


def _found(index: Index, encoder: Encoder, words: str) -> dict[str, Any]:
    hits = index.search(words, k=_FOUND, encoder=encoder)
    return {"words": words, "hits": [(thumbnail(hit.picture, _SIDE), f"{hit.score:.2f}") for hit in hits]}


def _teach(index: Index, encoder: Encoder, labels: Mapping[str, str]) -> DemoClasses | None:
    """Teach from ``SHOTS`` pictures of each class, and name the others; None without two classes of enough pictures."""
    counts = Counter(labels.values())
    classes = sorted(name for name, count in counts.items() if count > SHOTS)
    if len(classes) < 2:
        return None
    shown, others = list[str](), list[str]()
    for name in classes:
        ids = sorted(id for id, label in labels.items() if label == name)
        order = numpy_generator("demo", name).permutation(len(ids))
        shown += [ids[place] for place in order[:SHOTS]]
        others += [ids[place] for place in order[SHOTS:]]
    pictures = {each.id: each for each in index.pictures(shown + others)}
    examples = [(pictures[id].open(), labels[id]) for id in shown]
    classifier = Classifier.teach(encoder, examples, classes)
    queries, right = index.vectors(others), np.array([labels[id] for id in others])
    named = np.array(classifier.classes)[classifier.predict_proba(queries).argmax(axis=1)]
    texts = np.asarray(classifier.texts, dtype=np.float32)
    found = index.lookup(texts, _NEIGHBORS, by="image", read="image")
    assert found.vectors is not None
    read = texts + found.vectors.mean(axis=1)
    by_name, by_name_read = (
        float((np.array(classifier.classes)[(queries @ each.T).argmax(axis=1)] == right).mean())
        for each in (texts, read)
    )
    sorted_into = {
        name: (
            [pictures[id] for id in np.array(others)[named == name].tolist()],
            int((right[named == name] == name).sum()),
        )
        for name in classes
    }
    return DemoClasses(classifier, float((named == right).mean()), by_name, by_name_read, len(others), sorted_into)


def _described(taught: DemoClasses) -> dict[str, Any]:
    checked = taught.classifier.calibration
    held_out = share_text(checked["accuracy"], int(checked["examples"])) if checked else ""
    return {
        "classes": len(taught.classifier.classes),
        "method": taught.classifier.method,
        "held_out": held_out,
        "low": checked.get("low", 0.0),
        "high": checked.get("high", 0.0),
        "right": taught.right,
        "by_name": taught.by_name,
        "by_name_read": taught.by_name_read,
        "others": taught.others,
        "sorted": [_row(name, *each) for name, each in taught.sorted.items()],
    }


def _row(name: str, pictures: Sequence[Picture], right: int) -> dict[str, Any]:
    shown = [thumbnail(each, _SIDE) for each in pictures[:_SHOWN]]
    return {"name": name, "count": len(pictures), "right": right, "shown": shown}
