"""Generated shards, and the texts of the batches read from them."""

import io
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from pictures import encoded
from recollect.data.batches.mixture import DataMix
from recollect.data.batches.stream import BatchStream
from recollect.data.transforms import ImageTransform

TRANSFORM = ImageTransform(size=8)


def png(number: int) -> bytes:
    return encoded(Image.new("RGB", (9, 9), (number % 256, number // 256, 0)))


def tar_of(numbers) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for number in numbers:
            for ending, content in (("png", png(number)), ("txt", f"picture {number}".encode())):
                info = tarfile.TarInfo(f"{number:06}.{ending}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return data.getvalue()


def write_tars(folder, shards: int, each: int) -> None:
    """Write ``s-000.tar`` and so on, with ``each`` pictures."""
    folder.mkdir(exist_ok=True)
    for shard in range(shards):
        (folder / f"s-{shard:03}.tar").write_bytes(tar_of(range(shard * each, (shard + 1) * each)))


def write_parquet(path, numbers, group: int) -> None:
    pictures = [{"bytes": png(number), "path": None} for number in numbers]
    table = pa.table({"image": pictures, "caption": [f"picture {number}" for number in numbers]})
    pq.write_table(table, path, row_group_size=group)


def stream(source, batch=12, **options):
    return BatchStream(DataMix((source,)), batch, TRANSFORM, **options)


def texts(batches):
    return [text for batch in batches for text in batch.texts]
