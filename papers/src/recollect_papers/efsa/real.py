"""``efsa/real``: search that adapts to its query, on heads of the starter's towers; captions of the pool help or not.

One pool holds everyday photographs and emoji, concepts that no head was trained on. Photographs are asked for by their
first sentence, and what an episode reads is another one; emoji by their names, and it reads their tags. Pictures of
COCO are never asked for. Step size and mixing weights are chosen on Flickr8k's validation pictures. Where a user has no
captions, episodes can read the names that the model ranks first for each picture, among those of ImageNet's classes.
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
from recollect_papers.engine import Column, Formed, Row, TableForm, TableStudy
from recollect_papers.measurements import Measurements
from recollect_papers.real.arms import ArmRunner
from recollect_papers.real.data import HELD_STYLES, RealData, open_data
from recollect_papers.real.heads import FeatureModel, HeadRecipe
from recollect_papers.study import StudyOptions

RATES = (1.5e-3, 5e-3, 2e-2)
"""Learning rates of an episode, by `EpisodeOptions`: adapters of rank 64, loss in both directions."""

WEIGHTS = (0.25, 0.5, 0.75)
"""Of the caption's cosine, beside the picture's."""

WORLD = (
    "an MLP head on EfficientNet-Lite0 and MiniLM, trained on 20,090 everyday photographs with captions; a pool of "
    "1,000 photographs of Flickr8k, 500 of COCO, and emoji in three styles"
)
MADE = "made vectors: shows that it runs, not what it finds"
MOST_NAMES = 3
"""Names of a picture where it has no caption."""

_TOGETHER = 64


class FeatureDual(DualEncoder):
    """A model on features as a dual encoder, whose linear layers adapters can wrap."""

    def __init__(self, model: FeatureModel) -> None:
        super().__init__()
        assert model.text is not None
        self.image_tower, self.text_head = model.image, model.text
        self.width, self.prefixes, self.preset, self._data = model.width, {}, "", model.data
        self.logit_scale = nn.Parameter(torch.tensor(float(model.scale or 10.0)).log())
        self.eval()

    def tokenize(self, texts: Sequence[str], kinds: Sequence[Kind] | Kind | None = None) -> dict[str, Tensor]:
        """Features of texts."""
        return {"features": self._data.texts([text or "." for text in texts])}

    @property
    def longest_text(self) -> int | None:
        return None

    def text_lengths(self, texts: Sequence[str], kinds: Sequence[Kind] | Kind | None = None) -> list[int]:
        """Texts are never cut."""
        return [0] * len(texts)

    def encode_images(self, pixels: Float[Tensor, "n ..."]) -> Float[Tensor, "n width"]:
        """Raw embeddings of features."""
        return self.image_tower(pixels)

    def encode_texts(self, tokens: dict[str, Tensor]) -> Float[Tensor, "n width"]:
        """Raw embeddings of features."""
        return self.text_head(tokens["features"])

    def add_prefixes(self, kinds: Sequence[Kind], *, length: int = 1, seed: int = 0) -> None:
        """None can be had."""
        raise NotImplementedError

    def tower_parameters(self, tower: Tower) -> Iterator[nn.Parameter]:
        """Of a head."""
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
    """Pictures, what is known of them, and what is asked.

    Attributes:
        images: features.
        captions: what an episode may read of each; "" where there is nothing.
        asked: texts.
        right: for each text the pictures that it describes.
        domains: of each text.
    """

    images: Float[Tensor, "pictures features"]
    captions: Sequence[str]
    asked: Sequence[str]
    right: Sequence[Int64[np.ndarray, " rows"]]
    domains: Sequence[str]


def open_pool(data: RealData, split: str) -> Pool:
    """The pool of a split; emoji are in that of split ``test`` alone."""
    asked_of, distracting = data.roles.training[-1], data.roles.training[:-1]
    images, captions, asked, right, domains, start = [], list[str](), list[str](), [], list[str](), 0
    each = data.get(asked_of)
    for row in each.rows(split):
        told = each.captions[row]
        asked.append(told[0])
        captions.append(told[1] if len(told) > 1 else "")
        right.append(np.array([len(captions) - 1]))
        domains.append("photographs")
    images.append(each.images[each.rows(split)])
    for name in distracting:
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
            asked.append(each.class_names[label])
            right.append(start + np.flatnonzero(each.labels[rows] == label))
            domains.append("emoji")
    return Pool(torch.cat(images), captions, asked, right, domains)


def _tags(captions: tuple[str, ...]) -> str:
    """What is said of an emoji besides its name."""
    return captions[1].rpartition("suggesting ")[2] if len(captions) > 1 else ""


def named(model: FeatureModel, pool: Pool, names: Sequence[str]) -> Pool:
    """The pool with the names that the model ranks first for each picture, instead of captions."""
    cosines = model.embed_images(pool.images) @ model.embed_texts([f"a photo of a {name}." for name in names]).T
    first = cosines.topk(min(MOST_NAMES, len(names)), dim=1).indices.tolist()
    return replace(pool, captions=[", ".join(names[place] for place in own) for own in first])


def ranked(
    model: FeatureModel, pool: Pool, episodes: Mapping[str, EpisodeOptions], names: Sequence[str], k: int = 16
) -> dict[str, dict[str, float]]:
    """R@1 in percent by domain: of the model, of captions, of mixtures, of episodes; all rank what the model finds."""
    images, asked = model.embed_images(pool.images), model.embed_texts(pool.asked)
    scores, rows = (asked @ images.T).topk(k, dim=1)
    told = model.embed_texts([caption or "." for caption in pool.captions])
    said = torch.einsum("qd,qkd->qk", asked, told[rows])
    known = torch.tensor([bool(caption) for caption in pool.captions])[rows]
    said = torch.where(known, said, scores)  # what has no caption is ranked by its picture
    found = {"the model": _recalled(pool, rows, scores), "captions alone": _recalled(pool, rows, said)}
    for weight in WEIGHTS:
        mixed = weight * said + (1 - weight) * scores
        found[f"captions and pictures, {weight} of the caption"] = _recalled(pool, rows, mixed)
    for name, options in episodes.items():
        found[name] = _recalled(pool, rows, _adapted(model, pool, rows, scores, options))
    own = named(model, pool, names)
    said = torch.einsum("qd,qkd->qk", asked, model.embed_texts(own.captions)[rows])
    found["ranked names alone"] = _recalled(pool, rows, said)
    for name, options in episodes.items():
        found[f"ranked names, {name}"] = _recalled(pool, rows, _adapted(model, own, rows, scores, options))
    return found


def _adapted(model: FeatureModel, pool: Pool, rows: Tensor, scores: Tensor, options: EpisodeOptions) -> Tensor:
    """Cosines by the models adapted to each query."""
    made, parts = Episodes(FeatureDual(model), options), []
    for start in range(0, len(rows), _TOGETHER):
        pictures, places = rows[start : start + _TOGETHER].unique(return_inverse=True)
        wordings, numbers = number_texts([pool.captions[row] for row in pictures.tolist()])
        queries = tuple(EpisodeQuery(((text, 1.0),)) for text in pool.asked[start : start + _TOGETHER])
        batch = EpisodeBatch(queries, pool.images[pictures], places, wordings, torch.tensor(numbers)[places])
        parts.append(made.rerank(batch).scores)
    after = torch.cat(parts)
    return torch.where(after.isnan(), scores.double(), after)


def _recalled(pool: Pool, rows: Tensor, scores: Tensor) -> dict[str, float]:
    first = rows.gather(1, scores.argmax(1, keepdim=True))[:, 0].tolist()
    hits = np.array([row in right for row, right in zip(first, pool.right, strict=True)])
    each = {
        domain: 100 * float(hits[np.array(pool.domains) == domain].mean()) for domain in dict.fromkeys(pool.domains)
    }
    return {**each, "mean": float(np.mean(list(each.values())))}


def _measure(options: StudyOptions) -> Measurements:
    smoke = options.scale == "smoke"
    data = open_data(options.data, smoke)
    runner = ArmRunner(data, options.out / "runs" / "efsa-real")
    head = HeadRecipe(width=16, hidden=32, batch=64, steps=10) if smoke else HeadRecipe()
    episodes = {"episode as printed": EpisodeOptions.paper(k=16)}
    episodes |= {f"episode, step {rate:g}": EpisodeOptions(k=16, learning_rate=rate) for rate in RATES}
    read = data.digest(*data.roles.training, *([] if smoke else ["emoji"]))
    names = data.named().class_names
    settings = [asdict(head), {name: asdict(one) for name, one in episodes.items()}, WEIGHTS, MOST_NAMES, names, read]
    found = Measurements()
    for seed in range(options.seeds or (1 if smoke else 3)):

        def make(seed: int = seed) -> Measurements:
            model, made = runner.model(head, seed), Measurements()
            for split in ("val", "test"):
                for way, each in ranked(model, open_pool(data, split), episodes, names).items():
                    for domain, value in each.items():
                        made.add({"way": way, "split": split, "domain": domain}, 0, value)
            return made

        found.take(runner.figures("search", seed, settings, make))
    ways = list(dict.fromkeys(address["way"] for address, _, _ in found.rows()))
    at = {way: found.summary({"arm": "search", "way": way, "split": "val", "domain": "mean"}).mean for way in ways}
    best = {group: max((way for way in ways if way.startswith(group)), key=at.__getitem__)
            for group in ("captions and pictures", "episode, step", "ranked names, episode, step")}  # fmt: skip
    domains = [address["domain"] for address, _, _ in found.rows() if address["split"] == "test"]
    found.context.update(ways=ways, chosen=list(best.values()), domains=list(dict.fromkeys(domains)))
    return found


def _form(found: Measurements) -> Formed:
    domains: Sequence[str] = found.context["domains"]
    chosen: Sequence[str] = found.context["chosen"]
    base = {"way": "the model"}
    rows = [
        Row(
            (way, "chosen" if way in chosen else ""),
            {"way": way, "arm": "search"},
            over=None if way in base.values() else base,
        )
        for way in found.context["ways"]
    ]
    columns = [Column(f"R@1 {domain}", {"split": "test", "domain": domain}, "mean or gain") for domain in domains]
    columns.append(Column("validation", {"split": "val", "domain": "mean"}, "mean or gain"))
    notes = []
    for way in chosen:
        gain = found.paired(
            {"arm": "search", "way": way, "split": "test"}, {"way": "captions alone"}, ["mean"], "domain"
        )
        notes.append(f"{way} over captions alone, mean of domains: {gain.summary().signed()}")
    form = TableForm("Ranking the first 16 again", ("ranks", ""), rows, columns, notes=tuple(notes))
    return [form.fill(found)], ["gains are over the model alone, paired by seed of the heads"]


real = TableStudy("efsa/real", _measure, _form, {"smoke": MADE, "small": WORLD, "full": WORLD})
