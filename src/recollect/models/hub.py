"""Downloads from and uploads to the Hugging Face hub."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from recollect.core.errors import UserError, user_errors
from recollect.core.paths import reject_typo

if TYPE_CHECKING:
    from huggingface_hub import HfApi


TIMEOUT_SECONDS = 8.0
"""Timeout for asking the hub whether a model exists."""

_CONFIGS = ("config.json", "recollect.json")


@contextmanager
def hub_or_cache(name: str) -> Iterator[None]:
    """Use the hub inside the block if it answers, else only the local cache.

    The hub is queried once, with a short timeout: without a network, its own client retries for most of a minute.

    Args:
        name: a folder, or an id on the hub.

    Raises:
        UserError: the hub has no such model; or the model is not cached, and the hub does not answer or the name looks
            like a mistyped path (`reject_typo`).
    """
    from huggingface_hub import HfApi, constants, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled, RepositoryNotFoundError

    def cached() -> bool:
        try:
            return any(isinstance(try_to_load_from_cache(name, file), str) for file in _CONFIGS)
        except ValueError:  # not a valid hub id
            return False

    if not cached():
        reject_typo(name, "folder")
    if Path(name).exists() or constants.HF_HUB_OFFLINE:
        yield
        return
    offline = False
    try:
        HfApi().model_info(name, timeout=TIMEOUT_SECONDS)
    except RepositoryNotFoundError:
        raise UserError(
            f"{name}: no such folder, and no such model on the hub (or no access to it). Check the name."
        ) from None
    except (HfHubHTTPError, OfflineModeIsEnabled):
        pass  # gated or busy: opening the model gives a more specific error
    except Exception as error:  # anything a network library may raise: no route, DNS failure, timeout
        if not cached():
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
    """Check early, before hours of training, that a model can be pushed to a repository.

    Args:
        repo_id: ``OWNER/NAME``.
        api: the hub's client; by default one with the token saved by `hf auth login`.

    Raises:
        UserError: the repository name is invalid, or the user is not logged in.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    with user_errors(f"--push-to {repo_id}: not a repository name", HFValidationError, then=". Write OWNER/NAME."):
        validate_repo_id(repo_id)
    with user_errors(f"--push-to {repo_id}: cannot log in to the hub", then=". Run `hf auth login`."):
        (api or _api()).whoami()


def push_model(folder: str | Path, repo_id: str, *, private: bool = True, api: "HfApi | None" = None) -> str:
    """Upload a model's folder with its card to a hub repository, created if it does not exist.

    Args:
        folder: a folder written by `DualEncoder.save` or a training run; it is not changed.
        repo_id: ``OWNER/NAME``.
        private: whether a new repository is private; existing ones keep their visibility.
        api: the hub's client.

    Returns:
        URL of the repository.

    Raises:
        UserError: the folder contains no model, or the upload fails.
    """
    folder = Path(folder)
    if not (folder / "config.json").exists() and not (folder / "recollect.json").exists():
        raise UserError(f"{folder}: not a model. Name a model's folder, such as RUN/model.")
    api = api or _api()
    with user_errors(f"{folder}: cannot be pushed to {repo_id}", then=". Try again."):
        url = api.create_repo(repo_id, private=private, exist_ok=True)
        api.upload_folder(repo_id=repo_id, folder_path=str(folder), commit_message="A model trained with recollect")
    return str(url)


def _api() -> "HfApi":
    from huggingface_hub import HfApi

    return HfApi()
