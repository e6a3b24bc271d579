"""The main job on the built-in data: SigLIP against SigLIxP with the same budget, in one page."""

import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from recollect.core.files import write_json
from recollect.data.worlds.glyph_sources import GlyphCaptions
from recollect.data.worlds.glyphs import GlyphWorld
from recollect.evaluation.results import Result, Summary
from recollect.evaluation.tables import mean_over_tasks, over_seeds, paired_gain
from recollect.fewshot.protocol import PAPER_METHODS
from recollect.objectives import ContextOptions
from recollect.reports import plots
from recollect.reports.page import Page
from recollect.studies.runs import Job, StudyEvaluation, frames, metrics, run, with_seeds
from recollect.training.options import Recipe
from recollect.training.recipes import RECIPES

DemoScale = Literal["smoke", "default"]
SIGLIP, SIGLIXP, NO_MASK = "SigLIP", "SigLIxP", "SigLIxP, no mask"

COLOURS = dict(zip((SIGLIP, SIGLIXP, NO_MASK, f"{SIGLIP}+span", f"{SIGLIXP}+span"), plots.LINE_COLOURS, strict=False))
"""One colour a model in every figure of the page."""

PAPER = "Roth et al., Context-Aware Multimodal Pretraining (LIxP), 2024. It has no public code."
TERMS = (
    ("zero-shot", "A picture gets the class whose prompt, such as “a photo of a river”, is nearest to it."),
    ("few-shot, shots", "Classes are learnt from so many example pictures each, by their embeddings alone."),
    ("prototype", "The mean of a class's examples; a picture gets the class of the nearest one."),
    ("context", "In training, what a picture finds among the others of its batch must fit its caption too."),
    ("mask", "A row does not find itself. Without it there is nothing to learn from context."),
    ("tau_context", "The look-up's temperature: the smaller, the fewer neighbours a picture reads."),
    ("effective neighbours", "How many neighbours a look-up spreads over: the exponential of its entropy."),
    ("+span", "Image embeddings without what lies outside the span of the captions' embeddings. No training."),
    ("gain", "Points of accuracy over SigLIP of the same seed: same data, same start, same number of steps."),
    ("±", "Standard deviation over training seeds; figures are means over tasks."),
)
NEXT = (
    ("recollect memory build MODEL photos/ --out memories/photos", "Your own pictures, with any CLIP or SigLIP model."),
    ("recollect serve memories/photos", "The page in the browser: search, teach classes by clicks, find duplicates."),
    ("recollect classify --support examples/ --images new/ --model MODEL", "A classifier from a few examples a class."),
    ("recollect train siglixp-locked --data pairs.parquet --out runs/mine", "Context on your own pairs, in minutes."),
    ("recollect study lixp/table-4 --scale small", "The papers' tables at this scale; `recollect study` lists all."),
)


@dataclass(frozen=True)
class DemoWorld:
    """One part of the demo.

    Attributes:
        title: heading of its section.
        text: what the world and its models are.
        recipes: by the model's name.
        seeds: training seeds.
        source: whose tasks are evaluated.
        span: also evaluate the projection onto the span of the texts.
    """

    title: str
    text: str
    recipes: Mapping[str, Recipe]
    seeds: int
    source: str
    span: bool = False

    def jobs(self, scale: DemoScale) -> list[Job]:
        """Its trainings."""
        shots = (1, 2, 4, 8, 16, 32) if scale == "default" else (1, 4, 16)
        evaluation = StudyEvaluation(
            (self.source,), (self.source,), methods=PAPER_METHODS, shots=shots,
            draws=5 if scale == "default" else 2, span=self.span,
        )  # fmt: skip
        recipes = self.recipes
        if scale == "smoke":
            recipes = {name: _shortened(each) for name, each in recipes.items()}
        return with_seeds(recipes, self.seeds, evaluation)


def _shortened(recipe: Recipe) -> Recipe:
    return replace(recipe, steps=max(20, recipe.steps // 25), log_every=2)


_STRONG_STEPS = 800  # of the recipe's 1,500, so that the whole demo takes less than ten minutes on two cores


def _no_mask(recipe: Recipe) -> Recipe:
    context = recipe.objective.context
    assert context is not None
    context = replace(context, options=ContextOptions(mask=False))
    return replace(recipe, objective=replace(recipe.objective, context=context))


def worlds(scale: DemoScale) -> dict[str, DemoWorld]:
    """The three parts: vectors, images with a model that is held back, images with a strong one."""
    latents = {SIGLIP: RECIPES["latents-strong-siglip"](), SIGLIXP: RECIPES["latents-strong-siglixp"]()}
    return {
        "latents": DemoWorld(
            "Vectors of latent factors",
            "A made world in which the effect of the objective can be measured in seconds: vectors in place of images, "
            "captions that name some of their factors, few-shot classes that no caption names, and nuisance that no "
            "caption speaks of. The last model is the control: without the mask a row may look itself up, so there is "
            "nothing to learn from context.",
            latents | {NO_MASK: _no_mask(latents[SIGLIXP])},
            seeds=3,
            source="latents:captions",
        ),
        "held back": DemoWorld(
            "Pictures of characters, a model that is held back",
            "Pictures of real Unicode characters with captions of their script and shape; few-shot classes are "
            "characters that were held out. The image tower is a linear map of frozen random filters. The control is "
            "SigLIP's own embeddings projected onto the span of its caption embeddings, which costs no training: what "
            "it gains, context need not be thanked for.",
            {SIGLIP: RECIPES["glyphs-b-siglip"](), SIGLIXP: RECIPES["glyphs-b-siglixp"]()},
            seeds=2 if scale == "default" else 1,
            source="glyphs:captions",
            span=True,
        ),
        "strong": DemoWorld(
            "The same pictures, a strong model",
            "A convolutional network trained end to end, and longer: what context adds to a baseline that nothing "
            "holds back.",
            {
                name: replace(RECIPES[recipe](), steps=_STRONG_STEPS)
                for name, recipe in ((SIGLIP, "glyphs-strong-siglip"), (SIGLIXP, "glyphs-strong-siglixp"))
            },
            seeds=1,
            source="glyphs:captions",
            span=True,
        ),
    }  # fmt: skip


@dataclass(frozen=True)
class DemoFindings:
    """What one part found, in percent: means over tasks, classifiers and seeds."""

    few: pd.DataFrame
    zero: pd.DataFrame
    shots: int

    def base(self) -> Summary:
        """SigLIP's accuracy, averaged over the classifiers, with the most shots."""
        return over_seeds(mean_over_tasks(self._most(SIGLIP), ["model"]))

    def gain(self, model: str = SIGLIXP, method: str | None = None) -> Summary:
        """Over SigLIP with the most shots, of one classifier or of the mean of all six."""
        chosen = self.few[self.few["shots"] == self.shots]
        chosen = chosen if method is None else chosen[chosen["method"] == method]
        return over_seeds(paired_gain(chosen, model, SIGLIP, ["protocol"]))

    def zero_shot(self, model: str) -> Summary:
        """Zero-shot accuracy."""
        return over_seeds(mean_over_tasks(self.zero[self.zero["model"] == model], ["model"]))

    def zero_shot_gain(self, model: str = SIGLIXP) -> Summary:
        """Zero-shot accuracy over SigLIP's."""
        return over_seeds(paired_gain(self.zero, model, SIGLIP, ["protocol"]))

    def models(self) -> list[str]:
        """In the order in which they are shown."""
        return list(dict.fromkeys(self.few["model"]))

    def _most(self, model: str) -> pd.DataFrame:
        return self.few[(self.few["model"] == model) & (self.few["shots"] == self.shots)]


def demo(out: Path, scale: DemoScale, workers: int | None = None) -> Path:
    """Train, evaluate and write ``out/report.html`` and ``out/results.json``.

    Runs that are in ``out/runs`` already are not made again.

    Returns:
        The page.
    """
    start, parts = time.monotonic(), worlds(scale)
    jobs = {name: world.jobs(scale) for name, world in parts.items()}
    # All at once, the longest first, so that no core waits; each result is then found in its file.
    everything = sorted((job for each in jobs.values() for job in each), key=lambda job: -job.recipe.steps)
    run(everything, out, workers)
    results = {name: run(each, out) for name, each in jobs.items()}
    found = {name: _found(each) for name, each in results.items()}
    page = Page("SigLIP and SigLIxP with the same budget")
    for sentence in conclusions(found):
        page.paragraph(sentence, "lead")
    about = _about(scale, workers, time.monotonic() - start, next(iter(results.values()))[0])
    page.paragraph(_how(parts, scale), "quiet")
    page.paragraph(" ".join(f"{name}: {value}." for name, value in about.items()), "quiet")
    for name, world in parts.items():
        _section(page, world, found[name], jobs[name], out)
    _samples(page)
    page.heading("Words")
    page.definitions("What the terms on this page mean.", TERMS)
    page.heading("The paper, and what to do next")
    page.paragraph(PAPER)
    page.definitions("In the folder of the project:", NEXT)
    page.save(out / "report.html")
    write_json(out / "results.json", _as_json(found, scale, about))
    return out / "report.html"


def _found(results: Sequence[Result]) -> DemoFindings:
    few, zero = frames(results)
    return DemoFindings(few, zero, int(few["shots"].max()))


def _how(parts: Mapping[str, DemoWorld], scale: DemoScale) -> str:
    seeds = "; ".join(f"{world.title.lower()}: {world.seeds}" for world in parts.values())
    short = " Scale smoke: a few steps, to see that all works; its figures mean nothing." if scale == "smoke" else ""
    return (
        f"Training seeds: {seeds}. Both models of a pair see the same samples in the same order, start from the same "
        f"weights and make the same number of steps. Figures are means over tasks, ± standard deviation over seeds; "
        f"gains are paired by seed.{short}"
    )


def _about(scale: DemoScale, workers: int | None, seconds: float, result: Result) -> dict[str, str]:
    """Command, time and machine."""
    chosen = f" --workers {workers}" if workers else ""
    return {
        "Command": f"recollect demo --scale {scale}{chosen}",
        "Time": f"{seconds:.0f} seconds, less where runs were there already",
        "Machine": f"{result.environment['device'] or platform.machine()}, {os.cpu_count()} cores",
        "Versions": ", ".join(f"{name} {result.environment[name]}" for name in ("recollect", "torch", "python")),
    }


def conclusions(found: Mapping[str, DemoFindings]) -> list[str]:
    """What was found, in two sentences that follow from the figures whichever way they point."""
    latents, held_back, strong = found["latents"], found["held back"], found["strong"]
    first = (
        f"On vectors, context {_verb(latents.gain())} the mean of six few-shot classifiers at {latents.shots} shots, "
        f"by {latents.gain().signed()} points over SigLIP's {latents.base()} %, with zero-shot accuracy at "
        f"{latents.zero_shot_gain().signed()}; without the mask the change is {latents.gain(NO_MASK).signed()}."
    )
    span = held_back.gain(f"{SIGLIP}+span")
    second = (
        f"On pictures, it {_verb(held_back.gain())} a model that is held back by {held_back.gain().signed()} points "
        f"(over {held_back.base()} %; projecting SigLIP onto the span of its texts gives {span.signed()} without any "
        f"training) and a strong one by {strong.gain().signed()} (over {strong.base()} %), with zero-shot accuracy at "
        f"{held_back.zero_shot_gain().signed()} and {strong.zero_shot_gain().signed()}."
    )
    return [first, second]


def _verb(gain: Summary) -> str:
    """Whether a change is more than its spread over seeds."""
    if gain.count > 1 and abs(gain.mean) <= gain.std:
        return "does not clearly change"
    return "raises" if gain.mean > 0 else "lowers"


def _section(page: Page, world: DemoWorld, found: DemoFindings, jobs: Sequence[Job], out: Path) -> None:
    page.heading(world.title)
    page.paragraph(world.text)
    models = found.models()
    zero = {name: found.zero_shot(name).mean for name in world.recipes}
    page.figure(
        plots.few_shot_curves(found.few, models, ("prototype", "tip-adapter", "softmax"), zero, COLOURS),
        "Accuracy over shots; dotted: zero-shot (of its own tasks, which captions have words for). Points of one "
        "number of shots stand beside each other, so that none is hidden.",
    )
    pairs = {name: (name, SIGLIP) for name in models if name != SIGLIP}
    page.figure(
        plots.gain_per_classifier(found.few, pairs, PAPER_METHODS, found.shots, COLOURS),
        f"Gain over SigLIP of each classifier at {found.shots} shots, error bars over training seeds.",
    )
    rows = []
    for name in models:
        zero_shot = str(found.zero_shot(name)) if name in world.recipes else ""
        own = found.few[(found.few["model"] == name) & (found.few["shots"] == found.shots)]
        cells = [str(over_seeds(mean_over_tasks(own[own["method"] == method], ["model"]))) for method in PAPER_METHODS]
        rows.append((name, zero_shot, *cells))
    columns = ("model", "zero-shot", *(plots.METHOD_NAMES[method] for method in PAPER_METHODS))
    page.table(f"Zero-shot and {found.shots}-shot accuracy in percent.", columns, rows)
    logs = {job.name: metrics(job, out) for job in jobs if job.recipe.seed == 0}
    page.figure(plots.training_dynamics(logs, COLOURS), f"Training dynamics of seed 0. {_emergence(logs)}")


def _emergence(logs: Mapping[str, pd.DataFrame]) -> str:
    """Whether context came into use: far fewer neighbours than the batch has rows."""
    last = logs[SIGLIXP].iloc[-1]
    rows = last["examples"] / last["step"]
    words = "Context is in use" if last["effective_neighbours"] < 0.5 * rows else "Context is not in use"
    return (
        f"{words}: at the end a row reads {last['effective_neighbours']:.0f} of its {rows - 1:.0f} neighbours, with "
        f"tau_context {last['tau_context']:.2g}."
    )


def _samples(page: Page) -> None:
    page.heading("What the models read")
    images, texts, _ = GlyphCaptions(GlyphWorld()).batch(np.arange(12), 0)
    pictures = images.permute(0, 2, 3, 1).numpy()
    page.figure(plots.image_sheet(list(pictures), texts), "Pictures of the training set with one of their captions.")


def _as_json(found: Mapping[str, DemoFindings], scale: DemoScale, about: Mapping[str, str]) -> dict[str, Any]:
    """Means with spreads, and each run's accuracy, averaged over tasks and draws, as columns."""

    def plain(summary: Summary) -> dict[str, float | int | None]:
        return {"mean": summary.mean, "std": None if np.isnan(summary.std) else summary.std, "seeds": summary.count}

    worlds, keys = {}, ["model", "training_seed", "method", "shots"]
    for name, each in found.items():
        others = [model for model in each.models() if model != SIGLIP]
        runs = each.few.groupby(keys, sort=False, as_index=False)["value"].mean().round(2)
        worlds[name] = {
            "shots": each.shots,
            "siglip": plain(each.base()),
            "gain": {model: plain(each.gain(model)) for model in others},
            "gain_per_classifier": {
                model: {method: plain(each.gain(model, method)) for method in PAPER_METHODS} for model in others
            },
            "zero_shot": {model: plain(each.zero_shot(model)) for model in dict.fromkeys(each.zero["model"])},
            "few_shot": {key: runs[key].tolist() for key in [*keys, "value"]},
        }
    return {"scale": scale, "about": dict(about), "conclusions": conclusions(found), "worlds": worlds}
