"""What a study is: options in, a report of tables and figures out."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.console import Console
from rich.table import Table as RichTable

from recollect.cli.parser import Arg
from recollect.core.files import write_json, write_text
from recollect.efsa.options import EpisodeOptions
from recollect_papers.efsa.options import CaptionCorruption, RewardOptions, TuningOptions

Scale = Literal["smoke", "small", "full"]
"""``smoke`` shows that it runs, ``small`` that there is (or is not) an effect, ``full`` is the paper's own set-up."""


def over(count: int, what: str) -> str:
    """The number of runs behind a figure, in words."""
    return f"one {what}" if count == 1 else f"mean ± std over {count} {what}s"


@dataclass(frozen=True)
class SearchSettings:
    """What studies of search need at scale ``full`` in addition to data.

    Attributes:
        models: base models, one for each seed; the paper's own by default.
        teacher: a larger model, for RLCF.
        captions: of the pools, as `recollect evaluate retrieval` takes them; the first is used by tables that do not
            compare captions.
        corruption: how reworded captions differ from the true ones.
        split: of every source.
        queries: maximum number of texts per domain; the pools stay whole.
        episode: of episodes (the paper's by default), and of the loss, adapters and optimizer of fine-tuning.
        tuning: of fine-tuning.
        full_learning_rate: of episodes that change all parameters; the episodes' own by default.
        reward: of RLCF.
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
    """How a study is run."""

    scale: Scale = "smoke"
    """smoke: minutes, shows that it runs; small: several seeds where an effect can be seen; full: the paper's."""
    out: Path = Path("runs/studies")
    """Folder for runs, results and reports."""
    data: tuple[str, ...] = ()
    """Training sources, for --scale full."""
    suite: str | None = None
    """Evaluation suite, for --scale full; the paper's own by default."""
    entities: str | None = None
    """Labeled source whose classes of split train count as seen, for reco/table-2 with --scale full."""
    seeds: int | None = None
    """Number of training seeds; the scale's own by default."""
    workers: int | None = None
    """Training runs side by side; one for each core on a CPU by default."""
    search: Annotated[SearchSettings, Arg(rare=True)] = field(default_factory=SearchSettings)


@dataclass(frozen=True)
class StudyTable:
    """A table in the paper's form: our figures, and the paper's in columns that say so."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.title}: a row of {len(row)} cells under {len(self.columns)} columns: {row}")

    def markdown(self) -> str:
        """The table as GitHub-flavored Markdown."""
        return "\n".join([f"### {self.title}", "", *self.lines(), *(f"\n{note}" for note in self.notes)]) + "\n"

    def lines(self) -> list[str]:
        """Its columns and rows as lines of Markdown."""
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
        world: where the numbers come from, in words.
        figures: files of the report, relative to its folder.
        measured: the figures of the tables by seed, as `Measurements` writes them.
        command: that makes it, without paths of this machine.
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
        """The report's file name without its ending."""
        return self.name.replace("/", "-")

    def markdown(self) -> str:
        """The whole report as Markdown."""
        head = f"## {self.name} (scale {self.scale})\n\nWorld: {self.world}\n"
        tables = "\n".join(table.markdown() for table in self.tables)
        figures = "\n".join(f"![{Path(figure).stem}]({figure})" for figure in self.figures)
        notes = "\n".join(f"- {note}" for note in self.notes)
        return "\n".join(part for part in (head, tables, figures, notes) if part) + "\n"

    def save(self, out: Path) -> Path:
        """Write ``<name>.md`` and ``<name>.json`` into ``out``; returns the Markdown file."""
        write_json(out / f"{self.stem}.json", asdict(self))
        write_text(out / f"{self.stem}.md", self.markdown())
        return out / f"{self.stem}.md"
