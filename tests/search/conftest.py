"""Memories of random pictures."""
# ruff: noqa: F401, F811

import io

import pytest
from PIL import Image

from dual_encoders import WORDS, encoder, family, make_encoder, pictures, sentences
from recollect.search.pool import SourcePool


@pytest.fixture
def make_pool(pictures):
    """A pool of 24 pictures; each has its own caption unless others are given."""

    def make(encoder, captions=None):
        own = [pictures.texts(row)[0] for row in range(24)]
        return SourcePool(encoder, pictures, own if captions is None else captions)

    return make


@pytest.fixture
def make_memory(tmp_path, pictures):
    """A memory of the pictures: the even ones as bytes with captions of their own, the odd ones as files without."""
    from recollect.memory.rows import Pairs
    from recollect.memory.store import Memory

    def make(encoder, model_name="", captioned=True):
        made = Memory.create(tmp_path / "memory", width=20, model=encoder.fingerprint, model_name=model_name)
        images = [pictures[row].image for row in range(24)]
        captions = [pictures.texts(row)[0] if captioned and row % 2 == 0 else "" for row in range(24)]
        encoded, paths = [], []
        for row, image in enumerate(images):
            buffer = io.BytesIO()
            Image.fromarray(image).save(buffer, "PNG")
            file = tmp_path / f"{row}.png"
            file.write_bytes(buffer.getvalue())
            encoded.append(buffer.getvalue() if row % 2 == 0 else None)
            paths.append(str(file) if row % 2 else None)
        pairs = Pairs(
            [f"picture-{row}" for row in range(24)],
            encoder.embed_images(images).numpy(),
            encoder.embed_texts([caption or "nothing" for caption in captions]).numpy(),
            captions,
            encoder.fingerprint,
            ["even" if row % 2 == 0 else "odd" for row in range(24)],
            [{"number": row} for row in range(24)],
            encoded,
            paths,
        )
        made.add(pairs)
        return made

    return make
