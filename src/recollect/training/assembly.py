"""The parts of a run, assembled from a recipe: model, objective and batches."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from recollect.core.content import full_hash, modification_hash
from recollect.core.errors import UserError
from recollect.core.progress import note
from recollect.core.seeding import derive_seed, seed_default_generators
from recollect.core.types import Batch, Kind, Source
from recollect.core.validation import refuse
from recollect.core.words import counted
from recollect.data.batches.mixture import DataMix
from recollect.data.batches.stream import CONTEXT_VIEW, BatchStream
from recollect.data.sources import open_source, split_of
from recollect.data.sources.address import distinct_names
from recollect.data.sources.subset import corpus
from recollect.data.sources.table import TableSource
from recollect.data.transforms import ImageTransform
from recollect.models import PRESETS, DualEncoder, TransformersEncoder, build_model, load_model
from recollect.models.transformers.families import TextTokens
from recollect.objectives import ContextObjective, ContrastiveObjective, Objective
from recollect.training.adapted import AdaptedTowers, add_adapters
from recollect.training.card import DUAL_ENCODER, Subject
from recollect.training.checkpoints import CONTENT, MODIFIED, WHOLE_CONTENT, Facts
from recollect.training.checks import OBJECT_PREFIX, check_without_data, kind_errors, model_errors, warn_unused_options
from recollect.training.locked import LockedSource, lock_source
from recollect.training.locked_towers import LockedTowers, TextFeatures
from recollect.training.options import FIRST_BIAS, CopiesBy, Data, Model, ObjectiveOptions, Recipe
from recollect.training.ranks import ProcessRanks, check_agreement, first_then_others
from recollect.training.step import Inputs, Towers

Feed = Callable[[int, int], Iterator[Inputs]]
"""Maps a range of steps to the inputs of each step."""

_SECOND_VIEW = 1
_MAX_WORKERS = 8
_SHORT_RUN = 20_000  # examples; starting a process takes as long as reading a few hundred
_MAX_TEXTS = 1_000_000  # texts to train a tokenizer on; more do not change the result


@dataclass(frozen=True)
class Parts:
    """Model, objective and data of a run.

    Attributes:
        model: a dual encoder.
        objective: maps raw embeddings to a loss and a report.
        feed: maps a range of steps to their inputs; a step's inputs are a function of the seed and the step.
        seen: maps a number of steps to the number of samples read from each source in the first steps.
        data: facts about all data of the run; saved in checkpoints, and a run resumes only if they still hold.
        subject: subject of the model card.
    """

    model: Towers
    objective: Objective
    feed: Feed
    seen: Callable[[int], Mapping[str, int]]
    data: Facts = field(default_factory=dict)
    subject: Subject = DUAL_ENCODER


def object_spec(source: Source) -> str:
    """Return the spec, in a recipe, of a source that is a Python object: its name and fingerprint."""
    return f"{OBJECT_PREFIX}{source.name}@{source.fingerprint}"


def assemble_recipe(
    recipe: Recipe,
    process: ProcessRanks,
    saved_model: Path | None,
    objects: Mapping[str, Source] = MappingProxyType({}),
    objective: Objective | None = None,
) -> Parts:
    """Open the sources, and build or open the model.

    Args:
        process: this process.
        saved_model: folder of the model to resume with; None starts from ``recipe.model``.
        objects: sources that are Python objects, by their spec in the recipe (`object_spec`).
        objective: replaces the recipe's objective.

    Raises:
        UserError: bad data, or a Python object of the recipe is missing.
    """
    data, needs = recipe.data, None if objective is None else objective.needs
    check_without_data(recipe, process, resumed=saved_model is not None, needs=needs)
    sources = open_sources(data, objects)
    files = [(spec, source) for (spec, _), source in zip(data.specs, sources, strict=True) if spec not in objects]
    names = distinct_names([spec for spec, _ in files], [source.name for _, source in files])
    for (_, source), name in zip(files, names, strict=True):
        source.name = name
    refuse(*kind_errors(recipe, [source.kind for source in sources], needs))
    _mixed(sources, data)  # raise errors before anything is fitted or embedded
    facts = _data_facts(data, sources)
    check_agreement({name: _in_words(known) for name, known in facts.items()})
    if saved_model is not None and recipe.model.lora is None:  # LoRA's checkpoints have only the adapters
        model = load_model(saved_model, "cpu")
    else:
        model = start_model(recipe.model, sources, recipe.seed)
    if process.first:
        warn_unused_options(recipe, sources, model, process, needs)
    check_agreement({"the tokenizer or the shape of the model": model.structure_fingerprint})
    objective = objective or build_objective(recipe.objective, model, recipe.seed)
    crops = training_transform(model, data)
    towers: DualEncoder | LockedTowers | AdaptedTowers = model
    if recipe.model.locked != "none":
        towers, sources = lock_towers(model.to(process.device), sources, recipe, crops)
    if recipe.checkpoint_activations:
        model.checkpoint_activations()
    if recipe.model.freeze != "none":
        model.freeze(recipe.model.freeze)
    if recipe.model.lora is not None:
        towers = add_adapters(model, recipe.model, recipe.seed, saved_model)
    if process.first and (recipe.chunk or process.size > 1) and model.normalizes_by_batch:
        rows = "one chunk" if recipe.chunk else "one process's rows"
        note(f"{recipe.model.start}: batch norm statistics cover {rows} at a time, so results depend on their number")
    stream = BatchStream(
        _mixed(sources, data),
        recipe.batch_size,
        crops,
        seed=recipe.seed,
        rank=process.rank,
        world_size=process.size,
        broken_share=data.broken_share,
    )
    if process.first:
        for source, count in zip(sources, stream.max_samples(recipe.steps), strict=True):
            if count > len(source):
                rows = f"{counted(len(source), 'sample')} for {count:,} rows of a batch"
                note(f"{source.name}: {rows}; copies are not negatives of each other")
    feed = _feed(stream, towers, objective.needs, recipe, process)
    return Parts(towers, objective, feed, stream.seen, facts)


def _mixed(sources: tuple[Source, ...], data: Data) -> DataMix:
    return DataMix(sources, data.weights or None, data.sampling, data.merge_classes)


def open_sources(data: Data, objects: Mapping[str, Source] = MappingProxyType({})) -> tuple[Source, ...]:
    """Open the sources of a recipe, in its order.

    Args:
        objects: open sources, by their spec.

    Raises:
        UserError: a source cannot be opened, or a Python object is missing.
    """
    return tuple(objects[spec] if spec in objects else _open(spec, kind, data) for spec, kind in data.specs)


def _data_facts(data: Data, sources: Sequence[Source]) -> Facts:
    """Return facts about all data of the run: number of samples, and a digest of the content."""
    facts: dict[str, Mapping[str, int | str]] = {}
    for (spec, _), source in zip(data.specs, sources, strict=True):
        counted = {} if source.endless else {"samples": len(source)}
        content = source.content
        facts[spec] = counted if content is None else {**counted, CONTENT: content, **_large_facts(source)}
    return facts


def _large_facts(source: Source) -> dict[str, str]:
    """Return digests of large files, whose content digest covers only parts: times and, if feasible, all bytes."""
    if not (files := source.sampled_files):
        return {}
    whole = first_then_others(partial(full_hash, files, source.name))
    return {MODIFIED: modification_hash(files)} | ({} if whole is None else {WHOLE_CONTENT: whole})


def _in_words(known: Mapping[str, int | str]) -> str:
    return ", ".join(f"{fact} {value}" for fact, value in known.items() if fact != MODIFIED)


def _open(spec: str, kind: Kind | None, data: Data) -> Source:
    name = spec.removeprefix(OBJECT_PREFIX).rpartition("@")[0]
    missing = f"{name}: a Python object of the program that trained. Pass it to train(sources=[...]) again."
    refuse((spec.startswith(OBJECT_PREFIX), missing))
    split = data.split if split_of(spec) is None else None  # a split in the address takes precedence
    source = open_source(spec, split=split, kind=kind, columns=data.columns(kind), lost_share=data.broken_share)
    if isinstance(source, TableSource) and source.kind == "caption" and source.columns.caption is None:
        columns = ", ".join(map(repr, source.table.column_names))
        hint = "Name a column with --data.caption-column."
        raise UserError(f"{spec}: no captions and no classes; its columns are {columns}. {hint}")
    return source


def workers_of(recipe: Recipe, sources: Sequence[Source], processes: int) -> int:
    """Return the number of data workers for each of this machine's training ``processes``."""
    if recipe.workers is not None:
        return recipe.workers
    short = recipe.steps * recipe.batch_size < _SHORT_RUN
    if short or all(source.makes_batches for source in sources):
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(0, min(_MAX_WORKERS, cores // max(1, processes) - 1))


def start_model(options: Model, sources: tuple[Source, ...], seed: int) -> DualEncoder:
    """Return the model to train: a pair of towers, a checkpoint, or a new model of a preset.

    A preset's tokenizer is trained on the sources' texts unless the options set one.
    """
    if options.text is not None:
        from recollect.models.pairing import pair_towers

        model: DualEncoder = pair_towers(options.start, options.text, width=options.width, seed=seed)
        refuse(*model_errors(options, model))
    elif options.start not in PRESETS:
        model = load_model(options.start, "cpu")
        refuse(*model_errors(options, model))
    else:
        texts = None
        tokenizer = None if PRESETS[options.start].own_vocabulary else options.tokenizer
        if tokenizer is None:
            texts = [text for source in sources for text in corpus(source, _MAX_TEXTS // len(sources))]
        model = build_model(options.start, texts=texts, tokenizer=tokenizer, seed=seed)
    for kind in dict.fromkeys(options.prefixes):
        model.add_prefixes((kind,), length=options.prefixes.count(kind), seed=seed)
    return model


def build_objective(
    options: ObjectiveOptions, model: DualEncoder, seed: int = 0
) -> ContrastiveObjective | ContextObjective:
    """Build the objective, with the model's temperature and bias unless the options set them; ``seed`` is for heads."""
    scale = options.scale or model.scale or 10.0
    bias = next(value for value in (options.bias, model.bias, FIRST_BIAS) if value is not None)
    if options.context is None:
        return ContrastiveObjective(options.base, scale=scale, bias=bias, smoothing=options.smoothing)
    with torch.random.fork_rng(devices=[]):
        seed_default_generators(derive_seed(seed, "objective"))
        return options.context.objective(options.base, model.width, scale, bias)


def training_transform(model: DualEncoder, data: Data) -> ImageTransform:
    """Return the model's training transform with the recipe's crop and flip, even if the model crops nothing."""
    transform = model.training_transform()
    if data.crop is not None:
        transform = replace(transform, training=True, scale=(data.crop, 1.0))
    elif data.flip and not transform.training:
        transform = replace(transform, training=True, scale=(1.0, 1.0), ratio=(1.0, 1.0))
    return replace(transform, flip=data.flip)


def lock_towers(
    model: DualEncoder, sources: tuple[Source, ...], recipe: Recipe, crops: ImageTransform
) -> tuple[LockedTowers, tuple[LockedSource, ...]]:
    """Compute the features of frozen parts (``recipe.model.locked``); return the towers and sources that use them."""
    views, share = recipe.model.views, recipe.data.broken_share
    # The first process embeds; other processes on its machine read the cached files.
    locked = tuple(
        first_then_others(partial(lock_source, model, source, views=views, crops=crops, broken_share=share))
        for source in sources
    )
    model.lock("image")
    texts = None
    if recipe.model.locked == "both":
        texts = first_then_others(partial(TextFeatures, model, locked))
        model.lock("text")
    return LockedTowers(model, texts), locked


def _feed(
    stream: BatchStream,
    model: DualEncoder | LockedTowers | AdaptedTowers,
    needs: frozenset[str],
    recipe: Recipe,
    process: ProcessRanks,
) -> Feed:
    # Whole batches are normalized on the device. With chunks, the batch stays on the CPU as bytes.
    raw = recipe.chunk is not None
    device = None if raw else process.device
    workers = workers_of(recipe, stream.mixture.sources, int(os.environ.get("LOCAL_WORLD_SIZE", process.size)))
    transfer: Mapping[str, Any] = {"device": device, "pin": process.device.type == "cuda", "raw": raw}

    def duplicate_ids(batch: Batch) -> Tensor:
        return duplicate_ids_of(batch, recipe.data.copies)

    def feed(start: int, stop: int) -> Iterator[Inputs]:
        def others(first: int, last: int, view: int, needed: bool) -> Iterator[Batch | None]:
            return stream.iterate(first, last, workers, view=view, **transfer) if needed else repeat(None)

        batches = stream.iterate(start, stop, workers, tokenize=row_tokenizer(model) if workers else None, **transfer)
        views = others(start, stop, _SECOND_VIEW, "views" in needs)
        contexts = others(start + 1, stop + 1, CONTEXT_VIEW, "context" in needs)
        for batch, view, context in zip(batches, views, contexts, strict=False):
            yield Inputs(
                batch.images,
                model.tokenize(batch.texts, batch.kinds) if batch.tokens is None else batch.tokens,
                labels=batch.labels if "labels" in needs else None,
                views=None if view is None else view.images,
                context=None if context is None else context.images,
                duplicate_ids=duplicate_ids(batch),
                context_duplicate_ids=None if context is None else duplicate_ids(context),
                prepare=stream.normalized if raw else None,
            )

    return feed


def row_tokenizer(model: DualEncoder | LockedTowers | AdaptedTowers) -> TextTokens | None:
    """Return the tokenizer for the data workers; None if a text's tokens depend on the whole batch."""
    if isinstance(model, LockedTowers) and model.texts is not None:
        return None
    encoder = model if isinstance(model, DualEncoder) else model.encoder
    tokens = encoder.text_tokens if isinstance(encoder, TransformersEncoder) else None
    return tokens if tokens is not None and tokens.by_row else None


def duplicate_ids_of(batch: Batch, copies: CopiesBy) -> Tensor:
    """Return ids shared by copies of a sample, derived from its id and optionally its caption; int64 (n, columns).

    They are equal in every process. With 63 bits, two of a billion samples collide about once in ten billion steps.
    """
    columns = [[derive_seed("copy", f"{source}\0{id}") for source, id in zip(batch.sources, batch.ids, strict=True)]]
    if copies == "captions":
        columns.append([derive_seed("copy", "text\0" + " ".join(text.lower().split())) for text in batch.texts])
    return torch.tensor(columns).T.contiguous()
