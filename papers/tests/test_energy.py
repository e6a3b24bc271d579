import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recollect.core.types import EncoderBase
from recollect_papers.analyse.energy import SpanEncoder, energy_outside, text_span


class Fixed(EncoderBase):
    """An encoder whose images are the vectors themselves."""

    width = 6
    fingerprint = "fixed"

    def embed_images(self, images):
        return torch.nn.functional.normalize(torch.as_tensor(images).float(), dim=1)

    def embed_texts(self, texts, prefix=None):
        return torch.nn.functional.normalize(torch.eye(6)[[len(text) for text in texts]], dim=1)


@given(st.integers(0, 100))
def test_images_made_of_texts_have_no_energy_outside_their_span(seed):
    generator = np.random.default_rng(seed)
    texts = generator.normal(size=(40, 3)) @ generator.normal(size=(3, 8))
    span = text_span(texts, share=1 - 1e-12)
    assert span.shape == (3, 8)
    np.testing.assert_allclose(span @ span.T, np.eye(3), atol=1e-10)
    inside = generator.normal(size=(50, 3)) @ span
    assert energy_outside(inside, span) == pytest.approx(0, abs=1e-9)
    outside = generator.normal(size=(50, 8))
    outside -= outside @ span.T @ span
    assert energy_outside(outside, span) == pytest.approx(1)


def test_the_share_decides_the_rank():
    texts = np.diag([10.0, 3.0, 1.0, 0.1]) @ np.eye(4, 8)
    texts = np.concatenate([texts, -texts])
    ranks = [len(text_span(texts, share)) for share in (0.5, 0.95, 0.995, 1 - 1e-9)]
    assert ranks == [1, 2, 3, 4]


def test_the_control_projects_images_and_leaves_texts():
    span = np.eye(2, 6)
    encoder = SpanEncoder(Fixed(), span)
    images = torch.randn(5, 6)
    embedded = encoder.embed_images(images)
    torch.testing.assert_close(embedded.norm(dim=1), torch.ones(5))
    assert embedded[:, 2:].abs().max() == 0
    torch.testing.assert_close(embedded[:, :2], torch.nn.functional.normalize(images[:, :2], dim=1))
    torch.testing.assert_close(encoder.embed_texts(["a"]), Fixed().embed_texts(["a"]))
    assert encoder.fingerprint != SpanEncoder(Fixed(), np.eye(3, 6)).fingerprint
