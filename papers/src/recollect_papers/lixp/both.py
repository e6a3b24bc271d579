"""``lixp/both``: one vector for few-shot classification and text search.

A head trained on captions improves text search but loses few-shot accuracy. This study appends the tower's features to
the head's embedding, and zeros to text vectors. The features have the same weight in every picture, so text search
ranks exactly as with the head alone; the study measures the gain in few-shot accuracy. The weight is chosen on the
choosing sets; the number of steps is the one chosen in ``lixp/real``.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from recollect.core.types import Encoder, Kind
from recollect_papers.engine import Row, TableForm, TablesAndNotes, TableStudy
from recollect_papers.measurements import FigureAddress, Measurements
from recollect_papers.real.arms import (
    SHOT_NAMES,
    SMOKE_HEAD,
    TOWER,
    few_shot_address,
    open_runner,
    result_columns,
    worlds,
)
from recollect_papers.real.data import LIGHT_ROLES
from recollect_papers.real.heads import FeatureModel, HeadRecipe
from recollect_papers.real.measure import measure
from recollect_papers.study import StudyOptions

LIT, HEAD = "LiT", "MLP head"
SHARES = (0.25, 0.5, 0.75)
WORLD = "EfficientNet-Lite0 and MiniLM, locked; 14,000 photographs with captions (COCO); four testing sets of 160 px"


class ConcatenatedEncoder(Encoder):
    """A head's embeddings followed by the tower's features.

    Attributes:
        head: model with image and text side.
        tower: model with an image side.
        share: the tower's share of the squared length of image vectors.
    """

    def __init__(self, head: FeatureModel, tower: FeatureModel, share: float) -> None:
        self.head, self.tower, self.share = head, tower, share
        self.width = head.width + tower.width

    @property
    def scale(self) -> float | None:
        return self.head.scale

    @property
    def fingerprint(self) -> str:
        """Digest of both parts and the share."""
        return f"{self.head.fingerprint} {self.tower.fingerprint} {self.share}"

    def embed_images(self, images: Any) -> Float[Tensor, "n width"]:
        """Return unit-norm embeddings of features."""
        head, tower = self.head.embed_images(images), self.tower.embed_images(images)
        return torch.cat([math.sqrt(1 - self.share) * head, math.sqrt(self.share) * tower], dim=1)

    def embed_texts(self, texts: Sequence[str], prefix: Kind | None = None) -> Float[Tensor, "n width"]:
        """Return the head's embeddings, padded with zeros."""
        return F.pad(self.head.embed_texts(texts, prefix), (0, self.tower.width))


def _arm(share: float) -> str:
    return f"MLP head beside the tower, {share} of the tower"


def _measure(options: StudyOptions) -> Measurements:
    smoke = options.scale == "smoke"
    runner = open_runner(options, "lixp-both", LIGHT_ROLES)
    data, roles, found = runner.data, runner.data.roles, Measurements()
    head = SMOKE_HEAD if smoke else HeadRecipe(steps=200)
    lit = replace(SMOKE_HEAD, image="none") if smoke else HeadRecipe("none", hidden=1024)
    none = HeadRecipe("none", steps=0)
    read = data.digest(*roles.training, *roles.choosing, *roles.testing)
    settings = [repr(head), repr(lit), repr(roles), read]

    def run(arm: str, seed: int, share: float | None, recipe: HeadRecipe, parts: Sequence[str]) -> None:
        def compute() -> Measurements:
            model, measured = runner.model(recipe, seed), Measurements()
            encoder: Encoder = model if share is None else ConcatenatedEncoder(model, runner.model(none, 0), share)
            for part in parts:
                measured.take(measure(encoder, data, part, named=recipe.steps > 0))
            return measured

        found.take(runner.figures(arm, seed, [*settings, share, parts], compute))

    run(TOWER, 0, None, none, ("testing",))
    for seed in range(options.seeds or (1 if smoke else 3)):
        run(LIT, seed, None, lit, ("testing",))
        run(HEAD, seed, None, head, ("testing",))
        for share in SHARES:
            run(_arm(share), seed, share, head, ("choosing", "testing"))
    scores = {share: found.summary(few_shot_address(data, _arm(share))).mean for share in SHARES}
    found.context.update(chosen=_arm(max(scores, key=scores.__getitem__)), testing=list(roles.testing),
                         pools=list(roles.pools))  # fmt: skip
    return found


def _form(found: Measurements) -> TablesAndNotes:
    sets, pools, chosen = tuple(found.context["testing"]), tuple(found.context["pools"]), found.context["chosen"]
    arms = (TOWER, LIT, HEAD, *map(_arm, SHARES))
    rows = [Row((arm, "chosen" if arm == chosen else ""), {"arm": arm}) for arm in arms]
    notes = []
    for other in (HEAD, LIT):
        at: FigureAddress = {"measure": "few-shot", "part": "testing", "arm": chosen, "shots": SHOT_NAMES}
        gain = found.paired(at, {"arm": other}, sets)
        up = f"up on {gain.up()} of {len(sets)} sets{gain.over_seeds()}"
        notes.append(f"the chosen over {other}, few-shot: {gain.summary().signed()}, {up}")
        gain = found.paired({"measure": "R@10", "part": "testing", "arm": chosen}, {"arm": other}, pools)
        notes.append(f"the chosen over {other}, R@10: {gain.summary().signed()}")
    table = TableForm("One vector for examples and words", ("picture's vector", ""), rows,
                      result_columns(sets, pools), missing="", notes=tuple(notes))  # fmt: skip
    return [table.fill(found)], ["the share of the tower was chosen on the choosing sets"]


both = TableStudy("lixp/both", _measure, _form, worlds(WORLD))
