"""A table of arms: each arm and seed leaves one small file, so that a study that is stopped goes on where it was."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recollect.core.progress import output
from recollect_papers.measurements import Measurements
from recollect_papers.real.data import RealData
from recollect_papers.real.heads import LABELS, FeatureModel, FeaturePairs, HeadRecipe, fit, training_pairs
from recollect_papers.real.measure import measure
from recollect_papers.store import content_key, kept_or_made, slug

_FORMAT = 1  # raise it when what is measured changes


@dataclass
class ArmRunner:
    """Runs what has no file yet.

    Attributes:
        data: what arms are trained and measured on.
        folder: of the files.
    """

    data: RealData
    folder: Path

    def figures(self, arm: str, seed: int, settings: Any, make: Callable[[], Measurements]) -> Measurements:
        """What ``make`` measures, under the arm's name and seed; read from its file where that is there.

        Args:
            settings: everything besides the code that decides the figures, as JSON.
        """
        key = content_key(_FORMAT, settings, seed, size=5)
        file = self.folder / f"{slug(arm)}-seed{seed}-{key}.json"

        def made() -> list[Any]:
            output().print(f"{arm}, seed {seed}", highlight=False)
            return [[address, value] for address, _, value in make().rows()]

        found = Measurements()
        for address, value in kept_or_made(file, made):
            found.add({"arm": arm, **address}, seed, value)
        return found

    def pairs(self, names: Sequence[str]) -> FeaturePairs:
        """Training pairs of some sets, once."""
        kept: dict[tuple[str, ...], FeaturePairs] = self.__dict__.setdefault("_pairs", {})
        if tuple(names) not in kept:
            kept[tuple(names)] = training_pairs(self.data, names)
        return kept[tuple(names)]

    def model(
        self, recipe: HeadRecipe, seed: int, training: Sequence[str] = (), start: FeatureModel | None = None
    ) -> FeatureModel:
        """Train a recipe, or go on training a model; kept in a file, which other studies of the folder read too."""
        training = tuple(training or self.data.roles.training)
        read = self.data.digest(*_files(training))
        key = content_key(_FORMAT, asdict(recipe), seed, training, read, start and start.fingerprint)
        file = self.folder.parent / "models" / f"{key}.safetensors"
        return fit(self.pairs(training), recipe, seed, self.data, start, kept=file)

    def heads(self, arm: str, recipe: HeadRecipe, seed: int, part: str, training: Sequence[str] = ()) -> Measurements:
        """Train a recipe with a seed and measure it on the choosing or the testing sets."""
        roles = self.data.roles
        training = tuple(training or roles.training)
        sets = roles.choosing if part == "choosing" else roles.testing
        read = self.data.digest(*_files(training), *sets)
        settings = [asdict(recipe), training, part, {name: list(splits) for name, splits in sets.items()}, read]
        return self.figures(
            arm, seed, settings,
            lambda: measure(self.model(recipe, seed, training), self.data, part, named=recipe.steps > 0),
        )  # fmt: skip


def _files(training: Sequence[str]) -> list[str]:
    """Without labels, which are made of the captioned pictures and the tower's weights."""
    return [name for name in training if name != LABELS]


def choose(
    runner: ArmRunner, arm: str, candidates: Mapping[str, HeadRecipe], found: Measurements, seeds: int,
    training: Sequence[str] = (),
) -> tuple[str, HeadRecipe]:  # fmt: skip
    """The candidate with the best score on the choosing sets; every candidate's figures are added to ``found``.

    The score is the mean of few-shot accuracy (all shots and sets) and of R@10: what users do with such a model.
    """
    scores: dict[str, float] = {}
    for name, recipe in candidates.items():
        called = f"{arm}: {name}"
        for seed in range(seeds):
            found.take(runner.heads(called, recipe, seed, "choosing", training))
        few = at_choosing(runner.data, called)
        scores[name] = found.summary(few).mean + found.summary(pool_at(runner.data, called)).mean
    best = max(scores, key=scores.__getitem__)
    return best, candidates[best]


def at_choosing(data: RealData, arm: str) -> dict[str, Any]:
    """Address of the few-shot accuracy on the choosing sets."""
    return {"arm": arm, "measure": "few-shot", "part": "choosing", "set": tuple(data.roles.choosing),
            "shots": ("1", "4", "16")}  # fmt: skip


def pool_at(data: RealData, arm: str) -> dict[str, Any]:
    """Address of R@10 on the choosing pool."""
    return {"arm": arm, "measure": "R@10", "part": "choosing", "set": data.roles.choosing_pool[0]}
