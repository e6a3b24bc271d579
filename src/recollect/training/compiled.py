"""Towers compiled by `torch.compile`, behind the same methods."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recollect.core.errors import UserError
from recollect.core.types import Encoder
from recollect.training.step import Towers

BACKEND = "inductor"


class CompiledTowers:
    """Towers whose forward passes are compiled at the first call for each shape; everything else is the towers' own.

    Args:
        towers: what is trained, saved and evaluated; it is not changed.
    """

    def __init__(self, towers: Towers) -> None:
        self.towers = towers
        self._images = torch.compile(towers.encode_images, backend=BACKEND)
        self._texts = torch.compile(towers.encode_texts, backend=BACKEND)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.towers.device

    @property
    def encoder(self) -> Encoder | None:
        """The towers' own, not compiled."""
        return self.towers.encoder

    def encode_images(self, pixels: Tensor) -> Tensor:
        """Raw image embeddings, with graph.

        Raises:
            UserError: the towers cannot be compiled here.
        """
        with compiling():
            return self._images(pixels)

    def encode_texts(self, tokens: dict[str, Tensor]) -> Tensor:
        """Raw text embeddings, with graph.

        Raises:
            UserError: the towers cannot be compiled here.
        """
        with compiling():
            return self._texts(tokens)

    def save(self, folder: Path) -> Any:
        """See `Towers.save`."""
        return self.towers.save(folder)

    def publish(self, folder: Path) -> Any:
        """See `Towers.publish`."""
        return self.towers.publish(folder)

    def set_scale(self, scale: float, bias: float | None = None) -> None:
        """See `Towers.set_scale`."""
        self.towers.set_scale(scale, bias)

    def parameters(self) -> Iterator[nn.Parameter]:
        """The towers' own."""
        return self.towers.parameters()

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The towers' own."""
        return self.towers.named_parameters()

    def train(self, mode: bool = True) -> Any:
        """The towers' own."""
        return self.towers.train(mode)

    def to(self, device: torch.device) -> Any:
        """The towers' own."""
        return self.towers.to(device)


@contextmanager
def compiling() -> Iterator[None]:
    """Say in one line that towers cannot be compiled here; their backward pass is, too, when it is first called.

    Raises:
        UserError: in place of what torch raises.
    """
    from torch._dynamo.exc import TorchDynamoException
    from torch._inductor.exc import InductorError

    try:
        yield
    except (TorchDynamoException, InductorError) as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"--compile: torch cannot compile these towers here ({first[:200]}). Leave it out.") from error
