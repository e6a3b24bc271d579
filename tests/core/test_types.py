"""Protocols are told by their members, of which none is read."""

import pytest

from recollect.core.types import Encoder, EncoderBase


class Dear(EncoderBase):
    """An encoder whose fingerprint would cost a hash of all weights."""

    def __init__(self):
        self.width = 3

    @property
    def fingerprint(self):
        raise AssertionError("read")

    def embed_images(self, images):
        raise NotImplementedError

    def embed_texts(self, texts, prefix=None):
        raise NotImplementedError


def test_a_check_of_a_type_reads_no_fingerprint():
    assert isinstance(Dear(), Encoder)
    with pytest.raises(AssertionError, match="read"):
        _ = Dear().fingerprint


@pytest.mark.parametrize("protocol", [Encoder])
def test_what_lacks_a_member_is_of_another_type(protocol):
    part = type("Part", (), dict.fromkeys(("width", "fingerprint", "version", "append")))
    assert not isinstance(part(), protocol)
    assert not isinstance("text", protocol)
    names = [name for name in (*vars(protocol), *protocol.__annotations__) if not name.startswith("_")]
    assert isinstance(type("Whole", (), dict.fromkeys(names))(), protocol)
    assert not isinstance(type("Nearly", (), dict.fromkeys(names[1:]))(), protocol)
