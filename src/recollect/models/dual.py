"""Dual encoder: an image tower and a text tower with a shared embedding space."""

import hashlib
import json
import math
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

from recollect.core.checksums import write_folder_checksums
from recollect.core.errors import UserError
from recollect.core.files import fresh_folder, write_json
from recollect.core.progress import progress
from recollect.core.types import Encoder, ImageLike, Kind
from recollect.core.validation import check_number, refuse
from recollect.core.words import is_utf8, shortened
from recollect.data.sources.images import PictureInput, as_images, decode_full_size
from recollect.data.sources.reader import blocks_ahead
from recollect.data.transforms import ImageTransform

RECORD = "recollect.json"
MODEL_FORMAT = 1

Tower = Literal["image", "text"]

# Channel values per block: 512 images of 32 × 32, 55 of 224 × 224; enough to keep a core or a GPU busy.
_BLOCK_VALUES = 2**23
_MAX_ROWS = 512
_MIN_THREADED = 4  # for fewer pictures, starting threads takes longer than it saves


class DualEncoder(nn.Module, Encoder):
    """Two towers that embed images and texts in one space.

    Training calls `tokenize`, `encode_images` and `encode_texts`, which return raw tower outputs with gradients;
    everything else calls `embed_images` and `embed_texts`, which return unit vectors without gradients.

    Attributes:
        width: embedding dimension.
        transform: preprocessing of pictures for the image tower, in evaluation.
        prefixes: prefix tokens by kind of source (prefix conditioning, §3.2).
        preset: name of the preset the model was built from; empty for other checkpoints.
        reads_vectors: whether image inputs are vectors instead of pictures.
    """

    reads_vectors: ClassVar[bool] = False
    transform: ImageTransform
    prefixes: dict[Kind, tuple[str, ...]]
    preset: str

    @abstractmethod
    def tokenize(self, texts: Sequence[str], kinds: Sequence[Kind] | Kind | None = None) -> dict[str, Tensor]:
        """Tokenize texts into CPU tensors with one row per text.

        Args:
            texts: any strings; texts longer than the tower's maximum are truncated at the end.
            kinds: kinds whose prefix tokens are prepended: one for all texts, one per text, or None for no prefix.
                Ignored by models without prefix tokens.
        """

    @property
    @abstractmethod
    def longest_text(self) -> int | None:
        """Maximum text length in tokens, including prefix and special tokens; None if unlimited."""

    @abstractmethod
    def text_lengths(self, texts: Sequence[str], kinds: Sequence[Kind] | Kind | None = None) -> list[int]:
        """Return the token count of each text before truncation, counted as in `longest_text`."""

    @abstractmethod
    def encode_images(self, pixels: Float[Tensor, "n ..."]) -> Float[Tensor, "n width"]:
        """Return raw image embeddings: the tower's output after projection, before normalization."""

    @abstractmethod
    def encode_texts(self, tokens: dict[str, Tensor]) -> Float[Tensor, "n width"]:
        """Return raw text embeddings of the tokens from `tokenize`, before normalization."""

    @abstractmethod
    def add_prefixes(self, kinds: Sequence[Kind], *, length: int = 1, seed: int = 0) -> None:
        """Add ``length`` prefix tokens, drawn from N(0, 0.02), for each of ``kinds`` that has none.

        Call it before creating an optimizer: it replaces the token embedding parameter.
        """

    @abstractmethod
    def tower_parameters(self, tower: Tower) -> Iterator[nn.Parameter]:
        """Yield the parameters of one tower, including its projection."""

    @abstractmethod
    def _write(self, folder: Path) -> None:
        """Write weights and vocabulary into ``folder``."""

    @abstractmethod
    def _record(self) -> dict[str, Any]:
        """Return the additional entries of `RECORD` needed to load the model."""

    @abstractmethod
    def _reading(self) -> str:
        """Describe everything that affects embeddings other than the weights and the image transform."""

    def _activation(self, tower: Tower) -> str:
        """Return a tower's activation function if it differs from the architecture's default, else an empty string."""
        return ""

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.parameters()).device

    @property
    def encoder(self) -> "DualEncoder":
        """The model itself, as `recollect.training.step.Towers` requires."""
        return self

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the weights."""
        return next(self.parameters()).dtype

    def __repr__(self) -> str:
        size = sum(parameter.numel() for parameter in self.parameters()) / 1e6
        preset = f"preset={self.preset!r}, " if self.preset else ""
        reads = f"prefixes={sorted(self.prefixes)}, " if self.prefixes else ""
        return f"{type(self).__name__}({preset}width={self.width}, {reads}parameters={size:.1f}M, device={self.device})"

    def training_transform(self) -> ImageTransform:
        """Return `transform` with random crops, for training; no flips."""
        return replace(self.transform, training=True)

    def embed_images(
        self,
        images: Tensor | PictureInput | Sequence[PictureInput],
        *,
        batch_size: int | None = None,
        show_progress: bool = False,
    ) -> Float[Tensor, "n width"]:
        """Embed one or more pictures.

        Args:
            images: PIL images, arrays, files or folders (see `as_images`); or a tensor of transformed pixels
                (n, 3, height, width) or vectors (n, width). Files are opened lazily.
            batch_size: pictures per batch; by default enough to keep a core or a GPU busy.
            show_progress: show a progress bar on standard error.

        Returns:
            Unit-norm float32 embeddings on the CPU, without gradients; a single picture gives one row.

        Raises:
            UserError: a file is missing or unreadable (the message names it), or an embedding is not finite.
        """
        if batch_size is not None:
            check_number("batch_size", batch_size, least=1)
        inputs = self._check_tensor(images) if isinstance(images, Tensor) else as_images(images)
        if len(inputs) == 0:
            return torch.empty(0, self.width, dtype=torch.float32)
        blocks = []
        with progress("embed", len(inputs), "images") if show_progress else nullcontext() as counter:
            for block in self._encode_image_blocks(inputs, self.encode_images, batch_size):
                blocks.append(_unit(block))
                if counter:
                    counter.advance(len(block))
        return torch.cat(blocks)

    def pooled_images(self, images: Tensor | Sequence[ImageLike]) -> Float[Tensor, "n features"]:
        """Return `pool_images` features of one or more images, given as for `embed_images`.

        Returns:
            float32 features on the CPU, without gradients.
        """
        return torch.cat([block.float().cpu() for block in self._encode_image_blocks(images, self.pool_images)])

    def _encode_image_blocks(
        self,
        images: Tensor | Sequence[ImageLike | Path],
        encode: Callable[[Tensor], Tensor],
        batch_size: int | None = None,
    ) -> Iterator[Tensor]:
        values = images[0].numel() if isinstance(images, Tensor) else 3 * self.transform.size**2
        rows = batch_size or min(_MAX_ROWS, max(1, _BLOCK_VALUES // max(1, values)))
        with self._evaluating():
            encode = self._fast_images(encode, len(images))
            for pixels in self._pixel_blocks(images, rows):
                yield encode(pixels.to(self.device, self.dtype))

    def _fast_images(self, encode: Callable[[Tensor], Tensor], count: int) -> Callable[[Tensor], Tensor]:
        """Return a faster equivalent of ``encode`` for ``count`` pictures, or ``encode`` itself."""
        return encode

    def _pixel_blocks(self, images: Tensor | Sequence[ImageLike | Path], rows: int) -> Iterator[Tensor]:
        if isinstance(images, Tensor):
            yield from images.split(rows)
        elif len(images) < _MIN_THREADED:
            yield self._pixels([self._preprocess(image) for image in images])
        else:  # threads decode and resize the next block while the tower encodes the current one
            read = blocks_ahead(lambda index: self._preprocess(images[index]), range(len(images)), rows)
            yield from (self._pixels(block) for block in read)

    def embed_texts(self, texts: str | Iterable[str], prefix: Kind | None = None) -> Float[Tensor, "n width"]:
        """Embed one or more texts.

        Args:
            texts: a text or several.
            prefix: kind whose prefix tokens are prepended, if the model has prefix tokens.

        Returns:
            Unit-norm float32 embeddings on the CPU, without gradients.

        Raises:
            UserError: an item is not a string or contains lone surrogates, or an embedding is not finite.
        """
        texts = [texts] if isinstance(texts, str) else list(texts)
        invalid = [shortened(text) for text in texts if not isinstance(text, str)]
        refuse((invalid, f"{''.join(invalid[:1])} is not a string. Pass a string or a list of strings."))
        broken = next((text for text in texts if not is_utf8(text)), None)
        refuse((broken is not None, f"{broken!r} is not valid UTF-8. Check the encoding of the terminal or the file."))
        if len(texts) == 0:
            return torch.empty(0, self.width, dtype=torch.float32)
        return torch.cat([_unit(block) for block in self._encode_text_blocks(texts, prefix, self.encode_texts)])

    def pooled_texts(self, texts: Sequence[str], prefix: Kind | None = None) -> Float[Tensor, "n features"]:
        """Return `pool_texts` features of one or more texts, given as for `embed_texts`.

        Returns:
            float32 features on the CPU, without gradients.
        """
        return torch.cat([block.float().cpu() for block in self._encode_text_blocks(texts, prefix, self.pool_texts)])

    def _encode_text_blocks(
        self, texts: Sequence[str], prefix: Kind | None, encode: Callable[[dict[str, Tensor]], Tensor]
    ) -> Iterator[Tensor]:
        with self._evaluating():
            for start in range(0, len(texts), _MAX_ROWS):
                yield encode(self.tokenize(texts[start : start + _MAX_ROWS], prefix))

    def freeze(self, tower: Tower) -> None:
        """Disable gradients for one tower (Zhai et al., 2022, freeze the image tower)."""
        for parameter in self.tower_parameters(tower):
            parameter.requires_grad_(False)

    @property
    def normalizes_by_batch(self) -> bool:
        """Whether any batch norm is trainable, which makes training embeddings depend on the rest of the batch."""
        norms = (each for each in self.modules() if isinstance(each, nn.modules.batchnorm._NormBase))
        return any(parameter.requires_grad for norm in norms for parameter in norm.parameters())

    def train(self, mode: bool = True) -> Any:
        """Set the training mode, except that frozen batch norms stay in evaluation mode.

        In training mode they would normalize by the batch and update their running means, which act as weights.
        """
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.modules.batchnorm._NormBase):
                own = list(module.parameters())
                if own and not any(parameter.requires_grad for parameter in own):
                    module.train(False)
        return self

    def pool_images(self, pixels: Float[Tensor, "n ..."]) -> Float[Tensor, "n features"]:
        """Return the image tower's features before its head; the raw embeddings if it has no head."""
        return self.encode_images(pixels)

    def project_images(self, features: Float[Tensor, "n features"]) -> Float[Tensor, "n width"]:
        """Map `pool_images` features to raw image embeddings; the two in sequence equal `encode_images`."""
        return features

    def pool_texts(self, tokens: dict[str, Tensor]) -> Float[Tensor, "n features"]:
        """Return the text tower's features before its head; the raw embeddings if it has no head."""
        return self.encode_texts(tokens)

    def project_texts(self, features: Float[Tensor, "n features"]) -> Float[Tensor, "n width"]:
        """Map `pool_texts` features to raw text embeddings."""
        return features

    def head_parameters(self, tower: Tower) -> Iterator[nn.Parameter]:
        """Yield the parameters of a tower's head, if it has one."""
        return iter(())

    def lock(self, tower: Tower) -> None:
        """Freeze one tower except the trainable part of its head, so its stem features can be computed once."""
        learning = [parameter for parameter in self.head_parameters(tower) if parameter.requires_grad]
        self.freeze(tower)
        for parameter in learning:
            parameter.requires_grad_(True)

    def stem_fingerprint(self, tower: Tower) -> str:
        """Return a digest of the stem's weights and preprocessing; training the head does not change it."""
        head = {id(parameter) for parameter in self.head_parameters(tower)}
        image = self.transform.key + self._activation("image")
        reads = image if tower == "image" else [self._reading(), self.prefixes]
        digest = hashlib.blake2b(json.dumps([tower, reads], sort_keys=True).encode(), digest_size=16)
        tensors: list[Tensor] = [parameter for parameter in self.tower_parameters(tower) if id(parameter) not in head]
        # Buffers include running means. The temperature may be a buffer too, but embeddings do not depend on it.
        tensors += [buffer for name, buffer in self.named_buffers() if not name.split(".")[-1].startswith("logit_")]
        for tensor in tensors:
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    @property
    def scale(self) -> float | None:
        """Learned factor of the cosines, ``exp(logit_scale)``; None if the model stores none."""
        value = getattr(self._temperatures(), "logit_scale", None)
        return None if value is None else math.exp(float(value))

    @property
    def bias(self) -> float | None:
        """Learned bias of a sigmoid loss; None if the model stores none."""
        value = getattr(self._temperatures(), "logit_bias", None)
        return None if value is None else float(value)

    @torch.no_grad()
    def set_scale(self, scale: float, bias: float | None = None) -> None:
        """Store a learned temperature and bias in the model; embeddings do not change."""
        holder = self._temperatures()
        if getattr(holder, "logit_scale", None) is not None:
            holder.logit_scale.fill_(math.log(scale))
        if bias is not None and getattr(holder, "logit_bias", None) is not None:
            holder.logit_bias.fill_(bias)

    def _temperatures(self) -> Any:
        return self

    def checkpoint_activations(self) -> None:
        """Enable activation checkpointing in the `recomputable` towers."""

    @property
    def recomputable(self) -> tuple[Tower, ...]:
        """Towers that support activation checkpointing."""
        return ()

    @property
    def structure_fingerprint(self) -> str:
        """Digest of preprocessing, tokenizer, prefixes and weight shapes, but not of weight values."""
        shapes = [(name, *parameter.shape) for name, parameter in self.named_parameters()]
        about = json.dumps([self.transform.key, self._reading(), self.prefixes, shapes], sort_keys=True)
        return hashlib.blake2b(about.encode(), digest_size=8).hexdigest()

    @property
    def fingerprint(self) -> str:
        """Digest of everything that affects embeddings: weights, dtype, transform, tokenizer, prefixes, padding."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(json.dumps([self.transform.key, self._reading(), self.prefixes], sort_keys=True).encode())
        for name, tensor in sorted(self.state_dict().items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        return digest.hexdigest()

    def save(self, folder: str | Path) -> Path:
        """Write everything that `load_model` needs into a new ``folder``, atomically.

        Raises:
            UserError: ``folder`` already exists.
        """
        with fresh_folder(folder, "model") as unfinished:
            self._write(unfinished)
            record = {"format": MODEL_FORMAT, "preset": self.preset, **self._record()}
            record |= {"prefixes": self.prefixes, "transform": asdict(self.transform)}
            write_json(unfinished / RECORD, record)
            write_folder_checksums(unfinished)
        return Path(folder)

    def publish(self, folder: Path) -> Path:
        """Same as `save`; models in training are saved like finished ones."""
        return self.save(folder)

    def _check_tensor(self, pixels: Tensor) -> Tensor:
        """Reject a tensor of untransformed pixels."""
        side = self.transform.size
        if (
            self.reads_vectors
            or self.transform.packs
            or (pixels.shape[1:] == (3, side, side) and pixels.is_floating_point())
        ):
            return pixels
        raise UserError(
            f"got a tensor of {pixels.dtype} {tuple(pixels.shape)}, but tensors must be transformed pixels: normalized "
            f"floats (n, 3, {side}, {side}). Pass untransformed pictures as uint8 arrays (n, height, width, 3)."
        )

    def _preprocess(self, image: ImageLike | Path) -> np.ndarray:
        """Return a vector unchanged, and a picture as the bytes that `ImageTransform.normalize` expects."""
        image = decode_full_size(image)
        if isinstance(image, np.ndarray) and image.ndim == 1:
            if not self.reads_vectors:
                raise UserError(
                    f"an array of {image.dtype} {image.shape} is not a picture. Pass uint8 (height, width, 3)."
                )
            return image
        return self.transform.pixels(image)

    def _pixels(self, images: Sequence[np.ndarray]) -> Tensor:
        """Stack results of `_preprocess` into a batch."""
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
    unit = F.normalize(raw.float(), dim=1).cpu()
    refuse((not bool(unit.isfinite().all()), "the model's embeddings are not finite. Is the checkpoint damaged?"))
    return unit
