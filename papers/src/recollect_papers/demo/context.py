"""The demo's first section, context: SigLIP against SigLIxP with the same budget, on vectors and on pictures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from recollect.classifiers.heads.methods import PAPER_METHODS
from recollect.core.nearest import exact_neighbours
from recollect.evaluation.reports import plots
from recollect.evaluation.results import Result, Summary
from recollect.evaluation.tables import mean_over_tasks, over_seeds, paired_gain
from recollect.models import load_model
from recollect.objectives import ContextOptions
from recollect.training.options import Recipe
from recollect.training.recipes import RECIPES, with_context
from recollect_papers import plots as paper_plots
from recollect_papers.demo import DemoScale
from recollect_papers.demo.report_page import ReportPage
from recollect_papers.runs import Job, StudyEvaluation, frames, metrics, with_seeds
from recollect_papers.worlds.glyph_sources import GlyphCaptions
from recollect_papers.worlds.glyphs import GlyphWorld

SIGLIP, SIGLIXP, NO_MASK = "SigLIP", "SigLIxP", "SigLIxP, no mask"
SPANS = {f"{name}+span": f"{name}, projected" for name in (SIGLIP, SIGLIXP)}
"""What a run's projection onto the span of its texts is called in results, and on the page."""

_COLOURS = dict(zip((SIGLIP, SIGLIXP, NO_MASK, *SPANS.values()), plots.LINE_COLOURS, strict=False))
"""One colour a model in every figure of the page."""


@dataclass(frozen=True)
class DemoWorld:
    """One part of the demo.

    Attributes:
        title: heading of its section.
        text: what the world and its models are.
        recipes: by the model's name.
        seeds: training seeds of a pair; a control has the first alone.
        source: whose tasks are evaluated.
        span: also evaluate the projection onto the span of the texts.
        shots: of the classifiers, at the default scale.
    """

    title: str
    text: str
    recipes: Mapping[str, Recipe]
    seeds: int
    source: str
    span: bool = False
    shots: tuple[int, ...] = (1, 4, 16, 32)

    def jobs(self, scale: DemoScale) -> list[Job]:
        """Its trainings."""
        shots = self.shots if scale == "default" else (1, 4, 16)
        evaluation = StudyEvaluation(
            (self.source,), (self.source,), methods=PAPER_METHODS, shots=shots,
            draws=3 if scale == "default" else 2, span=self.span,
        )  # fmt: skip
        recipes = self.recipes
        if scale == "smoke":
            recipes = {name: shortened(recipe) for name, recipe in recipes.items()}
        jobs = with_seeds(recipes, self.seeds, evaluation)
        return [job for job in jobs if job.name in (SIGLIP, SIGLIXP) or job.recipe.seed == 0]


def shortened(recipe: Recipe) -> Recipe:
    """A twenty-fifth of the steps, for scale smoke."""
    return replace(recipe, steps=max(12, recipe.steps // 25), batch_size=min(recipe.batch_size, 256), log_every=2)


def _no_mask(recipe: Recipe) -> Recipe:
    context = recipe.objective.context
    assert context is not None
    context = replace(context, options=ContextOptions(mask=False))
    return replace(recipe, objective=replace(recipe.objective, context=context))


def worlds(scale: DemoScale) -> dict[str, DemoWorld]:
    """The two parts: vectors of made factors, and pictures on a locked tower."""
    latents = {SIGLIP: RECIPES["latents-strong-siglip"](), SIGLIXP: RECIPES["latents-strong-siglixp"]()}
    locked = replace(RECIPES["siglip-locked"](), batch_size=1024, steps=300, log_every=10)
    return {
        "latents": DemoWorld(
            "Context on vectors",
            "A made world in which the effect of the objective can be measured in seconds: vectors in place of images, "
            "captions that name some of their factors, few-shot classes that no caption names, and nuisance that no "
            "caption speaks of. The last model is the control: without the mask a row may look itself up, so there is "
            "nothing to learn from context.",
            latents | {NO_MASK: _no_mask(latents[SIGLIXP])},
            seeds=3,
            source="latents:captions",
        ),
        "pictures": DemoWorld(
            "Context on pictures, on a strong tower that is locked",
            "Pictures of real Unicode characters, drawn in several type faces, with captions of script and shape; "
            "few-shot classes are characters that were held out. The image tower, whitened patches and their "
            "dictionary, is fitted once and locked; a small head and the text tower learn. The control is a model's "
            "own image embeddings projected onto the span of its caption embeddings, which costs no training: what it "
            "gains, context need not be thanked for.",
            {SIGLIP: locked, SIGLIXP: with_context(locked, tau=0.01, alpha=0.7)},
            seeds=2 if scale == "default" else 1,
            source="glyphs:captions",
            span=True,
        ),
    }


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


def found_in(results: Sequence[Result]) -> DemoFindings:
    """The figures of one part, under the names of the page."""
    few, zero = frames(results)
    return DemoFindings(few.replace({"model": SPANS}), zero, int(few["shots"].max()))


def conclusions(found: Mapping[str, DemoFindings]) -> list[str]:
    """What was found, in two sentences that follow from the figures whichever way they point."""
    latents, pictures = found["latents"], found["pictures"]
    mean = f"the mean of six few-shot classifiers at {latents.shots} shots"
    base = f"SigLIP's {latents.base()} %"
    first = (
        f"On vectors, context {_change(latents.gain(), mean, base)}, with zero-shot accuracy "
        f"at {latents.zero_shot_gain().signed()}; without the mask the change is {latents.gain(NO_MASK).signed()}."
    )
    span = pictures.gain(SPANS[f"{SIGLIP}+span"])
    second = (
        f"On pictures, on a locked tower, it {_change(pictures.gain(), 'that mean', f'{pictures.base()} %')}, with "
        f"zero-shot accuracy at {pictures.zero_shot_gain().signed()}; projecting SigLIP onto the span of its texts "
        f"gives {span.signed()} without any training."
    )
    return [first, second]


def _change(gain: Summary, what: str, base: str) -> str:
    """Verb, object and size of a change; a verb with a direction takes a size without a sign."""
    if gain.count > 1 and abs(gain.mean) <= gain.std:
        return f"does not clearly change {what} ({gain.signed()} points over {base})"
    size = replace(gain, mean=abs(gain.mean))
    return f"{'raises' if gain.mean > 0 else 'lowers'} {what} by {size} points over {base}"


def section(page: ReportPage, world: DemoWorld, found: DemoFindings, jobs: Sequence[Job], out: Path) -> None:
    """Add one part to the page."""
    page.heading(world.title)
    page.paragraph(world.text)
    if world.span:
        _samples(page)
    models = found.models()
    zero = {name: found.zero_shot(name).mean for name in world.recipes}
    page.figure(
        plots.few_shot_curves(found.few, models, ("prototype", "tip-adapter", "softmax"), zero, _COLOURS),
        "Accuracy over the examples (shots) of each class, for three classifiers. Dotted: zero-shot accuracy, on other "
        "tasks, which captions have words for. Points of one number of shots are side by side, so that none is "
        "hidden; bars: spread over training seeds.",
    )
    pairs = {name: (name, SIGLIP) for name in models if name != SIGLIP}
    page.figure(
        paper_plots.gain_per_classifier(found.few, pairs, PAPER_METHODS, found.shots, _COLOURS),
        f"Gain over SigLIP with {found.shots} examples a class, for each of the paper's six classifiers.",
    )
    rows = []
    for name in models:
        zero_shot = str(found.zero_shot(name)) if name in world.recipes else ""
        own = found.few[(found.few["model"] == name) & (found.few["shots"] == found.shots)]
        cells = [str(over_seeds(mean_over_tasks(own[own["method"] == method], ["model"]))) for method in PAPER_METHODS]
        rows.append((name, zero_shot, *cells))
    columns = ("model", "zero-shot", *(plots.METHOD_NAMES[method] for method in PAPER_METHODS))
    page.table(f"Zero-shot and {found.shots}-shot accuracy in percent.", columns, rows)
    first = {job.name: job for job in jobs if job.recipe.seed == 0}
    if world.span:
        _neighbours(page, {name: first[name] for name in world.recipes}, out)
    logs = {name: metrics(job, out) for name, job in first.items()}
    page.figure(paper_plots.training_dynamics(logs, _COLOURS), f"Training, of seed 0. {_emergence(logs)}")


def _emergence(logs: Mapping[str, pd.DataFrame]) -> str:
    """Whether context came into use: far fewer neighbours than the batch has rows."""
    last = logs[SIGLIXP].iloc[-1]
    rows = last["examples"] / last["step"]
    words = "Context is in use" if last["effective_neighbours"] < 0.5 * rows else "Context is not in use"
    return (
        f"{words}: at the end a row reads {last['effective_neighbours']:.0f} of its {rows - 1:.0f} neighbours, with "
        f"tau_context {last['tau_context']:.2g}."
    )


def _samples(page: ReportPage) -> None:
    images, texts, _ = GlyphCaptions(GlyphWorld()).batch(np.arange(8), 0)
    tiles = [paper_plots.Tile(image, text) for image, text in zip(_pictures(images), texts, strict=True)]
    page.figure(paper_plots.picture_rows([("what training reads", tiles)]), "Pictures with one of their captions.")


def _pictures(images: Tensor) -> list[np.ndarray]:
    return list(images.permute(0, 2, 3, 1).contiguous().numpy())


_LOOKED_UP = np.arange(10**6, 10**6 + 1000)  # far behind the samples that training reads
_ASKED, _SHOWN = (0, 1), 5


def _neighbours(page: ReportPage, jobs: Mapping[str, Job], out: Path) -> None:
    """What pictures find when they look up a thousand others, by each model."""
    world = GlyphWorld()
    source = GlyphCaptions(world)
    images, texts, _ = source.batch(_LOOKED_UP, 0)
    scripts = world.table.scripts[source.subjects(_LOOKED_UP)[0]]
    pictures, rows, shares = _pictures(images), [], []
    nearest: dict[str, np.ndarray] = {}
    for name, job in jobs.items():
        embedded = load_model(job.folder(out) / "model", "cpu").embed_images(pictures).numpy()
        nearest[name] = exact_neighbours(embedded, embedded, _SHOWN + 1).rows[:, 1:]  # the first is the picture itself
        shares.append(f"{100 * np.mean(scripts[nearest[name]] == scripts[:, None]):.0f} % by {name}")
    for row in _ASKED:
        for name in jobs:
            tiles = [
                paper_plots.Tile(pictures[each], texts[each], bool(scripts[each] == scripts[row]))
                for each in nearest[name][row]
            ]
            rows.append((f"nearest by {name}", [paper_plots.Tile(pictures[row], f"ASKED: {texts[row]}"), *tiles]))
    page.figure(
        paper_plots.picture_rows(rows, [_COLOURS[name] for _ in _ASKED for name in jobs]),
        "Two pictures (left) and the five that each model holds to be most similar, out of a thousand that were not "
        "trained on; a green frame marks the same script. Of all thousand pictures' five nearest are of the same "
        f"script: {' and '.join(shares)}. In training with context, what such neighbours say must fit the picture's "
        "own caption.",
    )


def findings_as_json(found: DemoFindings) -> dict[str, Any]:
    """The figures of one part: means with spreads, and each run's accuracy, averaged over tasks and draws."""

    def plain(summary: Summary) -> dict[str, float | int | None]:
        return {"mean": summary.mean, "std": None if np.isnan(summary.std) else summary.std, "seeds": summary.count}

    others = [model for model in found.models() if model != SIGLIP]
    keys = ["model", "training_seed", "method", "shots"]
    each = found.few.groupby(keys, sort=False, as_index=False)["value"].mean().round(2)
    return {
        "shots": found.shots,
        "siglip": plain(found.base()),
        "gain": {model: plain(found.gain(model)) for model in others},
        "gain_per_classifier": {
            model: {method: plain(found.gain(model, method)) for method in PAPER_METHODS} for model in others
        },
        "zero_shot": {model: plain(found.zero_shot(model)) for model in dict.fromkeys(found.zero["model"])},
        "few_shot": {key: each[key].tolist() for key in [*keys, "value"]},
    }
