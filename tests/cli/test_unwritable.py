"""A place that cannot be written to is said in one line before any work, not after hours of it."""

import pytest

from recollect.cli import main

NOWHERE = "/proc/none/x"
COMMANDS = [
    f"index build none.parquet --out {NOWHERE}",
    f"index export none --out {NOWHERE}.parquet",
    f"index duplicates none --out {NOWHERE}.json",
    f"index accelerate none --out {NOWHERE}.json",
    f"index info none --out {NOWHERE}.json",
    f"train siglip-tiny --data none.parquet --out {NOWHERE}",
    f"train reco NO/MODEL --index none --data none.parquet --out {NOWHERE}",
    f"embed NO/MODEL --data none.parquet --out {NOWHERE}",
    f"evaluate zero-shot NO/MODEL --data latents:classes --out {NOWHERE}",
    f"evaluate zero-shot NO/MODEL --data latents:classes --cache {NOWHERE}",
    f"export NO/MODEL --out {NOWHERE}",
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join((*words.split()[:2], *words.split()[-2:-1])))
def test_a_place_that_cannot_be_written_to_is_said_first(words, capsys):
    assert main(words.split()) == 2
    line = capsys.readouterr().err.strip()
    assert line.startswith(f"error: {words.split()[-2]} /proc/none/x")
    assert "cannot be written there" in line
    assert "Name another place." in line
    assert "\n" not in line
