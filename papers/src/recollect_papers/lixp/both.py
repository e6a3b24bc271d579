"""``lixp/both``: can one vector have what examples need and what words need?

A head that learns from captions finds more by words and tells classes apart worse by examples. Here the tower's own
features stand beside the head's embedding in one vector; texts have zeros in their place. The share of the features is
the same in every picture, so ranks by words are those of the head, exactly; what examples gain is measured. The share
is chosen on the choosing sets; steps are those that ``lixp/real`` chose.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from recollect.core.types import Encoder, Kind
from recollect_papers.engine import Column, Formed, Row, TableForm, TableStudy
from recollect_papers.measurements import FigureAddress, Measurements
from recollect_papers.real.arms import ArmRunner, at_choosing
from recollect_papers.real.data import LIGHT, open_data
from recollect_papers.real.heads import FeatureModel, HeadRecipe
from recollect_papers.real.measure import SHOTS, measure
from recollect_papers.study import StudyOptions

TOWER, LIT, HEAD = "tower, no head", "LiT", "MLP head"
SHARES = (0.25, 0.5, 0.75)
WORLD = "EfficientNet-Lite0 and MiniLM, locked; 14,000 photographs with captions (COCO); four testing sets of 160 px"
MADE = "made vectors: shows that it runs, not what it finds"


class Beside(Encoder):
    """A head's embeddings with the tower's features behind them.

    Attributes:
        head: embeds texts too.
        tower: embeds pictures alone.
        share: of the squared length of a picture's vector that is the tower's.
    """

    def __init__(self, head: FeatureModel, tower: FeatureModel, share: float) -> None:
        self.head, self.tower, self.share = head, tower, share
        self.width = head.width + tower.width

    @property
    def scale(self) -> float | None:
        return self.head.scale

    @property
    def fingerprint(self) -> str:
        """Of both parts."""
        return f"{self.head.fingerprint} {self.tower.fingerprint} {self.share}"

    def embed_images(self, images: Any) -> Float[Tensor, "n width"]:
        """Unit-norm vectors of features."""
        own, beside = self.head.embed_images(images), self.tower.embed_images(images)
        return torch.cat([math.sqrt(1 - self.share) * own, math.sqrt(self.share) * beside], dim=1)

    def embed_texts(self, texts: Sequence[str], prefix: Kind | None = None) -> Float[Tensor, "n width"]:
        """The head's, and zeros."""
        own = self.head.embed_texts(texts, prefix)
        return torch.cat([own, torch.zeros(len(own), self.tower.width)], dim=1)


def _called(share: float) -> str:
    return f"MLP head beside the tower, {share} of the tower"


def _measure(options: StudyOptions) -> Measurements:
    smoke = options.scale == "smoke"
    data = open_data(options.data, smoke, LIGHT)
    runner = ArmRunner(data, options.out / "runs" / "lixp-both")
    small = {"hidden": 32, "batch": 64, "steps": 10}
    head = HeadRecipe(width=16, **small) if smoke else HeadRecipe(steps=200)  # type: ignore[arg-type]
    lit = HeadRecipe("none", **small) if smoke else HeadRecipe("none", hidden=1024)  # type: ignore[arg-type]
    none = HeadRecipe("none", steps=0)
    found, roles = Measurements(), data.roles
    read = data.digest(*roles.training, *roles.choosing, *roles.testing)
    settings = [repr(head), repr(lit), repr(roles), read]

    def run(arm: str, seed: int, share: float | None, recipe: HeadRecipe, parts: Sequence[str]) -> None:
        def make() -> Measurements:
            model, made = runner.model(recipe, seed), Measurements()
            encoder: Encoder = model if share is None else Beside(model, runner.model(none, 0), share)
            for part in parts:
                made.take(measure(encoder, data, part, named=recipe.steps > 0))
            return made

        found.take(runner.figures(arm, seed, [*settings, share, parts], make))

    run(TOWER, 0, None, none, ("testing",))
    for seed in range(options.seeds or (1 if smoke else 3)):
        run(LIT, seed, None, lit, ("testing",))
        run(HEAD, seed, None, head, ("testing",))
        for share in SHARES:
            run(_called(share), seed, share, head, ("choosing", "testing"))
    scores = {share: found.summary(at_choosing(data, _called(share))).mean for share in SHARES}
    found.context.update(chosen=_called(max(scores, key=scores.__getitem__)), testing=list(roles.testing),
                         pools=list(roles.pools))  # fmt: skip
    return found


def _form(found: Measurements) -> Formed:
    sets, pools, chosen = tuple(found.context["testing"]), tuple(found.context["pools"]), found.context["chosen"]
    few: FigureAddress = {"measure": "few-shot", "part": "testing", "set": sets}
    columns = [Column(f"{shots} shot{'s' * (shots > 1)}", {**few, "shots": str(shots)}) for shots in SHOTS]
    columns.append(Column("by name", {"measure": "zero-shot", "part": "testing", "set": sets}))
    columns += [Column(f"R@10 {pool}", {"measure": "R@10", "part": "testing", "set": pool}) for pool in pools]
    arms = (TOWER, LIT, HEAD, *map(_called, SHARES))
    rows = [Row((arm, "chosen" if arm == chosen else ""), {"arm": arm}) for arm in arms]
    notes = []
    for other in (HEAD, LIT):
        at: FigureAddress = {**few, "arm": chosen, "shots": tuple(map(str, SHOTS))}
        gain = found.paired(at, {"arm": other}, sets)
        p = gain.over_seeds_p()
        words = f"the chosen over {other}, few-shot: {gain.summary().signed()}, up on {gain.up()} of {len(sets)} sets"
        notes.append(words if math.isnan(p) else f"{words}; over seeds, t-test p = {p:.2g}")
        gain = found.paired({"measure": "R@10", "part": "testing", "arm": chosen}, {"arm": other}, pools)
        notes.append(f"the chosen over {other}, R@10: {gain.summary().signed()}")
    table = TableForm("One vector for examples and words", ("picture's vector", ""), rows, columns, missing="",
                      notes=tuple(notes))  # fmt: skip
    return [table.fill(found)], ["the share of the tower was chosen on the choosing sets"]


both = TableStudy("lixp/both", _measure, _form, {"smoke": MADE, "small": WORLD, "full": WORLD})
