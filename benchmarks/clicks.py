"""How many clicks find a class: a simulated clicker on labelled sets, beside a forest's loop and random order.

    python benchmarks/clicks.py starter eurosat.parquet emoji.parquet:group:test --classes 5 --clicks 300 --rows 2500
    python benchmarks/click_tables.py
    recollect-papers results docs/results/few-shot.md

Each class of a set is looked for among its pictures by a clicker who is always right. What counts is the list
that the page would show: clicked Yes first, clicked No last, the others by score; its average precision after every
round of 20 clicks. Ours asks `next_to_label`. The forest's loop is what LightlyStudio 1.2 does, on the same embeddings
(`RandomForestClassifier(class_weight="balanced", random_state=42)`; ten random pictures that it calls Yes, ten that it
does not), and four variants of it (`FORESTS`): a person may as well click what it finds likeliest or least certain, or
let it grow more trees. *Random order* clicks at random and ranks as ours. These start from the same ten Yes and ten No,
which count as 20 clicks, drawn anew for each start; *from words* starts from the class's name and no click.

What can be reached at all is measured beside: the average precision of pictures that were held out, five parts in turn,
by classifiers that were taught with every label of the others (the best of three kinds). Where that is low, the
embeddings do not tell the class, and a list reaches 0.9 only as most of the class is clicked; so clicks are counted to
nine tenths of it, too.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from recollect.classifiers.clicks.active_learning import next_to_label
from recollect.classifiers.clicks.cutoff import cut_off
from recollect.classifiers.clicks.model import ClickModel
from recollect.classifiers.texts import prompt_ensemble
from recollect.core.files import write_json
from recollect.core.progress import track
from recollect.core.seeding import numpy_generator
from recollect.data.prompts import GENERAL_TEMPLATES, fill
from recollect.data.sources import open_source
from recollect.data.sources.subset import Subset
from recollect.evaluation.features import image_features
from recollect.models import load_model
from recording import this_command

GOALS = (0.5, 0.7, 0.9)
SHARE = 0.9
"""Of what all labels reach, the goal that each class can be held to."""

ROUND = 20


class Ours:
    """The page's own loop; with ``ask`` false the clicks are made at random."""

    def __init__(
        self, pool: np.ndarray, text: np.ndarray | None, random: np.random.Generator, ask: bool = True
    ) -> None:
        self.model, self.random, self.ask = ClickModel(pool, text), random, ask
        self.fit = self.model.fit({})

    def learn(self, marks: dict[int, int]) -> np.ndarray:
        """Scores of the pool."""
        self.fit = self.model.fit(marks)
        return self.fit.scores

    def next(self, free: np.ndarray) -> np.ndarray:
        """What to click."""
        if self.ask:
            return next_to_label(self.model, self.fit, ROUND)
        return self.random.choice(free, min(ROUND, len(free)), replace=False)


class Forest:
    """The forest's loop.

    Args:
        pick: ``sides``: half of the clicks among what the forest calls Yes, half among the rest, at random;
            ``likely``: what it finds likeliest; ``uncertain``: what is nearest to one half.
    """

    def __init__(self, pool: np.ndarray, random: np.random.Generator, trees: int = 100, pick: str = "sides") -> None:
        self.pool, self.random, self.trees, self.pick = pool, random, trees, pick

    def learn(self, marks: dict[int, int]) -> np.ndarray:
        """Scores of the pool."""
        rows = np.array(list(marks))
        forest = RandomForestClassifier(self.trees, class_weight="balanced", random_state=42)
        forest.fit(self.pool[rows], np.array(list(marks.values())))
        self.yes = forest.predict_proba(self.pool)[:, list(forest.classes_).index(1)]
        return self.yes

    def next(self, free: np.ndarray) -> np.ndarray:
        """What to click."""
        if self.pick != "sides":
            wanted = self.yes[free] if self.pick == "likely" else -np.abs(self.yes[free] - 0.5)
            return free[np.argsort(-wanted, kind="stable")[:ROUND]]
        sides = (free[self.yes[free] > 0.5], free[self.yes[free] <= 0.5])
        picks = [self.random.choice(side, min(ROUND // 2, len(side)), replace=False) for side in sides]
        return np.concatenate(picks)


FORESTS: dict[str, dict[str, Any]] = {
    "forest": {},
    "forest, likeliest": {"pick": "likely"},
    "forest, least certain": {"pick": "uncertain"},
    "forest of 300": {"trees": 300},
    "forest of 300, least certain": {"trees": 300, "pick": "uncertain"},
}
"""The first as LightlyStudio has it."""


def shown(scores: np.ndarray, marks: dict[int, int]) -> np.ndarray:
    """Scores of the list that a person sees."""
    scores = np.argsort(np.argsort(scores)).astype(np.float64)
    for row, mark in marks.items():
        scores[row] = mark * 10.0 * len(scores)
    return scores


def run(loop: Ours | Forest, truth: np.ndarray, marks: dict[int, int], most: int) -> dict[str, Any]:
    """Click until the highest goal or the budget is reached."""
    clicks: list[int] = []
    precisions: list[float] = []
    took: list[float] = []
    stopped = None
    while True:
        began = time.perf_counter()
        scores = loop.learn(marks)
        took.append(time.perf_counter() - began)
        clicks.append(len(marks))
        precisions.append(float(average_precision_score(truth, shown(scores, marks))))
        if isinstance(loop, Ours) and stopped is None and (cut := cut_off(loop.fit)) is not None and cut.stop:
            stopped = {
                "clicks": len(marks),
                "precision": float(truth[cut.above].mean()),
                "coverage": float(cut.above[truth].mean()),
            }
        if precisions[-1] >= GOALS[-1] or len(marks) >= most:
            break
        free = np.setdiff1d(np.arange(len(truth)), list(marks))
        marks = marks | {row: 1 if truth[row] else -1 for row in loop.next(free).tolist()}
    reached = {str(goal): first_at(clicks, precisions, goal) for goal in GOALS}
    return {"clicks": clicks, "precision": precisions, "reached": reached, "seconds": took, "stop": stopped}


def first_at(clicks: list[int], precisions: list[float], goal: float) -> int | None:
    """Clicks at which a goal is reached; None where it is not."""
    return next((count for count, ap in zip(clicks, precisions, strict=True) if ap >= goal), None)


def with_all_labels(pool: np.ndarray, truth: np.ndarray) -> float:
    """Average precision of held-out pictures by a classifier that was taught with every label of the others.

    The best of a forest, logistic regression and a machine with Gaussian kernels; parts are drawn once.
    """
    kinds = (
        (RandomForestClassifier(class_weight="balanced", random_state=42), "predict_proba"),
        (LogisticRegression(C=0.1, class_weight="balanced", max_iter=500), "decision_function"),
        (SVC(C=3.0, class_weight="balanced"), "decision_function"),
    )
    parts = StratifiedKFold(5, shuffle=True, random_state=0)
    found = []
    for kind, how in kinds:
        scores = cross_val_predict(make_pipeline(StandardScaler(), kind), pool, truth, cv=parts, method=how)
        found.append(average_precision_score(truth, scores if scores.ndim == 1 else scores[:, 1]))
    return float(max(found))


def looked_for(spec: str, model: Any, rows: int) -> tuple[str, np.ndarray, np.ndarray, list[str]]:
    """A set's name, embeddings of some of its pictures, their labels, and what these are called."""
    path, column, split = [*spec.split(":"), "", ""][:3]
    split = split or "train"
    name = Path(path).stem
    source = open_source(path, split=split)
    if column:
        table = pq.read_table(path, columns=[column, "split"]).to_pandas()
        names, labels = np.unique(table[table["split"] == split][column].astype(str).to_numpy(), return_inverse=True)
        called = names.tolist()
    else:
        labels, called = np.asarray(source.labels), list(source.class_names)
    some = np.arange(len(labels))
    if len(some) > rows:
        some = np.sort(numpy_generator(0, "pool", name).choice(len(labels), rows, replace=False))
    return name, image_features(model, Subset(source, some)).images, labels[some], called


def measure(spec: str, model: Any, classes: int, most: int, rows: int, starts: int) -> dict[str, Any]:
    """Every loop on every class of a set, from several starts."""
    called, pool, labels, names = looked_for(spec, model, rows)
    random = numpy_generator(0, "clicks", called)
    counts = np.bincount(labels, minlength=len(names))
    able = np.flatnonzero(counts >= 20)
    chosen = np.sort(random.choice(able, min(classes, len(able)), replace=False))
    texts = prompt_ensemble(model, [[fill(template, names[c]) for template in GENERAL_TEMPLATES] for c in chosen])
    results: dict[str, list[dict[str, Any]]] = {}
    for c, text in track(list(zip(chosen.tolist(), texts, strict=True)), called, unit="classes"):
        truth = labels == c
        best = with_all_labels(pool, truth)
        for start in range(starts):
            rng = numpy_generator(0, "start", called, c, start)
            yes = rng.choice(np.flatnonzero(truth), 10, replace=False)
            no = rng.choice(np.flatnonzero(~truth), 10, replace=False)
            first = dict.fromkeys(yes.tolist(), 1) | dict.fromkeys(no.tolist(), -1)
            loops: dict[str, tuple[Ours | Forest, dict[int, int]]] = {
                "ours": (Ours(pool, None, rng), first),
                **({"ours from words": (Ours(pool, text, rng), {})} if not start else {}),  # nothing is drawn there
                **{name: (Forest(pool, rng, **settings), first) for name, settings in FORESTS.items()},
                "random order": (Ours(pool, None, rng, ask=False), first),
            }
            for name, (loop, marks) in loops.items():
                found = run(loop, truth, marks, most)
                share = first_at(found["clicks"], found["precision"], SHARE * best)
                found |= {"all_labels": round(best, 4), "reached_share": share, "in_class": int(truth.sum())}
                results.setdefault(name, []).append({"class": names[c], "start": start, **found})
    about = {"pictures": len(pool), "classes": len(chosen), "starts": starts, "budget": most}
    return {"set": called, **about, "loops": results}


def summary(found: dict[str, Any], goal: float | None) -> dict[str, str]:
    """Mean clicks to the goal, a class that misses it counting the whole budget, and how many reach it.

    Without a goal it is `SHARE` of what all labels reach.
    """
    said = {}
    for name, each in found["loops"].items():
        clicks = [one["reached_share"] if goal is None else one["reached"][str(goal)] for one in each]
        mean = np.mean([found["budget"] if count is None else count for count in clicks])
        said[name] = f"{mean:.0f} ({sum(count is not None for count in clicks)}/{len(clicks)})"
    return said


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data", nargs="+", help="a Parquet file; FILE:COLUMN:SPLIT names its classes by another column")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--clicks", type=int, default=500)
    parser.add_argument("--starts", type=int, default=2, help="draws of the first ten Yes and ten No")
    parser.add_argument("--rows", type=int, default=4000, help="pictures of a set, at most")
    parser.add_argument("--out", type=Path, default=Path("results/page/clicks"))
    given = parser.parse_args()
    model = load_model(given.model)
    for spec in given.data:
        found = measure(spec, model, given.classes, given.clicks, given.rows, given.starts)
        about = {"format": 1, "command": this_command(), "model": model.fingerprint}
        write_json(given.out / f"{found['set']}.json", about | found)
        for goal in GOALS:
            print(f"{found['set']} AP {goal}", summary(found, goal), flush=True)
        best = [one["all_labels"] for one in found["loops"]["ours"]]
        print(f"{found['set']} all labels: {best}; {SHARE} of it", summary(found, None), flush=True)
        ours = [second for one in found["loops"]["ours"] for second in one["seconds"]]
        print(f"{found['set']} milliseconds of a refit: median {1000 * np.median(ours):.0f}", flush=True)


if __name__ == "__main__":
    main()
