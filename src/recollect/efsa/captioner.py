"""Captions of pictures, written once by a model that describes images."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    AutoProcessor,
)

from recollect.core.errors import UserError
from recollect.core.progress import progress
from recollect.core.types import ImageLike, Source, chosen_device
from recollect.data.sources.images import as_rgb, pixel_digest
from recollect.efsa.caption_file import CaptionFile, key_of
from recollect.efsa.options import CaptionerOptions
from recollect.index import Index, Picture
from recollect.models.hub import asked_once
from recollect.models.transformers.encoder import quiet

# LLaVA 1.5's turn of a conversation, for checkpoints that carry no template of their own.
_TURN = "USER: {image}\n{prompt} ASSISTANT:"

# What transformers, its hub client and safetensors raise for bad files; a bug of ours raises others.
_FAILURES = (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError, ImportError)


class TransformersCaptioner:
    """Any image-to-text model of transformers: LLaVA, BLIP, BLIP-2, GIT.

    Answers are greedy, so that the same image has the same caption in every run.

    Args:
        device: where to compute; the best there is by default.

    Raises:
        UserError: no such model, one of another kind, its files are damaged, or the device does not exist.
    """

    def __init__(
        self, name: str, options: CaptionerOptions | None = None, device: torch.device | str | None = None
    ) -> None:
        self.name, self.options, chosen = name, options or CaptionerOptions(), chosen_device(device)
        opener: Any = AutoModelForImageTextToText
        part = "config.json"
        with quiet(), asked_once(name):
            try:
                config = AutoConfig.from_pretrained(name, trust_remote_code=False)
                if type(config) not in opener._model_mapping:
                    raise UserError(
                        f"{name}: a {config.model_type} model, which does not describe images. Name an image-to-text "
                        "model, such as llava-hf/llava-1.5-7b-hf or Salesforce/blip-image-captioning-base."
                    )
                part = "processor"
                self._processor = AutoProcessor.from_pretrained(name, trust_remote_code=False)
                part = "weights"
                model = opener.from_pretrained(name, use_safetensors=True, trust_remote_code=False, dtype="auto")
            except _FAILURES as error:
                raise _cannot(name, part, error) from error
        self.model = model.to(chosen).eval()
        self._text = self._request()

    def _request(self) -> str | None:
        """What is asked with every image; None for models that only look at it."""
        processor, prompt = self._processor, self.options.prompt
        if getattr(processor, "chat_template", None):
            turn = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": prompt}]}]
            return processor.apply_chat_template(turn, add_generation_prompt=True)
        if (image := getattr(processor, "image_token", None)) and not self.model.config.is_encoder_decoder:
            return _TURN.format(image=image, prompt=prompt)
        return None

    @torch.no_grad()
    def describe(self, images: Sequence[ImageLike]) -> list[str]:
        """One text for each image."""
        opened = (image if isinstance(image, Image.Image) else Image.fromarray(image) for image in images)
        pictures = [as_rgb(picture) for picture in opened]
        inputs: dict[str, Any] = {"images": pictures, "return_tensors": "pt"}
        if self._text is not None:
            self._processor.tokenizer.padding_side = "left"  # the answer follows the request without a gap
            inputs |= {"text": [self._text] * len(pictures), "padding": True}
        with quiet():
            read = self._processor(**inputs).to(self.model.device)
            if "pixel_values" in read:
                read["pixel_values"] = read["pixel_values"].to(self.model.dtype)
            tokens = self.model.generate(**read, max_new_tokens=self.options.most_tokens, do_sample=False)
        asked = read.get("input_ids")
        if asked is not None and torch.equal(tokens[:, : asked.shape[1]], asked):
            tokens = tokens[:, asked.shape[1] :]
        answers = self._processor.batch_decode(tokens, skip_special_tokens=True)
        return [" ".join(answer.split()) for answer in answers]


@dataclass
class CaptionReport:
    """What happened to pictures.

    Attributes:
        empty: pictures for which the captioner wrote nothing.
    """

    written: int = 0
    known: int = 0
    gone: int = 0
    empty: int = 0


def write_captions(
    blocks: Iterable[Sequence[Picture]], captioner: Any, file: CaptionFile, batch_size: int = 8
) -> CaptionReport:
    """Describe every picture without a caption; captions are on disk at once, so a run can be stopped anywhere."""
    report = CaptionReport()
    for items in blocks:
        missing = [item for item in items if not item.caption.strip() and item.id not in file.captions]
        report.known += len(items) - len(missing)
        for start in range(0, len(missing), batch_size):
            opened = _opened(missing[start : start + batch_size], report)
            if captions := _described(opened, captioner, report):
                file.write(captions, {id: pixel_digest(image) for id, image in opened.items()})
    return report


def caption_index(index: Index, captioner: Any, by: str = "", batch_size: int = 8) -> CaptionReport:
    """Describe every picture of an index that has no caption; each batch is kept, so a run can be stopped anywhere.

    Args:
        index: it keeps the captions with their vectors.
    """
    report = CaptionReport()
    missing = [id for id, captions in zip(index.ids, index.values("caption"), strict=True) if not captions]
    report.known = len(index) - len(missing)
    with progress("describe", len(missing), "pictures") as counter:
        for start in range(0, len(missing), batch_size):
            ids = missing[start : start + batch_size]
            index.set_captions(_described(_opened(index.pictures(ids), report), captioner, report), by)
            counter.advance(len(ids))
    return report


def _opened(items: Sequence[Picture], report: CaptionReport) -> dict[str, ImageLike]:
    opened: dict[str, ImageLike] = {}
    for item in items:
        try:
            opened[item.id] = item.read()
        except (UserError, OSError):
            report.gone += 1
    return opened


def _described(opened: dict[str, ImageLike], captioner: Any, report: CaptionReport) -> dict[str, str]:
    if not opened:
        return {}
    captions = dict(zip(opened, captioner.describe(list(opened.values())), strict=True))
    report.empty += sum(not caption for caption in captions.values())
    report.written += len(captions)
    return captions


def source_items(source: Source, block: int = 64) -> Iterator[list[Picture]]:
    """The pictures of a source by their keys, in blocks; their texts do not count as captions."""

    def item(index: int) -> Picture:
        where = f"{source.name}, row {index}"
        return Picture(key_of(source, index), where=where, _read=lambda: source.read(index, extra=False).image)

    for start in range(0, len(source), block):
        yield [item(index) for index in range(start, min(start + block, len(source)))]


def _cannot(name: str, what: str, error: Exception) -> UserError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")[:200]
    if "use_safetensors" in str(error):
        reason = "they are pickled, and opening a pickle can run code; convert them to safetensors"
    where = (
        "" if Path(name).is_dir() else " Check the name and the network, or download it elsewhere and name its folder."
    )
    return UserError(f"{name}: the captioner's {what} cannot be read ({reason}).{where}")
