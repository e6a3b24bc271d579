"""A page that is one file: text, tables and figures, with nothing to load from anywhere else."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from matplotlib.figure import Figure

from recollect.core.files import write_text
from recollect.core.templates import render
from recollect_papers.plots import inline_png

_PIXELS_PER_INCH = 100  # of a figure on the page; its file has half as many again, for screens that show them


@dataclass
class ReportPage:
    """Parts are added from top to bottom; every text is escaped."""

    title: str
    parts: list[dict[str, Any]] = field(default_factory=list)

    def heading(self, text: str) -> None:
        """Begin a section."""
        self.parts.append({"kind": "heading", "text": text})

    def paragraph(self, text: str, style: Literal["", "lead", "quiet"] = "") -> None:
        """Add a paragraph; ``lead`` is for what was found, ``quiet`` for how."""
        self.parts.append({"kind": "paragraph", "text": text, "style": style})

    def figure(self, figure: Figure, text: str) -> None:
        """Add a figure with its caption, as wide as its inches say, so that words are of one size in all figures."""
        width = round(figure.get_figwidth() * _PIXELS_PER_INCH)
        self.parts.append({"kind": "figure", "source": inline_png(figure), "text": text, "width": width})

    def definitions(self, text: str, items: Sequence[tuple[str, str]], code: bool = False) -> None:
        """Add terms, or commands (``code``), each with what it means."""
        self.parts.append({"kind": "definitions", "text": text, "items": items, "code": code})

    def table(self, text: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Add a table with its caption; the first column is text, the others are figures."""
        self.parts.append({"kind": "table", "text": text, "columns": columns, "rows": rows})

    def html(self) -> str:
        """The whole page."""
        return render(Path(__file__).with_name("report_page.html"), title=self.title, parts=self.parts)

    def save(self, path: str | Path) -> None:
        """Write the page, atomically."""
        write_text(path, self.html())
