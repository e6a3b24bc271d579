"""A model with an image tower and a text tower, as all other packages use it."""

import hashlib
import json
import math
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from recollect.core.checksums import note_whole_folder
from recollect.core.errors import UserError
from recollect.core.files import fresh_folder, write_json
from recollect.core.progress import progress
from recollect.core.types import Encoder, ImageLike, Kind
from recollect.core.validation import check_number, refuse
from recollect.core.words import shortened
from recollect.data.sources.images import PictureInput, as_images, opened
from recollect.data.sources.reader import blocks_ahead
from recollect.data.transforms import ImageTransform

RECORD = "recollect.json"
MODEL_FORMAT = 1

Tower = Literal["image", "text"]

_SURROGATE = re.compile("[\ud800-\udfff]")

# Pixels embedded at a time: 512 images of 32 × 32, 55 of 224 × 224; enough to keep a core or a GPU busy.
_BLOCK_NUMBERS = 2**23
_MOST_ROWS = 512
_FEW = 4  # pictures for which starting threads takes longer than it saves


class DualEncoder(nn.Module, Encoder):
    """Two towers that embed images and texts in one space.

    Training calls `tokenize`, `encode_images` and `encode_texts`, which return raw tower outputs with a graph;
    everything else calls `embed_images` and `embed_texts`, which return unit vectors without one.

    Attributes:
        width: number of entries of an embedding.
        transform: from a picture to what the image tower reads, for evaluation.
        prefixes: for each kind of source that has prefix tokens, those tokens (prefix conditioning, §3.2).
        preset: name of the preset it was built from; empty for a checkpoint from elsewhere.
        reads_vectors: whether its images are vectors instead of pictures.
    """

    reads_vectors: ClassVar[bool] = False
    transform: ImageTransform
    prefixes: dict[Kind, tuple[str, ...]]
    preset: str

    @abstractmethod
    def tokenize(self, texts: Sequence[str], kinds: Sequence[Kind] | Kind | None = None) -> dict[str, Tensor]:
        """Tokenize texts for the text tower; every entry has one row per text and is on the CPU.

        Args:
            texts: any strings; what exceeds the tower's length is cut off at the end.
            kinds: whose prefix tokens to put in front: one kind for all texts, one for each, or None for no prefix.
                A model without prefix tokens ignores it.
        """

    @property
    @abstractmethod
    def longest_text(self) -> int | None:
        """Most tokens of a text that the tower reads, prefix and special tokens included; None for any number."""

    @abstractmethod
    def text_lengths(self, texts: Sequence[str], kinds: Sequence[Kind] | Kind | None = None) -> list[int]:
        """Tokens of each text before anything is cut off, counted as `longest_text` is."""

    @abstractmethod
    def encode_images(self, pixels: Float[Tensor, "n ..."]) -> Float[Tensor, "n width"]:
        """Raw image embeddings: the tower's output after its projection, before normalization."""

    @abstractmethod
    def encode_texts(self, tokens: dict[str, Tensor]) -> Float[Tensor, "n width"]:
        """Raw text embeddings of what `tokenize` returned, before normalization."""

    @abstractmethod
    def add_prefixes(self, kinds: Sequence[Kind], *, length: int = 1, seed: int = 0) -> None:
        """Give each of ``kinds`` its own ``length`` prefix tokens, drawn from N(0, 0.02), unless it has some.

        Call it before an optimizer is made: the token embedding becomes another parameter.
        """

    @abstractmethod
    def tower_parameters(self, tower: Tower) -> Iterator[nn.Parameter]:
        """The parameters of one tower, its projection included."""

    @abstractmethod
    def _write(self, folder: Path) -> None:
        """Write weights and vocabulary into ``folder``."""

    @abstractmethod
    def _record(self) -> dict[str, Any]:
        """Further entries of `RECORD` that are needed to open the model again."""

    @abstractmethod
    def _reading(self) -> str:
        """Names everything but the weights and the image transform that decides an embedding."""

    def _activation(self, tower: Tower) -> str:
        """Names a tower's activation function where it is not its architecture's usual one; else empty."""
        return ""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @property
    def encoder(self) -> "DualEncoder":
        """Itself: what training asks its towers for (`recollect.training.step.Towers`)."""
        return self

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return next(self.parameters()).dtype

    def __repr__(self) -> str:
        size = sum(parameter.numel() for parameter in self.parameters()) / 1e6
        preset = f"preset={self.preset!r}, " if self.preset else ""
        reads = f"prefixes={sorted(self.prefixes)}, " if self.prefixes else ""
        return f"{type(self).__name__}({preset}width={self.width}, {reads}parameters={size:.1f}M, device={self.device})"

    def training_transform(self) -> ImageTransform:
        """The transform of training images: a random crop of what `transform` makes; no flip."""
        return replace(self.transform, training=True)

    def embed_images(
        self,
        images: Tensor | PictureInput | Sequence[PictureInput],
        *,
        batch_size: int | None = None,
        show_progress: bool = False,
    ) -> Float[Tensor, "n width"]:
        """Embed pictures in any usual form, one or many.

        Args:
            images: PIL images, arrays, files or folders (see `as_images`); or transformed pixels (n, 3, height, width)
                or vectors (n, width) as a tensor. Files are opened as their turn comes.
            batch_size: pictures at a time; by default as many as keep a core or a GPU busy.
            show_progress: a bar with a rate on standard error.

        Returns:
            Unit-norm float32 embeddings on the CPU, without graph; one row also for a single picture.

        Raises:
            UserError: no such file, or a picture that cannot be read; the message names it. Or an embedding is not
                finite.
        """
        if batch_size is not None:
            check_number("batch_size", batch_size, least=1)
        many = self._read_as_they_are(images) if isinstance(images, Tensor) else as_images(images)
        if len(many) == 0:
            return torch.empty(0, self.width, dtype=torch.float32)
        blocks = []
        with progress("embed", len(many), "images") if show_progress else nullcontext() as counter:
            for block in self._over_images(many, self.encode_images, batch_size):
                blocks.append(_unit(block))
                if counter:
                    counter.advance(len(block))
        return torch.cat(blocks)

    def pooled_images(self, images: Tensor | Sequence[ImageLike]) -> Float[Tensor, "n features"]:
        """What `pool_images` makes of at least one image, given as for `embed_images`.

        Returns:
            float32 features on the CPU, without graph.
        """
        return torch.cat([block.float().cpu() for block in self._over_images(images, self.pool_images)])

    def _over_images(
        self,
        images: Tensor | Sequence[ImageLike | Path],
        encode: Callable[[Tensor], Tensor],
        batch_size: int | None = None,
    ) -> Iterator[Tensor]:
        each = images[0].numel() if isinstance(images, Tensor) else 3 * self.transform.size**2
        rows = batch_size or min(_MOST_ROWS, max(1, _BLOCK_NUMBERS // max(1, each)))
        with self._evaluating():
            encode = self._fast_images(encode, len(images))
            for pixels in self._pixel_blocks(images, rows):
                yield encode(pixels.to(self.device, self.dtype))

    def _fast_images(self, encode: Callable[[Tensor], Tensor], count: int) -> Callable[[Tensor], Tensor]:
        """What to call instead of `encode_images` or `pool_images` for ``count`` pictures, where that is faster."""
        return encode

    def _pixel_blocks(self, images: Tensor | Sequence[ImageLike | Path], rows: int) -> Iterator[Tensor]:
        if isinstance(images, Tensor):
            yield from images.split(rows)
        elif len(images) < _FEW:
            yield self._pixels([self._ready(image) for image in images])
        else:  # decoded and resized in threads, while the tower has the block before
            read = blocks_ahead(lambda index: self._ready(images[index]), range(len(images)), rows)
            yield from (self._pixels(block) for block in read)

    def embed_texts(self, texts: str | Iterable[str], prefix: Kind | None = None) -> Float[Tensor, "n width"]:
        """Embed texts, read as captions or as wordings of a label by a model that has prefix tokens.

        Returns:
            Unit-norm float32 embeddings on the CPU, without graph.

        Raises:
            UserError: not a text, or a text with lone surrogates, which no tokenizer reads; or an embedding is not
                finite.
        """
        texts = [texts] if isinstance(texts, str) else list(texts)
        other = [shortened(text) for text in texts if not isinstance(text, str)]
        refuse((other, f"{''.join(other[:1])} is not a text. Give a text, or a list of texts."))
        wrong = next((text for text in texts if not text.isascii() and _SURROGATE.search(text)), None)
        refuse((wrong is not None, f"{wrong!r} is not text in UTF-8. Check the encoding of the terminal or the file."))
        if len(texts) == 0:
            return torch.empty(0, self.width, dtype=torch.float32)
        return torch.cat([_unit(block) for block in self._over_texts(texts, prefix, self.encode_texts)])

    def pooled_texts(self, texts: Sequence[str], prefix: Kind | None = None) -> Float[Tensor, "n features"]:
        """What `pool_texts` makes of at least one text, read as for `embed_texts`.

        Returns:
            float32 features on the CPU, without graph.
        """
        return torch.cat([block.float().cpu() for block in self._over_texts(texts, prefix, self.pool_texts)])

    def _over_texts(
        self, texts: Sequence[str], prefix: Kind | None, encode: Callable[[dict[str, Tensor]], Tensor]
    ) -> Iterator[Tensor]:
        with self._evaluating():
            for start in range(0, len(texts), _MOST_ROWS):
                yield encode(self.tokenize(texts[start : start + _MOST_ROWS], prefix))

    def freeze(self, tower: Tower) -> None:
        """Leave one tower as it is while the other learns (Zhai et al., 2022, freeze the image tower)."""
        for parameter in self.tower_parameters(tower):
            parameter.requires_grad_(False)

    @property
    def normalizes_by_batch(self) -> bool:
        """Whether batch norms learn, so that embeddings in training depend on the rest of the batch."""
        norms = (each for each in self.modules() if isinstance(each, nn.modules.batchnorm._NormBase))
        return any(parameter.requires_grad for norm in norms for parameter in norm.parameters())

    def train(self, mode: bool = True) -> Any:
        """As for any module, but frozen batch norms stay in evaluation mode: in training they would normalize by the
        batch and move their running means, which act as weights."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.modules.batchnorm._NormBase):
                own = list(module.parameters())
                if own and not any(parameter.requires_grad for parameter in own):
                    module.train(False)
        return self

    def pool_images(self, pixels: Float[Tensor, "n ..."]) -> Float[Tensor, "n features"]:
        """The image tower's features before its head; the embedding itself if it has no head."""
        return self.encode_images(pixels)

    def project_images(self, features: Float[Tensor, "n features"]) -> Float[Tensor, "n width"]:
        """Raw image embeddings from `pool_images`' features; both in turn equal `encode_images`."""
        return features

    def pool_texts(self, tokens: dict[str, Tensor]) -> Float[Tensor, "n features"]:
        """The text tower's features before its head; the embedding itself if it has no head."""
        return self.encode_texts(tokens)

    def project_texts(self, features: Float[Tensor, "n features"]) -> Float[Tensor, "n width"]:
        """Raw text embeddings from `pool_texts`' features."""
        return features

    def head_parameters(self, tower: Tower) -> Iterator[nn.Parameter]:
        """The parameters of a tower's head; none if it has no head."""
        return iter(())

    def lock(self, tower: Tower) -> None:
        """Freeze one tower but what learns in its head, so that the features of its stem can be computed once."""
        learning = [parameter for parameter in self.head_parameters(tower) if parameter.requires_grad]
        self.freeze(tower)
        for parameter in learning:
            parameter.requires_grad_(True)

    def stem_fingerprint(self, tower: Tower) -> str:
        """Changes with the stem's weights and preprocessing; not when the head learns."""
        head = {id(parameter) for parameter in self.head_parameters(tower)}
        image = self.transform.key + self._activation("image")
        reads = image if tower == "image" else [self._reading(), self.prefixes]
        digest = hashlib.blake2b(json.dumps([tower, reads], sort_keys=True).encode(), digest_size=16)
        tensors: list[Tensor] = [parameter for parameter in self.tower_parameters(tower) if id(parameter) not in head]
        # Running means of a norm, say; the temperature is stored as one, too, and no embedding depends on it.
        tensors += [buffer for name, buffer in self.named_buffers() if not name.split(".")[-1].startswith("logit_")]
        for tensor in tensors:
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    @property
    def scale(self) -> float | None:
        """The learned factor of the cosines, ``exp(logit_scale)``; None if the model stores none."""
        value = getattr(self._temperatures(), "logit_scale", None)
        return None if value is None else math.exp(float(value))

    @property
    def bias(self) -> float | None:
        """The learned bias of a sigmoid loss; None if the model stores none."""
        value = getattr(self._temperatures(), "logit_bias", None)
        return None if value is None else float(value)

    @torch.no_grad()
    def set_scale(self, scale: float, bias: float | None = None) -> None:
        """Store the temperature and bias that training found in the checkpoint; no embedding changes."""
        holder = self._temperatures()
        if getattr(holder, "logit_scale", None) is not None:
            holder.logit_scale.fill_(math.log(scale))
        if bias is not None and getattr(holder, "logit_bias", None) is not None:
            holder.logit_bias.fill_(bias)

    def _temperatures(self) -> Any:
        return self

    def checkpoint_activations(self) -> None:
        """Recompute activations in the backward pass instead of keeping them, in the towers that are `recomputable`."""

    @property
    def recomputable(self) -> tuple[Tower, ...]:
        """The towers whose activations can be recomputed."""
        return ()

    @property
    def reading(self) -> str:
        """Changes with preprocessing, tokenizer, prefixes and the shapes of the weights; not with their values."""
        shapes = [(name, *parameter.shape) for name, parameter in self.named_parameters()]
        about = json.dumps([self.transform.key, self._reading(), self.prefixes, shapes], sort_keys=True)
        return hashlib.blake2b(about.encode(), digest_size=8).hexdigest()

    @property
    def fingerprint(self) -> str:
        """Changes whenever an embedding would: weights, dtype, image transform, tokenizer, prefixes, padding."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(json.dumps([self.transform.key, self._reading(), self.prefixes], sort_keys=True).encode())
        for name, tensor in sorted(self.state_dict().items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        return digest.hexdigest()

    def save(self, folder: str | Path) -> Path:
        """Write everything that `load_model` needs into ``folder``, whole or not at all.

        Raises:
            UserError: something is there already.
        """
        with fresh_folder(folder, "model") as unfinished:
            self._write(unfinished)
            record = {"format": MODEL_FORMAT, "preset": self.preset, **self._record()}
            record |= {"prefixes": self.prefixes, "transform": asdict(self.transform)}
            write_json(unfinished / RECORD, record)
            note_whole_folder(unfinished)
        return Path(folder)

    def publish(self, folder: Path) -> Path:
        """The same: a model in training and a finished one are written alike."""
        return self.save(folder)

    def _read_as_they_are(self, pixels: Tensor) -> Tensor:
        """Transformed pixels, or vectors."""
        side = self.transform.size
        if (
            self.reads_vectors
            or self.transform.packs
            or (pixels.shape[1:] == (3, side, side) and pixels.is_floating_point())
        ):
            return pixels
        raise UserError(
            f"a tensor of {pixels.dtype} {tuple(pixels.shape)}: tensors are taken as transformed already, and this "
            f"model reads (n, 3, {side}, {side}) of floats, normalized. Give pictures as arrays, uint8 (n, height, "
            "width, 3)."
        )

    def _ready(self, image: ImageLike | Path) -> np.ndarray:
        """A vector as it is; of a picture the bytes that `ImageTransform.normalize` takes."""
        image = opened(image)
        if isinstance(image, np.ndarray) and image.ndim == 1:
            if not self.reads_vectors:
                raise UserError(
                    f"an array of {image.dtype} {image.shape} is no picture for this model. Give uint8 (height, "
                    "width, 3)."
                )
            return image
        return self.transform.pixels(image)

    def _pixels(self, images: Sequence[np.ndarray]) -> Tensor:
        """A batch of what `_ready` returned."""
        batch = torch.from_numpy(np.stack(images))
        return batch if batch.ndim == 2 else self.transform.normalize(batch)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        training = self.training
        self.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.train(training)


def _unit(raw: Float[Tensor, "n width"]) -> Float[Tensor, "n width"]:
    found = F.normalize(raw.float(), dim=1).cpu()
    refuse((not bool(found.isfinite().all()), "the model's embeddings are not finite. Is the checkpoint damaged?"))
    return found
