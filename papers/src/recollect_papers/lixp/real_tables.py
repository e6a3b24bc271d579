"""The tables of ``lixp/real``: nothing but what the files of its runs say."""

from collections.abc import Iterator, Sequence

from recollect_papers.engine import Column, Row, TableForm
from recollect_papers.lixp.real_arms import EQUAL_PAIRS
from recollect_papers.lixp.real_effects import alpha_and_tau, classes_most_changed, split_by_class, varied
from recollect_papers.lixp.real_records import FEW_SHOT, GROUPS, ON_THE_SPAN, PAIRS, RealRuns, RunRecord, runs_of
from recollect_papers.lixp.sets import MOVED
from recollect_papers.measurements import Paired, corrected
from recollect_papers.study import StudyTable

SPAN = "+ projection onto the span of the texts"


def tables(records: Sequence[RunRecord]) -> tuple[StudyTable, ...]:
    """Gains by group with their controls, gains by set, zero-shot and retrieval, shares of energy, by class."""
    runs = runs_of(records)
    order = sorted(runs.arms, key=lambda arm: (arm.startswith("CL"), bool(runs.arms[arm]["against"]), arm))
    arms = [arm for arm in order if not runs.arms[arm].get("axis")]
    forms = [_gains(runs, arms), _by_set(runs), _names(runs, arms), _energy(runs, arms)]
    if len(arms) < len(runs.arms):
        forms.append(varied(runs))
        if settings := alpha_and_tau(runs):
            forms.append(settings)
    if all(runs.arms.get(arm, {}).get("classes") for arm in ("SigLIP", "SigLIxP")):
        forms += [split_by_class(runs), classes_most_changed(runs)]
    return tuple(form.fill(runs.found) for form in forms)


def _gains(runs: RealRuns, arms: Sequence[str]) -> TableForm:
    rows, first = [], ""
    for arm in arms:
        against, seeds = runs.arms[arm]["against"], str(runs.seeds(arm))
        if against and not runs.comparable(arm):  # its baseline's file is not there yet
            continue
        told = against and f"gain over {against}"
        over = {"arm": against} if against else None
        rows.append(Row((arm, told, seeds), {"arm": arm, "measure": FEW_SHOT}, over=over))
        if arm in PAIRS or arm in PAIRS.values():
            head = (f"{arm} {SPAN}", f"gain over {arm}", seeds)
            rows.append(Row(head, {"arm": arm, "measure": ON_THE_SPAN}, over={"measure": FEW_SHOT}))
    columns = [
        Column(f"{len(names)} {GROUPS[group]}", {"set": names}, "mean or gain") for group, names in runs.groups.items()
    ]
    first = next(iter(runs.arms.values()))["recipe"]
    note = (
        f"batch {first['batch_size']:,}, {first['steps']} steps; mean over sets ± std over training seeds; gains "
        "are paired by seed"
    )
    title = "Few-shot accuracy: mean of prototypes and softmax voting at 4 and 16 shots, five draws"
    return TableForm(title, ("arm", "figures", "seeds"), rows, columns, notes=(note, *_tests(runs)))


def _gain(runs: RealRuns, arm: str, against: str, names: Sequence[str]) -> Paired:
    return runs.found.paired({"arm": arm, "measure": FEW_SHOT}, {"arm": against}, names)


def _tests(runs: RealRuns) -> Iterator[str]:
    tested, gains = runs.tested(), []
    for arm, against in PAIRS.items():
        if arm not in runs.arms or not runs.comparable(arm):
            continue
        gains.append(gain := _gain(runs, arm, against, tested))
        told = f"{arm} is above {against} on {gain.up()} of {len(tested)} test sets"
        beyond = "" if gain.clear() is None else f", on {gain.clear()} by more than the spread over seeds"
        yield f"{told}{beyond} (mean {gain.summary().signed()}); {gain.tests()}"
        yield from _either_way(runs, arm, against)
        yield from _over_other_baselines(runs, arm, against)
        yield from _over_the_best(runs, arm, against)
    if len(gains) > 1:
        yield corrected(gains)


def _either_way(runs: RealRuns, arm: str, against: str) -> Iterator[str]:
    """The same gains with the set whose group was settled late in the other group."""
    foreign, scenes = (runs.groups.get(group, ()) for group in ("foreign", "scenes"))
    if MOVED not in scenes:
        return
    gain = _gain(runs, arm, against, [*foreign, MOVED]).summary()
    told = f"with {MOVED} among the foreign sets: {gain.signed()} on {len(foreign) + 1} foreign sets"
    if others := [name for name in scenes if name != MOVED]:
        rest = _gain(runs, arm, against, others).summary()
        told += f", {rest.signed()} on {len(others)} that captions speak of"
    yield told


def _over_other_baselines(runs: RealRuns, arm: str, against: str) -> Iterator[str]:
    """The same gain over every other way of training the baseline, so that a weak one explains nothing."""
    for other in _other_baselines(runs, against):
        parts = (
            f"{_gain(runs, arm, other, names).summary().signed()} on {GROUPS[group]}"
            for group, names in runs.groups.items()
        )
        yield f"{arm} over '{other}': {', '.join(parts)}"


def _over_the_best(runs: RealRuns, arm: str, against: str) -> Iterator[str]:
    """The gain over the baseline that the choosing sets would have picked among all that were tried."""
    others, choosing = _other_baselines(runs, against), runs.groups.get("choosing", ())
    if not others or not choosing:
        return
    scores = {other: _gain(runs, other, against, choosing).summary().mean for other in others}
    best = max({against: 0.0, **scores}.items(), key=lambda item: item[1])[0]
    gain = _gain(runs, arm, best, runs.tested()).summary().signed()
    yield f"of {len(others) + 1} baselines the choosing sets pick '{best}'; {arm} over it on all test sets: {gain}"


def _other_baselines(runs: RealRuns, against: str) -> list[str]:
    """Arms without context that are compared with the baseline, and share seeds with what is compared with it too;
    and those that see as many pairs in other batches, where more than one run can say so."""
    loss = runs.arms[against]["recipe"]["objective"]["base"]
    found = []
    for name, arm in runs.arms.items():
        objective, equal = arm["recipe"]["objective"], (arm.get("axis") or ("",))[0] == EQUAL_PAIRS
        if objective["context"] is None and (
            arm["against"] == against
            or (equal and objective["base"] == loss and runs.seeds(name) > 1 and runs.comparable(name, against))
        ):
            found.append(name)
    return sorted(found)


def _by_set(runs: RealRuns) -> TableForm:
    rows = [Row((name, GROUPS[group]), {"set": name}) for group, names in runs.groups.items() for name in names]
    columns = []
    for arm, against in PAIRS.items():
        if {arm, against} <= runs.arms.keys():
            base = {"arm": against, "measure": FEW_SHOT}
            columns += [
                Column(against, base),
                Column(f"gain of {arm}", {**base, "arm": arm}, "gain", {"arm": against}),
                Column("gain of the projection", {**base, "measure": ON_THE_SPAN}, "gain", {"measure": FEW_SHOT}),
            ]
    return TableForm("Few-shot accuracy set by set", ("set", ""), rows, columns)


def _names(runs: RealRuns, arms: Sequence[str]) -> TableForm:
    """Zero-shot accuracy by groups of sets, and retrieval."""
    first, columns = next(iter(runs.arms.values())), []
    for group, names in runs.groups.items():
        if asked := tuple(name for name in names if name in first["zero-shot"]):
            columns.append(Column(f"zero-shot, {GROUPS[group]}", {"measure": "zero-shot", "set": asked}))
    columns += [Column(f"R@10 {pool}", {"measure": "retrieval", "set": pool}) for pool in first["retrieval"]]
    title = "Zero-shot accuracy, and recall at 10 from text to image"
    return TableForm(title, ("arm",), [Row((arm,), {"arm": arm}) for arm in arms], columns)


def _energy(runs: RealRuns, arms: Sequence[str]) -> TableForm:
    """Share of the image embeddings' energy outside the span of the training captions."""
    columns = [Column(GROUPS[group], {"measure": "outside", "set": names}) for group, names in runs.groups.items()]
    title = "Energy of the image embeddings outside the span of the training captions, in percent"
    rows = [Row((arm,), {"arm": arm}) for arm in arms]
    return TableForm(title, ("arm",), rows, columns, notes=("the span holds 99 % of the captions' energy",))
