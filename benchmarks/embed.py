"""Pictures embedded per second of CPU time.

python benchmarks/embed.py --out results/bench/embed.json

Three methods take turns, and the minimum CPU time of the rounds counts, which reduces the effect of other load:
recollect (`embed_images`: threads decode and resize, ONNX Runtime computes), a plain loop (Pillow, the transform, the
model in PyTorch, batch after batch), and decoding alone. The cosine between the first two includes the effect of
decoding large JPEG files at a fraction of their size. The pictures are JPEG files of blurred noise, 640 x 480 and
4,000 x 3,000 pixels; ViT-B/16 has random weights.
"""

import argparse
import io
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import transformers
from PIL import Image, ImageFilter
from torch import Tensor

from recollect import load_model
from recollect.core.files import write_json
from recollect.data.sources.images import decode
from recollect.data.sources.reader import blocks_ahead
from recollect.models import DualEncoder, TransformersEncoder
from recollect.models.pairing import pair_towers
from recording import this_command, where

BATCH = 32
PHOTO, LARGE_PHOTO = (640, 480), (4000, 3000)


def photos(count: int, size: tuple[int, int]) -> list[bytes]:
    """Create JPEG files of blurred noise."""
    files = []
    for seed in range(count):
        noise = np.random.default_rng(seed).integers(0, 256, (size[1] // 8, size[0] // 8, 3), dtype=np.uint8)
        picture = Image.fromarray(noise).filter(ImageFilter.GaussianBlur(1)).resize(size, Image.Resampling.BICUBIC)
        picture.save(file := io.BytesIO(), "JPEG", quality=90)
        files.append(file.getvalue())
    return files


def plain(model: DualEncoder, files: Sequence[bytes]) -> Tensor:
    """Embed with the usual loop over batches."""
    blocks = []
    for start in range(0, len(files), BATCH):
        pictures = [Image.open(io.BytesIO(file)).convert("RGB") for file in files[start : start + BATCH]]
        pixels = torch.stack([model.transform(picture) for picture in pictures])
        with torch.no_grad():
            blocks.append(torch.nn.functional.normalize(model.encode_images(pixels), dim=1))
    return torch.cat(blocks)


def ours(model: DualEncoder, files: Sequence[bytes]) -> Tensor:
    """Embed with recollect, which decodes large JPEGs at reduced size in threads."""
    needed = model.transform.needed
    read = blocks_ahead(lambda i: decode(files[i], "", needed=needed), range(len(files)), 2 * BATCH)
    return torch.cat([model.embed_images(block, batch_size=BATCH) for block in read])


def least_cpu_time(methods: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the minimum CPU seconds (over all threads) of each method; methods take turns."""
    times: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(rounds):
        for name, work in methods.items():
            start = time.process_time()
            work()
            times[name].append(time.process_time() - start)
    return {name: min(each) for name, each in times.items()}


def vit_b_16() -> TransformersEncoder:
    """Build a CLIP ViT-B/16 with random weights; only its image tower is used."""
    torch.manual_seed(0)
    config = transformers.CLIPConfig(vision_config={"patch_size": 16}, text_config={"num_hidden_layers": 1})
    starter = pair_towers("efficientnet-lite0", "minilm-l6-v2")  # any tokenizer
    return TransformersEncoder(transformers.CLIPModel(config).eval(), starter.processor, starter.transform)


def measure(model: DualEncoder, files: list[bytes], rounds: int) -> dict[str, float]:
    """Return pictures per CPU second of the three methods, their ratio, and the minimum cosine."""
    warm = files * (64 // len(files) + 1)
    cosine = torch.cosine_similarity(ours(model, warm)[: len(files)], plain(model, files), dim=1).min()
    methods: dict[str, Callable[[], object]] = {
        "recollect": lambda: ours(model, files),
        "plain loop": lambda: plain(model, files),
        "decoding alone": lambda: [Image.open(io.BytesIO(file)).convert("RGB") for file in files],
    }
    speeds = {name: round(len(files) / seconds, 2) for name, seconds in least_cpu_time(methods, rounds).items()}
    return speeds | {"ratio": round(speeds["recollect"] / speeds["plain loop"], 2), "cosine": round(float(cosine), 6)}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/bench/embed.json"))
    parser.add_argument("--count", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    small, large = photos(args.count, PHOTO), photos(max(4, args.count // 16), LARGE_PHOTO)
    starter = load_model("starter", "cpu")
    rows = {
        "starter": measure(starter, small, args.rounds),
        "starter, 12 megapixels": measure(starter, large, args.rounds),
        "ViT-B/16": measure(vit_b_16(), small[: max(BATCH, args.count // 4)], args.rounds),
    }
    about = where("onnxruntime", "pillow", "transformers")
    about["machine"]["load"] = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    write_json(args.out, {"command": this_command(), **about, "pictures per CPU second": rows})
    for name, row in rows.items():
        print(name, row)


if __name__ == "__main__":
    main()
