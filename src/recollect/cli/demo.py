"""``recollect demo``: search, few-shot classification and sorting on real pictures, shown on one page."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recollect.cli.parser import say
from recollect.core.errors import UserError
from recollect.core.files import write_text
from recollect.core.paths import check_writable

if TYPE_CHECKING:
    from recollect.core.types import Encoder
    from recollect.index import Index

SHOTS = 5
_HITS, _QUERIES, _SHOWN, _SIDE = 6, 4, 8, 160  # hits per query, queries, pictures per class, thumbnail size in pixels
_NEIGHBORS = 10


@dataclass(frozen=True)
class Demo:
    """Search pictures by words, teach a classifier from five examples per class, and sort the rest.

    Writes a page, OUT/report.html, and an index, OUT/index, which `recollect serve` opens. The pictures are crops of
    photographs included in scikit-image, or your own (--pictures), which are only read.
    """

    pictures: Path | None = None
    """Folder of your own pictures; with one subfolder per class, the page also shows few-shot accuracy (default:
    scikit-image's photographs)."""
    out: Path = Path("demo")
    """Folder for the page and the index."""
    model: str | None = None
    """Model to embed with (default: the small model included in recollect)."""

    def run(self) -> None:
        """Index, search, teach, sort, and write the page."""
        from recollect.cli.defaults import default_model
        from recollect.cli.demo_photographs import PHOTOGRAPHS, QUERIES, make_pictures
        from recollect.core.templates import render
        from recollect.index import Index
        from recollect.models import load_model

        check_writable(self.out, "--out", "folder")
        start = time.monotonic()
        own = self.pictures is not None
        folder = self.pictures if self.pictures is not None else make_pictures(self.out / "pictures")
        name = self.model or default_model()
        encoder = load_model(name)
        index = Index.build(folder, encoder, out=self.out / "index", model_name=name)
        if not len(index):
            raise UserError(f"{folder}: contains no readable pictures. Name another folder with --pictures.")
        indexed = time.monotonic() - start
        serve = f"recollect serve {self.out / 'index'}"
        html = render(
            Path(__file__).with_name("demo.html"), own=own, count=len(index), folder=str(folder), seconds=indexed,
            searches=[_search(index, encoder, each) for each in (_common_words(index, encoder) if own else QUERIES)],
            taught=_teach(index, encoder), sources=() if own else PHOTOGRAPHS, shots=SHOTS, neighbors=_NEIGHBORS,
            serve=serve, model=name, total=time.monotonic() - start,
        )  # fmt: skip
        report = self.out / "report.html"
        write_text(report, html)
        say(f"report: {report} ({time.monotonic() - start:.0f} s)")
        say(f"to open the index in the browser: {serve}")


def _common_words(index: "Index", encoder: "Encoder") -> list[str]:
    """Return prompts for the ImageNet classes that are nearest to the most pictures."""
    from recollect.models.starter import class_names

    names = [each[0] for each in class_names()]
    texts = encoder.embed_texts([f"a photo of a {name}." for name in names]).numpy()
    nearest = Counter((index.vectors() @ texts.T).argmax(axis=1).tolist())
    return [f"a photo of a {names[number]}" for number, _ in nearest.most_common(_QUERIES)]


def _search(index: "Index", encoder: "Encoder", words: str) -> dict[str, Any]:
    from recollect.cli.gallery import thumbnail

    hits = index.search(words, k=_HITS, encoder=encoder)
    return {"words": words, "hits": [(thumbnail(hit.picture, _SIDE), f"{hit.score:.2f}") for hit in hits]}


def _labels(index: "Index") -> Mapping[str, str]:
    """Return the innermost folder of each picture as its class; `Index.values` lists its full path first."""
    folders = zip(index.ids, index.values("folder"), strict=True)
    return {id: each[0].rpartition("/")[2] for id, each in folders if each}


def _teach(index: "Index", encoder: "Encoder") -> dict[str, Any] | None:
    """Teach from ``SHOTS`` pictures per class and classify the others; None without two classes of enough pictures."""
    import numpy as np

    from recollect.classifiers.classifier import Classifier
    from recollect.classifiers.heads.trust import format_share
    from recollect.cli.gallery import thumbnail
    from recollect.core.seeding import numpy_generator

    labels = _labels(index)
    counts = Counter(labels.values())
    classes = sorted(name for name, count in counts.items() if count > SHOTS)
    if len(classes) < 2:
        return None
    examples, others = list[str](), list[str]()
    for name in classes:
        ids = sorted(id for id, label in labels.items() if label == name)
        order = numpy_generator("demo", name).permutation(len(ids))
        examples += [ids[position] for position in order[:SHOTS]]
        others += [ids[position] for position in order[SHOTS:]]
    pictures = {each.id: each for each in index.pictures(examples + others)}
    classifier = Classifier.teach(encoder, [(pictures[id].open(), labels[id]) for id in examples], classes)
    queries, right = index.vectors(others), np.array([labels[id] for id in others])
    texts = np.asarray(classifier.texts, dtype=np.float32)
    found = index.lookup(texts, _NEIGHBORS, by="image", read="image")
    assert found.vectors is not None
    predicted, by_name, by_name_read = (
        np.array(classifier.classes)[scores.argmax(axis=1)]
        for scores in (
            classifier.predict_proba(queries),
            queries @ texts.T,
            queries @ (texts + found.vectors.mean(axis=1)).T,
        )
    )
    rows = []
    for name in classes:
        ids = np.array(others)[predicted == name].tolist()
        correct = int((right[predicted == name] == name).sum())
        thumbnails = [thumbnail(pictures[id], _SIDE) for id in ids[:_SHOWN]]
        rows.append({"name": name, "count": len(ids), "right": correct, "shown": thumbnails})
    checked = classifier.calibration
    return {
        "classes": len(classifier.classes),
        "method": classifier.method,
        "held_out": format_share(checked["accuracy"], int(checked["examples"])) if checked else "",
        "low": checked.get("low", 0.0),
        "high": checked.get("high", 0.0),
        "right": float((predicted == right).mean()),
        "by_name": float((by_name == right).mean()),
        "by_name_read": float((by_name_read == right).mean()),
        "others": len(others),
        "sorted": rows,
    }
