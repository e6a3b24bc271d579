"""Pools, models and cached comparisons of EFSA's studies at each scale."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from recollect.core.places import public_place
from recollect.core.types import Source
from recollect.core.validation import refuse
from recollect.efsa.options import EpisodeOptions
from recollect.evaluation.features import FeatureCache
from recollect.evaluation.pools import CAPTION_KINDS, CaptionedPool, PoolKind, open_pools
from recollect.evaluation.retrieval import DIRECTIONS, Comparison, PoolCaptions, compare_methods
from recollect.models import DualEncoder, load_model
from recollect.objectives import Base
from recollect.training.options import Data, Recipe
from recollect.training.recipes import RECIPES
from recollect_papers.efsa.cost import measured
from recollect_papers.efsa.methods import MethodOptions, search_methods
from recollect_papers.efsa.options import CaptionCorruption, RewardOptions, TuningOptions
from recollect_papers.efsa.rewording import corrupted_captions
from recollect_papers.runs import figures_of, run_folder, run_parallel, train_once
from recollect_papers.store import cached, content, content_key, file_content
from recollect_papers.study import Scale, StudyOptions, public_names

SCENES = "glyphs:scenes?turned=50"
WORLDS_BY_SCALE: Mapping[Scale, str] = {
    "smoke": "glyphs (drawn characters, not photographs), a few steps and queries: a test run",
    "small": (
        "glyphs (drawn characters, not photographs) at 32 px: look-alike scenes and other scenes; base models with "
        "tiny towers, trained here on other scenes; the judge of RLCF is a base model of another seed, no larger"
    ),
    "full": "your data and your models, with the paper's settings unless you name others",
}
_TEST: Mapping[Scale, tuple[str, ...]] = {
    "smoke": ("glyphs:hard?seed=101&groups=6", "glyphs:scenes?seed=102&size=30"),
    "small": ("glyphs:hard?seed=101&groups=200", "glyphs:scenes?seed=102&size=1200"),
    "full": (),
}  # fmt: skip
_PAPER_MODELS = {"softmax": "openai/clip-vit-base-patch16", "sigmoid": "google/siglip-so400m-patch14-384"}
_PAPER_TEACHER = "openai/clip-vit-large-patch14"


@dataclass(frozen=True)
class Captions:
    """Captions of a pool; ``kind`` as in `open_pools`."""

    label: str
    kind: str
    corruption: CaptionCorruption = field(default_factory=CaptionCorruption)


@dataclass(frozen=True)
class EfsaWorld:
    """Pools, models and settings of one scale.

    Attributes:
        world: description.
        data: sources of the test pools, one per domain.
        captions: captions of the pools; tables that do not compare captions use the first.
        models: base models, one per seed.
        teachers: RLCF's teacher for each base model; empty to leave out RLCF.
        split: split of the sources.
        queries: maximum number of texts per domain.
        methods: settings of all methods.
    """

    world: str
    data: tuple[str, ...]
    captions: tuple[Captions, ...]
    models: tuple[str, ...]
    teachers: tuple[str, ...]
    split: str
    queries: int | None
    methods: MethodOptions


def efsa_world(options: StudyOptions, loss: Base = "softmax") -> EfsaWorld:
    """Return the world of a scale, training missing base models.

    Args:
        loss: loss of the base models: CLIP's softmax or SigLIP's sigmoid.

    Raises:
        UserError: data or captions are missing at scale ``full``.
    """
    world = WORLDS_BY_SCALE[options.scale]
    if options.scale == "full":
        return _full(options, loss, world)
    number: int = options.seeds or {"smoke": 1, "small": 3}[options.scale]
    recipes = [base_recipe(options.scale, loss, seed) for seed in range(max(2, number))]
    models = trained(recipes, options)
    judges = models[1:] + models[:1]
    return EfsaWorld(
        world, _TEST[options.scale], _STAND_INS, tuple(models[:number]),
        tuple(judges[:number]), "test", {"smoke": 4, "small": 100}[options.scale], _METHODS[options.scale],
    )  # fmt: skip


def _full(options: StudyOptions, loss: Base, world: str) -> EfsaWorld:
    search = options.search
    hint = "Pass them with --search.captions (see `recollect evaluate retrieval --help`)."
    refuse(
        (not options.data, "--scale full searches your pools. Pass them with --data SOURCE ... (captions)."),
        (not search.captions, f"--scale full learns from captions of your pools. {hint}"),
    )
    labels = caption_labels(search.captions)
    captions = tuple(Captions(labels[kind], kind, search.corruption) for kind in search.captions)
    models = search.models or (_PAPER_MODELS[loss],)
    teacher = search.teacher or (None if search.models else _PAPER_TEACHER)
    methods = MethodOptions(search.episode, search.tuning, search.reward, search.full_learning_rate)
    teachers = () if teacher is None else (teacher,) * len(models)
    return EfsaWorld(world, options.data, captions, models, teachers, search.split, search.queries, methods)


def caption_labels(captions: Sequence[str]) -> dict[str, str]:
    """Return labels of captions for tables: file names, with parent folders where needed to make them unique."""
    names = public_names([file for kind in captions for file in kind.split(",")])
    return {kind: ",".join(names[file] for file in kind.split(",")) for kind in captions}


_STAND_INS = (
    Captions("stand-in: 10 % of words left out, 2 % wrong", "reworded", CaptionCorruption(0.1, 0.02)),
    Captions("stand-in: 25 % left out, 5 % wrong", "reworded", CaptionCorruption(0.25, 0.05)),
    Captions("stand-in: 50 % left out, 10 % wrong", "reworded", CaptionCorruption(0.5, 0.1)),
)
TRUE = Captions("Ground-truth", "true")

_METHODS: Mapping[Scale, MethodOptions] = {
    "smoke": MethodOptions(
        EpisodeOptions.paper(k=6, rank=4),
        TuningOptions(epochs=1),
        RewardOptions(sampled=4, candidates=16),
    ),
    # Chosen on validation pools of drawn scenes; on real images the choice was the same.
    "small": MethodOptions(
        EpisodeOptions(learning_rate=1.5e-3, direction="symmetric"),
        TuningOptions(learning_rate=1.5e-4),
        full_learning_rate=3e-6,
    ),
}


def base_recipe(scale: Scale, loss: Base, seed: int) -> Recipe:
    """Return the recipe of a base model: tiny towers trained on scenes of the glyph world."""
    recipe = RECIPES["siglip-tiny"]()
    recipe = replace(
        recipe,
        data=Data(captions=(SCENES,)),
        objective=replace(recipe.objective, base=loss),
        seed=seed,
        steps=1000,
        batch_size=256,
        log_every=50,
    )
    return replace(recipe, steps=6, batch_size=32) if scale == "smoke" else recipe


def trained(recipes: Sequence[Recipe], options: StudyOptions) -> list[str]:
    """Train recipes unless cached, and return the models' paths."""
    folders = [run_folder(recipe, options.out) for recipe in recipes]
    todo = [pair for pair in zip(recipes, folders, strict=True) if not (pair[1] / "model").exists()]
    run_parallel(train_once, todo, options.workers)
    return [str(folder / "model") for folder in folders]


@dataclass(frozen=True)
class SearchRun:
    """A comparison of methods on pools.

    Attributes:
        pool: one pool per source, or all sources merged.
        depths: the k of R@k.
    """

    methods: tuple[str, ...]
    options: MethodOptions
    captions: Captions
    pool: PoolKind
    data: tuple[str, ...]
    depths: tuple[int, ...] = (1, 5, 10)


Figures = list[Any]
"""Addresses and values: recall by ``method``, ``domain`` and ``measure``; costs per query by method and measure."""


def searched(search: SearchRun, where: EfsaWorld, options: StudyOptions) -> list[Figures]:
    """Return the figures of each base model, cached."""
    return [_searched(search, where, seed, options.out) for seed in range(len(where.models))]


def _searched(search: SearchRun, where: EfsaWorld, seed: int, out: Path) -> Figures:
    encoder = encoder_of(where.models[seed])
    teacher = encoder_of(where.teachers[seed]) if "rlcf" in search.methods and where.teachers else None
    models = [encoder.fingerprint, teacher and teacher.fingerprint]
    name = content_key(asdict(search), where.queries, where.split, models, _content(search))
    comparison = Comparison(
        search.methods, search.options.episode, where.queries, depths=search.depths,
        known=search_methods(search.options, teacher), measure=measured,
    )  # fmt: skip

    def compute() -> Figures:
        about: dict[str, Any] = {"model": public_place(where.models[seed]), "cache": FeatureCache(out / "features")}
        results = [compare_methods(encoder, pool.task, pool.captions, comparison, **about)
                   for pool in pools(search, where)]  # fmt: skip
        found: dict[tuple[tuple[str, str], ...], list[float]] = {}
        for address, value in figures_of(results):
            key = {name: each for name, each in address.items() if name not in {"set", "direction"}}
            if address.get("direction", DIRECTIONS[0]) == DIRECTIONS[0] and key.get("domain") not in _SUMMARIES:
                found.setdefault(tuple(key.items()), []).append(value)
        return [[dict(address), float(np.mean(values))] for address, values in found.items()]

    return cached(out / "searches" / f"{name}.json", compute)


_SUMMARIES = ("all", "mean of domains")


@lru_cache(maxsize=6)
def encoder_of(model: str) -> DualEncoder:
    """Load a base model (cached)."""
    encoder = load_model(model)
    assert isinstance(encoder, DualEncoder)
    return encoder.eval()


def pools(search: SearchRun, where: EfsaWorld) -> list[CaptionedPool]:
    """Return the pools of a search (cached)."""
    return _pools(search.data, search.pool, search.captions, where.split, tuple(_content(search)))


def _content(search: SearchRun) -> list[str]:
    """Return digests of the pools and captions of a search."""
    files = [word for word in search.captions.kind.split(",") if word.endswith(".jsonl")]
    return [*map(content, search.data), *map(file_content, files)]


@lru_cache(maxsize=4)
def _pools(
    data: tuple[str, ...], pool: PoolKind, captions: Captions, split: str, content: tuple[str, ...]
) -> list[CaptionedPool]:
    def reworded(source: Source) -> PoolCaptions:
        return corrupted_captions(source, captions.corruption)

    kinds = {**CAPTION_KINDS, "reworded": reworded}
    return open_pools(data, pool, captions.kind, kinds=kinds, split=split)
