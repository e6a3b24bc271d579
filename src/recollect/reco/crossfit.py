"""Cross-fitting: training pairs as models embed them that were trained without them.

A frozen model is right about the pairs that it was fitted to. Train N more models, each without one of N parts of the
texts (a source's ``?without=I/N``), and let each embed the part that it has not seen beside everything else: there its
mistakes on new pairs are real ones, where offsets and rotations (`recollect.reco.newness`) only imitate them.

The price is N trainings, and another space for each model. What a fusion learns must hold in the space of the model
that is used in the end, so each other model's embeddings are turned into it by the one orthogonal map, for images and
texts alike, that brings the pairs that both models were trained on nearest (Procrustes): cosines within a model, and
with them its neighbours and its mistakes, stay exactly what they were.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int64
from scipy.linalg import orthogonal_procrustes

from recollect.core.seeding import text_fold
from recollect.core.types import Source
from recollect.core.validation import refuse
from recollect.data.sources.subset import first_text
from recollect.reco.block import FusionSettings
from recollect.reco.neighbours import Neighbours, ScoreOf, find_neighbours
from recollect.reco.pairs import Pairs


@dataclass(frozen=True)
class Fold:
    """What one model embeds that was trained without a part of the pairs.

    Attributes:
        new: which of them it was not trained on.
    """

    pairs: Pairs
    new: Bool[np.ndarray, " pairs"]


def fold_of(pairs: Pairs, sources: Sequence[Source], folds: int) -> Int64[np.ndarray, " pairs"]:
    """Which part of its source's texts each pair belongs to: the I of ``?without=I/N`` that leaves it out.

    Args:
        pairs: as `embed_pairs` returned them.
    """
    assert pairs.ordinals is not None
    by_origin = {source.fingerprint: source for source in sources}
    texts = [first_text(by_origin[one], row) for one, row in zip(pairs.origins, pairs.ordinals.tolist(), strict=True)]
    return np.array([text_fold(text, folds) for text in texts], dtype=np.int64)


def cross_neighbours(
    base: Pairs,
    folds: Sequence[Fold],
    settings: FusionSettings,
    k: int = 10,
    max_score: float = 1.01,
    score_of: ScoreOf = "image",
) -> Neighbours:
    """What each pair finds among all pairs, both embedded by the model that has not seen it.

    Args:
        base: the training pairs by the model that the fusion is for.
        folds: the same by the others; their new pairs together are those that are trained on.
        settings: which vectors are searched and which are read.
        max_score: cosine from which a picture counts as a near-duplicate.

    Raises:
        UserError: a fold holds other pairs, is of another width, or saw everything or nothing.
    """
    parts = []
    for number, fold in enumerate(folds):
        turned = _turned(base, fold, number)
        new = turned.take(np.flatnonzero(fold.new).tolist())
        parts.append(find_neighbours(new, turned.index(), settings, k, max_score, score_of))
    return _joined(parts)


def _turned(base: Pairs, fold: Fold, number: int) -> Pairs:
    """The fold's pairs in the space of the base model."""
    pairs, what = fold.pairs, f"model {number} of --crossfit"
    widths = pairs.images.shape[1], base.images.shape[1]
    other = list(pairs.pictures) != list(base.pictures) or list(pairs.captions) != list(base.captions)
    seen, one_sided = "none" if fold.new.any() else "all", fold.new.all() or not fold.new.any()
    refuse(
        (
            widths[0] != widths[1],
            f"{what}: its embeddings have {widths[0]} entries, the model's {widths[1]}. Train it alike.",
        ),
        (
            pairs.model == base.model,
            f"{what}: it is the model itself. Train it on the data with ?without={number}/N.",
        ),
        (other, f"{what}: it embedded other pairs than the model ({len(pairs)}, {len(base)})."),
        (one_sided, f"{what}: {seen} of the pairs were in its training. Take fewer models, or more pairs."),
    )
    halves = [(each.images[~fold.new], each.texts[~fold.new]) for each in (pairs, base)]
    turn, _ = orthogonal_procrustes(*(np.concatenate(each).astype(np.float64) for each in halves))

    def turned(vectors: np.ndarray) -> np.ndarray:
        return (vectors.astype(np.float64) @ turn).astype(np.float32)

    return replace(pairs, images=turned(pairs.images), texts=turned(pairs.texts))


def _joined(parts: Sequence[Neighbours]) -> Neighbours:
    """One after the other; row 0 of ``values``, the empty place, is shared."""
    values: dict[str, Any] = {}
    rows: dict[str, Any] = {}
    captions: dict[str, Any] = {}
    for modality in ("image", "text"):
        each = [part.values[modality] for part in parts]
        starts = np.cumsum([0, *(len(one) - 1 for one in each[:-1])]).tolist()
        values[modality] = torch.cat([each[0][:1], *(one[1:] for one in each)])
        places = zip((part.rows[modality] for part in parts), starts, strict=True)
        rows[modality] = torch.cat([torch.where(place > 0, place + start, place) for place, start in places])
        read = [part.read_captions[modality] for part in parts]
        captions[modality] = torch.cat([read[0][:1], *(one[1:] for one in read)])
    single = {
        name: torch.cat([getattr(part, name) for part in parts]) for name in ("images", "texts", "captions", "pictures")
    }
    return Neighbours(values=values, rows=rows, read_captions=captions, **single)
