"""The same pictures have the same embeddings in every accepted input format."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from recollect.core.errors import UserError
from recollect.data.sources.images import as_images
from recollect.models import build_model


@pytest.fixture(scope="module")
def model():
    return build_model("glyph-random", texts=["a cat", "a dog"])


@pytest.fixture(scope="module")
def arrays():
    return np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def expected(model, arrays):
    return model.embed_images([Image.fromarray(array) for array in arrays])


@pytest.fixture
def folder(arrays, tmp_path):
    (tmp_path / "photos" / "inner").mkdir(parents=True)
    for number, array in enumerate(arrays):
        Image.fromarray(array).save(tmp_path / "photos" / ("inner" if number > 2 else "") / f"p{number}.png")
    (tmp_path / "photos" / "notes.txt").write_text("no picture")
    (tmp_path / "photos" / ".hidden.png").write_bytes(b"")
    return tmp_path / "photos"


def test_arrays_files_and_folders_give_the_same_embeddings(model, arrays, expected, folder):
    files = sorted(folder.rglob("p*.png"), key=lambda path: path.name)
    for form in (
        arrays,
        list(arrays),
        files,
        list(map(str, files)),
        [files[0], *arrays[1:3], Image.open(files[3]), files[4]],
    ):
        torch.testing.assert_close(model.embed_images(form), expected, rtol=0, atol=1e-6)
    in_order = sorted(folder.rglob("p*.png"))
    torch.testing.assert_close(model.embed_images(folder), model.embed_images(in_order), rtol=0, atol=1e-6)
    assert len(model.embed_images(str(folder))) == 5


def test_a_single_picture_gives_one_row(model, arrays, expected, folder):
    for form in (arrays[0], Image.fromarray(arrays[0]), folder / "p0.png", str(folder / "p0.png")):
        torch.testing.assert_close(model.embed_images(form), expected[:1], rtol=0, atol=1e-6)


def test_a_large_jpeg_has_the_same_embedding_from_a_file_and_from_memory(model, arrays, tmp_path):
    Image.fromarray(arrays[0]).resize((160, 96)).save(tmp_path / "large.jpg")
    from_memory = model.embed_images(Image.open(tmp_path / "large.jpg"))
    encoded = (tmp_path / "large.jpg").read_bytes()
    for form in (tmp_path / "large.jpg", tmp_path, encoded, io.BytesIO(encoded)):
        assert torch.equal(model.embed_images(form), from_memory)


def test_a_single_string_gives_one_row(model, unchecked):
    assert torch.equal(model.embed_texts("a cat"), model.embed_texts(["a cat"]))
    assert torch.equal(model.embed_texts(iter(["a cat"])), model.embed_texts(["a cat"]))
    for wrong in (3, None):
        with pytest.raises(UserError, match=f"{wrong} is not a string"):
            model.embed_texts(["a cat", wrong])
    with pytest.raises(UserError, match=r"'caf\\udce9'"):  # an undecodable byte from the command line
        model.embed_texts(["caf\udce9"])


def test_the_batch_size_does_not_affect_embeddings(model, arrays, expected):
    torch.testing.assert_close(
        model.embed_images(arrays, batch_size=2, show_progress=True), expected, rtol=0, atol=1e-6
    )
    with pytest.raises(UserError, match="batch_size 0"):
        model.embed_images(arrays, batch_size=0)


def test_arrays_may_have_no_channel_axis_or_one_three_or_four_channels_in_the_last_axis(model, arrays, expected):
    gray = arrays[:, :, :, :1]
    assert torch.equal(model.embed_images(gray[0, :, :, 0]), model.embed_images(gray[0].repeat(3, axis=2)))
    opaque = np.concatenate([arrays, np.full_like(gray, 255)], axis=3)
    for form in (opaque, list(opaque)):
        torch.testing.assert_close(model.embed_images(form), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(model.embed_images(gray[0]), model.embed_images(gray[0, :, :, 0]), rtol=0, atol=0)
    for form in (arrays[0].transpose(2, 0, 1), arrays.transpose(0, 3, 1, 2)):
        with pytest.raises(UserError, match=r"array\.transpose\("):
            model.embed_images(form)


def test_vectors_count_as_one_row_each():
    assert len(as_images(np.zeros(8, dtype=np.float32))) == 1
    assert len(as_images(np.zeros((3, 8), dtype=np.float32))) == 3


@pytest.mark.parametrize(
    "form",
    [
        torch.zeros(2, 32, 32, 3),
        torch.zeros(2, 3, 16, 16),
        torch.zeros(3, 32, 32),
        torch.zeros(2, 3, 32, 32, dtype=torch.uint8),
        torch.zeros(4, 7),
        np.zeros((8, 8), dtype=bool),
        np.zeros((8, 8), dtype=np.float32),
        np.zeros((4, 4, 2), dtype=np.uint8),
        np.zeros((4, 4, 3), dtype=np.float32),
        np.zeros((2, 2, 2, 2, 3), dtype=np.uint8),
        np.zeros((0, 4, 3), dtype=np.uint8),
        [torch.zeros(3, 16, 16)],
        Image.new("RGB", (0, 4)),
        {"a": "b.png"},
        {"bytes": bytes(9999)},
        "https://example.org/a.png",
        "nothing.png",
        "nowhere",
        3,
        b"nothing",
    ],
)
def test_invalid_pictures_are_rejected_before_embedding(model, form, unchecked):
    with pytest.raises(UserError) as error:
        model.embed_images(form)
    assert len(str(error.value)) < 300


def test_the_error_names_a_broken_file(model, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"not a picture")
    with pytest.raises(UserError, match=r"broken\.png"):
        model.embed_images(tmp_path)
