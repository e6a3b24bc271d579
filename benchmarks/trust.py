"""Figures that users are told to trust, against fresh pictures: accuracy, its interval, "none of these", one shot.

python benchmarks/trust.py --features FOLDER --out results/few-shot/trust.json

FOLDER holds one NAME.npz for each set, with image features ``x`` (pictures, width) of any image tower and class names
``names`` (pictures,). Features are standardised by the sets in `CHOOSING`. A text tower is simulated: the text of a
class is the direction of its mean (over pictures that are used for nothing else) mixed with a random direction.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recollect.classifiers.heads.base import EmbeddingClassifier
from recollect.classifiers.heads.methods import CANDIDATES, choose_method
from recollect.classifiers.heads.trust import held_out_check, unknown_rule
from recollect.cli.parser import script_options

CHOOSING = ("dtd10", "resisc12", "imagenette")
"""Sets on which constants were chosen: the one-shot kernel, the threshold's rate, the interval's width."""

TESTING = ("flowers12", "butterfly10", "ucm_captions", "caltech101")
"""Sets that chose nothing."""

TEXTS = {"random": 0.0, "weak": 0.2, "medium": 0.4, "strong": 0.8}
"""Cosine of the simulated texts with the class means."""

SHOTS = (1, 2, 4, 16)


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        features: folder of the .npz files.
        out: the result file.
        draws: of the examples, for each set.
    """

    features: Path
    out: Path
    draws: int = 5


Set = tuple[np.ndarray, np.ndarray]
"""Unit-norm features (pictures, width) and labels (pictures,)."""


def unit(rows: np.ndarray) -> np.ndarray:
    """Rows of length 1."""
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def load(folder: Path, width: int = 256) -> dict[str, Set]:
    """All sets, standardised and projected on the strongest directions of the choosing sets."""
    raw = {name: np.load(folder / f"{name}.npz") for name in (*CHOOSING, *TESTING)}
    known = np.concatenate([raw[name]["x"] for name in CHOOSING]).astype(np.float64)
    mean, deviation = known.mean(axis=0), known.std(axis=0) + 1e-6
    axes = np.linalg.svd((known[::2] - mean) / deviation, full_matrices=False)[2][:width]
    return {
        name: (
            unit((each["x"] - mean) / deviation @ axes.T).astype(np.float32),
            np.unique(each["names"], return_inverse=True)[1],
        )
        for name, each in raw.items()
    }


def drawn(labels: np.ndarray, shots: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of the examples, of fresh pictures, and of the pictures that the texts are made of."""
    parts: tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]] = ([], [], [])
    for label in range(int(labels.max()) + 1):
        rows = random.permutation(np.flatnonzero(labels == label))
        rest = rows[shots:]
        third = len(rest) // 3
        for part, mine in zip(parts, (rows[:shots], rest[third:], rest[:third]), strict=True):
            part.append(mine)
    return tuple(np.concatenate(part) for part in parts)  # type: ignore[return-value]


def class_texts(rows: np.ndarray, labels: np.ndarray, quality: float, random: np.random.Generator) -> np.ndarray:
    """Unit-norm texts (classes, width) that share a direction, as those of real towers do."""
    means = np.stack([rows[labels == label].mean(axis=0) for label in range(int(labels.max()) + 1)])
    right, wrong = unit(means - means.mean(axis=0)), unit(random.standard_normal(means.shape))
    shared = unit(random.standard_normal((1, means.shape[1])))
    own = unit(quality * right + np.sqrt(1 - quality**2) * wrong)
    return unit(0.8 * shared + 0.6 * own).astype(np.float32)


def one_draw(rows: np.ndarray, labels: np.ndarray, shots: int, quality: float, seed: int) -> dict[str, float]:
    """What the classifier says of itself, and what is true."""
    random = np.random.default_rng([seed, shots, round(100 * quality)])
    taught, fresh, described = drawn(labels, shots, random)
    texts = class_texts(rows[described], labels[described], quality, random)
    support, own = rows[taught], labels[taught]

    def learn(examples: np.ndarray, classes: np.ndarray) -> EmbeddingClassifier:
        return choose_method(CANDIDATES, texts, 100.0, examples, classes)[1]

    def right(scores: np.ndarray) -> float:
        return 100 * float((scores.argmax(axis=1) == labels[fresh]).mean())

    classifier, checked = learn(support, own), held_out_check(learn, support, own)
    means = np.stack([support[own == label].mean(axis=0) for label in range(len(texts))])
    found = {
        "accuracy": right(classifier.scores(rows[fresh])),
        "names": right(rows[fresh] @ texts.T),
        "class means": right(rows[fresh] @ means.T),
    }
    if checked is not None:
        low, high = checked.low, checked.high
        found |= {
            "reported": 100 * checked.accuracy,
            "chosen on the same examples": 100 * classifier.loo_accuracy_,
            "inside the interval": 100.0 * (low <= found["accuracy"] / 100 <= high),
            "half width": 50 * (high - low),
        }
    return found


def none_of_these(rows: np.ndarray, labels: np.ndarray, shots: int, seed: int) -> dict[str, float]:
    """The rule from half of the classes: what it says of itself, and what is true of fresh pictures of both halves."""
    random = np.random.default_rng([seed, shots])
    known = np.isin(labels, random.permutation(int(labels.max()) + 1)[: (int(labels.max()) + 1) // 2])
    mine, own = rows[known], np.unique(labels[known], return_inverse=True)[1]
    taught, fresh, described = drawn(own, shots, random)
    rule = unknown_rule(mine[taught], own[taught])
    fresh = np.concatenate([fresh, described])
    found = {
        "rejected": 100 * float(rule.is_unknown(mine[fresh]).mean()),
        "accepted": 100 * float(1 - rule.is_unknown(rows[~known]).mean()),
    }
    if rule.rejected is not None:
        found["rejected, reported"] = 100 * rule.rejected
    if rule.accepted is not None:
        found["accepted, reported"] = 100 * rule.accepted
    return found


def mean(rows: list[dict[str, float]]) -> dict[str, float]:
    """Over draws, of what any of them has."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: round(float(np.mean([row[name] for row in rows if name in row])), 1) for name in names}


def measured(sets: dict[str, Set], names: tuple[str, ...], draws: int) -> Iterator[dict[str, object]]:
    """One row for each number of shots and quality of texts, and one for "none of these"."""
    for shots in SHOTS:
        few = draws if shots < 16 else max(1, draws // 2)
        for text, quality in TEXTS.items():
            rows = [one_draw(*sets[name], shots, quality, seed) for name in names for seed in range(few)]
            yield {"shots": shots, "texts": text, **mean(rows)}
        unknown = [none_of_these(*sets[name], shots, seed) for name in names for seed in range(few)]
        yield {"shots": shots, "none of these": mean(unknown)}


def main(options: Options) -> None:
    """Measure and write."""
    sets, found = load(options.features), {}
    for what, names in (("choosing", CHOOSING), ("testing", TESTING)):
        found[what] = []
        for row in measured(sets, names, options.draws):
            print(what, row, flush=True)
            found[what].append(row)
    sizes = {name: {"pictures": len(rows), "classes": int(labels.max()) + 1} for name, (rows, labels) in sets.items()}
    record = {"sets": sizes, "choosing": CHOOSING, "testing": TESTING, "draws": options.draws, "found": found}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(script_options(Options))
