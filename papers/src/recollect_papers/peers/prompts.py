"""Learned tokens in both towers of CLIP and SigLIP models of transformers, by hooks.

Texts: n filler tokens are inserted after the start token (if any), which keeps positions, masks and the search for the
end token correct; learned vectors replace their embeddings (plus positions) and their states in deeper layers.
Pictures: n tokens are appended to the patches and replaced in deeper layers; they are removed before poolings that
attend to all tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from recollect.classifiers.tuning import TunedClassifier, unit_texts
from recollect.core.errors import UserError
from recollect.core.types import ImageLike
from recollect.data.prompts import fill
from recollect.models.transformers.encoder import TransformersEncoder
from recollect.models.transformers.families import is_naflex, is_siglip, pooling


@dataclass(frozen=True)
class Prompts:
    """Tokens of one learner: the first entry is inserted at the input, later ones replace it in the next blocks.

    Attributes:
        text: tokens (tokens, width) of the text tower by block.
        image: tokens (tokens, width) of the image tower by block.
    """

    text: tuple[Float[Tensor, "tokens width"], ...] = ()
    image: tuple[Float[Tensor, "image_tokens image_width"], ...] = ()

    @property
    def text_tokens(self) -> int:
        """Number of tokens before each text."""
        return self.text[0].shape[-2] if self.text else 0

    @property
    def image_tokens(self) -> int:
        """Number of tokens after each picture's patches."""
        return self.image[0].shape[-2] if self.image else 0

    def detached(self) -> "Prompts":
        """Return a detached copy."""
        return Prompts(*(tuple(each.detach().clone() for each in side) for side in (self.text, self.image)))


def check_family(encoder: TransformersEncoder, image: bool = False) -> None:
    """Raise UserError unless the model's towers support prompts."""
    config = encoder.model.config
    if pooling(config) == "first" or not hasattr(encoder.model.text_model, "embeddings"):
        raise UserError("prompts need a CLIP or SigLIP model; this text tower has a different architecture.")
    if image and (is_naflex(config) or not hasattr(encoder.model.vision_model, "post_layernorm")):
        raise UserError("this image tower does not support prompts. Choose a method for texts only, e.g. coop.")


def token_width(encoder: TransformersEncoder, tower: str) -> int:
    """Return the token width of a tower."""
    config = encoder.model.config
    return int((config.text_config if tower == "text" else config.vision_config).hidden_size)


def token_layers(encoder: TransformersEncoder, tower: str) -> int:
    """Return the number of blocks of a tower."""
    return len((encoder.model.text_model if tower == "text" else encoder.model.vision_model).encoder.layers)


def first_place(encoder: TransformersEncoder) -> int:
    """Return the position of the first prompt token: after CLIP's start token; SigLIP has none."""
    return 0 if is_siglip(encoder.model.config) else 1


def prompt_tokens(encoder: TransformersEncoder, texts: Sequence[str], room: int) -> dict[str, Tensor]:
    """Tokenize texts with ``room`` filler tokens for prompts, within the tower's length.

    The filler is a token of the text, so it is never mistaken for the end token.
    """
    start, form = first_place(encoder), encoder.text
    tokens = encoder.tokenizer(
        list(texts), padding=form.padding, truncation=True, max_length=form.length - room, return_tensors="pt"
    )
    found = {name: tokens[name] for name in form.inputs}
    if not room:
        return found
    filler = {"input_ids": found["input_ids"][:, start : start + 1]}
    for name, ids in found.items():
        between = filler.get(name, ids[:, start : start + 1]).expand(-1, room)
        found[name] = torch.cat([ids[:, :start], between, ids[:, start:]], dim=1)
    return found


def word_vectors(encoder: TransformersEncoder, words: str) -> Float[Tensor, "tokens width"]:
    """Return token embeddings of words, as initial prompts."""
    ids = encoder.tokenizer(words, add_special_tokens=False, return_tensors="pt")["input_ids"][0]
    embedding = encoder.model.text_model.embeddings.token_embedding
    return embedding(ids.to(encoder.device)).detach().clone()


@contextmanager
def prompted(encoder: TransformersEncoder, prompts: Sequence[Prompts]) -> Iterator[None]:
    """Insert the tokens of one or more learners into the towers within the block.

    Texts must come from `prompt_tokens` with room for all tokens.
    """
    with ExitStack() as stack:
        _prompt_texts(encoder, [each for each in prompts if each.text], stack)
        _prompt_images(encoder, [each for each in prompts if each.image], stack)
        yield


def _prompt_texts(encoder: TransformersEncoder, prompts: Sequence[Prompts], stack: ExitStack) -> None:
    if not prompts:
        return
    tower, start = encoder.model.text_model, first_place(encoder)
    starts = [start + sum(each.text_tokens for each in prompts[:number]) for number in range(len(prompts))]
    positions = tower.embeddings.position_embedding.weight

    def at_input(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        for begin, each in zip(starts, prompts, strict=True):
            output = _put(output, each.text[0] + positions[begin : begin + each.text_tokens], begin)
        return output

    stack.callback(tower.embeddings.register_forward_hook(at_input).remove)
    _replace_deeper(tower.encoder.layers, [each.text for each in prompts], starts, stack)


def _prompt_images(encoder: TransformersEncoder, prompts: Sequence[Prompts], stack: ExitStack) -> None:
    if not prompts:
        return
    tower = encoder.model.vision_model
    counts = [each.image_tokens for each in prompts]
    starts = [-sum(counts[number:]) for number in range(len(counts))]

    def at_input(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return torch.cat([output, *(each.image[0].expand(len(output), -1, -1) for each in prompts)], dim=1)

    def before_pooling(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (inputs[0][:, : -sum(counts)], *inputs[1:])

    stack.callback(tower.embeddings.register_forward_hook(at_input).remove)
    if is_siglip(encoder.model.config):  # its pooling attends to all tokens; CLIP uses the first
        stack.callback(tower.post_layernorm.register_forward_pre_hook(before_pooling).remove)
    _replace_deeper(tower.encoder.layers, [each.image for each in prompts], starts, stack)


def _replace_deeper(
    layers: nn.ModuleList, tokens: Sequence[Sequence[Tensor]], starts: Sequence[int], stack: ExitStack
) -> None:
    for number in range(1, max(map(len, tokens))):
        mine = [(each[number], start) for each, start in zip(tokens, starts, strict=True) if number < len(each)]

        def replace(module: nn.Module, inputs: tuple[Any, ...], mine: Any = mine) -> tuple[Any, ...]:
            states = inputs[0]
            for vectors, start in mine:
                states = _put(states, vectors, start)
            return (states, *inputs[1:])

        stack.callback(layers[number].register_forward_pre_hook(replace).remove)


def _put(states: Tensor, vectors: Tensor, start: int) -> Tensor:
    """Replace ``states`` (n, tokens, width) by ``vectors`` from position ``start``."""
    start = start % states.shape[1]
    vectors = vectors.to(states.dtype).expand(len(states), -1, -1)
    return torch.cat([states[:, :start], vectors, states[:, start + vectors.shape[1] :]], dim=1)


@dataclass(frozen=True)
class PromptedClassifier(TunedClassifier):
    """Tuned classifier whose towers have learned tokens.

    Attributes:
        prompts: tokens of each learner.
    """

    prompts: tuple[Prompts, ...] = ()

    def embed_images(self, images: Sequence[ImageLike]) -> Float[Tensor, "n width"]:
        with prompted(self.encoder, self.prompts):
            return self.encoder.embed_images(images)

    @torch.no_grad()
    def embed_names(self, names: Sequence[str]) -> Float[Tensor, "n width"]:
        assert self.template is not None
        return class_texts(self.encoder, names, self.template, self.prompts)

    def _tensors(self) -> dict[str, Tensor]:
        tensors = super()._tensors()
        for number, each in enumerate(self.prompts):
            for side in ("text", "image"):
                rows = enumerate(getattr(each, side))
                tensors |= {f"{number}.{side}.{layer}": tokens.contiguous().cpu() for layer, tokens in rows}
        return tensors

    @classmethod
    def _restored(
        cls, encoder: TransformersEncoder, about: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> "PromptedClassifier":
        def side(number: int, name: str) -> tuple[Tensor, ...]:
            keys = (f"{number}.{name}.{layer}" for layer in range(len(tensors)))
            return tuple(tensors[key].to(encoder.device) for key in keys if key in tensors)

        learners = len({name.partition(".")[0] for name in tensors if name != "texts"})
        prompts = tuple(Prompts(side(number, "text"), side(number, "image")) for number in range(learners))
        return cls(encoder, tuple(about["names"]), tensors["texts"], about["scale"], about["template"], prompts)


def class_texts(
    encoder: TransformersEncoder, names: Sequence[str], template: str, prompts: Sequence[Prompts] = ()
) -> Float[Tensor, "classes width"]:
    """Return unit-norm class embeddings, with learned prompts if given."""
    texts = [fill(template, name) for name in names]
    room = sum(each.text_tokens for each in prompts)
    with prompted(encoder, prompts):
        return unit_texts(encoder.encode_texts(prompt_tokens(encoder, texts, room)))
