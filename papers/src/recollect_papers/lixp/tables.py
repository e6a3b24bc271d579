"""LIxP (Roth et al., "Context-Aware Multimodal Pretraining"): Tables 1 and 3 to 6."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from recollect.classifiers.heads.methods import PAPER_METHODS
from recollect.evaluation import plots
from recollect.objectives import Base
from recollect.training.options import Recipe
from recollect_papers.engine import Column, Printed, Row, TableForm, TableStudy, printed
from recollect_papers.lixp.ablations import ContextOptions
from recollect_papers.lixp.world import (
    WITH_CONTEXT,
    WORLDS_BY_SCALE,
    LixpWorld,
    by_name,
    evaluation_of,
    few_shot,
    main_setting,
    run_arms,
    settings,
)
from recollect_papers.measurements import Measurements
from recollect_papers.study import StudyOptions, StudyTable

# --- Tables 1 and 3: every classifier ---------------------------------------------------------------------------------

_NAMED: Mapping[str, str] = {"sigmoid": "SigLIP", "softmax": "CLIP"}


def _measure_scales(options: StudyOptions, base: Base) -> Measurements:
    every, name = settings(options, base), _NAMED[base]
    arms = {arm: recipe for setting in every for arm, recipe in setting.arms(name).items()}
    found = run_arms(options, arms, evaluation_of(options, PAPER_METHODS))
    found.context["settings"] = [setting.label for setting in every]
    return found


def _scales(found: Measurements, number: int, name: str) -> tuple[Sequence[StudyTable], Sequence[str]]:
    """Form a table of the accuracy of every classifier, and the gain with context, in each setting."""
    plain, context = name, WITH_CONTEXT[name]
    columns = []
    for label in found.context["settings"]:
        columns.append(Column(f"{plain}, {label}", {"arm": f"{plain} {label}"}))
        over = {"arm": f"{plain} {label}"}
        columns.append(Column(f"{context} gain", {"arm": f"{context} {label}"}, "gain", over))
    paper = printed("lixp", f"table-{number}")
    rows = [Row((plots.METHOD_NAMES["zero-shot"],), by_name(found), "zero-shot")]
    for method in PAPER_METHODS:
        printed_row = method if method in paper.rows else None
        rows.append(Row((plots.METHOD_NAMES[method],), few_shot(found, method), printed_row))
    printed_row = "average gain" if "average gain" in paper.rows else None
    rows.append(
        Row(("average few-shot gain",), few_shot(found, *PAPER_METHODS), printed_row, only=("gain",), spread=False)
    )
    title = f"Table {number}. {plain} and {context}, {found.context['shots']} shots"
    return [TableForm(title, ("classifier",), rows, columns, paper, tuple(found.context["notes"])).fill(found)], ()


table_1 = TableStudy(
    "lixp/table-1", partial(_measure_scales, base="sigmoid"), partial(_scales, number=1, name="SigLIP"), WORLDS_BY_SCALE
)
table_3 = TableStudy(
    "lixp/table-3", partial(_measure_scales, base="softmax"), partial(_scales, number=3, name="CLIP"), WORLDS_BY_SCALE
)


# --- Tables 4, 5 and 6: ablations -------------------------------------------------------------------------------------

_PLAIN, _CONTEXT = ("siglip", "SigLIP"), ("siglixp", "SigLIxP")
ABLATIONS: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "4a. Self-attention mask": {"no-mask": ("no mask", {"mask": False})},
    "4b. Loss weight": {f"alpha-{a}": (f"alpha = {a}", {"alpha": a}) for a in (0.95, 0.8, 0.6)},
    "4c. Form of the objective": {
        "residual": ("residual", {"residual": True}),
        "multimodal": ("multimodal values", {"values": "texts"}),
        "two-stage": ("two stages", {"stages": 2}),
    },
    "4d. Temperatures": {
        "tied-all": ("tau_1 = tau_2 = tau_context", {"tied": "all"}),
        "tied-context": ("tau_2 = tau_context", {"tied": "context"}),
        "tied-scales": ("tau_1 = tau_2", {"tied": "scales"}),
        **{f"frozen-{tau}": (f"tau_context = {tau}, frozen", {"tau": tau, "freeze_temperature": True})
           for tau in (1.0, 0.1, 0.01)},
    },
    "4e. Gradient": {
        "stop-keys": ("stop-gradient through keys", {"stop_gradient": "keys"}),
        "stop-values": ("stop-gradient through values", {"stop_gradient": "values"}),
        "stop-both": ("stop-gradient through both", {"stop_gradient": "both"}),
    },
    "5a. Separate batch": {"separate-batch": ("separate batch", {"separate": True})},
    "5b. Value heads": {
        "head-linear": ("linear", {"value_head": 1}),
        "head-2": ("2-layer MLP", {"value_head": 2}),
        "head-3": ("3-layer MLP", {"value_head": 3}),
    },
    "5c. Normalized queries and keys": {"no-qk-norm": ("no normalization", {"normalize_keys": False})},
    "5d. Layer norm": {
        "layernorm-keys": ("of the keys", {"layer_norm": "keys"}),
        "layernorm-values": ("of the values", {"layer_norm": "values"}),
        "layernorm-both": ("of both", {"layer_norm": "both"}),
    },
    "5e. Stale entries": {f"stale-{k}x": (f"+ {k} x batch of past steps", {"stale_batches": k}) for k in (1, 4, 16)},
    "5f. Active buffer": {f"subset-1/{k}": (f"{{batch/{k}}} of {{batch/1}}", {"active_share": k}) for k in (32, 16, 4)},
    "6. Augmented entries": {
        "augmented-buffer": ("buffer only", {"augmented": "buffer"}),
        "augmented-all": ("trained on too", {"augmented": "all"}),
        "augmented-all-infonce": ("trained on too, with InfoNCE", {"augmented": "all+infonce"}),
    },
}  # fmt: skip
"""Rows of Tables 4, 5 and 6 by part: key in the paper's table, label, and changed settings.

``alpha`` and ``tau`` are the objective's; ``stale_batches`` counts batches and ``active_share`` divides one; the others
are fields of `ContextOptions`. Every part starts with unchanged SigLIP and SigLIxP.
"""


def _ablated(setting: LixpWorld, changes: Mapping[str, Any]) -> Recipe:
    batch, changes = setting.base.batch_size, dict(changes)
    alpha, tau = changes.pop("alpha", None), changes.pop("tau", None)
    if stale := changes.pop("stale_batches", 0):
        changes["stale_rows"] = stale * batch
    if share := changes.pop("active_share", 0):
        changes["active_rows"] = max(2, batch // share)
    return setting.context(alpha, tau, ContextOptions(**changes))


def _measure_ablations(options: StudyOptions, table: str) -> Measurements:
    setting = main_setting(options)
    recipes = {"siglip": setting.base, "siglixp": setting.context()}
    for part, arms in ABLATIONS.items():
        if part.startswith(table):
            recipes |= {key: _ablated(setting, changes) for key, (_, changes) in arms.items()}
    found = run_arms(options, recipes, evaluation_of(options, ("prototype",), "lixp-11-ablation"))
    found.context["batch"] = setting.base.batch_size
    return found


_MORE_NOTES = {"4d. Temperatures": ("paper: the best of its frozen temperatures, repeated in each row",)}


def _ablation_tables(found: Measurements, table: str) -> tuple[Sequence[StudyTable], Sequence[str]]:
    paper, batch, tables = printed("lixp", "ablations"), found.context["batch"], []
    few = few_shot(found, "prototype", shots=16)
    columns = [Column("zero-shot", by_name(found)), Column("16-shot", few),
               Column("gain", few, "gain", over={"arm": "siglip"})]  # fmt: skip
    for part, arms in ABLATIONS.items():
        if not part.startswith(table):
            continue
        labels = dict((_PLAIN, _CONTEXT)) | {key: label for key, (label, _) in arms.items()}
        rows = [Row((_sized(label, batch),), {"arm": key}, _printed(key, paper)) for key, label in labels.items()]
        heads, notes = (part.split(". ")[1],), (*found.context["notes"], *_MORE_NOTES.get(part, ()))
        tables.append(TableForm(f"Table {part}", heads, rows, columns, paper, notes).fill(found))
    return tables, ()


def _sized(label: str, batch: int) -> str:
    """Replace ``{batch/n}`` in a label by the number of rows."""
    return re.sub(r"\{batch/(\d+)\}", lambda share: str(batch // int(share[1])), label)


def _printed(key: str, paper: Printed) -> str | None:
    """Return the paper's row, if any; the paper prints only the best frozen temperature."""
    key = "frozen-tau" if key.startswith("frozen-") else key
    return key if key in paper.rows else None


def _ablation_study(table: str) -> TableStudy:
    measure, form = partial(_measure_ablations, table=table), partial(_ablation_tables, table=table)
    return TableStudy(f"lixp/table-{table}", measure, form, WORLDS_BY_SCALE)


table_4, table_5, table_6 = map(_ablation_study, "456")
