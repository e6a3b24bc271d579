"""``recollect train``: train or post-train a dual encoder with a recipe."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from recollect.cli.parser import Arg, parse, say, show_table, value_of, warn_unused
from recollect.core.paths import check_writable
from recollect.core.validation import check_choice, check_number, refuse
from recollect.training.options import Recipe

if TYPE_CHECKING:
    from recollect.training.loop import Hook
    from recollect.training.step import Towers

_NAMES = {"data.sources": "data", "model.start": "model", "objective.base": "objective"}
SHOWN_OPTIONS: Mapping[str, str] = {
    path: _NAMES.get(path, path.rpartition(".")[2].replace("_", "-"))
    for path in (
        "data.sources", "data.captions", "data.labels", "data.caption_column", "data.label_column", "data.image_column",
        "model.start", "model.locked", "model.lora", "objective.base", "steps", "batch_size", "chunk",
        "optimizer.learning_rate", "precision", "checkpoint_every", "seed",
    )
}  # fmt: skip
"""Recipe fields listed in the help, with their short option names; all other fields are options by dotted name."""

_SOURCES = ("sources", "captions", "labels")


@dataclass(frozen=True)
class Train:
    """Train or post-train a dual encoder with a recipe; without a recipe, list all recipes.

    OUT/model is a checkpoint that transformers can open, OUT/metrics.jsonl has one line per logged step, and
    OUT/recipe.json records the recipe. To continue an interrupted run, repeat the command with --resume.

    The recipe sets the defaults below. --data, --captions and --labels replace all sources of the recipe. --config
    reads the recipe.json of another run, or an edited copy of the --print-config output; every setting in it is also an
    option, e.g. --optimizer.warmup 0.1.
    """

    name: Annotated[str | None, Arg(place="RECIPE")] = None
    """Name of a recipe; `recollect train` lists them."""
    recipe: Annotated[Recipe, Arg(flat=True, shown=SHOWN_OPTIONS)] = field(default_factory=Recipe)
    out: Annotated[Path | None, Arg(metavar="RUN")] = None
    """Folder of the run (default: runs/RECIPE)."""
    resume: bool = False
    """Continue from the last checkpoint of --out."""
    device: str | None = None
    """Device, e.g. cpu or cuda (default: the fastest available)."""
    evaluate: Annotated[tuple[str, ...], Arg(metavar="PROTOCOL=SOURCE")] = ()
    """Evaluations during training: zero-shot=SOURCE, few-shot=SOURCE, probe=SOURCE or retrieval=SOURCE. Results are
    written to metrics.jsonl."""
    evaluate_every: int | None = None
    """Steps between evaluations (default: --checkpoint-every)."""
    track: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Also log metrics to these trackers; TensorBoard files are written to OUT/tensorboard."""
    push_to: Annotated[str | None, Arg(rare=True)] = None
    """Hugging Face repository, OWNER/NAME, to upload the finished model to."""
    public: Annotated[bool, Arg(rare=True)] = False
    """Make the repository of --push-to public if it is new."""

    @classmethod
    def parse(cls, words: list[str], prog: str) -> "Train":
        """Parse the command line; its first word is the recipe, which sets the defaults of all other options.

        Raises:
            UserError: an unknown recipe or an invalid option.
        """
        first = words[0] if words and not words[0].startswith("-") else None
        command = parse(cls, words, prog, cls(name=first, recipe=named_recipe(first)) if first else cls())
        late = command.name != first
        refuse((late, f"{command.name}: name the recipe before its options: {prog} {command.name} ..."))
        if first is None and (config := value_of("--config", words)):
            command = replace(command, name=Path(config).resolve().parent.name)
        short = {SHOWN_OPTIONS[f"data.{name}"]: name for name in _SOURCES}
        typed = {word.partition("=")[0].removeprefix("--") for word in words if word.startswith("--")}
        given = {name for option, name in short.items() if {option, f"data.{name}"} & typed}
        if given:  # they replace all sources of the recipe
            data = command.recipe.data
            sources = {name: getattr(data, name) if name in given else () for name in _SOURCES}
            data = replace(data, **sources)  # type: ignore[arg-type]
            command = replace(command, recipe=replace(command.recipe, data=data))
        return command

    def hooks(self) -> "list[Hook]":
        """Return the evaluations to run during training; they give percentages by protocol, task and metric.

        Sources are opened here, so a wrong one stops the run before its first step.

        Raises:
            UserError: a protocol is unknown, or a source cannot be opened.
        """
        from recollect.evaluation.protocols import PROTOCOLS
        from recollect.training.checks import check_without_data
        from recollect.training.loop import Hook

        if self.evaluate_every is not None:
            check_number("--evaluate-every", self.evaluate_every, least=1)
        if not self.evaluate:
            warn_unused(self, "evaluate_every", why="only used with --evaluate PROTOCOL=SOURCE")
            return []
        self.recipe.check()
        check_without_data(self.recipe, None, resumed=self.resume)  # before the sources are opened
        evaluations = []
        for word in self.evaluate:
            name, _, source = word.partition("=")
            refuse((not source, f"--evaluate {word}: write PROTOCOL=SOURCE"))
            check_choice(name, PROTOCOLS, f"--evaluate {word}: protocol")
            evaluations += [(name, task) for task in PROTOCOLS[name].open(source)]

        def measure(model: "Towers") -> dict[str, float]:
            encoder = model.encoder
            assert encoder is not None, "recipes train encoders"
            return {
                f"{name}/{task.name}/{figure}": value
                for name, task in evaluations
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
        first = int(os.environ.get("RANK", "0")) == 0  # only the first process writes files
        if self.resume and first and not (out / "recipe.json").exists():
            say(f"--resume: no run in {out} yet, starting a new one")
        check_trackers(self.track)
        if first:  # other processes may check after this one has started to write
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
    """Return the recipe with the given name.

    Raises:
        UserError: no such recipe.
    """
    from recollect.training.recipes import RECIPES

    return RECIPES[check_choice(name, RECIPES, "recipe")]()


def _list_recipes() -> None:
    from recollect.training.recipes import RECIPES

    rows = [(name, (make.__doc__ or "").strip().splitlines()[0]) for name, make in RECIPES.items()]
    show_table(("recipe", "description"), rows)
