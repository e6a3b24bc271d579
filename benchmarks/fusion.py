"""Does a fusion read what only the memory knows (RECO)? Ways to train it, on real emoji, product names and characters.

    python benchmarks/fusion.py --world emoji --split validation --seeds 0 1 2 --out results/reco/emoji-validation.json

A frozen base model is trained without some concepts (emoji, product names, characters). A memory holds pairs of the
concepts that it was trained on (A), and grows by pairs of the withheld ones (B) after the fusion was trained on A.
Asked are other pictures of the withheld concepts, in styles or faces that no training and no memory has where there are
any. ``--split validation`` withholds concepts of the training split, for choices; ``--split test`` those of the test.

The base of emoji and products is what a laptop trains in half a minute: whitened k-means patches (Coates and Ng, 2011),
on which a small head beside a bag of words is trained by the sigmoid loss. That of characters is the convnet of
``recollect-papers reco/table-3 --scale small``. Fusions are trained and asked by the package itself.
"""

import argparse
import hashlib
import io
import json
import math
import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from recollect.core.files import atomic_path
from recollect.core.seeding import text_fold
from recollect.core.types import EncoderBase
from recollect.evaluation.entities import harmonic_mean
from recollect.evaluation.results import summarise
from recollect.index import Index
from recollect.index.rows import COLUMNS
from recollect.objectives import sigmoid_contrastive
from recollect.reco.block import FusionModule, FusionSettings
from recollect.reco.crossfit import Fold
from recollect.reco.encoder import RetrievalEnhancedEncoder
from recollect.reco.learning import FusionRecipe, paper_recipe, train_fusion
from recollect.reco.newness import Newness, NewnessKind
from recollect.reco.pairs import Pairs
from recollect.training.options import Data
from recording import this_command

WIDTH, EDGE, PATCH, CENTROIDS = 128, 32, 6, 384
HELD_STYLES = ("noto", "fluent_flat", "openmoji_line")
VALIDATION_CONCEPTS = 300
K = 10
FOLDS = 3


@dataclass(frozen=True)
class World:
    """A frozen model's embeddings of everything: what is trained on, remembered and asked.

    Attributes:
        pairs: of memory A, which are also the fusion's training pairs unless ``training`` has others.
        grown: of memory B alone, the withheld concepts.
        queries: image embeddings.
        targets: name of each query.
        names: text embeddings.
        seen: of each name, whether the model was trained on it.
        scale: the model's inverse temperature.
        training: the fusion's training pairs where they are not those of memory A.
        folds: trains so many more base models, each without a part of the captions, and embeds the pairs with each.
    """

    pairs: Pairs
    grown: Pairs
    queries: Tensor
    targets: Tensor
    names: Tensor
    seen: Tensor
    scale: float
    training: Pairs | None = None
    folds: Callable[[int], list[Fold]] | None = None

    @property
    def content(self) -> str:
        """Changes whenever any embedding, caption or id does."""
        made = hashlib.blake2b(digest_size=8)
        for pairs in (self.pairs, self.grown, *([] if self.training is None else [self.training])):
            made.update(repr((list(pairs.ids), list(pairs.captions))).encode())
            made.update(np.ascontiguousarray(pairs.image_vectors).data)
            made.update(np.ascontiguousarray(pairs.text_vectors).data)
        for tensor in (self.queries, self.targets, self.names, self.seen):
            made.update(np.ascontiguousarray(tensor.numpy()).data)
        return made.hexdigest()


# The base model -------------------------------------------------------------------------------------------------------


def read_pictures(path: Path) -> np.ndarray:
    """A Parquet file's pictures at 32 × 32."""
    values = pq.read_table(path, columns=["image"])["image"].to_pylist()
    pictures = np.empty((len(values), EDGE, EDGE, 3), np.uint8)
    for row, value in enumerate(values):
        data = value["bytes"] if isinstance(value, dict) else value
        picture = Image.open(io.BytesIO(data)).convert("RGB").resize((EDGE, EDGE), Image.Resampling.BICUBIC)
        pictures[row] = np.asarray(picture)
    return pictures


class PatchFeatures:
    """Whitened patches, softly assigned to k-means centroids and pooled 2 × 2, and a 4 × 4 colour picture.

    Args:
        pictures: to draw patches from.
    """

    def __init__(self, pictures: np.ndarray) -> None:
        rng = np.random.default_rng(0)
        rows, corners = rng.integers(0, len(pictures), 200_000), rng.integers(0, EDGE - PATCH + 1, (200_000, 2))
        patches = np.stack(
            [pictures[row, y : y + PATCH, x : x + PATCH].reshape(-1) for row, (y, x) in zip(rows, corners, strict=True)]
        ).astype(np.float32)
        patches = (patches - patches.mean(1, keepdims=True)) / np.sqrt(patches.var(1, keepdims=True) + 10)
        values, vectors = np.linalg.eigh(np.cov(patches.T))
        self.mean = torch.from_numpy(patches.mean(0))
        self.whiten = torch.from_numpy(((vectors / np.sqrt(values + 0.1)) @ vectors.T).astype(np.float32))
        white = (torch.from_numpy(patches) - self.mean) @ self.whiten
        order = torch.randperm(len(white), generator=torch.Generator().manual_seed(0))
        self.centroids = white[order[:CENTROIDS]].clone()
        for _ in range(12):
            nearest = torch.cdist(white[:100_000], self.centroids).argmin(1)
            sums = torch.zeros_like(self.centroids).index_add_(0, nearest, white[:100_000])
            counts = torch.bincount(nearest, minlength=CENTROIDS)[:, None]
            self.centroids = torch.where(counts > 0, sums / counts.clamp_min(1), self.centroids)

    def __call__(self, pictures: np.ndarray) -> Tensor:
        parts = []
        for start in range(0, len(pictures), 64):
            images = torch.from_numpy(pictures[start : start + 64]).permute(0, 3, 1, 2).float()
            unfolded = functional.unfold(images, PATCH, stride=2).transpose(1, 2)
            count, places, _ = unfolded.shape
            patches = unfolded.reshape(count, places, 3, PATCH, PATCH).permute(0, 1, 3, 4, 2).reshape(
                count * places, -1
            )  # fmt: skip
            patches = patches - patches.mean(1, keepdim=True)
            patches = patches / torch.sqrt(patches.var(1, unbiased=False, keepdim=True) + 10)
            distances = torch.cdist((patches - self.mean) @ self.whiten, self.centroids)
            soft = (distances.mean(1, keepdim=True) - distances).clamp_min(0).reshape(count, places, CENTROIDS)
            edge = math.isqrt(places)
            pooled = functional.adaptive_avg_pool2d(soft.reshape(count, edge, edge, CENTROIDS).permute(0, 3, 1, 2), 2)
            colour = functional.adaptive_avg_pool2d(images / 255, 4)
            parts.append(torch.cat([pooled.flatten(1), colour.flatten(1)], 1))
        return torch.cat(parts)


def features_of(data: Path, work: Path, names: Sequence[str]) -> dict[str, tuple[Any, Tensor]]:
    """Columns and patch features of some files, made once."""
    made = hashlib.blake2b(digest_size=8)
    for name in names:
        made.update((data / f"{name}.parquet").read_bytes())
    cache = work / f"features-{made.hexdigest()}.npz"
    paths = {name: data / f"{name}.parquet" for name in names}
    tables = {name: pq.read_table(path).drop_columns(["image"]).to_pandas() for name, path in paths.items()}
    if not cache.exists():
        pictures = {name: read_pictures(path) for name, path in paths.items()}
        pool = np.concatenate([pictures[name][(tables[name].split == "train").values] for name in names])
        features = PatchFeatures(pool)
        work.mkdir(parents=True, exist_ok=True)
        with atomic_path(cache) as unfinished, unfinished.open("wb") as file:
            np.savez(file, **{name: features(each).numpy() for name, each in pictures.items()})  # type: ignore[arg-type]
    with np.load(cache) as stored:
        return {name: (tables[name], torch.from_numpy(stored[name])) for name in names}


class Base(nn.Module):
    """A head on frozen features beside a bag of words; embeds features and captions."""

    def __init__(self, features: Tensor, captions: Sequence[Sequence[str]]) -> None:
        super().__init__()
        counts = Counter(word for texts in captions for text in texts for word in words_of(text))
        self.words = {word: place + 1 for place, word in enumerate(sorted(w for w, n in counts.items() if n >= 2))}
        self.mean, self.std = features.mean(0), features.std(0) + 1e-4
        self.linear, self.up = nn.Linear(features.shape[1], WIDTH), nn.Linear(features.shape[1], 512)
        self.down = nn.Linear(512, WIDTH)
        self.bag = nn.EmbeddingBag(len(self.words) + 1, 128, mode="sum", padding_idx=0)
        nn.init.normal_(self.bag.weight, std=0.5)
        self.text_up, self.text_down = nn.Linear(128, 256), nn.Linear(256, WIDTH)
        self.log_scale, self.bias = nn.Parameter(torch.tensor(10.0).log()), nn.Parameter(torch.tensor(-10.0))

    def tokens(self, text: str, length: int = 24) -> list[int]:
        known = [self.words[word] for word in words_of(text) if word in self.words][:length]
        return known + [0] * (length - len(known))

    def images(self, features: Tensor) -> Tensor:
        given = (features - self.mean) / self.std
        dropped = functional.dropout(given, 0.2, self.training)
        return functional.normalize(self.linear(given) + self.down(functional.gelu(self.up(dropped))), dim=1)

    def texts(self, tokens: Tensor) -> Tensor:
        return functional.normalize(self.text_down(functional.gelu(self.text_up(self.bag(tokens)))), dim=1)

    @torch.no_grad()
    def embed(self, features: Tensor, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Embeddings of images and of texts."""
        images = torch.cat([self.images(part) for part in features.split(2048)]) if len(features) else features
        return images, self.texts(torch.tensor([self.tokens(text) for text in texts]))


def words_of(text: str) -> list[str]:
    return re.findall("[a-z]+", text.lower())


def train_base(features: Tensor, captions: Sequence[Sequence[str]], seed: int) -> Base:
    """Sigmoid loss, batch 512, 400 steps."""
    torch.manual_seed(seed)
    base, steps, batch = Base(features, captions), 400, 512
    tokens = [[base.tokens(text) for text in texts] for texts in captions]
    temperatures = [base.log_scale, base.bias]
    weights = [parameter for name, parameter in base.named_parameters() if name not in ("log_scale", "bias")]
    groups = [{"params": weights, "weight_decay": 1e-2}, {"params": temperatures, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    generator, rng = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    for step in range(steps):
        factor = min(1.0, (step + 1) / 20) * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group, rate in zip(optimiser.param_groups, (1e-3, 1e-2), strict=True):
            group["lr"] = rate * factor
        rows = torch.randperm(len(features), generator=generator)[:batch]
        texts = torch.tensor([tokens[row][rng.integers(len(tokens[row]))] for row in rows.tolist()])
        loss = sigmoid_contrastive(base.images(features[rows]), base.texts(texts), base.log_scale.exp(), base.bias)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
    return base.eval()


# Worlds ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """Rows of a table as base models are trained on them.

    Attributes:
        features: of the pictures of all rows.
        captions: of all rows; the first names the concept.
        trained: rows that base models are trained on.
        seed: of base models.
        work: where they are kept.
    """

    features: Tensor
    captions: Sequence[Sequence[str]]
    trained: np.ndarray
    seed: int
    work: Path

    def base(self, rows: np.ndarray | None = None) -> Base:
        """A base model of these rows, or of all that are trained on."""
        rows = self.trained if rows is None else rows
        features, captions = self.features[rows], [self.captions[row] for row in rows]
        made = hashlib.blake2b(np.ascontiguousarray(features.numpy()).data, digest_size=8)
        made.update(repr((captions, self.seed)).encode())
        path = self.work / f"base-{made.hexdigest()}.safetensors"
        if path.exists():
            base = Base(features, captions)
            base.load_state_dict(load_file(path))
            return base.eval()
        base = train_base(features, captions, self.seed)
        with atomic_path(path) as unfinished:
            save_file(base.state_dict(), unfinished)
        return base


def real_world(told: Told, grown: np.ndarray, asked: np.ndarray, what: str) -> World:
    """A world from rows of a table: those trained on, those by which the memory grows, and those asked for."""
    features, trained, captions = told.features, told.trained, [each[0] for each in told.captions]
    base = told.base()

    def folds(count: int) -> list[Fold]:
        part = np.array([text_fold(captions[row], count) for row in trained])
        kept = np.array([int(id.rpartition(":")[2]) for id in pairs.ids])
        part_of_kept = np.array([text_fold(captions[row], count) for row in kept])
        made = []
        for number in range(count):
            other = told.base(trained[part != number])
            made.append(Fold(replace(embedded(other, features, captions, kept, f"{what} {number}"), ids=pairs.ids),
                             part_of_kept == number))  # fmt: skip
        return made

    pairs = pairs_of(base, features, captions, trained, what)
    names = sorted({captions[row] for row in asked})
    place = {name: number for number, name in enumerate(names)}
    known = {captions[row] for row in trained}
    return World(
        pairs,
        pairs_of(base, features, captions, grown, what),
        base.embed(features[asked], names)[0],
        torch.tensor([place[captions[row]] for row in asked]),
        base.embed(features[:0], names)[1],
        torch.tensor([name in known for name in names]),
        float(base.log_scale.detach().exp()),
        folds=folds,
    )


def embedded(base: Base, features: Tensor, captions: Sequence[str], rows: np.ndarray, what: str) -> Pairs:
    """All of some rows as pairs."""
    texts = [captions[row] for row in rows]
    images, vectors = base.embed(features[rows], texts)
    ids = [f"{what}:{row}" for row in rows]
    return Pairs(images.numpy(), vectors.numpy(), texts, ids, what, sources=[what] * len(ids))


def pairs_of(base: Base, features: Tensor, captions: Sequence[str], rows: np.ndarray, what: str) -> Pairs:
    """Embedded pairs of some rows, without those whose caption has no word that the base model knows."""
    pairs = embedded(base, features, captions, rows, what)
    return pairs.take(np.flatnonzero(np.linalg.norm(pairs.texts, axis=1) > 0.5).tolist())


def emoji(data: Path, work: Path, split: str, seed: int) -> World:
    """Concepts withheld, in styles that are withheld too; aerial photos are trained on beside them."""
    tables = features_of(data, work, ("emoji", "rsicd_captions"))
    (table, drawn), (photos, seen_from_above) = tables["emoji"], tables["rsicd_captions"]
    concept, held = table.codepoint.values, table.domain.isin(HELD_STYLES).values
    train, clear = (table.split == "train").values, ~table.ambiguous.values.astype(bool)
    withheld = ~train
    if split == "validation":
        concepts = np.unique(concept[train])
        chosen = np.random.default_rng(12).permutation(concepts)[:VALIDATION_CONCEPTS]
        withheld = np.isin(concept, chosen)
        train = train & ~withheld
    above = np.flatnonzero((photos.split == "train").values) + len(table)
    features = torch.cat([drawn, seen_from_above])
    texts = [list(each) for each in (*table.captions, *photos.captions)]
    trained = np.concatenate([np.flatnonzero(train & ~held), above])
    asked = np.flatnonzero((train | withheld) & held & clear)
    told = Told(features, texts, trained, seed, work)
    return real_world(told, np.flatnonzero(withheld & ~held), asked, f"emoji-{seed}")


def fashion(data: Path, work: Path, split: str, seed: int) -> World:
    """Product names withheld that have several pictures: half of these go into the memory, the others are asked."""
    table, features = features_of(data, work, ("fashion",))["fashion"]
    captions = [each[0] for each in table.captions]
    spot = {"validation": "val", "test": "test"}[split]
    members: dict[str, list[int]] = {}
    for row, caption in enumerate(captions):
        members.setdefault(caption, []).append(row)
    trained, grown, asked = [], [], []
    for rows in members.values():
        where = table.split[rows[0]]
        if where == "train":
            kept = len(rows) - (len(rows) >= 3)
            trained += rows[:kept]
            asked += rows[kept:]
        elif where == spot:
            kept = max(1, len(rows) // 2)
            grown += rows[:kept]
            asked += rows[kept:]
    told = Told(features, [[caption] for caption in captions], np.array(trained), seed, work)
    return real_world(told, np.array(grown), np.array(asked), f"fashion-{seed}")


def characters(work: Path, split: str, seed: int, *, new: bool) -> World:
    """Half of the characters are trained on. The study's fusion also meets pairs that the model has not: ``new``."""
    from recollect.reco.pairs import embed_pairs
    from recollect_papers.reco.glyphs import glyph_entities, memory_sources
    from recollect_papers.reco.world import benches
    from recollect_papers.study import StudyOptions

    options = StudyOptions("small", work / "glyphs", seeds=seed + 1, workers=1)
    bench = list(benches(options, "convnet", split))[seed]
    model, task, seen = bench.model, *glyph_entities(split)
    query = task.query
    images = model.embed_images([query[row].image for row in range(len(query))])
    stored = [embed_pairs(model, (source,), None, 0.0) for source in memory_sources(4, 1)]
    order = [source.name for source in memory_sources(4, 1)]
    parts = dict(zip(order, stored, strict=True))
    known = parts["glyph memory train"]
    training = bench.pairs if new else known
    grown = join([part for name, part in parts.items() if name != "glyph memory train"])
    return World(
        known, grown, images, torch.tensor([query[row].label for row in range(len(query))]),
        model.embed_texts(list(task.class_names)), torch.from_numpy(seen), model.scale or 10.0, training,
    )  # fmt: skip


def join(parts: Sequence[Pairs]) -> Pairs:
    """Pairs of several kinds, without what training does not read."""
    ids, captions = ([value for part in parts for value in getattr(part, name)] for name in ("pictures", "captions"))
    images, texts = (np.concatenate([getattr(part, side) for part in parts]) for side in ("images", "texts"))
    return Pairs(images, texts, captions, ids, parts[0].model)


# Fusions --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Frozen(EncoderBase):
    """The base model as the package asks for it; everything is embedded already."""

    fingerprint: str
    scale: float | None = None  # the default takes the place of the protocol's property
    width: int = WIDTH


@dataclass(frozen=True)
class Way:
    """One way to train.

    Attributes:
        recipe: of the fusion.
        folds: more base models, for cross-fitting.
    """

    recipe: FusionRecipe
    folds: int = 0


def ways_to_train() -> dict[str, Way | None]:
    """The ways to train, by name; of ``none`` and ``mean`` nothing is trained."""
    crossed = {
        "paper, crossfit": replace(paper_recipe(), batch_size=512, max_score=1.01),
        "gate, crossfit": _reading("none"),
        "gate, crossfit, offsets 2": _reading("offsets"),
    }
    plain = {name: None if recipe is None else Way(recipe) for name, recipe in recipes().items()}
    return plain | {name: Way(recipe, FOLDS) for name, recipe in crossed.items()}


def _reading(newness: NewnessKind) -> FusionRecipe:
    return replace(FusionRecipe(), batch_size=512, max_score=1.01, score_of="searched", newness=Newness(newness))


def recipes() -> dict[str, FusionRecipe | None]:
    """What is trained on the base model's own embeddings."""
    paper = replace(paper_recipe(), batch_size=512, max_score=1.01)
    masked = replace(paper, mask="caption")

    def way(start: str, kind: str = "none", strength: float = 2.0, share: float = 0.5, **more: Any) -> FusionRecipe:
        settings = replace(paper.fusion, start=start)  # type: ignore[arg-type]
        return replace(masked, fusion=settings, newness=Newness(kind, strength, share), **more)  # type: ignore[arg-type]

    arms: dict[str, FusionRecipe | None] = {
        "none": None,
        "mean": None,
        "mlp": replace(paper, fusion=FusionSettings(1, "mlp")),
        "paper, score 0.94": paper_recipe(),
        "paper, score 0.94, batch 512": replace(paper, max_score=0.94),
        "paper": paper,
        "paper, masked": masked,
    }
    arms |= {f"{start}, masked": way(start) for start in ("mean", "gate")}
    arms |= {f"{start}, offsets 2": way(start, "offsets") for start in ("embedding", "mean", "gate")}
    arms |= {f"gate, offsets {strength:g}": way("gate", "offsets", strength) for strength in (1.0, 3.0, 4.0)}
    arms |= {f"gate, rotation {strength:g}": way("gate", "rotation", strength) for strength in (1.0, 2.0)}
    arms["mean, rotation 1"] = way("mean", "rotation", 1.0)
    arms["gate, offsets 2, share 1"] = way("gate", "offsets", 2.0, 1.0)
    arms["gate, offsets 2, no mask"] = replace(way("gate", "offsets"), mask="none")
    arms["gate, offsets 2, score 0.94"] = way("gate", "offsets", max_score=0.94, score_of="image")
    arms["gate, offsets 2, score 0.94 of what is searched"] = way("gate", "offsets", max_score=0.94)
    arms["gate, offsets 2, 20 epochs"] = way("gate", "offsets", epochs=20)
    arms["gate, offsets 2, batch 2048"] = way("gate", "offsets", batch_size=2048)
    return arms


def slug(arm: str, way: Way | None) -> str:
    """A file's name for an arm, other whenever the arm is made otherwise."""
    made = hashlib.blake2b(json.dumps(way and _told(way), sort_keys=True).encode(), digest_size=4).hexdigest()
    return f"{re.sub(r'[^a-z0-9.]+', '-', arm)}-{made}"


def fuse(world: World, arm: str, way: Way | None, seed: int, folder: Path) -> FusionModule | None:
    """The fusion of an arm, trained with memory A."""
    width = world.queries.shape[1]
    if way is None:
        return FusionModule(FusionSettings(width, "mean")) if arm == "mean" else None
    assert not way.folds or world.folds is not None, "this world trains no more base models"
    folds = world.folds(way.folds) if way.folds and world.folds else []
    recipe = replace(
        way.recipe, seed=seed, index=str(folder / "A"), k=K, data=Data(sources=("pairs",)), checkpoint_every=10**9
    )
    frozen = Frozen(world.pairs.model, world.scale, width)
    pairs = world.pairs if world.training is None else world.training
    made, found = (folder / "fusions" / name for name in (slug(arm, way), "last.neighbours"))
    if found.exists():  # what pairs find is the same for most arms; where it is not, it is found anew
        shutil.copytree(found, made.with_name(f"{made.name}.neighbours"), dirs_exist_ok=True)
    resume = made.exists()
    model = train_fusion(recipe, frozen, pairs, made, folds=folds, resume=resume, device="cpu")  # type: ignore[arg-type]
    shutil.rmtree(found, ignore_errors=True)
    shutil.move(made.with_name(f"{made.name}.neighbours"), found)
    return FusionModule.open(model)


def measure(world: World, fusion: FusionModule | None, folder: Path) -> dict[str, float]:
    """Top-1 of new concepts among their own names in every mode; entities: all names are candidates; in percent."""
    frozen = Frozen(world.pairs.model, world.scale, world.queries.shape[1])
    found = {}
    for memory in ("A", "B"):
        images, names = refined_images, refined_names = world.queries, world.names
        if fusion is not None:
            encoder = RetrievalEnhancedEncoder(frozen, Index.open(folder / memory), fusion, "both", K)  # type: ignore[arg-type]
            refined_images, refined_names = encoder.refine("image", images), encoder.refine("text", names)
        for mode in ("image", "text", "both"):
            scores = (images if mode == "text" else refined_images) @ (names if mode == "image" else refined_names).T
            known = world.seen[world.targets]
            among_new = scores[~known].masked_fill(world.seen, -9).argmax(1) == world.targets[~known]
            right = (scores.argmax(1) == world.targets).float()
            seen, unseen = 100 * right[known].mean().item(), 100 * right[~known].mean().item()
            found |= {
                f"{memory} {mode}": 100 * among_new.float().mean().item(),
                f"{memory} {mode} entities seen": seen,
                f"{memory} {mode} entities unseen": unseen,
                f"{memory} {mode} entities harmonic": harmonic_mean(seen, unseen),
            }
    return found


def prepare(world: World, folder: Path) -> None:
    """Memories A and B."""
    for name, parts in (("A", [world.pairs]), ("B", [world.pairs, world.grown])):
        if not (folder / f"{name}.done").exists():
            index = Index.create(folder / name, width=world.queries.shape[1], model=world.pairs.model)
            for part in parts:
                for table in part.index().store.scan(COLUMNS):
                    index.store.upsert(table)
            (folder / f"{name}.done").touch()


def opened(options: argparse.Namespace, seed: int) -> World:
    """One of the worlds."""
    if options.world == "emoji":
        return emoji(options.data, options.work, options.split, seed)
    if options.world == "fashion":
        return fashion(options.data, options.work, options.split, seed)
    return characters(options.work, options.split, seed, new=options.world == "characters-new")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", choices=["emoji", "fashion", "characters", "characters-new"], default="emoji")
    parser.add_argument("--split", choices=["validation", "test"], default="validation")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the Parquet files")
    parser.add_argument("--work", type=Path, default=Path("runs/fusion-benchmark"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", help="some of the ways to train; all by default")
    parser.add_argument("--out", type=Path, help="results, as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ways = ways_to_train()
    wanted = options.arms or list(ways)
    results: dict[str, list[dict[str, float]]] = {arm: [] for arm in wanted}
    for seed in options.seeds:
        world = opened(options, seed)
        folder = options.work / f"{options.world}-{options.split}-{seed}-{world.content}"
        stored = {arm: folder / "figures" / f"{slug(arm, ways[arm])}.json" for arm in wanted}
        prepare(world, folder)
        counts = f"{len(world.pairs):,} pairs, {len(world.grown):,} grown, {len(world.queries):,} queries"
        print(f"seed {seed}: {counts}, {int((~world.seen).sum()):,} new names of {len(world.seen):,}", flush=True)
        for arm, path in stored.items():
            if not path.exists():
                path.parent.mkdir(exist_ok=True)
                path.write_text(json.dumps(measure(world, fuse(world, arm, ways[arm], seed, folder), folder)))
            results[arm].append(json.loads(path.read_text()))
            last = results[arm][-1]
            print(f"{arm:34s} {last['B both']:6.2f} (image {last['B image']:.2f}, text {last['B text']:.2f}; A "
                  f"{last['A both']:.2f}) entities {last['B both entities harmonic']:.2f}", flush=True)  # fmt: skip
    if options.out:
        summary = {
            arm: {name: _spread([row[name] for row in rows]) for name in rows[0]} for arm, rows in results.items()
        }
        each = {arm: [{name: round(value, 2) for name, value in row.items()} for row in rows]
                for arm, rows in results.items()}  # fmt: skip
        settings = {arm: way and _told(way) for arm, way in ways.items() if arm in results}
        command = this_command()
        made = {
            "command": command,
            "seeds": options.seeds,
            "mean and std": summary,
            "each seed": each,
            "ways": settings,
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(made, indent=1) + "\n")


def _spread(values: Sequence[float]) -> list[float]:
    """Mean and sample standard deviation over seeds, 0 for one."""
    found = summarise(values)
    return [round(found.mean, 2), 0.0 if len(values) == 1 else round(found.std, 2)]


def _told(way: Way) -> dict[str, Any]:
    """What a way to train is made of."""
    recipe = way.recipe
    names = ("mask", "max_score", "score_of", "batch_size", "epochs")
    fusion = {"kind": recipe.fusion.kind, "start": recipe.fusion.start}
    told = fusion | {name: getattr(recipe, name) for name in names} | {"newness": asdict(recipe.newness)}
    return told | {"folds": way.folds}


if __name__ == "__main__":
    main()
