"""``prefix/real``: captions and labels together on the starter's towers, with and without a prefix for each kind.

The text tower is locked, so a prefix is what its head learns: a vector of the kind beside the text's features, which
shifts every unit of the head's hidden layer. At the test every text can be read as a caption or as a label.

Half of what the arms with labels read are labels, so in their 400 steps they read as many captions as captions alone do
in 200. Captions alone are trained for both lengths, and what labels cost is over the shorter one.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from recollect_papers.engine import Column, Formed, Row, TableForm, TableStudy
from recollect_papers.measurements import Measurements, corrected
from recollect_papers.real.arms import ArmRunner
from recollect_papers.real.data import FeatureSet, RealData, labelled, open_data
from recollect_papers.real.heads import FeatureModel, FeaturePairs, HeadRecipe, fit, training_pairs
from recollect_papers.real.measure import by_name, recall
from recollect_papers.study import StudyOptions

KINDS = ("caption", "label")
TEMPLATES = ("a photo of a {}.", "{}", "a picture of a {}", "there is a {} in this picture", "a close-up of a {}")
_PREFIX_LENGTH = 0.1
"""About twice the deviation of an entry of a text's features."""

OWN, FOREIGN = "caltech101", ("resisc12", "flowers12", "butterfly10", "grocery", "gtsrb", "ucm_captions")
WORLD = (
    "an MLP head on EfficientNet-Lite0 and MiniLM; captions: 20,090 everyday photographs; labels: Caltech-101, and "
    "names of ImageNet's classes with features made from the tower's classifier"
)
MADE = "made vectors: shows that it runs, not what it finds"


@dataclass(frozen=True)
class Arm:
    """One way of training.

    Attributes:
        name: in tables.
        labels: whether labels are trained on too.
        sampling: of batches.
        prefix: whether the head reads the kind.
        share: of the steps that an arm with labels is trained for.
    """

    name: str
    labels: bool = True
    sampling: str = "debiased"
    prefix: bool = False
    share: float = 1.0

    @property
    def readings(self) -> tuple[str, ...]:
        """How texts can be read."""
        return KINDS if self.prefix else ("plain",)


ARMS = (
    Arm("captions alone, as many captions", labels=False, sampling="pictures", share=0.5),
    Arm("both, mixed batches", sampling="mixed"),
    Arm("both, mixed batches, prefixes", sampling="mixed", prefix=True),
    Arm("both, debiased batches"),
    Arm("both, debiased batches, prefixes", prefix=True),
    Arm("captions alone, as many steps", labels=False, sampling="pictures"),
)


@dataclass(frozen=True)
class ReadAs:
    """Texts with the vector of a kind behind their features."""

    data: RealData
    kind: str

    def texts(self, texts: Sequence[str]) -> Float[Tensor, "texts entries"]:
        """The features, and the kind's vector."""
        return with_kind(self.data.texts(texts), [KINDS.index(self.kind)] * len(texts))


def with_kind(features: Float[Tensor, "n entries"], kinds: Sequence[int]) -> Float[Tensor, "n more"]:
    """Features with a one-hot vector of each text's kind."""
    told = _PREFIX_LENGTH * torch.nn.functional.one_hot(torch.tensor(kinds), len(KINDS))
    return torch.cat([features, told.to(features)], dim=1)


def _pairs(data: RealData, arm: Arm) -> FeaturePairs:
    captions = training_pairs(data, data.roles.training)
    if not arm.labels:
        return captions
    images, owner, texts = [captions.images], [captions.owner], list[str]()
    classes = [torch.arange(len(captions.images))]  # each its own
    start = first = len(captions.images)
    for each in (data.classes(_own(data)), data.named()):
        rows = labelled(each, "train")
        images.append(each.images[rows])
        texts += [template.format(each.class_names[label]) for label in each.labels[rows] for template in TEMPLATES]
        owner.append(start + torch.arange(len(rows)).repeat_interleave(len(TEMPLATES)))
        classes.append(first + torch.from_numpy(each.labels[rows]))
        start, first = start + len(rows), first + len(each.class_names)
    features = torch.cat([captions.texts, data.texts(texts)])
    if arm.prefix:
        features = with_kind(features, [0] * len(captions.texts) + [1] * len(texts))
    groups = (torch.arange(start) >= len(captions.images)).long()
    return FeaturePairs(torch.cat(images), features, torch.cat(owner), torch.cat(classes), groups)


def _own(data: RealData) -> str:
    return OWN if OWN in data.roles.choosing else next(iter(data.roles.choosing))


def _measure(options: StudyOptions) -> Measurements:
    smoke = options.scale == "smoke"
    data = open_data(options.data, smoke)
    runner = ArmRunner(data, options.out / "runs" / "prefix-real")
    head = HeadRecipe(width=16, hidden=32, batch=64, steps=10) if smoke else HeadRecipe(loss="softmax")
    foreign = tuple(name for name in data.roles.testing if smoke or name in FOREIGN)
    own = (_own(data), *(name for name in data.roles.testing if name not in foreign))
    splits = {**data.roles.choosing, **data.roles.testing}
    read = data.digest(*data.roles.training, *own, *foreign)
    found = Measurements({"own": own, "foreign": foreign, "pools": list(data.roles.pools)})
    for seed in range(options.seeds or (2 if smoke else 3)):
        for arm in ARMS:
            recipe = replace(head, sampling=arm.sampling, steps=round(arm.share * head.steps))  # type: ignore[arg-type]
            settings = [2, asdict(recipe), arm.labels, arm.prefix, TEMPLATES, own, foreign, read]

            def make(arm: Arm = arm, recipe: HeadRecipe = recipe, seed: int = seed) -> Measurements:
                model = fit(_pairs(data, arm), recipe, seed, data)
                return measured(model, data, arm, {name: data.classes(name) for name in (*own, *foreign)}, splits)

            found.take(runner.figures(arm.name, seed, settings, make))
    return found


def measured(
    model: FeatureModel, data: RealData, arm: Arm, sets: dict[str, FeatureSet], splits: dict[str, tuple[str, ...]]
) -> Measurements:
    """Accuracy by name and recall at 10, in each reading."""
    found = Measurements()
    for reading in arm.readings:
        read = model
        if arm.prefix:
            read = FeatureModel(model.image, model.text, ReadAs(data, reading), None, {}, "")  # type: ignore[arg-type]
        for name, each in sets.items():
            found.add({"read": reading, "measure": "zero-shot", "set": name}, 0, by_name(read, each, splits[name]))
        for pool, split in data.roles.pools.items():
            found.add({"read": reading, "measure": "R@10", "set": pool}, 0, recall(read, data.get(pool), split)[10])
    return found


COMPARED = (
    ("caption over label reading", (ARMS[4], "caption"), (ARMS[4], "label")),
    ("caption reading over no prefixes", (ARMS[4], "caption"), (ARMS[3], "plain")),
    ("label reading over no prefixes", (ARMS[4], "label"), (ARMS[3], "plain")),
    ("mixed batches: caption over label reading", (ARMS[2], "caption"), (ARMS[2], "label")),
    ("mixed batches: caption reading over no prefixes", (ARMS[2], "caption"), (ARMS[1], "plain")),
    ("mixed batches: label reading over no prefixes", (ARMS[2], "label"), (ARMS[1], "plain")),
    ("labels in debiased batches over as many captions alone", (ARMS[3], "plain"), (ARMS[0], "plain")),
    ("labels in mixed batches over as many captions alone", (ARMS[1], "plain"), (ARMS[0], "plain")),
    (
        "debiased batches, prefixes, caption reading over as many captions alone",
        (ARMS[4], "caption"),
        (ARMS[0], "plain"),
    ),
    ("captions alone: as many steps over as many captions", (ARMS[5], "plain"), (ARMS[0], "plain")),
)


def _form(found: Measurements) -> Formed:
    own, foreign, pools = (tuple(found.context[key]) for key in ("own", "foreign", "pools"))
    columns = [
        Column("by name, sets of the labels", {"measure": "zero-shot", "set": own}),
        Column("by name, foreign sets", {"measure": "zero-shot", "set": foreign}),
        *(Column(f"R@10 {pool}", {"measure": "R@10", "set": pool}) for pool in pools),
    ]
    rows = [Row((arm.name, reading if arm.prefix else ""), {"arm": arm.name, "read": reading})
            for arm in ARMS for reading in arm.readings]  # fmt: skip
    gains = [replace(column, show="gain") for column in columns]
    compared, tested, notes = [], [], list[str]()
    for title, (one, reading), (other, over) in COMPARED:
        at, base = {"arm": one.name, "read": reading}, {"arm": other.name, "read": over}
        compared.append(Row((title,), at, over=base))
        gain = found.paired({**at, "measure": "zero-shot"}, base, (*own, *foreign))
        tested.append(gain)
        words = f"{title}, by name: {gain.summary().signed()}, up on {gain.up()} of {len(own + foreign)}"
        notes.append(f"{words}; {gain.tests()}")
        gain = found.paired({**at, "measure": "R@10"}, base, pools)
        p = gain.over_seeds_p()
        words = f"{title}, R@10: {gain.summary().signed()}"
        notes.append(words if np.isnan(p) else f"{words}; over seeds, t-test p = {p:.2g}")
    notes.append(corrected(tested))
    return [
        TableForm("Captions and labels together", ("training", "reading"), rows, columns).fill(found),
        TableForm("Differences, paired by seed", ("difference",), compared, gains, notes=tuple(notes)).fill(found),
    ], []


real = TableStudy("prefix/real", _measure, _form, {"smoke": MADE, "small": WORLD, "full": WORLD})
