"""``recollect train``: train or post-train a dual encoder by a recipe."""

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table

from recollect.cli.parsing import parse_options
from recollect.cli.train_hooks import measuring_hooks
from recollect.core.errors import UserError
from recollect.core.files import check_writable, read_json
from recollect.core.given import option_of
from recollect.core.progress import output
from recollect.models.hub import check_push, push_model
from recollect.training.loop import Hook, train
from recollect.training.options import AnyRecipe, Recipe, recipe_from_json
from recollect.training.recipes import RECIPES
from recollect.training.run_folder import check_free
from recollect.training.trackers import Tracker, check_trackers
from recollect.training.unused import refuse_at_once

SOURCE_OPTIONS = frozenset({"--data.sources", "--data.captions", "--data.labels"})

_COLUMNS = ("image", "caption", "label", "class-name", "synonyms", "split")
_SHORT = {"--data": "--data.sources"} | {f"--{role}-column": f"--data.{role}-column" for role in _COLUMNS}
"""Options as other commands call them."""


@dataclass(frozen=True)
class Train:
    """Train or post-train a dual encoder by a recipe.

    OUT/model is a checkpoint that transformers opens, OUT/metrics.jsonl has a line for each logged step, and
    OUT/recipe.json says what was run. A run that was stopped or killed goes on with the same command and --resume.

    `recollect train --config OTHER/recipe.json` takes the recipe of another run.

    `recollect train` lists the recipes; the options below show the values of the recipe that was named. Sources that
    are named (--data SOURCE ..., or --data.captions and --data.labels) take the place of the recipe's own.
    """

    recipe: Annotated[Recipe, tyro.conf.arg(name="")] = field(default_factory=Recipe)
    out: Path | None = None
    """Folder of the run; runs/RECIPE by default."""
    resume: bool = False
    """Go on from the last checkpoint of --out."""
    device: str | None = None
    """Where to compute, e.g. cpu or cuda; the best there is by default."""
    evaluate: tuple[str, ...] = ()
    """What to measure while training, PROTOCOL=SOURCE ...: zero-shot=photos.parquet, few-shot=, probe=, retrieval=. The
    figures go to metrics.jsonl."""
    evaluate_every: int | None = None
    """Steps between these measurements; by default as often as checkpoints."""
    track: tuple[Tracker, ...] = ()
    """Where else the metrics are shown; TensorBoard's files lie in OUT/tensorboard."""
    push_to: str | None = None
    """Repository of the Hugging Face hub, OWNER/NAME, that the finished model is sent to."""
    public: bool = False
    """Let everybody see a repository that --push-to makes."""
    name: tyro.conf.Suppress[str] = ""

    @classmethod
    def parse(cls, words: list[str], prog: str) -> "Train":
        """Read the command line; its first word names the recipe, which sets the defaults of all other options.

        Raises:
            UserError: no such recipe.
        """
        name, file, rest = begun_from(words)
        if file:
            return cls._with(recipe_of_run(file, Recipe, "train"), rest, file.resolve().parent.name, prog)
        return cls._with(named_recipe(name) if name else Recipe(), rest, name, prog)

    @classmethod
    def _with(cls, recipe: Recipe, rest: list[str], name: str, prog: str) -> "Train":
        rest = [full_name(word) for word in rest]
        if SOURCE_OPTIONS & {word.split("=")[0] for word in rest}:
            recipe = replace(recipe, data=replace(recipe.data, sources=(), captions=(), labels=()))
        _refuse_twice(rest)
        default = cls(recipe, name=name)
        config = (tyro.conf.AvoidSubcommands,)
        command = parse_options(cls, rest, f"{prog} {name or 'RECIPE'}", config, default=default)
        if not name and rest:
            raise UserError(f"{rest[0]}: of which recipe? Name one first; `recollect train` lists them.")
        return command

    def hooks(self) -> list[Hook]:
        """What to measure while training.

        Raises:
            UserError: an option that measures nothing, an unknown protocol, or a source that cannot be opened.
        """
        if self.evaluate_every is not None and self.evaluate_every < 1:
            raise UserError(f"--evaluate-every {self.evaluate_every}: must be at least 1.")
        if not self.evaluate:
            if self.evaluate_every is not None:
                raise UserError("--evaluate-every: nothing to measure. Say what with --evaluate PROTOCOL=SOURCE.")
            return []
        self.recipe.check()
        refuse_at_once(self.recipe, None, resumed=self.resume)  # before what is measured is opened
        every = self.recipe.checkpoint_every if self.evaluate_every is None else self.evaluate_every
        return [Hook(every, measuring_hooks(self.evaluate))]

    def run(self) -> None:
        """Train, or list the recipes."""
        console = output()
        if not self.name:
            listing = Table("recipe", "what it trains")
            for name, make in RECIPES.items():
                listing.add_row(name, (make.__doc__ or "").strip().splitlines()[0])
            console.print(listing)
            return
        if self.public and not self.push_to:
            raise UserError("--public: is for a repository that --push-to makes. Add --push-to OWNER/NAME.")
        out = self.out or Path("runs") / self.name
        check_writable(out, "--out")
        first = int(os.environ.get("RANK", "0")) == 0  # of all processes of this launch, the one that writes
        if self.resume and first and not (out / "recipe.json").exists():
            console.print(f"--resume: no run in {out} yet, so it starts from the beginning", highlight=False)
        check_trackers(self.track)
        if first:  # the others may come when it has begun to write
            check_free(out, self.resume)
        if self.push_to and first:
            check_push(self.push_to)
        model = self._train(out)
        if not first:
            return
        if self.push_to:
            console.print(f"pushed: {push_model(model, self.push_to, private=not self.public)}", highlight=False)
        console.print(f"model: {model}\nmetrics: {out / 'metrics.jsonl'}", highlight=False)

    def _train(self, out: Path) -> Path:
        """The folder of the trained model."""
        return train(self.recipe, out, resume=self.resume, device=self.device, hooks=self.hooks(), trackers=self.track)


def begun_from(words: list[str]) -> tuple[str, Path | None, list[str]]:
    """The recipe that the first word names, the file behind ``--config``, and the other words.

    Raises:
        UserError: both are there.
    """
    name, rest = (words[0], words[1:]) if words and not words[0].startswith("-") else ("", words)
    if given := config_in(words):
        file, rest = given
        if name:
            raise UserError(f"{name} and --config {file}: both name a recipe. Take one of them.")
        return name, file, rest
    return name, None, rest


_OF_COMMAND = {
    "train reco": frozenset({"fusion", "terms", "score_of", "mask", "newness", "epochs"}),
    "train ra-clip": frozenset({"memory", "searcher"}),
}
"""Options by which recipes are known, the first that has one of them; all others are those of `recollect train`."""


def recipe_of_run(file: Path, kind: type[AnyRecipe], command: str) -> AnyRecipe:
    """The recipe that another run was of.

    Args:
        file: a ``recipe.json``.
        kind: of recipe that the command takes.
        command: that asks; `train ra-clip` begins with recipes of `train` too.

    Raises:
        UserError: no such file, not a recipe, or one of another command.
    """
    held = read_json(file)
    if isinstance(held, Mapping):
        of = next((name for name, known in _OF_COMMAND.items() if known & held.keys()), "train")
        if of != command and (of, command) != ("train", "train ra-clip"):
            raise UserError(f"{file}: of a run of `recollect {of}`. Take `recollect {of} --config` with it.")
    return recipe_from_json(file, kind)


def named_recipe(name: str) -> Recipe:
    """The recipe of a name.

    Raises:
        UserError: there is none.
    """
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, 3, 0.5)
        guess = f"Did you mean {' or '.join(near)}? " if near else ""
        raise UserError(f"{name}: no such recipe. {guess}`recollect train` lists them.")
    return RECIPES[name]()


def config_in(words: list[str]) -> tuple[Path, list[str]] | None:
    """The file behind ``--config``, and the words without it."""
    for place, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option == "--config":
            if not equals and place + 1 == len(words):
                raise UserError("--config: name a recipe.json")
            behind = place + (1 if equals else 2)
            return Path(value if equals else words[place + 1]), words[:place] + words[behind:]
    return None


def _refuse_twice(words: list[str]) -> None:
    """Refuse an option under two names, of which one would be lost."""
    given = [option_of(word) for word in words if word.startswith("--")]
    if twice := next((option for option in given if given.count(option) > 1), None):
        raise UserError(f"--{twice.replace('_', '-')}: given twice, under two names. Give several values behind one.")


def full_name(word: str) -> str:
    """An option as `recollect train` declares it, from how other commands call it."""
    option, equals, value = word.partition("=")
    return _SHORT.get(option, option) + equals + value
