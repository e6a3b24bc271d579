"""Class texts: one embedding per class, from its prompts."""

from collections.abc import Sequence

import numpy as np
import torch

from recollect.core.types import TEXT_SCALE, Encoder, Kind


def prompt_ensemble(encoder: Encoder, prompts: Sequence[Sequence[str]], prefix: Kind | None = None) -> np.ndarray:
    """Embed classes by CLIP's prompt ensemble (normalize, average, normalize again): float32 (classes, width).

    Args:
        prompts: one or more prompts of each class.
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
    """Embed the prompts, as many per class as the class with the fewest has, and the ensemble of all prompts.

    If a class has only one prompt, the ensemble is returned as the only prompt of each class.

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
    """Return the model's inverse temperature (default: CLIP's 100). SigLIP's bias cancels in the softmax."""
    return float(encoder.scale or TEXT_SCALE)
