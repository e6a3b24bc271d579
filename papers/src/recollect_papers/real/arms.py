"""Arms of a table on real pictures, with the results of each arm and seed cached in a file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from recollect.core.progress import output
from recollect_papers.engine import Column, Show
from recollect_papers.measurements import FigureAddress, Measurements
from recollect_papers.real.data import ROLES, Inputs, RealData, Roles, open_data
from recollect_papers.real.heads import LABELS, FeatureModel, FeaturePairs, HeadRecipe, fit, training_pairs
from recollect_papers.real.measure import SHOTS, measure
from recollect_papers.store import cached, content_key, slug
from recollect_papers.study import Scale, StudyOptions

_FORMAT = 1  # increase when measurements change

SHOT_NAMES = tuple(map(str, SHOTS))
TOWER = "tower, no head"
SMOKE_HEAD = HeadRecipe(width=16, hidden=32, batch=64, steps=10)


def worlds(world: str) -> dict[Scale, str]:
    """Return the descriptions of a study on real pictures at all scales."""
    return {"smoke": "random vectors: a test run without meaningful results", "small": world, "full": world}


def open_runner(options: StudyOptions, name: str, roles: Roles = ROLES, inputs: Inputs = "features") -> "ArmRunner":
    """Open the data of a study (see `open_data`), with results in ``OUT/runs/NAME``."""
    data = open_data(options.data, options.scale == "smoke", roles, inputs)
    return ArmRunner(data, options.out / "runs" / name)


@dataclass
class ArmRunner:
    """Trains and measures arms, reading cached results.

    Attributes:
        data: training and evaluation data.
        folder: folder of the result files.
    """

    data: RealData
    folder: Path
    _pairs: dict[tuple[str, ...], FeaturePairs] = field(default_factory=dict)

    def figures(self, arm: str, seed: int, settings: Any, compute: Callable[[], Measurements]) -> Measurements:
        """Return the results of ``compute`` under the arm's name and seed, cached by ``settings``.

        Args:
            settings: everything that affects the figures except the code, as JSON.
        """
        key = content_key(_FORMAT, settings, seed, size=5)
        file = self.folder / f"{slug(arm)}-seed{seed}-{key}.json"

        def measured() -> list[Any]:
            output().print(f"{arm}, seed {seed}", highlight=False)
            return [[address, value] for address, _, value in compute().rows()]

        found = Measurements()
        for address, value in cached(file, measured):
            found.add({"arm": arm, **address}, seed, value)
        return found

    def pairs(self, names: Sequence[str]) -> FeaturePairs:
        """Return the training pairs of some sets (cached)."""
        if tuple(names) not in self._pairs:
            self._pairs[tuple(names)] = training_pairs(self.data, names)
        return self._pairs[tuple(names)]

    def model(
        self, recipe: HeadRecipe, seed: int, training: Sequence[str] = (), start: FeatureModel | None = None
    ) -> FeatureModel:
        """Train a recipe, optionally from a trained model; cached in a file shared by all studies of the folder."""
        training = tuple(training or self.data.roles.training)
        read = self.data.digest(*_files(training))
        key = content_key(_FORMAT, asdict(recipe), seed, training, read, start and start.fingerprint)
        file = self.folder.parent / "models" / f"{key}.safetensors"
        return fit(self.pairs(training), recipe, seed, self.data, start, cache=file)

    def heads(self, arm: str, recipe: HeadRecipe, seed: int, part: str, training: Sequence[str] = ()) -> Measurements:
        """Train a recipe with a seed and measure it on the ``choosing`` (validation) or ``testing`` sets."""
        roles = self.data.roles
        training = tuple(training or roles.training)
        sets, pools = roles.measured(part)
        read = self.data.digest(*_files(training), *sets, *pools)
        splits = {name: list(splits) for name, splits in sets.items()}
        settings = [asdict(recipe), training, part, splits, pools, read]
        return self.figures(
            arm, seed, settings,
            lambda: measure(self.model(recipe, seed, training), self.data, part, named=recipe.steps > 0),
        )  # fmt: skip


def _files(training: Sequence[str]) -> list[str]:
    """Exclude labels, whose features derive from the captioned pictures and the tower's weights."""
    return [name for name in training if name != LABELS]


def choose(
    runner: ArmRunner, arm: str, candidates: Mapping[str, HeadRecipe], found: Measurements, seeds: int,
    training: Sequence[str] = (),
) -> tuple[str, HeadRecipe]:  # fmt: skip
    """Return the best candidate on the choosing sets, and add every candidate's figures to ``found``.

    The score is the sum of mean few-shot accuracy (all shots and sets) and R@10.
    """
    scores: dict[str, float] = {}
    for name, recipe in candidates.items():
        candidate = f"{arm}: {name}"
        for seed in range(seeds):
            found.take(runner.heads(candidate, recipe, seed, "choosing", training))
        few, pool = few_shot_address(runner.data, candidate), recall_address(runner.data, candidate)
        scores[name] = found.summary(few).mean + found.summary(pool).mean
    best = max(scores, key=scores.__getitem__)
    return best, candidates[best]


def few_shot_address(data: RealData, arm: str) -> dict[str, Any]:
    """Return the address of few-shot accuracy on the choosing sets."""
    return {"arm": arm, "measure": "few-shot", "part": "choosing", "set": tuple(data.roles.choosing),
            "shots": SHOT_NAMES}  # fmt: skip


def recall_address(data: RealData, arm: str) -> dict[str, Any]:
    """Return the address of R@10 on the choosing pool."""
    return {"arm": arm, "measure": "R@10", "part": "choosing", "set": data.roles.choosing_pool[0]}


def shot_columns(address: FigureAddress, shots: Sequence[int] = SHOTS, show: Show = "mean") -> list[Column]:
    """Return a column of an address for each number of shots."""
    return [Column(f"{each} shot{'s' * (each > 1)}", {**address, "shots": str(each)}, show) for each in shots]


def result_columns(sets: Sequence[str], pools: Sequence[str], show: Show = "mean") -> list[Column]:
    """Return columns of few-shot accuracy, zero-shot accuracy, and recall on the testing sets and pools."""
    at: FigureAddress = {"part": "testing", "set": tuple(sets)}
    columns = shot_columns({**at, "measure": "few-shot"}, show=show)
    columns.append(Column("by name", {**at, "measure": "zero-shot"}, show))
    return columns + [Column(f"R@10 {pool}", {**at, "measure": "R@10", "set": pool}, show) for pool in pools]
