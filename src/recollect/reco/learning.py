"""Train a fusion on stored embeddings: the encoders are frozen, so no image is opened (RECO, section 3.2)."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from recollect.core.checksums import check_checksums, write_folder_checksums
from recollect.core.errors import UserError
from recollect.core.files import read_json, write_json
from recollect.core.places import public_place
from recollect.core.seeding import seed_default_generators, torch_generator
from recollect.core.types import Encoder
from recollect.core.validation import check_number, refuse
from recollect.data.sources.images import note
from recollect.index import NEAR, By, Index
from recollect.reco.block import FusionBlock, FusionModule, FusionSettings
from recollect.reco.neighbors import Neighbors, ScoreOf, balanced_weight, find_neighbors
from recollect.reco.newness import Disturbance, Newness
from recollect.reco.objective import CLIP_SCALE, TERMS, FusionObjective, LossTerm, Mask
from recollect.reco.pairs import Pairs
from recollect.training.assembly import Parts
from recollect.training.card import Subject
from recollect.training.checkpoints import Facts
from recollect.training.loop import train
from recollect.training.optimizer import Optimizer
from recollect.training.options import Recipe
from recollect.training.ranks import ProcessRanks
from recollect.training.run_folder import check_run_folder
from recollect.training.step import Inputs

_NEIGHBORS_FORMAT = 5
_FILE = "neighbors.safetensors"
_KEY = "key.json"

FusionPreset = Literal["reading", "paper"]
"""Defaults for training: best on held-out concepts, or RECO as published."""


@dataclass(frozen=True)
class FusionRecipe(Recipe):
    """All settings that affect a trained fusion.

    The defaults are the paper's (section 4.1), except those that teach a fusion to use its neighbors: its start, which
    pairs are not negatives, simulated newness, and which near-duplicates are skipped. The learning rate is a tenth of
    the paper's, so that the block's correction undoes less of what is read. `paper_recipe` has the paper's values.

    ``model.start`` is the frozen model, ``data`` the training pairs, and ``chunk`` the number of pairs fused at a time.

    Attributes:
        fusion: architecture of the fusion; its width is set to the model's.
        index: address of the index to read: a folder, or milvus://host:port/collection.
        terms: terms of the loss; those of modalities that are not refined are ignored.
        k: number of pictures each embedding reads (see `RetrievalEnhancedEncoder`).
        max_score: skip pictures with at least this cosine to a training pair.
        score_of: the cosine that ``max_score`` limits.
        mask: which pairs of a batch are not negatives of each other.
        newness: changes that make training pairs look new to the model.
        limit: maximum number of samples from each source.
        epochs: passes over the training pairs; determines ``steps``.
    """

    fusion: FusionSettings = field(default_factory=lambda: FusionSettings(1))
    index: str = ""
    terms: tuple[LossTerm, ...] = TERMS
    k: int = 10
    max_score: float = NEAR
    score_of: ScoreOf = "image"
    mask: Mask = "caption"
    newness: Newness = field(default_factory=lambda: Newness("offsets"))
    limit: int | None = None
    epochs: int = 10
    optimizer: Optimizer = field(default_factory=lambda: Optimizer(1e-4, weight_decay=1e-5, warmup=0.0))
    batch_size: int = 4096

    def check(self) -> None:
        """Check the options.

        Raises:
            UserError: an option is invalid; the message names it.
        """
        super().check()
        for option, value in (("--k", self.k), ("--epochs", self.epochs), ("--limit", self.limit)):
            if value is not None:
                check_number(option, value, least=1)
        check_number("--max-score", self.max_score, least=-1)
        self.newness.check()
        terms, modalities = " ".join(self.terms), self.fusion.modalities
        refuse(
            (not self.active_terms, f"terms {terms}: none of them refines modalities {modalities}. Add a term."),
            (self.fusion.kind == "mean", "--kind mean: a mean has nothing to learn; use it without training."),
        )

    @property
    def active_terms(self) -> tuple[LossTerm, ...]:
        """The loss terms of the refined modalities (Table 4: with one modality, one term)."""
        modalities = self.fusion.modalities
        return tuple(term for term in TERMS if term in self.terms and modalities in {"both", term})


def paper_recipe() -> FusionRecipe:
    """Return RECO as published: starts at the embedding, all other pairs are negatives, no simulated newness."""
    return FusionRecipe(
        fusion=FusionSettings(1, start="embedding"),
        score_of="searched",
        mask="none",
        newness=Newness("none"),
        optimizer=Optimizer(1e-3, weight_decay=1e-5, warmup=0.0),
    )


FUSION_PRESETS: Mapping[FusionPreset, Callable[[], FusionRecipe]] = {"reading": FusionRecipe, "paper": paper_recipe}


_SUBJECT = Subject(
    "A fusion, which refines embeddings of this model by their neighbors in an index (RECO)",
    """from recollect import FusionModule, Index, RetrievalEnhancedEncoder, load_model

model, index = load_model("MODEL"), Index.open("INDEX")
encoder = RetrievalEnhancedEncoder(model, index, FusionModule.open("THIS-FOLDER"))""",
)


class FusionTowers(nn.Module):
    """Adapts a fusion to the trainer: maps tokens to refined and original embeddings, concatenated."""

    def __init__(self, fusion: FusionModule) -> None:
        super().__init__()
        self.fusion = fusion

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.fusion.parameters()).device

    @property
    def encoder(self) -> None:
        """None, since a fusion embeds nothing by itself."""

    def encode_images(self, pixels: Float[Tensor, "batch slots width"]) -> Float[Tensor, "batch two_widths"]:
        """Return refined and original image embeddings."""
        return torch.cat([self.fusion("image", pixels).float(), pixels[:, 0].float()], dim=1)

    def encode_texts(self, tokens: dict[str, Tensor]) -> Float[Tensor, "batch two_widths"]:
        """Return refined and original text embeddings."""
        return torch.cat([self.fusion("text", tokens["tokens"]).float(), tokens["tokens"][:, 0].float()], dim=1)

    def set_scale(self, scale: float, bias: float | None = None) -> None:
        """Record the learned temperature."""
        self.fusion.trained["scale"] = scale

    def save(self, folder: str | Path) -> Path:
        """Write the fusion."""
        return self.fusion.save(folder)

    def publish(self, folder: str | Path) -> Path:
        """Write the fusion, like `save`."""
        return self.save(folder)


def train_fusion(
    recipe: FusionRecipe,
    encoder: Encoder,
    pairs: Pairs,
    out: Path,
    *,
    resume: bool = False,
    device: str | None = None,
) -> Path:
    """Find the neighbors of the training pairs, or reuse stored ones, and train by ``recipe``.

    The run is written to ``out``, the neighbors to ``OUT.neighbors``.

    Args:
        recipe: settings; width, steps and a batch size above the number of pairs are adjusted.
        encoder: the frozen model.
        pairs: training pairs embedded by the model.
        out: folder of the run.
        resume: continue from the last checkpoint.
        device: device to compute on (default: the best available).

    Returns:
        Folder of the trained fusion (`FusionModule.open`).

    Raises:
        UserError: the index belongs to another model or has fewer than k pictures, or an option is invalid.
    """
    batch = min(recipe.batch_size, len(pairs))
    settings = replace(recipe.fusion, width=encoder.width)
    steps = max(1, round(recipe.epochs * len(pairs) / batch))
    index = Index.open(recipe.index)
    # The address without the user's password, since the recipe is written.
    recipe = replace(recipe, index=index.address, fusion=settings, steps=steps, batch_size=batch)
    recipe.check()
    check_run_folder(out, recipe, resume)  # before the neighbors of an existing run are overwritten
    folder = out.with_name(f"{out.name}.neighbors")
    neighbors = _stored_neighbors(recipe, pairs, index, folder)
    scale = recipe.objective.scale or encoder.scale or CLIP_SCALE
    name = pairs.sources[0] if pairs.sources else "pairs"

    def facts() -> Facts:
        key = read_json(folder / _KEY)
        seen = {"pairs": len(pairs), "content": key["pairs"]}
        return {name: seen, recipe.index: {"content": key["index"]}}

    def assemble(given: Recipe, process: ProcessRanks, saved: Path | None) -> Parts:
        seed_default_generators(given.seed)
        trained = {
            "k": recipe.k,
            "index": public_place(recipe.index),
            "pairs": len(pairs),
            "terms": list(recipe.active_terms),
            "mask": recipe.mask,
            "newness": asdict(recipe.newness),
        }
        fusion = FusionModule.open(saved) if saved else FusionModule(settings, pairs.model, trained)
        for modality, block in fusion.blocks.items() if not saved and settings.weight is None else ():
            if isinstance(block, FusionBlock) and block.start == "gate":
                block.set_weight(balanced_weight(neighbors, "image" if modality == "image" else "text"))
        towers = FusionTowers(fusion.train())
        feed = _feed(neighbors, recipe, process)
        objective = FusionObjective(recipe.active_terms, scale)
        return Parts(towers, objective, feed, lambda steps: {name: steps * batch}, facts(), _SUBJECT)

    return train(recipe, out, resume=resume, device=device, assemble=assemble)


def _stored_neighbors(recipe: FusionRecipe, pairs: Pairs, index: Index, folder: Path) -> Neighbors:
    """Return stored neighbors of the same pairs in the same version of the index, or find and store them."""
    fusion = recipe.fusion
    key: dict[str, Any] = {
        "format": _NEIGHBORS_FORMAT,
        "pairs": _digest(pairs),
        "index": index.fingerprint,
        "k": recipe.k,
        "max_score": recipe.max_score,
        "score_of": recipe.score_of,
        "reads": [fusion.kind != "mlp", fusion.search, fusion.read, fusion.modalities],
    }
    if (folder / _KEY).is_file() and read_json(folder / _KEY) == key:
        try:
            check_checksums(folder)
            return Neighbors.open(folder / _FILE)
        except UserError as error:
            note(f"{error} Finding the neighbors again.")
    neighbors = find_neighbors(pairs, index, fusion, recipe.k, recipe.max_score, recipe.score_of)
    (folder / _KEY).unlink(missing_ok=True)
    neighbors.save(folder / _FILE)
    write_json(folder / _KEY, key)
    write_folder_checksums(folder)
    return neighbors


def _digest(pairs: Pairs) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for array in (pairs.images, pairs.texts):
        digest.update(np.ascontiguousarray(array).data)
    digest.update(repr((list(pairs.pictures), list(pairs.captions))).encode())
    return digest.hexdigest()


def _feed(neighbors: Neighbors, recipe: FusionRecipe, process: ProcessRanks) -> Any:
    """Return batches without repetition within an epoch, each a function of the seed and the step."""
    per_epoch = max(1, len(neighbors) // recipe.batch_size)
    share = recipe.batch_size // process.size
    mine = slice(process.rank * share, (process.rank + 1) * share)
    columns = _GROUPS[recipe.mask]

    def feed(start: int, stop: int) -> Iterator[Inputs]:
        epoch, order = -1, torch.empty(0, dtype=torch.int64)
        for step in range(start, stop):
            if step // per_epoch != epoch:
                epoch = step // per_epoch
                order = torch.randperm(len(neighbors), generator=torch_generator(recipe.seed, "fusion epoch", epoch))
            first = step % per_epoch * recipe.batch_size
            pairs = order[first : first + recipe.batch_size][mine]
            disturb = Disturbance(recipe.newness, recipe.seed, step)
            images, texts = (_tokens(neighbors, recipe, disturb, modality, pairs) for modality in ("image", "text"))
            groups = torch.stack([getattr(neighbors, name)[pairs] for name in columns], dim=1) if columns else None
            yield Inputs(images, {"tokens": texts}, groups)

    return feed


_GROUPS: Mapping[Mask, tuple[str, ...]] = {
    "none": (),
    "caption": ("captions",),
    "id": ("pictures",),
    "both": ("captions", "pictures"),
}


def _tokens(
    neighbors: Neighbors, recipe: FusionRecipe, disturb: Disturbance, modality: By, pairs: Tensor
) -> Float[Tensor, "some slots width"]:
    """Return the input of the fusion for some pairs in a step."""
    tokens = neighbors.tokens(modality, pairs)
    if recipe.newness.kind == "none":
        return tokens
    captions = neighbors.token_captions(modality, pairs)
    return disturb(tokens, (modality, *recipe.fusion.taken(modality)), captions)
