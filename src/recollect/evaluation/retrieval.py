"""Retrieval in both directions: recall at k with all true matches, per domain and on average."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64, Shaped

from recollect.core.errors import UserError
from recollect.core.seeding import numpy_generator
from recollect.core.types import Encoder, Kind, caption_prefix
from recollect.core.validation import check_choice
from recollect.efsa.methods import SEARCH_METHODS, Method, SearchContext, TextSearch
from recollect.efsa.options import EpisodeOptions
from recollect.efsa.pixels import PixelCache
from recollect.efsa.rerank import FALLBACK
from recollect.evaluation.features import FeatureCache, image_features, note_repeated
from recollect.evaluation.intervals import ClusterGroups
from recollect.evaluation.ranks import NO_RANK, TIE_TOLERANCE, streaming_ranks
from recollect.evaluation.results import Result, ResultRow, content_of
from recollect.evaluation.tasks.retrieval import RetrievalTask, keep_images
from recollect.index import Hits
from recollect.index.source import source_index
from recollect.models import DualEncoder

DIRECTIONS = ("text to image", "image to text")

MISSED = np.iinfo(np.int64).max
"""Rank of a true match beyond the depth of a search."""


def retrieval(
    encoder: Encoder,
    task: RetrievalTask,
    *,
    model: str = "model",
    seed: int = 0,
    prefix: Kind | None = None,
    cache: FeatureCache | None = None,
    depths: Sequence[int] = (1, 5, 10),
) -> Result:
    """Measure recall at ``depths`` from text to image and from image to text.

    A query is a hit if any of its true matches is among the first k; ties count against it. An image that also matches
    another text (``ambiguous``) stays in the pool but is not a query, nor is a text with only ambiguous images.

    Args:
        prefix: prefix token of the texts, for models that have them.

    Returns:
        Rows with ``method`` (zero-shot), ``metric`` (recall), ``direction``, ``domain``, ``k``, the number of
        ``queries`` and their ``pictures``, and ``value`` in percent with its 95 % interval ``low`` to ``high`` by
        resampling pictures. The domain is that of the image, of most of the text's images, or the name of the source if
        most of its texts have several; ``all`` and ``mean of domains`` summarize them.

    Raises:
        UserError: every picture is ambiguous.
    """
    features = image_features(encoder, task.images, cache)
    note_repeated(features, task.name)
    task, images = keep_images(task, features.rows), features.images
    texts = encoder.embed_texts(task.texts, prefix).numpy()
    groups = _query_groups(task)
    if not groups[DIRECTIONS[0]].is_query.any():
        raise UserError(f"{task.name}: every picture is marked ambiguous, so there are no queries")
    ranks = streaming_ranks(images, texts, task.matches)
    rows: list[ResultRow] = []
    for direction, found in zip(DIRECTIONS, (ranks.texts, ranks.images), strict=True):
        rows += recall_rows("zero-shot", direction, found, groups[direction], depths)
    settings: dict[str, Any] = {"images": len(task.images), "texts": len(task.texts), "prefix": prefix}
    settings |= {"depths": list(depths)} | content_of(encoder, task.images, inputs=_query_content(task))
    return Result("retrieval", model, task.name, seed, rows, settings)


@dataclass(frozen=True)
class PoolCaptions:
    """One caption for each image of a source, and the texts that must not be queries.

    Attributes:
        captions: caption of each image, or None.
        reserved: texts (with normalized white space) that are captions here and therefore not queries.
    """

    captions: tuple[str | None, ...]
    reserved: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True)
class QueryGroups:
    """Groups of the queries in one direction.

    Attributes:
        is_query: whether each text or image is a query.
        sources: source of each query; the mean of domains weights sources equally.
        clusters: queries with the same number are about the same picture and resampled together.
    """

    is_query: Bool[np.ndarray, " n"]
    domains: Shaped[np.ndarray, " n"]
    sources: Shaped[np.ndarray, " n"]
    clusters: Shaped[np.ndarray, " n"]


def _query_groups(
    task: RetrievalTask, reserved: frozenset[str] = frozenset(), most: int | None = None
) -> dict[str, QueryGroups]:
    """Return the queries of each direction, with at most ``most`` texts of each domain, drawn at random."""
    ambiguous, domains = np.array(task.ambiguous, dtype=bool), np.array(task.domains)
    certain = np.array([not ambiguous[list(found)].all() for found in task.matches])
    is_query = certain & np.array([text not in reserved for text in task.texts])
    first = np.array([found[0] for found in task.matches])
    origins = np.array(task.images.source_names)
    text_domains = np.array(_text_domains(task, origins))
    if most is not None:
        drawn = np.zeros_like(is_query)
        for domain in sorted(set(text_domains.tolist())):
            rows = np.flatnonzero(is_query & (text_domains == domain))
            drawn[numpy_generator("queries", 0, domain).permutation(rows)[:most]] = True
        is_query = drawn
    texts = np.arange(len(task.images)) - len(task.images)  # an image without a text is its own cluster
    for text, found in reversed(list(enumerate(task.matches))):
        texts[list(found)] = text
    by_text = QueryGroups(is_query, text_domains, origins[first], first)
    return dict(zip(DIRECTIONS, (by_text, QueryGroups(~ambiguous, domains, origins, texts)), strict=True))


def _text_domains(task: RetrievalTask, origins: np.ndarray) -> list[str]:
    """Return each text's domain: that of most of its images, or its source if most of its texts have several."""
    sources = [str(origins[images[0]]) for images in task.matches]
    found = [
        [task.domains[image] for image in images if origins[image] == source]
        for images, source in zip(task.matches, sources, strict=True)
    ]
    several: dict[str, list[bool]] = {}
    for source, domains in zip(sources, found, strict=True):
        several.setdefault(source, []).append(len(set(domains)) > 1)
    whole = {source for source, each in several.items() if 2 * sum(each) > len(each)}
    return [
        source if source in whole else max(domains, key=domains.count)
        for source, domains in zip(sources, found, strict=True)
    ]


def query_indices(task: RetrievalTask, captions: PoolCaptions | None, queries: int | None) -> list[int]:
    """Return the indices of the texts that `compare_methods` uses as queries."""
    reserved = captions.reserved if captions is not None else frozenset[str]()
    return np.flatnonzero(_query_groups(task, reserved, queries)[DIRECTIONS[0]].is_query).tolist()


def recall_rows(
    method: str,
    direction: str,
    ranks: Int64[np.ndarray, " n"],
    groups: QueryGroups,
    depths: Sequence[int],
    baseline: Int64[np.ndarray, " n"] | None = None,
) -> list[ResultRow]:
    """Return recall at each depth for each domain, for all queries, and as the mean of domains.

    The mean of domains is the mean over sources of the mean over a source's domains. Intervals and tests resample
    pictures, not queries (`recollect.evaluation.intervals`).

    Args:
        ranks: rank of each query's first true match.
        groups: domain, source and picture of each query.
        baseline: ranks of the same queries by another method, to add the gain over it with interval and p-value.
    """
    is_query = groups.is_query & (ranks != NO_RANK)
    names = sorted(set(groups.domains[is_query].tolist()))
    rows: list[ResultRow] = []
    for k in depths:
        every = ranks <= k
        before = None if baseline is None else baseline <= k
        key = {"method": method, "metric": "recall", "direction": direction}
        for name in [*names, "all"]:
            selected = is_query & ((groups.domains == name) if name != "all" else True)
            clusters = groups.clusters[selected]
            row = {**key, "domain": name, "k": k, **_figures(every[selected], clusters)}
            if before is not None:
                row |= _gain(every[selected], before[selected], clusters)
            rows.append(row)
        if len(names) > 1:
            mean = _mean_of_domains(100.0 * every[is_query], groups.domains[is_query], groups.sources[is_query])
            rows.append({**key, "domain": "mean of domains", "k": k, "value": mean})
    return rows


def _mean_of_domains(values: np.ndarray, domains: np.ndarray, sources: np.ndarray) -> float:
    def mean(source: object) -> float:
        mine, names = values[sources == source], domains[sources == source]
        return float(np.mean([mine[names == name].mean() for name in sorted(set(names.tolist()))]))

    return float(np.mean([mean(source) for source in sorted(set(sources.tolist()))]))


def _figures(hit: np.ndarray, clusters: np.ndarray) -> ResultRow:
    kinds = ClusterGroups.of(hit, clusters)
    low, high = kinds.interval(least=0.0)
    return {
        "value": 100 * float(hit.mean()), "low": 100 * low, "high": 100 * high, "queries": len(hit),
        "pictures": kinds.clusters,
    }  # fmt: skip


def _gain(hit: np.ndarray, before: np.ndarray, clusters: np.ndarray) -> ResultRow:
    kinds = ClusterGroups.of(hit.astype(np.int64) - before.astype(np.int64), clusters)
    low, high = kinds.interval(least=-1.0)
    gain = 100 * float(hit.mean() - before.mean())
    return {"gain": gain, "gain_low": 100 * low, "gain_high": 100 * high, "gain_p": kinds.sign_test()}


def timed(search: TextSearch, queries: Sequence[str], k: int) -> tuple[list[Hits], dict[str, float]]:
    """Search, and measure the seconds per query."""
    start = time.perf_counter()
    results = search(queries, k)
    return results, {"seconds per query": (time.perf_counter() - start) / max(1, len(queries))}


@dataclass(frozen=True)
class Comparison:
    """Search methods to compare.

    Attributes:
        methods: names; gains are over the first.
        queries: maximum number of texts per domain used as queries.
        measure: function that searches, and returns results and cost figures.
    """

    methods: Sequence[str] = ("zero-shot", "episode")
    episode: EpisodeOptions = field(default_factory=EpisodeOptions)
    queries: int | None = None
    depths: Sequence[int] = (1, 5, 10)
    known: Mapping[str, Method] = field(default_factory=lambda: SEARCH_METHODS)
    measure: Callable[[TextSearch, Sequence[str], int], tuple[list[Hits], dict[str, float]]] = timed


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
    """Measure recall and cost of search methods on the same pool and queries (EFSA, Tables 2 and 3).

    From text to image every method uses its own search; ties count against it. From image to text only methods with one
    model for all queries are evaluated.

    Args:
        captions: captions of the pool's images, for methods that learn from them.

    Returns:
        Rows as in `retrieval`, with ``gain``, ``gain_low``, ``gain_high`` and ``gain_p`` over the first method, and
        rows for the cost of a query.

    Raises:
        UserError: no such method, or it lacks captions or a teacher.
    """
    for name in comparison.methods:
        check_choice(name, comparison.known, "--methods: method")
    captions = captions or PoolCaptions((None,) * len(task.images))
    features = image_features(encoder, task.images, cache)
    note_repeated(features, task.name)
    captions = replace(captions, captions=tuple(captions.captions[row] for row in features.rows))
    task, vectors = keep_images(task, features.rows), features.images
    index = source_index(encoder, task.images, captions.captions, vectors)
    setting = SearchContext(encoder, index, comparison.episode, PixelCache(encoder.transform))
    groups = _query_groups(task, captions.reserved, comparison.queries)
    texts = groups[DIRECTIONS[0]].is_query
    if not texts.any():
        raise UserError(f"{task.name}: no queries are left, since all texts are captions of the pool")
    rows: list[ResultRow] = []
    notes: dict[str, object] = {}
    baseline: Mapping[str, np.ndarray] = {}
    for name in comparison.methods:
        prepared = comparison.known[name](setting)
        queries = [task.texts[text] for text in np.flatnonzero(texts)]
        results, cost = comparison.measure(prepared.search, queries, max(comparison.depths) + 1)
        found = {DIRECTIONS[0]: _search_ranks(results, task, np.flatnonzero(texts))}
        if prepared.encoder is not None:
            known = vectors if prepared.encoder is encoder else None
            found[DIRECTIONS[1]] = _image_ranks(prepared.encoder, task, captions.reserved, known)
        for direction, ranks in found.items():
            rows += recall_rows(name, direction, ranks, groups[direction], comparison.depths, baseline.get(direction))
        rows += [{"method": name, "metric": metric, "value": value} for metric, value in cost.items()]
        notes[name] = {"fell back": sum(any(note.endswith(FALLBACK) for note in hits.notes) for hits in results)}
        baseline = baseline or found
    settings: dict[str, Any] = {
        "images": len(task.images),
        "texts": len(task.texts),
        "queries": int(texts.sum()),
        "captions": sum(caption is not None for caption in captions.captions),
        "episode": asdict(comparison.episode),
        "methods": list(comparison.methods),
        "depths": list(comparison.depths),
        "asked": [comparison.queries, 0],
    }
    learned = [captions.captions, sorted(captions.reserved)]
    settings |= content_of(encoder, task.images, inputs=[_query_content(task), learned])
    return Result("retrieval", model, task.name, seed, rows, settings, notes={"methods": notes})


def _query_content(task: RetrievalTask) -> list[Any]:
    return [task.texts, task.matches, task.domains, task.ambiguous]


def _search_ranks(results: Sequence[Hits], task: RetrievalTask, texts: np.ndarray) -> Int64[np.ndarray, " texts"]:
    """Return the rank of the first true match of each query."""
    ranks = np.full(len(task.texts), NO_RANK, dtype=np.int64)
    for text, result in zip(texts.tolist(), results, strict=True):
        ranks[text] = first_match(result, {str(image) for image in task.matches[text]})
    return ranks


def first_match(result: Hits, true: set[str]) -> int:
    """Return the rank of the first of ``true`` in a search result, or `MISSED`; ties count against it."""
    position = next((position for position, hit in enumerate(result.hits) if hit.id in true), None)
    if position is None:
        return MISSED
    rank = position + 1
    for hit in result.hits[position + 1 :]:
        if abs(hit.score - result.hits[position].score) >= TIE_TOLERANCE:
            break
        rank += hit.id not in true
    return rank


def _image_ranks(
    encoder: DualEncoder, task: RetrievalTask, reserved: frozenset[str], vectors: np.ndarray | None
) -> Int64[np.ndarray, " images"]:
    """Rank each image's best true text, without captions of the pool, which methods may have learned from."""
    images = image_features(encoder, task.images).images if vectors is None else vectors
    kept = [number for number, text in enumerate(task.texts) if text not in reserved]
    texts = encoder.embed_texts([task.texts[number] for number in kept], caption_prefix(encoder)).numpy()
    return streaming_ranks(images, texts, [task.matches[number] for number in kept]).images
