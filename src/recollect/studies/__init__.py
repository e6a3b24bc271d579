"""One module for each paper; every table and figure is a function that the table below names."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from recollect.core.errors import UserError
from recollect.studies.study import StudyOptions, StudyReport


@dataclass(frozen=True)
class Study:
    """Where a study lives, and what it shows."""

    module: str
    function: str
    title: str

    def load(self) -> Callable[[StudyOptions], StudyReport]:
        """Import the study's function."""
        return getattr(import_module(f"recollect.studies.{self.module}"), self.function)


STUDIES: dict[str, Study] = {
    "lixp/table-1": Study("lixp", "table_1", "context for SigLIP over model and data scale"),
    "lixp/table-3": Study("lixp", "table_3", "context for CLIP"),
    "lixp/table-4": Study("lixp", "table_4", "ablations of the objective: mask, alpha, form, temperatures, gradients"),
    "lixp/table-5": Study("lixp", "table_5", "ablations of the buffer: batch, heads, normalisation, stale, size"),
    "lixp/table-6": Study("lixp", "table_6", "augmented entries in the buffer"),
    "lixp/figure-1": Study("lixp", "figure_1", "accuracy over shots, and sample efficiency"),
    "lixp/figure-2": Study("lixp", "figure_2", "gain on each data set"),
    "lixp/figure-3": Study("lixp", "figure_3", "gain of each classifier"),
    "lixp/figure-4": Study("lixp", "figure_4", "post-training with context"),
    "lixp/figure-5": Study("lixp", "figure_5", "gain against the number of examples"),
    "lixp/figure-6": Study("lixp", "figure_6", "training dynamics"),
}


def find_study(name: str) -> Study:
    """The study called ``name``.

    Raises:
        UserError: there is none; the message lists those of the same paper, or all.
    """
    if name in STUDIES:
        return STUDIES[name]
    paper = name.split("/")[0]
    near = [known for known in STUDIES if known.startswith(f"{paper}/")] or list(STUDIES)
    raise UserError(f"{name}: no such study. Choose one of: {', '.join(near)}.")
