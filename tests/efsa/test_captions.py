"""Small random captioners of three families; each caption is written once."""

import copy
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

import guide_world
from recollect.core.errors import UserError
from recollect.efsa.caption_file import CaptionFile
from recollect.efsa.captioner import CaptionerOptions, TransformersCaptioner, caption_index, caption_source
from recollect.index import Index
from recollect.index.rows import Rows
from recollect.models.transformers.encoder import quiet

WORDS = (
    *("a", "red", "tree", "on", "the", "river", "USER", "ASSISTANT", "Describe", "what", "you", "see"),
    *(":", "with", "of", "words", "30", "maximum", "in", "detail", "."),
)
SMALL = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}


def save_llava(folder, template):
    words = guide_world.word_tokenizer("<image>", *WORDS, additional_special_tokens=["<image>"])
    numbers = {"num_key_value_heads": 2, "bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    text = LlamaConfig(**SMALL, **numbers, initializer_range=0.5, vocab_size=len(words))
    vision = CLIPVisionConfig(**SMALL, image_size=16, patch_size=8)
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=5)
    LlavaForConditionalGeneration(config).save_pretrained(folder)
    image = CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    turn = "USER : {% for part in messages[0].content %}{{ part.text or '<image>' }} {% endfor %}ASSISTANT :"
    options = {"chat_template": turn} if template else {}
    options |= {"patch_size": 8, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    LlavaProcessor(image, words, **options).save_pretrained(folder)


SAVERS = {
    "blip": guide_world.captioner,
    "llava": lambda folder: save_llava(folder, True),
    "llava without a template": lambda folder: save_llava(folder, False),
}


@pytest.fixture(scope="module")
def captioner_folder(tmp_path_factory):
    folders = {}

    def folder(family):
        if family not in folders:
            folders[family] = tmp_path_factory.mktemp("captioner")
            with quiet(), torch.random.fork_rng():
                torch.manual_seed(1)
                SAVERS[family](folders[family])
        return str(folders[family])

    return folder


@pytest.mark.parametrize("family", list(SAVERS))
def test_a_caption_does_not_depend_on_the_batch(captioner_folder, pictures, family):
    captioner = TransformersCaptioner(captioner_folder(family), CaptionerOptions(most_tokens=6), "cpu")
    images = [pictures[row].image for row in range(3)]
    together = captioner.describe(images)
    assert together == [captioner.describe([image])[0] for image in images]
    assert together == captioner.describe(images)
    assert all(caption == " ".join(caption.split()) for caption in together)
    assert all("USER" not in caption.split()[:1] and "<image>" not in caption for caption in together)
    assert any(together)
    assert max(len(caption.split()) for caption in together) <= 6


def test_llava_gets_the_prompt_and_only_its_answer_is_returned(captioner_folder, pictures):
    folder = captioner_folder("llava")
    one = TransformersCaptioner(folder, CaptionerOptions("red tree", 4), "cpu")
    assert one._prompt == "USER : <image> red tree ASSISTANT :"
    other = TransformersCaptioner(captioner_folder("llava without a template"), CaptionerOptions("red tree", 4), "cpu")
    assert other._prompt == "USER: <image>\nred tree ASSISTANT:"
    image = pictures[0].image
    read = one._processor(images=[image], text=[one._prompt], return_tensors="pt")
    with torch.no_grad():
        tokens = read["input_ids"]
        for _ in range(4):  # greedy decoding by hand
            logits = one.model(input_ids=tokens, pixel_values=read["pixel_values"]).logits
            tokens = torch.cat([tokens, logits[:, -1:].argmax(dim=2)], dim=1)
            if int(tokens[0, -1]) == 3:
                break
    answer = one._processor.tokenizer.decode(tokens[0, read["input_ids"].shape[1] :], skip_special_tokens=True)
    assert one.describe([image]) == [" ".join(answer.split())]


def test_folders_without_a_captioner_are_rejected(tmp_path, captioner_folder, make_encoder):
    with pytest.raises(UserError, match="no such folder"):
        TransformersCaptioner(str(tmp_path / "nothing"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="captioner's config"):
        TransformersCaptioner(str(tmp_path / "empty"))
    with quiet():
        make_encoder("clip").save(tmp_path / "clip")
    with pytest.raises(UserError, match="does not describe images"):
        TransformersCaptioner(str(tmp_path / "clip"))
    folder = tmp_path / "damaged"
    folder.mkdir()
    for file in Path(captioner_folder("blip")).iterdir():
        if file.suffix != ".safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    with pytest.raises(UserError, match="weights"):
        TransformersCaptioner(str(folder))


@dataclass
class BrightnessCaptioner:
    """Captioner that states the brightness, and is interrupted after some batches."""

    max_batches: int = 1000
    batches: list[int] = field(default_factory=list)

    def describe(self, images):
        if len(self.batches) >= self.max_batches:
            raise KeyboardInterrupt
        self.batches.append(len(images))
        return [f"brightness {np.asarray(image).mean():.3f}" for image in images]


def test_captions_are_written_once_and_an_interrupted_run_continues(tmp_path, pictures):
    path = tmp_path / "captions.jsonl"
    pictures.lost.add(5)
    CaptionFile(path).write({"picture-2": "my own"})
    with pytest.raises(KeyboardInterrupt):
        caption_source(pictures, BrightnessCaptioner(max_batches=3), CaptionFile(path), batch_size=4)
    before = copy.deepcopy(CaptionFile(path).captions)
    assert set(before) == {f"picture-{row}" for row in range(12)} - {"picture-5"}
    captioner = BrightnessCaptioner()
    report = caption_source(pictures, captioner, CaptionFile(path), batch_size=4)
    captions = CaptionFile(path).captions
    assert set(captions) == {f"picture-{row}" for row in range(24)} - {"picture-5"}
    assert before.items() <= captions.items()
    assert captions["picture-7"] == f"brightness {pictures[7].image.mean():.3f}"
    assert (report.written, report.known, report.unreadable) == (12, 11, 1)
    assert sum(captioner.batches) == 12
    again = caption_source(pictures, captioner, CaptionFile(path), batch_size=4)
    assert (again.written, again.known) == (0, 23)


def test_an_index_stores_each_batch_of_captions_with_their_vectors(pictures, make_encoder):
    encoder = make_encoder("clip")
    index = Index.create(width=encoder.width, model=encoder.fingerprint)
    own = encoder.embed_texts(["my own"]).numpy()
    index.insert(
        Rows(
            image_vectors=encoder.embed_images([pictures[row].image for row in range(24)]).numpy(),
            ids=[f"picture-{row}" for row in range(24)],
            captions=[("my own",) if row == 2 else () for row in range(24)],
            caption_vectors=[own if row == 2 else own[:0] for row in range(24)],
        )
    )
    pictures.lost.add(5)
    index = Index(index.store, encoder, lambda id: pictures[int(id.split("-")[1])].image)
    with pytest.raises(KeyboardInterrupt):
        caption_index(index, BrightnessCaptioner(max_batches=3), "model", batch_size=4)
    assert index.texts == 1 + 3 + 4 + 4
    report = caption_index(index, BrightnessCaptioner(), "model", batch_size=4)
    assert (report.written, report.known, report.unreadable) == (22 - 11, 1 + 11, 1)
    caption = f"brightness {pictures[7].image.mean():.3f}"
    (found,) = index.pictures(["picture-7"])
    assert (found.captions, found.captioned_by) == ((caption,), "model")
    assert index.pictures(["picture-2"])[0].captions == ("my own",)
    assert index.search(caption, 1, by="text")[0].id == "picture-7"
