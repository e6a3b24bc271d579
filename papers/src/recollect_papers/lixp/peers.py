"""LIxP, Table 2: published methods on the baseline model, and training-free voting on SigLIxP.

``smoke`` and ``small`` use pictures of characters and a small ViT, which prompt learning requires; ``full`` uses the
paper's five sets and ViT-B/16 pair, trained on the user's data in the same runs as ``lixp/table-1``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from recollect.evaluation.plots import METHOD_NAMES
from recollect.training.options import Recipe
from recollect.training.recipes import RECIPES
from recollect_papers.engine import Column, Row, TableForm, TableStudy, printed
from recollect_papers.lixp.world import LixpWorld, seed_count, settings
from recollect_papers.measurements import Measurements
from recollect_papers.runs import Job, StudyEvaluation, StudyTuning, run
from recollect_papers.study import Scale, StudyOptions, StudyTable, over

_PLAIN, _CONTEXT = "SigLIP", "SigLIxP"


@dataclass(frozen=True)
class Peer:
    """One row of the table.

    Attributes:
        label: name in the table.
        method: method of the few-shot protocol; None for rows with the paper's figures only.
        printed: row of the paper's table, if any.
        free: whether the method is training-free.
        model: the model it is fitted on.
    """

    label: str
    method: str | None
    printed: str | None
    free: bool = False
    model: str = _PLAIN


VOTING = "softmax+zero-shot"
PEERS = (
    Peer(METHOD_NAMES["zero-shot"], "zero-shot", None, True),
    Peer(METHOD_NAMES["linear-probe"], "linear-probe", "linear-probe"),
    Peer(METHOD_NAMES["tip-x"], "tip-x", "tip-x", True),
    Peer(METHOD_NAMES["ape"], "ape", "ape", True),
    Peer(METHOD_NAMES["dmn-tf"], "dmn-tf-published", "dmn-tf", True),
    Peer(METHOD_NAMES["clip-adapter"], "clip-adapter", "clip-adapter"),
    Peer("CoOp", "coop", None),
    Peer("MaPLe", "maple", "maple"),
    Peer("PromptSRC", "promptsrc", "promptsrc"),
    Peer(METHOD_NAMES["tip-adapter-f"], "tip-adapter-f", "tip-adapter-f"),
    Peer(METHOD_NAMES["ape-t"], "ape-t", "ape-t"),
    Peer("CasPL", "caspl", "caspl"),
    Peer("DMN", None, "dmn", model=""),
    Peer(METHOD_NAMES[VOTING], VOTING, None, True),
    Peer(METHOD_NAMES[VOTING], VOTING, "siglixp", True, _CONTEXT),
)
"""Rows of Table 2 in order, plus three: the baseline's zero-shot accuracy, CoOp, and voting on the baseline."""

TUNED = tuple(peer.method for peer in PEERS if peer.method in ("coop", "maple", "promptsrc", "caspl"))
_READING = tuple(dict.fromkeys(peer.method for peer in PEERS if peer.method and peer.method not in TUNED))

_WORLDS: Mapping[Scale, str] = {
    "smoke": "glyphs (pictures of characters that training never saw), a few steps: a test run",
    "small": "glyphs (pictures of characters that training never saw), a ViT of 3 layers at 32 px",
    "full": "the paper's ViT-B/16 pair and its teacher ViT-L/16, trained on your data; its five sets or --suite's",
}


_SIZES: Mapping[Scale, tuple[int, int, int | None, float]] = {
    "smoke": (1, 1, 1, 1e-3),
    "small": (16, 1, 3, 1.0),
    "full": (16, 3, None, 1.0),
}
"""Shots, draws, sets, and the fraction of the published steps."""


def _pair(options: StudyOptions) -> tuple[LixpWorld, Recipe]:
    """Return the baseline setting, and the recipe of CasPL's teacher."""
    if options.scale == "full":
        columns = {setting.label: setting for setting in settings(options)}
        return columns["ViT-B/16 6B"], columns["ViT-L/16 8B"].base
    tiny, teacher = RECIPES["siglip-tiny"](), RECIPES["glyphs-strong-siglip"]()
    if options.scale == "smoke":
        tiny, teacher = (replace(each, steps=2, batch_size=64, log_every=1) for each in (tiny, teacher))
    return LixpWorld("tiny ViT", tiny, 0.01), teacher


def _evaluations(options: StudyOptions, teacher: Recipe) -> dict[str, StudyEvaluation]:
    """Return the evaluation of each model: all methods for the baseline, voting for the model with context."""
    shots, draws, sets, effort = _SIZES[options.scale]
    common = StudyEvaluation(few_shot=("glyphs:captions",), shots=(shots,), draws=draws, most_sets=sets)
    if options.scale == "full":
        common = replace(common, few_shot=(), suite=options.suite or "lixp-5")
    tuning = StudyTuning(TUNED, effort, flip=options.scale == "full", teacher=teacher)
    return {_PLAIN: replace(common, methods=_READING, tuning=tuning), _CONTEXT: replace(common, methods=(VOTING,))}


def _measure(options: StudyOptions) -> Measurements:
    setting, teacher = _pair(options)
    evaluations, recipes = _evaluations(options, teacher), {_PLAIN: setting.base, _CONTEXT: setting.context()}
    seeds = range(seed_count(options))
    jobs = [Job(name, replace(recipes[name], seed=seed), evaluations[name]) for seed in seeds for name in recipes]
    found = run(jobs, options.out, options.workers)
    found.context = {
        "sets": found.names("set", measure="accuracy"),
        "notes": _notes(options),
        "shots": _SIZES[options.scale][0],
    }
    return found


def _notes(options: StudyOptions) -> list[str]:
    """Return the notes below the table."""
    shots, draws, _, effort = _SIZES[options.scale]
    notes = [
        f"{shots} shot{'s' if shots > 1 else ''}, mean over {draws} draw{'s' if draws > 1 else ''} of the support; "
        "methods as published, settings chosen on held-out shots",
        "CasPL also uses a larger model and all unlabeled pictures of the support split; DMN also uses the test "
        "pictures and is not implemented here",
    ]
    if options.scale == "full":
        notes.append("the paper does not say which of its two ViT-B/16 it took; this is that of 6B examples")
    else:
        if effort < 1:
            notes.append(f"prompt learners take {effort:.1%} of the published steps, at least one pass over the shots")
        notes.append("the paper's columns are different data sets: compare directions only")
    return [*notes, over(seed_count(options), "training seed"), "paper: as printed there"]


def _form(found: Measurements) -> tuple[Sequence[StudyTable], Sequence[str]]:
    rows = []
    for peer in PEERS:
        at = None
        if peer.method is not None:
            shots = "0" if peer.method == "zero-shot" else str(found.context["shots"])
            at = {"arm": peer.model, "method": peer.method, "shots": shots, "measure": "accuracy"}
        rows.append(Row((peer.label, peer.model, "✓" if peer.free else "✗"), at, peer.printed))
    columns = [Column(name, {"set": name}) for name in found.context["sets"]]
    heads, notes = ("method", "on", "train-free"), tuple(found.context["notes"])
    form = TableForm("Table 2. Methods of the literature", heads, rows, columns, printed("lixp", "table-2"), notes)
    return [form.fill(found)], ()


table_2 = TableStudy("lixp/table-2", _measure, _form, _WORLDS)
