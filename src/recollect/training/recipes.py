"""Recipes: functions that return a full configuration, listed in `RECIPES`.

Recipes named after a paper's models have the paper's values. The tiny and small recipes are for short runs: a
log-temperature moves by about one learning rate a step, so temperatures learn 10 times faster and tau_context starts
low.
"""

from collections.abc import Callable
from dataclasses import replace

from recollect.core.plugins import Table
from recollect.training.options import Context, Data, Model, ObjectiveOptions, Optimizer, Recipe

__all__ = ["RECIPES", "Recipe", "with_context"]


def with_context(recipe: Recipe, tau: float, alpha: float = 0.9) -> Recipe:
    """The same run with the context objective: SigLIxP for SigLIP, CLIxP for CLIP."""
    return replace(recipe, objective=replace(recipe.objective, context=Context(alpha=alpha, tau=tau)))


def _contextual(make: Callable[[], Recipe], tau: float, title: str) -> Callable[[], Recipe]:
    """A recipe with the context objective; ``title`` is its line in the list of recipes."""

    def recipe() -> Recipe:
        return with_context(make(), tau)

    recipe.__doc__ = title
    return recipe


def as_clip(recipe: Recipe) -> Recipe:
    """The same run with CLIP's loss; LIxP transfers every other value unchanged (section 4.1)."""
    return replace(recipe, objective=replace(recipe.objective, base="softmax"))


# --- Any images, on a CPU ---------------------------------------------------------------------------------------------


def siglip_tiny() -> Recipe:
    """SigLIP with tiny towers at 32 px: minutes on a CPU."""
    return Recipe(
        model=Model("tiny"),
        data=Data(captions=("glyphs:captions",)),
        objective=ObjectiveOptions(scale=10.0, bias=-10.0),
        optimizer=Optimizer(learning_rate=1e-3, weight_decay=1e-2, temperature_factor=10.0),
        steps=1500,
        batch_size=512,
        checkpoint_every=250,
    )


def clip_tiny() -> Recipe:
    """CLIP with tiny towers at 32 px: minutes on a CPU."""
    return as_clip(siglip_tiny())


def siglip_small() -> Recipe:
    """SigLIP with small towers at 64 px: an hour or two on a CPU."""
    return replace(siglip_tiny(), model=Model("small"), steps=3000)


# --- LIxP's own runs (section 4.1, Appendix A) ------------------------------------------------------------------------


def _paper(preset: str, examples: float, chunk: int) -> Recipe:
    """Batch 32,768, AdamW 1e-3, decay 1e-4, beta2 0.95, clip 1, scale 10, bias -10; the paper names no warm-up."""
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


def siglip_vit_s_16() -> Recipe:
    """SigLIP's baseline of LIxP: ViT-S/16 at 256 px, 1.5 billion examples."""
    return _paper("vit-s-16", 1.5e9, 1024)


def siglip_vit_b_16() -> Recipe:
    """SigLIP's baseline of LIxP: ViT-B/16 at 256 px, 6 billion examples."""
    return _paper("vit-b-16", 6e9, 512)


def siglip_vit_l_16() -> Recipe:
    """SigLIP's baseline of LIxP: ViT-L/16 at 256 px, 8 billion examples."""
    return _paper("vit-l-16", 8e9, 256)


# --- Post-training of a given checkpoint (LIxP, Figure 4) -------------------------------------------------------------


def post_train_siglip() -> Recipe:
    """Continue a SigLIP checkpoint as it was: the baseline of post-train-siglixp."""
    return Recipe(
        model=Model("google/siglip2-base-patch16-256"),
        optimizer=Optimizer(learning_rate=1e-5, temperature_factor=10.0),
        steps=2000,
        batch_size=2048,
        chunk=64,
        precision="bfloat16",
        checkpoint_every=250,
    )


def post_train_clip() -> Recipe:
    """Continue a CLIP checkpoint as it was: the baseline of post-train-clixp."""
    return as_clip(replace(post_train_siglip(), model=Model("openai/clip-vit-base-patch16")))


def _heads(start: str) -> Recipe:
    """A checkpoint whose towers are computed once, so that a step costs the heads and the loss."""
    recipe = replace(post_train_siglip(), model=Model(start, locked="both"), chunk=None, precision="float32")
    return replace(recipe, batch_size=8192, optimizer=replace(recipe.optimizer, learning_rate=1e-4))


def post_train_heads_siglip() -> Recipe:
    """Continue only the heads of a SigLIP checkpoint, on features computed once: the baseline of the next."""
    return _heads("google/siglip2-base-patch16-256")


def post_train_projection_clip() -> Recipe:
    """Train only the image projection of a CLIP checkpoint, texts as they are (after ProLIP, Fahes et al., 2024)."""
    recipe = as_clip(_heads("openai/clip-vit-base-patch16"))
    return replace(recipe, model=replace(recipe.model, freeze="text"))


def lit() -> Recipe:
    """LiT (Zhai et al., 2022): a checkpoint's image tower as it is, computed once; its text tower learns."""
    recipe = replace(post_train_siglip(), chunk=512)
    return replace(recipe, model=replace(recipe.model, freeze="image", locked="image"))


# --- Prefix conditioning ----------------------------------------------------------------------------------------------


def prefix_tiny() -> Recipe:
    """Prefix conditioning with tiny towers on glyph captions and glyph labels: minutes on a CPU."""
    return replace(
        clip_tiny(),
        model=Model("tiny", prefixes=("caption", "label")),
        data=Data(captions=("glyphs:captions",), labels=("glyphs:labels",), sampling="debiased"),
    )


RECIPES: Table[Callable[[], Recipe]] = Table(
    "recipes",
    {
        "siglip-tiny": siglip_tiny,
        "siglixp-tiny": _contextual(siglip_tiny, 0.01, "SigLIxP: siglip-tiny with the context objective."),
        "clip-tiny": clip_tiny,
        "clixp-tiny": _contextual(clip_tiny, 0.01, "CLIxP: clip-tiny with the context objective."),
        "siglip-small": siglip_small,
        "siglixp-small": _contextual(siglip_small, 0.01, "SigLIxP: siglip-small with the context objective."),
        "siglip-vit-s-16": siglip_vit_s_16,
        "lixp-vit-s-16": _contextual(siglip_vit_s_16, 1.0, "LIxP's SigLIxP: ViT-S/16 at 256 px, 1.5 billion examples."),
        "siglip-vit-b-16": siglip_vit_b_16,
        "lixp-vit-b-16": _contextual(siglip_vit_b_16, 1.0, "LIxP's SigLIxP: ViT-B/16 at 256 px, 6 billion examples."),
        "siglip-vit-l-16": siglip_vit_l_16,
        "lixp-vit-l-16": _contextual(siglip_vit_l_16, 1.0, "LIxP's SigLIxP: ViT-L/16 at 256 px, 8 billion examples."),
        "post-train-siglip": post_train_siglip,
        "post-train-siglixp": _contextual(
            post_train_siglip, 0.01, "Post-train a SigLIP checkpoint with the context objective."
        ),
        "post-train-clip": post_train_clip,
        "post-train-clixp": _contextual(
            post_train_clip, 0.01, "Post-train a CLIP checkpoint with the context objective."
        ),
        "post-train-heads-siglip": post_train_heads_siglip,
        "post-train-heads-siglixp": _contextual(
            post_train_heads_siglip,
            0.01,
            "The same with the context objective.",
        ),
        "post-train-projection-clip": post_train_projection_clip,
        "post-train-projection-clixp": _contextual(
            post_train_projection_clip,
            0.01,
            "The same with the context objective.",
        ),
        "lit": lit,
        "prefix-tiny": prefix_tiny,
    },
)
