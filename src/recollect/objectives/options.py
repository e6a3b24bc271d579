"""The ablations of the context objective (LIxP, Tables 4, 5 and 6)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from recollect.core.validation import check_choices


@dataclass(frozen=True)
class ContextOptions:
    """Defaults give the paper's objective (LIxP, Eq. 6 and 8); each field is one ablation.

    Attributes:
        mask: a row never attends to itself (Table 4a).
        residual: a single loss on ``norm(alpha x + (1 - alpha) x_ctx)`` instead of two losses (Table 4c).
        values: what the look-up returns: raw image embeddings or texts (Table 4c, "multimodal"; requires the mask).
        stages: 2 looks up twice, with a learned linear map of the keys and values of the second stage (Eq. 9,
            Table 4c).
        tied: ``all``: tau_1 = tau_2 = tau_context; ``context``: tau_2 = tau_context; ``scales``: tau_1 = tau_2
            (Table 4d).
        freeze_temperature: tau_context is not trained (Table 4d).
        stop_gradient: no gradient through the keys, the values or both (Table 4e).
        separate: look up in a second batch, passed as ``context`` (Table 5a).
        value_head: number of layers of a learned map of the values, 0 to 3 (Table 5b).
        normalise_keys: queries and keys are unit-norm (Table 5c).
        layer_norm: LayerNorm of the keys, the values or both (Table 5d).
        stale_rows: number of detached rows from past steps to keep as extra context, first in, first out (Table 5e).
            A sample does not attend to its own stale copy.
        active_rows: look up in a random subset of the batch of this size; None means the whole batch (Table 5f).
        augmented: look up in a second view of each image, without a mask. ``buffer``: the views are context only;
            ``all``: they are trained on too; ``all+infonce``: plus an image-view InfoNCE loss (Table 6).
        shuffled: a control that is not in the paper: each key has the value of a random other row, so the second loss
            reads nothing informative.
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
    normalise_keys: bool = True
    layer_norm: Literal["none", "keys", "values", "both"] = "none"
    stale_rows: int = 0
    active_rows: int | None = None
    augmented: Literal["none", "buffer", "all", "all+infonce"] = "none"
    shuffled: bool = False

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
        yield wrong, "active_rows must be at least 2, and is a subset of the batch itself"
        wrong = self.tied in {"context", "all"} and self.freeze_temperature
        yield wrong, "a tied tau_context cannot be frozen by itself"
        wrong = two and (foreign or self.stale_rows > 0 or subset)
        yield wrong, "stages=2 is defined for the batch itself as the buffer"
        wrong = two and (self.value_head > 0 or not self.normalise_keys or texts)
        yield wrong, "stages=2 has a map of its own: no value_head, no texts, and normalised keys only"
        wrong = two and (self.stop_gradient != "none" or self.layer_norm != "none")
        yield wrong, "stages=2 is not defined with stop_gradient or layer_norm; choose one ablation"
        wrong = self.shuffled and (two or texts or self.stale_rows > 0)
        yield wrong, "shuffled is for one look-up of the batch's images: no stages=2, values='texts', stale_rows"
        wrong = residual and self.augmented.startswith("all")
        yield wrong, "residual has one loss, on the mixture; views can be its buffer only (augmented='buffer')"
        wrong = residual and self.tied in {"context", "scales"}
        yield wrong, "residual has one loss and no tau_2 to tie; tied='all' ties tau_1 and tau_context"
        yield not self.mask and self.augmented != "none", "augmented has no mask: a row may look up its own second view"
        wrong = self.stops("keys") and self.normalises("keys")
        yield wrong, "with stop_gradient of the keys, their layer_norm could not learn; choose one"
        wrong = self.stops("values") and (self.normalises("values") or self.value_head > 0)
        yield wrong, "with stop_gradient of the values, their layer_norm or value_head could not learn"

    @property
    def needs_width(self) -> bool:
        """Whether any parameter or buffer has the width of the embeddings."""
        return self.stages == 2 or self.value_head > 0 or self.layer_norm != "none" or self.stale_rows > 0

    def stops(self, part: Literal["keys", "values"]) -> bool:
        """Whether ``part`` of the buffer is detached."""
        return self.stop_gradient in {part, "both"}

    def normalises(self, part: Literal["keys", "values"]) -> bool:
        """Whether ``part`` of the buffer goes through a LayerNorm."""
        return self.layer_norm in {part, "both"}
