"""The result of tuning: an encoder and one text embedding per class."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from recollect.core.checksums import check_seal, sealed
from recollect.core.errors import UserError, user_errors
from recollect.core.files import fresh_folder, read_json, write_json
from recollect.core.types import ImageLike
from recollect.data.prompts import fill
from recollect.models import load_model
from recollect.models.transformers.encoder import TransformersEncoder

TUNED_FORMAT = 1


@dataclass(frozen=True)
class TunedClassifier:
    """Classifies pictures by the nearest class text after tuning.

    Attributes:
        encoder: the tuned copy, which can be saved like any model (`DualEncoder.save`).
        texts: unit-norm class embeddings (classes, width).
        template: class text with ``{}`` for the name; None if other names have no embedding.
    """

    encoder: TransformersEncoder
    names: tuple[str, ...]
    texts: Float[Tensor, "classes width"]
    scale: float
    template: str | None = None

    def embed_images(self, images: Sequence[ImageLike]) -> Float[Tensor, "n width"]:
        """Unit-norm embeddings of pictures by the tuned image tower."""
        return self.encoder.embed_images(images)

    @torch.no_grad()
    def embed_names(self, names: Sequence[str]) -> Float[Tensor, "n width"]:
        """Unit-norm embeddings of any names by the tuned text tower.

        Raises:
            ValueError: the method learned the given classes only.
        """
        if self.template is None:
            raise ValueError("each class learned its own tokens: other names have none")
        texts = [fill(self.template, name) for name in names]
        return unit_texts(self.encoder.encode_texts(self.encoder.tokenize(texts)))

    def save(self, folder: str | Path) -> Path:
        """Write model and classes into a new folder, atomically.

        Raises:
            UserError: the folder exists.
        """
        with fresh_folder(folder, "tuned classifier") as unfinished:
            self.encoder.save(unfinished / "model")
            save_file(self._tensors(), unfinished / "tuned.safetensors")
            about = {"format": TUNED_FORMAT, "names": self.names, "scale": self.scale, "template": self.template}
            write_json(unfinished / "tuned.json", sealed(about, unfinished))
        return Path(folder)

    def _tensors(self) -> dict[str, Tensor]:
        return {"texts": self.texts.contiguous()}

    @classmethod
    def open(cls, folder: str | Path, device: str | None = None) -> "TunedClassifier":
        """Open a saved classifier.

        Raises:
            UserError: not a tuned classifier, or damaged.
        """
        folder = Path(folder)
        about = read_json(folder / "tuned.json")
        if not isinstance(about, dict) or about.get("format") != TUNED_FORMAT:
            raise UserError(f"{folder}: not a tuned classifier of this version")
        check_seal(about, folder / "tuned.json")
        encoder = load_model(str(folder / "model"), device)
        assert isinstance(encoder, TransformersEncoder)
        with user_errors(f"{folder}/tuned.safetensors: damaged", SafetensorError, OSError):
            tensors = load_file(folder / "tuned.safetensors")
        return cls._restored(encoder, about, tensors)

    @classmethod
    def _restored(
        cls, encoder: TransformersEncoder, about: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> "TunedClassifier":
        return cls(encoder, tuple(about["names"]), tensors["texts"], about["scale"], about["template"])

    def scores(self, images: Sequence[ImageLike]) -> Float[np.ndarray, "n classes"]:
        """``scale`` times the cosines to the class texts: logits of the trained probabilities."""
        return (self.scale * self.embed_images(images) @ self.texts.T).numpy()

    def predict(self, images: Sequence[ImageLike]) -> list[str]:
        """The most probable name of each picture."""
        return [self.names[place] for place in self.scores(images).argmax(axis=1)]


@torch.no_grad()
def unit_texts(raw: Tensor) -> Float[Tensor, "classes width"]:
    """Detached unit-norm float32 rows on the CPU."""
    return F.normalize(raw.detach().float(), dim=1).cpu()
