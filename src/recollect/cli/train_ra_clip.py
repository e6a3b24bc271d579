"""``recollect train ra-clip``: towers that learn together with what reads a memory for them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from recollect.cli.train import Train, begun_from, named_recipe, recipe_of_run
from recollect.reco.joint import JointRecipe, joint_recipe, train_joint

DEFAULT = "clip-tiny"


@dataclass(frozen=True)
class TrainRaClip(Train):
    """Train a dual encoder whose images read a memory while it learns (RA-CLIP).

    MEMORY was built by another model, the searcher, which stays as it is: it finds for every picture the pairs that
    look like it, and the image tower learns together with a fusion that reads their images and texts. OUT/model is the
    dual encoder, OUT/model/fusion what reads for it:

    `recollect evaluate zero-shot OUT/model --data SOURCE --memory MEMORY --fusion OUT/model/fusion`

    A recipe of `recollect train` may be named first, `recollect train ra-clip siglip-locked`: its towers, objective and
    steps are then those of the run (clip-tiny's by default). The other options are those of `recollect train`.
    """

    recipe: Annotated[JointRecipe, tyro.conf.arg(name="")] = field(default_factory=JointRecipe)

    @classmethod
    def parse(cls, words: list[str], prog: str) -> Train:
        """Read the command line; its first word may name a recipe, which sets the defaults of all other options.

        Raises:
            UserError: no such recipe.
        """
        begun, file, rest = begun_from(words)
        command, name = prog.rsplit(" ", 1)
        if file:
            return cls._with(recipe_of_run(file, JointRecipe, "train ra-clip"), rest, name, command)
        return cls._with(joint_recipe(named_recipe(begun or DEFAULT)), rest, name, command)

    def _train(self, out: Path) -> Path:
        assert isinstance(self.recipe, JointRecipe)
        return train_joint(
            self.recipe, out, resume=self.resume, device=self.device, hooks=self.hooks(), trackers=self.track
        )
