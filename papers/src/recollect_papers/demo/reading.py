"""The demo's other sections: what prefixes, a memory and episodes do, shown on two small models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from recollect.core.seeding import numpy_generator
from recollect.core.types import Kind, caption_prefix
from recollect.data.prompts import GENERAL_TEMPLATES, fill
from recollect.data.sources.derived import Subset
from recollect.efsa.options import EpisodeOptions
from recollect.efsa.rerank import EpisodeReranker
from recollect.evaluation.features import class_prompts, class_text_features
from recollect.evaluation.results import Result
from recollect.evaluation.tasks.classification import ClassificationTask
from recollect.evaluation.tasks.opening import Selection, open_tasks
from recollect.evaluation.zero_shot import zero_shot
from recollect.index import By, Hits, Index, IngestOptions
from recollect.index.source import source_index
from recollect.models import DualEncoder, load_model
from recollect.reco.block import FusionModule, FusionSettings
from recollect.reco.encoder import Mode, RetrievalEnhancedEncoder
from recollect.training.options import Data, Model, ObjectiveOptions
from recollect.training.recipes import RECIPES
from recollect_papers import plots as paper_plots
from recollect_papers.analyse.language import in_plane
from recollect_papers.analyse.maps import clouds
from recollect_papers.analyse.panels import APART, prefixes_panel
from recollect_papers.demo import DemoScale
from recollect_papers.demo.report_page import ReportPage
from recollect_papers.efsa.options import CaptionCorruption
from recollect_papers.efsa.rewording import content_words, reword
from recollect_papers.efsa.sequential import FullEpisodes
from recollect_papers.reco.glyphs import ADDRESS, GlyphPairs, glyph_pool, glyph_tasks, memory_sources
from recollect_papers.runs import Job, StudyEvaluation, run

READER = "captions and labels"
"""The one model of these sections."""

_READINGS: tuple[Kind, ...] = ("caption", "label")
_LABELS, _UNSEEN = "glyphs:labels-half", "glyphs:prompts"
"""Classes of the label set that is trained on, and what only captions speak of."""

_MODES: tuple[Mode, ...] = ("image", "text", "both")
_WAYS: Mapping[Mode, str] = {
    "image": "pictures read the memory",
    "text": "texts read the memory",
    "both": "pictures and texts read the memory",
}
_NEIGHBOURS = (1, 3, 10)  # that are read; RECO has 10
_EACH = 4  # pairs of a character in the memory
_CORRUPTION = CaptionCorruption(0.25, 0.05)
_TEMPERATURE = 1 / 0.07
_PREFIX_COLOURS = ("#000000", "#56B4E9")  # none of a model's
_RATES = (1e-5, 1e-4, 1e-3)  # of episodes, to choose from


@dataclass(frozen=True)
class ReaderSize:
    """How much of everything a scale takes.

    Attributes:
        steps, batch: of the trainings.
        every: take every so-manyth character that the model knows into the memory, and of those that are searched.
        new: take every so-manyth new character into the memory; it can help with no other.
        queries, tasks: pictures of a task that are named, and tasks.
        asked: texts that are searched for.
    """

    steps: int
    batch: int
    every: int
    new: int
    queries: int
    tasks: int
    asked: int


_SIZES: dict[DemoScale, ReaderSize] = {
    "default": ReaderSize(steps=400, batch=256, every=2, new=1, queries=60, tasks=8, asked=200),
    "smoke": ReaderSize(steps=6, batch=32, every=12, new=12, queries=10, tasks=2, asked=6),
}


def reading_job(scale: DemoScale) -> Job:
    """The reader: of captions and labels together, each kind with its prefix."""
    size = _SIZES[scale]
    recipe = replace(
        RECIPES["prefix-tiny"](),
        model=Model("tiny-conv", prefixes=_READINGS),
        data=Data(captions=(ADDRESS,), labels=("glyphs:labels",), sampling="debiased"),
        objective=ObjectiveOptions("softmax", scale=_TEMPERATURE),
        steps=size.steps,
        batch_size=size.batch,
        log_every=10,
    )
    asked = StudyEvaluation(zero_shot=(_LABELS, _UNSEEN), methods=(), prefixes=_READINGS, templates=16)
    return Job(READER, recipe, asked)


@dataclass(frozen=True)
class Readings:
    """What the three sections found, in percent, and their pictures.

    Attributes:
        prefixes: zero-shot accuracy on the label set's classes and on what only captions speak of, by reading.
        apart: share of class prompts whose nearest prompt was read with the same prefix.
        memory: zero-shot accuracy on characters that the model never saw, alone and with a memory of them.
        way: what reads the memory (images, texts or both), and how many neighbours: chosen on other characters.
        own: how names are read without the memory, chosen there too; with it they are read as its captions.
        search: R@1, R@5 and R@10 before episodes and after them.
        named, asked: how many pictures were named, and queries asked.
        pictures: one for each section.
    """

    prefixes: dict[str, dict[str, float]]
    apart: float
    memory: dict[str, float]
    way: tuple[Mode, int]
    own: Kind
    search: dict[str, dict[str, float]]
    named: int
    asked: int
    pictures: tuple[Figure, Figure, Figure]

    def as_json(self) -> dict[str, Any]:
        """The figures."""
        memory = {**self.memory, "reads": self.way[0], "neighbours": self.way[1], "alone_as": self.own}
        return {"prefixes": self.prefixes, "apart": self.apart, "memory": memory, "search": self.search}

    def sentences(self) -> list[str]:
        """What was found, one sentence for each paper, whichever way the figures point."""
        own, other = (_better(self.prefixes[place]) for place in ("label set", "captions only"))
        alone, memory = self.memory["alone"], self.memory["with the memory"]
        ranks = [
            f"{'first' if k == 'R@1' else f'among the first {k[2:]}'} for {self.search['before'][k]:.1f} % of the "
            f"queries before and {self.search['after'][k]:.1f} % after"
            for k in self.search["before"]
        ]
        return [
            f"Prefixes: the classes of the label set are named best {own}, what only captions speak of {other}.",
            f"Memory: a memory of characters that training never showed {change(alone, memory, self.named)} how many "
            f"of them the model names right: {alone:.1f} % alone, {memory:.1f} % with it; no weight has changed.",
            f"Search: an episode on what each query found {self._moved()} the rank of the right picture: "
            f"{', '.join(ranks)}.",
        ]

    def _moved(self) -> str:
        verbs = {change(self.search["before"][k], self.search["after"][k], self.asked) for k in self.search["before"]}
        clear = verbs - {_UNCLEAR}
        return clear.pop().replace("raises", "improves").replace("lowers", "worsens") if len(clear) == 1 else _UNCLEAR


_UNCLEAR = "does not clearly change"


def change(before: float, after: float, count: int) -> str:
    """Whether a share of ``count`` trials, in percent, has changed by more than twice the error of the difference."""
    shares = np.array([before, after]) / 100
    error = 100 * float(np.sqrt(np.sum(shares * (1 - shares)) / count))
    if abs(after - before) <= 2 * error:
        return _UNCLEAR
    return "raises" if after > before else "lowers"


def _better(cells: Mapping[str, float]) -> str:
    """Which reading has the higher accuracy, by the digits that are shown."""
    first, second = sorted(cells, key=lambda reading: -cells[reading])
    if f"{cells[first]:.1f}" == f"{cells[second]:.1f}":
        return f"either way ({cells[first]:.1f} %)"
    return f"when read as a {first} ({cells[first]:.1f} %, as a {second} {cells[second]:.1f} %)"


def readings(out: Path, scale: DemoScale) -> Readings:
    """Measure the three sections on the reader, which is trained unless it is there."""
    job, size = reading_job(scale), _SIZES[scale]
    zero = [result for result in run([job], out, 1) if result.protocol == "zero-shot"]
    model = load_model(job.folder(out) / "model", "cpu")
    prefixes = {"label set": _by_reading(zero, _LABELS), "captions only": _by_reading(zero, _UNSEEN)}
    plane, apart = _prompts(model)
    memory = _memory(model, size)
    search, ranking = _search(model, size)
    pictures = (plane, memory.picture, ranking)
    return Readings(prefixes, apart, memory.found, memory.way, memory.own, search, memory.named, size.asked, pictures)


def _by_reading(zero: Sequence[Result], source: str) -> dict[str, float]:
    """Mean top-1 over the source's tasks, read with each prefix."""
    names = {task.name for task in open_tasks(Selection((source,)), "zero-shot").tasks}
    found: dict[str, list[float]] = {reading: [] for reading in _READINGS}
    for result in zero:
        if result.data in names:
            found[str(result.settings["prefix"])] += [row["value"] for row in result.rows if row["metric"] == "top-1"]
    return {reading: round(float(np.mean(values)), 2) for reading, values in found.items()}


# --- Prefixes ---------------------------------------------------------------------------------------------------------


def _prompts(model: DualEncoder) -> tuple[Figure, float]:
    """Prompts of twenty classes, each read with both prefixes, in the plane."""
    names = open_tasks(Selection((_LABELS,)), "zero-shot").tasks[0].class_names[::5][:20]
    texts = [fill(template, name) for name in names for template in GENERAL_TEMPLATES[::16]]
    panel = prefixes_panel(model, texts, _READINGS, in_plane)
    return clouds([replace(panel.cloud, title="prompts of 20 classes")], _PREFIX_COLOURS), float(panel.measured[APART])


# --- Memory -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Memory:
    """Naming with a memory: the way of reading is chosen on validation's characters.

    Attributes:
        found: accuracy alone and with the memory.
        way: modality that reads, and how many neighbours.
        own: how the model alone reads names.
        named: pictures that were named.
        picture: some of them.
    """

    found: dict[str, float]
    way: tuple[Mode, int]
    own: Kind
    named: int
    picture: Figure


def _memory(model: DualEncoder, size: ReaderSize) -> _Memory:
    """A memory of characters that the model knows and of all that it will be asked for, read in the best way."""
    index = Index.create(width=model.width, model=model.fingerprint, prefix=caption_prefix(model))
    index = Index(index.store, model)
    for source in remembered(size):
        index.add(source, options=IngestOptions(captions="first"))
    fusion = FusionModule(FusionSettings(model.width, kind="mean"))

    def accuracy(
        encoder: DualEncoder | RetrievalEnhancedEncoder, tasks: Sequence[ClassificationTask], prefix: Kind | None
    ) -> float:
        each = [zero_shot(encoder, task, model=READER, prefix=prefix).rows[0]["value"] for task in tasks]
        return round(float(np.mean(each)), 2)

    validation, test = (
        [_some(task, size.queries) for task in glyph_tasks(split)["new characters"][: size.tasks]]
        for split in ("validation", "test")
    )
    readers = {
        (mode, k): RetrievalEnhancedEncoder(model, index, fusion, mode, k) for mode in _MODES for k in _NEIGHBOURS
    }
    own = max(_READINGS, key=lambda reading: accuracy(model, validation, reading))
    captions = caption_prefix(model)  # names that look things up are read as the texts were that they are to find
    way = max(readers, key=lambda way: accuracy(readers[way], validation, captions))
    found = {"alone": accuracy(model, test, own), "with the memory": accuracy(readers[way], test, captions)}
    named = sum(len(task.query) for task in test)
    called = (_names(model, test[0], own), _names(readers[way], test[0], captions))
    return _Memory(found, way, own, named, _neighbours(model, called, index, test[0], way[0]))


def remembered(size: ReaderSize) -> tuple[GlyphPairs, ...]:
    """What the memory holds: some characters that the model knows, and new ones."""
    return (*memory_sources(_EACH, size.every)[:1], *memory_sources(_EACH, size.new)[1:])


def _some(task: ClassificationTask, count: int) -> ClassificationTask:
    """The task with about so many tested pictures, and fewer templates."""
    rows = np.arange(0, len(task.query), max(1, len(task.query) // count))
    return replace(task, query=Subset(task.query, rows), templates=task.templates[::16])


_NAMED = 3  # pictures that are shown


def _shown(task: ClassificationTask) -> list[int]:
    """The first pictures of some classes."""
    labels = task.query.labels
    return [int(np.flatnonzero(labels == label)[0]) for label in np.unique(labels)[:_NAMED]]


def _names(encoder: DualEncoder | RetrievalEnhancedEncoder, task: ClassificationTask, prefix: Kind | None) -> list[str]:
    """What these are called."""
    texts = class_text_features(encoder, task, prefix)
    images = encoder.embed_images([task.query[row].image for row in _shown(task)]).numpy()
    return [task.class_names[best] for best in (images @ texts.T).argmax(1)]


def _neighbours(
    model: DualEncoder, names: tuple[list[str], list[str]], index: Index, task: ClassificationTask, mode: Mode
) -> Figure:
    """Queries of different classes, what they or their names find in the memory, and what they are called without it
    and with it."""
    rows = _shown(task)
    images = [task.query[row].image for row in rows]
    prompts = [class_prompts(task)[task.query.labels[row]][0] for row in rows]
    asked = {"image": model.embed_images(images), "text": model.embed_texts(prompts, caption_prefix(model))}
    modality: By = "text" if mode == "text" else "image"
    found = index.lookup(asked[modality], 5, modality).ids
    lines = []
    for image, row, alone, helped, ids in zip(images, rows, *names, found, strict=True):
        name = task.class_names[task.query.labels[row]]
        tiles = [paper_plots.Tile(np.asarray(image), f"ASKED\nalone: {alone}\nwith the memory: {helped}")]
        items = index.pictures([str(id) for id in ids])
        tiles += [
            paper_plots.Tile(np.asarray(item.open()), item.caption, item.metadata.get("name") == name) for item in items
        ]
        lines.append((name, tiles))
    return paper_plots.picture_rows(lines)


# --- Search -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Asked:
    """A pool of pictures with faulty captions, and some true ones to ask by."""

    index: Index
    texts: list[str]
    true: list[set[str]]

    def ranks(self, rerank: EpisodeReranker) -> tuple[list[Hits], np.ndarray]:
        """What is found, and each query's ranks of its true picture before its episode and after it."""
        results = self.index.search_many(self.texts, rerank.depth, rerank=rerank)
        return results, np.array([_ranks(result, own) for result, own in zip(results, self.true, strict=True)])


def _asked(model: DualEncoder, split: str, size: ReaderSize, count: int) -> _Asked:
    task = glyph_pool(split, size.every)
    truth: list[str] = [""] * len(task.images)
    for text, rows in zip(task.texts, task.matches, strict=True):
        for row in rows:
            truth[row] = text
    words = sorted({word for text in truth for word in content_words(text)})
    captions = [
        reword(text, words, _CORRUPTION, numpy_generator("demo captions", row)) for row, text in enumerate(truth)
    ]
    chosen = list(range(0, len(task.texts), max(1, len(task.texts) // count)))[:count]
    index = source_index(model, task.images, captions)
    return _Asked(
        index, [task.texts[row] for row in chosen], [{str(row) for row in task.matches[row_of]} for row_of in chosen]
    )


def _search(model: DualEncoder, size: ReaderSize) -> tuple[dict[str, dict[str, float]], Figure]:
    """Recall before and after episodes of all parameters, whose step is chosen on characters of validation."""

    def episodes(rate: float) -> EpisodeReranker:
        return EpisodeReranker(model, EpisodeOptions(learning_rate=rate), adapt=FullEpisodes)

    validation = _asked(model, "validation", size, max(2, size.asked // 2))
    scores = {rate: float(np.mean(1 / validation.ranks(episodes(rate))[1][:, 1])) for rate in _RATES}
    asked = _asked(model, "test", size, size.asked)
    chosen = episodes(max(scores, key=lambda rate: scores[rate]))
    results, ranks = asked.ranks(chosen)
    found = {
        when: {f"R@{k}": round(100 * float(np.mean(ranks[:, column] <= k)), 2) for k in (1, 5, 10)}
        for column, when in enumerate(("before", "after"))
    }
    shown = ranks.clip(max=chosen.options.k)
    best = int(np.argmax(shown[:, 0] - shown[:, 1]))
    return found, _ranking(results[best], asked.true[best])


_NOWHERE = 10**6


def _ranks(hits: Hits, true: set[str]) -> tuple[int, int]:
    """Ranks of the best true picture before the episode and after it."""
    places = [(hit.zero_shot_rank or rank, rank) for rank, hit in enumerate(hits, 1) if hit.id in true]
    before, after = zip(*places, strict=True) if places else ((_NOWHERE,), (_NOWHERE,))
    return min(before), min(after)


def _ranking(result: Hits, true: set[str], shown: int = 6) -> Figure:
    """The first pictures before an episode, above those after it."""
    hits = list(enumerate(result, 1))
    before = sorted(hits, key=lambda pair: pair[1].zero_shot_rank or pair[0])
    rows = [
        (
            when,
            [paper_plots.Tile(np.asarray(hit.open()), hit.caption, hit.id in true) for _, hit in row[:shown]],
        )
        for when, row in (("before the episode", before), ("after it", hits))
    ]
    return paper_plots.picture_rows(rows, heading=f"query: “{result.query}”")


# --- The page ---------------------------------------------------------------------------------------------------------


def sections(page: ReportPage, found: Readings, scale: DemoScale) -> None:
    """Add the three sections to the page."""
    page.heading("Prefixes: captions and labels in one model")
    page.paragraph(
        "Prefix conditioning (Saito et al., CVPR 2023). One model, a small convolutional network and a transformer, "
        "is trained on captions and on class labels of characters; a learned token before each text says which of the "
        "two it is, so that the narrow words of labels do not bend those of captions."
    )
    page.figure(
        found.pictures[0],
        "The same prompts, read with each prefix (t-SNE). "
        f"For {found.apart:.0f} % of them the nearest prompt was read with the same prefix.",
    )
    rows = [(place, *(f"{cells[reading]:.1f}" for reading in _READINGS)) for place, cells in found.prefixes.items()]
    columns = ("zero-shot accuracy (%)", *(f"read as a {reading}" for reading in _READINGS))
    page.table("Classes of the label set, and what only captions speak of.", columns, rows)
    page.heading("Memory: concepts that training never showed")
    page.paragraph(
        "RECO (Iscen et al., ICLR 2024). The model stays as it is; a memory holds pairs of pictures and captions, also "
        "of characters that the model has never seen. A picture looks up similar pictures and reads their captions, a "
        "text looks up similar texts and reads their pictures; here what is found is averaged in, the simplest fusion. "
        f"The model is that of the section before. Chosen on other characters: {_WAYS[found.way[0]]}, {found.way[1]} "
        f"at a time; alone the model reads names as a {found.own}. RECO's own fusion learns to read (recollect train "
        "reco), which takes longer than this section."
    )
    page.figure(
        found.pictures[1],
        "Three pictures of new characters (left) and the five pairs of the memory most similar to "
        f"{'their names' if found.way[0] == 'text' else 'them'}. A green frame marks the same character.",
    )
    page.table(
        f"Names of new characters, zero-shot: {found.named} pictures.",
        ("", "accuracy (%)"),
        [(name, f"{value:.1f}") for name, value in found.memory.items()],
    )
    page.heading("Adaptive search: an episode for each query")
    page.paragraph(
        "EFSA (Huzaifa and Kementchedjhieva). The 16 best pictures of a query and their captions are a small training "
        "set: the model takes one step on it, ranks the 16 again and forgets the step. Here all parameters take it (a "
        "convolutional tower has no layers for adapters), its size was chosen on other characters, a quarter of the "
        "captions' words are left out and one in twenty is wrong, as a captioning model's may be."
    )
    page.figure(
        found.pictures[2],
        f"Of {_SIZES[scale].asked} queries the one whose picture rises most. "
        "The green frame marks the right picture; captions are those that were learnt from.",
    )
    rows = [(when, *(f"{value:.1f}" for value in cells.values())) for when, cells in found.search.items()]
    page.table("Share of queries whose picture is among the first k (%).", ("", "R@1", "R@5", "R@10"), rows)
