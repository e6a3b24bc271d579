"""Captions of pictures, written once by a model that describes images."""

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


def caption_source(source: Source, captioner: Any, file: CaptionFile, batch_size: int = 8) -> CaptionReport:
    """Describe every image of a source that has no caption in a file; its texts do not count as captions.

    Each batch is on disk at once, so a run can be stopped anywhere.
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
            index.set_captions(_described(index.pictures(ids), captioner, report), by)
            counter.advance(len(ids))
    return report


def _missing(source: Source, rows: Iterable[int], file: CaptionFile, report: CaptionReport) -> list[Picture]:
    """The images of some rows without a caption in a file."""
    missing = []
    for row in rows:
        try:
            key = key_of(source, row)
        except (UserError, OSError):  # known by an id that is read with the image
            report.gone += 1
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
            report.gone += 1
    captions = dict(zip(opened, captioner.describe(list(opened.values())), strict=True)) if opened else {}
    report.empty += sum(not caption for caption in captions.values())
    report.written += len(captions)
    return captions


def _cannot(name: str, what: str, error: Exception) -> UserError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")[:200]
    if "use_safetensors" in str(error):
        reason = "they are pickled, and opening a pickle can run code; convert them to safetensors"
    where = (
        "" if Path(name).is_dir() else " Check the name and the network, or download it elsewhere and name its folder."
    )
    return UserError(f"{name}: the captioner's {what} cannot be read ({reason}).{where}")
