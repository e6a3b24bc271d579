"""Search with and without episodes, and its fallbacks for bad input."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from recollect.core.errors import UserError
from recollect.efsa.memory import TensorMemory
from recollect.efsa.options import EpisodeOptions
from recollect.efsa.pixels import PixelCache
from recollect.efsa.rerank import FALLBACK, EpisodeReranker, episode_reranker
from recollect.index import Query
from recollect.index.source import with_vectors
from recollect_papers.efsa.sequential import SequentialEpisodes

QUERIES = ["a red snowman", "large river", "the bridge right of a tree", "queen", "blue car above the umbrella"]
OPTIONS = EpisodeOptions(k=6, rank=4, scale=15.0, at_once=2)


@pytest.fixture(scope="module")
def encoder(make_encoder):
    return make_encoder("clip").double()


def ids(hits):
    return [hit.id for hit in hits]


def adapted(encoder, index, queries=QUERIES, k=10, options=OPTIONS, **more):
    """Search with episodes; return the hits and the reranker."""
    rerank = EpisodeReranker(encoder, options)
    return index.search_many(queries, k, rerank=rerank, **more), rerank


@pytest.fixture(params=[None, OPTIONS], ids=["plain", "episodes"])
def search(request, encoder):
    """Function that searches an index without or with episodes."""

    def run(index, queries=QUERIES, k=10, **more):
        rerank = None if request.param is None else EpisodeReranker(encoder, request.param)
        return index.search_many(queries, k, rerank=rerank, **more)

    return run


def test_text_to_text_search_ranks_images_by_their_captions(encoder, make_index, pictures):
    captions = [None if row == 5 else pictures.texts(row)[0] for row in range(24)]
    found = make_index(encoder, captions).search_many(QUERIES, 23, by="text")
    for query, result in zip(QUERIES, found, strict=True):
        vector = encoder.embed_texts([query])[0]
        own = {str(row): float(encoder.embed_texts([text])[0] @ vector) for row, text in enumerate(captions) if text}
        assert len(ids(result)) == 23
        assert "5" not in ids(result)
        assert [own[id] for id in ids(result)] == pytest.approx(sorted(own.values(), reverse=True), abs=1e-6)


def test_an_episode_reranks_the_first_k_like_the_sequential_reference(encoder, make_index):
    index = make_index(encoder)
    plain = index.search_many(QUERIES, 10)
    found, _ = adapted(encoder, index)
    slow = EpisodeReranker(encoder, OPTIONS)
    slow.episodes = SequentialEpisodes(encoder, OPTIONS)
    assert [ids(hits) for hits in found] == [ids(hits) for hits in index.search_many(QUERIES, 10, rerank=slow)]
    assert [ids(hits) for hits in found] != [ids(hits) for hits in plain]
    for before, after in zip(plain, found, strict=True):
        assert set(ids(before)[:6]) == set(ids(after)[:6])
        assert ids(before)[6:] == ids(after)[6:]
        assert after.notes == ()
        scores = [hit.score for hit in after[:6]]
        assert scores == sorted(scores, reverse=True)
        assert [before[hit.zero_shot_rank - 1].id for hit in after] == ids(after)


def test_an_empty_query_finds_nothing_and_does_not_affect_others(encoder, make_index, search):
    index = make_index(encoder)
    empty, words, blank = search(index, ["", "queen", " \n"], 4)
    assert len(empty) == len(blank) == 0
    assert empty.notes
    assert ids(words) == ids(search(index, ["queen"], 4)[0])
    assert search(index, [], 4) == []


def test_missing_images_keep_their_ranks_and_the_others_are_reranked(encoder, make_index, pictures):
    index = make_index(encoder)
    (before,) = index.search_many(QUERIES[:1], 6)
    lost = {int(ids(before)[0]), int(ids(before)[3])}
    pictures.lost |= lost
    ((after,), _) = adapted(encoder, index, QUERIES[:1], 6)
    assert ids(after)[0] == ids(before)[0]
    assert ids(after)[3] == ids(before)[3]
    assert set(ids(after)) == set(ids(before))
    assert after.notes
    present = [id for id in ids(before) if int(id) not in lost]
    ((alone,), _) = adapted(encoder, with_vectors(index, present, index.vectors(present)), QUERIES[:1], 6)
    assert [id for id in ids(after) if int(id) not in lost] == ids(alone)


def test_images_without_captions_are_kept_with_a_note(encoder, make_index, pictures):
    captions = [None if row in (2, 5, 9) else pictures.texts(row)[0] for row in range(24)]
    captions[1] = "  "
    index = make_index(encoder, captions)
    before = index.search_many(QUERIES, 6)
    found, _ = adapted(encoder, index, k=6)
    missing = 0
    for plain, hits in zip(before, found, strict=True):
        absent = sum(id in ("1", "2", "5", "9") for id in ids(hits))
        missing += absent
        assert set(ids(hits)) == set(ids(plain))
        assert bool(hits.notes) == bool(absent)
    assert missing


def test_without_any_captions_the_ranking_is_zero_shot_with_a_note(encoder, make_index):
    index = make_index(encoder, [None] * 24)
    found, _ = adapted(encoder, index)
    assert [ids(hits) for hits in found] == [ids(hits) for hits in index.search_many(QUERIES, 10)]
    assert all(hits.notes[-1].endswith(FALLBACK) for hits in found)
    with pytest.raises(UserError, match="recollect caption"):
        episode_reranker(index)


def test_a_nonfinite_episode_falls_back_to_zero_shot_with_a_note(encoder, make_index):
    index = make_index(encoder)
    before = index.search_many(QUERIES, 6)
    found, _ = adapted(encoder, index, k=6, options=replace(OPTIONS, k=3, temperature=1e-320))
    assert [ids(hits) for hits in found] == [ids(hits) for hits in before]
    assert [hit.score for hit in found[0]] == [hit.score for hit in before[0]]
    assert all(hits.notes[-1].endswith(FALLBACK) for hits in found)


def test_pictures_are_decoded_once_and_cached(encoder, make_index, pictures):
    index, rerank = make_index(encoder), EpisodeReranker(encoder, OPTIONS)
    pictures.read_count = 0
    index.search_many(QUERIES, 6, rerank=rerank)
    first = pictures.read_count
    assert first == len(rerank.pixels) <= 24
    index.search_many(QUERIES, 6, rerank=rerank)
    assert pictures.read_count == first


def test_the_cache_evicts_the_least_recently_used(encoder, make_index):
    pictures = make_index(encoder).pictures([str(row) for row in range(5)])
    cache = PixelCache(encoder.transform, max_bytes=3 * 32 * 32 * 3)
    assert all(picture is not None for picture in cache.read(pictures))
    assert len(cache) == 3
    cache.read(pictures[2:3])
    cache.read(pictures[:1])  # evicts 3
    assert {id for id in "01234" if id in cache._cache} == {"4", "2", "0"}


def test_cached_pixels_equal_the_models_input(encoder, make_index, pictures):
    cache = PixelCache(encoder.transform)
    read = [picture for picture in cache.read(make_index(encoder).pictures(["4", "9"])) if picture is not None]
    wanted = torch.stack([encoder.transform(pictures[row].image) for row in (4, 9)])
    torch.testing.assert_close(cache.tensor(read), wanted)


def test_hits_can_be_taken_by_the_integers_of_numpy(make_encoder, make_index):
    hits = make_index(make_encoder("clip")).search("queen", k=4)
    order = np.argsort([hit.score for hit in hits])
    assert [hits[row].id for row in order] == [hit.id for hit in reversed(hits.hits)]


def test_hits_state_the_source_of_their_score(encoder, make_index):
    index = make_index(encoder)
    found, _ = adapted(encoder, index)
    for hits in found:
        assert [hit.scored_by for hit in hits] == ["episode"] * 6 + ["model"] * 4
        plain = {hit.id: hit.score for hit in index.search(hits.query, 10)}
        assert {hit.id: hit.model_score for hit in hits} == pytest.approx(plain, abs=1e-6)


def mixed_queries(pictures):
    return [
        Query.words("a red snowman") + Query.picture(pictures[4].image) - 0.4 * Query.words("queen"),
        Query.words("large river"),
        0.5 * Query.picture(pictures[9].image) - Query.picture(pictures[2].image),
    ]


def test_combined_queries_match_the_sequential_reference(encoder, make_index, pictures):
    index, options = make_index(encoder), replace(OPTIONS, at_once=3)
    queries = mixed_queries(pictures)
    queries.append(0.7 * Query.vector(index.vectors(["3"])[0]) + Query.words("tree"))
    slow = EpisodeReranker(encoder, options)
    slow.episodes = SequentialEpisodes(encoder, options)
    fast, _ = adapted(encoder, index, queries, 8, options)
    for one, other in zip(fast, index.search_many(queries, 8, rerank=slow), strict=True):
        assert [hit.score for hit in one] == pytest.approx([hit.score for hit in other], abs=1e-9)
        assert ids(one) == ids(other)
        assert one[0].scored_by == "episode"


def test_a_stored_vector_in_a_query_is_not_adapted(encoder, make_index):
    """Only the candidates change, and scores are their cosines with the vector."""
    index = make_index(encoder)
    vector = index.vectors(["3"])[0]
    ((hits,), _) = adapted(encoder, index, [Query.vector(vector)], 6)
    ((again,), _) = adapted(encoder, index, [2.0 * Query.vector(vector)], 6)
    assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in again], abs=1e-9)
    assert any(abs(hit.score - hit.model_score) > 1e-6 for hit in hits)


class MeasuringReranker(EpisodeReranker):
    """Record the number of queries and the peak memory of each batch."""

    def _together(self, queries, found):
        with TensorMemory() as memory:
            results = super()._together(queries, found)
        self.together = [*getattr(self, "together", []), (len(queries), memory.peak)]
        return results


def test_queries_are_batched_within_the_memory_limit(encoder, make_index):
    index, queries = make_index(encoder), QUERIES * 3
    unlimited = MeasuringReranker(encoder, replace(OPTIONS, at_once=8))
    wanted = index.search_many(queries, 6, rerank=unlimited)
    assert [number for number, _ in unlimited.together] == [1, 8, 6]
    each = unlimited.together[0][1]
    for times in (0.5, 1.5, 3.5):
        limited = MeasuringReranker(encoder, replace(OPTIONS, at_once=8, gibibytes=times * each / 2**30))
        found = index.search_many(queries, 6, rerank=limited)
        assert [ids(hits) for hits in found] == [ids(hits) for hits in wanted]
        assert max(number for number, _ in limited.together) == max(1, int(times))
        assert all(peak <= 1.3 * max(times, 1) * each for _, peak in limited.together), "the limit is an estimate"
