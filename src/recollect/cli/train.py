"""``recollect train``: train or post-train a dual encoder by a recipe."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from recollect.cli.parser import Arg, parse, say, value_of, warn_unused
from recollect.core.paths import check_writable
from recollect.core.validation import check_choice, check_number, refuse
from recollect.training.options import Recipe

if TYPE_CHECKING:
    from recollect.training.loop import Hook
    from recollect.training.step import Towers

_NAMES = {"data.sources": "data", "model.start": "model", "objective.base": "objective"}
SHOWN: Mapping[str, str] = {
    path: _NAMES.get(path, path.rpartition(".")[2].replace("_", "-"))
    for path in (
        "data.sources", "data.captions", "data.labels", "data.caption_column", "data.label_column", "data.image_column",
        "model.start", "model.locked", "model.lora", "objective.base", "steps", "batch_size", "chunk",
        "optimizer.learning_rate", "precision", "checkpoint_every", "seed",
    )
}  # fmt: skip
"""Fields of a recipe that help lists, and their options; every other field is an option too, by its dotted name."""

_SOURCES = ("sources", "captions", "labels")


@dataclass(frozen=True)
class Train:
    """Train or post-train a dual encoder by a recipe; without a recipe, list them.

    OUT/model is a checkpoint that transformers opens, OUT/metrics.jsonl has a line for each logged step, and
    OUT/recipe.json records the recipe. A run that was stopped or killed continues with the same command and --resume.

    The defaults below are those of the recipe named. Sources that are named (--data, --captions, --labels) replace the
    recipe's own. --config takes the recipe.json of another run, or the settings of --print-config, edited; each of
    these is an option too, e.g. --optimizer.warmup 0.1.
    """

    name: Annotated[str | None, Arg(place="RECIPE")] = None
    """Name of a recipe; `recollect train` lists them."""
    recipe: Annotated[Recipe, Arg(flat=True, shown=SHOWN)] = field(default_factory=Recipe)
    out: Annotated[Path | None, Arg(metavar="RUN")] = None
    """Folder of the run (default: runs/RECIPE)."""
    resume: bool = False
    """Continue from the last checkpoint of --out."""
    device: str | None = None
    """Where to compute, e.g. cpu or cuda (default: the fastest there is)."""
    evaluate: Annotated[tuple[str, ...], Arg(metavar="PROTOCOL=SOURCE")] = ()
    """What to measure while training: zero-shot=photos.parquet, few-shot=, probe= or retrieval=; the figures go to
    metrics.jsonl."""
    evaluate_every: int | None = None
    """Steps between these measurements (default: --checkpoint-every)."""
    track: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Where else to show the metrics; TensorBoard's files go to OUT/tensorboard."""
    push_to: Annotated[str | None, Arg(rare=True)] = None
    """Repository of the Hugging Face hub, OWNER/NAME, to upload the finished model to."""
    public: Annotated[bool, Arg(rare=True)] = False
    """Make a new repository of --push-to public."""

    @classmethod
    def parse(cls, words: list[str], prog: str) -> "Train":
        """Read the command line; its first word names the recipe, which sets the defaults of all other options.

        Raises:
            UserError: no such recipe, or a wrong option.
        """
        first = words[0] if words and not words[0].startswith("-") else None
        command = parse(cls, words, prog, cls(name=first, recipe=named_recipe(first)) if first else cls())
        late = command.name != first
        refuse((late, f"{command.name}: name the recipe before its options: {prog} {command.name} ..."))
        if first is None and (config := value_of("--config", words)):
            command = replace(command, name=Path(config).resolve().parent.name)
        short = {SHOWN[f"data.{name}"]: name for name in _SOURCES}
        typed = {word.partition("=")[0].removeprefix("--") for word in words if word.startswith("--")}
        named = {name for option, name in short.items() if {option, f"data.{name}"} & typed}
        if named:  # they replace the recipe's own sources
            data = command.recipe.data
            kept = {name: getattr(data, name) if name in named else () for name in _SOURCES}
            data = replace(data, **kept)  # type: ignore[arg-type]
            command = replace(command, recipe=replace(command.recipe, data=data))
        return command

    def hooks(self) -> "list[Hook]":
        """What to measure while training: figures in percent, by protocol, task and name.

        Sources are opened here, so that a wrong one stops the run before its first step.

        Raises:
            UserError: an unknown protocol, or a source that cannot be opened.
        """
        from recollect.evaluation.protocols import PROTOCOLS
        from recollect.training.checks import check_at_once
        from recollect.training.loop import Hook

        if self.evaluate_every is not None:
            check_number("--evaluate-every", self.evaluate_every, least=1)
        if not self.evaluate:
            warn_unused(self, "evaluate_every", why="there is nothing to measure without --evaluate PROTOCOL=SOURCE")
            return []
        self.recipe.check()
        check_at_once(self.recipe, None, resumed=self.resume)  # before what is measured is opened
        asked = []
        for word in self.evaluate:
            name, _, source = word.partition("=")
            refuse((not source, f"--evaluate {word}: write PROTOCOL=SOURCE"))
            check_choice(name, PROTOCOLS, f"--evaluate {word}: protocol")
            asked += [(name, task) for task in PROTOCOLS[name].open(source)]

        def measure(model: "Towers") -> dict[str, float]:
            encoder = model.encoder
            assert encoder is not None, "recipes train encoders"
            return {
                f"{name}/{task.name}/{figure}": value
                for name, task in asked
                for figure, value in PROTOCOLS[name].figures(encoder, task).items()
            }

        return [Hook(self.evaluate_every or self.recipe.checkpoint_every, measure)]

    def run(self) -> None:
        """Train, or list the recipes."""
        import os

        from recollect.models.hub import check_push, push_model
        from recollect.training.loop import train
        from recollect.training.run_folder import check_free
        from recollect.training.trackers import check_trackers

        if self.name is None:
            refuse((self.recipe != Recipe(), "missing: RECIPE. `recollect train` lists them."))
            _list_recipes()
            return
        if not self.push_to:
            warn_unused(self, "public", why="nothing is uploaded without --push-to OWNER/NAME")
        out = self.out or Path("runs") / self.name
        check_writable(out, "--out", "folder")
        first = int(os.environ.get("RANK", "0")) == 0  # of all processes of this launch, the one that writes
        if self.resume and first and not (out / "recipe.json").exists():
            say(f"--resume: no run in {out} yet, so it starts from the beginning")
        check_trackers(self.track)
        if first:  # the others may come when it has begun to write
            check_free(out, self.resume)
        if self.push_to and first:
            check_push(self.push_to)
        model = train(self.recipe, out, resume=self.resume, device=self.device, hooks=self.hooks(), trackers=self.track)
        if not first:
            return
        if self.push_to:
            say(f"pushed: {push_model(model, self.push_to, private=not self.public)}")
        say(f"model: {model}")
        say(f"metrics: {out / 'metrics.jsonl'}")


def named_recipe(name: str) -> Recipe:
    """The recipe of a name.

    Raises:
        UserError: there is none.
    """
    from recollect.training.recipes import RECIPES

    return RECIPES[check_choice(name, RECIPES, "recipe")]()


def _list_recipes() -> None:
    from rich.table import Table

    from recollect.core.progress import output
    from recollect.training.recipes import RECIPES

    listing = Table("recipe", "what it trains")
    for name, make in RECIPES.items():
        listing.add_row(name, (make.__doc__ or "").strip().splitlines()[0])
    output().print(listing)
