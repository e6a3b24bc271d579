"""Neighbors of pairs in an index, found once and stored for all epochs, and the weight at which they count."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float32, Int64, Shaped
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from recollect.core.errors import UserError
from recollect.core.files import atomic_path
from recollect.core.progress import progress
from recollect.core.seeding import derive_seed, numpy_generator, text_key
from recollect.core.validation import refuse
from recollect.index import NEAR, By, Index
from recollect.index.lookup import Excluded
from recollect.reco.block import FusionModule, FusionSettings
from recollect.reco.pairs import Pairs

ScoreOf = Literal["image", "searched"]
"""Cosine that marks a picture as a near-duplicate of a pair: that of the two images, or that of the query and the
vector searched (RECO, section 4.1). The latter also excludes all pictures with a text query's own caption, which the
query would find at test time."""

DEFAULT_K = 10
"""Pictures that an embedding reads."""

_QUERIES = 2_048
_SAMPLE = 512


def caption_key(caption: str, id: str = "") -> int:
    """Return a number shared by captions that differ only in case and spaces; derived from the id if empty."""
    return text_key(caption) if caption.strip() else derive_seed("no caption", id)


@dataclass(frozen=True)
class Neighbors:
    """Embedded pairs and the vectors that each modality reads.

    Attributes:
        images: image embeddings of the pairs.
        texts: text embeddings of the pairs.
        values: vectors read by embeddings of each modality; row 0 is zeros, for empty slots.
        rows: the k rows of ``values`` that each pair reads, nearest first; if both modalities are read, k of one, then
            k of the other.
        captions: `caption_key` of each pair.
        pictures: a number for the picture of each pair.
        read_captions: `caption_key` of each row of ``values``; row 0 is ignored.
    """

    images: Float32[Tensor, "pairs width"]
    texts: Float32[Tensor, "pairs width"]
    values: dict[str, Float32[Tensor, "_rows width"]]
    rows: dict[str, Int64[Tensor, "pairs k"]]
    captions: Int64[Tensor, " pairs"]
    pictures: Int64[Tensor, " pairs"]
    read_captions: dict[str, Int64[Tensor, " _rows"]]

    def __len__(self) -> int:
        return len(self.images)

    def tokens(self, modality: By, pairs: Int64[Tensor, " some"]) -> Float32[Tensor, "some slots width"]:
        """Return the input of the fusion for some pairs: the embedding, followed by its neighbors."""
        own = (self.images if modality == "image" else self.texts)[pairs]
        return torch.cat([own[:, None], self.values[modality][self.rows[modality][pairs]]], dim=1)

    def token_captions(self, modality: By, pairs: Int64[Tensor, " some"]) -> Int64[Tensor, "some slots"]:
        """Return the `caption_key` of each token."""
        read = self.read_captions[modality][self.rows[modality][pairs]]
        return torch.cat([self.captions[pairs, None], read], dim=1)

    def save(self, path: Path) -> None:
        """Write everything to a safetensors file."""
        tensors = {name: getattr(self, name) for name in _SINGLE}
        for name in _PAIRED:
            tensors |= {f"{name}.{modality}": value for modality, value in getattr(self, name).items()}
        with atomic_path(path) as temporary:
            save_file(tensors, temporary)

    @classmethod
    def open(cls, path: Path) -> "Neighbors":
        """Read a file written by `save`.

        Raises:
            UserError: the file is missing or damaged.
        """
        try:
            tensors = load_file(path)
            parts: dict[str, Any] = {name: tensors[name] for name in _SINGLE}
            parts |= {name: {side: tensors[f"{name}.{side}"] for side in ("image", "text")} for name in _PAIRED}
            return cls(**parts)
        except (OSError, SafetensorError, KeyError) as error:
            raise UserError(f"{path}: cannot be read ({error}). Remove it to find the neighbors again.") from error


_SINGLE = ("images", "texts", "captions", "pictures")
_PAIRED = ("values", "rows", "read_captions")


@dataclass(frozen=True)
class Reading:
    """Vectors that embeddings read.

    Attributes:
        ids: ids of the pictures; "" for empty slots.
        captions: index of the caption read; -1 for the mean of all captions, or if images are read.
        vectors: one array for each modality read, in the order of a fusion's tokens; zeros for empty slots.
    """

    ids: Shaped[np.ndarray, "queries k"]
    captions: Int64[np.ndarray, "queries k"]
    vectors: tuple[Float32[np.ndarray, "queries k width"], ...]


def find_neighbors(
    pairs: Pairs,
    index: Index,
    settings: FusionSettings,
    k: int = 10,
    max_score: float = NEAR,
    score_of: ScoreOf = "image",
    where: str | None = None,
) -> Neighbors:
    """Look up image and text of every training pair (RECO, section 3.1), excluding its picture and near-duplicates.

    Args:
        pairs: training pairs.
        index: index to search.
        settings: which vectors are searched and read.
        k: number of pictures for each embedding (see `RetrievalEnhancedEncoder`).
        max_score: minimum cosine of near-duplicates.
        score_of: the cosine that ``max_score`` limits.
        where: filter of the pictures to read.

    Raises:
        UserError: the index belongs to another model or has fewer than k pictures.
    """
    index.model.check_fingerprint(pairs.model, "the training pairs'")
    check_k(index, k)
    values: dict[str, Tensor] = {}
    rows: dict[str, Tensor] = {}
    read_captions: dict[str, Tensor] = {}
    for modality in ("image", "text"):
        values[modality] = torch.zeros(1, index.width, dtype=torch.float32)
        rows[modality] = torch.zeros(len(pairs), 0, dtype=torch.int64)
        read_captions[modality] = torch.zeros(1, dtype=torch.int64)
        if settings.refines(modality) and settings.kind != "mlp":
            check_k(index, k, "text" in (settings.searched(modality), *settings.taken(modality)))
            readings = _search(pairs, index, settings, modality, k, max_score, score_of, where)
            values[modality], rows[modality], read_captions[modality] = gather(readings, index)
    return Neighbors(
        torch.from_numpy(pairs.images),
        torch.from_numpy(pairs.texts),
        values,
        rows,
        _keys(caption_key(caption, id) for caption, id in zip(pairs.captions, pairs.pictures, strict=True)),
        _keys(derive_seed("picture", id) for id in pairs.pictures),
        read_captions,
    )


def balanced_weight(neighbors: Neighbors, modality: By, pairs: int = 2_048) -> float:
    """Return the weight at which the mean of the neighbors varies scores as much as the embedding does.

    A score is the product with an embedding of the other modality. In a model whose texts are closer to each other than
    to their images, the vectors read by images vary scores several times more than the images do, and equal weights
    would leave little of the model's own judgment.

    Args:
        neighbors: pairs and what they read.
        modality: modality of the embeddings.
        pairs: number of pairs to measure.
    """
    tokens = neighbors.tokens(modality, torch.arange(min(pairs, len(neighbors))))
    others = neighbors.texts if modality == "image" else neighbors.images
    parts = tokens[:, 0], nn.functional.normalize(tokens[:, 1:].sum(dim=1), dim=1)
    own, read = (float((part @ others[: len(tokens)].T).std(dim=0, correction=0).mean()) for part in parts)
    return own / (own + read) if own and read else 0.5


def balanced_mean(index: Index, k: int = DEFAULT_K, where: str | None = None) -> FusionModule:
    """Return a mean whose weight is the `balanced_weight` of the index's own pictures and captions.

    It is measured on `_SAMPLE` random pictures with captions, and is the mean of both modalities' weights, rounded to
    two digits.

    Args:
        index: index to read.
        k: number of pictures that each embedding reads.
        where: filter of the pictures to read.

    Raises:
        UserError: too few pictures have captions.
    """
    check_k(index, k, captioned=True)
    ids = np.array(index.ids if where is None else index.ids_where(where), dtype=object)
    order = ids[numpy_generator("balanced mean").permutation(len(ids))].tolist()
    captioned = list[tuple[str, str]]()
    for start in range(0, len(order), 8 * _SAMPLE):  # most pictures may have no captions
        block = order[start : start + 8 * _SAMPLE]
        captioned += [(id, each[0]) for id, each in zip(block, index.values("caption", block), strict=True) if each]
        if len(captioned) >= _SAMPLE:
            break
    refuse((not captioned, f"{index.address}: no picture with a caption matches {where}. Use another filter."))
    chosen, captions = zip(*captioned[:_SAMPLE], strict=True)
    pairs = Pairs(index.vectors(chosen), index.vectors(chosen, "text"), captions, chosen, index.record.model)
    neighbors = find_neighbors(pairs, index, FusionSettings(index.width, "mean"), k, where=where)
    weights = [balanced_weight(neighbors, modality) for modality in ("image", "text")]
    weight = min(max(round(sum(weights) / 2, 2), 0.01), 0.99)  # two digits are equal on all machines
    return FusionModule(FusionSettings(index.width, "mean", weight=weight), trained={"k": k})


def _keys(keys: Iterable[int]) -> Tensor:
    return torch.tensor(list(keys), dtype=torch.int64)


def _search(
    pairs: Pairs, index: Index, settings: FusionSettings, modality: By, k: int, max_score: float, score_of: ScoreOf,
    where: str | None,
) -> list[Reading]:  # fmt: skip
    """Look up all pairs by one modality, in blocks."""
    queries = pairs.images if modality == "image" else pairs.texts
    by, blocks = settings.searched(modality), []
    by_score = score_of == "searched" or (modality == by == "image")
    with progress(f"neighbors by {by}", len(queries), "pairs") as counter:
        for start in range(0, len(queries), _QUERIES):
            some = slice(start, start + _QUERIES)
            exclude: list[set[str]] = [{id} for id in pairs.pictures[some]]
            if not by_score and max_score <= 1:  # cosines are at most 1
                for own, near in zip(exclude, _near_each(index, pairs.images[some], max_score), strict=True):
                    own |= near
            limit = max_score if by_score else None
            blocks.append(read_index(index, queries[some], settings, modality, k, exclude, limit, where, exact=True))
            counter.advance(len(exclude))
    return blocks


def _near_each(index: Index, images: Float32[np.ndarray, "n width"], max_score: float) -> list[set[str]]:
    """Return the ids of all pictures with a cosine of at least ``max_score`` to each image."""
    near: list[set[str]] = [set() for _ in images]
    waiting, k = np.arange(len(images)), 32
    while len(waiting):
        k = min(k, len(index))
        found = index.lookup(images[waiting], k, exact=True)
        for query, ids, scores in zip(waiting.tolist(), found.ids, found.scores, strict=True):
            near[query] = set(ids[scores >= max_score].tolist())
        waiting, k = waiting[(found.scores[:, -1] >= max_score)] if k < len(index) else waiting[:0], 8 * k
    return near


def read_index(
    index: Index,
    queries: Float32[np.ndarray, "queries width"],
    settings: FusionSettings,
    modality: By,
    k: int,
    exclude: Excluded | None = None,
    max_score: float | None = None,
    where: str | None = None,
    exact: bool = False,
) -> Reading:
    """Find k pictures for each embedding of a modality, and read the vectors that the fusion needs."""
    by, taken = settings.searched(modality), settings.taken(modality)
    read: By = "text" if "text" in taken else "image"
    found = index.lookup(queries, k, by, read, where, exclude, max_score, exact)
    assert found.vectors is not None
    assert found.captions is not None
    parts = []
    for each in taken:
        if each == read:
            parts.append(found.vectors)
            continue
        vectors = np.zeros_like(found.vectors)
        filled = found.ids != ""
        vectors[filled] = index.vectors(found.ids[filled].tolist(), each)
        parts.append(vectors)
    captions = found.captions if by == read == "text" else np.full(found.ids.shape, -1)
    return Reading(found.ids, captions, tuple(parts))


def gather(readings: Sequence[Reading], index: Index) -> tuple[Tensor, Tensor, Tensor]:
    """Merge the vectors of several look-ups.

    Returns:
        A row of zeros followed by the distinct vectors (vectors, width), the row in each slot (queries, slots), and
        the `caption_key` of each vector.
    """
    values, keys = [np.zeros((1, index.width), dtype=np.float32)], list[tuple[str, int]]()
    sides = []
    for side in range(len(readings[0].vectors)):
        known: dict[tuple[str, int], int] = {}
        blocks = []
        for block in readings:
            rows = np.zeros(block.ids.shape, dtype=np.int64)
            for query, rank in zip(*np.nonzero(block.ids != ""), strict=True):
                key = block.ids[query, rank], int(block.captions[query, rank])
                if key not in known:
                    known[key] = len(values)
                    values.append(block.vectors[side][query, rank][None])
                    keys.append(key)
                rows[query, rank] = known[key]
            blocks.append(rows)
        sides.append(np.concatenate(blocks))
    captions = dict(zip(ids := sorted({id for id, _ in keys}), index.values("caption", ids), strict=True))
    read = [caption_key((captions[id] or [""])[max(0, number)], id) for id, number in keys]
    return torch.from_numpy(np.concatenate(values)), torch.from_numpy(np.concatenate(sides, axis=1)), _keys([0, *read])


def check_k(index: Index, k: int, captioned: bool = False) -> None:
    """Check that the index has at least k pictures.

    Args:
        captioned: count only pictures with a caption.

    Raises:
        UserError: k is below 1, or the index has fewer pictures.
    """
    pictures = index.texts if captioned else len(index)
    count = (
        f"{pictures:,} of its {len(index):,} pictures have captions" if captioned else f"it has {pictures:,} pictures"
    )
    advice = "Lower k, or add captions (`recollect caption`)." if captioned else "Lower k, or add pictures."
    refuse(
        (k < 1, f"k = {k}: must be at least 1"),
        (not len(index), f"{index.address}: the index is empty. Add pictures with `recollect index add`."),
        (k > pictures, f"{index.address}: k = {k}, but {count}. {advice}"),
    )
