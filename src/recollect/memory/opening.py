"""The model that a memory was embedded by, found and opened."""

import torch

from recollect.core.errors import UserError
from recollect.core.files import beside
from recollect.memory.store import Memory
from recollect.models import DualEncoder, load_model


def model_of(memory: Memory, named: str | None = None, option: str = "--model") -> str:
    """Where the model of a memory is: where the user says, or where it was when the memory was built.

    A relative path of then holds from the folder of then: where it leads nowhere from here, it is looked for from the
    memory's own folder and those around it.

    Raises:
        UserError: nobody says.
    """
    name = named or beside(memory.model_name, memory.address)
    if not name:
        raise UserError(f"{memory.address}: does not say which model embedded it. Name it with {option}.")
    return name


def open_model_of(
    memory: Memory, named: str | None = None, device: torch.device | str | None = None, option: str = "--model"
) -> tuple[DualEncoder, str]:
    """The model of a memory (`model_of`), and what it was opened by.

    Raises:
        UserError: it is not there, or it is another model.
    """
    name = model_of(memory, named, option)
    try:
        encoder = load_model(name, device)
    except UserError as error:
        if named is not None:
            raise
        raise UserError(
            f"{memory.address}: was embedded by {memory.model_name}, which cannot be opened from here; name the place "
            f"where it is now with {option}. ({error})"
        ) from error
    memory.check_encoder(encoder, name)
    return encoder, name
