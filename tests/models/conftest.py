"""Small random checkpoints of each family, created and saved by transformers alone."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    BertConfig,
    BertTokenizer,
    CLIPConfig,
    CLIPImageProcessorPil,
    CLIPModel,
    CLIPProcessor,
    CLIPTextConfig,
    CLIPTokenizer,
    PreTrainedModel,
    ProcessorMixin,
    Siglip2Config,
    Siglip2ImageProcessorPil,
    Siglip2Model,
    Siglip2Processor,
    SiglipConfig,
    SiglipImageProcessorPil,
    SiglipModel,
    SiglipProcessor,
    SwinConfig,
    VisionTextDualEncoderConfig,
    VisionTextDualEncoderModel,
    VisionTextDualEncoderProcessor,
    ViTConfig,
)

from recollect.models.tokenizers import train_unigram
from recollect.models.transformers.encoder import quiet

CAPTIONS = (
    "a photo of a cat",
    "two dogs left of a small red house",
    "a large blue umbrella above a tree",
    "an aerial view of a river, a bridge and many green trees",
    "a photo of a car",
    "A PHOTO OF A CHESS QUEEN",
)
SIZE = 32


def _tower(layers: int = 2) -> dict[str, int]:
    return {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": layers, "num_attention_heads": 2}


def clip_tokenizer() -> CLIPTokenizer:
    """Return a byte-level BPE tokenizer with a few merges; the end token has the last id, as in the published one."""
    letters = sorted(ByteLevel.alphabet())
    words = [*letters, *(f"{letter}</w>" for letter in letters), "at</w>", "ca", "cat</w>"]
    vocabulary = {word: number for number, word in enumerate([*words, "<|startoftext|>", "<|endoftext|>"])}
    merges = [("a", "t</w>"), ("c", "a"), ("c", "at</w>")]
    return CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=77)


def bert_tokenizer() -> BertTokenizer:
    letters = [*"abcdefghijklmnopqrstuvwxyz0123456789.,"]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters), "photo"]
    return BertTokenizer(vocab={word: number for number, word in enumerate(words)}, model_max_length=40)


def unigram(length: int) -> object:
    return train_unigram(CAPTIONS * 4, 400, length)


def _square(size: int = SIZE) -> dict[str, int]:
    return {"height": size, "width": size}


def clip(end: int | None = 2) -> tuple[PreTrainedModel, ProcessorMixin]:
    """Return a CLIP; ``end`` is the end token id in its config (None: the tokenizer's), 2 in published checkpoints."""
    tokenizer = clip_tokenizer()
    text = _tower() | {
        "vocab_size": len(tokenizer),
        "max_position_embeddings": 77,
        "bos_token_id": 0,
        "eos_token_id": tokenizer.eos_token_id if end is None else end,
        "pad_token_id": 1,
    }
    image = _tower() | {"image_size": SIZE, "patch_size": 8}
    processor = CLIPProcessor(CLIPImageProcessorPil(size={"shortest_edge": SIZE}, crop_size=_square()), tokenizer)
    return CLIPModel(CLIPConfig(text_config=text, vision_config=image, projection_dim=24)), processor


def _siglip_text(tokenizer: object, length: int) -> dict[str, object]:
    special = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1}
    return _tower() | special | {"vocab_size": len(tokenizer), "max_position_embeddings": length}


def siglip() -> tuple[PreTrainedModel, ProcessorMixin]:
    tokenizer = unigram(20)
    image = _tower() | {"image_size": SIZE, "patch_size": 8}
    tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = ["input_ids"]  # as published
    config = SiglipConfig(text_config=_siglip_text(tokenizer, 20), vision_config=image)
    return SiglipModel(config), SiglipProcessor(SiglipImageProcessorPil(size=_square()), tokenizer)


def naflex() -> tuple[PreTrainedModel, ProcessorMixin]:
    """Return a SigLIP 2 with NaFlex (any aspect ratio)."""
    tokenizer = unigram(64)
    image = _tower() | {"num_patches": 16, "patch_size": 8}
    tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = ["input_ids"]
    tokenizer.padding_side = tokenizer.init_kwargs["padding_side"] = "right"  # as published; the default is left
    config = Siglip2Config(text_config=_siglip_text(tokenizer, 64), vision_config=image)
    return Siglip2Model(config), Siglip2Processor(Siglip2ImageProcessorPil(patch_size=8, max_num_patches=16), tokenizer)


def vit_bert() -> tuple[PreTrainedModel, ProcessorMixin]:
    tokenizer = bert_tokenizer()
    image = ViTConfig(**_tower(), image_size=SIZE, patch_size=8)
    text = BertConfig(**_tower(), vocab_size=len(tokenizer), max_position_embeddings=40)
    config = VisionTextDualEncoderConfig.from_vision_text_configs(image, text, projection_dim=24)
    processor = VisionTextDualEncoderProcessor(SiglipImageProcessorPil(size=_square(), resample=2), tokenizer)
    return VisionTextDualEncoderModel(config), processor


def swin_clip() -> tuple[PreTrainedModel, ProcessorMixin]:
    tokenizer = unigram(16)
    image = SwinConfig(image_size=SIZE, patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[1, 2], window_size=4)
    special = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1}
    text = CLIPTextConfig(**_tower(), **special, vocab_size=len(tokenizer), max_position_embeddings=16)
    config = VisionTextDualEncoderConfig.from_vision_text_configs(image, text, projection_dim=24)
    processor = VisionTextDualEncoderProcessor(
        CLIPImageProcessorPil(size={"shortest_edge": SIZE}, crop_size=_square()), tokenizer
    )
    return VisionTextDualEncoderModel(config), processor


MAKERS: dict[str, Callable[[], tuple[PreTrainedModel, ProcessorMixin]]] = {
    "clip": clip,
    "siglip": siglip,
    "naflex": naflex,
    "vit_bert": vit_bert,
    "swin_clip": swin_clip,
}
FAMILIES = tuple(MAKERS)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory) -> Callable[[str], Path]:
    """Return the folder of a family's checkpoint, saved by transformers."""
    folders: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in folders:
            folders[family] = tmp_path_factory.mktemp("checkpoints") / family
            with quiet(), torch.random.fork_rng():
                torch.manual_seed(len(family))
                model, processor = MAKERS[family]()
                model.save_pretrained(folders[family])
                processor.save_pretrained(folders[family])
        return folders[family]

    return folder


@pytest.fixture(scope="session")
def bert_words() -> BertTokenizer:
    return bert_tokenizer()


@pytest.fixture(params=FAMILIES)
def family(request) -> str:
    return request.param


@pytest.fixture
def clip_with_end() -> Callable[[int | None], tuple[PreTrainedModel, ProcessorMixin]]:
    """Return the `clip` factory."""
    return clip


@pytest.fixture
def captions() -> list[str]:
    return list(CAPTIONS)


@pytest.fixture
def pictures() -> list[Image.Image]:
    """Return pictures of several shapes."""
    generator = np.random.default_rng(0)
    shapes = [(40, 40), (64, 48), (33, 90), (20, 20)]
    return [Image.fromarray(generator.integers(0, 256, (*shape, 3), dtype=np.uint8)) for shape in shapes]


@pytest.fixture
def pixels() -> torch.Tensor:
    return torch.randn(5, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


PLAIN = """
import json, sys
import numpy as np
import torch
from PIL import Image
from transformers import AutoModel, AutoProcessor

for line in sys.stdin:
    work = json.loads(line)
    model, processor = AutoModel.from_pretrained(work["folder"]).eval(), AutoProcessor.from_pretrained(work["folder"])
    images = [Image.fromarray(picture) for picture in np.load(work["pictures"])]
    full = work["padding"] == "max_length"
    length = model.config.text_config.max_position_embeddings if full else None
    tokens = processor.tokenizer(
        work["texts"], padding=work["padding"], truncation=True, max_length=length, return_tensors="pt"
    )
    with torch.no_grad():
        found = [
            model.get_image_features(**processor.image_processor(images, return_tensors="pt")).pooler_output,
            model.get_text_features(**tokens).pooler_output,
        ]
    assert not any(name.split(".")[0] == "recollect" for name in sys.modules)
    np.savez(work["out"], *(torch.nn.functional.normalize(each, dim=1).numpy() for each in found))
    print("done", flush=True)
"""
"""A program that uses transformers without this package."""


@pytest.fixture(scope="session")
def plain_transformers(tmp_path_factory):
    """Return a function that embeds with transformers alone, in a process without this package."""
    place = tmp_path_factory.mktemp("plain")
    with subprocess.Popen([sys.executable, "-c", PLAIN], stdin=-1, stdout=-1, text=True, cwd=place) as program:

        def embed(folder, pictures, texts, padding):
            np.save(place / "pictures.npy", pictures)
            names = {"folder": folder, "pictures": place / "pictures.npy", "out": place / "found.npz"}
            work = {name: str(path) for name, path in names.items()} | {"texts": texts, "padding": padding}
            program.stdin.write(json.dumps(work) + "\n")
            program.stdin.flush()
            answers = iter(program.stdout.readline, "")  # transformers prints too
            assert any(answer == "done\n" for answer in answers), "the program failed"
            found = np.load(place / "found.npz")
            return torch.from_numpy(found["arr_0"]), torch.from_numpy(found["arr_1"])

        yield embed
        program.stdin.close()
