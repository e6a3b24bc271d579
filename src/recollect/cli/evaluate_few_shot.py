"""``recollect evaluate few-shot``: all methods, shots and draws, for models or for embeddings from files."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from recollect.classifiers.heads.methods import FEW_SHOT_METHODS, PAPER_METHODS
from recollect.classifiers.heads.trust import TOO_FEW_EXAMPLES
from recollect.classifiers.tuning import TUNING_METHODS
from recollect.cli.evaluate import DataOptions, FeatureOptions, FewShot
from recollect.cli.evaluations import check_models, evaluate_each, finish, open_data, require_data
from recollect.cli.parser import say, show_table, warn_unused
from recollect.core.errors import UserError
from recollect.core.files import read_json
from recollect.core.types import TEXT_SCALE, Encoder
from recollect.core.validation import check_number, refuse
from recollect.core.words import counted
from recollect.data.sources.address import distinct_names
from recollect.evaluation.few_shot import few_shot, with_enough_examples
from recollect.evaluation.few_shot_protocol import SET_ALPHA, TRUST_COLUMNS, Protocol, ShortClasses
from recollect.evaluation.own_features import (
    EMBEDDED_FILE,
    VectorEncoder,
    divided,
    read_arrays,
    read_vectors,
    vector_task,
)
from recollect.evaluation.plots import few_shot_curves, gain_per_data_set, save_figure
from recollect.evaluation.results import Result, joint_identity, summarize
from recollect.evaluation.tables import gain_over_draws, sample_efficiency, tidy
from recollect.evaluation.tasks.classification import ClassificationTask, Division
from recollect.evaluation.tuned import TuningRequest

_DEFAULT_METHODS = ("zero-shot", *PAPER_METHODS)
_DEFAULT_SHOTS = (1, 2, 4, 8, 16, 32)


def _open_features(options: FeatureOptions, data: DataOptions) -> list[tuple[VectorEncoder, ClassificationTask]]:
    """Open embeddings from files as tasks, each with an encoder that returns them.

    Raises:
        UserError: a file is missing or does not match the others.
    """
    if options.scale is not None:
        check_number("--scale", options.scale, above=0)
    division = Division(data.support, data.query, data.within)
    if {path.suffix for path in options.features} == {".npy"}:
        unpaired = len(options.features) > 2 or len(options.feature_labels) != len(options.features)
        refuse(
            (unpaired, "--features: give one or two .npy files, and as many --feature-labels"),
            (_repeated(options), f"--features {options.features[0]}: given twice; test rows would also be examples."),
        )
        parts = [read_arrays(*pair) for pair in zip(options.features, options.feature_labels, strict=True)]
        pair = (parts[0], parts[1]) if len(parts) == 2 else divided(parts[0], options.features[0], division)
        opened = [(options.features[0].stem, options.features[0], pair)]
    elif {path.suffix for path in options.features} == {".parquet"}:
        repeated = _repeated(options)
        refuse((repeated, f"--features {', '.join(map(str, repeated))}: given twice. Give each file once."))
        names = distinct_names([*map(str, options.features)], [path.stem for path in options.features])
        opened = [(name, path, divided(read_vectors(path, data.columns.label), path, division))
                  for name, path in zip(names, options.features, strict=True)]  # fmt: skip
    else:
        raise UserError("--features: give .parquet files, or one or two .npy files with their --feature-labels")
    tasks = []
    for name, path, pair in opened:
        record = read_json(file) if (file := path.with_name(EMBEDDED_FILE)).exists() else {}
        scale = options.scale or record.get("scale", TEXT_SCALE)
        encoder, task = vector_task(name, pair, options.texts, data.columns.label, scale)
        tasks.append((encoder, replace(task, metric=record.get("metric", task.metric))))
    return tasks


def _repeated(options: FeatureOptions) -> list[Path]:
    """Return the files that are given more than once."""
    places = [path.resolve() for path in options.features]
    return [path for number, path in enumerate(options.features) if places[number] in places[:number]]


def run_few_shot(options: FewShot) -> None:
    """Evaluate, print, plot and write."""
    if not options.methods:
        options = replace(options, methods=_DEFAULT_METHODS)
    _warn_unused(options)
    if not options.own.features:
        require_data(options.data)
    check_models(options.model, "few-shot")
    results, left_out = _of_features(options) if options.own.features else _of_models(options)
    frame = tidy(results)
    sets = list(dict.fromkeys(frame["data"]))
    for name in dict.fromkeys(result.model for result in results):
        own = frame[frame["model"] == name]
        for data in sets:
            _few_shot_table(f"{name} on {data}", own[own["data"] == data])
        if len(sets) > 1:
            _few_shot_table(f"{name}, mean of {len(sets)} sets", own)
    finish(options.model, results, left_out)
    methods = [name for name in dict.fromkeys(frame["method"]) if name != "zero-shot"]
    if frame["shots"].max() > 0:
        _print_gains(frame, methods)
        if options.model.out is not None and options.model.out.suffix != ".json":
            _plot(frame, methods, options.model.out, joint_identity(results))


def _warn_unused(options: FewShot) -> None:
    """Warn of options without effect."""
    if not any(name in TUNING_METHODS for name in options.methods):
        why = f"only used by methods that tune the model: {', '.join(TUNING_METHODS)}"
        warn_unused(options, "effort", "flip", "held_out", why=why)
    if not options.own.features:
        warn_unused(options.own, why="only used with --features")
        return
    why = "--features are embedded already"
    warn_unused(options.data, "copies", "templates", why=why)
    warn_unused(options.data.columns, "class_name", "image", why=why, suffix="-column")
    warn_unused(options.model, "cache", "device", "prefix", why=why)
    warn_unused(options.model.fusion_options, why=why)
    arrays = all(path.suffix == ".npy" for path in options.own.features)
    if not arrays:
        warn_unused(options.own, "feature_labels", why="Parquet files contain their labels")
    elif options.own.texts is None or options.own.texts.suffix == ".npy":
        warn_unused(options.data.columns, "label", why=".npy files have no columns", suffix="-column")
    if arrays:
        warn_unused(options.data, "support", "query", "within", why=".npy files have no splits; give a second file")


def _of_features(options: FewShot) -> tuple[list[Result], tuple[str, ...]]:
    tunes = any(name in TUNING_METHODS for name in options.methods)
    others = options.model.models or options.data.data or options.data.suite or tunes
    refuse((others, "--features: cannot be combined with a model, --data or methods that tune the model."))
    protocol = _protocol(options)
    if options.own.texts is None and "zero-shot" in protocol.methods:
        explicit = "zero-shot" in options.methods and options.methods != _DEFAULT_METHODS
        refuse((explicit, "--methods zero-shot: needs class texts. Give them with --texts FILE."))
        protocol = replace(protocol, methods=tuple(name for name in protocol.methods if name != "zero-shot"))
    sets = _open_features(options.own, options.data)
    protocol = _reachable(options, protocol, [task for _, task in sets])
    seed = options.model.seed
    results = []
    for encoder, task in sets:
        measured = replace(protocol, metric=task.metric)
        task = _without_small(options, task, protocol)
        results.append(few_shot(encoder, task, measured, model="own embeddings", seed=seed))
    return results, ()


def _of_models(options: FewShot) -> tuple[list[Result], tuple[str, ...]]:
    tuned = tuple(dict.fromkeys(name for name in options.methods if name in TUNING_METHODS))
    protocol, tuning = _protocol(options), TuningRequest(tuned, options.effort, options.flip, options.held_out)
    opened = open_data(options.data, "few-shot")
    protocol = _reachable(options, protocol, opened.tasks)
    tasks = [_without_small(options, task, protocol) for task in opened.tasks]

    def measured(encoder: Encoder, task: ClassificationTask, **given: Any) -> Result:
        return few_shot(encoder, task, replace(protocol, metric=task.metric), tuning=tuning, **given)

    return evaluate_each(options.model, [(task, task.query) for task in tasks], measured), opened.left_out


def _protocol(options: FewShot) -> Protocol:
    check_number("--seeds", options.seeds, least=1)
    names = {"all": tuple(FEW_SHOT_METHODS), "paper": PAPER_METHODS}
    reading = [name for name in options.methods if name not in TUNING_METHODS]
    methods = tuple(dict.fromkeys(name for each in reading for name in names.get(each, (each,))))
    shots = tuple(sorted(set(options.shots))) if options.shots else _DEFAULT_SHOTS
    short: ShortClasses = "all" if options.small_classes == "all" else "refuse"
    return Protocol(methods, shots, tuple(range(options.seeds)), short_classes=short)


def _without_small(options: FewShot, task: ClassificationTask, protocol: Protocol) -> ClassificationTask:
    return with_enough_examples(task, protocol.shots[-1]) if options.small_classes == "drop" else task


def _reachable(options: FewShot, protocol: Protocol, tasks: Sequence[ClassificationTask]) -> Protocol:
    """Drop default numbers of shots that exceed the size of the smallest class."""
    if options.shots is not None or options.small_classes != "refuse":
        return protocol
    fewest = min(int(np.bincount(task.support.labels, minlength=len(task.class_names)).min()) for task in tasks)
    shots = tuple(k for k in protocol.shots if k <= fewest)
    if not shots or shots == protocol.shots:
        return protocol
    say(f"shots up to {shots[-1]}: the smallest class has {counted(fewest, 'example')}")
    return replace(protocol, shots=shots)


def _print_gains(frame: pd.DataFrame, methods: list[str]) -> None:
    """Print the gains of the other models over the first."""
    models, every = list(dict.fromkeys(frame["model"])), sorted({int(k) for k in frame["shots"] if k > 0})
    for model in models[1:]:
        rows = []
        for method in methods:
            saved = sample_efficiency(frame, model, models[0], method)
            cells = [gain_over_draws(frame, model, models[0], method, k).signed() for k in every]
            rows.append((method, *cells, f"{saved} ({saved.accuracy:.1f} %)"))
        sets, draws = frame["data"].nunique(), frame[frame["shots"] > 0]["seed"].nunique()
        of = f"mean of {sets} sets" if sets > 1 else f"{frame['data'].iloc[0]}"
        say("")
        say(f"{model} minus {models[0]}, {of}, ± over {draws} common draws")
        show_table(("method", *(counted(k, "shot") for k in every), "fewer shots by"), rows)


def _plot(frame: pd.DataFrame, methods: list[str], out: Path, identity: str) -> None:
    """Plot accuracy over shots and the gains of the other models over the first."""
    models, shots = list(dict.fromkeys(frame["model"])), int(frame["shots"].max())
    # With a single training run, error bars are over draws of the support.
    curves = frame.assign(training_seed=frame["seed"]) if frame["training_seed"].nunique() == 1 else frame
    zero = frame[frame["method"] == "zero-shot"].groupby("model")["value"].mean().to_dict()
    figures = {"few-shot": few_shot_curves(curves[curves["shots"] > 0], models, methods, zero)}
    for number, model in enumerate(models[1:], 1):
        figures[f"gain-per-data-set-{number}"] = gain_per_data_set(frame, model, models[0], methods[0], shots)
    paths = {out / f"{name}--{identity}.png": figure for name, figure in figures.items()}
    for path, figure in paths.items():
        save_figure(figure, path)
    say(f"figures: {', '.join(map(str, paths))}")


def _few_shot_table(title: str, frame: pd.DataFrame) -> None:
    """Print accuracy by method and shots: the mean over data sets, and the standard deviation over draws."""
    shots, rows = sorted(k for k in frame["shots"].unique() if k), []
    for method in dict.fromkeys(frame["method"]):
        chosen = frame[frame["method"] == method]
        if method == "zero-shot":
            rows.append((method, *[f"{chosen['value'].mean():.1f}"] * max(1, len(shots))))
            continue
        draws = chosen.groupby(["shots", "seed"])["value"].mean()
        rows.append((method, *(str(summarize(draws[k])) for k in shots)))
    draws = frame[frame["shots"] > 0]["seed"].nunique()
    over = f", mean ± standard deviation (n - 1) over {draws} draws of the shots" if draws > 1 else ""
    say("")
    say(f"{title}: {' or '.join(frame['metric'].unique())} in percent{over}")
    show_table(("method", *([counted(int(k), "shot") for k in shots] or ["accuracy"])), rows)
    _trust_table(frame, int(shots[-1]) if shots else 0)


def _trust_table(frame: pd.DataFrame, shots: int) -> None:
    """Print calibration and conformal sets at the largest number of shots."""
    rows = []
    for method in dict.fromkeys(frame["method"]):
        chosen = frame[(frame["method"] == method) & frame["shots"].isin((0, shots))]
        means = chosen.reindex(columns=list(TRUST_COLUMNS)).mean()  # no column if no method measures it
        missing = "" if method == "zero-shot" else TOO_FEW_EXAMPLES
        cells = [missing if pd.isna(means[name]) else f"{means[name]:.1f}" for name in TRUST_COLUMNS]
        rows.append((method, *cells))
    at = f" at {shots} shots" if shots else ""
    say(f"trust{at}, in percent; sets at an error rate of {100 * SET_ALPHA:g} %")
    say("(methods choose settings by left-out accuracy, so it can be slightly too high)")
    show_table(("method", "left-out accuracy", "calibration error", "coverage", "classes per set"), rows)
