"""HTML templates of reports, galleries and sheets; every value is escaped."""

from pathlib import Path
from typing import Any

from jinja2 import Environment


def render(template: Path, **values: Any) -> str:
    """Render the template file with ``values``."""
    return Environment(autoescape=True, trim_blocks=True).from_string(template.read_text("utf-8")).render(values)
