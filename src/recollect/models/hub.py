"""A folder of a model, sent to the Hugging Face hub."""

from pathlib import Path
from typing import TYPE_CHECKING

from recollect.core.errors import UserError, user_errors

if TYPE_CHECKING:
    from huggingface_hub import HfApi


def check_push(repo_id: str, api: "HfApi | None" = None) -> None:
    """Refuse what could not be pushed to, before hours of training.

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
    """Send a model's folder, its card too, to a repository of the hub, which is made if it is not there.

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
