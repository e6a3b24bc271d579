import contextlib
import hashlib
import io
import struct

import numpy as np
import pytest
from PIL import Image

from pictures import encoded, png_bomb
from recollect.core.errors import UserError
from recollect.data.sources.images import BrokenImageError, as_rgb, decode, pixel_digest
from recollect.data.transforms import ImageTransform


@pytest.fixture
def photo():
    pixels = np.random.default_rng(0).integers(0, 256, (16, 20, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((200, 160))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparency_is_blended_with_white(mode):
    gray = Image.new("LA", (4, 1))
    for place, pixel in enumerate([(0, 0), (0, 128), (0, 255), (200, 255)]):
        gray.putpixel((place, 0), pixel)
    if mode == "P":
        palette = Image.new("P", (2, 1))
        palette.putpalette([10, 20, 30, 40, 50, 60])
        palette.putpixel((1, 0), 1)
        found = np.asarray(decode(encoded(palette, transparency=1), "x"))
        assert found.tolist() == [[[10, 20, 30], [255, 255, 255]]]
        return
    found = np.asarray(decode(encoded(gray.convert(mode)), "x"))
    assert found[0, :, 0].tolist() == [255, 127, 0, 200]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "F", "transparency", "upright"])
def test_a_picture_in_memory_gives_the_same_pixels_as_its_file(mode, photo):
    options = {}
    if mode == "upright":
        exif = Image.Exif()
        exif[0x0112] = 6  # rotate by 90 degrees
        image, options = photo, {"exif": exif}
    elif mode == "transparency":
        image, options = photo, {"transparency": photo.getpixel((3, 5))}
    elif mode == "F":
        image = Image.fromarray(np.asarray(photo.convert("L"), np.float32) / 255)
    else:
        image = photo.convert("L").convert("I").convert("I;16") if mode == "I;16" else photo.convert(mode)
    if mode in {"LA", "RGBA"}:
        image.putalpha(photo.convert("L"))
    data = encoded(image, "TIFF" if mode in {"CMYK", "F"} else "PNG", **options)
    read, opened = decode(data, "x"), Image.open(io.BytesIO(data))
    np.testing.assert_array_equal(np.asarray(as_rgb(opened)), np.asarray(read))
    transform = ImageTransform(size=32)
    np.testing.assert_array_equal(transform.pixels(Image.open(io.BytesIO(data))), transform.pixels(read))
    if not options:  # these exist only in the file
        np.testing.assert_array_equal(transform.pixels(image), transform.pixels(read))
    assert as_rgb(read) is read


def tiff(values, *, bits=None, white=False, upright=1):
    """Return a one-strip TIFF; Pillow cannot write unsigned 32-bit, 12-bit or white-is-zero TIFFs."""
    order = ">" if values.dtype.byteorder == ">" else "<"
    form = {"u": 1, "i": 2, "f": 3}[values.dtype.kind]
    strip = values.tobytes() if bits != 12 else pack_12_bits(values)
    height, width = values.shape
    depth = bits or 8 * values.itemsize
    tags = {256: width, 257: height, 258: depth, 259: 1, 262: int(not white), 273: 8, 274: upright, 277: 1,
            278: height, 279: len(strip), 339: form}  # fmt: skip
    entries = b"".join(struct.pack(f"{order}HHII", tag, 4, 1, value) for tag, value in tags.items())
    start = {"<": b"II", ">": b"MM"}[order] + struct.pack(f"{order}HI", 42, 8 + len(strip))
    return start + strip + struct.pack(f"{order}H", len(tags)) + entries + bytes(4)


def pack_12_bits(values):
    """Pack an even number of 12-bit values."""
    pairs = values.reshape(-1, 2)
    return bytes(byte for a, b in pairs.tolist() for byte in (a >> 4, (a & 15) << 4 | b >> 8, b & 255))


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("kind", "values", "expected", "options"),
    [
        ("f4", [0.0, 0.5, 1.0], [0, 128, 255], {}),
        ("f4", [0.0, 0.5, 1.05], [0, 128, 255], {}),  # sharpened
        ("f4", [0.0, 128.0, 255.0], [0, 128, 255], {}),
        ("f4", [0.0, 128.0, 270.0], [0, 128, 255], {}),
        ("f4", [0.0, 32768.0, 65535.0], [0, 128, 255], {}),
        ("f4", [-3.0, np.nan, 1.0], [0, 0, 255], {}),
        ("f4", [0.0, 0.25, 1.0], [255, 191, 0], {"white": True}),
        ("i4", [0, 128, 255], [0, 128, 255], {}),
        ("i4", [0, 32768, 65535], [0, 128, 255], {}),
        ("i4", [-5, 2**30, 2**31 - 1], [0, 128, 255], {}),
        ("i4", [0, 0, 0], [0, 0, 0], {}),
        ("u4", [0, 128, 255], [0, 128, 255], {}),
        ("u4", [0, 2**31, 2**32 - 1], [0, 128, 255], {}),
        ("u4", [0, 2**30, 2**31 - 1], [0, 64, 127], {}),
        ("i2", [-5, 16384, 32767], [0, 128, 255], {}),
        ("u2", [0, 32768, 65535], [0, 128, 255], {}),
        ("u2", [0, 128, 255], [0, 0, 0], {}),  # 16-bit pictures are scaled by their full range, however dark they are
        ("u2", [0, 256, 65535], [255, 254, 0], {"white": True}),
        ("u2", [0, 16, 2048, 4095], [0, 1, 128, 255], {"bits": 12}),
        ("u4", [0, 2**31, 2**32 - 1], [255, 128, 0], {"upright": 3}),
    ],
)
def test_high_bit_depth_gray_is_scaled_to_8_bits(kind, values, expected, options, order):
    if order == ">" and (kind == "u4" or options):
        return  # Pillow reads these only in little-endian order
    with np.errstate(all="raise"):
        found = np.asarray(decode(tiff(np.array([values], f"{order}{kind}"), **options), "x"))
    assert found[0, :, 0].tolist() == expected


@pytest.mark.parametrize("kind", ["i4", "f4", "u2"])
def test_gray_arrays_in_memory_give_the_same_pixels_as_files(kind):
    values = np.array([[0, 255, 2**15, 2**16 - 1]], kind)
    data = tiff(values)
    np.testing.assert_array_equal(np.asarray(as_rgb(Image.fromarray(values))), np.asarray(decode(data, "x")))


def test_a_large_jpeg_is_decoded_at_reduced_size_but_never_smaller_than_needed(photo):
    data = encoded(photo.resize((1000, 800)), "JPEG", quality=95)
    sizes = {needed: min(decode(data, "x", needed=needed).size) for needed in (0, 100, 150, 250, 500, 900)}
    assert sizes == {0: 800, 100: 100, 150: 200, 250: 400, 500: 800, 900: 800}
    whole = decode(data, "x").resize((125, 100), Image.Resampling.BOX)
    difference = np.abs(np.asarray(decode(data, "x", needed=100), dtype=int) - np.asarray(whole, dtype=int))
    assert difference.mean() < 4


def cut(data):
    return data[: len(data) // 2]


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a picture"),
        (b"hello, this is a text", "not a picture"),
        (png_bomb(100_000, 100_000), "decompression bomb"),
        (png_bomb(9500, 9500), "decompression bomb"),
    ],
    ids=["nothing", "text", "huge bomb", "bomb"],
)
def test_invalid_image_data_gives_a_one_line_error(data, reason):
    with pytest.raises(BrokenImageError) as error:
        decode(data, "set.parquet, row 7")
    assert isinstance(error.value, UserError)
    assert str(error.value).startswith("set.parquet, row 7: ")
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_the_error_names_a_truncated_picture(format, photo):
    with pytest.raises(BrokenImageError, match=r"^x, row 3: (cannot be read|not a picture)"):
        decode(cut(encoded(photo, format)), "x, row 3")


def test_damage_in_the_middle_raises_only_broken_image_errors(photo):
    data = encoded(photo)
    generator = np.random.default_rng(0)
    for _ in range(60):
        place = int(generator.integers(8, len(data) - 8))
        damaged = data[:place] + generator.bytes(4) + data[place + 4 :]
        with contextlib.suppress(BrokenImageError):
            assert decode(damaged, "x").mode == "RGB"


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("exif", [b"Exif\0\0no TIFF at all", b"Exif\0\0II*\0"])
def test_damaged_exif_is_ignored(form, exif, photo):
    intact = decode(encoded(photo, form), "photo")
    assert decode(encoded(photo, form, exif=exif), "photo").tobytes() == intact.tobytes()


def test_the_error_for_a_camera_raw_file_suggests_jpeg(tmp_path):
    (tmp_path / "beach.NEF").write_bytes(b"a raw format")
    with pytest.raises(BrokenImageError, match=r"beach.*JPEG"):
        decode(tmp_path / "beach.NEF", "beach")


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "1", "I;16", "F"])
@pytest.mark.parametrize("size", [(1, 1), (3, 64), (5, 65), (2, 200)])
def test_the_digest_of_a_picture_is_stable(mode, size):
    """Digests are picture ids, so a different digest would change every id of an index."""
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    image = image.convert("I").convert("I;16") if mode == "I;16" else image.convert(mode)
    array = np.asarray(image)
    expected = hashlib.blake2b(f"{array.shape} {array.dtype}".encode() + array.tobytes(), digest_size=16).hexdigest()
    assert pixel_digest(image) == pixel_digest(array) == expected
