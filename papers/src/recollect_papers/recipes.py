"""Recipes: short training runs on the synthetic worlds, and the run of the prefix conditioning paper.

AdamW moves a log-temperature by about one learning rate per step, so these short runs train temperatures 10 to 20 times
faster than long runs do, and start tau_context low.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from recollect.training.options import Data, Model, ObjectiveOptions, Optimizer, Recipe
from recollect.training.recipes import with_context


def latents_siglip() -> Recipe:
    """SigLIP on the vector world; trains in less than a minute on one core."""
    return Recipe(
        model=Model("vector-mlp"),
        data=Data(captions=("latents:captions",)),
        objective=ObjectiveOptions(scale=10.0, bias=-10.0),
        optimizer=Optimizer(learning_rate=1e-3, temperature_factor=10.0),
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
        optimizer=Optimizer(learning_rate=1e-3, weight_decay=1e-2, temperature_factor=20.0),
        steps=500,
        checkpoint_every=500,
    )


def glyphs_siglixp() -> Recipe:
    """SigLIxP on glyphs."""
    return with_context(glyphs_siglip(), tau=0.005)


def glyphs_strong_siglip() -> Recipe:
    """SigLIP on glyphs: a convnet, and a linear text tower of full rank."""
    return replace(glyphs_siglip(), model=Model("glyph-strong"), steps=1500)


def prefix_swin_t() -> Recipe:
    """Swin-T on captions and ImageNet-21K-sized labels, as in the prefix conditioning paper (section 4).

    AdamW 1e-3, weight decay 0.1, batch 1,024, cosine after 10,000 steps of warm-up, debiased sampling. Trains for 15
    epochs of the 12 M label samples, which fill every other batch: 12 M / 1,024 x 2 x 15 steps.
    """
    steps = round(12e6 / 1024 * 2 * 15)
    return Recipe(
        model=Model("swin-t", prefixes=("caption", "label")),
        data=Data(sampling="debiased"),
        objective=ObjectiveOptions(base="softmax", scale=1 / 0.07),
        optimizer=Optimizer(weight_decay=0.1, beta2=0.999, warmup=10_000 / steps),
        steps=steps,
        batch_size=1024,
        precision="bfloat16",
        checkpoint_every=1000,
    )


_ALL = (
    latents_siglip,
    latents_siglixp,
    latents_strong_siglip,
    glyphs_siglip,
    glyphs_siglixp,
    glyphs_strong_siglip,
    prefix_swin_t,
)
RECIPES: Mapping[str, Callable[[], Recipe]] = {each.__name__.replace("_", "-"): each for each in _ALL}
