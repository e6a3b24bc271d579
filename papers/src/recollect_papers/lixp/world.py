"""Settings, evaluations and runs of LIxP's studies at each scale.

``smoke`` and ``small`` use the vector world, which shows the effect after half a minute of training; ``full`` uses the
paper's recipes and suites, and the user's data (``--data``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from recollect.core.errors import UserError
from recollect.objectives import Base
from recollect.training.options import Data, Recipe
from recollect.training.recipes import RECIPES, with_context
from recollect_papers.lixp.ablations import AblatedContext, ContextOptions
from recollect_papers.measurements import FigureAddress, Measurements
from recollect_papers.runs import StudyEvaluation, run, with_seeds
from recollect_papers.study import Scale, StudyOptions, over

SHOTS = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class LixpWorld:
    """One setting: a baseline recipe, and initial values for context.

    Attributes:
        label: column title.
        base: recipe without context.
        tau: initial tau_context.
        alpha: weight of the loss without context.
    """

    label: str
    base: Recipe
    tau: float
    alpha: float = 0.9

    def arms(self, name: str) -> dict[str, Recipe]:
        """Return the recipes without and with context, by name."""
        return {f"{name} {self.label}": self.base, f"{WITH_CONTEXT[name]} {self.label}": self.context()}

    def context(
        self, alpha: float | None = None, tau: float | None = None, options: ContextOptions | None = None
    ) -> Recipe:
        """Return the recipe with context, ablated by ``options``."""
        recipe = with_context(self.base, self.tau if tau is None else tau, self.alpha if alpha is None else alpha)
        context = recipe.objective.context
        assert context is not None
        if options is not None and options != ContextOptions():
            context = AblatedContext(context.alpha, context.tau, options)
        return replace(recipe, objective=replace(recipe.objective, context=context))


WITH_CONTEXT = {"SigLIP": "SigLIxP", "CLIP": "CLIxP"}
WORLDS_BY_SCALE: Mapping[Scale, str] = {
    "smoke": "latents (vectors of latent factors, not images), a few steps: a test run without meaningful results",
    "small": "latents (vectors of latent factors, not images), linear towers, batch 512, 800 steps unless it says so",
    "full": "the paper's recipes on your data",
}


def _shortened(recipe: Recipe, options: StudyOptions) -> Recipe:
    if options.scale == "smoke":
        return replace(recipe, steps=max(6, recipe.steps // 100), batch_size=128, log_every=2)
    if options.scale == "full":
        if not options.data:
            raise UserError("--scale full trains on your data. Pass captioned sources with --data SOURCE ...")
        return replace(recipe, data=Data(sources=options.data))
    return recipe


_PAPERS_SCALES: Mapping[str, tuple[tuple[str, str, float], ...]] = {
    "sigmoid": (("S", "1.5B", 1.5e9), ("S", "6B", 6e9), ("B", "6B", 6e9), ("B", "15B", 15e9), ("L", "8B", 8e9)),
    "softmax": (("S", "1.5B", 1.5e9), ("S", "6B", 6e9), ("S", "15B", 15e9), ("B", "6B", 6e9), ("B", "15B", 15e9)),
}
"""Columns of Tables 1 and 3 in the paper: size of the ViT, training examples."""


def _papers_setting(size: str, label: str, examples: float) -> LixpWorld:
    recipe = RECIPES[f"siglip-vit-{size.lower()}-16"]()
    steps = max(1, round(examples / recipe.batch_size))
    alpha = 0.95 if examples == 15e9 else 0.9  # section 4.1, "Robustness to choice of pretraining objective"
    return LixpWorld(f"ViT-{size}/16 {label}", replace(recipe, steps=steps), 1.0, alpha)


def settings(options: StudyOptions, base: Base = "sigmoid") -> list[LixpWorld]:
    """Return the settings of Tables 1 and 3: model and data scales, the paper's at scale full."""
    if options.scale == "full":
        settings = [_papers_setting(*scale) for scale in _PAPERS_SCALES[base]]
    else:
        strong, deep = RECIPES["latents-strong-siglip"](), RECIPES["latents-siglip"]()
        settings = [
            LixpWorld("MLP 0.3M", deep, 0.02),
            LixpWorld("linear 0.4M", strong, 0.003),
            LixpWorld("linear 0.8M", replace(strong, steps=2 * strong.steps), 0.003),
        ]
    recipes = (replace(each.base, objective=replace(each.base.objective, base=base)) for each in settings)
    return [
        replace(setting, base=_shortened(recipe, options)) for setting, recipe in zip(settings, recipes, strict=True)
    ]


def main_setting(options: StudyOptions) -> LixpWorld:
    """Return the setting of the ablations."""
    return settings(options)[0 if options.scale == "full" else 1]


def evaluation_of(options: StudyOptions, methods: Sequence[str], suite: str = "lixp-21") -> StudyEvaluation:
    """Return the evaluation of a study's models with some classifiers."""
    if options.scale == "full":
        return StudyEvaluation(suite=options.suite or suite, methods=tuple(methods), shots=SHOTS)
    world = ("latents:captions",)
    if options.scale == "smoke":
        return StudyEvaluation(world, world, methods=tuple(methods), shots=(1, 16), draws=2, queries=5)
    return StudyEvaluation(world, world, methods=tuple(methods), shots=SHOTS)


def seed_count(options: StudyOptions) -> int:
    """Return the number of training seeds."""
    return options.seeds or {"smoke": 2, "small": 3, "full": 1}[options.scale]


def run_arms(options: StudyOptions, arms: Mapping[str, Recipe], evaluation: StudyEvaluation) -> Measurements:
    """Train and measure every arm with every seed, and add the context that tables need."""
    found = run(with_seeds(arms, seed_count(options), evaluation), options.out, options.workers)
    sets = found.names("set", measure="accuracy")
    notes = notes_of(options)
    if options.scale == "full":
        notes.append(f"mean over {len(sets)} sets; classes with fewer examples than shots use all of them")
    shots = max((int(each) for each in found.names("shots")), default=0)
    found.context = {"sets": sets, "named": found.names("set", measure="top-1"), "shots": shots, "notes": notes}
    return found


def few_shot(found: Measurements, *methods: str, shots: int | None = None) -> FigureAddress:
    """Return the address of the mean accuracy over all sets (and methods), by default at the most shots."""
    at: FigureAddress = {"measure": "accuracy", "set": tuple(found.context["sets"])}
    return {**at, "method": methods, "shots": str(shots or found.context["shots"])}


def by_name(found: Measurements) -> FigureAddress:
    """Return the address of the mean zero-shot accuracy."""
    return {"measure": "top-1", "set": tuple(found.context["named"])}


def notes_of(options: StudyOptions) -> list[str]:
    """Return the notes below every table."""
    count = seed_count(options)
    gains = "gains are paired by seed" if count > 1 else "gains are of the same seed"
    return [f"{over(count, 'training seed')}; {gains}", "paper: as printed there"]
