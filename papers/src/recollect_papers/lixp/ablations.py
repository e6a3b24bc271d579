"""Ablations of the context objective (LIxP, Tables 4, 5 and 6)."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from recollect.core.validation import check_choices
from recollect.objectives import Attended, Base, ContextObjective, Form, attend, softmax_contrastive
from recollect.objectives.base import Report, logarithm, unit
from recollect.objectives.contextual import BatchRows
from recollect.objectives.shards import WHOLE, Copies, Shard, find_copies
from recollect.objectives.tiles import check_pairs, full_precision
from recollect.training.options import Context

_UNKNOWN = -1
"""Duplicate id of a key with no known duplicates."""


@dataclass(frozen=True)
class ContextOptions:
    """Ablations of the context objective; the defaults give the paper's objective (LIxP, Eq. 6 and 8).

    Attributes:
        mask: exclude each row from its own context (Table 4a).
        residual: use a single loss on ``norm(alpha x + (1 - alpha) x_ctx)`` instead of two losses (Table 4c).
        values: values of the attention: unnormalized image embeddings or texts (Table 4c, "multimodal"; requires
            the mask).
        stages: 2 attends twice, with a learned linear map of the second stage's keys and values (Eq. 9, Table 4c).
        tied: ``all``: tau_1 = tau_2 = tau_context; ``context``: tau_2 = tau_context; ``scales``: tau_1 = tau_2
            (Table 4d).
        freeze_temperature: keep tau_context fixed (Table 4d).
        stop_gradient: stop the gradient through the keys, the values or both (Table 4e).
        separate: attend to a second batch, passed as ``context`` (Table 5a).
        value_head: number of layers of a learned map of the values, 0 to 3 (Table 5b).
        normalize_keys: use unit-norm queries and keys (Table 5c).
        layer_norm: apply LayerNorm to the keys, the values or both (Table 5d).
        stale_rows: number of detached rows from past steps used as extra context, first in, first out (Table 5e).
            A sample does not attend to its own stale copy.
        active_rows: attend to a random subset of the batch of this size; None means the whole batch (Table 5f).
        augmented: attend to a second view of each image, without a mask. ``buffer``: the views are context only;
            ``all``: they are trained on too; ``all+infonce``: plus an image-view InfoNCE loss (Table 6).
    """

    mask: bool = True
    residual: bool = False
    values: Literal["images", "texts"] = "images"
    stages: Literal[1, 2] = 1
    tied: Literal["none", "scales", "context", "all"] = "none"
    freeze_temperature: bool = False
    stop_gradient: Literal["none", "keys", "values", "both"] = "none"
    separate: bool = False
    value_head: Literal[0, 1, 2, 3] = 0
    normalize_keys: bool = True
    layer_norm: Literal["none", "keys", "values", "both"] = "none"
    stale_rows: int = 0
    active_rows: int | None = None
    augmented: Literal["none", "buffer", "all", "all+infonce"] = "none"

    def __post_init__(self) -> None:
        check_choices(self)
        for wrong, message in self._contradictions():
            if wrong:
                raise ValueError(message)

    def _contradictions(self) -> Iterator[tuple[bool, str]]:
        foreign, residual, two = self.separate or self.augmented != "none", self.residual, self.stages == 2
        texts, subset = self.values == "texts", self.active_rows is not None
        yield self.separate and self.augmented != "none", "separate and augmented both define the buffer; choose one"
        wrong = texts and (not self.mask or foreign or self.stale_rows > 0)
        yield wrong, "values='texts' needs the mask and the batch itself as the buffer"
        yield self.stale_rows < 0, f"stale_rows must not be negative, got {self.stale_rows}"
        wrong = self.active_rows is not None and (self.active_rows < 2 or foreign)
        yield wrong, "active_rows must be at least 2, and needs the batch itself as the buffer"
        wrong = self.tied in {"context", "all"} and self.freeze_temperature
        yield wrong, "a tied tau_context cannot be frozen"
        wrong = two and (foreign or self.stale_rows > 0 or subset)
        yield wrong, "stages=2 needs the batch itself as the buffer"
        wrong = two and (self.value_head > 0 or not self.normalize_keys or texts)
        yield wrong, "stages=2 has a separate map: it needs normalized keys, and no value_head or texts"
        wrong = two and (self.stop_gradient != "none" or self.layer_norm != "none")
        yield wrong, "stages=2 is not defined with stop_gradient or layer_norm; choose one ablation"
        wrong = residual and self.augmented.startswith("all")
        yield wrong, "residual has one loss, on the mixture, so views can only be its buffer (augmented='buffer')"
        wrong = residual and self.tied in {"context", "scales"}
        yield wrong, "residual has one loss and no tau_2; tied='all' ties tau_1 and tau_context"
        wrong = not self.mask and self.augmented != "none"
        yield wrong, "augmented never uses a mask, so mask=False has no effect"
        wrong = self.stops("keys") and self.normalizes("keys")
        yield wrong, "layer_norm of the keys cannot learn with stop_gradient of the keys; choose one"
        wrong = self.stops("values") and (self.normalizes("values") or self.value_head > 0)
        yield wrong, "layer_norm or value_head of the values cannot learn with stop_gradient of the values"

    @property
    def needs_width(self) -> bool:
        """Whether any parameter or buffer has the width of the embeddings."""
        return self.stages == 2 or self.value_head > 0 or self.layer_norm != "none" or self.stale_rows > 0

    def stops(self, part: Literal["keys", "values"]) -> bool:
        """Return whether ``part`` of the buffer is detached."""
        return self.stop_gradient in {part, "both"}

    def normalizes(self, part: Literal["keys", "values"]) -> bool:
        """Return whether ``part`` of the buffer has a LayerNorm."""
        return self.layer_norm in {part, "both"}


@dataclass(frozen=True)
class AblatedContext(Context):
    """The context objective of a recipe with an ablation.

    Attributes:
        options: the ablation.
    """

    options: ContextOptions = field(default_factory=ContextOptions)

    def objective(self, base: Base, width: int, scale: float, bias: float) -> "AblatedContextObjective":
        return AblatedContextObjective(
            base, self.alpha, self.options, width=width, scale=scale, bias=bias, tau_context=self.tau
        )


class Buffer(NamedTuple):
    """Context of a batch: keys, values, the index of each query's own key (-1: none), and duplicates to mask."""

    keys: Tensor
    values: Tensor
    own: Tensor | None
    copies: Copies | None


class AblatedContextObjective(ContextObjective):
    """The context objective with an ablation.

    Args:
        options: the ablation; the defaults give the paper's objective.
        width: width of the embeddings; required by options with parameters or buffers of that width.

    Raises:
        ValueError: see `ContextObjective`, or ``width`` is missing.
    """

    stale: Tensor | None
    stale_count: Tensor
    stale_duplicate_ids: Tensor | None

    def __init__(
        self,
        base: Base = "sigmoid",
        alpha: float = 0.9,
        options: ContextOptions = ContextOptions(),
        *,
        width: int | None = None,
        scale: float = 10.0,
        bias: float = -10.0,
        tau_context: float = 1.0,
        form: Form = "auto",
    ) -> None:
        super().__init__(base, alpha, scale=scale, bias=bias, tau_context=tau_context, form=form)
        self.options = options
        if options.residual:
            self.context_term = None
        elif options.tied in {"all", "scales"}:
            assert self.context_term is not None
            self.context_term.log_scale = self.term.log_scale
        if options.tied in {"all", "context"}:
            tied = self.term if options.tied == "all" else self.context_term or self.term
            self.log_tau = tied.log_scale
        self.log_tau.requires_grad_(not options.freeze_temperature)
        self.log_scale_views = logarithm(scale) if options.augmented == "all+infonce" else None
        if options.needs_width and width is None:
            raise ValueError("these options need the width of the embeddings: pass width")
        self.map, self.head, self.key_norm, self.value_norm = _heads(options, width or 0)
        rows = options.stale_rows
        self.register_buffer("stale", torch.zeros(rows, width or 0) if rows else None)
        self.register_buffer("stale_count", torch.zeros((), dtype=torch.int64))
        # Created with the first batch, which defines the number of columns.
        self.register_buffer("stale_duplicate_ids", None)

    @property
    def needs(self) -> frozenset[str]:
        wanted = {
            "labels": self.term.loss.labeled,
            "views": self.options.augmented != "none",
            "context": self.options.separate,
        }
        return frozenset(name for name, needed in wanted.items() if needed)

    def temperatures(self) -> list[nn.Parameter]:
        own = [*self.term.parameters(), self.log_tau, self.log_scale_views]
        own += list(self.context_term.parameters()) if self.context_term is not None else []
        unique = {id(parameter): parameter for parameter in own if parameter is not None}
        return [parameter for parameter in unique.values() if parameter.requires_grad]

    def forward(  # type: ignore[override]
        self,
        images: Float[Tensor, "batch width"],
        texts: Float[Tensor, "batch width"],
        *,
        labels: Int[Tensor, " batch"] | None = None,
        views: Float[Tensor, "batch width"] | None = None,
        context: Float[Tensor, "rows width"] | None = None,
        duplicate_ids: Int[Tensor, "batch columns"] | None = None,
        context_duplicate_ids: Int[Tensor, "rows columns"] | None = None,
        seed: int = 0,
        shard: Shard = WHOLE,
    ) -> tuple[Tensor, Report]:
        """See `ContextObjective.forward`; option ``augmented`` requires ``views``, and ``separate`` ``context``.

        Raises:
            ValueError: shapes differ, a required argument is missing, or the context is empty.
        """
        check_pairs(images, texts)
        rows = BatchRows(full_precision(images), unit(images), unit(texts), labels, duplicate_ids, shard)
        buffer = self._buffer(rows, views, context, context_duplicate_ids, seed)
        found = self._attend(rows, buffer)
        if self.context_term is None:
            loss, report = self._residual_loss(rows, found)
        else:
            loss, report = self._all_losses(rows, found, views)
        self._remember(rows.images, duplicate_ids, shard)
        return loss, report

    def _all_losses(self, rows: BatchRows, found: Attended, views: Tensor | None) -> tuple[Tensor, Report]:
        """Compute the losses on the embeddings, their context (Eq. 6) and the views (Table 6)."""
        sets = [self.term.set_of(rows.unit_images, self.alpha)]
        if views is not None and self.options.augmented.startswith("all"):
            sets = [self.term.set_of(seen, self.alpha / 2) for seen in (rows.unit_images, unit(views))]
        loss, report = self.two_losses(rows, sets, found)
        if views is not None and self.log_scale_views is not None:
            scale = self.log_scale_views.exp()
            alike = softmax_contrastive(
                rows.unit_images, unit(views), scale, duplicate_ids=rows.duplicate_ids, form=self.form, shard=rows.shard
            )
            loss, report["loss"] = loss + alike, report["loss"] + rows.shard.total(alike.detach().clone())
        return loss, report

    def _residual_loss(self, rows: BatchRows, found: Attended) -> tuple[Tensor, Report]:
        """Compute a single loss on a mixture of embedding and context (Table 4c)."""
        mixed = functional.normalize(self.alpha * rows.unit_images + (1 - self.alpha) * unit(found.values), dim=1)
        loss, (whole,) = self.term.losses(
            [self.term.set_of(mixed, 1.0)], rows.texts, rows.labels, rows.duplicate_ids, rows.shard
        )
        return loss, self.report(whole, whole, None, found, rows.shard)

    def _attend(self, rows: BatchRows, buffer: Buffer) -> Attended:
        queries, scale = rows.unit_images if self.options.normalize_keys else rows.images, self.sharpness(rows)
        found = attend(queries, buffer.keys, buffer.values, scale, buffer.own, copies=buffer.copies, form=self.form)
        if self.map is None:
            return found
        # Second stage (Eq. 9): the result attends to mapped keys and values.
        mapped = rows.shard.gather(self.map(rows.images))
        return attend(unit(found.values), unit(mapped), mapped, scale, buffer.own, copies=buffer.copies, form=self.form)

    def _buffer(
        self,
        batch: BatchRows,
        views: Tensor | None,
        context: Tensor | None,
        context_duplicate_ids: Tensor | None,
        seed: int,
    ) -> Buffer:
        options, shard = self.options, batch.shard
        rows, own = batch.images, batch.numbers() if options.mask else None
        copies = find_copies(batch.duplicate_ids, shard) if options.mask else None
        if options.separate or options.augmented != "none":
            buffer, name = (context, "context") if options.separate else (views, "views")
            if buffer is None:
                raise ValueError(f"these options require {name}")
            hides = options.separate and options.mask
            rows, own = full_precision(buffer), None
            copies = _copies_in(context_duplicate_ids, batch.duplicate_ids, shard) if hides else None
        keys = rows
        if options.normalize_keys:
            keys = batch.unit_images if rows is batch.images else unit(rows)
        values = batch.texts if options.values == "texts" else rows
        # Transform before gathering, so each row is transformed once.
        keys, values = (shard.gather(part) for part in self._shape(keys, values))
        if options.active_rows is not None and options.active_rows < len(keys):
            chosen, own = _subset(len(keys), options.active_rows, seed, own)
            chosen = chosen.to(keys.device)
            keys, values = keys[chosen], values[chosen]
            copies = copies and copies._replace(columns=copies.columns[chosen], first=None)
        if self.stale is not None and int(self.stale_count) > 0:
            # Copy, because this step overwrites the oldest rows before the backward pass reads them.
            filled = slice(0, int(self.stale_count.clamp_max(len(self.stale))))
            past = self.stale[filled].to(rows, copy=True)
            past_keys, past_values = self._shape(unit(past) if options.normalize_keys else past, past)
            if options.mask and options.augmented == "none":
                copies = _with_past(copies, len(keys), batch.duplicate_ids, self.stale_duplicate_ids, filled)
            keys, values = torch.cat([keys, past_keys]), torch.cat([values, past_values])
        return Buffer(keys, values, own, copies)

    def _shape(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Apply LayerNorm, value head and stop-gradient (Tables 4e, 5b, 5d)."""
        keys = keys if self.key_norm is None else self.key_norm(keys)
        values = values if self.value_norm is None else self.value_norm(values)
        values = values if self.head is None else self.head(values)
        keys = keys.detach() if self.options.stops("keys") else keys
        values = values.detach() if self.options.stops("values") else values
        return keys, values

    @torch.no_grad()
    def _remember(self, images: Tensor, duplicate_ids: Tensor | None, shard: Shard) -> None:
        """Replace the oldest stale rows by this step's; every process stores the rows of all processes."""
        if self.stale is None or not self.training:
            return
        images = shard.gather(images.detach())
        rows = images[-len(self.stale) :]
        first = int(self.stale_count) + len(images) - len(rows)
        slots = (first + torch.arange(len(rows), device=images.device)) % len(self.stale)
        self.stale[slots] = rows.to(self.stale)
        self.stale_count += len(images)
        ids, known = duplicate_ids, self.stale_duplicate_ids
        if ids is not None and (known is None or known.shape[1] != ids.shape[1]):
            self.stale_duplicate_ids = known = ids.new_full((len(self.stale), ids.shape[1]), _UNKNOWN)
        if known is not None:
            known[slots] = _UNKNOWN if ids is None else shard.gather(ids)[-len(rows) :]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """Allocate the duplicate ids of stale rows if the checkpoint has them."""
        duplicate_ids, self.stale_duplicate_ids = state_dict.get(f"{prefix}stale_duplicate_ids"), None
        if duplicate_ids is not None and self.stale is not None:
            self.stale_duplicate_ids = torch.empty_like(duplicate_ids, device=self.stale.device)
        super()._load_from_state_dict(state_dict, prefix, *others)


def _with_past(
    copies: Copies | None, keys: int, duplicate_ids: Tensor | None, past: Tensor | None, filled: slice
) -> Copies | None:
    """Find duplicates among the ``keys`` current keys followed by the stale rows, with duplicate ids ``past``."""
    seen = None if duplicate_ids is None or past is None or past.shape[1] != duplicate_ids.shape[1] else past[filled]
    again = _copies_in(seen, duplicate_ids, WHOLE)  # every process stores all stale rows
    if duplicate_ids is None or (copies is None and again is None):
        return None
    size = filled.stop, duplicate_ids.shape[1]
    stale = duplicate_ids.new_full(size, _UNKNOWN) if seen is None else seen
    here = duplicate_ids.new_full((keys, size[1]), _UNKNOWN) if copies is None else copies.columns
    return Copies(duplicate_ids, torch.cat([here, stale]), None if copies is None else copies.first)


def _copies_in(columns: Tensor | None, rows: Tensor | None, shard: Shard) -> Copies | None:
    """Find samples of another batch that also occur in this one."""
    if rows is None or columns is None:
        return None
    columns = shard.gather(columns)
    found = any(bool(torch.isin(row, column).any()) for row, column in zip(rows.T, columns.T, strict=True))
    return Copies(rows, columns, None) if found else None


def _subset(rows: int, size: int, seed: int, own: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Draw a random subset of the batch; also return the position in it of each row in ``own`` (-1: not in it)."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(rows, generator=generator)[:size].sort().values
    if own is None:
        return chosen, None
    position = torch.full((rows,), -1, dtype=torch.int64)
    position[chosen] = torch.arange(size)
    return chosen, position.to(own.device)[own]


def _heads(
    options: ContextOptions, width: int
) -> tuple[nn.Linear | None, nn.Sequential | None, nn.LayerNorm | None, nn.LayerNorm | None]:
    """Create the learned parts of the ablations; None unless the option is set."""
    second_stage = None
    if options.stages == 2:
        second_stage = nn.Linear(width, width)
        nn.init.eye_(second_stage.weight)
        nn.init.zeros_(second_stage.bias)
    head = None
    if options.value_head:
        layers: list[nn.Module] = [nn.Linear(width, width)]
        for _ in range(options.value_head - 1):
            layers += [nn.GELU(), nn.Linear(width, width)]
        head = nn.Sequential(*layers)
    key_norm = nn.LayerNorm(width) if options.normalizes("keys") else None
    value_norm = nn.LayerNorm(width) if options.normalizes("values") else None
    return second_stage, head, key_norm, value_norm
