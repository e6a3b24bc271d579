"""The context objective: a base loss on the embeddings plus one on their contextualised versions (LIxP, Eq. 6)."""

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from recollect.objectives.base import Base, LossTerms, Objective, Report, logarithm, unit
from recollect.objectives.context import Attended, attend
from recollect.objectives.options import ContextOptions
from recollect.objectives.shards import WHOLE, Copies, Shard, find_copies
from recollect.objectives.softmax import softmax_contrastive
from recollect.objectives.terms import Losses, LossInputs
from recollect.objectives.tiles import Form, check_pairs, full_precision

_UNKNOWN = -1
"""Duplicate id of a key without known copies."""


class Buffer(NamedTuple):
    """What a batch looks up: keys, values, the index of each query's own key (-1: none), and copies to hide."""

    keys: Tensor
    values: Tensor
    own: Tensor | None
    copies: Copies | None


class ContextObjective(Objective):
    """SigLIxP and CLIxP: ``alpha L(x, t; tau_1) + (1 - alpha) L(x_ctx, t; tau_2)`` (LIxP, Eq. 6).

    Args:
        base: the loss L.
        alpha: weight of the loss without context, 0.9 in the paper, 0.95 in its longest runs.
        options: the ablations; the default is the paper's objective.
        width: of the embeddings; required by options with parameters or buffers of that width.
        scale: initial tau_1 and tau_2.
        bias: initial value of both biases of the sigmoid loss.
        tau_context: initial value; 1 in the paper (uniform attention), smaller for short runs.
        form: see `contextualize`.

    Raises:
        ValueError: alpha outside [0, 1], a temperature that is not positive, or a missing width.
    """

    stale: Tensor | None
    stale_count: Tensor
    stale_duplicate_ids: Tensor | None

    def __init__(
        self,
        base: Base = "sigmoid",
        alpha: float = 0.9,
        options: ContextOptions = ContextOptions(),  # noqa: B008 (frozen)
        *,
        width: int | None = None,
        scale: float = 10.0,
        bias: float = -10.0,
        tau_context: float = 1.0,
        form: Form = "auto",
    ) -> None:
        super().__init__()
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha must be between 0 and 1, got {alpha}")
        self.alpha = alpha
        self.options = options
        self.form: Form = form
        self.term = LossTerms(base, scale, bias, form)
        self.context_term = None if options.residual else LossTerms(base, scale, bias, form)
        if self.context_term is not None and options.tied in {"all", "scales"}:
            self.context_term.log_scale = self.term.log_scale
        self.log_tau = self._context_temperature(tau_context)
        self.log_scale_views = logarithm(scale) if options.augmented == "all+infonce" else None
        if options.needs_width and width is None:
            raise ValueError("these options need the width of the embeddings: pass width")
        self.map, self.head, self.key_norm, self.value_norm = _heads(options, width or 0)
        rows = options.stale_rows
        self.register_buffer("stale", torch.zeros(rows, width or 0) if rows else None)
        self.register_buffer("stale_count", torch.zeros((), dtype=torch.int64))
        # Created with the first batch, which defines the number of columns.
        self.register_buffer("stale_duplicate_ids", None)

    def _context_temperature(self, start: float) -> nn.Parameter:
        """tau_context: a separate parameter, or the one it is tied to."""
        if self.options.tied == "all":
            return self.term.log_scale
        if self.options.tied == "context":
            return (self.context_term or self.term).log_scale
        own = logarithm(start)
        own.requires_grad_(not self.options.freeze_temperature)
        return own

    @property
    def needs(self) -> frozenset[str]:
        wanted = {
            "labels": self.term.loss.labelled,
            "views": self.options.augmented != "none",
            "context": self.options.separate,
        }
        return frozenset(name for name, needed in wanted.items() if needed)

    def scale_and_bias(self) -> tuple[float, float | None]:
        return self.term.scale_and_bias()

    def temperatures(self) -> list[nn.Parameter]:
        own = [*self.term.parameters(), self.log_tau, self.log_scale_views]
        own += list(self.context_term.parameters()) if self.context_term is not None else []
        unique = {id(parameter): parameter for parameter in own if parameter is not None}
        return [parameter for parameter in unique.values() if parameter.requires_grad]

    def forward(
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
        """See `Objective.forward`; ``views`` are for the option ``augmented``, ``context`` is for ``separate``.

        Unless the mask is off, copies (``duplicate_ids``) are not context of each other either, stale rows included.
        The report has ``loss``, ``base_loss``, ``context_loss``, ``scale``, ``scale_context``, ``tau_context``,
        ``bias``, ``bias_context`` and ``effective_neighbours``.

        Raises:
            ValueError: the shapes differ, a required argument is missing, or there is nothing to look up.
        """
        check_pairs(images, texts)
        images, texts = full_precision(images), unit(texts)
        unit_images = unit(images)
        rows = _Rows(images, unit_images, texts, labels, duplicate_ids, shard)
        buffer = self._buffer(rows, views, context, context_duplicate_ids, seed)
        found = self._attend(rows, buffer)
        if self.context_term is None:
            loss, report = self._residual_loss(rows, found)
        else:
            loss, report = self._two_losses(rows, found, views)
        self._remember(images, duplicate_ids, shard)
        return loss, report

    def _two_losses(self, rows: "_Rows", found: Attended, views: Tensor | None) -> tuple[Tensor, Report]:
        """One loss on the embeddings, one on their context (Eq. 6), and the losses on views (Table 6)."""
        assert self.context_term is not None  # None only for the residual loss
        sets = [self.term.set_of(rows.unit_images, self.alpha)]
        if views is not None and self.options.augmented.startswith("all"):
            sets = [self.term.set_of(seen, self.alpha / 2) for seen in (rows.unit_images, unit(views))]
        sets.append(self.context_term.set_of(unit(found.values), 1 - self.alpha))
        loss, parts = rows.losses(self.term, sets)
        whole = sum((one.weight * part for one, part in zip(sets, parts, strict=True)), torch.zeros_like(parts[0]))
        if views is not None and self.log_scale_views is not None:
            scale = self.log_scale_views.exp()
            alike = softmax_contrastive(
                rows.unit_images, unit(views), scale, duplicate_ids=rows.duplicate_ids, form=self.form, shard=rows.shard
            )
            loss, whole = loss + alike, whole + rows.shard.total(alike.detach().clone())
        base = torch.stack(parts[:-1]).mean()
        return loss, self._report(whole, base, parts[-1], found, rows.shard)

    def _residual_loss(self, rows: "_Rows", found: Attended) -> tuple[Tensor, Report]:
        """A single loss on a mixture of embedding and context (Table 4c)."""
        mixed = functional.normalize(self.alpha * rows.unit_images + (1 - self.alpha) * unit(found.values), dim=1)
        loss, (whole,) = rows.losses(self.term, [self.term.set_of(mixed, 1.0)])
        return loss, self._report(whole, whole, None, found, rows.shard)

    def _attend(self, rows: "_Rows", buffer: Buffer) -> Attended:
        queries = rows.unit_images if self.options.normalise_keys else rows.images
        scale = 1 / (self.log_tau.exp() * math.sqrt(rows.images.shape[1]))
        found = attend(queries, buffer.keys, buffer.values, scale, buffer.own, copies=buffer.copies, form=self.form)
        if self.map is None:
            return found
        # Second stage (Eq. 9): the result looks up mapped keys and values.
        mapped = rows.shard.gather(self.map(rows.images))
        return attend(unit(found.values), unit(mapped), mapped, scale, buffer.own, copies=buffer.copies, form=self.form)

    def _buffer(
        self,
        batch: "_Rows",
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
                raise ValueError(f"these options need {name} to look things up in")
            hides = options.separate and options.mask
            rows, own = full_precision(buffer), None
            copies = _copies_in(context_duplicate_ids, batch.duplicate_ids, shard) if hides else None
        keys = rows
        if options.normalise_keys:
            keys = batch.unit_images if rows is batch.images else unit(rows)
        values = batch.texts if options.values == "texts" else rows
        # Transformed before gathering, so that each row is transformed once.
        keys, values = (shard.gather(part) for part in self._shape(keys, values))
        if options.shuffled:  # the same order in every process
            order = torch.randperm(len(values), generator=torch.Generator().manual_seed(seed))
            values = values[order.to(values.device)]
        if options.active_rows is not None and options.active_rows < len(keys):
            chosen, own = _subset(len(keys), options.active_rows, seed, own)
            chosen = chosen.to(keys.device)
            keys, values = keys[chosen], values[chosen]
            copies = copies and copies._replace(columns=copies.columns[chosen], first=None)
        if self.stale is not None and int(self.stale_count) > 0:
            # Copied, because this step overwrites the oldest rows before the backward pass reads them.
            filled = slice(0, int(self.stale_count.clamp_max(len(self.stale))))
            past = self.stale[filled].to(rows, copy=True)
            past_keys, past_values = self._shape(unit(past) if options.normalise_keys else past, past)
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
        """Overwrite the oldest stale rows with this step's; every process keeps the rows of all."""
        if self.stale is None or not self.training:
            return
        images = shard.gather(images.detach())
        rows = images[-len(self.stale) :]
        first = int(self.stale_count) + len(images) - len(rows)
        places = (first + torch.arange(len(rows), device=images.device)) % len(self.stale)
        self.stale[places] = rows.to(self.stale)
        self.stale_count += len(images)
        ids, known = duplicate_ids, self.stale_duplicate_ids
        if ids is not None and (known is None or known.shape[1] != ids.shape[1]):
            self.stale_duplicate_ids = known = ids.new_full((len(self.stale), ids.shape[1]), _UNKNOWN)
        if known is not None:
            known[places] = _UNKNOWN if ids is None else shard.gather(ids)[-len(rows) :]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """Allocate the duplicate ids of stale rows if the checkpoint has them."""
        duplicate_ids, self.stale_duplicate_ids = state_dict.get(f"{prefix}stale_duplicate_ids"), None
        if duplicate_ids is not None and self.stale is not None:
            self.stale_duplicate_ids = torch.empty_like(duplicate_ids, device=self.stale.device)
        super()._load_from_state_dict(state_dict, prefix, *others)

    @torch.no_grad()
    def _report(self, loss: Tensor, base: Tensor, context: Tensor | None, found: Attended, shard: Shard) -> Report:
        report = {"loss": loss, "base_loss": base, "scale": self.term.log_scale.exp()}
        report["tau_context"] = self.log_tau.exp()
        report["effective_neighbours"] = shard.total(found.entropy.exp().mean()) / shard.size
        if self.term.bias is not None:
            report["bias"] = self.term.bias.detach().clone()
        if self.context_term is not None and context is not None:
            report["context_loss"] = context
            report["scale_context"] = self.context_term.log_scale.exp()
            if self.context_term.bias is not None:
                report["bias_context"] = self.context_term.bias.detach().clone()
        return report


class _Rows(NamedTuple):
    """This process's part of a batch; texts and ``unit_images`` are unit-norm."""

    images: Tensor
    unit_images: Tensor
    texts: Tensor
    labels: Tensor | None
    duplicate_ids: Tensor | None
    shard: Shard

    def numbers(self) -> Tensor:
        """Index of each row in the whole batch."""
        return self.shard.first(len(self.images)) + torch.arange(len(self.images), device=self.images.device)

    def losses(self, term: LossTerms, sets: list[LossInputs]) -> Losses:
        """See `LossTerms.losses`."""
        return term.losses(sets, self.texts, self.labels, self.duplicate_ids, self.shard)


def _with_past(
    copies: Copies | None, keys: int, duplicate_ids: Tensor | None, past: Tensor | None, filled: slice
) -> Copies | None:
    """Copies among the ``keys`` keys followed by the stale rows, whose duplicate ids are ``past``."""
    seen = None if duplicate_ids is None or past is None or past.shape[1] != duplicate_ids.shape[1] else past[filled]
    again = _copies_in(seen, duplicate_ids, WHOLE)  # every process holds all stale rows
    if duplicate_ids is None or (copies is None and again is None):
        return None
    size = filled.stop, duplicate_ids.shape[1]
    stale = duplicate_ids.new_full(size, _UNKNOWN) if seen is None else seen
    here = duplicate_ids.new_full((keys, size[1]), _UNKNOWN) if copies is None else copies.columns
    return Copies(duplicate_ids, torch.cat([here, stale]), None if copies is None else copies.first)


def _copies_in(columns: Tensor | None, rows: Tensor | None, shard: Shard) -> Copies | None:
    """Samples of another batch that also occur in this one."""
    if rows is None or columns is None:
        return None
    columns = shard.gather(columns)
    found = any(bool(torch.isin(row, column).any()) for row, column in zip(rows.T, columns.T, strict=True))
    return Copies(rows, columns, None) if found else None


def _subset(rows: int, size: int, seed: int, own: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """A random subset of the batch, and the position in it of each row in ``own`` (-1: not a member, so not masked)."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(rows, generator=generator)[:size].sort().values
    if own is None:
        return chosen, None
    place = torch.full((rows,), -1, dtype=torch.int64)
    place[chosen] = torch.arange(size)
    return chosen, place.to(own.device)[own]


def _heads(
    options: ContextOptions, width: int
) -> tuple[nn.Linear | None, nn.Sequential | None, nn.LayerNorm | None, nn.LayerNorm | None]:
    """Learned parts of the ablations; None unless the option is set."""
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
    key_norm = nn.LayerNorm(width) if options.normalises("keys") else None
    value_norm = nn.LayerNorm(width) if options.normalises("values") else None
    return second_stage, head, key_norm, value_norm
