"""LIxP's Table 2: methods of the literature on the baseline's model, and training-free voting on SigLIxP.

``smoke`` and ``small`` take pictures of characters and a ViT that prompts can be put into; ``full`` takes the paper's
five sets and its ViT-B/16 pair, trained on the user's data as for ``lixp/table-1``, whose runs it shares.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from recollect.evaluation.plots import METHOD_NAMES
from recollect.training.options import Recipe
from recollect.training.recipes import RECIPES
from recollect_papers.engine import Column, Row, TableForm, TableStudy, printed
from recollect_papers.lixp.world import LixpWorld, seeds_of, settings
from recollect_papers.measurements import Measurements
from recollect_papers.runs import Job, StudyEvaluation, StudyTuning, run
from recollect_papers.study import Scale, StudyOptions, StudyTable, over

_PLAIN, _CONTEXT = "SigLIP", "SigLIxP"


@dataclass(frozen=True)
class Peer:
    """One row of the table.

    Attributes:
        label: its name there.
        method: of the few-shot protocol; None for a row of the paper alone.
        printed: its row in the paper's table, where there is one.
        free: whether nothing is trained on the shots.
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
"""Every row of Table 2 in its order, and three more: the baseline's zero-shot, CoOp, the baseline's own voting."""

TUNED = tuple(peer.method for peer in PEERS if peer.method in ("coop", "maple", "promptsrc", "caspl"))
_READING = tuple(dict.fromkeys(peer.method for peer in PEERS if peer.method and peer.method not in TUNED))

_WORLDS: Mapping[Scale, str] = {
    "smoke": "glyphs (pictures of characters that training never saw), a few steps: shows that it runs",
    "small": "glyphs (pictures of characters that training never saw), a ViT of 3 layers at 32 px",
    "full": "the paper's ViT-B/16 pair and its teacher ViT-L/16, trained on your data; its five sets or --suite's",
}


_SIZES: Mapping[Scale, tuple[int, int, int | None, float]] = {
    "smoke": (1, 1, 1, 1e-3),
    "small": (16, 1, 3, 1.0),
    "full": (16, 3, None, 1.0),
}
"""Shots, draws, sets, and the share of the published steps."""


def _pair(options: StudyOptions) -> tuple[LixpWorld, Recipe]:
    """The baseline, and a stronger one to teach CasPL."""
    if options.scale == "full":
        columns = {setting.label: setting for setting in settings(options)}
        return columns["ViT-B/16 6B"], columns["ViT-L/16 8B"].base
    tiny, teacher = RECIPES["siglip-tiny"](), RECIPES["glyphs-strong-siglip"]()
    if options.scale == "smoke":
        tiny, teacher = (replace(each, steps=2, batch_size=64, log_every=1) for each in (tiny, teacher))
    return LixpWorld("tiny ViT", tiny, 0.01), teacher


def _evaluations(options: StudyOptions, teacher: Recipe) -> dict[str, StudyEvaluation]:
    """What each model is asked: the baseline by every method, its pair with context by voting alone."""
    shots, draws, sets, effort = _SIZES[options.scale]
    common = StudyEvaluation(few_shot=("glyphs:captions",), shots=(shots,), draws=draws, most_sets=sets)
    if options.scale == "full":
        common = replace(common, few_shot=(), suite=options.suite or "lixp-5")
    tuning = StudyTuning(TUNED, effort, flip=options.scale == "full", teacher=teacher)
    return {_PLAIN: replace(common, methods=_READING, tuning=tuning), _CONTEXT: replace(common, methods=(VOTING,))}


def _measure(options: StudyOptions) -> Measurements:
    setting, teacher = _pair(options)
    asked, recipes = _evaluations(options, teacher), {_PLAIN: setting.base, _CONTEXT: setting.context()}
    seeds = range(seeds_of(options))
    jobs = [Job(name, replace(recipes[name], seed=seed), asked[name]) for seed in seeds for name in recipes]
    found = run(jobs, options.out, options.workers)
    found.context = {
        "sets": found.names("set", measure="accuracy"),
        "notes": _notes(options),
        "shots": _SIZES[options.scale][0],
    }
    return found


def _notes(options: StudyOptions) -> list[str]:
    """The notes below the table, in addition to those below every one."""
    shots, draws, _, effort = _SIZES[options.scale]
    notes = [
        f"{shots} shot{'s' if shots > 1 else ''}, mean over {draws} draw{'s' if draws > 1 else ''} of the support; "
        "methods as published, what they choose on held-out shots",
        "CasPL reads a larger model and all pictures of the support split without their labels besides; DMN reads the "
        "tested pictures too and is not built here: printed only",
    ]
    if options.scale == "full":
        notes.append("the paper does not say which of its two ViT-B/16 it took; this is that of 6B examples")
    else:
        if effort < 1:
            notes.append(f"prompt learners take {effort:.1%} of the published steps, at least one pass over the shots")
        notes.append("the paper's columns are other sets than ours: compare directions")
    return [*notes, over(seeds_of(options), "training seed"), "paper: as printed there"]


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
