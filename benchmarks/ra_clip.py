"""RA-CLIP beside plain models of the same pairs: emoji, locked patches, concepts that no model saw.

    python benchmarks/ra_clip.py FOLDER/emoji.parquet --out results/reco/ra-clip.json

Every figure is what a command of the package says. The emoji's training concepts, in six of nine styles, are divided
into two halves by their names: a searcher learns the first, and keeps it as an index; RA-CLIP and a plain model learn
the second, another plain model both. The test concepts are then asked for in the six styles, and in a style that
nothing was trained on (noto), there also with their pictures of the six styles in the index.
"""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

from recollect import cli
from recollect.cli.parser import Arg, script_options
from recollect.core.files import read_json, write_json
from recollect.evaluation.results import summarise
from recollect.training.loop import train
from recollect.training.options import Data
from recollect.training.recipes import RECIPES
from recollect_papers.lixp.sets import HELD_STYLES
from recollect_papers.reco.ra_clip import joint_recipe, train_joint
from recollect_papers.study import StudyTable
from recording import this_command, where

STYLE = HELD_STYLES[0]
Row = dict[str, float]


@dataclass(frozen=True)
class Options:
    """What to train, and where."""

    data: Annotated[Path, Arg(place="DATA")]
    """The emoji's Parquet file."""
    seeds: tuple[int, ...] = (0, 1)
    """Of every training."""
    steps: int = 300
    """Of every training."""
    batch: int = 1024
    """Pairs of a step."""
    work: Path = Path("runs/ra-clip")
    """Folder of models and indexes; what is there is not made again."""
    out: Path | None = None
    """JSON file for the figures."""


def said(*words: str | Path) -> None:
    """Run a command of the package.

    Raises:
        SystemExit: it failed.
    """
    if code := cli.main([str(word) for word in words]):
        raise SystemExit(code)


@dataclass(frozen=True)
class Trial:
    """One seed: models and indexes, each made once."""

    options: Options
    seed: int

    @property
    def folder(self) -> Path:
        """Of this seed."""
        return self.options.work / f"seed-{self.seed}"

    def pairs(self, filters: str) -> str:
        """Some of the emoji."""
        return f"{self.options.data}?{filters}"

    def model(self, name: str, pairs: str, index: Path | None = None, searcher: Path | None = None) -> Path:
        """A model by the recipe clip-locked; with an index it learns to read."""
        out = self.folder / name
        if not (out / "model").exists():
            sizes = {"steps": self.options.steps, "batch_size": self.options.batch, "seed": self.seed}
            recipe = replace(RECIPES["clip-locked"](), data=Data(captions=(pairs,)), **sizes)
            if index is None:
                train(recipe, out, resume=out.exists())
            else:
                reading = replace(joint_recipe(recipe), data=recipe.data, index=str(index), searcher=str(searcher))
                train_joint(reading, out, resume=out.exists())
        return out / "model"

    def index(self, name: str, model: Path, *sources: str) -> Path:
        """What a model embedded."""
        out = self.folder / name
        done = out.with_suffix(".done")
        if done.exists():
            return out
        shutil.rmtree(out, ignore_errors=True)  # of seconds
        for number, source in enumerate(sources):
            said("index", "add" if number else "build", *((out, source) if number else (source, "--model", model)),
                 "--name", f"part-{number}", *(() if number else ("--out", out)))  # fmt: skip
        done.touch()
        return out

    def found(self, model: Path, pairs: str, *words: str | Path) -> Row:
        """Recall at 10 in both directions."""
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "found.json"
            said("evaluate", "retrieval", model, "--data", pairs, *words, "--out", out)
            rows = read_json(out)[0]["rows"]
        return {row["direction"]: row["value"] for row in rows if row["k"] == 10 and row["domain"] == "all"}

    def rows(self) -> Iterator[tuple[str, str, Row]]:
        """What reads, what is asked, and the figures."""
        six = f"domain!={','.join(HELD_STYLES)}"
        first, second, whole = (self.pairs(f"split=train&{six}{half}") for half in ("&only=0/2", "&only=1/2", ""))
        new, held = self.pairs(f"split=test&{six}"), self.pairs(f"split=test&domain={STYLE}")
        searcher = self.model("searcher", first)
        known = self.index("known", searcher, first)
        grown = self.index("grown", searcher, first, new)
        plain, both = self.model("plain", second), self.model("both", whole)
        reads = self.model("reads", second, known, searcher)
        fusion = ("--fusion", reads / "fusion", "--searcher", searcher)
        for asked, pool in (("six styles", new), (STYLE, held)):
            yield "plain model of the same pairs", asked, self.found(plain, pool)
            yield "plain model of all pairs", asked, self.found(both, pool)
            yield "RA-CLIP", asked, self.found(reads, pool, "--index", known, *fusion)
        grown_index = ("--index", grown, *fusion)
        yield "RA-CLIP, the new concepts in its memory", STYLE, self.found(reads, held, *grown_index)
        own = self.index("own", plain, new)
        for mode in ("both", "image", "text"):
            how = ("--index", own, "--fusion", "mean", "--mode", mode)
            yield f"plain mean, the new concepts in its memory, mode {mode}", STYLE, self.found(plain, held, *how)


def table(figures: dict[str, dict[str, dict[str, list[float]]]], options: Options) -> StudyTable:
    """Mean and deviation over seeds."""
    places = [(asked, way) for asked in ("six styles", STYLE) for way in ("text to image", "image to text")]
    rows = tuple(
        (name, *(_shown(parts.get(asked, {}).get(way, [])) for asked, way in places)) for name, parts in figures.items()
    )
    words = {"six styles": "the six styles", STYLE: "a style left out"}
    columns = ("what reads", *(f"{way}, {words[asked]}" for asked, way in places))
    note = f"R@10, mean ± std over {len(options.seeds)} seeds; {options.steps} steps of {options.batch:,}"
    return StudyTable("RA-CLIP: concepts that no model saw", columns, rows, (note,))


def _shown(values: Sequence[float]) -> str:
    return str(summarise(values)) if values else ""


def main(options: Options) -> None:
    """Train, ask and write."""
    figures: dict[str, dict[str, dict[str, list[float]]]] = {}
    for seed in options.seeds:
        for name, asked, row in Trial(options, seed).rows():
            for way, value in row.items():
                figures.setdefault(name, {}).setdefault(asked, {}).setdefault(way, []).append(round(value, 3))
    made = table(figures, options)
    print(made.markdown())
    if options.out:
        settings = {"seeds": options.seeds, "steps": options.steps, "batch": options.batch}
        write_json(options.out, {"command": this_command(), "settings": settings, **where(), "figures": figures,
                                 "tables": [asdict(made)]})  # fmt: skip


if __name__ == "__main__":
    main(script_options(Options))
