"""The stand-in of a captioner says the truth in another way, the same in every run."""
# ruff: noqa: F401, F811

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dual_encoders import pictures
from recollect.core.errors import UserError
from recollect.evaluation.pools import true_captions
from recollect.testing import SampleList
from recollect_papers.efsa.options import CaptionCorruption
from recollect_papers.efsa.rewording import content_words, corrupted_captions, reword

EXACT = CaptionCorruption(dropped=0.0, wrong=0.0)


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("a red cloud left of a blue star, on a white ground", "on a white ground, a blue star right of a red cloud"),
        ("a cloud above a star", "a star below a cloud"),
        ("a playground and many trees", "a playground and many trees"),
        ("  two   words ", "two words"),
    ],
)
def test_clauses_and_relations_are_turned_round(text, other):
    assert reword(text, [], EXACT, np.random.default_rng(0)) == other


WORDS = st.sampled_from(["red", "blue", "cloud", "star,", "tree", "a", "on", "the"])


@given(st.lists(WORDS, min_size=1, max_size=12), st.integers(0, 99))
def test_without_errors_every_word_is_one_of_the_truth_and_one_is_always_left(words, seed):
    text = " ".join(words)
    said = reword(text, ["wrong"], CaptionCorruption(dropped=0.9, wrong=0.0), np.random.default_rng(seed))
    truth = content_words(text)
    assert set(content_words(said)) <= set(truth)
    assert bool(content_words(said)) == bool(truth)
    assert said == said.strip(" ,")


def test_each_picture_is_told_wrong_by_draws_of_its_own():
    text = " ".join(f"word{number}" for number in range(40))
    (sample,) = SampleList.of_pictures("copies", 1).samples
    copies = SampleList("copies", [replace(sample, texts=(text,), id=str(place)) for place in range(4)])
    options = CaptionCorruption(dropped=0.3, wrong=0.0)
    said = corrupted_captions(copies, options).captions
    assert len(set(said)) == 4
    assert corrupted_captions(copies, options).captions == said
    assert not set(corrupted_captions(copies, replace(options, seed=1)).captions) & set(said)


def test_as_many_words_are_dropped_or_wrong_as_asked():
    text = " ".join(f"word{number}" for number in range(4000))
    said = reword(text, ["wrong"], CaptionCorruption(dropped=0.2, wrong=0.1), np.random.default_rng(0)).split()
    assert 0.78 < len(said) / 4000 < 0.82
    assert 0.09 < said.count("wrong") / 4000 < 0.11


def test_captions_of_a_source_are_the_same_in_every_run_and_other_than_its_texts(pictures):
    one, two = corrupted_captions(pictures), corrupted_captions(pictures)
    other = corrupted_captions(pictures, CaptionCorruption(seed=1))
    assert one == two != other
    assert len(one.captions) == 24
    assert not one.reserved
