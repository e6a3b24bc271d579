"""``recollect search``: images of a memory by words, by pictures, or by both."""

from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from recollect.cli.memory_options import MemoryOptions
from recollect.cli.memory_reading import reading, reading_name
from recollect.cli.positionals import MemoryPlace
from recollect.cli.unread import refuse_unread
from recollect.core.errors import UserError
from recollect.core.files import check_writable, read_text
from recollect.core.progress import console as errors
from recollect.core.progress import output, printable
from recollect.efsa.options import PRINTED, EpisodeOptions
from recollect.evaluation.reports.gallery import save_results, scored_parts
from recollect.memory import Memory
from recollect.memory.opening import model_of
from recollect.search.cutoff import LearntCutOff, cut_off_of
from recollect.search.normalisation import NormalisedPool
from recollect.search.opening import open_searcher
from recollect.search.query import Query
from recollect.search.searcher import MODEL, Searcher, SearchReport, SearchResult


@dataclass(frozen=True)
class Reading:
    """Queries that read a memory, this one or another of the same model, before they search (RECO)."""

    memory: str | None = None
    """A folder, or milvus://host:port/collection."""
    fusion: str | None = None
    """The OUT/model of `recollect train reco`, or `mean`, the plain mean with what was found."""
    k: int | None = None
    """Rows that each query reads; by default as many as the fusion was trained with, 10 for `mean`."""
    where: str | None = None
    """Read only rows that satisfy a filter."""


@dataclass(frozen=True)
class Search:
    """Find images of a memory by words, by pictures, or by both; --rerank episode adapts the model to each query.

    A query is words, taken as they are, or a sum in which words stand in double quotes and pictures are files:

        recollect search MEMORY 'a red boat'
        recollect search MEMORY '"red boat" + harbour.jpg - 0.5 * "sunset"'
        recollect search MEMORY --image harbour.jpg
    """

    memory: MemoryPlace
    """A folder, or milvus://host:port/collection."""
    query: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[QUERY ...]")] = ()
    """One or more, each in quotes."""
    image: tuple[Path, ...] = ()
    """Pictures that every query also asks for; without a query, they are one by themselves."""
    minus: tuple[str, ...] = ()
    """Words that every query takes away."""
    image_weight: float = 1.0
    """Of each --image, where words have 1."""
    minus_weight: float = 1.0
    """Of each --minus."""
    literal: bool = False
    """Take every query as words, whatever signs and quotes it has."""
    queries: Path | None = None
    """A text file of further queries, one a line."""
    k: int = 20
    """Images of a page, for each query."""
    page: int = 1
    """2 for the next k images, and so on."""
    where: str | None = None
    """Search only images that satisfy a filter, e.g. "source = 'emoji' and year >= 2020"."""
    min_score: float | Literal["learnt"] | None = None
    """Leave out images whose cosine by the model as it is lies below; how many, is said. `learnt` takes what nine of
    ten of the memory's captions give to their own picture, for searches by words."""
    among: Literal["images", "captions"] = "images"
    """Find images by what they show, or by what their captions say."""
    normalise: bool = False
    """Take from each score what the image gets from any query (the memory's captions), so that no image is found by
    everything; how much, is chosen by the captions, and printed."""
    exact: bool = False
    """Compare with every image, also where the memory has an index (`recollect memory index`)."""
    rerank: Literal["none", "episode", "episode-paper", "episode-full"] = "none"
    """Rank the first --episode.k again by the model adapted to the query; episode-paper has the loss and step that the
    paper prints, episode-full changes all parameters."""
    episode: EpisodeOptions = field(default_factory=EpisodeOptions)
    model: str | None = None
    """The model that embedded the memory; by default where it was then."""
    captions: Path | None = None
    """Captions that a model wrote, if not in the memory's folder."""
    out: Path | None = None
    """A .json file, or an .html gallery."""
    device: str | None = None
    """Where to compute; the best there is by default."""
    read: Reading = field(default_factory=Reading)

    def run(self) -> None:
        """Search, print and write."""
        self._check()
        queries = self._queries()

        searcher = open_searcher(
            self.memory, model=self.model, rerank=self.rerank, among=self.among, normalise=self.normalise,
            episode=self.episode, captions=self.captions, exact=self.exact, device=self.device,
        )  # fmt: skip
        name = self._reads(searcher)
        cut = self._cut(searcher)
        results = searcher.search(queries, self.k, where=self.where, page=self.page, min_score=cut)
        about: dict[str, Any] = {
            "memory": self.memory, "model": name, "among": self.among, "rerank": self.rerank, "where": self.where,
            "k": self.k, "page": self.page, "min_score": self.min_score,
        }  # fmt: skip
        if isinstance(searcher.pool, NormalisedPool):
            about["normalisation"] = asdict(settings := searcher.pool.settings)
            output().print(f"normalised: {settings}", highlight=False, soft_wrap=True)
        for place, text in enumerate(() if self.literal else (*self.query, *self._from_file())):
            if (file := _picture_in_words(text)) is not None:
                said = f"{file} is a picture here, but this was read as words: --image {file}, or '{file} + \"words\"'"
                results[place] = replace(results[place], notes=(*results[place].notes, said))
        show(results, searcher.report, output())
        if self.out is not None:
            save_results(results, searcher.report, about, self.out)
            output().print(f"results: {self.out}", highlight=False, soft_wrap=True)

    def _check(self) -> None:
        for name in ("k", "page"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name} {getattr(self, name)}: at least 1")
        if self.min_score == "learnt" and (self.normalise or self.among == "captions" or self.read.memory is not None):
            raise UserError(
                "--min-score learnt: is of cosines with images by the model as it is. Name a score instead."
            )
        if isinstance(self.min_score, float) and not -1 <= self.min_score <= 1:
            raise UserError(f"--min-score {self.min_score:g}: a cosine lies between -1 and 1")
        for option in ("image_weight", "minus_weight"):
            if not 0 < getattr(self, option) < float("inf"):
                raise UserError(f"--{option.replace('_', '-')} {getattr(self, option):g}: must be above 0 and finite")
        check_writable(self.out, "--out")
        if self.out is not None:
            if self.out.suffix not in (".json", ".html"):
                raise UserError(f"--out {self.out}: results are written as .json or .html. Name a file that ends so.")
            if self.out.is_dir():
                raise UserError(f"--out {self.out}: is a folder. Name a file.")
        self._refuse_unread()
        read = self.read
        if (read.memory is None) != (read.fusion is None):
            raise UserError("--read.memory and --read.fusion: name both, the memory and what reads it, or neither.")
        if read.memory is None:
            why = "says how a memory is read. Name one with --read.memory."
            refuse_unread(read, "k", "where", why=why, before="read.")
        if read.memory is not None and self.rerank != "none":
            raise UserError(f"--read.memory: cannot be joined with --rerank {self.rerank}; leave out one of both.")

    def _refuse_unread(self) -> None:
        """Refuse options that say nothing beside the others."""
        if not self.image:
            refuse_unread(self, "image_weight", why="is of pictures. Name one with --image FILE.")
        if not self.minus:
            refuse_unread(self, "minus_weight", why="is of words to take away. Name them with --minus WORDS.")
        if not self.query and self.queries is None:
            refuse_unread(self, "literal", why="is for queries in words, and there is none.")
        if self.rerank == "none":
            refuse_unread(self, "episode", why="is of --rerank episode. Add that, or leave this out.")
        refuse_unread(
            self.episode, "parameters", before="episode.",
            why="--rerank says it: episode learns adapters, episode-full all parameters.",
        )  # fmt: skip
        if self.rerank == "episode-paper":
            why = "--rerank episode-paper has the paper's own. Take --rerank episode."
            refuse_unread(self.episode, *PRINTED, why=why, before="episode.")
        if self.rerank == "episode-full":
            why = "is of adapters, and --rerank episode-full changes all parameters."
            refuse_unread(self.episode, "rank", "scale", "both_xavier", why=why, before="episode.")

    def _cut(self, searcher: "Searcher") -> "float | LearntCutOff | None":
        """The cut-off, learnt where that is asked for."""
        if self.min_score != "learnt":
            return self.min_score

        ids = list(searcher.pool.ids())
        learnt = cut_off_of(Memory.open(self.memory), ids, searcher.pool.vectors(ids))
        output().print(
            f"cut-off: {learnt}; it leaves {learnt.above:.1%} of the pictures on average",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
        return learnt

    def _queries(self) -> "list[Query]":
        texts = [*self.query, *self._from_file()]
        if not texts and not self.image:
            raise UserError("no query was given. Write it in quotes behind the memory, or name a picture with --image.")
        if texts and not any(text.strip() for text in texts):
            raise UserError("every query is empty. Say what to look for.")

        queries = [Query.words(text) if self.literal else Query.parse(text) for text in texts]
        added = [self.image_weight * Query.picture(path) for path in self.image]
        added += [-self.minus_weight * Query.words(words) for words in self.minus]
        if not queries:
            queries, added = added[:1], added[1:]
        return [query if query.empty else sum(added, query) for query in queries]

    def _from_file(self) -> list[str]:
        if self.queries is None:
            return []
        if not self.queries.is_file():
            raise UserError(f"--queries {self.queries}: no such file. It is a text file with one query a line.")
        return read_text(self.queries).splitlines()

    def _reads(self, searcher: "Searcher") -> str:
        """Let queries read a memory, where that is asked for; returns what to call the model."""

        name = model_of(Memory.open(self.memory), self.model)
        if self.read.memory is None:
            return str(name)
        options = MemoryOptions(self.read.memory, self.read.fusion, "text", self.read.k, self.read.where)
        options.check()
        searcher.query_encoder = reading(options, searcher.encoder)
        searcher.scored_by = "model that reads a memory"
        return reading_name(options, name, searcher.query_encoder)


def _picture_in_words(text: str) -> str | None:
    """The file of a picture that a query without double quotes names, and takes for words."""
    from recollect.data.sources.images import PICTURE_ENDINGS

    if Query.parse(text).text != text:
        return None
    for word in (text.strip(), *text.split()):
        with suppress(OSError):  # too long for a name
            if Path(word).suffix.lower() in PICTURE_ENDINGS and Path(word).is_file():
                return word
    return None


def show(results: "list[SearchResult]", report: "SearchReport", console: "Console") -> None:
    """Print what was found: a table for each run of hits that one model scored."""

    for result in results:
        parts = scored_parts(result)
        console.print(printable(result.query.strip() or "(empty)"), style="italic", highlight=False)
        for scored_by, run in parts:
            columns: list[Any] = ["rank", *(["before"] if scored_by != MODEL else []), "score", "id", "caption", "file"]
            title = f"scored by: {scored_by}" if len(parts) > 1 or scored_by != MODEL else None
            table = Table(*columns, title=title, title_justify="left")
            for rank, hit in run:
                before = "" if hit.zero_shot_rank in (rank, None) else str(hit.zero_shot_rank)
                table.add_row(
                    str(rank), *([before] if scored_by != MODEL else []), f"{hit.score:.3f}", printable(hit.item.id),
                    printable(hit.item.caption), printable(str(hit.item.path or "")),
                )  # fmt: skip
            console.print(table)
        if not result.hits:
            ended = f"the list ends before rank {result.first_rank:,}" if result.first_rank > 1 else "nothing found"
            console.print(f"  {ended}", highlight=False)
        for note in result.notes:
            console.print(printable(f"  {note}"), style="yellow", highlight=False)
    if report.not_finite:
        errors.print(f"{report.not_finite} of {report.queries} episodes broke down; their ranking is zero-shot")
