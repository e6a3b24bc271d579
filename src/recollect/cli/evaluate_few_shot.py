"""``recollect evaluate few-shot``: every method, number of shots and draw, of models or of embeddings from files."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import tyro
from rich.console import Console
from rich.table import Table

from recollect.cli.evaluate import DataOptions, ModelOptions, say_left_out
from recollect.cli.memory_reading import with_memory
from recollect.cli.unread import refuse_unread
from recollect.core.errors import UserError
from recollect.core.given import is_given
from recollect.core.progress import output
from recollect.evaluation.few_shot import few_shot, with_enough_examples
from recollect.evaluation.own_features import (
    LabelledVectors,
    OwnFeatures,
    divided,
    few_shot_features,
    fewest_examples,
    read_arrays,
    read_prompts,
    read_texts,
    read_vectors,
    with_enough_rows,
)
from recollect.evaluation.reports.plots import few_shot_curves, gain_against_examples, gain_per_data_set, save_figure
from recollect.evaluation.results import Result, joint_identity, summarise
from recollect.evaluation.tables import gain_over_draws, sample_efficiency, tidy
from recollect.evaluation.tasks.classification import ClassificationTask, Division
from recollect.evaluation.tuned import TuningRequest
from recollect.fewshot.draws import ShortClasses
from recollect.fewshot.methods import FEW_SHOT_METHODS, PAPER_METHODS
from recollect.fewshot.protocol import Protocol
from recollect.fewshot.scoring import SET_ALPHA, TRUST_COLUMNS
from recollect.fewshot.trust import TOO_FEW
from recollect.models import load_model
from recollect.tuning.methods import CASCADE, TUNING_METHODS

_USUAL = ("zero-shot", *PAPER_METHODS)
_SHOTS = (1, 2, 4, 8, 16, 32)
_TUNING = (*TUNING_METHODS, CASCADE)


@dataclass(frozen=True)
class FeatureOptions:
    """Embeddings of your own, in place of a model and its pictures."""

    features: tuple[Path, ...] = ()
    """Parquet files, each a set with columns vector, label and, where it has splits, split; or one or two .npy files of
    rows: examples, and tested ones. Without splits half of each class is tested."""
    feature_labels: tuple[Path, ...] = ()
    """A .npy file of labels for each .npy file of rows."""
    texts: Path | None = None
    """Class texts by the same model: .npy in sorted order of the labels, or Parquet with columns vector and label.
    Without, class means of the shots stand in for them, and there is no zero-shot."""
    scale: float = 100.0
    """Inverse temperature that the model learned; CLIP's by default."""

    def open(self, data: DataOptions) -> list[OwnFeatures]:
        """The sets.

        Raises:
            UserError: a file is missing or does not fit.
        """
        if not 0 < self.scale < float("inf"):
            raise UserError(f"--scale {self.scale:g}: an inverse temperature is positive and finite")
        division = Division(data.support, data.query, data.within)
        if {path.suffix for path in self.features} == {".npy"}:
            if len(self.features) > 2 or len(self.feature_labels) != len(self.features):
                raise UserError("--features: one or two .npy files, and as many --feature-labels")
            if self._twice():
                raise UserError(f"--features {self.features[0]}: is named twice; tested rows would be examples too")
            parts = [read_arrays(*pair) for pair in zip(self.features, self.feature_labels, strict=True)]
            pair = (parts[0], parts[1]) if len(parts) == 2 else divided(parts[0], self.features[0], division)
            opened = [(self.features[0].stem, pair)]
        elif {path.suffix for path in self.features} == {".parquet"}:
            if twice := self._twice():
                raise UserError(f"--features {twice[0]}: is named twice. Name each set once.")
            opened = [(path.stem, divided(read_vectors(path, data.label_column), path, division))
                      for path in self.features]  # fmt: skip
        else:
            raise UserError("--features: name .parquet files, or one or two .npy files with their --feature-labels")
        return [self._with_texts(name, *pair, data.label_column) for name, pair in opened]

    def _twice(self) -> list[Path]:
        """Files that are named after they were named."""
        places = [path.resolve() for path in self.features]
        return [path for number, path in enumerate(self.features) if places[number] in places[:number]]

    def _with_texts(
        self, name: str, support: LabelledVectors, queries: LabelledVectors, label_column: str | None
    ) -> OwnFeatures:
        classes = sorted(set(support.labels.tolist()))
        texts = read_texts(self.texts, classes, label_column) if self.texts else None
        prompts = read_prompts(self.texts, classes, label_column) if self.texts else None
        return OwnFeatures(name, support, queries, texts, self.scale, prompts)


@dataclass(frozen=True)
class FewShot:
    """Classify with a few labelled images, mostly without training.

    Supports are drawn from the support split, nested over shots, anew for each seed; nothing is ever chosen on tested
    images. Prints mean and standard deviation over seeds for every set; with several models also gains over the first.
    """

    model: tyro.conf.OmitArgPrefixes[ModelOptions]
    data: tyro.conf.OmitArgPrefixes[DataOptions] = field(default_factory=DataOptions)
    methods: tuple[str, ...] = _USUAL
    """Names, `paper` for the paper's six, or `all` that read embeddings. These tune the model itself, on pictures, for
    minutes to hours: clip-lora, 2sfs, coop, kgcoop, maple, promptsrc, caspl."""
    shots: tuple[int, ...] | None = None
    """Examples of each class; by default 1 2 4 8 16 32, as far as every class has so many."""
    seeds: int = 5
    """Number of draws."""
    effort: float = 1.0
    """Share of the published steps that methods that tune the model take."""
    flip: bool = True
    """Mirror half of the pictures that these learn from; not where they hold letters, signs or maps."""
    teacher: str | None = None
    """A larger model, that caspl learns from on all pictures of the support split, without their labels."""
    held_out: bool = False
    """Tune the model again without parts of the shots, so that methods which tune it also state left-out accuracy,
    calibrated confidence and conformal sets: up to four shots once more for each shot, else three times more."""
    own: tyro.conf.OmitArgPrefixes[FeatureOptions] = field(default_factory=FeatureOptions)
    small_classes: Literal["refuse", "drop", "all"] = "refuse"
    """What to do with classes that have fewer examples than the most shots: stop, leave them out of the set, or take
    all that they have."""

    def run(self) -> None:
        """Evaluate, print, plot and write."""
        self._refuse_unread()
        self.data.check()
        self.model.check("few-shot")
        console = output()
        results, left_out = self._of_features() if self.own.features else self._of_models()
        frame = tidy(results)
        for name in dict.fromkeys(result.model for result in results):
            for data in dict.fromkeys(frame["data"]):
                _few_shot_table(f"{name} on {data}", frame[(frame["model"] == name) & (frame["data"] == data)], console)
            if frame["data"].nunique() > 1:
                _few_shot_table(
                    f"{name}, mean of {frame['data'].nunique()} sets", frame[frame["model"] == name], console
                )
        say_left_out(left_out, console)
        self.model.save(results, console)
        self._compare(frame, joint_identity(results), console)

    def _refuse_unread(self) -> None:
        """Refuse options that say nothing beside the others."""
        if CASCADE not in self.methods:
            refuse_unread(self, "teacher", why="is of --methods caspl. Add that, or leave this out.")
        if not any(name in _TUNING for name in self.methods):
            why = f"is of methods that tune the model ({', '.join(_TUNING)}). Leave it out."
            refuse_unread(self, "effort", "flip", why=why)
        if not self.own.features:
            refuse_unread(self.own, why="is of embeddings of your own. Name them with --features, or leave this out.")
            return
        why = "embeddings of your own are read as they are. Leave it out."
        refuse_unread(self.data, "copies", "templates", "definitions", "class_name_column", "image_column", why=why)
        refuse_unread(self.model, "cache", "device", "prefix", why=why)
        refuse_unread(self.model.reading, why=why)
        arrays = all(path.suffix == ".npy" for path in self.own.features)
        if not arrays:
            refuse_unread(self.own, "feature_labels", why="is of .npy files; a Parquet file has labels of its own.")
        elif self.own.texts is None or self.own.texts.suffix == ".npy":
            refuse_unread(self.data, "label_column", why="is of Parquet files; .npy files have --feature-labels.")
        if arrays:
            why = "is of splits, which .npy files have none of. Give the tested rows as a second file."
            refuse_unread(self.data, "support", "query", "within", why=why)

    def _of_features(self) -> tuple[list[Result], tuple[str, ...]]:
        if self.model.models or self.data.data or self.data.suite or any(name in _TUNING for name in self.methods):
            raise UserError("--features: these are in place of a model and --data, and no model can be tuned with them")
        protocol = self._protocol()
        if self.own.texts is None and "zero-shot" in protocol.methods:
            if "zero-shot" in self.methods and (self.methods != _USUAL or is_given("methods")):
                raise UserError("--methods zero-shot: reads class texts. Name them with --texts FILE.")
            protocol = replace(protocol, methods=tuple(name for name in protocol.methods if name != "zero-shot"))
        sets = self.own.open(self.data)
        protocol = self._reachable(protocol, min(map(fewest_examples, sets)))
        if self.small_classes == "drop":
            sets = [with_enough_rows(each, protocol.shots[-1]) for each in sets]
        seed = self.model.seed
        return [few_shot_features(each, protocol, model="own embeddings", seed=seed) for each in sets], ()

    def _of_models(self) -> tuple[list[Result], tuple[str, ...]]:
        protocol, tuning = self._protocol(), self._tuning()
        opened = self.data.open("few-shot")
        fewest = (np.bincount(task.support.labels, minlength=len(task.class_names)).min() for task in opened.tasks)
        protocol = self._reachable(protocol, int(min(fewest)))
        tasks = [self._fitting(task, protocol) for task in opened.tasks]
        results = []
        for name, encoder, cache, task in self.model.each_on((task, task.query) for task in tasks):
            options = {"model": name, "seed": self.model.seed, "prefix": self.model.prefix_for(encoder), "cache": cache}
            options["tuning"] = tuning
            found = few_shot(encoder, task, replace(protocol, metric=task.metric), **options)  # type: ignore[arg-type]
            results.append(with_memory(found, encoder))
        return results, opened.left_out

    def _protocol(self) -> Protocol:
        if self.seeds < 1:
            raise UserError(f"--seeds {self.seeds}: draws, at least 1")
        names = {"all": tuple(FEW_SHOT_METHODS), "paper": PAPER_METHODS}
        asked = [name for name in self.methods if name not in _TUNING]
        methods = tuple(dict.fromkeys(name for each in asked for name in names.get(each, (each,))))
        try:
            shots = tuple(sorted(set(self.shots))) if self.shots else _SHOTS
            short: ShortClasses = "all" if self.small_classes == "all" else "refuse"
            return Protocol(methods, shots, tuple(range(self.seeds)), short_classes=short)
        except ValueError as error:
            raise UserError(f"--methods, --shots: {error}") from None

    def _tuning(self) -> TuningRequest:
        methods = tuple(dict.fromkeys(name for name in self.methods if name in _TUNING))
        if CASCADE in methods and self.teacher is None:
            raise UserError("--methods caspl: learns from a larger model. Name it with --teacher MODEL.")
        if self.held_out and not methods:
            tuning = ", ".join(_TUNING)
            raise UserError(f"--held-out: is for methods that tune the model ({tuning}); the others hold out anyway.")
        teacher = load_model(self.teacher, self.model.device) if self.teacher else None
        try:
            return TuningRequest(methods, self.effort, self.flip, teacher, self.held_out)
        except ValueError as error:
            raise UserError(f"--effort: {error}") from None

    def _reachable(self, protocol: Protocol, fewest: int) -> Protocol:
        """Shots that every class has, where nobody named any."""
        if self.shots is not None or self.small_classes != "refuse":
            return protocol
        shots = tuple(k for k in protocol.shots if k <= fewest)
        if not shots or shots == protocol.shots:
            return protocol
        output().print(f"shots up to {shots[-1]}: a class has {fewest} examples", highlight=False)
        return replace(protocol, shots=shots)

    def _fitting(self, task: ClassificationTask, protocol: Protocol) -> ClassificationTask:
        return with_enough_examples(task, protocol.shots[-1]) if self.small_classes == "drop" else task

    def _compare(self, frame: pd.DataFrame, identity: str, console: Console) -> None:
        """Figures, which take the place of the same evaluations' only, and with two or more models what the later ones
        gain over the first."""
        methods = [name for name in dict.fromkeys(frame["method"]) if name != "zero-shot"]
        models, every = list(dict.fromkeys(frame["model"])), sorted({int(k) for k in frame["shots"] if k > 0})
        if not every:  # zero-shot alone: nothing goes over shots
            return
        shots = every[-1]
        for model in models[1:]:
            table = Table("method", *(f"{k} shots" for k in every), "fewer shots by")
            for method in methods:
                saved = sample_efficiency(frame, model, models[0], method)
                cells = [gain_over_draws(frame, model, models[0], method, k).signed() for k in every]
                table.add_row(method, *cells, f"{saved} ({saved.accuracy:.1f} %)")
            sets, draws = frame["data"].nunique(), frame[frame["shots"] > 0]["seed"].nunique()
            of = f"mean of {sets} sets" if sets > 1 else f"{frame['data'].iloc[0]}"
            console.print(
                f"\n{model} minus {models[0]}, {of}, ± over {draws} draws that both had",
                highlight=False,
                soft_wrap=True,
            )
            console.print(table)
        if self.model.out is None or self.model.out.suffix == ".json":
            return
        # Error bars are over draws of the support here: one model is one training.
        curves = frame.assign(training_seed=frame["seed"]) if frame["training_seed"].nunique() == 1 else frame
        zero = frame[frame["method"] == "zero-shot"].groupby("model")["value"].mean().to_dict()
        figures = {"few-shot": few_shot_curves(curves[curves["shots"] > 0], models, methods, zero)}
        for number, model in enumerate(models[1:], 1):
            figures[f"gain-per-data-set-{number}"] = gain_per_data_set(frame, model, models[0], methods[0], shots)
            figures[f"gain-against-examples-{number}"] = gain_against_examples(
                frame, model, models[0], methods[0], shots
            )
        paths = {self.model.out / f"{name}--{identity}.png": figure for name, figure in figures.items()}
        for path, figure in paths.items():
            save_figure(figure, path)
        console.print(f"figures: {', '.join(map(str, paths))}", highlight=False, soft_wrap=True)


def _few_shot_table(title: str, frame: pd.DataFrame, console: Console) -> None:
    """Methods by shots: the mean over sets, with the standard deviation over draws."""
    shots = sorted(k for k in frame["shots"].unique() if k)
    table = Table("method", *([f"{k} {'shot' if k == 1 else 'shots'}" for k in shots] or ["accuracy"]))
    for method in dict.fromkeys(frame["method"]):
        chosen = frame[frame["method"] == method]
        if method == "zero-shot":
            table.add_row(method, *[f"{chosen['value'].mean():.1f}"] * max(1, len(shots)))
            continue
        draws = chosen.groupby(["shots", "seed"])["value"].mean()
        table.add_row(method, *(str(summarise(draws[k])) for k in shots))
    draws = frame[frame["shots"] > 0]["seed"].nunique()
    over = f", mean ± standard deviation (n - 1) over {draws} draws of the shots" if draws > 1 else ""
    console.print(
        f"\n{title}: {' or '.join(frame['metric'].unique())} in percent{over}", highlight=False, soft_wrap=True
    )
    console.print(table)
    _trust_table(frame, int(shots[-1]) if shots else 0, console)


def _trust_table(frame: pd.DataFrame, shots: int, console: Console) -> None:
    """At the most shots: how far confidence is off, and what the conformal sets hold."""
    table = Table("method", "left-out accuracy", "calibration error", "coverage", "classes a set")
    for method in dict.fromkeys(frame["method"]):
        chosen = frame[(frame["method"] == method) & frame["shots"].isin((0, shots))]
        means = chosen.reindex(columns=list(TRUST_COLUMNS)).mean()  # what no method of these measures has no column
        missing = "" if method == "zero-shot" else TOO_FEW
        cells = [missing if pd.isna(means[name]) else f"{means[name]:.1f}" for name in TRUST_COLUMNS]
        table.add_row(method, *cells)
    console.print(
        f"trust{f' at {shots} shots' if shots else ''}, in percent; sets at an error rate of {100 * SET_ALPHA:g} %",
        highlight=False,
    )
    console.print(table)
