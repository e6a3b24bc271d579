"""Search by the model as it is and by episodes: the same interface, and bad input that stops nothing."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recollect.core.errors import UserError
from recollect.data.sources.images import BrokenImageError
from recollect.search.cost import Meter
from recollect.search.episodes.options import EpisodeOptions
from recollect.search.episodes.searcher import EpisodicSearcher
from recollect.search.episodes.sequential import SequentialEpisodes
from recollect.search.pixels import PixelCache
from recollect.search.pool import SourcePool, VectorPool, nearest_of
from recollect.search.query import Query, embed_queries
from recollect.search.searcher import Searcher

QUERIES = ["a red snowman", "large river", "the bridge right of a tree", "queen", "blue car above the umbrella"]
OPTIONS = EpisodeOptions(k=6, rank=4, scale=15.0, at_once=2)


@pytest.fixture(scope="module")
def encoder(make_encoder):
    return make_encoder("clip").double()


def ids(result):
    return [hit.item.id for hit in result.hits]


def zero_shot(encoder, pool, k=10):
    return Searcher(encoder, pool).search(QUERIES, k)


def test_a_searcher_finds_the_nearest_images(encoder, make_pool, pictures):
    found = zero_shot(encoder, make_pool(encoder), k=7)
    images = encoder.embed_images([pictures[row].image for row in range(24)])
    for query, result in zip(QUERIES, found, strict=True):
        cosines = (images @ encoder.embed_texts([query])[0]).tolist()
        order = sorted(range(24), key=lambda row: -cosines[row])[:7]
        assert ids(result) == [str(row) for row in order]
        assert [hit.zero_shot_rank for hit in result.hits] == list(range(1, 8))
        assert [hit.score for hit in result.hits] == pytest.approx([cosines[row] for row in order], abs=1e-6)
        assert result.query == query


@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 9), st.integers(1, 50))
def test_search_in_blocks_is_search_at_once(seed, rows, queries, k):
    generator = np.random.default_rng(seed)
    vectors = generator.integers(-2, 3, size=(rows, 3)).astype(np.float32)  # many equal scores
    asked = torch.from_numpy(generator.integers(-2, 3, size=(queries, 3)).astype(np.float32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recollect.core.nearest._SCORES", 7)
        patch.setattr("recollect.core.nearest._GROUP", 1)
        patch.setattr("recollect.core.nearest._QUERIES", 4)
        hits = nearest_of(asked, vectors, k)
    found, scores = hits.rows, hits.scores
    whole = asked.numpy() @ vectors.T
    for query in range(queries):
        order = sorted(range(rows), key=lambda row: (-whole[query, row], row))[:k]
        np.testing.assert_array_equal(scores[query], whole[query, order])
        assert set(found[query][scores[query] > scores[query][-1]]) == {
            row for row in order if whole[query, row] > whole[query, order[-1]]
        }


def test_what_was_found_is_shown_on_a_line(encoder, make_pool):
    pool = make_pool(encoder)
    (result,) = zero_shot(encoder, pool)[:1]
    for shown, begins in (
        (Searcher(encoder, pool), f"Searcher({len(pool)} images, "),
        (EpisodicSearcher(encoder, pool, options=OPTIONS), f"EpisodicSearcher({len(pool)} images, "),
        (result, f"SearchResult({QUERIES[0]!r}: {len(result.hits)} of "),
        (result.hits[0], f"Hit({result.hits[0].item.id!r}, "),
    ):
        assert repr(shown).startswith(begins)
        assert "\n" not in repr(shown)
        assert len(repr(shown)) < 300


def test_an_episode_ranks_the_first_k_again_as_the_sequential_reference_does(encoder, make_pool, pictures):
    pool = make_pool(encoder)
    plain = zero_shot(encoder, pool)
    found = EpisodicSearcher(encoder, pool, options=OPTIONS).search(QUERIES, 10)
    slow = EpisodicSearcher(encoder, pool, options=OPTIONS)
    slow.episodes = SequentialEpisodes(encoder, OPTIONS)
    assert [ids(result) for result in found] == [ids(result) for result in slow.search(QUERIES, 10)]
    assert [ids(result) for result in found] != [ids(result) for result in plain]
    for before, after in zip(plain, found, strict=True):
        assert set(ids(before)[:6]) == set(ids(after)[:6])
        assert ids(before)[6:] == ids(after)[6:]
        assert after.notes == ()
        scores = [hit.score for hit in after.hits[:6]]
        assert scores == sorted(scores, reverse=True)
        assert [before.hits[hit.zero_shot_rank - 1].item.id for hit in after.hits] == ids(after)


@pytest.mark.parametrize("parameters", ["adapters", "all"])
def test_after_a_search_the_model_is_bit_for_bit_what_it_was(make_encoder, make_pool, parameters):
    encoder = make_encoder("siglip")
    before = copy.deepcopy(encoder.state_dict())
    searcher = EpisodicSearcher(encoder, make_pool(encoder), options=replace(OPTIONS, parameters=parameters))
    once = [ids(result) for result in searcher.search(QUERIES, 6)]
    after = encoder.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert once == [ids(result) for result in searcher.search(QUERIES, 6)]


def test_a_query_is_answered_the_same_alone_and_in_company(encoder, make_pool):
    pool = make_pool(encoder)
    together = EpisodicSearcher(encoder, pool, options=replace(OPTIONS, at_once=8)).search(QUERIES, 6)
    for query, result in zip(QUERIES, together, strict=True):
        (alone,) = EpisodicSearcher(encoder, pool, options=OPTIONS).search([query], 6)
        assert ids(alone) == ids(result)
        assert [hit.score for hit in alone.hits] == pytest.approx([hit.score for hit in result.hits], abs=1e-10)


@pytest.mark.parametrize("kind", [Searcher, EpisodicSearcher])
def test_an_empty_query_finds_nothing_and_stops_nothing(encoder, make_pool, kind):
    searcher = kind(encoder, make_pool(encoder))
    empty, words, blank = searcher.search(["", "queen", " \n"], 4)
    assert empty.hits == blank.hits == ()
    assert empty.notes == ("empty query",)
    assert ids(words) == ids(kind(encoder, make_pool(encoder)).search(["queen"], 4)[0])
    assert (searcher.report.queries, searcher.report.empty) == (3, 2)


@pytest.mark.parametrize("kind", [Searcher, EpisodicSearcher])
def test_no_query_at_all_finds_nothing(encoder, make_pool, kind):
    assert kind(encoder, make_pool(encoder)).search([], 4) == []


@pytest.mark.parametrize("kind", [Searcher, EpisodicSearcher])
def test_a_pool_smaller_than_k_is_found_whole(encoder, make_pool, kind):
    pool = make_pool(encoder)
    few = VectorPool(pool, ["3", "8", "21"], pool.vectors(["3", "8", "21"]))
    for result in kind(encoder, few).search(QUERIES, 10):
        assert sorted(ids(result)) == ["21", "3", "8"]
        assert result.notes == ()


def test_one_image_alone_is_found_without_an_episode(encoder, make_pool):
    pool = make_pool(encoder)
    searcher = EpisodicSearcher(encoder, VectorPool(pool, ["3"], pool.vectors(["3"])), options=OPTIONS)
    (result,) = searcher.search(["queen"], 10)
    assert ids(result) == ["3"]
    assert "no episode" in result.notes[0]
    assert searcher.report.without_captions == 1


def test_images_gone_from_disk_keep_their_places_and_the_others_are_ranked_again(encoder, make_pool, pictures):
    pool = make_pool(encoder)
    (before,) = Searcher(encoder, pool).search(QUERIES[:1], 6)
    lost = {int(ids(before)[0]), int(ids(before)[3])}
    pictures.lost |= lost
    searcher = EpisodicSearcher(encoder, pool, options=OPTIONS)
    (after,) = searcher.search(QUERIES[:1], 6)
    assert ids(after)[0] == ids(before)[0]
    assert ids(after)[3] == ids(before)[3]
    assert set(ids(after)) == set(ids(before))
    assert after.notes == ("2 of 6 images cannot be opened any more and keep their zero-shot places",)
    assert searcher.report.images_gone == 2
    there = [id for id in ids(before) if int(id) not in lost]
    few = VectorPool(pool, there, pool.vectors(there))
    (alone,) = EpisodicSearcher(encoder, few, options=OPTIONS).search(QUERIES[:1], 6)
    assert [id for id in ids(after) if int(id) not in lost] == ids(alone)


def test_when_every_image_is_gone_the_ranking_is_zero_shot(encoder, make_pool, pictures):
    pool = make_pool(encoder)
    before = zero_shot(encoder, pool)
    pictures.lost |= set(range(24))
    searcher = EpisodicSearcher(encoder, pool, options=OPTIONS)
    after = searcher.search(QUERIES, 10)
    assert [ids(result) for result in after] == [ids(result) for result in before]
    assert all("cannot be opened" in result.notes[0] for result in after)
    assert searcher.report.without_captions == 5


def test_missing_captions_leave_the_episode_to_the_others(encoder, make_pool, pictures):
    captions = [None if row in (2, 5, 9) else pictures.texts(row)[0] for row in range(24)]
    captions[1] = "  "
    pool = make_pool(encoder, captions)
    searcher = EpisodicSearcher(encoder, pool, options=OPTIONS)
    before, found = zero_shot(encoder, pool), searcher.search(QUERIES, 6)
    missing = 0
    for plain, result in zip(before, found, strict=True):
        absent = sum(id in ("1", "2", "5", "9") for id in ids(result))
        missing += absent
        assert set(ids(result)) == set(ids(plain)[:6])
        if absent:
            assert result.notes == (f"{absent} of 6 images have no caption: the episode learnt from {6 - absent}",)
    assert missing
    assert searcher.report.captions_missing == missing


def test_without_captions_the_ranking_is_zero_shot_and_said_so(encoder, make_pool):
    pool = make_pool(encoder, [None] * 24)
    searcher = EpisodicSearcher(encoder, pool, options=OPTIONS)
    found = searcher.search(QUERIES, 10)
    assert [ids(result) for result in found] == [ids(result) for result in zero_shot(encoder, pool)]
    assert all("no episode: zero-shot" in result.notes[0] for result in found)
    assert searcher.report.without_captions == 5


def test_an_episode_that_is_not_finite_falls_back_to_zero_shot_and_is_counted(encoder, make_pool):
    pool = make_pool(encoder)
    before = zero_shot(encoder, pool, 6)
    searcher = EpisodicSearcher(encoder, pool, options=replace(OPTIONS, k=3, temperature=1e-320))
    found = searcher.search(QUERIES, 6)
    assert [ids(result) for result in found] == [ids(result) for result in before]
    assert [hit.score for hit in found[0].hits] == [hit.score for hit in before[0].hits]
    assert all("not finite: zero-shot ranking" in result.notes[0] for result in found)
    assert searcher.report.not_finite == 5


def test_decoded_pictures_are_kept_and_read_once(encoder, make_pool, pictures):
    pool = make_pool(encoder)
    searcher = EpisodicSearcher(encoder, pool, options=OPTIONS)
    pictures.read_count = 0
    searcher.search(QUERIES, 6)
    first = pictures.read_count
    assert first == len(searcher.pixels) <= 24
    searcher.search(QUERIES, 6)
    assert pictures.read_count == first


def test_the_cache_forgets_what_was_used_longest_ago(encoder, make_pool):
    items = make_pool(encoder).items([str(row) for row in range(5)])
    each = 16 * 16 * 3
    cache = PixelCache(encoder.transform, most_bytes=3 * each)
    assert all(picture is not None for picture in cache.read(items))
    assert len(cache) == 3
    cache.read(items[2:3])
    cache.read(items[:1])  # throws out 3, the least recently used
    assert set(cache._kept) == {"4", "2", "0"}


def test_pixels_from_the_cache_are_what_the_model_reads(encoder, make_pool, pictures):
    cache = PixelCache(encoder.transform)
    read = [picture for picture in cache.read(make_pool(encoder).items(["4", "9"])) if picture is not None]
    wanted = torch.stack([encoder.transform(pictures[row].image) for row in (4, 9)])
    torch.testing.assert_close(cache.tensor(read), wanted)


def test_a_pool_says_what_does_not_fit(encoder, pictures):
    with pytest.raises(ValueError, match="24 images, but 2 captions"):
        SourcePool(encoder, pictures, ["one", "two"])
    with pytest.raises(ValueError, match="24 images, but 3 vectors"):
        SourcePool(encoder, pictures, vectors=np.eye(3, dtype=np.float32))


def test_a_pool_leaves_out_what_cannot_be_read_and_every_other_image_keeps_its_row(encoder, pictures, capsys):
    class Damaged(type(pictures)):
        def __getitem__(self, index):
            if index == 3:
                raise BrokenImageError("row 3: not a picture")
            return super().__getitem__(index)

    whole, pool = SourcePool(encoder, pictures), SourcePool(encoder, Damaged(pictures._texts))
    left = [str(row) for row in range(24) if row != 3]
    assert (len(pool), list(pool.ids())) == (23, left)
    np.testing.assert_array_equal(pool.vectors(left), whole.vectors(left))
    assert pool.nearest(torch.from_numpy(whole.vectors(["7"])), 1).ids.tolist() == [["7"]]
    assert "row 3: not a picture; left out" in capsys.readouterr().err


def test_one_query_has_one_result_and_several_have_a_list(encoder, make_pool):
    searcher = Searcher(encoder, make_pool(encoder))
    one = searcher.search("queen", 4)
    assert ids(one) == ids(searcher.search(["queen"], 4)[0]) == ids(searcher.search(Query.words("queen"), 4))


@pytest.mark.parametrize("kind", [Searcher, EpisodicSearcher])
def test_pages_are_parts_of_one_list(encoder, make_pool, kind):
    pool, queries = make_pool(encoder), QUERIES[:2]
    options = {"options": OPTIONS} if kind is EpisodicSearcher else {}
    whole = kind(encoder, pool, **options).search(queries, 24)
    pages = [kind(encoder, pool, **options).search(queries, 5, page=page) for page in range(1, 7)]
    for number, result in enumerate(whole):
        assert [id for page in pages for id in ids(page[number])] == ids(result)
        assert [page[number].first_rank for page in pages] == [1, 6, 11, 16, 21, 26]
    assert pages[-1][0].hits == ()
    with pytest.raises(UserError, match="count from 1"):
        kind(encoder, pool).search(QUERIES, 5, page=0)


@pytest.mark.parametrize("kind", [Searcher, EpisodicSearcher])
def test_a_cut_off_is_by_the_model_as_it_is_and_says_how_many_it_cut(encoder, make_pool, kind):
    pool = make_pool(encoder)
    options = {"options": OPTIONS} if kind is EpisodicSearcher else {}
    (plain,) = Searcher(encoder, pool).search(QUERIES[:1], 24)
    threshold = plain.hits[8].score
    above = [hit.item.id for hit in plain.hits if hit.score >= threshold]
    (cut,) = kind(encoder, pool, **options).search(QUERIES[:1], 20, min_score=threshold)
    assert sorted(ids(cut)) == sorted(above)
    assert (cut.cut, cut.searched) == (15, 24)
    assert "15 of 24 images score below" in cut.notes[-1]
    (none,) = kind(encoder, pool, **options).search(QUERIES[:1], 7, min_score=threshold)
    assert len(none.hits) == 7
    assert (none.cut is None) or kind is EpisodicSearcher


def test_a_filter_leaves_what_satisfies_it(encoder, make_pool):
    searcher = Searcher(encoder, make_pool(encoder))
    odd = searcher.search("queen", 24, where="domain = 'odd'")
    assert sorted(map(int, ids(odd))) == list(range(1, 24, 2))
    assert ids(odd) == [id for id in ids(searcher.search("queen", 24)) if int(id) % 2]
    assert odd.searched == 12
    assert searcher.search("queen", 24, where="caption = 'none' or id = '3'").hits[0].item.id == "3"
    with pytest.raises(UserError, match=r"no image satisfies domain = 'strange'$"):
        searcher.search("queen", where="domain = 'strange'")
    with pytest.raises(UserError, match=r"'odd': no column 'domian'; there are id, caption, source, domain$"):
        searcher.search("queen", where="domian = 'odd'")


def test_every_hit_says_whose_score_it_has(encoder, make_pool):
    pool = make_pool(encoder)
    for result in EpisodicSearcher(encoder, pool, options=OPTIONS).search(QUERIES, 10):
        assert [hit.scored_by for hit in result.hits] == ["episode"] * 6 + ["model"] * 4
        plain = {hit.item.id: hit.score for hit in Searcher(encoder, pool).search(result.query, 10).hits}
        assert {hit.item.id: hit.model_score for hit in result.hits} == pytest.approx(plain, abs=1e-6)


def mixed_queries(pictures):
    return [
        Query.words("a red snowman") + Query.picture(pictures[4].image) - 0.4 * Query.words("queen"),
        Query.words("large river"),
        0.5 * Query.picture(pictures[9].image) - Query.picture(pictures[2].image),
    ]


def test_words_and_pictures_together_find_what_the_sum_is_nearest_to(encoder, make_pool, pictures):
    pool, queries = make_pool(encoder), mixed_queries(pictures)
    images = encoder.embed_images([pictures[row].image for row in range(24)])
    vectors = embed_queries(encoder, queries)
    for query, vector, result in zip(queries, vectors, Searcher(encoder, pool).search(queries, 24), strict=True):
        assert ids(result) == [str(row) for row in sorted(range(24), key=lambda row: -float(images[row] @ vector))]
        assert result.query == str(query)


@pytest.mark.parametrize("steps", [1, 2])
def test_episodes_of_sums_equal_the_sequential_reference(encoder, make_pool, pictures, steps):
    pool, options = make_pool(encoder), replace(OPTIONS, steps=steps, at_once=3)
    fast = EpisodicSearcher(encoder, pool, options=options)
    slow = EpisodicSearcher(encoder, pool, options=options)
    slow.episodes = SequentialEpisodes(encoder, options)
    queries = mixed_queries(pictures)
    for one, other in zip(fast.search(queries, 8), slow.search(queries, 8), strict=True):
        assert [hit.score for hit in one.hits] == pytest.approx([hit.score for hit in other.hits], abs=1e-9)
        assert ids(one) == ids(other)
        assert one.hits[0].scored_by == "episode"


def test_a_query_that_is_too_long_for_the_model_is_found_and_said(encoder, make_pool):
    searcher = Searcher(encoder, make_pool(encoder))
    long = searcher.search("a red snowman " * 40, 3)
    assert len(long.hits) == 3
    assert "of which the model reads the first 32" in long.notes[0]
    assert searcher.report.shortened == 1
    assert searcher.search("a red snowman", 3).notes == ()


@pytest.mark.parametrize("mix", [0.0, 0.4])
def test_an_episode_may_be_mixed_with_the_ranking_before_it(encoder, make_pool, mix):
    pool = make_pool(encoder)
    alone = EpisodicSearcher(encoder, pool, options=OPTIONS).search(QUERIES, 6)
    mixed = EpisodicSearcher(encoder, pool, options=replace(OPTIONS, mix=mix)).search(QUERIES, 6)
    for one, other in zip(alone, mixed, strict=True):
        wanted = {hit.item.id: mix * hit.score + (1 - mix) * hit.model_score for hit in one.hits}
        assert {hit.item.id: hit.score for hit in other.hits} == pytest.approx(wanted, abs=1e-9)
        assert [hit.score for hit in other.hits] == sorted(wanted.values(), reverse=True) or mix == 0.0


class Measured(EpisodicSearcher):
    """Notes how many queries ran together and what all of it held."""

    def _together(self, queries, results):
        with Meter() as meter:
            found = super()._together(queries, results)
        self.together = [*getattr(self, "together", []), (len(queries), meter.peak)]
        return found


def test_queries_adapt_together_as_far_as_measured_memory_allows(encoder, make_pool):
    pool, queries = make_pool(encoder), QUERIES * 3
    free = Measured(encoder, pool, options=replace(OPTIONS, at_once=8))
    wanted = free.search(queries, 6)
    assert max(number for number, _ in free.together) == 8
    each = free.plan.dearest
    for times in (0.5, 1.5, 3.5):
        bound = replace(OPTIONS, at_once=8, gibibytes=times * each / 2**30)
        held = Measured(encoder, pool, options=bound)
        few = slice(0, 8)  # the first of each length are measured alone
        assert [ids(result) for result in held.search(queries[few], 6)] == [ids(result) for result in wanted[few]]
        assert max(number for number, _ in held.together) == max(1, int(times))
        assert all(peak <= max(times, 1) * each for _, peak in held.together)
