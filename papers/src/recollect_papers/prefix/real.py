"""``prefix/real``: captions and labels together on the starter's towers, with and without prefixes.

The text tower is locked, so a prefix is a one-hot vector appended to the text's features: it shifts the hidden units of
the text head. At test time any text can be read as a caption or as a label.

``prefix/trained`` trains the text tower in the second half of the steps; there a prefix is a token after the start
token.

In arms with labels, every second batch is of labels, so their 400 steps contain as many captions as the 200 steps on
captions alone, the number chosen in ``lixp/real``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor

from recollect_papers.engine import Column, Row, TableForm, TablesAndNotes, TableStudy
from recollect_papers.measurements import Measurements
from recollect_papers.real.arms import SMOKE_HEAD, ArmRunner, open_runner, worlds
from recollect_papers.real.data import LIGHT_ROLES, RealData
from recollect_papers.real.heads import (
    LABELS,
    TEMPLATES,
    FeatureModel,
    FeaturePairs,
    HeadRecipe,
    fit,
    training_pairs,
)
from recollect_papers.real.measure import measure_sets
from recollect_papers.study import StudyOptions

KINDS = ("caption", "label")
_PREFIX_LENGTH = 0.1
"""Length of the one-hot vector: about twice the standard deviation of a text feature."""

PREFIX_TOKENS = (1, 2)
"""Tokens of the prefixes: ``[unused0]`` and ``[unused1]``, reserved in MiniLM's vocabulary."""

OWN = ("imagenette",)
"""Sets whose classes are among the labels; all others are foreign. Nothing is chosen, so choosing sets count too."""

WORLD = (
    "an MLP head on EfficientNet-Lite0 and MiniLM; captions: 14,000 photographs (COCO); labels: names of ImageNet's "
    "classes with features made from the tower's classifier"
)


@dataclass(frozen=True)
class Arm:
    """One training variant.

    Attributes:
        name: name in tables.
        labels: train on labels too.
        sampling: see `HeadRecipe.sampling`.
        prefix: append the kind to text features.
        share: number of steps relative to arms with labels.
    """

    name: str
    labels: bool = True
    sampling: str = "debiased"
    prefix: bool = False
    share: float = 1.0

    @property
    def readings(self) -> tuple[str, ...]:
        """The prefixes to evaluate with."""
        return KINDS if self.prefix else ("plain",)


ARMS = (
    Arm("captions alone", labels=False, sampling="pictures", share=0.5),
    Arm("both, debiased batches"),
    Arm("both, debiased batches, prefixes", prefix=True),
)
MIXED = (
    Arm("both, mixed batches", sampling="mixed"),
    Arm("both, mixed batches, prefixes", sampling="mixed", prefix=True),
)
"""Only at scale ``full``."""


@dataclass(frozen=True)
class WithKind:
    """Data whose texts have the prefix of one kind."""

    data: RealData
    kind: str

    def texts(self, texts: Sequence[str]) -> Shaped[Tensor, "texts entries"]:
        """Return features or tokens with the prefix."""
        return with_kind(self.data.texts(texts), [KINDS.index(self.kind)] * len(texts))


def with_kind(texts: Shaped[Tensor, "n entries"], kinds: Sequence[int]) -> Shaped[Tensor, "n more"]:
    """Append a one-hot vector of each text's kind to its features, or insert a token after the start token."""
    if not texts.is_floating_point():
        tokens = torch.tensor(PREFIX_TOKENS).to(texts)[torch.tensor(kinds)]
        return torch.cat([texts[:, :1], tokens[:, None], texts[:, 1:]], dim=1)
    prefixes = _PREFIX_LENGTH * torch.nn.functional.one_hot(torch.tensor(kinds), len(KINDS))
    return torch.cat([texts, prefixes.to(texts)], dim=1)


def _pairs(data: RealData, arm: Arm) -> FeaturePairs:
    names = (*data.roles.training, LABELS) if arm.labels else data.roles.training
    pairs = training_pairs(data, names)
    if not arm.prefix:
        return pairs
    assert pairs.groups is not None
    return replace(pairs, texts=with_kind(pairs.texts, pairs.groups[pairs.owner].tolist()))


def _measure(options: StudyOptions) -> Measurements:
    return _measured(options, open_runner(options, "prefix-real", LIGHT_ROLES), HeadRecipe(loss="softmax"))


def _measure_trained(options: StudyOptions) -> Measurements:
    runner = open_runner(options, "prefix-trained", LIGHT_ROLES, "tokens")
    return _measured(options, runner, HeadRecipe(loss="softmax", stage_rate=1e-4))


def _measured(options: StudyOptions, runner: ArmRunner, head: HeadRecipe) -> Measurements:
    smoke = options.scale == "smoke"
    data, head = runner.data, SMOKE_HEAD if smoke else head
    splits = {**data.roles.choosing, **data.roles.testing}
    own = ("a",) if smoke else OWN
    foreign = tuple(name for name in splits if name not in own)
    read = data.digest(*data.roles.training, *own, *foreign)
    found = Measurements({"own": own, "foreign": foreign, "pools": list(data.roles.pools)})
    for seed in range(options.seeds or (2 if smoke else 3)):
        for arm in (*ARMS, *(MIXED if options.scale == "full" else ())):
            steps = round(arm.share * head.steps)
            recipe = replace(head, sampling=arm.sampling, steps=steps, stage_steps=steps // 2)
            settings = [2, asdict(recipe), arm.labels, arm.prefix, TEMPLATES, own, foreign, read]

            def compute(arm: Arm = arm, recipe: HeadRecipe = recipe, seed: int = seed) -> Measurements:
                model = fit(_pairs(data, arm), recipe, seed, data)
                return measured(model, data, arm, {name: splits[name] for name in (*own, *foreign)})

            found.take(runner.figures(arm.name, seed, settings, compute))
    return found


def measured(model: FeatureModel, data: RealData, arm: Arm, sets: Mapping[str, Sequence[str]]) -> Measurements:
    """Measure zero-shot accuracy and recall with each prefix."""
    found = Measurements()
    for reading in arm.readings:
        read = model
        if arm.prefix:
            read = FeatureModel(model.image, model.text, WithKind(data, reading), None, {}, "")  # type: ignore[arg-type]
        found.take(measure_sets(read, data, sets, data.roles.pools, examples=False, read=reading))
    return found


COMPARED = (
    ("labels over captions alone", (ARMS[1], "plain"), (ARMS[0], "plain")),
    ("labels and prefixes, caption reading, over captions alone", (ARMS[2], "caption"), (ARMS[0], "plain")),
    ("caption reading over no prefixes", (ARMS[2], "caption"), (ARMS[1], "plain")),
    ("label reading over no prefixes", (ARMS[2], "label"), (ARMS[1], "plain")),
    ("caption over label reading", (ARMS[2], "caption"), (ARMS[2], "label")),
)


def _form(found: Measurements) -> TablesAndNotes:
    own, foreign, pools = (tuple(found.context[key]) for key in ("own", "foreign", "pools"))
    columns = [
        Column("by name, sets of the labels", {"measure": "zero-shot", "set": own}),
        Column("by name, foreign sets", {"measure": "zero-shot", "set": foreign}),
        *(Column(f"R@10 {pool}", {"measure": "R@10", "set": pool}) for pool in pools),
    ]
    measured_arms = found.names("arm")
    rows = [Row((arm.name, reading if arm.prefix else ""), {"arm": arm.name, "read": reading})
            for arm in (*ARMS, *MIXED) if arm.name in measured_arms for reading in arm.readings]  # fmt: skip
    gains = [replace(column, show="gain") for column in columns]
    compared, notes = [], list[str]()
    for title, (one, reading), (other, over) in COMPARED:
        at, base = {"arm": one.name, "read": reading}, {"arm": other.name, "read": over}
        compared.append(Row((title,), at, over=base))
        gained = [found.paired({**at, "measure": measure}, base, places).over_seeds_p()
                  for measure, places in (("zero-shot", foreign), ("R@10", pools))]  # fmt: skip
        if not np.isnan(gained).any():
            notes.append(f"{title}: t-test over seeds, foreign sets p = {gained[0]:.2g}, R@10 p = {gained[1]:.2g}")
    return [
        TableForm("Captions and labels together", ("training", "reading"), rows, columns).fill(found),
        TableForm("Differences, paired by seed", ("difference",), compared, gains, notes=tuple(notes)).fill(found),
    ], []


real = TableStudy("prefix/real", _measure, _form, worlds(WORLD))
trained = TableStudy("prefix/trained", _measure_trained, _form, worlds(WORLD + "; MiniLM is trained too"))
