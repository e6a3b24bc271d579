"""Towers compiled with `torch.compile`."""

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
    """Compiles the forward passes of towers on first use; everything else is delegated.

    Args:
        towers: trained, saved and evaluated as they are.
    """

    def __init__(self, towers: Towers) -> None:
        self.towers = towers
        self._images = torch.compile(towers.encode_images, backend=BACKEND)
        self._texts = torch.compile(towers.encode_texts, backend=BACKEND)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.towers.device

    @property
    def encoder(self) -> Encoder | None:
        """The uncompiled encoder."""
        return self.towers.encoder

    def encode_images(self, pixels: Tensor) -> Tensor:
        """Raw image embeddings, with gradients.

        Raises:
            UserError: torch cannot compile the towers here.
        """
        with compiling():
            return self._images(pixels)

    def encode_texts(self, tokens: dict[str, Tensor]) -> Tensor:
        """Raw text embeddings, with gradients.

        Raises:
            UserError: torch cannot compile the towers here.
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
        """Delegates."""
        return self.towers.parameters()

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Delegates."""
        return self.towers.named_parameters()

    def train(self, mode: bool = True) -> Any:
        """Delegates."""
        return self.towers.train(mode)

    def to(self, device: torch.device) -> Any:
        """Delegates."""
        return self.towers.to(device)


@contextmanager
def compiling() -> Iterator[None]:
    """Turn torch's compilation errors into one line. The backward pass is compiled on its first call, too.

    Raises:
        UserError: torch cannot compile the towers here.
    """
    from torch._dynamo.exc import TorchDynamoException
    from torch._inductor.exc import InductorError

    try:
        yield
    except (TorchDynamoException, InductorError) as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"--compile: torch cannot compile these towers here ({first[:200]}). Omit it.") from error
