"""Captions that the episodes of a pool train on."""
# ruff: noqa: F401, F811

import pytest

from dual_encoders import pictures
from recollect.core.errors import UserError
from recollect.evaluation.pools import held_out, true_captions


def test_held_out_captions_are_reserved_and_true_ones_are_not(pictures):
    reserved, ceiling = held_out(pictures), true_captions(pictures)
    assert reserved.captions == tuple(pictures.texts(row)[1] for row in range(24))
    assert reserved.reserved == set(reserved.captions)
    assert ceiling.captions == tuple(pictures.texts(row)[0] for row in range(24))
    assert not ceiling.reserved


def test_captions_cannot_be_held_out_if_each_image_has_only_one(pictures):
    pictures._texts = [(texts[0],) for texts in pictures._texts]
    with pytest.raises(UserError):
        held_out(pictures)
