"""Build the folder that the guides assume: small synthetic versions of every file and checkpoint they mention."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BlipConfig,
    BlipForConditionalGeneration,
    BlipProcessor,
    PreTrainedTokenizerFast,
    SiglipConfig,
    SiglipImageProcessorPil,
    SiglipModel,
    SiglipProcessor,
)

from pictures import encoded
from recollect.models import build_model
from recollect.models.tokenizers import train_unigram
from recollect.models.transformers.encoder import quiet

SIZE = 16
NOUNS = ("bridge", "umbrella", "river", "lighthouse", "airplane", "snowman")
SYNONYMS = ("viaduct", "parasol", "stream", "beacon", "jet", "ice figure")
COLORS = {"red": (220, 30, 30), "green": (30, 200, 60), "blue": (40, 60, 220), "gray": (120, 120, 120)}
_TOWER = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}


def drawing(number: int) -> Image.Image:
    """Return a colored block in noise, different for each number."""
    generator = np.random.default_rng(number)
    pixels = generator.integers(0, 90, (20, 20, 3), dtype=np.uint8)
    x, y = generator.integers(0, 10, size=2)
    pixels[y : y + 9, x : x + 9] = list(COLORS.values())[number % 4]
    return Image.fromarray(pixels)


def caption(number: int) -> str:
    """Return a caption with the color of the picture and a noun."""
    return f"a {list(COLORS)[number % 4]} {NOUNS[number % len(NOUNS)]} number {number}"


def table(folder: Path, name: str, splits: dict[str, int], columns, first: int = 0) -> None:
    """Write a Parquet file whose row ``i`` has picture ``first + i`` and, in each column, its function's value.

    ``splits`` has the number of rows of each split; a column ``split`` assigns them otherwise.
    """
    rows = [split for split, count in splits.items() for _ in range(count)]
    numbers = [first + i for i in range(len(rows))]
    data = {column: [value(i) for i in range(len(rows))] for column, value in columns.items()}
    if "photo" not in columns:
        data["image"] = [encoded(drawing(number)) for number in numbers]
    pq.write_table(pa.table({"split": rows, **data}), folder / f"{name}.parquet")


def pairs(folder: Path, name: str, splits: dict[str, int], first: int) -> None:
    """Write a table with captions and the columns that the guides filter by."""
    columns = {
        "captions": lambda i: [caption(first + i), f"{caption(first + i)} by the sea"],
        "year": lambda i: 2010 + i % 14,
        "domain": lambda i: ("photo", "sketch", "drawing")[i % 3],
    }
    table(folder, name, splits, columns, first)


def classes(folder: Path, name: str, names: list[str], extra=None, splits=None, shots: int = 4) -> None:
    """Write a table of labeled pictures, with every class in every split."""
    count = shots * len(names)
    columns = {
        "label": lambda i: i % len(names),
        "class_name": lambda i: names[i % len(names)],
        "captions": lambda i: [names[i % len(names)], SYNONYMS[i % len(names)]],
    }
    table(folder, name, splits or {"train": count, "test": count}, columns | (extra or {}), first=first_number(name))


def landmarks(folder: Path) -> None:
    """Write a table with disjoint classes in the training and test splits."""
    columns = {
        "label": lambda i: i % 6,
        "class_name": lambda i: NOUNS[i % 6],
        "split": lambda i: "train" if i % 6 < 4 and i < 24 else "test",
    }
    table(folder, "landmarks", {"train": 36}, columns, 90_000)


def first_number(name: str) -> int:
    """Return the first picture number of a data set, different for each."""
    return 1000 + 97 * sum(map(ord, name))


def emoji(folder: Path) -> None:
    """Write a table of concepts drawn in several styles, some concepts held out."""
    styles = ("twemoji", "noto", "fluent_flat", "openmoji_line", "blob", "flat")
    columns = {
        "split": lambda i: "test" if i // len(styles) >= 6 else "train",
        "captions": lambda i: [f"{NOUNS[(i // len(styles)) % len(NOUNS)]} sign {i // len(styles)}"],
        "codepoint": lambda i: f"U+{i // len(styles):04X}",
        "domain": lambda i: styles[i % len(styles)],
        "ambiguous": lambda i: False,
        "group": lambda i: ("people", "objects", "symbols", "travel & places", "activities")[i % 5],
    }
    table(folder, "emoji", {"train": 8 * len(styles)}, columns, 5000)


def folders(root: Path, names: list[str], each: int, first: int) -> None:
    """Write one folder of pictures per class."""
    for number in range(each * len(names)):
        place = root / names[number % len(names)]
        place.mkdir(parents=True, exist_ok=True)
        drawing(first + number).save(place / f"{number}.jpg")


def checkpoint(folder: Path, seed: int = 0) -> None:
    """Save a tiny random SigLIP, determined by the seed, in transformers' format."""
    tokenizer = train_unigram([caption(i) for i in range(200)], 320, 64)
    tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = ["input_ids"]
    special = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1}
    text = _TOWER | special | {"vocab_size": len(tokenizer), "max_position_embeddings": 64}
    config = SiglipConfig(text_config=text, vision_config=_TOWER | {"image_size": SIZE, "patch_size": 8})
    processor = SiglipProcessor(SiglipImageProcessorPil(size={"height": SIZE, "width": SIZE}), tokenizer)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        model = SiglipModel(config)
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3.0)  # so the embeddings of two pictures differ
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


def word_tokenizer(*words: str, **options) -> PreTrainedTokenizerFast:
    """Return a word-level tokenizer; ids 0 to 4 are BERT's special tokens."""
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "bos_token": "[CLS]", "eos_token": "[SEP]"}
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 2)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names, **options)


def captioner(folder: Path, seed: int = 0) -> None:
    """Save a tiny random BLIP, determined by the seed."""
    from transformers.models.blip import image_processing_pil_blip

    if not hasattr(image_processing_pil_blip, "BlipImageProcessorPil"):
        pytest.skip("this transformers version needs torchvision for BLIP")
    from transformers import BlipImageProcessorPil

    words = word_tokenizer("[DEC]", "[ENC]", *COLORS, *NOUNS)
    numbers = {"bos_token_id": 2, "eos_token_id": 3, "sep_token_id": 3, "pad_token_id": 0, "encoder_hidden_size": 16}
    text = _TOWER | numbers | {"vocab_size": len(words), "is_decoder": True, "initializer_range": 0.5}
    config = BlipConfig(text_config=text, vision_config=_TOWER | {"image_size": SIZE, "patch_size": 8})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        BlipForConditionalGeneration(config).save_pretrained(folder)
    BlipProcessor(BlipImageProcessorPil(size={"height": SIZE, "width": SIZE}), words).save_pretrained(folder)


def make_models(folder: Path) -> None:
    """Save random checkpoints under every name the guides use."""
    with quiet():
        checkpoint(folder / "MODEL")
        captioner(folder / "CAPTIONER")
    others = ("BASELINE", "RUN/model", "google/siglip2-base-patch16-224", "google/siglip2-base-patch16-256")
    for name in others:
        shutil.copytree(folder / "MODEL", folder / name)
    for name in ("Salesforce/blip-image-captioning-base", "llava-hf/llava-1.5-7b-hf"):
        shutil.copytree(folder / "CAPTIONER", folder / name)
    texts = [caption(i) for i in range(60)]
    build_model("tiny", texts=texts).save(folder / "runs/mine/model")
    build_model("tiny", texts=texts, seed=1).save(folder / "runs/plain/model")
    build_model("tiny", texts=texts, prefixes=("caption", "label")).save(folder / "runs/prefix/model")


def make_world(folder: Path) -> Path:
    """Write all files and checkpoints into ``folder``."""
    birds = ["blue_tit", "crane", "owl"]
    folders(folder / "birds" / "train", birds, 4, 100)
    folders(folder / "birds" / "test", birds, 3, 200)
    folders(folder / "examples", birds, 4, 300)
    folders(folder / "more", ["owl", "robin"], 3, 500)
    (folder / "photos").mkdir()
    for number in range(36):
        drawing(600 + number).save(folder / "photos" / f"{number}.jpg")
    written = "".join(f"photos/{number}.jpg,{caption(600 + number)}\n" for number in range(36))
    (folder / "captions.csv").write_text(f"path,caption\n{written}")
    (folder / "new").mkdir()
    for number in range(6):
        drawing(400 + number).save(folder / "new" / f"{number}.jpg")
    for number, name in enumerate(("photo", "harbor")):
        drawing(7 + number).save(folder / f"{name}.jpg")
    both = {"train": 60, "test": 12}
    for first, name in enumerate(("pairs", "more", "photos", "aerial", "rsicd_captions", "flickr8k")):
        pairs(folder, name, both, 10_000 * (first + 1))
    pairs(folder, "test", {"test": 2}, 80_000)
    web = {"photo": lambda i: encoded(drawing(i)), "alt": caption, "title": lambda i: f"{caption(i)}, a title"}
    table(folder, "web", {"train": 24}, web)
    emoji(folder)
    landmarks(folder)
    for name in ("eurosat", "cifar10", "dtd10", "tiny_imagenet", "tiny_imagenet_b", "caltech101", "omniglot"):
        classes(folder, name, list(NOUNS[:4]))
    classes(folder, "pacs", list(NOUNS[:3]), {"domain": lambda i: ("sketch", "photo")[i // 3 % 2]}, shots=8)
    (folder / "queries.txt").write_text("a red bridge\na blue river\n")
    (folder / "classes.txt").write_text("".join(f"{noun}\n" for noun in NOUNS))
    make_models(folder)
    return folder
