"""Caption pictures with an image-to-text model."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor

from recollect.core.errors import UserError
from recollect.core.progress import progress
from recollect.core.types import ImageLike, Source, chosen_device
from recollect.data.sources.images import as_rgb
from recollect.efsa.caption_file import CaptionFile, key_of
from recollect.efsa.options import CaptionerOptions
from recollect.index import Index, Picture
from recollect.models.hub import hub_or_cache
from recollect.models.transformers.encoder import quiet

# LLaVA 1.5's prompt format, for checkpoints without a chat template.
_CHAT = "USER: {image}\n{prompt} ASSISTANT:"

# Raised by transformers, its hub client and safetensors for invalid files.
_FAILURES = (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError, ImportError)


class TransformersCaptioner:
    """Image-to-text model of transformers, such as LLaVA, BLIP, BLIP-2 or GIT.

    Decoding is greedy, so captions are reproducible.

    Args:
        name: path or hub id.
        device: default: the best available.

    Raises:
        UserError: the model is missing, unreadable or not an image-to-text model, or the device does not exist.
    """

    def __init__(
        self, name: str, options: CaptionerOptions | None = None, device: torch.device | str | None = None
    ) -> None:
        self.name, self.options, chosen = name, options or CaptionerOptions(), chosen_device(device)
        opener: Any = AutoModelForImageTextToText
        part = "config.json"
        with quiet(), hub_or_cache(name):
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
                raise _load_error(name, part, error) from error
        self.model = model.to(chosen).eval()
        self._prompt = self._format_prompt()

    def _format_prompt(self) -> str | None:
        """Return the prompt passed with every image; None for models without a text input."""
        processor, prompt = self._processor, self.options.prompt
        if getattr(processor, "chat_template", None):
            messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": prompt}]}]
            return processor.apply_chat_template(messages, add_generation_prompt=True)
        if (image := getattr(processor, "image_token", None)) and not self.model.config.is_encoder_decoder:
            return _CHAT.format(image=image, prompt=prompt)
        return None

    @torch.no_grad()
    def describe(self, images: Sequence[ImageLike]) -> list[str]:
        """Return one caption per image."""
        opened = (image if isinstance(image, Image.Image) else Image.fromarray(image) for image in images)
        pictures = [as_rgb(picture) for picture in opened]
        inputs: dict[str, Any] = {"images": pictures, "return_tensors": "pt"}
        if self._prompt is not None:
            self._processor.tokenizer.padding_side = "left"  # the answer must follow the prompt without padding
            inputs |= {"text": [self._prompt] * len(pictures), "padding": True}
        with quiet():
            batch = self._processor(**inputs).to(self.model.device)
            if "pixel_values" in batch:
                batch["pixel_values"] = batch["pixel_values"].to(self.model.dtype)
            tokens = self.model.generate(**batch, max_new_tokens=self.options.most_tokens, do_sample=False)
        prompt = batch.get("input_ids")
        if prompt is not None and torch.equal(tokens[:, : prompt.shape[1]], prompt):
            tokens = tokens[:, prompt.shape[1] :]
        answers = self._processor.batch_decode(tokens, skip_special_tokens=True)
        return [" ".join(answer.split()) for answer in answers]


@dataclass
class CaptionReport:
    """Numbers of pictures by outcome.

    Attributes:
        written: captions written, including empty ones.
        known: pictures that already had a caption.
        unreadable: number of unreadable pictures.
        empty: pictures with an empty caption from the captioner.
    """

    written: int = 0
    known: int = 0
    unreadable: int = 0
    empty: int = 0


def caption_source(source: Source, captioner: Any, file: CaptionFile, batch_size: int = 8) -> CaptionReport:
    """Caption every image of a source that has no caption in the file yet; texts of the source do not count.

    Each batch is saved immediately, so a run can be interrupted at any time.
    """
    report = CaptionReport()
    with progress("describe", len(source), "images") as counter:
        for start in range(0, len(source), batch_size):
            rows = range(start, min(start + batch_size, len(source)))
            missing = _missing(source, rows, file, report)
            if captions := _described(missing, captioner, report):
                file.write(captions)
            counter.advance(len(rows))
    return report


def caption_index(index: Index, captioner: Any, by: str = "", batch_size: int = 8) -> CaptionReport:
    """Caption every picture of an index that has no caption, and store the captions in the index.

    Each batch is saved immediately, so a run can be interrupted at any time.

    Args:
        by: name of the captioner, stored with the captions.
    """
    report = CaptionReport()
    missing = [id for id, captions in zip(index.ids, index.values("caption"), strict=True) if not captions]
    report.known = len(index) - len(missing)
    with progress("describe", len(missing), "pictures") as counter:
        for start in range(0, len(missing), batch_size):
            ids = missing[start : start + batch_size]
            index.set_captions(_described(index.pictures(ids), captioner, report), by)
            counter.advance(len(ids))
    return report


def _missing(source: Source, rows: Iterable[int], file: CaptionFile, report: CaptionReport) -> list[Picture]:
    """Return the images of some rows that have no caption in the file."""
    missing = []
    for row in rows:
        try:
            key = key_of(source, row)
        except (UserError, OSError):  # the key requires reading the image
            report.unreadable += 1
            continue
        if key in file.captions:
            report.known += 1
        else:
            where = f"{source.name}, row {row}"
            missing.append(Picture(key, where=where, _read=partial(_image, source, row)))
    return missing


def _image(source: Source, row: int) -> ImageLike:
    return source.read(row, extra=False).image


def _described(pictures: Sequence[Picture], captioner: Any, report: CaptionReport) -> dict[str, str]:
    opened: dict[str, ImageLike] = {}
    for picture in pictures:
        try:
            opened[picture.id] = picture.read()
        except (UserError, OSError):
            report.unreadable += 1
    captions = dict(zip(opened, captioner.describe(list(opened.values())), strict=True)) if opened else {}
    report.empty += sum(not caption for caption in captions.values())
    report.written += len(captions)
    return captions


def _load_error(name: str, part: str, error: Exception) -> UserError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")[:200]
    if "use_safetensors" in str(error):
        reason = "they are pickled, and opening a pickle can run code; convert them to safetensors"
    hint = " Check the name and the network, or download it elsewhere and name its folder."
    return UserError(f"{name}: the captioner's {part} cannot be read ({reason}).{'' if Path(name).is_dir() else hint}")
