"""Slow references for losses and attention, written as loops in float64."""

import math

import torch
from torch.nn.functional import logsigmoid

ABLATIONS = {
    "paper": {},
    "no mask": {"mask": False},
    "residual": {"residual": True},
    "multimodal": {"values": "texts"},
    "two stages": {"stages": 2},
    "tied all": {"tied": "all"},
    "tied context": {"tied": "context"},
    "tied scales": {"tied": "scales"},
    "frozen tau": {"freeze_temperature": True},
    "stop keys": {"stop_gradient": "keys"},
    "stop values": {"stop_gradient": "values"},
    "stop both": {"stop_gradient": "both"},
    "separate batch": {"separate": True},
    "value head 1": {"value_head": 1},
    "value head 2": {"value_head": 2},
    "value head 3": {"value_head": 3},
    "no QK norm": {"normalize_keys": False},
    "LayerNorm K": {"layer_norm": "keys"},
    "LayerNorm V": {"layer_norm": "values"},
    "LayerNorm K, V": {"layer_norm": "both"},
    "augmented buffer": {"augmented": "buffer"},
    "augmented all": {"augmented": "all"},
    "augmented all + InfoNCE": {"augmented": "all+infonce"},
}
"""Options of the ablations in LIxP's tables."""


def rows(count, width=6, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, generator=generator, dtype=torch.float64).to(dtype)


def contrastive_loss(base, images, texts, scale, bias=0.0, labels=None, copies=None):
    """Compute a sigmoid, softmax or UniCL loss of unit-norm images and texts, pair by pair.

    Pairs ``i, j`` with ``copies[i][j]`` are not negatives.
    """
    count, logits, total = len(images), scale * images @ texts.T, 0.0
    for i in range(count):
        negatives = [j for j in range(count) if j != i and not (copies and copies[i][j])]
        if base == "sigmoid":
            z = logits[i] + bias
            total = total - logsigmoid(z[i]) - sum(logsigmoid(-z[j]) for j in negatives)
            continue
        labeled = labels is not None and labels[i] >= 0
        positives = [j for j in range(count) if j == i or (labeled and labels[j] == labels[i])]
        candidates = [*{*positives, *negatives}]
        for line in (logits[i], logits[:, i]):
            total = total - sum(line[j] - line[candidates].logsumexp(0) for j in positives) / len(positives) / 2
    return total / count


def attend(query, keys, values, hidden, tau):
    """Attend with one query to all keys except the hidden one."""
    seen = [j for j in range(len(keys)) if j != hidden]
    logits = torch.stack([query.dot(keys[j]) / (tau * math.sqrt(len(query))) for j in seen])
    return sum(weight * values[j] for weight, j in zip(logits.softmax(0), seen, strict=True))
