"""Adapting the text tower to a query by what a larger model thinks of the images that it finds (RLCF)."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from recollect.core.errors import UserError
from recollect.core.progress import progress
from recollect.core.types import Encoder, caption_prefix
from recollect.models import DualEncoder
from recollect.search.counters import CostCounters
from recollect.search.episodes.batched import contrast_scale
from recollect.search.episodes.options import EpisodeOptions, RewardOptions
from recollect.search.episodes.searcher import NOT_FINITE
from recollect.search.pool import Pool
from recollect.search.query import Query
from recollect.search.searcher import Hit, Searcher, SearchResult, as_result, open_items

_KEPT = 100_000  # teacher's embeddings of pictures, a few hundred MiB at most


class Teacher:
    """A larger model that judges how well an image fits a query; it embeds a picture once.

    Attributes:
        counters: rows that went through it.
    """

    def __init__(self, encoder: Encoder, pool: Pool) -> None:
        self.encoder, self.pool, self.counters = encoder, pool, CostCounters()
        self._known: dict[str, Tensor | None] = {}

    def rewards(self, query: str, ids: Sequence[str]) -> Float[Tensor, " images"]:
        """``max(2.5 · cos, 0)`` of the query with each image (CLIP score); NaN where one cannot be opened any more."""
        kind = caption_prefix(self.encoder) if isinstance(self.encoder, DualEncoder) else None
        asked = self.encoder.embed_texts([query], kind)[0]
        self.counters.forward(texts=1)
        self._embed([id for id in ids if id not in self._known])
        each = [self._known[id] for id in ids]
        scores = [torch.tensor(torch.nan) if vector is None else vector @ asked for vector in each]
        return (2.5 * torch.stack(scores)).clamp(min=0)

    def _embed(self, ids: Sequence[str]) -> None:
        if len(self._known) + len(ids) > _KEPT:
            self._known.clear()
        opened = {}
        for item in self.pool.items(ids):
            try:
                opened[item.id] = item.read()
            except (UserError, OSError):
                self._known[item.id] = None
        if opened:
            self._known |= dict(zip(opened, self.encoder.embed_images(list(opened.values())), strict=True))
            self.counters.forward(images=len(opened))


@dataclass
class RewardSearcher(Searcher):
    """Search by a text tower that a teacher's rewards adapt to each query, by REINFORCE (Zhao et al., ICLR 2024).

    The policy is the softmax over the candidates, sampled at its ``sampled`` likeliest images; an image's reward is
    the teacher's score less its mean over the sampled. Image embeddings stay as they are, so the whole pool is
    searched again by the adapted query.

    Attributes:
        teacher: judges the images.
        options: of the steps.
    """

    teacher: Encoder | None = None
    options: RewardOptions = field(default_factory=RewardOptions)

    def __post_init__(self) -> None:
        if self.teacher is None:
            raise UserError("RLCF needs a larger model to judge the images. Name it with --teacher MODEL.")
        self.judge = Teacher(self.teacher, self.pool)
        self._copy = copy.deepcopy(self.encoder).eval().requires_grad_(False)
        self._learned = list(self._copy.tower_parameters("text"))
        for each in self._learned:
            each.requires_grad_()
        self._begin = [each.detach().clone() for each in self._learned]
        self._scale = contrast_scale(self.encoder, EpisodeOptions())

    def _search(self, queries: list[Query], k: int, pool: Pool) -> list[SearchResult]:
        if other := next((query for query in queries if query.text is None), None):
            raise UserError(f"{other}: RLCF adapts the text tower, so that it takes words alone")
        found = self._nearest(queries, max(k, self.options.candidates), pool)
        items = open_items(pool, found)
        plain = [as_result(str(query), found, row, items) for row, query in enumerate(queries)]
        results = []
        with progress("RLCF", len(queries), "queries") as counter:
            for query, result in zip(queries, plain, strict=True):
                results.append(self._one(str(query.text), result, k, pool))
                counter.advance()
        return results

    def _one(self, query: str, found: SearchResult, k: int, pool: Pool) -> SearchResult:
        before = {hit.item.id: hit for hit in found.hits}
        candidates = list(before)[: self.options.candidates]
        vectors = torch.from_numpy(pool.vectors(candidates))
        try:
            finite = all(self._step(optimiser, query, candidates, vectors) for optimiser in self._optimisers())
            asked = self._embed_one(query).detach()
        finally:
            self._reset()
        if not (finite and bool(asked.isfinite().all())):
            self.report.not_finite += 1
            return replace(found, notes=(NOT_FINITE,))
        again = pool.nearest(asked.float().cpu(), k)
        result = as_result(found.query, again, 0, open_items(pool, again), "adapted text tower")
        return replace(result, hits=tuple(self._known(hit, before.get(hit.item.id)) for hit in result.hits))

    @staticmethod
    def _known(hit: Hit, before: Hit | None) -> Hit:
        """A hit with its rank and score by the model as it is, where it was among the candidates."""
        if before is None:
            return replace(hit, zero_shot_rank=None, model_score=None)
        return replace(hit, zero_shot_rank=before.zero_shot_rank, model_score=before.score)

    def _optimisers(self) -> list[torch.optim.Optimizer]:
        """The same optimiser, once for each step."""
        options = self.options
        one = torch.optim.AdamW(self._learned, lr=options.learning_rate, weight_decay=options.weight_decay)
        return [one] * options.steps

    def _step(self, optimiser: torch.optim.Optimizer, query: str, ids: Sequence[str], vectors: Tensor) -> bool:
        """One step on ``-mean(reward · log p)`` over the sampled; False if that is not finite."""
        with torch.enable_grad():
            asked = self._embed_one(query)
            likely = (self._scale * asked @ vectors.to(asked).T).log_softmax(dim=1)[0]
            chosen = likely.detach().topk(min(self.options.sampled, len(likely))).indices
            rewards = self.judge.rewards(query, [ids[row] for row in chosen.tolist()]).to(likely)
            there = rewards.isfinite()
            loss = -((rewards - rewards[there].mean())[there] * likely[chosen][there]).mean()
        self.counters.forward(texts=1)
        if not bool(loss.isfinite()):
            return not bool(there.any())  # no image can be judged any more: nothing to learn, but nothing broken
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        self.counters.backward(texts=1)
        return True

    def _embed_one(self, query: str) -> Float[Tensor, "one width"]:
        return F.normalize(self._copy.encode_texts(self._copy.tokenize([query], caption_prefix(self._copy))), dim=1)

    @torch.no_grad()
    def _reset(self) -> None:
        for parameter, begin in zip(self._learned, self._begin, strict=True):
            parameter.copy_(begin)
            parameter.grad = None
