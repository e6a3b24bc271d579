"""``efsa/real``: episodes on heads of the starter's towers, with captions of different quality.

One pool holds everyday photographs and emoji, whose concepts no head was trained on. Queries are the first captions of
Flickr8k's photographs, while episodes use the second ones, and the names of emoji, while episodes use their tags.
COCO's pictures are distractors. Learning rate and mixing weights are chosen on Flickr8k's validation pictures. Without
captions, episodes can use the names of ImageNet classes that the model ranks first for each picture.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from recollect.core.types import Kind
from recollect.efsa.batch import EpisodeBatch, EpisodeQuery, number_texts
from recollect.efsa.episodes import Episodes
from recollect.efsa.options import EpisodeOptions
from recollect.models import DualEncoder
from recollect.models.dual import Tower
from recollect_papers.engine import Column, Row, TableForm, TablesAndNotes, TableStudy
from recollect_papers.measurements import Measurements
from recollect_papers.real.arms import SMOKE_HEAD, open_runner, worlds
from recollect_papers.real.data import HELD_STYLES, RealData
from recollect_papers.real.heads import FeatureModel, HeadRecipe
from recollect_papers.study import StudyOptions

RATES = (1.5e-3, 5e-3, 2e-2)
"""Learning rates of episodes with otherwise default `EpisodeOptions`: adapters of rank 64, symmetric loss."""

WEIGHTS = (0.25, 0.5, 0.75)
"""Weights of the caption's cosine in mixtures with the picture's."""

WORLD = (
    "an MLP head on EfficientNet-Lite0 and MiniLM, trained on 20,090 everyday photographs with captions; a pool of "
    "1,000 photographs of Flickr8k, 500 of COCO, and emoji in three styles"
)

MAX_NAMES = 3
"""Number of class names that replace a missing caption."""

_BATCH = 64


class FeatureDual(DualEncoder):
    """Dual encoder around a model on features, to add adapters to its linear layers."""

    def __init__(self, model: FeatureModel) -> None:
        super().__init__()
        assert model.text is not None
        self.image_tower, self.text_head = model.image, model.text
        self.width, self.prefixes, self.preset, self._data = model.width, {}, "", model.data
        self.logit_scale = nn.Parameter(torch.tensor(float(model.scale or 10.0)).log())
        self.eval()

    def tokenize(self, texts: Sequence[str], kinds: Sequence[Kind] | Kind | None = None) -> dict[str, Tensor]:
        """Return features of texts."""
        return {"features": self._data.texts([text or "." for text in texts])}

    @property
    def longest_text(self) -> int | None:
        return None

    def text_lengths(self, texts: Sequence[str], kinds: Sequence[Kind] | Kind | None = None) -> list[int]:
        """Return zeros, since texts are not truncated."""
        return [0] * len(texts)

    def encode_images(self, pixels: Float[Tensor, "n ..."]) -> Float[Tensor, "n width"]:
        """Return unnormalized embeddings of image features."""
        return self.image_tower(pixels)

    def encode_texts(self, tokens: dict[str, Tensor]) -> Float[Tensor, "n width"]:
        """Return unnormalized embeddings of text features."""
        return self.text_head(tokens["features"])

    def add_prefixes(self, kinds: Sequence[Kind], *, length: int = 1, seed: int = 0) -> None:
        """Not supported."""
        raise NotImplementedError

    def tower_parameters(self, tower: Tower) -> Iterator[nn.Parameter]:
        """Yield the parameters of a head."""
        yield from (self.image_tower if tower == "image" else self.text_head).parameters()

    def _write(self, folder: Path) -> None:
        raise NotImplementedError

    def _record(self) -> dict[str, Any]:
        raise NotImplementedError

    def _reading(self) -> str:
        return "features"

    def _temperatures(self) -> Any:
        return self


@dataclass(frozen=True)
class Pool:
    """Pictures with captions, and queries.

    Attributes:
        images: image features.
        captions: caption of each picture for episodes, or "".
        queries: query texts.
        matches: rows of the pictures that match each query.
        domains: domain of each query.
    """

    images: Float[Tensor, "pictures features"]
    captions: Sequence[str]
    queries: Sequence[str]
    matches: Sequence[Int64[np.ndarray, " rows"]]
    domains: Sequence[str]


def open_pool(data: RealData, split: str) -> Pool:
    """Build the pool of a split; only split ``test`` includes emoji."""
    queried, distractors = data.roles.training[-1], data.roles.training[:-1]
    images, captions, queries, matches, domains, start = [], list[str](), list[str](), [], list[str](), 0
    each = data.get(queried)
    for row in each.rows(split):
        texts = each.captions[row]
        queries.append(texts[0])
        captions.append(texts[1] if len(texts) > 1 else "")
        matches.append(np.array([len(captions) - 1]))
        domains.append("photographs")
    images.append(each.images[each.rows(split)])
    for name in distractors:
        each = data.get(name)
        rows = each.rows("val")
        images.append(each.images[rows])
        captions += [each.captions[row][0] for row in rows]
    if split == "test":
        each, start = data.concepts(), len(captions)
        rows = np.flatnonzero(np.isin(each.domains, HELD_STYLES))
        images.append(each.images[rows])
        captions += [_tags(each.captions[row]) for row in rows.tolist()]
        for label in np.unique(each.labels[rows]):
            queries.append(each.class_names[label])
            matches.append(start + np.flatnonzero(each.labels[rows] == label))
            domains.append("emoji")
    return Pool(torch.cat(images), captions, queries, matches, domains)


def _tags(captions: tuple[str, ...]) -> str:
    """Return the tags of an emoji, or ""."""
    return captions[1].rpartition("suggesting ")[2] if len(captions) > 1 else ""


def named(model: FeatureModel, pool: Pool, names: Sequence[str]) -> Pool:
    """Return the pool with captions replaced by the names that the model ranks first for each picture."""
    cosines = model.embed_images(pool.images) @ model.embed_texts([f"a photo of a {name}." for name in names]).T
    first = cosines.topk(min(MAX_NAMES, len(names)), dim=1).indices.tolist()
    return replace(pool, captions=[", ".join(names[place] for place in places) for places in first])


def ranked(
    model: FeatureModel, pool: Pool, episodes: Mapping[str, EpisodeOptions], names: Sequence[str], k: int = 16
) -> dict[str, dict[str, float]]:
    """Measure R@1 in percent by domain, for every way of reranking the model's first ``k`` pictures.

    Ways are the model's own order, captions, mixtures of both, and episodes.
    """
    images, queries = model.embed_images(pool.images), model.embed_texts(pool.queries)
    scores, rows = (queries @ images.T).topk(k, dim=1)
    captions = model.embed_texts([caption or "." for caption in pool.captions])
    captioned = torch.tensor([bool(caption) for caption in pool.captions])[rows]
    # Pictures without a caption keep the score of the picture.
    caption_scores = torch.where(captioned, torch.einsum("qd,qkd->qk", queries, captions[rows]), scores)
    found = {"the model": _recalls(pool, rows, scores), "captions alone": _recalls(pool, rows, caption_scores)}
    for weight in WEIGHTS:
        mixed = weight * caption_scores + (1 - weight) * scores
        found[f"captions and pictures, {weight} of the caption"] = _recalls(pool, rows, mixed)
    for name, options in episodes.items():
        found[name] = _recalls(pool, rows, _adapted(model, pool, rows, scores, options))
    with_names = named(model, pool, names)
    name_scores = torch.einsum("qd,qkd->qk", queries, model.embed_texts(with_names.captions)[rows])
    found["ranked names alone"] = _recalls(pool, rows, name_scores)
    for name, options in episodes.items():
        found[f"ranked names, {name}"] = _recalls(pool, rows, _adapted(model, with_names, rows, scores, options))
    return found


def _adapted(model: FeatureModel, pool: Pool, rows: Tensor, scores: Tensor, options: EpisodeOptions) -> Tensor:
    """Return cosines by the models adapted to each query."""
    adapted, parts = Episodes(FeatureDual(model), options), []
    for start in range(0, len(rows), _BATCH):
        pictures, inverse = rows[start : start + _BATCH].unique(return_inverse=True)
        wordings, numbers = number_texts([pool.captions[row] for row in pictures.tolist()])
        queries = tuple(EpisodeQuery(((text, 1.0),)) for text in pool.queries[start : start + _BATCH])
        batch = EpisodeBatch(queries, pool.images[pictures], inverse, wordings, torch.tensor(numbers)[inverse])
        parts.append(adapted.rerank(batch).scores)
    after = torch.cat(parts)
    return torch.where(after.isnan(), scores.double(), after)


def _recalls(pool: Pool, rows: Tensor, scores: Tensor) -> dict[str, float]:
    first = rows.gather(1, scores.argmax(1, keepdim=True))[:, 0].tolist()
    hits = np.array([row in matches for row, matches in zip(first, pool.matches, strict=True)])
    domains = np.array(pool.domains)
    by_domain = {domain: 100 * float(hits[domains == domain].mean()) for domain in dict.fromkeys(pool.domains)}
    return {**by_domain, "mean": float(np.mean(list(by_domain.values())))}


def _measure(options: StudyOptions) -> Measurements:
    smoke = options.scale == "smoke"
    runner = open_runner(options, "efsa-real")
    data, head = runner.data, SMOKE_HEAD if smoke else HeadRecipe()
    episodes = {"episode as printed": EpisodeOptions.paper(k=16)}
    episodes |= {f"episode, step {rate:g}": EpisodeOptions(k=16, learning_rate=rate) for rate in RATES}
    read = data.digest(*data.roles.training, *([] if smoke else ["emoji"]))
    names = data.named().class_names
    settings = [asdict(head), {name: asdict(one) for name, one in episodes.items()}, WEIGHTS, MAX_NAMES, names, read]
    found = Measurements()
    for seed in range(options.seeds or (1 if smoke else 3)):

        def compute(seed: int = seed) -> Measurements:
            model, measured = runner.model(head, seed), Measurements()
            for split in ("val", "test"):
                for way, each in ranked(model, open_pool(data, split), episodes, names).items():
                    for domain, value in each.items():
                        measured.add({"way": way, "split": split, "domain": domain}, 0, value)
            return measured

        found.take(runner.figures("search", seed, settings, compute))
    ways = found.names("way")
    at = {way: found.summary({"arm": "search", "way": way, "split": "val", "domain": "mean"}).mean for way in ways}
    best = {group: max((way for way in ways if way.startswith(group)), key=at.__getitem__)
            for group in ("captions and pictures", "episode, step", "ranked names, episode, step")}  # fmt: skip
    found.context.update(ways=ways, chosen=list(best.values()), domains=found.names("domain", split="test"))
    return found


def _form(found: Measurements) -> TablesAndNotes:
    domains: Sequence[str] = found.context["domains"]
    chosen: Sequence[str] = found.context["chosen"]
    base = {"way": "the model"}
    rows = [Row((way, "chosen" if way in chosen else ""), {"way": way, "arm": "search"},
                over=None if way == base["way"] else base) for way in found.context["ways"]]  # fmt: skip
    columns = [Column(f"R@1 {domain}", {"split": "test", "domain": domain}, "mean or gain") for domain in domains]
    columns.append(Column("validation", {"split": "val", "domain": "mean"}, "mean or gain"))
    notes = []
    for way in chosen:
        gain = found.paired(
            {"arm": "search", "way": way, "split": "test"}, {"way": "captions alone"}, ["mean"], "domain"
        )
        notes.append(f"{way} over captions alone, mean of domains: {gain.summary().signed()}")
    form = TableForm("Ranking the first 16 again", ("ranks", ""), rows, columns, notes=tuple(notes))
    return [form.fill(found)], ["gains are over the model alone, paired by seed"]


real = TableStudy("efsa/real", _measure, _form, worlds(WORLD))
