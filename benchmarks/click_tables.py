"""Number of clicks to find a class: tables from the files of ``benchmarks/clicks.py``, one per set.

python benchmarks/click_tables.py
recollect-papers results docs/results/few-shot.md
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import wilcoxon

from recollect.core.files import read_json, write_json
from recollect_papers.study import StudyTable

RUNS = Path(__file__).parents[1] / "results" / "page" / "clicks"

LOOPS = ("ours", "forest", "best forest", "random order")
"""``forest`` is LightlyStudio's loop; ``best forest`` the forest setting with the fewest clicks on a set, chosen on the
same clicks, in its favor."""
STARTS = ("words", "examples")

_Record = Mapping[str, Any]


def click_tables(records: Sequence[_Record]) -> tuple[StudyTable, ...]:
    """Return tables of the mean clicks to an average precision of 0.9 from each start, and of the ratios to forests."""
    order = sorted(records, key=lambda record: -np.mean([*record["all_labels"].values()]))
    return (*(_to_goal(order, start) for start in STARTS), _compared(order))


def _to_goal(records: Sequence[_Record], start: str) -> StudyTable:
    rows = []
    for record in records:
        best = sorted(record["all_labels"].values())
        cells = (_mean(record, loop, start) for loop in LOOPS)
        rows.append((record["set"], f"{record['pictures']:,}", *cells, f"{best[0]:.2f}–{best[-1]:.2f}"))
    starts = "" if start == "words" else f" from {records[0]['starts']} sets of ten yes and ten no, which count"
    note = (
        f"mean ± standard deviation over {records[0]['classes']} classes{starts}; in brackets how often 0.9 was "
        f"reached if not always (a miss counts the whole budget of {records[0]['budget']})"
    )
    return StudyTable(
        f"Clicks to 0.9 from {start}", ("set", "pictures", *LOOPS, "all labels reach"), tuple(rows), (note,)
    )


def _compared(records: Sequence[_Record]) -> StudyTable:
    """Return the ratios of our clicks to a forest's, with a paired test over the classes and starts of all sets."""
    pairs = [(start, loop) for start in STARTS for loop in ("forest", "best forest")]
    rows = []
    for record in records:
        cells = [_ratio([record], *pair)[0] for pair in pairs]
        rows.append((record["set"], *cells, *(_best_forest(record, start) for start in STARTS)))
    rows.append(("all sets", *("{} (p {})".format(*_ratio(records, *pair)) for pair in pairs), "", ""))
    ratios, settings = (f"ours / {loop}, {start}" for start, loop in pairs), (f"best, {start}" for start in STARTS)
    note = "clicks to 0.9; p by Wilcoxon's signed-rank test over the classes and starts of all sets"
    return StudyTable("Clicks relative to a forest", ("set", *ratios, *settings), tuple(rows), (note,))


def _ratio(records: Sequence[_Record], start: str, loop: str) -> tuple[str, str]:
    ours, other = (np.concatenate([_clicks(record, each, start) for record in records]) for each in ("ours", loop))
    p = float(wilcoxon(ours, other).pvalue) if (ours != other).any() else 1.0
    return f"{ours.mean() / other.mean():.2f}", "< 0.001" if p < 0.001 else f"= {p:.3f}"


def _reached(record: _Record, loop: str, start: str) -> list[int | None]:
    """Return the clicks to the goal for each class and draw; None if it was missed."""
    runs = record["loops"][_best_forest(record, start) if loop == "best forest" else loop]
    return [one["reached"]["0.9"] for one in runs if (one["start"] == "words") == (start == "words")]


def _clicks(record: _Record, loop: str, start: str) -> np.ndarray:
    """Return the clicks to the goal for each class and draw; a miss counts the whole budget."""
    return np.array([record["budget"] if count is None else count for count in _reached(record, loop, start)])


def _best_forest(record: _Record, start: str) -> str:
    """Return the forest setting with the fewest clicks."""
    forests = [loop for loop in record["loops"] if loop.startswith("forest")]
    return min(forests, key=lambda loop: float(_clicks(record, loop, start).mean()))


def _mean(record: _Record, loop: str, start: str) -> str:
    clicks, found = _clicks(record, loop, start), [count is not None for count in _reached(record, loop, start)]
    note = "" if all(found) else f" ({sum(found)}/{len(found)})"
    return f"{clicks.mean():.0f} ± {clicks.std(ddof=1):.0f}{note}"


def main() -> None:
    """Write the tables next to the folder of runs."""
    records = [read_json(file) for file in sorted(RUNS.glob("*.json"))]
    command = " · ".join(dict.fromkeys(record["command"] for record in records))
    tables = [asdict(table) for table in click_tables(records)]
    write_json(RUNS.with_suffix(".json"), {"command": command, "tables": tables})


if __name__ == "__main__":
    main()
