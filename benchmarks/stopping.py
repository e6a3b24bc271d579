"""Number of clicks until the page suggests to stop marking, and the share of the class found by then.

python benchmarks/stopping.py --data FOLDER --out results/page/stopping.json

A user who is always right looks for each class among the pictures of all sets of FOLDER, starting from its name, in
rounds of ten clicks. `recollect.classifiers.clicks.cutoff.stop_rule` was chosen on the first three sets.
"""

import argparse
from pathlib import Path

import numpy as np

from recollect import load_model, open_source
from recollect.classifiers.clicks.active_learning import next_to_label
from recollect.classifiers.clicks.cutoff import cut_off
from recollect.classifiers.clicks.model import ClickModel
from recollect.core.files import write_json
from recollect.core.seeding import numpy_generator
from recording import this_command, where

CHOOSING, TESTING = ("imagenette", "dtd10", "eurosat"), ("butterfly10", "flowers12", "resisc12")
PICTURES, MIN_CLASS, CLICKS, ROUND = 800, 25, 200, 10
COLUMNS = ("sets", "classes", "stops", "clicks", "found then, %", "least found, %", "classes with 95 % found")


def found_at_stop(pool: np.ndarray, truth: np.ndarray, text: np.ndarray) -> tuple[int, float] | None:
    """Return the clicks until the page suggests to stop, and the share of the class above the cut; None if never."""
    model, marks = ClickModel(pool, text), dict[int, int]()
    while len(marks) < CLICKS:
        rows = next_to_label(model, model.fit(marks), ROUND)
        marks |= {row: 1 if truth[row] else -1 for row in rows.tolist()}
        cut = cut_off(model.fit(marks))
        if cut is not None and cut.stop:
            return len(marks), float(cut.above[truth].mean())
    return None


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("results/page/stopping.json"))
    args = parser.parse_args()
    model = load_model("starter", "cpu")
    vectors, names = [], list[str]()
    for name in (*CHOOSING, *TESTING):
        source = open_source(str(args.data / f"{name}.parquet"), split="all", kind="label")
        drawn = numpy_generator("stopping", 0, name).permutation(len(source))[:PICTURES].tolist()
        vectors.append(model.embed_images([source[row].image for row in drawn]).numpy())
        names += [f"{name}/{source.class_names[source.labels[row]]}" for row in drawn]
    pool, labels = np.concatenate(vectors), np.array(names)
    rows = []
    for title, sets in (("choosing", CHOOSING), ("testing", TESTING)):
        classes = [each for each in np.unique(labels) if each.startswith(sets) and (labels == each).sum() >= MIN_CLASS]
        texts = model.embed_texts([f"a photo of a {each.split('/')[1]}" for each in classes]).numpy()
        runs = [found_at_stop(pool, labels == each, text) for each, text in zip(classes, texts, strict=True)]
        clicks, shares = np.array([run for run in runs if run is not None]).T
        figures = (f"{clicks.mean():.0f}", f"{100 * shares.mean():.1f}", f"{100 * shares.min():.0f}")
        rows.append(
            [f"{title}: {', '.join(sets)}", str(len(runs)), str(len(clicks)), *figures, f"{(shares >= 0.95).sum()}"]
        )
    note = f"{len(pool):,} pictures in one pool, classes with {MIN_CLASS} or more of them, up to {CLICKS} clicks"
    table = {"title": "When the page says to stop", "columns": COLUMNS, "rows": rows, "notes": [note]}
    write_json(args.out, {"command": this_command(), **where(), "tables": [table]})


if __name__ == "__main__":
    main()
