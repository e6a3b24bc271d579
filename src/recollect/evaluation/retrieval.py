"""Search both ways: recall at k with all true matches counted, for each domain and on average, and what it costs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np
from jaxtyping import Int64

from recollect.core.errors import UserError
from recollect.core.seeding import numpy_generator
from recollect.core.types import Encoder, Kind, Source
from recollect.data.sources.derived import Joined
from recollect.evaluation.features import FeatureCache, image_features
from recollect.evaluation.ranks import NO_RANK, TIE, hits, streaming_ranks
from recollect.evaluation.results import Result, Row
from recollect.models import DualEncoder
from recollect.search.captioning.corruption import PoolCaptions
from recollect.search.cost import Cost, measured
from recollect.search.methods import SEARCH_METHODS, MethodOptions, Prepared, SearchContext, prepare
from recollect.search.pixels import PixelCache
from recollect.search.pool import SourcePool
from recollect.search.searcher import SearchResult, caption_kind
from recollect.tasks.retrieval import RetrievalTask, keep_images

DIRECTIONS = ("text to image", "image to text")

MISSED = np.iinfo(np.int64).max
"""Rank of a true match that a search did not reach."""


def retrieval(
    encoder: Encoder,
    task: RetrievalTask,
    *,
    model: str,
    seed: int = 0,
    prefix: Kind | None = None,
    cache: FeatureCache | None = None,
    depths: Sequence[int] = (1, 5, 10),
) -> Result:
    """Recall at 1, 5 and 10 from text to image and from image to text.

    A query is a hit if any of its true matches is among the first k. Of equal scores the wrong ones come first. An
    image whose picture also stands for another text (``ambiguous``) is in the pool but is neither asked for nor asks,
    and so is a text all of whose images are ambiguous.

    Args:
        model: what to call the model in the result.
        seed: of the model's training.
        prefix: which prefix token the texts get, for models that have them.

    Returns:
        Rows with ``method`` (zero-shot), ``metric`` (recall), ``direction``, ``domain``, ``k``, the number of
        ``queries``, and ``value`` in percent with its 95 % bootstrap interval, ``low`` and ``high``. The domain is that
        of the image, or of the text's images where they agree, else the name of their source; ``all`` and ``mean of
        domains`` are of the whole.
    """
    features = image_features(encoder, task.images, cache)
    task, images = keep_images(task, features.rows), features.images
    texts = encoder.embed_texts(task.texts, prefix).numpy()
    ranks = streaming_ranks(images, texts, task.matches)
    asked = _Asked.of(task)
    rows: list[Row] = []
    for direction, found in zip(DIRECTIONS, (ranks.texts, ranks.images), strict=True):
        rows += recall_rows("zero-shot", direction, *asked.only(direction, found), depths)
    settings = {"images": len(task.images), "texts": len(task.texts), "prefix": prefix}
    return Result("retrieval", model, task.name, seed, rows, settings)


@dataclass(frozen=True)
class _Asked:
    """Which texts and images are queries, and of which domain each is.

    Attributes:
        texts, images: whether it is asked.
        text_domains, image_domains: of each.
    """

    texts: np.ndarray
    images: np.ndarray
    text_domains: np.ndarray
    image_domains: np.ndarray

    @classmethod
    def of(cls, task: RetrievalTask, reserved: frozenset[str] = frozenset()) -> "_Asked":
        ambiguous, domains = np.array(task.ambiguous, dtype=bool), np.array(task.domains)
        certain = np.array([not ambiguous[list(found)].all() for found in task.matches])
        free = np.array([text not in reserved for text in task.texts])
        of_texts = np.array(_text_domains(task))
        return cls(certain & free, ~ambiguous, of_texts, domains)

    def sampled(self, number: int | None, seed: int) -> "_Asked":
        """At most ``number`` texts of each domain, drawn at random."""
        if number is None:
            return self
        chosen = np.zeros(len(self.texts), dtype=bool)
        for domain in sorted(set(self.text_domains.tolist())):
            rows = np.flatnonzero(self.texts & (self.text_domains == domain))
            chosen[numpy_generator("queries", seed, domain).permutation(rows)[:number]] = True
        return replace(self, texts=chosen)

    def only(self, direction: str, ranks: Int64[np.ndarray, " n"]) -> tuple[np.ndarray, np.ndarray]:
        """The ranks with what is not asked taken out, and the domains."""
        asked, domains = (
            (self.texts, self.text_domains) if direction == DIRECTIONS[0] else (self.images, self.image_domains)
        )
        return np.where(asked, ranks, NO_RANK), domains


def _text_domains(task: RetrievalTask) -> list[str]:
    """The domain of each text's images where they agree, else the name of the source that the first comes from."""
    origins = _origins(task.images)
    found = [{task.domains[image] for image in images} for images in task.matches]
    return [
        next(iter(domains)) if len(domains) == 1 else origins[images[0]]
        for domains, images in zip(found, task.matches, strict=True)
    ]


def _origins(images: Source) -> list[str]:
    """The name of the source that each image comes from."""
    if isinstance(images, Joined):
        return [name for source in images.sources for name in _origins(source)]
    return [images.name] * len(images)


def asked_texts(task: RetrievalTask, captions: PoolCaptions | None, queries: int | None, seed: int = 0) -> list[int]:
    """Which texts `compare_methods` asks, by their numbers."""
    reserved = captions.reserved if captions is not None else frozenset[str]()
    return np.flatnonzero(_Asked.of(task, reserved).sampled(queries, seed).texts).tolist()


def recall_rows(
    method: str,
    direction: str,
    ranks: np.ndarray,
    domains: np.ndarray,
    depths: Sequence[int],
    baseline: np.ndarray | None = None,
) -> list[Row]:
    """Recall at each depth, for each domain, for all queries, and as the mean of domains.

    Args:
        ranks: of the first true match; `NO_RANK` for what is not asked.
        domains: of each query.
        baseline: ranks of the same queries by another method; then each row says by how much this one is better, with
            the interval of that difference over the same resampled queries.
    """
    names = sorted(set(domains[ranks != NO_RANK].tolist()))
    rows: list[Row] = []
    for k in depths:
        values = []
        for name in [*names, "all"]:
            mine = np.ones(len(ranks), dtype=bool) if name == "all" else domains == name
            row = {"method": method, "metric": "recall", "direction": direction, "domain": name, "k": k}
            hit = hits(ranks[mine], k)
            row |= _figures(hit)
            if baseline is not None:
                row |= _gain(hit, hits(np.where(ranks == NO_RANK, NO_RANK, baseline)[mine], k))
            rows.append(row)
            values.append(row["value"])
        if len(names) > 1:
            mean = float(np.mean(values[:-1]))
            rows.append({**{key: rows[-1][key] for key in _KEYS}, "domain": "mean of domains", "value": mean})
    return rows


_KEYS = ("method", "metric", "direction", "k")


def _figures(hit: np.ndarray) -> dict[str, float]:
    low, high = bootstrap_interval(hit)
    return {"value": 100 * float(hit.mean()), "low": 100 * low, "high": 100 * high, "queries": len(hit)}


def _gain(hit: np.ndarray, before: np.ndarray, draws: int = 2000, level: float = 0.95) -> dict[str, float]:
    """Percentile interval of the difference of two recalls when the same queries are resampled for both.

    A query wins, loses or stays, so that resampled counts are multinomial and no sample is drawn row by row.
    """
    wins, losses = int((hit & ~before).sum()), int((before & ~hit).sum())
    shares = np.array([wins, losses, len(hit) - wins - losses]) / len(hit)
    counts = numpy_generator("bootstrap gain", len(hit)).multinomial(len(hit), shares, draws)
    low, high = np.quantile((counts[:, 0] - counts[:, 1]) / len(hit), [(1 - level) / 2, (1 + level) / 2])
    gain = (wins - losses) / len(hit)
    return {"gain": 100 * gain, "gain_low": 100 * float(low), "gain_high": 100 * float(high)}


def bootstrap_interval(hit: np.ndarray, draws: int = 2000, level: float = 0.95) -> tuple[float, float]:
    """Percentile interval of the mean of ``hit`` under resampling of queries.

    Resampled means of zeros and ones are binomial, so no sample is drawn row by row.

    Args:
        hit: (queries,), boolean; at least one.
    """
    counts = numpy_generator("bootstrap", len(hit)).binomial(len(hit), hit.mean(), draws)
    low, high = np.quantile(counts / len(hit), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class Comparison:
    """Which methods search, and how.

    Attributes:
        methods: names of `SEARCH_METHODS`; gains are over the first.
        options: their settings.
        teacher: a larger model, for RLCF.
        queries: ask at most this many texts of each domain; the pool stays whole.
        seed: of that draw.
        depths: the k of R@k.
    """

    methods: Sequence[str] = ("zero-shot", "episode")
    options: MethodOptions = field(default_factory=MethodOptions)
    teacher: Encoder | None = None
    queries: int | None = None
    seed: int = 0
    depths: Sequence[int] = (1, 5, 10)


def compare_methods(
    encoder: DualEncoder,
    task: RetrievalTask,
    captions: PoolCaptions | None,
    comparison: Comparison,
    *,
    model: str,
    seed: int = 0,
    cache: FeatureCache | None = None,
) -> Result:
    """Recall and cost of several ways of searching the same pool by the same queries (EFSA, Tables 2 and 3).

    From text to image every method is asked through its own search; of equal scores the wrong images come first. From
    image to text only those are judged that have one model for all queries.

    Args:
        captions: of the pool's images, for methods that learn from them; without, there are none.
        model: what to call the model in the result.
        seed: of the model's training.

    Returns:
        Rows as `retrieval` gives them, with ``gain``, ``gain_low``, ``gain_high`` over the first method, and rows of
        other ``metric``: seconds, rows through each tower and products per query, and memory in bytes (see `Cost`).

    Raises:
        UserError: no such method, or one lacks captions or a teacher.
    """
    if unknown := [name for name in comparison.methods if name not in SEARCH_METHODS]:
        raise UserError(f"no method '{unknown[0]}'. Choose from: {', '.join(SEARCH_METHODS)}.")
    captions = captions or PoolCaptions((None,) * len(task.images))
    features = image_features(encoder, task.images, cache)
    captions = replace(captions, captions=tuple(captions.captions[row] for row in features.rows))
    task, vectors = keep_images(task, features.rows), features.images
    pool = SourcePool(encoder, task.images, captions.captions, vectors)
    setting = SearchContext(encoder, pool, comparison.options, PixelCache(encoder.transform), comparison.teacher)
    asked = _Asked.of(task, captions.reserved).sampled(comparison.queries, comparison.seed)
    if not asked.texts.any():
        raise UserError(f"{task.name}: no text is left to ask by. Are all of them captions of the pool?")
    rows: list[Row] = []
    notes: dict[str, object] = {}
    baseline: Mapping[str, np.ndarray] = {}
    for name in comparison.methods:
        prepared = prepare(name, setting)
        ranks, cost = _search_ranks(prepared, task, np.flatnonzero(asked.texts), max(comparison.depths))
        found = {DIRECTIONS[0]: ranks}
        if prepared.encoder is not None:
            known = vectors if prepared.encoder is encoder else None
            found[DIRECTIONS[1]] = _image_ranks(prepared.encoder, task, captions.reserved, known)
        for direction, mine in found.items():
            only, domains = asked.only(direction, mine)
            rows += recall_rows(name, direction, only, domains, comparison.depths, baseline.get(direction))
        rows += _cost_rows(name, cost)
        notes[name] = {"report": asdict(prepared.search.report), "preparation": prepared.preparation.as_dict()}
        baseline = baseline or found
    settings = {
        "images": len(task.images),
        "texts": len(task.texts),
        "queries": int(asked.texts.sum()),
        "captions": sum(caption is not None for caption in captions.captions),
        "options": asdict(comparison.options),
        "methods": notes,
    }
    return Result("retrieval", model, task.name, seed, rows, settings)


def _cost_rows(method: str, cost: Cost) -> list[Row]:
    figures = asdict(cost)
    memory = figures.pop("memory")
    each: list[Row] = [{"metric": f"{name} per query", "value": value} for name, value in figures.items()]
    return [{"method": method, **row} for row in (*each, {"metric": "memory", "value": memory})]


def _search_ranks(
    prepared: Prepared, task: RetrievalTask, texts: np.ndarray, depth: int
) -> tuple[Int64[np.ndarray, " texts"], Cost]:
    """Rank of each asked text's first true match by its search, and what a query cost."""
    results, cost = measured(prepared.search, [task.texts[text] for text in texts], depth + 1)
    ranks = np.full(len(task.texts), NO_RANK, dtype=np.int64)
    for text, result in zip(texts.tolist(), results, strict=True):
        ranks[text] = first_match(result, {str(image) for image in task.matches[text]})
    return ranks, cost


def first_match(result: SearchResult, true: set[str]) -> int:
    """Rank of the first of ``true`` in a search result, or `MISSED`; of equal scores the wrong come first."""
    place = next((place for place, hit in enumerate(result.hits) if hit.item.id in true), None)
    if place is None:
        return MISSED
    rank = place + 1
    for hit in result.hits[place + 1 :]:
        if abs(hit.score - result.hits[place].score) >= TIE:
            break
        rank += hit.item.id not in true
    return rank


def _image_ranks(
    encoder: DualEncoder, task: RetrievalTask, reserved: frozenset[str], vectors: np.ndarray | None
) -> Int64[np.ndarray, " images"]:
    """Rank of each image's best true text among those that are no captions of the pool, which may have been learnt."""
    images = image_features(encoder, task.images).images if vectors is None else vectors
    kept = [number for number, text in enumerate(task.texts) if text not in reserved]
    texts = encoder.embed_texts([task.texts[number] for number in kept], caption_kind(encoder)).numpy()
    return streaming_ranks(images, texts, [task.matches[number] for number in kept]).images


def merged(tasks: Sequence[RetrievalTask], name: str = "") -> RetrievalTask:
    """Several pools as one; a text that occurs in several is asked once and matches in all (EFSA, Table 3)."""
    if len(tasks) == 1:
        return tasks[0]
    images = Joined(tuple(task.images for task in tasks), name)
    offsets = np.cumsum([0, *(len(task.images) for task in tasks)]).tolist()
    matches: dict[str, tuple[int, ...]] = {}
    counts: dict[str, int] = {}
    for task, offset in zip(tasks, offsets, strict=False):
        for text, found, count in zip(task.texts, task.matches, task.counts, strict=True):
            matches[text] = matches.get(text, ()) + tuple(offset + row for row in found)
            counts[text] = counts.get(text, 0) + count
    return RetrievalTask(
        name or images.name,
        images,
        tuple(matches),
        tuple(matches.values()),
        tuple(counts.values()),
        tuple(domain for task in tasks for domain in task.domains),
        tuple(flag for task in tasks for flag in task.ambiguous),
    )
