"""The page: what context, prefixes, a memory and episodes do, with terms, papers, machine and what to do next."""

import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recollect.core.files import write_json
from recollect.evaluation.results import Result
from recollect_papers.demo import DemoScale, context, reading
from recollect_papers.demo.context import DemoFindings, DemoWorld, conclusions, worlds
from recollect_papers.demo.reading import Readings, readings
from recollect_papers.demo.report_page import ReportPage
from recollect_papers.runs import Job, run

PAPERS = (
    ("Context (LIxP)", "Roth et al., Context-Aware Multimodal Pretraining, 2024."),
    ("Prefixes", "Saito et al., Prefix Conditioning Unifies Language and Label Supervision, CVPR 2023."),
    ("Memory (RECO)", "Iscen et al., Retrieval-Enhanced Contrastive Vision-Text Models, ICLR 2024."),
    (
        "Adaptive search (EFSA)",
        "Huzaifa and Kementchedjhieva, Episodic Few-Shot Adaptation for Text-to-Image Retrieval.",
    ),
)
_TERMS = (
    ("zero-shot", "A picture gets the class whose prompt, such as “a photo of a river”, is nearest to it."),
    ("few-shot, shots", "Classes are learnt from so many example pictures each, by their embeddings alone."),
    ("prototype", "The mean of a class's examples; a picture gets the class of the nearest one."),
    ("context", "In training, what a picture finds among the others of its batch must fit its caption too."),
    ("mask", "A row does not find itself. Without it there is nothing to learn from context."),
    ("tau_context", "The look-up's temperature: the smaller, the fewer neighbours a picture reads."),
    ("effective neighbours", "How many neighbours a look-up spreads over: the exponential of its entropy."),
    ("locked tower", "A part of the model that stays as it is; what it makes of each picture is computed once."),
    ("projected", "Image embeddings without what is outside the span of the captions' embeddings. No training."),
    ("gain", "Points of accuracy over SigLIP of the same seed: same data, same start, same number of steps."),
    ("±", "Standard deviation over training seeds; figures are means over tasks."),
    ("R@k", "Share of queries whose right picture is among the first k."),
)  # fmt: skip
NEXT = (
    ("recollect index build photos/ --model MODEL --out indexes/photos", "Your own pictures, with any CLIP model."),
    ("recollect serve indexes/photos", "The page in the browser: search, teach classes by clicks, find duplicates."),
    ("recollect classify --support examples/ --images new/ --model MODEL", "A classifier from a few examples a class."),
    ("recollect train siglixp-locked --data pairs.parquet --out runs/mine", "Context on your own pairs, in minutes."),
    ("recollect-papers lixp/table-4 --scale small", "The papers' tables at this scale; recollect-papers lists all."),
)  # fmt: skip


def demo(out: Path, scale: DemoScale, workers: int | None = None) -> Path:
    """Train, evaluate and write ``out/report.html`` and ``out/results.json``.

    Runs that are in ``out/runs`` already are not made again.

    Returns:
        The page.
    """
    start, parts = (time.monotonic(), _processor_seconds()), worlds(scale)
    jobs = {name: world.jobs(scale) for name, world in parts.items()}
    run(_in_order([reading.reading_job(scale), *(job for each in jobs.values() for job in each)]), out, workers)
    results = {name: run(each, out) for name, each in jobs.items()}
    found = {name: context.found_in(each) for name, each in results.items()}
    read = readings(out, scale)
    page = ReportPage("What embeddings look up: four papers on built-in data")
    for sentence in (*conclusions(found), *read.sentences()):
        page.paragraph(sentence, "lead")
    seconds = (time.monotonic() - start[0], _processor_seconds() - start[1])
    about = _about(scale, workers, seconds, next(iter(results.values()))[0])
    page.paragraph(_how(parts, scale), "quiet")
    page.paragraph(" ".join(f"{name}: {value}." for name, value in about.items()), "quiet")
    for name, world in parts.items():
        context.section(page, world, found[name], jobs[name], out)
    reading.sections(page, read, scale)
    page.heading("Words")
    page.definitions("What the terms on this page mean.", _TERMS)
    page.heading("Papers")
    page.definitions("None has public code; each formula here is tested against a slow reference.", PAPERS)
    page.heading("What to do next")
    page.definitions("In the folder of the project:", NEXT, code=True)
    page.save(out / "report.html")
    write_json(out / "results.json", _as_json(found, read, scale, about))
    return out / "report.html"


def _in_order(jobs: Sequence[Job]) -> list[Job]:
    """All jobs side by side, so that no core waits: the first on a locked tower computes the features that the others
    on it read, of what is trained on and of what is asked.

    Those come when it has had the time of a few others to do so; the last jobs are short.
    """
    locked = [job for job in jobs if job.recipe.model.locked != "none"]
    others = [job for job in jobs if job.recipe.model.locked == "none"]
    return [*locked[:1], *others[:3], *locked[1:], *others[3:]]


def _processor_seconds() -> float:
    """Of this process and of those that it waited for."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def _how(parts: Mapping[str, DemoWorld], scale: DemoScale) -> str:
    seeds = "; ".join(f"{world.title.lower()}: {world.seeds}" for world in parts.values())
    seeds += " (controls that are trained: 1)"
    short = " Scale smoke: a few steps, to see that all works; its figures mean nothing." if scale == "smoke" else ""
    return (
        f"Training seeds: {seeds}; the last three sections: 1. Both models of a pair see the same samples in the same "
        "order, start from the same weights and make the same number of steps. Figures are means over tasks, ± "
        f"standard deviation over seeds; gains are paired by seed.{short}"
    )


def _about(scale: DemoScale, workers: int | None, seconds: tuple[float, float], result: Result) -> dict[str, str]:
    """Command, time (on the clock, of processors) and machine."""
    chosen = f" --workers {workers}" if workers else ""
    machine = f"{result.environment['device'] or platform.machine()}, {os.cpu_count()} cores"
    return {
        "Command": f"recollect-papers demo --scale {scale}{chosen}",
        "Time": f"{seconds[0]:.0f} seconds ({seconds[1]:.0f} of processor time), less where runs were there already",
        "Machine": machine,
        "Versions": ", ".join(f"{name} {result.environment[name]}" for name in ("recollect", "torch", "python")),
    }


def _as_json(
    found: Mapping[str, DemoFindings], read: Readings, scale: DemoScale, about: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "scale": scale,
        "about": dict(about),
        "conclusions": [*conclusions(found), *read.sentences()],
        "worlds": {name: context.findings_as_json(each) for name, each in found.items()},
        "readings": read.as_json(),
    }
