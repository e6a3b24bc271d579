"""Small pictures, and small data sets in every supported format."""

import io
import json
import struct
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from recollect.data.sources import open_source


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Keep the Arrow cache of ``datasets`` inside the test's temporary folder."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("arrow")))


def picture(color: int, size: tuple[int, int] = (12, 10)) -> Image.Image:
    """Return a picture identified by its top left pixel."""
    pixels = np.full((size[1], size[0], 3), color, dtype=np.uint8)
    pixels[size[1] // 2 :, :, 1] = 255 - color
    return Image.fromarray(pixels)


def noise(number: int, size: int = 40) -> Image.Image:
    """Return a picture of noise."""
    return Image.fromarray(np.random.default_rng(number).integers(0, 256, (size, size, 3), dtype=np.uint8))


def captioned(folder: Path, texts: Sequence[str], drawn=noise, columns: str = "caption") -> Path:
    """Write pictures ``drawn`` by number, and a table of their paths and texts, ``pairs.csv``."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(len(texts)):
        drawn(number).save(folder / f"{number}.png")
    rows = [f"{number}.png,{text}" for number, text in enumerate(texts)]
    (folder / "pairs.csv").write_text("\n".join([f"path,{columns}", *rows]))
    return folder / "pairs.csv"


def encoded(image: Image.Image, format: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def png_bomb(width, height):
    """Return a PNG header that claims the given size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + b"IHDR" + header + struct.pack(">I", zlib.crc32(b"IHDR" + header))
    return b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))


class Make:
    """Writer of small data sets; picture ``i`` has gray level ``i`` in its corner."""

    picture = staticmethod(picture)
    encoded = staticmethod(encoded)

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def parquet(self, columns: Mapping[str, Sequence], name: str = "set.parquet", rows: int | None = None) -> Path:
        """Write a Parquet file, with an ``image`` column unless one is given."""
        count = rows or len(next(iter(columns.values())))
        table = {"image": [encoded(picture(i)) for i in range(count)], **columns}
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({key: value for key, value in table.items() if value is not None}), path)
        return path

    def tar(self, samples: Sequence[tuple[str, Mapping[str, bytes]]], name: str = "shard-000.tar") -> Path:
        """Write a WebDataset shard from (key, {extension: bytes}) pairs."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path, "w") as archive:
            for key, files in samples:
                for extension, data in files.items():
                    member = tarfile.TarInfo(f"{key}.{extension}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
        return path

    def pictures(self, names: Sequence[str], folder: str = "pictures") -> Path:
        """Write image files with the given names (``cat/1.png``) to a new folder; the i-th has gray level i."""
        root = self.folder / folder
        for i, name in enumerate(names):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            picture(i).save(root / name)
        return root

    def text(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def json(self, value: object) -> bytes:
        return json.dumps(value).encode()


@pytest.fixture
def make(tmp_path):
    return Make(tmp_path)


@pytest.fixture
def captions(make):
    """Forty captioned pictures, some with two captions."""
    texts = [[f"picture {i}", f"number {i}"] if i % 2 else [f"picture {i}"] for i in range(40)]
    return open_source(str(make.parquet({"captions": texts}, "captions.parquet")))


@pytest.fixture
def labels(make):
    """Thirty labeled pictures of three classes."""
    names = ["cat", "polka_dot", "bus"]
    columns = {"label": [i % 3 for i in range(30)], "class_name": [names[i % 3] for i in range(30)]}
    return open_source(str(make.parquet(columns, "labels.parquet")), kind="label")


def shade(sample_or_image) -> int:
    """Return the number of the picture, i.e. its top left gray level."""
    image = getattr(sample_or_image, "image", sample_or_image)
    return int(np.asarray(image)[0, 0, 0])


@pytest.fixture(name="shade")
def shade_fixture():
    return shade
