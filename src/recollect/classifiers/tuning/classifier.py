"""The result of tuning: an encoder, learned prompts if any, and one text embedding per class."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from recollect.classifiers.tuning.prompts import Prompts, prompt_tokens, prompted
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
        encoder: the tuned copy; without prompts it can be saved like any model (`DualEncoder.save`).
        names: of the classes.
        texts: unit-norm class embeddings (classes, width).
        scale: factor of the cosines.
        prompts: learned tokens of the towers.
        template: class text with ``{}`` for the name; None if each class learned its own tokens.
    """

    encoder: TransformersEncoder
    names: tuple[str, ...]
    texts: Float[Tensor, "classes width"]
    scale: float
    prompts: tuple[Prompts, ...] = ()
    template: str | None = None

    def embed_images(self, images: Sequence[ImageLike]) -> Float[Tensor, "n width"]:
        """Unit-norm embeddings of pictures by the tuned image tower."""
        with prompted(self.encoder, self.prompts):
            return self.encoder.embed_images(images)

    @torch.no_grad()
    def embed_names(self, names: Sequence[str]) -> Float[Tensor, "n width"]:
        """Unit-norm embeddings of any names by the tuned text tower.

        Raises:
            ValueError: each class learned its own tokens, so other names have none.
        """
        if self.template is None:
            raise ValueError("each class learned its own tokens: other names have none")
        return class_texts(self.encoder, names, self.template, self.prompts)

    def save(self, folder: str | Path) -> Path:
        """Write model, prompts and classes into a new folder, atomically.

        Raises:
            UserError: the folder exists.
        """
        with fresh_folder(folder, "tuned classifier") as unfinished:
            self.encoder.save(unfinished / "model")
            tensors = {"texts": self.texts.contiguous()}
            for number, each in enumerate(self.prompts):
                for side in ("text", "image"):
                    rows = enumerate(getattr(each, side))
                    tensors |= {f"{number}.{side}.{layer}": tokens.contiguous().cpu() for layer, tokens in rows}
            save_file(tensors, unfinished / "tuned.safetensors")
            about = {"format": TUNED_FORMAT, "names": self.names, "scale": self.scale, "template": self.template}
            write_json(unfinished / "tuned.json", sealed({**about, "learners": len(self.prompts)}, unfinished))
        return Path(folder)

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

        def side(number: int, name: str) -> tuple[Tensor, ...]:
            keys = (f"{number}.{name}.{layer}" for layer in range(len(tensors)))
            return tuple(tensors[key].to(encoder.device) for key in keys if key in tensors)

        prompts = tuple(Prompts(side(number, "text"), side(number, "image")) for number in range(about["learners"]))
        return cls(encoder, tuple(about["names"]), tensors["texts"], about["scale"], prompts, about["template"])

    def scores(self, images: Sequence[ImageLike]) -> Float[np.ndarray, "n classes"]:
        """``scale`` times the cosines to the class texts: logits of the trained probabilities."""
        return (self.scale * self.embed_images(images) @ self.texts.T).numpy()

    def predict(self, images: Sequence[ImageLike]) -> list[str]:
        """The most probable name of each picture."""
        return [self.names[place] for place in self.scores(images).argmax(axis=1)]


def class_texts(
    encoder: TransformersEncoder, names: Sequence[str], template: str, prompts: Sequence[Prompts] = ()
) -> Float[Tensor, "classes width"]:
    """Unit-norm class embeddings, with learned prompts if given."""
    texts = [fill(template, name) for name in names]
    room = sum(each.text_tokens for each in prompts)
    with prompted(encoder, prompts):
        return unit_texts(encoder.encode_texts(prompt_tokens(encoder, texts, room)))


@torch.no_grad()
def unit_texts(raw: Tensor) -> Float[Tensor, "classes width"]:
    """Detached unit-norm float32 rows on the CPU."""
    return F.normalize(raw.detach().float(), dim=1).cpu()
