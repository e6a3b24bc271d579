"""``recollect train ra-clip``: towers that learn together with what reads a memory for them."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Literal

from recollect.cli.parser import Arg
from recollect.cli.train import Train
from recollect.core.errors import UserError
from recollect.training.options import Data, Recipe

DEFAULT = "clip-tiny"


@dataclass(frozen=True)
class TrainRaClip(Train):
    """Train a dual encoder whose images read a memory while it learns (RA-CLIP).

    The memory was built by another model, the searcher, which stays as it is: it finds for every picture the pairs that
    look like it, and the image tower learns together with a fusion that reads their images and texts. OUT/model is the
    dual encoder, OUT/model/fusion the fusion:

    `recollect evaluate zero-shot OUT/model --data SOURCE --memory MEMORY --fusion OUT/model/fusion`

    RECIPE, one of `recollect train`, sets towers, objective and steps (default: clip-tiny). --config takes the
    recipe.json of another run, or the settings of --print-config, edited.
    """

    memory: str | None = None
    """Pairs to read: a folder, or milvus://host:port/collection. Training pairs may be in it: --max-score keeps a
    picture from its own row."""
    searcher: Annotated[str | None, Arg(rare=True)] = None
    """The model that embedded the memory (default: where it was then)."""
    k: int = 10
    """Pairs that each image reads."""
    max_score: Annotated[float, Arg(rare=True)] = 0.94
    """Skip pairs whose image has at least this cosine with the picture, by the searcher: itself and its
    near-duplicates. Above 1 nothing is skipped, not even the picture's own row."""
    start: Annotated[Literal["embedding", "mean", "gate"], Arg(rare=True)] = "gate"
    """What an untrained fusion returns: the embedding, the mean of it and of what it reads, or a mixture of both whose
    weight is learned."""

    @classmethod
    def parse(cls, words: list[str], prog: str) -> "TrainRaClip":
        """Read the command line, as `Train.parse` does; without a recipe, it is clip-tiny."""
        named = words and not words[0].startswith("-")
        return replace(super().parse(words if named else [DEFAULT, *words], prog), name="ra-clip")

    @classmethod
    def of_recipe(cls, name: str) -> "TrainRaClip":
        """The command with a recipe's defaults, which name no data."""
        command = super().of_recipe(name)
        return replace(command, recipe=replace(command.recipe, data=Data()))

    def _train(self, out: Path) -> Path:
        from recollect.reco.joint import JointRecipe, train_joint

        if self.memory is None:
            raise UserError("missing: --memory MEMORY. `recollect index build` makes one.")
        own = {name: getattr(self, name) for name in ("memory", "searcher", "k", "max_score", "start")}
        recipe = JointRecipe(**{each.name: getattr(self.recipe, each.name) for each in fields(Recipe)}, **own)
        return train_joint(recipe, out, resume=self.resume, device=self.device, hooks=self.hooks(), trackers=self.track)
