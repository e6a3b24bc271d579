"""Options, tables and reports of studies."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.console import Console
from rich.table import Table as RichTable

from recollect.cli.parser import Arg
from recollect.core.files import write_json, write_text
from recollect.core.places import public_place
from recollect.efsa.options import EpisodeOptions
from recollect_papers.efsa.options import CaptionCorruption, RewardOptions, TuningOptions

Scale = Literal["smoke", "small", "full"]
"""``smoke`` checks that a study runs, ``small`` whether there is an effect, ``full`` is the paper's setup."""


def over(count: int, what: str) -> str:
    """Describe the number of runs behind a figure."""
    return f"one {what}" if count == 1 else f"mean ± std over {count} {what}s"


def public_names(places: Sequence[str]) -> dict[str, str]:
    """Map each place to its `public_place`, with as many path components as make the names unique."""
    for parts in range(1, max((len(Path(place).parts) for place in places), default=0) + 1):
        names = {place: public_place(place, parts) for place in places}
        if len(set(names.values())) == len(names):
            return names
    return {place: place for place in places}


@dataclass(frozen=True)
class SearchSettings:
    """Options of search studies (EFSA) at scale ``full``.

    Attributes:
        models: base models, one per seed (default: the paper's).
        teacher: larger model, for RLCF.
        captions: captions of the pools, as for `recollect evaluate retrieval`; tables that do not compare captions use
            the first.
        corruption: how reworded captions differ from the original ones.
        split: split of every source.
        queries: maximum number of texts per domain; the pools are not reduced.
        episode: episode options (default: the paper's); fine-tuning uses their loss, adapters and optimizer too.
        tuning: options of fine-tuning.
        full_learning_rate: learning rate of episodes that adapt all parameters (default: that of ``episode``).
        reward: options of RLCF.
    """

    models: tuple[str, ...] = ()
    teacher: str | None = None
    captions: tuple[str, ...] = ()
    corruption: CaptionCorruption = field(default_factory=CaptionCorruption)
    split: str = "test"
    queries: int | None = None
    episode: EpisodeOptions = field(default_factory=EpisodeOptions.paper)
    tuning: TuningOptions = field(default_factory=lambda: TuningOptions(learning_rate=None))
    full_learning_rate: float | None = None
    reward: RewardOptions = field(default_factory=RewardOptions)


@dataclass(frozen=True)
class StudyOptions:
    """Options of a study."""

    scale: Scale = "smoke"
    """smoke: checks in minutes that it runs; small: shows an effect, with several seeds; full: the paper's setup."""
    out: Path = Path("runs/studies")
    """Folder for runs, results and reports."""
    data: tuple[str, ...] = ()
    """Training sources, for --scale full."""
    suite: str | None = None
    """Evaluation suite, for --scale full (default: the paper's)."""
    entities: str | None = None
    """Labeled source for reco/table-2 with --scale full; classes in its split train count as seen."""
    seeds: int | None = None
    """Number of training seeds (default: depends on the scale)."""
    workers: int | None = None
    """Number of parallel training runs (default: one per CPU core, or one on a GPU)."""
    search: Annotated[SearchSettings, Arg(rare=True)] = field(default_factory=SearchSettings)


@dataclass(frozen=True)
class StudyTable:
    """A table of measured figures, with the paper's figures in separate columns."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.title}: expected {len(self.columns)} cells, got {len(row)}: {row}")

    def markdown(self) -> str:
        """Return the table as GitHub-flavored Markdown."""
        return "\n".join([f"### {self.title}", "", *self.lines(), *(f"\n{note}" for note in self.notes)]) + "\n"

    def lines(self) -> list[str]:
        """Return header and rows as lines of Markdown."""
        lines = ["| " + " | ".join(row) + " |" for row in (self.columns, *self.rows)]
        return [lines[0], "|" + " --- |" * len(self.columns), *lines[1:]]

    def show(self, console: Console) -> None:
        """Print the table to a terminal."""
        table = RichTable(title=self.title, title_justify="left")
        for index, column in enumerate(self.columns):
            table.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        console.print(table)
        for note in self.notes:
            console.print(note, highlight=False)


@dataclass(frozen=True)
class StudyReport:
    """Tables and figures of one study.

    Attributes:
        name: e.g. ``lixp/table-4``.
        world: description of the data and models.
        figures: image files, relative to the report's folder.
        measured: measurements behind the tables, by seed, in the format of `Measurements.as_json`.
        command: command that reproduces the report, without local paths.
    """

    name: str
    scale: Scale
    world: str
    tables: Sequence[StudyTable] = ()
    figures: Sequence[str] = ()
    notes: Sequence[str] = field(default_factory=tuple)
    measured: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""

    @property
    def stem(self) -> str:
        """The report's file name without extension."""
        return self.name.replace("/", "-")

    def markdown(self) -> str:
        """Return the whole report as Markdown."""
        head = f"## {self.name} (scale {self.scale})\n\nWorld: {self.world}\n"
        tables = "\n".join(table.markdown() for table in self.tables)
        figures = "\n".join(f"![{Path(figure).stem}]({figure})" for figure in self.figures)
        notes = "\n".join(f"- {note}" for note in self.notes)
        return "\n".join(part for part in (head, tables, figures, notes) if part) + "\n"

    def save(self, out: Path) -> Path:
        """Write ``<stem>.md`` and ``<stem>.json`` to ``out`` and return the path of the Markdown file."""
        write_json(out / f"{self.stem}.json", asdict(self))
        write_text(out / f"{self.stem}.md", self.markdown())
        return out / f"{self.stem}.md"
