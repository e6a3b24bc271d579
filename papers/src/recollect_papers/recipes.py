"""Short training runs on the generated worlds.

A log-temperature moves by about one learning rate a step, so temperatures learn 10 to 20 times faster here than in long
runs, and tau_context starts low.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from recollect.training.options import Data, Model, ObjectiveOptions, Optimiser, Recipe
from recollect.training.recipes import as_clip, with_context


def latents_siglip() -> Recipe:
    """SigLIP on the vector world: less than a minute on one core."""
    return Recipe(
        model=Model("vector-mlp"),
        data=Data(captions=("latents:captions",)),
        objective=ObjectiveOptions(scale=10.0, bias=-10.0),
        optimiser=Optimiser(learning_rate=1e-3, temperature_factor=10.0),
        steps=600,
        batch_size=512,
        checkpoint_every=200,
    )


def latents_siglixp() -> Recipe:
    """SigLIxP on the vector world."""
    return with_context(latents_siglip(), tau=0.02)


def latents_strong_siglip() -> Recipe:
    """SigLIP on the vector world, in the variant with the larger effect: linear text tower, scale 30, 800 steps."""
    recipe = replace(latents_siglip(), model=Model("vector-linear"), steps=800)
    return replace(recipe, objective=replace(recipe.objective, scale=30.0))


def latents_strong_siglixp() -> Recipe:
    """SigLIxP on the vector world, in the variant with the larger effect."""
    return with_context(latents_strong_siglip(), tau=0.003)


def latents_strong_clip() -> Recipe:
    """CLIP on the vector world, in the variant with the larger effect."""
    return as_clip(latents_strong_siglip())


def latents_strong_clixp() -> Recipe:
    """CLIxP on the vector world, in the variant with the larger effect."""
    return with_context(latents_strong_clip(), tau=0.003)


def _glyphs(model: str, steps: int, rate: float) -> Recipe:
    return Recipe(
        model=Model(model),
        data=Data(captions=("glyphs:captions",)),
        objective=ObjectiveOptions(scale=30.0, bias=-10.0),
        optimiser=Optimiser(learning_rate=rate, weight_decay=1e-2, temperature_factor=20.0),
        steps=steps,
        batch_size=512,
        checkpoint_every=500,
    )


def glyphs_a_siglip() -> Recipe:
    """SigLIP on glyphs, setting A: a convnet held back by its head and a text tower of rank 24."""
    return _glyphs("glyph-held-back", 1500, 5e-4)


def glyphs_a_siglixp() -> Recipe:
    """SigLIxP on glyphs, setting A."""
    return with_context(glyphs_a_siglip(), tau=0.005)


def glyphs_b_siglip() -> Recipe:
    """SigLIP on glyphs, setting B: frozen random filters and a linear head."""
    return _glyphs("glyph-random", 500, 1e-3)


def glyphs_b_siglixp() -> Recipe:
    """SigLIxP on glyphs, setting B."""
    return with_context(glyphs_b_siglip(), tau=0.005)


def glyphs_strong_siglip() -> Recipe:
    """SigLIP on glyphs, not held back: always compared with setting A."""
    return _glyphs("glyph-strong", 1500, 1e-3)


def glyphs_strong_siglixp() -> Recipe:
    """SigLIxP on glyphs, not held back."""
    return with_context(glyphs_strong_siglip(), tau=0.005)


RECIPES: Mapping[str, Callable[[], Recipe]] = {
    "latents-siglip": latents_siglip,
    "latents-siglixp": latents_siglixp,
    "latents-strong-siglip": latents_strong_siglip,
    "latents-strong-siglixp": latents_strong_siglixp,
    "latents-strong-clip": latents_strong_clip,
    "latents-strong-clixp": latents_strong_clixp,
    "glyphs-a-siglip": glyphs_a_siglip,
    "glyphs-a-siglixp": glyphs_a_siglixp,
    "glyphs-b-siglip": glyphs_b_siglip,
    "glyphs-b-siglixp": glyphs_b_siglixp,
    "glyphs-strong-siglip": glyphs_strong_siglip,
    "glyphs-strong-siglixp": glyphs_strong_siglixp,
}
