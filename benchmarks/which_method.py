"""Which few-shot method at how many shots: every method on sets of real pictures, and a rule that no test set chose.

The rule is read off the choosing sets alone and then held against the others:

python benchmarks/which_method.py measure --models strong=RUN0/model strong=RUN1/model weak=RUN2/model \
    --data FOLDER --out FIGURES
python benchmarks/which_method.py rule --figures FIGURES --out results/few-shot/which-method.json
recollect-papers results docs/results/few-shot.md

A model is one on a locked image tower (`recollect train siglip-tiny --model MODEL --locked image ...`), so that
pictures are embedded once.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from recollect.classifiers.heads.protocol import Protocol
from recollect.cli import Command, run
from recollect.core.errors import UserError
from recollect.core.files import read_json, write_json
from recollect.core.progress import output
from recollect.core.types import EncoderBase, ImageLike, Kind, Source
from recollect.data.sources.subset import Subset
from recollect.evaluation.few_shot import few_shot, with_enough_examples
from recollect.evaluation.results import summarise
from recollect.evaluation.tasks.classification import ClassificationTask, classification_task
from recollect.models import load_model
from recollect.models.dual import DualEncoder
from recollect.training.locked import lock_source
from recollect_papers.study import StudyTable, over

CHOOSING = ("eurosat", "dtd10", "cifar10")
TESTING = ("resisc12", "flowers12", "butterfly10", "imagenette")
METHODS = (
    "zero-shot", "prototype", "tip-adapter", "tip-adapter-cv", "softmax", "softmax+zero-shot", "tip-x", "ape", "gda",
    "dmn-tf", "timo", "proker", "linear-probe", "lp++",
)  # fmt: skip
SHOTS = (1, 4, 16)
TEMPLATES = 8
"""Every eighth of CLIP's 80 templates."""

QUERIES = 600
"""Most pictures of a set that are tested, evenly over its test split."""


@dataclass(frozen=True)
class Measure:
    """Measure what has not been measured yet.

    Attributes:
        models: STRENGTH=FOLDER, one for each training; their seeds are their order within a strength.
        data: folder of the Parquet files.
        out: folder of one JSON for each model.
        sets, methods, draws: what to measure.
        seed: of the first model of each strength.
    """

    models: tuple[str, ...]
    data: Path
    out: Path
    sets: tuple[str, ...] = CHOOSING + TESTING
    methods: tuple[str, ...] = METHODS
    draws: int = 5
    seed: int = 0

    def run(self) -> None:
        """Measure, model by model."""
        seen: dict[str, int] = {}
        for named in self.models:
            strength, _, folder = named.partition("=")
            seed = seen[strength] = seen.get(strength, self.seed - 1) + 1
            self._one(strength, seed, folder, self.out / f"{strength}-seed{seed}.json")

    def _one(self, strength: str, seed: int, folder: str, file: Path) -> None:
        model = load_model(folder, "cpu")
        if not isinstance(model, DualEncoder):
            raise UserError(f"{folder}: not a model on a locked tower")
        protocol = Protocol(self.methods, SHOTS, tuple(range(self.draws)))
        about = {"strength": strength, "seed": seed, "draws": self.draws, "model": model.fingerprint}
        record = read_json(file) if file.exists() else {**about, "sets": {}}
        if any(record[name] != value for name, value in about.items()):
            raise UserError(f"{file}: is of another model or number of draws. Name another folder.")
        for name in self.sets:
            if name not in record["sets"]:  # kept set by set, so that a stop loses one at most
                record["sets"][name] = _figures(model, locked_task(model, self.data, name), protocol)
                write_json(file, record)


class FeatureEncoder(EncoderBase):
    """A model that embeds features of its locked image tower (`recollect.training.locked.lock_source`), and texts."""

    def __init__(self, model: DualEncoder) -> None:
        self.model, self.width = model.eval(), model.width

    @property
    def scale(self) -> float | None:
        """The model's own."""
        return self.model.scale

    @property
    def prefixes(self) -> Mapping[Kind, tuple[str, ...]]:
        """The model's own."""
        return self.model.prefixes

    @property
    def fingerprint(self) -> str:
        """The model's own."""
        return self.model.fingerprint

    @torch.no_grad()
    def embed_images(self, images: Tensor | Sequence[ImageLike]) -> Float[Tensor, "n width"]:
        """Unit-norm embeddings of feature vectors (n, features)."""
        features = images if isinstance(images, Tensor) else torch.from_numpy(np.stack(images))  # type: ignore[arg-type]
        raw = self.model.project_images(features.to(self.model.device, self.model.dtype))
        return F.normalize(raw.float(), dim=1).cpu()

    def embed_texts(self, texts: Sequence[str], prefix: Kind | None = None) -> Float[Tensor, "n width"]:
        """The model's own."""
        return self.model.embed_texts(texts, prefix)


def place(folder: Path, file: str) -> str:
    """The address of a file in the user's folder."""
    if not (folder / file.split("?")[0]).is_file():
        raise UserError(f"{folder}: no {file} there. Name the folder of the Parquet files: --data FOLDER.")
    return f"{folder}/{file}"


def locked_task(model: DualEncoder, data: Path, name: str) -> ClassificationTask:
    """A set of the folder, with the image tower's features for pictures, of classes with enough examples."""
    task = classification_task(place(data, f"{name}.parquet"), name=name)
    task = replace(task, templates=task.templates[::TEMPLATES])
    queries: Source = lock_source(model, task.query)
    if len(queries) > QUERIES:
        queries = Subset(queries, np.linspace(0, len(queries) - 1, QUERIES).astype(np.int64))
    locked = replace(task, support=lock_source(model, task.support), query=queries)
    return with_enough_examples(locked, SHOTS[-1])


def _figures(model: DualEncoder, task: ClassificationTask, protocol: Protocol) -> dict[str, dict[str, list[float]]]:
    """By method: accuracy over shots, and what it says of itself, each a mean over draws."""
    frame = pd.DataFrame(few_shot(FeatureEncoder(model), task, protocol, model="model").rows)
    found: dict[str, dict[str, list[float]]] = {}
    for method in protocol.methods:
        mine = frame[frame["method"] == method].groupby("shots")
        columns = [name for name in ("value", "loo", "ece", "coverage", "set_size") if name in frame]
        found[method] = {
            name: [round(float(each[name].mean()), 2) for _, each in mine if each[name].notna().any()]
            for name in columns
        }
    return found


@dataclass(frozen=True)
class Rule:
    """Choose for each number of shots on the choosing sets, and hold that against the others.

    Attributes:
        figures: folder of what was measured.
        out: the file, with what was measured in it.
    """

    figures: Path
    out: Path

    def run(self) -> None:
        """Choose, check and write."""
        files = sorted(self.figures.glob("*-seed*.json"))
        if not files:
            raise UserError(f"{self.figures}: no files of measurements. Measure first.")
        measured = {file.stem: read_json(file) for file in files}
        everywhere = set.intersection(*(set(record["sets"]) for record in measured.values()))
        for record in measured.values():  # a set that some model was not measured on would shift its means
            record["sets"] = {name: record["sets"][name] for name in CHOOSING + TESTING if name in everywhere}
        frame = frame_of(list(measured.values()))
        strengths = sorted(frame["strength"].unique())
        made = [_accuracy(strength, frame[frame["strength"] == strength]) for strength in strengths]
        made += [_trust(strength, frame[frame["strength"] == strength]) for strength in strengths]
        command = "python benchmarks/which_method.py rule --figures FIGURES --out results/few-shot/which-method.json"
        about = {role: _sets(frame, role) for role in ("choosing", "testing")} | {"queries": QUERIES}
        whole = {"command": command, **about, "tables": [asdict(each) for each in [_rules(frame), *made]]}
        write_json(self.out, whole | {"measured": {name: _short(record) for name, record in measured.items()}})
        output().print(f"written: {self.out}; for the page: recollect-papers results docs/results/few-shot.md")


def _short(record: Mapping[str, Any]) -> dict[str, Any]:
    """The same with a line for each figure: over 1, 4 and 16 shots, the last where there are fewer."""
    sets = {
        name: {method: {key: " ".join(f"{value:g}" for value in values) for key, values in figures.items() if values}
               for method, figures in methods.items()}
        for name, methods in record["sets"].items()
    }  # fmt: skip
    return {**record, "sets": sets}


def frame_of(records: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The figures of each (strength, seed, set, method, shots)."""
    rows = []
    for record in records:
        for name, methods in record["sets"].items():
            for method, figures in methods.items():
                for number, shots in enumerate(SHOTS):
                    back = 1 if method == "zero-shot" else len(SHOTS) - number  # nothing is held out at one shot
                    found = {key: values[-back] for key, values in figures.items() if len(values) >= back}
                    role = "choosing" if name in CHOOSING else "testing"
                    about = {key: record[key] for key in ("strength", "seed")}
                    rows.append({**about, "set": name, "role": role, "method": method, "shots": shots, **found})
    return pd.DataFrame(rows)


def chosen_method(frame: pd.DataFrame, shots: int) -> str:
    """The method with the highest mean over the choosing sets and all models."""
    mine = frame[(frame["role"] == "choosing") & (frame["shots"] == shots)]
    return str(mine.groupby("method")["value"].mean().idxmax())


def picked_by_loo(tested: pd.DataFrame) -> pd.Series:
    """For each model and set the tested accuracy of the method that was most accurate on held-out examples."""
    known = tested.dropna(subset=["loo"])
    best = known.groupby(["strength", "seed", "set"])["loo"].idxmax()
    return known.loc[best].set_index(["strength", "seed", "set"])["value"]


def _rules(frame: pd.DataFrame) -> StudyTable:
    """What each rule gives up against the best method of each set, which no rule can know."""
    rows = []
    for shots in SHOTS:
        tested = frame[(frame["role"] == "testing") & (frame["shots"] == shots)]
        table = tested.pivot_table(index=["strength", "seed", "set"], columns="method", values="value")
        best, chosen = table.max(axis=1), chosen_method(frame, shots)
        ways = {f"`{chosen}`, best on the choosing sets": table[chosen]}
        if shots > 1:
            ways["the highest left-out accuracy, set by set"] = picked_by_loo(tested)
        hindsight = str(table.mean().idxmax())
        ways[f"`{hindsight}`, best on the tested sets (hindsight)"] = table[hindsight]
        for way, values in ways.items():
            cells = [str(_over_models(each)) for each in (values, best - values)]
            rows.append((f"{shots}", way, *cells))
    sets = f"chosen on {', '.join(_sets(frame, 'choosing'))}; tested on {', '.join(_sets(frame, 'testing'))}"
    models = frame[["strength", "seed"]].drop_duplicates()
    notes = (
        sets,
        f"mean over sets and ± over {len(models)} models; given up: points below the best method of each set",
    )
    return StudyTable("Rules", ("shots", "rule", "accuracy", "given up"), tuple(rows), notes)


def _sets(frame: pd.DataFrame, role: str) -> list[str]:
    return frame[frame["role"] == role]["set"].unique().tolist()


def _over_models(values: pd.Series) -> Any:
    return summarise(values.groupby(["strength", "seed"]).mean())


def _accuracy(strength: str, frame: pd.DataFrame) -> StudyTable:
    """Accuracy on the tested sets, and how far it is from the best of each."""
    tested, rows = frame[frame["role"] == "testing"], []
    for method in METHODS:
        accuracy, short = [], []
        for shots in SHOTS:
            table = tested[tested["shots"] == shots].pivot_table(index=["strength", "seed", "set"], columns="method",
                                                                values="value")  # fmt: skip
            accuracy.append(str(_over_models(table[method])))
            short.append(f"{(table.max(axis=1) - table[method]).mean():.1f}")
        rows.append((method, *accuracy, *short))
    heads = ("method", *(f"{shots} shot{'s' * (shots > 1)}" for shots in SHOTS), *(f"given up at {k}" for k in SHOTS))
    count = frame["seed"].nunique()
    return StudyTable(f"The {strength}er model", heads, tuple(rows), (f"{over(count, 'training seed')}; five draws",))


def _trust(strength: str, frame: pd.DataFrame) -> StudyTable:
    """What the methods say of themselves at the most shots, on the tested sets."""
    tested = frame[(frame["role"] == "testing") & (frame["shots"] == SHOTS[-1])]
    means = tested.groupby("method")[["value", "loo", "ece", "coverage", "set_size"]].mean()
    rows = [(method, *("" if np.isnan(value) else f"{value:.1f}" for value in means.loc[method])) for method in METHODS]
    heads = ("method", "accuracy", "left-out accuracy", "calibration error", "coverage", "classes a set")
    return StudyTable(f"Trust in the {strength}er model, {SHOTS[-1]} shots", heads, tuple(rows))


if __name__ == "__main__":
    commands = {"measure": Command("__main__:Measure", "measure"), "rule": Command("__main__:Rule", "compare rules")}
    sys.exit(run("which_method.py", commands, sys.argv[1:]))
