"""Towers compiled with `torch.compile`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from recollect.core.errors import UserError
from recollect.training.step import Towers

BACKEND = "inductor"


class CompiledForward:
    """The compiled forward passes of towers, which are saved and evaluated without them.

    Args:
        towers: compiled on first use.
    """

    def __init__(self, towers: Towers) -> None:
        self._towers: Any = towers
        names = ("encode_images", "encode_texts")
        self._forward = {name: torch.compile(getattr(towers, name), backend=BACKEND) for name in names}

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let the towers compute by them while the block runs. The backward pass is compiled on its first call, too.

        Raises:
            UserError: torch cannot compile the towers here.
        """
        from torch._dynamo.exc import TorchDynamoException
        from torch._inductor.exc import InductorError

        vars(self._towers).update(self._forward)
        try:
            yield
        except (TorchDynamoException, InductorError) as error:
            first = next(iter(str(error).splitlines()), type(error).__name__)
            raise UserError(f"--compile: torch cannot compile these towers here ({first[:200]}). Omit it.") from error
        finally:
            for name in self._forward:
                del vars(self._towers)[name]
