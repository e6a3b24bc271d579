"""Which few-shot method at how many shots: every method on sets of real pictures, and a rule that no test set chose.

The rule is read off the choosing sets alone and then held against the others:

python benchmarks/which_method.py measure --models strong=RUN0/model strong=RUN1/model weak=RUN2/model \
    --data FOLDER --out results/few-shot
python benchmarks/which_method.py rule --out results/few-shot

A model is one on a locked image tower (`recollect train siglip-locked ...`), so that pictures are embedded once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tyro
from rich.console import Console
from rich.table import Table

from recollect.core.errors import UserError
from recollect.core.files import read_json, write_json
from recollect.core.types import Source
from recollect.data.sources.derived import Subset
from recollect.evaluation.few_shot import few_shot, with_enough_examples
from recollect.fewshot.protocol import Protocol
from recollect.models import load_model
from recollect.models.dual import DualEncoder
from recollect.studies.lixp.sets import place
from recollect.tasks.classification import ClassificationTask, classification_task
from recollect.training.locked import FeatureEncoder, lock_source

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
                record["sets"][name] = _figures(model, self._task(model, name), protocol)
                write_json(file, record)

    def _task(self, model: DualEncoder, name: str) -> ClassificationTask:
        task = classification_task(place(self.data, f"{name}.parquet"), name=name)
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
        out: folder of the files; ``rule.json`` is written beside them.
    """

    out: Path

    def run(self) -> None:
        """Choose, check, print and write."""
        frame = frame_of(sorted(self.out.glob("*-seed*.json")))
        found = {"choosing": list(CHOOSING), "testing": list(TESTING), "strengths": {}}
        for strength in sorted(frame["strength"].unique()):
            mine = frame[frame["strength"] == strength]
            found["strengths"][strength] = rule_of(mine)
            _show(strength, found["strengths"][strength])
        found["both"] = rule_of(frame)
        _show("both", found["both"])
        write_json(self.out / "rule.json", found)


def frame_of(files: Sequence[Path]) -> pd.DataFrame:
    """Accuracy of each (strength, seed, set, method, shots)."""
    if not files:
        raise UserError("no files of measurements. Measure first.")
    rows = []
    for record in map(read_json, files):
        for name, methods in record["sets"].items():
            for method, figures in methods.items():
                values = figures["value"] * (len(SHOTS) if method == "zero-shot" else 1)
                for shots, value in zip(SHOTS, values, strict=True):
                    role = "choosing" if name in CHOOSING else "testing"
                    rows.append((record["strength"], record["seed"], name, role, method, shots, value))
    return pd.DataFrame(rows, columns=["strength", "seed", "set", "role", "method", "shots", "value"])


def rule_of(frame: pd.DataFrame) -> dict[str, Any]:
    """For each number of shots: the best method of the choosing sets, and on the tested ones its mean with its standard
    deviation over the models' seeds, and how far it is from the best of each set (regret) beside the other methods'."""
    found: dict[str, Any] = {}
    for shots, mine in frame.groupby("shots"):
        means = {role: each.groupby("method")["value"].mean() for role, each in mine.groupby("role")}
        chosen = str(means["choosing"].idxmax())
        tested = mine[mine["role"] == "testing"]
        table = tested.pivot_table(index=["strength", "seed", "set"], columns="method", values="value")
        regret = (table.max(axis=1).to_numpy()[:, None] - table).mean()
        seeds = tested[tested["method"] == chosen].groupby("seed")["value"].mean()
        found[str(shots)] = {
            "chosen": chosen,
            "choosing": {name: round(float(value), 2) for name, value in means["choosing"].items()},
            "testing": {name: round(float(value), 2) for name, value in means["testing"].items()},
            "regret": {name: round(float(value), 2) for name, value in regret.items()},
            "std over seeds": round(float(np.std(seeds, ddof=1)), 2) if len(seeds) > 1 else None,
        }
    return found


def _show(title: str, rule: dict[str, Any]) -> None:
    table = Table("method", *(f"{shots} shots (regret)" for shots in rule), title=f"{title}: tested sets")
    for method in next(iter(rule.values()))["testing"]:
        cells = (
            f"{each['testing'][method]:.1f} ({each['regret'][method]:.1f}){' *' * (each['chosen'] == method)}"
            for each in rule.values()
        )
        table.add_row(method, *cells)
    Console().print(table)


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"measure": Measure, "rule": Rule}).run()
