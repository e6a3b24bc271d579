"""``recollect demo``: the main job on real pictures, in one page."""

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
_FOUND, _QUERIES, _SHOWN, _SIDE = 6, 4, 8, 160
_NEIGHBORS = 10


@dataclass(frozen=True)
class Demo:
    """Find pictures by words, teach classes from five examples each, sort a folder, and write one page about it.

    Writes OUT/report.html and leaves an index, OUT/index, that `recollect serve` opens. The pictures are crops of
    photographs that come with scikit-image, or those of your own folder, which is only read.
    """

    pictures: Path | None = None
    """Folder of your own pictures; with a folder for each class, it also shows few-shot accuracy (default:
    scikit-image's photographs)."""
    out: Path = Path("demo")
    """Folder for the page and the index."""
    model: str | None = None
    """Model to embed with (default: the small one that comes with recollect)."""

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
            raise UserError(f"{folder}: no pictures that can be read. Name another folder with --pictures.")
        indexed = time.monotonic() - start
        serve = f"recollect serve {self.out / 'index'}"
        html = render(
            Path(__file__).with_name("demo.html"),
            own=own,
            count=len(index),
            folder=str(folder),
            seconds=indexed,
            searches=[_found(index, encoder, each) for each in (_common_words(index, encoder) if own else QUERIES)],
            taught=_teach(index, encoder),
            sources=() if own else PHOTOGRAPHS,
            shots=SHOTS,
            neighbors=_NEIGHBORS,
            serve=serve,
            model=name,
            total=time.monotonic() - start,
        )
        report = self.out / "report.html"
        write_text(report, html)
        say(f"{report}, after {time.monotonic() - start:.0f} s")
        say(f"open the index in the browser: {serve}")


def _common_words(index: "Index", encoder: "Encoder") -> list[str]:
    """The names of ImageNet's classes that most pictures are nearest to."""
    from recollect.models.starter import class_names

    names = [each[0] for each in class_names()]
    texts = encoder.embed_texts([f"a photo of a {name}." for name in names]).numpy()
    nearest = Counter((index.vectors() @ texts.T).argmax(axis=1).tolist())
    return [f"a photo of a {names[number]}" for number, _ in nearest.most_common(_QUERIES)]


def _found(index: "Index", encoder: "Encoder", words: str) -> dict[str, Any]:
    from recollect.cli.gallery import thumbnail

    hits = index.search(words, k=_FOUND, encoder=encoder)
    return {"words": words, "hits": [(thumbnail(hit.picture, _SIDE), f"{hit.score:.2f}") for hit in hits]}


def _labels(index: "Index") -> Mapping[str, str]:
    """The innermost folder of each picture, as its class: `Index.values` gives its path and all parts of it."""
    folders = zip(index.ids, index.values("folder"), strict=True)
    return {id: each[0].rpartition("/")[2] for id, each in folders if each}


def _teach(index: "Index", encoder: "Encoder") -> dict[str, Any] | None:
    """Teach from ``SHOTS`` pictures of each class, and name the others; None without two classes of enough pictures."""
    import numpy as np

    from recollect.classifiers.classifier import Classifier
    from recollect.classifiers.heads.trust import share_text
    from recollect.cli.gallery import thumbnail
    from recollect.core.seeding import numpy_generator

    labels = _labels(index)
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
    classifier = Classifier.teach(encoder, [(pictures[id].open(), labels[id]) for id in shown], classes)
    queries, right = index.vectors(others), np.array([labels[id] for id in others])
    texts = np.asarray(classifier.texts, dtype=np.float32)
    found = index.lookup(texts, _NEIGHBORS, by="image", read="image")
    assert found.vectors is not None
    named, by_name, by_name_read = (
        np.array(classifier.classes)[scores.argmax(axis=1)]
        for scores in (
            classifier.predict_proba(queries),
            queries @ texts.T,
            queries @ (texts + found.vectors.mean(axis=1)).T,
        )
    )
    rows = []
    for name in classes:
        ids = np.array(others)[named == name].tolist()
        rows.append(
            {
                "name": name,
                "count": len(ids),
                "right": int((right[named == name] == name).sum()),
                "shown": [thumbnail(pictures[id], _SIDE) for id in ids[:_SHOWN]],
            }
        )
    checked = classifier.calibration
    return {
        "classes": len(classifier.classes),
        "method": classifier.method,
        "held_out": share_text(checked["accuracy"], int(checked["examples"])) if checked else "",
        "low": checked.get("low", 0.0),
        "high": checked.get("high", 0.0),
        "right": float((named == right).mean()),
        "by_name": float((by_name == right).mean()),
        "by_name_read": float((by_name_read == right).mean()),
        "others": len(others),
        "sorted": rows,
    }
