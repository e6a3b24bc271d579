"""Short training runs on the generated worlds.

A log-temperature moves by about one learning rate a step, so temperatures learn 10 to 20 times faster here than in long
runs, and tau_context starts low.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from recollect.training.options import Data, Model, ObjectiveOptions, Optimiser, Recipe
from recollect.training.recipes import with_context


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
    objective = ObjectiveOptions(scale=30.0, bias=-10.0)
    return replace(latents_siglip(), model=Model("vector-linear"), objective=objective, steps=800)


def glyphs_siglip() -> Recipe:
    """SigLIP on glyphs: frozen random filters and a linear head, and a linear text tower of rank 24."""
    return replace(
        latents_strong_siglip(),
        model=Model("glyph-random"),
        data=Data(captions=("glyphs:captions",)),
        optimiser=Optimiser(learning_rate=1e-3, weight_decay=1e-2, temperature_factor=20.0),
        steps=500,
        checkpoint_every=500,
    )


def glyphs_siglixp() -> Recipe:
    """SigLIxP on glyphs."""
    return with_context(glyphs_siglip(), tau=0.005)


def glyphs_strong_siglip() -> Recipe:
    """SigLIP on glyphs: a convnet, and a linear text tower of full rank."""
    return replace(glyphs_siglip(), model=Model("glyph-strong"), steps=1500)


_ALL = (latents_siglip, latents_siglixp, latents_strong_siglip, glyphs_siglip, glyphs_siglixp, glyphs_strong_siglip)
RECIPES: Mapping[str, Callable[[], Recipe]] = {each.__name__.replace("_", "-"): each for each in _ALL}
