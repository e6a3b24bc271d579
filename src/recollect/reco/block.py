"""Fusion: one transformer block per modality that refines an embedding by its neighbors in an index (RECO, 3.2)."""

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from recollect.core.checksums import check_checksums, write_folder_checksums
from recollect.core.errors import UserError, one_line
from recollect.core.files import fresh_folder, read_json, write_json
from recollect.core.validation import check_number
from recollect.index import By

_WEIGHTS, _RECORD = "fusion.safetensors", "fusion.json"
FUSION_FORMAT = 3
HEAD_WIDTH = 64
"""Width of an attention head."""

FusionKind = Literal["transformer", "mean", "mlp"]
"""RECO's block; a mean (Table 3); or a residual MLP of the same size without neighbors (Figure 3, left)."""

Read = Literal["cross", "uni", "both"]
"""Modality read from each neighbor: the one the query is not (RECO), the query's, or both as two tokens."""

Start = Literal["embedding", "gate"]
"""Output of an untrained block, to which training adds a correction: the embedding (the paper's), or a mixture of the
embedding and the mean of its neighbors, whose weight is learned."""


@dataclass(frozen=True)
class FusionSettings:
    """Architecture of a fusion, and the vectors it searches and reads.

    Attributes:
        width: embedding width.
        kind: how an embedding and its neighbors are combined.
        search: search the vectors of the query's modality (uni), or of the other modality (cross).
        read: read the neighbors' vectors of the other modality (cross), of the query's (uni), or both.
        modalities: modalities whose embeddings are refined.
        start: output of an untrained transformer block.
        weight: weight of the neighbors in the mixture (`mixed`), between 0 and 1. For kind ``mean``, None is the plain
            mean of the embedding and all its neighbors; for start ``gate``, it is the initial weight (None: 0.5, or
            measured on the training pairs by `train_fusion`).
    """

    width: int
    kind: FusionKind = "transformer"
    search: Literal["uni", "cross"] = "uni"
    read: Read = "cross"
    modalities: Literal["both", "image", "text"] = "both"
    start: Start = "gate"
    weight: float | None = None

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"width must be at least 1, got {self.width}")
        if self.start not in get_args(Start):
            raise ValueError(f"start {self.start!r}: choose {', '.join(get_args(Start))}")
        if self.weight is not None:
            check_number("weight", self.weight, above=0, below=1)
            if self.kind == "mlp" or (self.kind == "transformer" and self.start != "gate"):
                raise ValueError("weight: only used by kind 'mean', and by kind 'transformer' with start 'gate'")

    def refines(self, modality: By) -> bool:
        """Return whether embeddings of a modality are refined."""
        return self.modalities in {"both", modality}

    def searched(self, modality: By) -> By:
        """Return the modality of the vectors that a query is compared with."""
        return modality if self.search == "uni" else other(modality)

    def taken(self, modality: By) -> tuple[By, ...]:
        """Return the modalities that a query reads from each neighbor, in the order of its tokens."""
        if self.read == "both":
            return other(modality), modality
        return (other(modality),) if self.read == "cross" else (modality,)


def other(modality: By) -> By:
    """Return the other modality."""
    return "text" if modality == "image" else "image"


class FusionBlock(nn.Module):
    """A pre-norm transformer block that computes only token 0, the embedding itself.

    Heads of width 64, an MLP as wide as the embedding, no positions (METHODS 7): 6 d² + 10 d parameters. Only token 0
    is a query, and keys and values are never formed: with ``q`` the query in a head,
    ``q · (W_k x_j + b_k) = (W_kᵀ q) · x_j + q · b_k`` and ``Σ_j a_j (W_v x_j + b_v) = W_v (Σ_j a_j x_j) + b_v``, so a
    projection costs the same for ten neighbors as for none. Both residual branches start at zero, so an untrained block
    returns its ``start``, where ``x_0`` is the embedding, ``x_j`` are its neighbors, and ``n`` normalizes::

        embedding:  x_0                                              (RECO)
        gate:       2 (1 − w) x_0 + 2 w n(Σ_j x_j),  w = σ(gate),    learned

    Args:
        width: embedding width.
        start: output of an untrained block.
        weight: initial w.
    """

    def __init__(self, width: int, start: Start = "embedding", weight: float = 0.5) -> None:
        super().__init__()
        self.start = start
        if start == "gate":
            self.gate = nn.Parameter(torch.zeros(()))
            self.set_weight(weight)
        self.heads = next(heads for heads in range(max(1, width // HEAD_WIDTH), 0, -1) if width % heads == 0)
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)
        for linear in (self.query, self.key, self.value, self.up):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)
        for linear in (self.output, self.down):
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)

    def set_weight(self, weight: float) -> None:
        """Set the weight of the neighbors in the mixture, between 0 and 1."""
        nn.init.constant_(self.gate, math.log(weight / (1 - weight)))

    def forward(self, tokens: Float[Tensor, "batch slots width"]) -> Float[Tensor, "batch width"]:
        """Return token 0 after the block.

        Args:
            tokens: the embedding, followed by its neighbors; rows of zeros are empty and ignored.
        """
        batch, _, width = tokens.shape
        empty = tokens.detach().abs().amax(dim=2) == 0
        normed = self.norm_attention(tokens)
        size = width // self.heads
        queries = self.query(normed[:, 0]).view(batch, self.heads, size) / math.sqrt(size)
        keys = self.key.weight.view(self.heads, size, width)
        key_queries = torch.einsum("bhs,hsw->bhw", queries, keys)
        offset = (queries * self.key.bias.view(self.heads, size)).sum(2, keepdim=True)
        scores = key_queries @ normed.transpose(1, 2) + offset
        weights = scores.masked_fill(empty[:, None, :], -math.inf).softmax(dim=2)
        read = torch.einsum("bhw,hsw->bhs", weights @ normed, self.value.weight.view(self.heads, size, width))
        attention = self.output(read.flatten(1) + self.value.bias)
        mlp = self.down(functional.gelu(self.up(self.norm_mlp(tokens[:, 0] + attention))))
        start = tokens[:, 0] if self.start == "embedding" else 2 * mixed(tokens, self.gate.sigmoid())
        return start + attention + mlp


def mixed(
    tokens: Float[Tensor, "batch slots width"], weight: float | Float[Tensor, ""]
) -> Float[Tensor, "batch width"]:
    """Return ``(1 − w) x_0 + w n(Σ_j x_j)``: the mixture of embeddings and the normalized means of their neighbors."""
    return (1 - weight) * tokens[:, 0] + weight * functional.normalize(tokens[:, 1:].sum(dim=1), dim=1)


class _MlpFusion(nn.Module):
    """A residual MLP on the embedding alone, as large as the block (6 d² + 6 d parameters)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)

    def forward(self, tokens: Float[Tensor, "batch slots width"]) -> Float[Tensor, "batch width"]:
        """Return the refined embedding; other tokens are ignored."""
        return tokens[:, 0] + self.down(functional.gelu(self.up(self.norm(tokens[:, 0]))))


class FusionModule(nn.Module):
    """Separate blocks for images and texts.

    >>> fusion = FusionModule(FusionSettings(512))                                             # doctest: +SKIP
    >>> refined = fusion("image", torch.cat([embeddings[:, None], found_texts], dim=1))        # doctest: +SKIP

    Args:
        settings: architecture.
        model: fingerprint of the model whose embeddings it was trained on, if known.
        trained: facts about the training, saved with the weights.
    """

    def __init__(self, settings: FusionSettings, model: str = "", trained: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.settings, self.model, self.trained = settings, model, dict(trained or {})
        modalities: tuple[By, ...] = ("image", "text")
        self.blocks = nn.ModuleDict()
        for modality in modalities if settings.kind != "mean" else ():
            if settings.refines(modality):
                mlp = settings.kind == "mlp"
                self.blocks[modality] = (
                    _MlpFusion(settings.width)
                    if mlp
                    else FusionBlock(settings.width, settings.start, settings.weight or 0.5)
                )

    def forward(self, modality: By, tokens: Float[Tensor, "batch slots width"]) -> Float[Tensor, "batch width"]:
        """Refine embeddings of one modality.

        Args:
            modality: modality of the embeddings.
            tokens: each embedding, followed by its neighbors (zeros for empty slots).

        Returns:
            Unit-norm refined embeddings; the normalized embeddings if this modality is not refined.

        Raises:
            ValueError: the width differs from the fusion's.
        """
        if tokens.shape[2] != self.settings.width:
            raise ValueError(f"tokens {tuple(tokens.shape)}, but the fusion is {self.settings.width} wide")
        if not self.settings.refines(modality):
            return functional.normalize(tokens[:, 0], dim=1)
        if self.settings.kind == "mean":  # RECO, Table 3, rows 5-8
            weight = self.settings.weight
            return functional.normalize(mixed(tokens, weight) if weight else tokens.sum(dim=1), dim=1)
        return functional.normalize(self.blocks[modality](tokens), dim=1)

    @property
    def fingerprint(self) -> str:
        """Digest of the settings and weights."""
        digest = hashlib.blake2b(json.dumps(asdict(self.settings), sort_keys=True).encode(), digest_size=16)
        for name, tensor in sorted(self.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def save(self, folder: str | Path) -> Path:
        """Write weights and record into a new folder, atomically.

        Raises:
            UserError: the folder exists.
        """
        with fresh_folder(folder, "fusion") as unfinished:
            save_file({name: tensor.contiguous() for name, tensor in self.state_dict().items()}, unfinished / _WEIGHTS)
            record = {"format": FUSION_FORMAT, "settings": asdict(self.settings), "model": self.model}
            write_json(unfinished / _RECORD, record | {"trained": self.trained})
            write_folder_checksums(unfinished)
        return Path(folder)

    @classmethod
    def open(cls, folder: str | Path) -> "FusionModule":
        """Open a saved fusion, on the CPU, for evaluation.

        Raises:
            UserError: the folder contains no fusion, or a file is missing or damaged.
        """
        folder = Path(folder)
        if not (folder / _RECORD).is_file():
            hint = f" Use the trained model: {folder / 'model'}." if (folder / "model" / _RECORD).is_file() else ""
            raise UserError(f"{folder}: no fusion ({_RECORD} is missing).{hint}")
        record = read_json(folder / _RECORD)
        if not isinstance(record, dict) or record.get("format") != FUSION_FORMAT:
            raise UserError(f"{folder / _RECORD}: not a fusion of this version. Train it again.")
        try:
            settings = {name: value for name, value in record["settings"].items() if name != "reads"}  # former option
            fusion = cls(FusionSettings(**settings), record["model"], record["trained"])
            fusion.load_state_dict(load_file(folder / _WEIGHTS))
        except (OSError, SafetensorError, RuntimeError, KeyError, TypeError, ValueError) as error:
            words = f"{folder}: the fusion cannot be opened ({one_line(error)}). Copy or train it again."
            raise UserError(words) from error
        check_checksums(folder)
        return fusion.eval()
