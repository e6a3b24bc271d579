"""The Hugging Face hub: models opened from it, and sent to it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from recollect.core.errors import UserError, user_errors
from recollect.core.paths import refuse_slip

if TYPE_CHECKING:
    from huggingface_hub import HfApi


SECONDS = 8.0
"""How long to wait for the hub to answer whether it knows a model."""

_CONFIGS = ("config.json", "recollect.json")


@contextmanager
def asked_once(name: str) -> Iterator[None]:
    """Open a model inside: from the hub if it answers, else from the local cache.

    The hub is asked once and briefly; its own client retries for most of a minute without a network.

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


def check_push(repo_id: str, api: "HfApi | None" = None) -> None:
    """Reject a repository that cannot be pushed to, before hours of training.

    Args:
        repo_id: ``OWNER/NAME``.
        api: the hub's client; by default one with the token that `hf auth login` kept.

    Raises:
        UserError: no name of a repository, or the hub does not know this user.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    with user_errors(f"--push-to {repo_id}: not a repository name", HFValidationError, then=". Write OWNER/NAME."):
        validate_repo_id(repo_id)
    with user_errors(f"--push-to {repo_id}: cannot log in to the hub", then=". Run `hf auth login`."):
        (api or _api()).whoami()


def push_model(folder: str | Path, repo_id: str, *, private: bool = True, api: "HfApi | None" = None) -> str:
    """Upload a model's folder with its card to a repository of the hub, which is created if it does not exist.

    Args:
        folder: as `DualEncoder.save` or a training run wrote it.
        repo_id: ``OWNER/NAME``.
        private: of a repository that is made; one that is there stays what it is.
        api: the hub's client.

    Returns:
        Address of the repository.

    Raises:
        UserError: no model there, or the hub refuses it; the folder is as it was.
    """
    folder = Path(folder)
    if not (folder / "config.json").exists() and not (folder / "recollect.json").exists():
        raise UserError(f"{folder}: no model there. Name a model's folder, such as RUN/model.")
    api = api or _api()
    with user_errors(f"{folder}: cannot be pushed to {repo_id}", then=". Try again."):
        made = api.create_repo(repo_id, private=private, exist_ok=True)
        api.upload_folder(repo_id=repo_id, folder_path=str(folder), commit_message="A model trained with recollect")
    return str(made)


def _api() -> "HfApi":
    from huggingface_hub import HfApi

    return HfApi()
