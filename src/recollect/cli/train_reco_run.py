"""Embed pairs, find their neighbours and train a fusion: what `recollect train reco` runs."""

from dataclasses import replace

from recollect.cli.defaults import split_for
from recollect.cli.parser import options_of, settings_text, warn_unused
from recollect.cli.train_reco import TrainReco
from recollect.core.files import atomic_path
from recollect.core.paths import check_writable
from recollect.core.progress import output
from recollect.core.validation import refuse
from recollect.data.sources import open_source
from recollect.index import Index
from recollect.models.parts import check_model_place
from recollect.reco.block import FusionSettings
from recollect.reco.learning import FUSION_PRESETS, FusionRecipe, train_fusion
from recollect.reco.neighbours import check_k
from recollect.reco.newness import Newness
from recollect.reco.pairs import embed_pairs
from recollect.training.options import Data, Model, ObjectiveOptions
from recollect.training.run_folder import check_free


def run_reco(options: TrainReco) -> None:
    """Embed, look up, train."""
    _check(options)
    recipe = recipe_of(options)
    replace(recipe, fusion=replace(recipe.fusion, width=1), steps=1).check()
    check_writable(options.out, "--out")
    check_free(options.out, options.resume)
    index = Index.open(options.index)  # what is wrong with it should show before anything is embedded
    check_k(index, options.k)
    encoder, name = index.open_model(options.model, options.device, option="MODEL")
    recipe = replace(recipe, model=Model(start=name))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(options.out.with_name(f"{options.out.name}.toml")) as unfinished:
        unfinished.write_text(settings_text(list(options_of(TrainReco, options))), encoding="utf-8")
    sources = tuple(open_source(spec, split=split_for(spec, options.split)) for spec in options.data)
    unlimited = options.limit is None and any(source.endless for source in sources)
    refuse((unlimited, "a generated source is endless. Set the number of pairs with --limit N."))
    pairs = embed_pairs(encoder, sources, options.limit, recipe.data.broken_share)
    model = train_fusion(recipe, encoder, pairs, options.out, resume=options.resume, device=options.device)
    output().print(f"fusion: {model}\nmetrics: {options.out / 'metrics.jsonl'}", highlight=False, soft_wrap=True)


def _check(options: TrainReco) -> None:
    """Warn of options without effect, and reject models that are missing."""
    if options.kind == "mlp":
        why = "--kind mlp reads no index"
        warn_unused(options, "k", "search", "read", "start", "max_score", "score_of", why=why)
    newness = options.newness or FUSION_PRESETS[options.preset]().newness.kind
    if newness == "none":
        warn_unused(options, "newness_strength", "newness_share", why="there is no simulated newness")
    if options.model is not None:
        check_model_place(options.model)


def recipe_of(options: TrainReco) -> FusionRecipe:
    """The recipe that these options describe."""
    preset = FUSION_PRESETS[options.preset]()
    newness = Newness(options.newness or preset.newness.kind, options.newness_strength, options.newness_share)
    start = options.start or preset.fusion.start
    return replace(
        preset,
        model=Model(start=options.model or ""),
        data=Data(sources=options.data, split=options.split),
        objective=ObjectiveOptions(base="softmax", scale=options.scale),
        optimiser=options.optimiser,
        batch_size=options.batch_size,
        chunk=options.chunk,
        seed=options.seed,
        log_every=options.log_every,
        checkpoint_every=options.checkpoint_every,
        fusion=FusionSettings(1, options.kind, options.search, options.read, options.modalities, start),
        index=options.index,
        terms=options.terms,
        k=options.k,
        max_score=options.max_score,
        score_of=options.score_of or preset.score_of,
        mask=options.mask or preset.mask,
        newness=newness,
        limit=options.limit,
        epochs=options.epochs,
    )
