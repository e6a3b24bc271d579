"""Encoders that read an index, by the options of `recollect.cli.fusion_options`."""

from dataclasses import replace

from recollect.cli.fusion_options import MEAN, FusionOptions
from recollect.core.places import public_place
from recollect.core.progress import output
from recollect.core.types import Encoder, Source
from recollect.core.validation import refuse
from recollect.evaluation.features import FeatureCache, image_features
from recollect.evaluation.results import Result
from recollect.index import Index
from recollect.reco.block import FusionModule, FusionSettings
from recollect.reco.encoder import RetrievalEnhancedEncoder


def reading(
    options: FusionOptions, encoder: Encoder, tested: Source | None = None, cache: FeatureCache | None = None
) -> Encoder | RetrievalEnhancedEncoder:
    """The encoder itself, or one that reads the index.

    Args:
        encoder: the frozen model.
        tested: images whose near-duplicates in the index are left out if --near is given; their number is printed.
        cache: of the model's own embeddings.

    Raises:
        UserError: index or fusion cannot be opened, or they do not belong together.
    """
    if options.index is None or options.fusion is None:
        return encoder
    index = Index.open(options.index)
    if options.fusion == MEAN:
        fusion = FusionModule(FusionSettings(encoder.width, "mean"))
    else:
        fusion = FusionModule.open(options.fusion)
    mode, searcher = options.mode or fusion.settings.modalities, _searcher(options, index, fusion)
    k = fusion.trained.get("k", 10) if options.k is None else options.k
    enhanced = RetrievalEnhancedEncoder(encoder, index, fusion, mode, k, options.read_where, searcher=searcher)
    if options.near is None or tested is None:
        return enhanced
    near = index.near(image_features(searcher or encoder, tested, cache).images, options.near)
    output().print(
        f"{tested.name}: {len(near):,} of {len(index):,} pictures of {index.address} are near-duplicates of tested "
        f"images (cosine {options.near:g} or more) and are left out",
        highlight=False,
        soft_wrap=True,
    )
    left = f"{index.address}: {len(index) - len(near):,} pictures are left without near-duplicates, fewer than k = {k}"
    refuse((len(near) > len(index) - k, f"{left}. Use a smaller --k or a higher --near."))
    return RetrievalEnhancedEncoder(
        encoder, index, fusion, mode, k, options.read_where, exclude_ids=near, searcher=searcher
    )


def _searcher(options: FusionOptions, index: Index, fusion: FusionModule) -> Encoder | None:
    """The model that searches the index, if it is not the one whose embeddings are refined."""
    if fusion.settings.reads is None:
        own = options.searcher is not None
        refuse((own, f"--searcher {options.searcher}: {options.fusion} reads the index of its own model."))
        return None
    return index.open_model(options.searcher, option="--searcher")[0]


def name_with_index(options: FusionOptions, model: str, encoder: Encoder) -> str:
    """The name of a model in results; if it reads an index, with the index's version and the fusion's fingerprint."""
    if not isinstance(encoder, RetrievalEnhancedEncoder):
        return model
    read = encoder.description
    extra = (f", where {options.read_where}" if options.read_where else "") + (
        f", near {options.near:g}" if options.near else ""
    )
    fusion = f"{public_place(str(options.fusion))} {read['fusion'][:8]}"
    return f"{model} + {read['index']} version {read['version']}, {fusion}, {read['mode']}, k={read['k']}{extra}"


def with_index(result: Result, encoder: Encoder) -> Result:
    """The result with the index that was read in its settings."""
    if not isinstance(encoder, RetrievalEnhancedEncoder):
        return result
    return replace(result, settings={**result.settings, "reads": encoder.description})
