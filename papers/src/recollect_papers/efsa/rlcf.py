"""RLCF: adapts the text tower to each query by a larger model's scores of the retrieved pictures."""

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from recollect.core.errors import UserError
from recollect.core.ordering import best_first
from recollect.core.progress import progress
from recollect.core.types import Encoder, caption_prefix
from recollect.efsa.episodes import contrast_scale
from recollect.efsa.options import EpisodeOptions
from recollect.efsa.rerank import NOT_FINITE
from recollect.index import Hits, Index
from recollect.models import DualEncoder
from recollect_papers.efsa.options import RewardOptions
from recollect_papers.efsa.sequential import WeightReset

_ADAPTED = "adapted text tower"


class Teacher:
    """Larger model that scores pictures for a query; embeddings of pictures are cached."""

    def __init__(self, encoder: Encoder, index: Index) -> None:
        self.encoder, self.index = encoder, index
        self._known: dict[str, Tensor | None] = {}

    def rewards(self, query: str, ids: Sequence[str]) -> Float[Tensor, " images"]:
        """Return ``max(2.5 cos, 0)`` of the query and each picture (CLIP score); NaN for unreadable pictures."""
        kind = caption_prefix(self.encoder) if isinstance(self.encoder, DualEncoder) else None
        text = self.encoder.embed_texts([query], kind)[0]
        self._embed([id for id in ids if id not in self._known])
        each = [self._known[id] for id in ids]
        scores = [torch.tensor(torch.nan) if vector is None else vector @ text for vector in each]
        return (2.5 * torch.stack(scores)).clamp(min=0)

    def _embed(self, ids: Sequence[str]) -> None:
        opened = {}
        for picture in self.index.pictures(ids):
            try:
                opened[picture.id] = picture.read()
            except (UserError, OSError):
                self._known[picture.id] = None
        if opened:
            self._known |= dict(zip(opened, self.encoder.embed_images(list(opened.values())), strict=True))


class RewardSearcher:
    """Search with a text tower adapted to each query by REINFORCE on a teacher's rewards (Zhao et al., ICLR 2024).

    The policy is the softmax over the candidates; its ``sampled`` most likely pictures are rewarded. The reward is the
    teacher's score minus its mean over these pictures. Image embeddings do not change, so the adapted query searches
    the whole index.

    Raises:
        UserError: no teacher.
    """

    def __init__(
        self, index: Index, encoder: DualEncoder, teacher: Encoder | None, options: RewardOptions | None = None
    ) -> None:
        if teacher is None:
            raise UserError("RLCF needs a larger model as teacher. Pass --search.teacher MODEL.")
        self.index, self.encoder, self.options = index, encoder, options or RewardOptions()
        self.judge = Teacher(teacher, index)
        self._copy = copy.deepcopy(encoder).eval().requires_grad_(False)
        self._learned = list(self._copy.tower_parameters("text"))
        for each in self._learned:
            each.requires_grad_()
        self._reset = WeightReset(self._learned)
        self._scale = contrast_scale(encoder, EpisodeOptions())

    def search(self, queries: Sequence[str], k: int = 10) -> list[Hits]:
        """Return the best k pictures for each query."""
        found = self.index.search_many(list(queries), max(k, self.options.candidates), encoder=self.encoder)
        results = []
        with progress("RLCF", len(queries), "queries") as counter:
            for query, hits in zip(queries, found, strict=True):
                results.append(self._one(query, hits, k) if len(hits) else hits)
                counter.advance()
        return results

    def _one(self, query: str, found: Hits, k: int) -> Hits:
        before = {hit.id: hit for hit in found}
        candidates, options = list(before)[: self.options.candidates], self.options
        vectors = torch.from_numpy(self.index.vectors(candidates))
        optimizer = torch.optim.AdamW(self._learned, lr=options.learning_rate, weight_decay=options.weight_decay)
        try:
            finite = all(self._step(optimizer, query, candidates, vectors) for _ in range(options.steps))
            adapted = self._embed_one(query).detach()
        finally:
            self._reset()
        if not (finite and bool(adapted.isfinite().all())):
            return found.with_hits(found.hits[:k], (NOT_FINITE,))
        hits = []
        for hit in self.index.search(adapted[0].float().cpu(), k):  # add rank and score by the original model, if known
            original = before.get(hit.id)
            rank, score = (None, None) if original is None else (original.zero_shot_rank, original.score)
            hits.append(replace(hit, scored_by=_ADAPTED, zero_shot_rank=rank, model_score=score))
        return found.with_hits(hits)

    def _step(self, optimizer: torch.optim.Optimizer, query: str, ids: Sequence[str], vectors: Tensor) -> bool:
        """Take a step on ``-mean(reward · log p)`` over the sampled pictures; return False if it is not finite."""
        with torch.enable_grad():
            text = self._embed_one(query)
            policy = (self._scale * text @ vectors.to(text).T).log_softmax(dim=1)[0]
            order = best_first(policy.detach().float().cpu().numpy())
            chosen = torch.from_numpy(order[: self.options.sampled]).to(policy.device)
            rewards = self.judge.rewards(query, [ids[row] for row in chosen.tolist()]).to(policy)
            scored = rewards.isfinite()
            loss = -((rewards - rewards[scored].mean())[scored] * policy[chosen][scored]).mean()
        if not bool(loss.isfinite()):
            return not bool(scored.any())  # if all pictures are unreadable, skip the step without an error
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return True

    def _embed_one(self, query: str) -> Float[Tensor, "one width"]:
        return F.normalize(self._copy.encode_texts(self._copy.tokenize([query], caption_prefix(self._copy))), dim=1)
