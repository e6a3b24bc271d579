"""``recollect search``: search an index by words, by pictures, or by both."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from recollect.cli.index import OnIndex
from recollect.cli.parser import Arg, say, show_table, warn_unused
from recollect.core.errors import user_errors
from recollect.core.paths import check_writable
from recollect.core.validation import check_number, refuse
from recollect.efsa.options import EpisodeOptions

if TYPE_CHECKING:
    from recollect.index import CutOff, Hits, Index, Query


@dataclass(frozen=True)
class Search(OnIndex):
    """Search the pictures of an index by words, by pictures, or by both.

    recollect search INDEX 'a red boat' --where "folder = 'Norway'"

    recollect search INDEX 'a red boat' --image harbor.jpg --minus people
    """

    query: Annotated[tuple[str, ...], Arg(place="QUERY")] = ()
    """One or more queries, each in quotes."""
    image: tuple[Path, ...] = ()
    """Pictures to add to every query, or to search for if there is no query."""
    minus: tuple[str, ...] = ()
    """Words to subtract from every query."""
    where: Annotated[str | None, Arg(metavar="SQL")] = None
    """Search only pictures that match a filter, e.g. "folder = 'Norway' and taken >= '2020'"."""
    k: int = 20
    """Results per page and query."""
    page: int = 1
    """Page of results."""
    min_score: Annotated[str | None, Arg(metavar="SCORE")] = None
    """Minimum cosine of results; for searches by words, `learned` uses the value that nine of ten captions in the index
    reach with their own picture, or an estimate if there are fewer than 20 captions."""
    among: Literal["images", "captions"] = "images"
    """Search the pictures, or their captions."""
    adapt: bool = False
    """Adapt the model to each query and rerank its top results (EFSA); needs captions."""
    normalize: bool = False
    """Subtract each picture's typical score over many queries, so pictures that match everything rank lower."""
    exact: bool = False
    """Search exactly, even if the index is accelerated."""
    out: Path | None = None
    """Write the results to a .json file or an .html gallery."""
    queries: Path | None = None
    """Text file of additional queries, one per line."""
    model: str | None = None
    """Path or hub id of the index's model, if it has moved (default: as recorded in the index)."""
    device: str | None = None
    """Device to embed on (default: the fastest available)."""
    image_weight: Annotated[float, Arg(rare=True)] = 1.0
    """Weight of each --image (words have weight 1)."""
    minus_weight: Annotated[float, Arg(rare=True)] = 1.0
    """Weight of each --minus."""
    episode: Annotated[EpisodeOptions, Arg(rare=True)] = field(default_factory=EpisodeOptions)

    def run(self) -> None:
        """Search, print and write."""
        from recollect.cli.gallery import save_results

        self._check()
        check_writable(self.out, "--out", "new file")
        queries = self._queries()
        index = self.open()
        if self.model is not None or self.device is not None:
            index.model.open(self.model, self.device)
        if self.normalize:
            from recollect.efsa.normalization import normalized

            index = normalized(index)
        results = index.search_many(
            queries, self.k, where=self.where, page=self.page, min_score=self._cut(index), exact=self.exact,
            by="image" if self.among == "images" else "text", rerank=self._reranker(index),
        )  # fmt: skip
        about: dict[str, Any] = {
            "index": index.address, "model": index.record.model_name, "among": self.among,
            "adapt": self.adapt, "where": self.where, "k": self.k, "page": self.page,
            "min_score": self.min_score,
        }  # fmt: skip
        if self.normalize:
            settings = index.settings  # type: ignore[attr-defined]
            about["normalization"] = asdict(settings)
            say(f"normalized: {settings}")
        _print_results(results)
        if self.out is not None:
            save_results(results, about, self.out)
            say(f"results: {self.out}")

    def _check(self) -> None:
        check_number("--k", self.k, least=1)
        check_number("--page", self.page, least=1)
        check_number("--image-weight", self.image_weight, above=0)
        check_number("--minus-weight", self.minus_weight, above=0)
        self._fixed_min_score()
        out, captions = self.out, self.among == "captions"
        refuse(
            (out is not None and out.suffix not in (".json", ".html"),
             f"--out {out}: name a file that ends in .json or .html."),
            (self.adapt and (self.normalize or captions),
             "--adapt: cannot be combined with --normalize or --among captions. Remove one."),
            (self.normalize and captions,
             "--normalize: cannot be combined with --among captions. Remove one."),
        )  # fmt: skip
        if not self.image:
            warn_unused(self, "image_weight", why="there is no --image.")
        if not self.minus:
            warn_unused(self, "minus_weight", why="there is no --minus.")
        if not self.adapt:
            warn_unused(self.episode, why="only used with --adapt.", prefix="episode.")

    def _fixed_min_score(self) -> float | None:
        """Return --min-score as a number; None if it is not given or `learned`."""
        if self.min_score in (None, "learned"):
            other = self.normalize or self.among == "captions"
            message = "--min-score learned: only for plain searches of pictures by words. Give a score instead."
            refuse((self.min_score is not None and other, message))
            return None
        with user_errors(f"--min-score {self.min_score}: must be a number or `learned`", ValueError):
            score = float(self.min_score)
        return check_number("--min-score", score, least=-1, most=1)

    def _cut(self, index: "Index") -> "float | CutOff | None":
        if self.min_score != "learned":
            return self._fixed_min_score()
        learned = index.cut_off()
        say(f"cut-off: {learned}")
        return learned

    def _queries(self) -> "list[Query]":
        from recollect.core.files import read_text
        from recollect.index import Query

        texts = list(self.query)
        if self.queries is not None:
            texts += read_text(self.queries, "file of queries, one per line").splitlines()
        none = "missing: QUERY. Write it in quotes after the index, or give a picture with --image."
        empty = bool(texts) and not any(text.strip() for text in texts)
        refuse((not texts and not self.image, none), (empty, "all queries are empty. Write what to search for."))
        queries = [Query.words(text) for text in texts]
        added = [self.image_weight * Query.picture(path) for path in self.image]
        added += [-self.minus_weight * Query.words(words) for words in self.minus]
        if not queries:
            queries, added = added[:1], added[1:]
        return [query if query.empty else sum(added, query) for query in queries]

    def _reranker(self, index: "Index") -> Any:
        if not self.adapt:
            return None
        from recollect.efsa.rerank import episode_reranker

        return episode_reranker(index, self.episode)


def _print_results(results: "list[Hits]") -> None:
    """Print a table for each run of hits scored by the same model."""
    from recollect.cli.gallery import scored_parts
    from recollect.index.hits import MODEL

    for result in results:
        parts = scored_parts(result)
        say(result.query.strip() or "(empty)", "italic")
        for scored_by, run in parts:
            plain = scored_by == MODEL
            title = f"scored by: {scored_by}" if len(parts) > 1 or not plain else None
            rows = []
            for rank, hit in run:
                before = "" if hit.zero_shot_rank in (rank, None) else str(hit.zero_shot_rank)
                about = (f"{hit.score:.3f}", hit.id[:12], hit.caption, str(hit.path or ""))
                rows.append((str(rank), *([] if plain else [before]), *about))
            show_table(("rank", *([] if plain else ["before"]), "score", "id", "caption", "file"), rows, title)
        if not result:
            say(f"  no results from rank {result.first_rank:,} on" if result.first_rank > 1 else "  no results")
        for note in result.notes:
            say(f"  {note}", "yellow")
