"""``recollect search``: images of a memory by words."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from recollect.commands.memory_options import MemoryOptions
from recollect.core.errors import UserError
from recollect.core.progress import console as errors
from recollect.core.progress import output
from recollect.memory.store import Memory
from recollect.models import DualEncoder, load_model
from recollect.reports.gallery import save_results
from recollect.search.baselines.pool_wide import NO_CAPTIONS
from recollect.search.captioning.file import CaptionFile
from recollect.search.episodes.options import EpisodeOptions
from recollect.search.memory_pool import MemoryPool
from recollect.search.methods import MethodOptions, SearchContext, prepare
from recollect.search.pixels import PixelCache
from recollect.search.searcher import Searcher, SearchReport, SearchResult


@dataclass(frozen=True)
class Search:
    """Find images of a memory by words; --rerank episode lets the model adapt to each query on what it found."""

    words: tyro.conf.Positional[tuple[str, ...]]
    """The memory, then one or more queries, each in quotes."""
    queries: Path | None = None
    """A text file of further queries, one a line."""
    top: int = 20
    """Images for each query."""
    where: str | None = None
    """Search only images that satisfy a filter, e.g. "source = 'emoji' and year >= 2020"."""
    rerank: Literal["none", "episode", "episode-full", "text-to-text"] = "none"
    """Rank the first k again by the model adapted to the query (episode; episode-full changes all parameters), or find
    images by their captions alone (text-to-text)."""
    episode: EpisodeOptions = field(default_factory=EpisodeOptions)
    model: str | None = None
    """The model that embedded the memory; by default where it was then."""
    captions: Path | None = None
    """Captions that a model wrote, if not in the memory's folder."""
    out: Path | None = None
    """A .json file, or an .html gallery."""
    device: str | None = None
    """Where to compute; the best there is by default."""
    reading: tyro.conf.OmitArgPrefixes[MemoryOptions] = field(default_factory=MemoryOptions)
    """Queries that read a memory, this one or another of the same model."""

    def run(self) -> None:
        """Search, print and write."""
        if not self.words:
            raise UserError('name a memory and a query: recollect search MEMORY "a red umbrella"')
        if self.top < 1:
            raise UserError(f"--top {self.top}: at least 1")
        if self.out is not None and self.out.suffix not in (".json", ".html"):
            raise UserError(f"--out {self.out}: results are written as .json or .html. Name a file that ends so.")
        self._check_reading()
        address, *queries = self.words
        queries += self._from_file()
        if not queries:
            raise UserError("no query was given. Write it in quotes behind the memory, or name a file with --queries.")
        if not any(query.strip() for query in queries):
            raise UserError("every query is empty. Say what to look for.")
        memory = Memory.open(address)
        written = None if self.captions is None else CaptionFile(self.captions)
        pool = MemoryPool(memory, self.where, written)
        if self.rerank != "none" and not pool.has_captions():
            raise UserError(NO_CAPTIONS)
        name = self.model or memory.info().model_name
        if not name:
            raise UserError(f"{address}: does not say which model embedded it. Name it with --model.")
        encoder = load_model(name, self.device)
        memory.check_model(encoder.fingerprint, name)
        setting = SearchContext(encoder, pool, MethodOptions(episode=self.episode), PixelCache(encoder.transform))
        method = "zero-shot" if self.rerank == "none" else self.rerank
        search = prepare(method, setting).search
        if self.reading.asked:
            search, name = self._reading_searcher(encoder, pool, name)
        results = search.search(queries, self.top)
        about = {"memory": address, "model": name, "method": method, "where": self.where, "top": self.top}
        _show(results, search.report, output())
        if self.out is not None:
            save_results(results, search.report, about, self.out)
            output().print(f"results: {self.out}", highlight=False)

    def _check_reading(self) -> None:
        self.reading.check()
        if not self.reading.asked:
            return
        if self.reading.mode not in (None, "text"):
            raise UserError(f"--mode {self.reading.mode}: here only words read the memory. Leave it out, or say text.")
        if self.reading.near is not None:
            raise UserError("--near: is for evaluation; here nothing is tested.")
        if self.rerank != "none":
            raise UserError(f"--memory: cannot be joined with --rerank {self.rerank}; leave out one of both.")

    def _reading_searcher(self, encoder: DualEncoder, pool: MemoryPool, name: str) -> tuple[Searcher, str]:
        reading = replace(self.reading, mode="text")
        query_encoder = reading.apply(encoder)
        return Searcher(encoder, pool, query_encoder=query_encoder), reading.name(name, query_encoder)

    def _from_file(self) -> list[str]:
        if self.queries is None:
            return []
        try:
            return self.queries.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            raise UserError(f"{self.queries}: not a text file in UTF-8") from None


def _show(results: list[SearchResult], report: SearchReport, console: Console) -> None:
    for result in results:
        if not result.hits:
            console.print(result.query.strip() or "(empty)", style="italic", highlight=False, markup=False)
        table = Table("rank", "before", "score", "id", "caption", title=escape(result.query), title_justify="left")
        for rank, hit in enumerate(result.hits, start=1):
            before = "" if hit.zero_shot_rank in (rank, None) else str(hit.zero_shot_rank)
            table.add_row(str(rank), before, f"{hit.score:.3f}", escape(hit.item.id), escape(hit.item.caption or ""))
        if result.hits:
            console.print(table)
        for note in result.notes:
            console.print(f"  {note}", style="yellow", highlight=False, markup=False)
    if report.not_finite:
        errors.print(f"{report.not_finite} of {report.queries} episodes broke down; their ranking is zero-shot")
