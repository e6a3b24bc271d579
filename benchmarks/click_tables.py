"""How many clicks find a class: the tables of the files that ``benchmarks/clicks.py`` leaves, one for each set.

python benchmarks/click_tables.py
recollect-papers results docs/results/few-shot.md
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import wilcoxon

from recollect.core.files import read_json, write_json
from recollect_papers.study import StudyTable

RUNS = Path(__file__).parents[1] / "results" / "page" / "clicks"

LOOPS = ("ours", "ours from words", "forest", "best forest", "random order")
"""``forest`` is LightlyStudio's own loop; ``best forest`` the setting of a forest that needs the fewest clicks on a
set, chosen on these very clicks, in its favor."""
GOALS = ("0.5", "0.7", "0.9")

_Record = Mapping[str, Any]


def click_tables(records: Sequence[_Record]) -> tuple[StudyTable, ...]:
    """Mean clicks to each goal and to nine tenths of what all labels reach, for us and for the forest."""
    order = sorted(records, key=lambda record: -max(_reached(record)))
    to_goals = tuple(_to_goal(order, f"Clicks to {goal}", goal) for goal in GOALS)
    return (*to_goals, _to_goal(order, "Clicks to nine tenths", None), _compared(order), _refits(order))


def _to_goal(records: Sequence[_Record], title: str, goal: str | None) -> StudyTable:
    rows = []
    for record in records:
        best = sorted(_reached(record))
        cells = (_mean(record, loop, goal) for loop in LOOPS)
        rows.append((record["set"], f"{record['pictures']:,}", *cells, f"{best[0]:.2f}–{best[-1]:.2f}"))
    columns = ("set", "pictures", *LOOPS, "all labels reach")
    note = (
        f"mean clicks of {records[0]['classes']} classes from {records[0]['starts']} starts (from words: one), in "
        f"brackets how often the goal was reached; a miss counts the whole budget of {records[0]['budget']}"
    )
    return StudyTable(title, columns, tuple(rows), (note,))


def _compared(records: Sequence[_Record]) -> StudyTable:
    """Our clicks over those of a forest, and a paired test over classes and starts."""
    rows = []
    for record in records:
        cells = [record["set"]]
        for loop in ("forest", "best forest"):
            ours, other = (np.array(_clicks(record, each, "0.9")) for each in ("ours", loop))
            p = float(wilcoxon(ours, other).pvalue) if (ours != other).any() else 1.0
            cells += [f"{ours.mean() / other.mean():.2f}", f"{p:.3f}"]
        rows.append((*cells, _best_forest(record, "0.9")))
    columns = ("set", "ours / forest", "p", "ours / best forest", "p of best", "best forest")
    note = (
        "clicks to 0.9, with the 20 that all loops start from; p of Wilcoxon's signed-rank test over classes and starts"
    )
    return StudyTable("Clicks, ours and the forest's", columns, tuple(rows), (note,))


def _refits(records: Sequence[_Record]) -> StudyTable:
    """Milliseconds until a click has changed the list."""
    rows = []
    for record in records:
        times = ([second for one in record["loops"][loop] for second in one["seconds"]] for loop in ("ours", "forest"))
        rows.append((record["set"], *(f"{1000 * float(np.median(each)):.0f}" for each in times)))
    return StudyTable("Milliseconds of a refit, median", ("set", "ours", "forest"), tuple(rows))


def _reached(record: _Record) -> list[float]:
    """The average precision of held-out pictures, of each class, by the best that is taught with every label."""
    return [one["all_labels"] for one in record["loops"]["ours"]]


def _clicks(record: _Record, loop: str, goal: str | None) -> list[int]:
    """Of each class; the whole budget where the goal was missed."""
    return [record["budget"] if count is None else count for count in _counts(record, loop, goal)]


def _counts(record: _Record, loop: str, goal: str | None) -> Iterator[int | None]:
    runs = record["loops"][_best_forest(record, goal) if loop == "best forest" else loop]
    yield from (one["reached_share"] if goal is None else one["reached"][goal] for one in runs)


def _best_forest(record: _Record, goal: str | None) -> str:
    """The setting of a forest with the fewest clicks to a goal."""
    forests = [loop for loop in record["loops"] if loop.startswith("forest")]
    return min(forests, key=lambda loop: float(np.mean(_clicks(record, loop, goal))))


def _mean(record: _Record, loop: str, goal: str | None) -> str:
    counts = list(_counts(record, loop, goal))
    return f"{np.mean(_clicks(record, loop, goal)):.0f} ({sum(each is not None for each in counts)}/{len(counts)})"


def main() -> None:
    """Write the tables beside the folder of runs."""
    records = [read_json(file) for file in sorted(RUNS.glob("*.json"))]
    command = " · ".join(dict.fromkeys(record["command"] for record in records))
    tables = [asdict(table) for table in click_tables(records)]
    write_json(RUNS.with_suffix(".json"), {"command": command, "tables": tables})


if __name__ == "__main__":
    main()
