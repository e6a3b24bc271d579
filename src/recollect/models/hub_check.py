"""The hub, asked once and briefly: its client alone would try for most of a minute where there is no network."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from recollect.core.errors import UserError
from recollect.core.paths import refuse_slip

SECONDS = 8.0
"""That the hub may take to say whether it knows a model."""

_CONFIGS = ("config.json", "recollect.json")


@contextmanager
def asked_once(name: str) -> Iterator[None]:
    """Open a model inside: from the hub if it answers, else from what was fetched before.

    Args:
        name: a folder, or an id on the hub.

    Raises:
        UserError: the hub does not answer and nothing was fetched before, or it has no such model; or a path was meant
            (`refuse_slip`), unless a model of that name was fetched before.
    """
    from huggingface_hub import HfApi, constants, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled, RepositoryNotFoundError

    def fetched() -> bool:
        try:
            return any(isinstance(try_to_load_from_cache(name, file), str) for file in _CONFIGS)
        except ValueError:  # no name that the hub could have
            return False

    if not fetched():
        refuse_slip(name, "folder")
    if Path(name).exists() or constants.HF_HUB_OFFLINE:
        yield
        return
    offline = False
    try:
        HfApi().model_info(name, timeout=SECONDS)
    except RepositoryNotFoundError:
        raise UserError(
            f"{name}: no such folder, and the hub has no such model (or not for you). Check the name."
        ) from None
    except (HfHubHTTPError, OfflineModeIsEnabled):
        pass  # gated, busy: opening it says more
    except Exception as error:  # whatever the network's libraries raise: no route, no name, no answer
        if not fetched():
            raise UserError(
                f"{name}: no such folder, and the hub does not answer ({type(error).__name__}). Check the name and the "
                f"network, or download it elsewhere with `hf download {name} --local-dir FOLDER` and name FOLDER."
            ) from error
        offline = True
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or offline
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
