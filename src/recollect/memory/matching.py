"""Whether a model and what is asked of a memory go together with it."""

from recollect.core.errors import UserError
from recollect.core.types import Encoder, caption_prefix
from recollect.memory.backends.base import Backend


def check_model(backend: Backend, fingerprint: str, what: str) -> None:
    """Refuse another model than the one that embedded a memory.

    Raises:
        UserError: it is another.
    """
    record = backend.record
    if fingerprint != record.model:
        raise UserError(
            f"{backend.address}: embedded by {record.model_name or 'a model'} ({record.model[:12]}), but {what} is "
            f"another model ({fingerprint[:12]}). Use that model, or build a memory with this one."
        )


def check_memory_encoder(backend: Backend, encoder: Encoder, what: str) -> None:
    """Refuse a model that reads texts otherwise than the memory's were read, or another model (see `Memory`).

    Raises:
        UserError: it is another model, or reads otherwise.
    """
    check_model(backend, encoder.fingerprint, what)
    was, now = backend.record.prefix, caption_prefix(encoder)
    if was != now:
        said = ["without a prefix" if each is None else f"as {each}s" for each in (was, now)]
        raise UserError(
            f"{backend.address}: its texts were read {said[0]}, but {what} reads them {said[1]}, so they cannot be "
            "compared. Build the memory again with `recollect memory build`, or create it with that prefix."
        )


def check_k(backend: Backend, k: int, with_text: bool) -> int:
    """Refuse to look up k rows where there are fewer (see `Memory`).

    Returns:
        How many rows count.

    Raises:
        UserError: k is below 1, or the memory is empty or smaller.
    """
    address = backend.address
    if k < 1:
        raise UserError(f"k = {k}: ask for at least 1 row")
    rows = len(backend)
    if rows == 0:
        raise UserError(f"{address}: the memory is empty. Fill it with `recollect memory add {address} SOURCE`.")
    texts = backend.count_texts() if with_text else rows
    if k > rows:
        raise UserError(f"{address}: k = {k}, but the memory holds {rows:,} rows. Ask for at most {rows:,}.")
    if k > texts:
        raise UserError(
            f"{address}: k = {k}, but {texts or 'none'} of its {rows:,} rows {'have' if texts > 1 else 'has'} "
            f"a text. Give its pictures captions with `recollect caption {address}`, or search among images."
        )
    return texts
