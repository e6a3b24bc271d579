"""Class texts: one embedding for each class, from its prompts."""

from collections.abc import Sequence

import numpy as np
import torch

from recollect.core.types import TEXT_SCALE, Encoder, Kind


def prompt_ensemble(encoder: Encoder, prompts: Sequence[Sequence[str]], prefix: Kind | None = None) -> np.ndarray:
    """One text embedding for each class: prompts normalised, averaged, normalised again (CLIP's ensemble).

    Args:
        prompts: at least one prompt for each class; classes may have different numbers of them.

    Returns:
        float32 (classes, width), unit-norm.
    """
    flat = [prompt for texts in prompts for prompt in texts]
    return _averaged(encoder.embed_texts(flat, prefix), [len(texts) for texts in prompts])


def _averaged(embeddings: torch.Tensor, numbers: Sequence[int]) -> np.ndarray:
    counts = torch.tensor(numbers)
    owner = torch.repeat_interleave(torch.arange(len(numbers)), counts)
    means = embeddings.new_zeros(len(numbers), embeddings.shape[1]).index_add_(0, owner, embeddings) / counts[:, None]
    return torch.nn.functional.normalize(means, dim=1).numpy()


def prompts_and_ensemble(
    encoder: Encoder, prompts: Sequence[Sequence[str]], prefix: Kind | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Every prompt by itself, as many of each class as the class with fewest has, and their ensemble from all of them.

    Where some class has only one prompt, there is nothing to weigh: the ensemble then stands for the prompts.

    Returns:
        float32 (classes, prompts, width) and (classes, width), unit-norm.
    """
    numbers = [len(texts) for texts in prompts]
    embeddings = encoder.embed_texts([prompt for texts in prompts for prompt in texts], prefix)
    starts = np.cumsum(numbers) - numbers
    ensemble = _averaged(embeddings, numbers)
    if min(numbers) == 1:
        return ensemble[:, None], ensemble
    return np.stack([embeddings[start : start + min(numbers)].numpy() for start in starts.tolist()]), ensemble


def learned_scale(encoder: Encoder) -> float:
    """The inverse temperature that a model was trained with; CLIP's 100 where it stores none."""
    return float(encoder.scale or TEXT_SCALE)
