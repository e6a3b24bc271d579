"""Recipes: functions that return a full configuration, listed in `RECIPES`.

Recipes named after a paper's models use the paper's values. The tiny and small recipes are for short runs: since a
log-temperature moves by about one learning rate per step, temperatures have 10 times the learning rate and tau_context
starts low.
"""

from collections.abc import Callable
from dataclasses import replace

from recollect.core.plugins import Table
from recollect.training.options import Context, Data, Model, ObjectiveOptions, Optimizer, Recipe

__all__ = ["RECIPES", "Recipe", "with_context"]


def with_context(recipe: Recipe, tau: float, alpha: float = 0.9) -> Recipe:
    """Return the recipe with the context objective: SigLIxP for SigLIP, CLIxP for CLIP."""
    return replace(recipe, objective=replace(recipe.objective, context=Context(alpha=alpha, tau=tau)))


def _as_clip(recipe: Recipe) -> Recipe:
    """Return the recipe with CLIP's loss; LIxP keeps all other values unchanged (section 4.1)."""
    return replace(recipe, objective=replace(recipe.objective, base="softmax"))


def _listed(recipe: Recipe, title: str) -> Callable[[], Recipe]:
    """Return a function that returns ``recipe``; ``title`` describes it in the list of recipes."""

    def make() -> Recipe:
        return recipe

    make.__doc__ = title
    return make


_TINY = Recipe(
    model=Model("tiny"),
    data=Data(captions=("glyphs:captions",)),
    objective=ObjectiveOptions(scale=10.0, bias=-10.0),
    optimizer=Optimizer(learning_rate=1e-3, weight_decay=1e-2, temperature_factor=10.0),
    steps=1500,
    batch_size=512,
    checkpoint_every=250,
)
_SMALL = replace(_TINY, model=Model("small"), steps=3000)
_PREFIX = replace(
    _as_clip(_TINY),
    model=Model("tiny", prefixes=("caption", "label")),
    data=Data(captions=("glyphs:captions",), labels=("glyphs:labels",), sampling="debiased"),
)


def _paper(preset: str, examples: float, chunk: int) -> Recipe:
    """Return LIxP's settings (section 4.1, Appendix A).

    Batch 32,768, AdamW 1e-3, decay 1e-4, beta2 0.95, clip 1, scale 10, bias -10; the paper states no warm-up.
    """
    return Recipe(
        model=Model(preset),
        objective=ObjectiveOptions(scale=10.0, bias=-10.0),
        optimizer=Optimizer(),
        steps=round(examples / 32_768),
        batch_size=32_768,
        chunk=chunk,
        precision="bfloat16",
        checkpoint_every=1000,
    )


_S_16, _B_16, _L_16 = _paper("vit-s-16", 1.5e9, 1024), _paper("vit-b-16", 6e9, 512), _paper("vit-l-16", 8e9, 256)

# Post-training of a checkpoint (LIxP, Figure 4)
_SIGLIP = Recipe(
    model=Model("google/siglip2-base-patch16-256"),
    optimizer=Optimizer(learning_rate=1e-5, temperature_factor=10.0),
    steps=2000,
    batch_size=2048,
    chunk=64,
    precision="bfloat16",
    checkpoint_every=250,
)
_CLIP = _as_clip(replace(_SIGLIP, model=Model("openai/clip-vit-base-patch16")))


def _heads(recipe: Recipe) -> Recipe:
    """Return the recipe with locked towers, so a step costs only the heads and the loss."""
    recipe = replace(recipe, model=replace(recipe.model, locked="both"), chunk=None, precision="float32")
    return replace(recipe, batch_size=8192, optimizer=replace(recipe.optimizer, learning_rate=1e-4))


_SIGLIP_HEADS, _CLIP_HEADS = _heads(_SIGLIP), _heads(_CLIP)
_PROJECTION = replace(_CLIP_HEADS, model=replace(_CLIP_HEADS.model, freeze="text"))
_LIT = replace(_SIGLIP, chunk=512, model=replace(_SIGLIP.model, freeze="image", locked="image"))

RECIPES: Table[Callable[[], Recipe]] = Table(
    "recipes",
    {
        name: _listed(recipe, title)
        for name, recipe, title in (
            ("siglip-tiny", _TINY, "SigLIP with tiny towers at 32 px: minutes on a CPU."),
            ("siglixp-tiny", with_context(_TINY, 0.01), "SigLIxP: siglip-tiny with the context objective."),
            ("clip-tiny", _as_clip(_TINY), "CLIP with tiny towers at 32 px: minutes on a CPU."),
            ("clixp-tiny", with_context(_as_clip(_TINY), 0.01), "CLIxP: clip-tiny with the context objective."),
            ("siglip-small", _SMALL, "SigLIP with small towers at 64 px: an hour or two on a CPU."),
            ("siglixp-small", with_context(_SMALL, 0.01), "SigLIxP: siglip-small with the context objective."),
            ("siglip-vit-s-16", _S_16, "LIxP's SigLIP baseline: ViT-S/16 at 256 px, 1.5 billion examples."),
            ("lixp-vit-s-16", with_context(_S_16, 1.0), "LIxP's SigLIxP: ViT-S/16 at 256 px, 1.5 billion examples."),
            ("siglip-vit-b-16", _B_16, "LIxP's SigLIP baseline: ViT-B/16 at 256 px, 6 billion examples."),
            ("lixp-vit-b-16", with_context(_B_16, 1.0), "LIxP's SigLIxP: ViT-B/16 at 256 px, 6 billion examples."),
            ("siglip-vit-l-16", _L_16, "LIxP's SigLIP baseline: ViT-L/16 at 256 px, 8 billion examples."),
            ("lixp-vit-l-16", with_context(_L_16, 1.0), "LIxP's SigLIxP: ViT-L/16 at 256 px, 8 billion examples."),
            ("post-train-siglip", _SIGLIP,
             "Post-train a SigLIP checkpoint without context: the baseline of post-train-siglixp."),
            ("post-train-siglixp", with_context(_SIGLIP, 0.01),
             "Post-train a SigLIP checkpoint with the context objective."),
            ("post-train-clip", _CLIP,
             "Post-train a CLIP checkpoint without context: the baseline of post-train-clixp."),
            ("post-train-clixp", with_context(_CLIP, 0.01), "Post-train a CLIP checkpoint with the context objective."),
            ("post-train-heads-siglip", _SIGLIP_HEADS,
             "Train only the heads of a SigLIP checkpoint, on cached features: the baseline of "
             "post-train-heads-siglixp."),
            ("post-train-heads-siglixp", with_context(_SIGLIP_HEADS, 0.01), "The same with the context objective."),
            ("post-train-projection-clip", _PROJECTION, "Train only the image projection of a CLIP checkpoint "
             "(after ProLIP, Fahes et al., 2024)."),
            ("post-train-projection-clixp", with_context(_PROJECTION, 0.01), "The same with the context objective."),
            ("lit", _LIT, "LiT (Zhai et al., 2022): train a checkpoint's text tower; its image tower is frozen and "
             "computed once."),
            ("prefix-tiny", _PREFIX,
             "Prefix conditioning with tiny towers on glyph captions and glyph labels: minutes on a CPU."),
        )
    },
)  # fmt: skip
