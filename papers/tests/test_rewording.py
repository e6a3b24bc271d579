"""Simulated captions: rewording, errors and reproducibility."""
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
def test_clauses_and_relations_are_reversed(text, other):
    assert reword(text, [], EXACT, np.random.default_rng(0)) == other


WORDS = st.sampled_from(["red", "blue", "cloud", "star,", "tree", "a", "on", "the"])


@given(st.lists(WORDS, min_size=1, max_size=12), st.integers(0, 99))
def test_without_errors_all_words_are_true_and_at_least_one_remains(words, seed):
    text = " ".join(words)
    said = reword(text, ["wrong"], CaptionCorruption(dropped=0.9, wrong=0.0), np.random.default_rng(seed))
    truth = content_words(text)
    assert set(content_words(said)) <= set(truth)
    assert bool(content_words(said)) == bool(truth)
    assert said == said.strip(" ,")


def test_errors_of_pictures_are_independent():
    text = " ".join(f"word{number}" for number in range(40))
    (sample,) = SampleList.of_pictures("copies", 1).samples
    copies = SampleList("copies", [replace(sample, texts=(text,), id=str(place)) for place in range(4)])
    options = CaptionCorruption(dropped=0.3, wrong=0.0)
    said = corrupted_captions(copies, options).captions
    assert len(set(said)) == 4
    assert corrupted_captions(copies, options).captions == said
    assert not set(corrupted_captions(copies, replace(options, seed=1)).captions) & set(said)


def test_words_are_dropped_and_replaced_at_the_given_rates():
    text = " ".join(f"word{number}" for number in range(4000))
    said = reword(text, ["wrong"], CaptionCorruption(dropped=0.2, wrong=0.1), np.random.default_rng(0)).split()
    assert 0.78 < len(said) / 4000 < 0.82
    assert 0.09 < said.count("wrong") / 4000 < 0.11


def test_captions_of_a_source_are_reproducible(pictures):
    one, two = corrupted_captions(pictures), corrupted_captions(pictures)
    other = corrupted_captions(pictures, CaptionCorruption(seed=1))
    assert one == two != other
    assert len(one.captions) == 24
    assert not one.reserved
