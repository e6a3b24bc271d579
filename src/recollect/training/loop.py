"""The training loop, from the first step to the finished model: `train`."""

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from recollect.core.errors import UserError
from recollect.core.paths import expanduser
from recollect.core.progress import note, progress
from recollect.core.seeding import derive_seed
from recollect.core.types import Source
from recollect.core.validation import refuse
from recollect.models import DualEncoder, TransformersEncoder
from recollect.objectives import ContextObjective, ContrastiveObjective, Objective
from recollect.training import checkpoints
from recollect.training.assembly import Parts, assemble_recipe, object_spec
from recollect.training.card import model_card
from recollect.training.checkpoints import State
from recollect.training.interruptions import StopRequest, one_line_errors, stop_requests
from recollect.training.optimizer import Averages, build_optimizer, learning_rate, parameters, set_learning_rate
from recollect.training.options import Recipe
from recollect.training.precision import LossScale, tensor_cores
from recollect.training.ranks import ProcessRanks, broadcast_weights, ranks, result_of_first, total, wait_for_all
from recollect.training.run_folder import (
    Metrics,
    as_json,
    check_data,
    check_run_folder,
    prepare_run_folder,
    remove_failed_start,
    run_finished,
    run_lock,
)
from recollect.training.sharded import clip_gradients, shard_weights, whole_weights
from recollect.training.step import CompiledForward, Inputs, StepOptions, Towers, train_step
from recollect.training.trackers import Tracker, check_trackers, open_trackers

Assemble = Callable[[Recipe, ProcessRanks, Path | None], Parts]
"""Maps a recipe, this process, and the saved model's folder (None unless resuming) to the parts of a run."""


@dataclass(frozen=True)
class Hook:
    """An evaluation during training.

    Attributes:
        every: steps between evaluations; the last step is always evaluated.
        measure: maps the model, in evaluation mode, to named numbers; called in one process.
    """

    every: int
    measure: Callable[[Towers], Mapping[str, float]]


def train(
    recipe: Recipe,
    out: Path,
    *,
    resume: bool = False,
    device: str | None = None,
    sources: Source | Sequence[Source] = (),
    objective: Objective | None = None,
    assemble: Assemble | None = None,
    hooks: Sequence[Hook] = (),
    trackers: Sequence[Tracker] = (),
) -> Path:
    """Train ``recipe`` in the folder ``out``.

    ``out`` receives ``recipe.json``, ``metrics.jsonl`` (one line per logged step), ``checkpoints/`` and finally
    ``model/``. A run that is killed at any point and resumed ends with the same weights and metrics as an uninterrupted
    one, bit for bit on the same machine.

    Args:
        recipe: model, data, objective and options.
        out: folder of the run; must be missing or empty unless ``resume`` is set.
        resume: continue from the last checkpoint, or from the start if there is none.
        device: device to compute on (default: the best available).
        sources: a Python object to train on, or several, in addition to the recipe's sources. ``recipe.json`` records
            their names and fingerprints, and a run resumes only with the same ones.
        objective: replaces the recipe's objective; not recorded in ``recipe.json``.
        assemble: builds model, objective and batches; replaces ``sources`` and ``objective``.
        hooks: evaluations during training; each adds a line ``{"step": ..., "evaluation": {...}}`` to the metrics.
            They do not affect the run.
        trackers: additional places to log the metrics.

    Returns:
        Folder of the trained model.

    Raises:
        UserError: bad input, a non-finite loss, or no disk space or memory left.
        ValueError: ``assemble`` together with ``sources`` or ``objective``; or a recipe subclass without ``assemble``.
        KeyboardInterrupt, SystemExit: after Ctrl-C or SIGTERM, once a checkpoint is written.
    """
    out = Path(expanduser(out))
    sources = (sources,) if isinstance(sources, Source) else sources  # a source is a sequence too, of samples
    objects = {object_spec(source): source for source in sources}
    if assemble is None:
        if type(recipe) is not Recipe:
            raise ValueError(f"train() cannot assemble a {type(recipe).__name__}; pass assemble")
        assemble = partial(assemble_recipe, objects=objects, objective=objective)
    elif sources or objective:
        raise ValueError("pass either sources and objective, or assemble, which builds both")
    recipe = replace(recipe, data=replace(recipe.data, sources=(*recipe.data.sources, *objects)))
    recipe.check()
    check_trackers(trackers)
    with (
        ranks(device) as process,
        one_line_errors(str(out)),
        tensor_cores(recipe.precision),
        ExitStack() as held,
    ):
        if result_of_first(lambda: _may_start(out, recipe, resume, held)):
            return out / "model"
        name = result_of_first(lambda: _last_checkpoint(out, recipe))
        last = out / "checkpoints" / name if name else None
        parts = assemble(recipe, process, last / "model" if last else None)
        if last:
            result_of_first(partial(check_data, last, parts.data))
        wait_for_all()  # all processes read the folder before the first one writes to it
        if process.first:
            held.enter_context(remove_failed_start(out))
        result_of_first(lambda: prepare_run_folder(out, recipe, last))
        run = _Run(recipe, out, parts, process, last, hooks, trackers)
        if run.metrics:
            held.callback(run.metrics.close)
        with stop_requests() as request:
            run.finish(request)
            wait_for_all()
    return out / "model"


def _may_start(out: Path, recipe: Recipe, resume: bool, held: ExitStack) -> bool:
    """Lock the folder, and return whether the run is already finished."""
    held.enter_context(run_lock(out))
    check_run_folder(out, recipe, resume)
    return run_finished(out, recipe)


def _last_checkpoint(out: Path, recipe: Recipe) -> str | None:
    """Return the name of the checkpoint to resume from; None to start from step 0."""
    last = checkpoints.newest_whole(out / "checkpoints")
    done = int(last.name.removeprefix("step-")) if last else 0
    lost = (out / "model").exists() and not last
    refuse(
        (done > recipe.steps, f"{out}: already at step {done}, beyond --steps {recipe.steps}. Raise --steps."),
        (lost, f"{out}: its checkpoints are missing, so it cannot be resumed. Start a new run from {out}/model."),
    )
    return last.name if last else None


@contextmanager
def _evaluating(model: Towers) -> Iterator[None]:
    """Set evaluation mode while the block runs, and preserve the random state of the run."""
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        model.train(False)
        try:
            yield
        finally:
            model.train()


class _Run:
    """The state of a run, and the methods that update it."""

    def __init__(
        self,
        recipe: Recipe,
        out: Path,
        parts: Parts,
        process: ProcessRanks,
        last: Path | None,
        hooks: Sequence[Hook],
        trackers: Sequence[Tracker],
    ) -> None:
        self.recipe, self.out, self.process, self.parts, self.hooks = recipe, out, process, parts, hooks
        self.model = parts.model.to(process.device).train()
        self.objective = parts.objective.to(process.device).train()
        broadcast_weights((self.model, self.objective))
        if recipe.shard_weights and process.size > 1:
            shard_weights(self.model)
        self.optimizer = build_optimizer(self.model, self.objective, recipe.optimizer)
        self.compiled = CompiledForward(self.model) if recipe.compile else None
        scale = LossScale.of(recipe.precision)
        self.state = State(loss_scale=(scale.factor, scale.good), data=parts.data)
        self.averages = None
        if recipe.average is not None:
            averaged: dict[str, torch.Tensor] = {
                name: value for name, value in self.model.named_parameters() if value.requires_grad
            }
            # batch norm's statistics must fit the averaged weights
            averaged |= {
                name: value
                for name, value in self.model.named_buffers()
                if name.endswith(("running_mean", "running_var"))
            }
            self.averages = Averages(averaged, recipe.average)
        if last:
            restored = checkpoints.restore(last, self.objective, self.optimizer, self.averages)
            self.state = replace(restored, data=parts.data)
        self.metrics: Metrics | None = None
        if process.first:
            shown = open_trackers(trackers, out, as_json(recipe), self.state.step)
            self.metrics = Metrics(out / "metrics.jsonl", self.state.step, shown)
        self.last_line = (self.state.step, time.perf_counter())
        self.measured, self.saved = True, self.state.step

    def finish(self, request: StopRequest) -> None:
        """Run the remaining steps, then write the model."""
        size, steps = self.recipe.batch_size, self.recipe.steps
        done = self.state.step * size
        if done and result_of_first(self.evaluation_pending):
            self.measure(request)
            if not self.measured:
                self.leave(request)
        with progress("training", steps * size, "example", done, shown=self.process.first) as counter:
            for inputs in self.parts.feed(self.state.step, steps):
                report = self.step(inputs)
                if self.state.step in (1, steps) or self.state.step % self.recipe.log_every == 0:
                    self.log(report)
                if self.state.step == steps or self.state.step % self.recipe.checkpoint_every == 0:
                    self.save()  # before the evaluation, which may fail or be killed
                self.measure(request)
                stop = self.stop_requested(request)
                counter.advance(size, f"loss {report['loss']:.4g}")
                if stop:
                    self.save()
                if stop and (self.state.step < steps or not self.measured):
                    self.leave(request)
        with self.averages.in_place() if self.averages else nullcontext(), whole_weights(self.model):
            result_of_first(self.write_model)

    def due(self) -> list[Hook]:
        """Return the hooks due at this step."""
        step = self.state.step
        return [hook for hook in self.hooks if step % hook.every == 0 or step == self.recipe.steps]

    def evaluation_pending(self) -> bool:
        """Return whether the run stopped before evaluating the step it resumes from."""
        assert self.metrics is not None, "the first process has the metrics"
        return bool(self.due()) and self.metrics.measured < self.state.step

    def measure(self, request: StopRequest) -> None:
        """Run the due hooks on the model as it would be saved; if one fails, save a checkpoint before raising."""
        due = self.due()
        if not due:
            return
        began, failed = time.perf_counter(), None
        with self.averages.in_place() if self.averages else nullcontext(), whole_weights(self.model):
            try:
                self.measured = result_of_first(lambda: self.write_figures(due, request))
            except Exception as error:  # raised in every process
                failed = error
        self.last_line = (self.last_line[0], self.last_line[1] + time.perf_counter() - began)
        if failed is not None:
            with suppress(UserError):  # disk full: the previous checkpoint remains
                self.save()
                if self.process.first:
                    note(f"{self.out}: evaluation failed at step {self.state.step}; --resume continues there")
            raise failed

    def write_figures(self, hooks: Sequence[Hook], request: StopRequest) -> bool:
        """Evaluate in the first process and add a line to the metrics for each hook.

        A stop request interrupts the evaluation, and the resumed run repeats it.

        Returns:
            Whether all hooks ran.
        """
        assert self.metrics is not None, "the first process has the metrics"
        results: list[Mapping[str, float]] = []
        if not request.signal:
            with _evaluating(self.model), request.ends():
                results += [dict(hook.measure(self.model)) for hook in hooks]
        for figures in results:
            self.metrics.write({"step": self.state.step, "evaluation": figures})
        self.metrics.sync()  # the checkpoint of this step is already written
        return len(results) == len(hooks)

    def write_model(self) -> None:
        """Write the finished model (first process only)."""
        assert self.metrics is not None, "the first process has the metrics"
        encoder, subject = self.model.encoder, self.parts.subject
        if isinstance(encoder, DualEncoder) and not isinstance(encoder, TransformersEncoder):
            subject = replace(subject, library="recollect")
        own = not isinstance(self.objective, ContrastiveObjective | ContextObjective)  # not the recipe's
        name = type(self.objective).__name__ if own else None
        # The last line comes from the file, since a run resumed after its last step logs nothing.
        card = model_card(as_json(self.recipe), self.parts.seen(self.state.step), self.metrics.last, name, subject)
        checkpoints.save_model(self.out / "model", self.model, card)

    def step(self, inputs: Inputs) -> dict[str, float]:
        """Update the weights once, unless the loss or the gradient is not finite.

        Args:
            inputs: this process's rows.

        Returns:
            The objective's report, the gradient norm before clipping, and the learning rate.
        """
        recipe, number = self.recipe, self.state.step + 1
        rate = learning_rate(recipe.optimizer, number, recipe.steps)
        set_learning_rate(self.optimizer, rate)
        self.optimizer.zero_grad()
        scale = LossScale(*self.state.loss_scale)
        seed = derive_seed(recipe.seed, "step", number)
        options = StepOptions(recipe.chunk, recipe.precision, seed, scale.factor)
        with self.compiled.in_use() if self.compiled else nullcontext():
            report = train_step(self.model, self.objective, inputs, options)
        report["gradient_norm"] = clip_gradients(parameters(self.optimizer), recipe.optimizer.clip_norm)
        numbers = {name: float(value) for name, value in report.items()}
        finite = math.isfinite(numbers["gradient_norm"])
        if not math.isfinite(numbers["loss"]) or not (finite or scale.may_shrink):
            raise UserError(self.divergence(numbers, number))
        if finite:
            self.optimizer.step()
        else:  # float16 overflow: scale the next step less
            del numbers["gradient_norm"]
        if self.averages:
            self.averages.update(number)
        after = scale.after(finite)
        self.state = replace(self.state, step=number, loss_scale=(after.factor, after.good))
        if recipe.precision == "float16":
            numbers["loss_scale"] = scale.factor
        return numbers | {"learning_rate": rate}

    def stop_requested(self, request: StopRequest) -> bool:
        """Return whether any process received a stop signal; all must stop after the same step."""
        return bool(total(torch.tensor(int(request.signal > 0), device=self.process.device)))

    def log(self, report: dict[str, float]) -> None:
        """Write a line to the metrics."""
        if not self.metrics:
            return
        step, now = self.state.step, time.perf_counter()
        size = self.recipe.batch_size
        rate = (step - self.last_line[0]) * size / (now - self.last_line[1])
        self.last_line = (step, now)
        line = {"step": step, "examples": step * size, **report, "examples_per_second": round(rate, 1)}
        self.metrics.write(line | {"seen": self.parts.seen(step)})

    def save(self) -> None:
        """Write a checkpoint of this step, unless it exists."""
        if self.saved == self.state.step:
            return
        tensors = checkpoints.training_tensors(self.objective, self.optimizer, self.averages, kept=self.process.first)
        with whole_weights(self.model):
            result_of_first(lambda: self.write_checkpoint(tensors))
        self.saved = self.state.step

    def write_checkpoint(self, tensors: dict[str, torch.Tensor]) -> None:
        """Write a checkpoint (first process only). The model stores the objective's temperature, as CLIP does."""
        assert self.metrics is not None, "the first process has the metrics"
        if learned := self.objective.scale_and_bias():
            self.model.set_scale(*learned)
        self.metrics.sync()
        folder, keep = self.out / "checkpoints", self.recipe.checkpoints_kept
        checkpoints.save(folder, self.state, self.model, tensors, keep)

    def leave(self, request: StopRequest) -> None:
        """Print the state of the run and exit as the signal would."""
        if self.process.first:
            done = f"stopped after step {self.state.step} of {self.recipe.steps}"
            print(f"{done}; run the same command with --resume to continue", file=sys.stderr)
        request.leave()

    def divergence(self, numbers: dict[str, float], step: int) -> str:
        last = checkpoints.latest(self.out / "checkpoints")
        loss, norm = numbers["loss"], numbers["gradient_norm"]
        return (
            f"{self.out}: step {step} has loss {loss} and gradient norm {norm}. "
            f"Last good checkpoint: {last or 'none yet'}. Try a lower --learning-rate or a longer warm-up."
        )
