"""Embed pairs, find their neighbors and train a fusion: what `recollect train reco` runs."""

from dataclasses import replace
from typing import Any

from recollect.cli.defaults import split_for
from recollect.cli.parser import options_of, settings_text
from recollect.cli.train_reco import TrainReco
from recollect.core.files import atomic_path
from recollect.core.paths import check_writable
from recollect.core.progress import output
from recollect.core.validation import refuse
from recollect.data.sources import open_source
from recollect.index import Index
from recollect.models.parts import check_model_place
from recollect.reco.learning import FUSION_PRESETS, FusionRecipe, train_fusion
from recollect.reco.neighbors import check_k
from recollect.reco.newness import Newness
from recollect.reco.pairs import embed_pairs
from recollect.training.options import Data, Model, ObjectiveOptions
from recollect.training.run_folder import check_free

_SAME = (
    "index", "optimizer", "batch_size", "chunk", "seed", "log_every", "checkpoint_every", "k", "max_score", "limit",
    "epochs",
)  # fmt: skip
"""Options that are fields of the recipe."""


def run_reco(options: TrainReco) -> None:
    """Embed, look up, train."""
    if options.model is not None:
        check_model_place(options.model)
    recipe = recipe_of(options)
    replace(recipe, fusion=replace(recipe.fusion, width=1), steps=1).check()
    check_writable(options.out, "--out")
    check_free(options.out, options.resume)
    index = Index.open(options.index)  # what is wrong with it should show before anything is embedded
    check_k(index, options.k)
    encoder, name = index.model.open(options.model, options.device, option="MODEL")
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


def recipe_of(options: TrainReco) -> FusionRecipe:
    """The recipe that these options describe."""
    preset = FUSION_PRESETS[options.preset]()
    start = options.start or preset.fusion.start
    same: dict[str, Any] = {name: getattr(options, name) for name in _SAME}
    return replace(
        preset,
        model=Model(start=options.model or ""),
        data=Data(sources=options.data, split=options.split),
        objective=ObjectiveOptions(base="softmax"),
        fusion=replace(preset.fusion, search=options.search, read=options.read, start=start),
        mask=options.mask or preset.mask,
        newness=Newness(options.newness) if options.newness else preset.newness,
        **same,
    )
