"""Number of clicks to find a class, by a simulated user on labeled sets: our loop, a forest's loop and random order.

    python benchmarks/clicks.py starter dtd10.parquet::all imagenette.parquet::all
    python benchmarks/click_tables.py
    recollect-papers results docs/results/few-shot.md

A user who is always right looks for each class among the pictures of a set. The metric is the average precision, after
every round of `ROUND` clicks, of the list that the page would show: pictures marked yes first, pictures marked no last,
the others by score. Our loop marks the pictures of `next_to_label`. The forest's loop is LightlyStudio 1.2's on the
same embeddings (`RandomForestClassifier(class_weight="balanced", random_state=42)`; equal numbers of random pictures
predicted Yes and No), but it is retrained after every `ROUND` clicks, not after 20. Three variants (`LOOPS`) mark the
pictures that the forest finds likeliest, least certain, or half of each. *Random order* marks random pictures and ranks
like our loop.

Each loop has two kinds of start. From examples: ten yes and ten no, drawn for each start and the same for all loops;
they count as 20 clicks, and the name of the class is unknown. From words: no marks; until a forest has marks of both
kinds, it shows the pictures that best match the name.

*All labels* is the average precision of a support vector machine trained on all labels, by five-fold cross-validation.
If it is low, the embeddings do not separate the class, and a list reaches 0.9 only once most of the class is marked.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from rich.progress import track
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import average_precision_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.svm import SVC

from recollect.classifiers.clicks.active_learning import next_to_label
from recollect.classifiers.clicks.cutoff import cut_off
from recollect.classifiers.clicks.model import ClickModel
from recollect.classifiers.texts import prompt_ensemble
from recollect.core.files import read_json, write_json
from recollect.core.progress import console
from recollect.core.seeding import numpy_generator
from recollect.data.prompts import GENERAL_TEMPLATES, fill
from recollect.data.sources import open_source
from recollect.data.sources.subset import Subset
from recollect.evaluation.features import image_features
from recollect.models import load_model
from recording import this_command

GOALS = (0.5, 0.7, 0.9)
ROUND = 10
WORDS = "words"
"""The start without examples."""


class Ours:
    """The page's loop; with ``ask`` false, random pictures are marked."""

    def __init__(
        self, pool: np.ndarray, text: np.ndarray | None, random: np.random.Generator, ask: bool = True
    ) -> None:
        self.model, self.random, self.ask = ClickModel(pool, text), random, ask

    def learn(self, marks: dict[int, int]) -> np.ndarray:
        """Scores of the pool."""
        self.fit = self.model.fit(marks)
        return self.fit.scores

    def next(self, free: np.ndarray) -> np.ndarray:
        """What to mark."""
        if self.ask:
            return next_to_label(self.model, self.fit, ROUND)
        return self.random.choice(free, min(ROUND, len(free)), replace=False)


class Forest:
    """The forest's loop.

    Args:
        pick: pictures to mark: ``sides``, random pictures, half predicted Yes and half predicted No; ``likely``, the
            likeliest; ``uncertain``, those closest to one half; ``both``, half likely and half uncertain.
    """

    def __init__(
        self,
        pool: np.ndarray,
        text: np.ndarray | None,
        random: np.random.Generator,
        pick: str = "sides",
    ) -> None:
        self.pool, self.text, self.random, self.pick = pool, text, random, pick

    def learn(self, marks: dict[int, int]) -> np.ndarray:
        """Scores of the pool."""
        self.learned = len(set(marks.values())) == 2
        if self.learned:
            forest = RandomForestClassifier(class_weight="balanced", random_state=42)
            forest.fit(self.pool[list(marks)], np.array(list(marks.values())))
            self.yes = forest.predict_proba(self.pool)[:, list(forest.classes_).index(1)]
        else:
            self.yes = self.pool @ self.text
        return self.yes

    def next(self, free: np.ndarray) -> np.ndarray:
        """What to mark."""
        likely = free[np.argsort(-self.yes[free], kind="stable")]
        if self.pick == "likely" or not self.learned:
            return likely[:ROUND]
        uncertain = free[np.argsort(np.abs(self.yes[free] - 0.5), kind="stable")]
        if self.pick == "uncertain":
            return uncertain[:ROUND]
        if self.pick == "both":
            half = likely[: ROUND // 2]
            return np.concatenate([half, uncertain[~np.isin(uncertain, half)][: ROUND // 2]])
        sides = (free[self.yes[free] > 0.5], free[self.yes[free] <= 0.5])
        return np.concatenate([self.random.choice(side, min(ROUND // 2, len(side)), replace=False) for side in sides])


LOOPS: dict[str, tuple[type[Ours] | type[Forest], dict[str, Any]]] = {
    "ours": (Ours, {}),
    "random order": (Ours, {"ask": False}),
    "forest": (Forest, {}),
    "forest, likeliest": (Forest, {"pick": "likely"}),
    "forest, least certain": (Forest, {"pick": "uncertain"}),
    "forest, half and half": (Forest, {"pick": "both"}),
}
"""All loops; ``forest`` is LightlyStudio's."""


def shown(scores: np.ndarray, marks: dict[int, int]) -> np.ndarray:
    """Return the scores that order the list shown to the user."""
    scores = np.argsort(np.argsort(scores)).astype(np.float64)
    for row, mark in marks.items():
        scores[row] = mark * 10.0 * len(scores)
    return scores


def run(loop: Ours | Forest, truth: np.ndarray, marks: dict[int, int], budget: int) -> dict[str, Any]:
    """Mark until the highest goal or the budget is reached."""
    clicks: list[int] = []
    precisions: list[float] = []
    stopped = None
    while True:
        scores = loop.learn(marks)
        clicks.append(len(marks))
        precisions.append(round(float(average_precision_score(truth, shown(scores, marks))), 4))
        if isinstance(loop, Ours) and stopped is None and (cut := cut_off(loop.fit)) is not None and cut.stop:
            stopped = {
                "clicks": len(marks),
                "precision": float(truth[cut.above].mean()),
                "coverage": float(cut.above[truth].mean()),
            }
        if precisions[-1] >= GOALS[-1] or len(marks) >= budget:
            break
        free = np.setdiff1d(np.arange(len(truth)), list(marks))
        marks = marks | {row: 1 if truth[row] else -1 for row in loop.next(free).tolist()}
    reached = {str(goal): first_at(clicks, precisions, goal) for goal in GOALS}
    return {"clicks": clicks, "precision": precisions, "reached": reached, "stop": stopped}


def first_at(clicks: list[int], precisions: list[float], goal: float) -> int | None:
    """Return the clicks at which a goal is reached; None if it is not."""
    return next((count for count, ap in zip(clicks, precisions, strict=True) if ap >= goal), None)


def with_all_labels(kernel: np.ndarray, truth: np.ndarray) -> float:
    """Return the cross-validated average precision of a support vector machine trained on all labels."""
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    machine = SVC(C=3.0, kernel="precomputed", class_weight="balanced")
    scores = cross_val_predict(machine, kernel, truth, cv=folds, method="decision_function")
    return round(float(average_precision_score(truth, scores)), 4)


def open_set(spec: str, model: Any, rows: int) -> tuple[str, np.ndarray, np.ndarray, list[str]]:
    """Return a set's name, embeddings and labels of up to ``rows`` pictures, and the class names."""
    path, column, split = [*spec.split(":"), "", ""][:3]
    split = split or "train"
    name = Path(path).stem
    source = open_source(path, split=split)
    if column:
        table = pq.read_table(path, columns=[column, "split"]).to_pandas()
        names, labels = np.unique(table[table["split"] == split][column].astype(str).to_numpy(), return_inverse=True)
        class_names = names.tolist()
    else:
        labels, class_names = np.asarray(source.labels), list(source.class_names)
    chosen = np.arange(len(labels))
    if len(chosen) > rows:
        chosen = np.sort(numpy_generator(0, "pool", name).choice(len(labels), rows, replace=False))
    return name, image_features(model, Subset(source, chosen)).images, labels[chosen], class_names


def measure(
    spec: str, model: Any, loops: list[str], classes: int, budget: int, rows: int, starts: int
) -> dict[str, Any]:
    """Run the loops on classes of a set, from words and from several sets of examples."""
    title, pool, labels, names = open_set(spec, model, rows)
    random = numpy_generator(0, "clicks", title)
    counts = np.bincount(labels, minlength=len(names))
    able = np.flatnonzero(counts >= 20)
    chosen = np.sort(random.choice(able, min(classes, len(able)), replace=False))
    texts = prompt_ensemble(model, [[fill(template, names[c]) for template in GENERAL_TEMPLATES] for c in chosen])
    results: dict[str, list[dict[str, Any]]] = {loop: [] for loop in loops}
    kernel, best = np.exp(2 * (pool @ pool.T - 1)), {}
    for c, text in track(list(zip(chosen.tolist(), texts, strict=True)), title, console=console):
        truth = labels == c
        best[names[c]] = with_all_labels(kernel, truth)
        for start in (WORDS, *range(starts)):
            first: dict[int, int] = {}
            if start != WORDS:
                rng = numpy_generator(0, "start", title, c, start)
                yes = rng.choice(np.flatnonzero(truth), 10, replace=False)
                no = rng.choice(np.flatnonzero(~truth), 10, replace=False)
                first = dict.fromkeys(yes.tolist(), 1) | dict.fromkeys(no.tolist(), -1)
            for name in loops:
                kind, settings = LOOPS[name]
                picks = numpy_generator(0, "picks", title, c, start, name)
                loop = kind(pool, text if start == WORDS else None, picks, **settings)
                about = {"class": names[c], "start": start, "in_class": int(truth.sum())}
                results[name].append(about | run(loop, truth, first, budget))
    about = {"pictures": len(pool), "classes": len(chosen), "starts": starts, "budget": budget, "all_labels": best}
    return {"set": title, **about, "loops": results}


def summary(runs: list[dict[str, Any]], budget: int) -> str:
    """Return the mean clicks to the highest goal, from words and from examples; a miss counts the whole budget."""
    means = []
    for by_words in (True, False):
        reached = [one["reached"][str(GOALS[-1])] for one in runs if (one["start"] == WORDS) == by_words]
        means.append(f"{np.mean([budget if count is None else count for count in reached]):.0f}")
    return f"{means[0]} from words, {means[1]} from examples"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data", nargs="+", help="Parquet files; FILE:COLUMN:SPLIT reads class names from a column")
    parser.add_argument("--classes", type=int, default=5)
    parser.add_argument("--clicks", type=int, default=200)
    parser.add_argument("--starts", type=int, default=2, help="number of draws of ten yes and ten no to start from")
    parser.add_argument("--rows", type=int, default=4000, help="maximum number of pictures of a set")
    parser.add_argument("--loops", nargs="+", choices=LOOPS, default=[*LOOPS], help="results of others stay unchanged")
    parser.add_argument("--out", type=Path, default=Path("results/page/clicks"))
    args = parser.parse_args()
    model = load_model(args.model)
    for spec in args.data:
        measured = measure(spec, model, args.loops, args.classes, args.clicks, args.rows, args.starts)
        header = {"format": 2, "command": this_command(), "model": model.fingerprint}
        file = args.out / f"{measured['set']}.json"
        earlier = read_json(file)["loops"] if file.exists() else {}
        loops = {name: (earlier | measured["loops"])[name] for name in LOOPS if name in earlier | measured["loops"]}
        write_json(file, header | measured | {"loops": loops})
        for name in args.loops:
            print(f"{measured['set']}, {name}: {summary(loops[name], args.clicks)}", flush=True)


if __name__ == "__main__":
    main()
