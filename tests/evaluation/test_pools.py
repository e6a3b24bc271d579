"""Captions that a pool's episodes learn from."""
# ruff: noqa: F401, F811

import pytest

from dual_encoders import pictures
from recollect.core.errors import UserError
from recollect.evaluation.pools import held_out, true_captions


def test_held_out_captions_are_reserved_and_true_ones_are_not(pictures):
    apart, ceiling = held_out(pictures), true_captions(pictures)
    assert apart.captions == tuple(pictures.texts(row)[1] for row in range(24))
    assert apart.reserved == set(apart.captions)
    assert ceiling.captions == tuple(pictures.texts(row)[0] for row in range(24))
    assert not ceiling.reserved


def test_nothing_can_be_held_out_where_each_image_has_one_text(pictures):
    pictures._texts = [(texts[0],) for texts in pictures._texts]
    with pytest.raises(UserError):
        held_out(pictures)
