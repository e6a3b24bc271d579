"""Unwritable outputs and files that would be overwritten give a one-line error before any work."""

import sys
from types import SimpleNamespace

import pytest

from recollect.cli import main
from recollect.core.errors import UserError
from recollect.core.paths import check_writable

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
def test_an_unwritable_output_is_reported_first(words, capsys):
    assert main(words.split()) == 2
    line = capsys.readouterr().err.strip()
    assert line.startswith(f"error: {words.split()[-2]} /proc/none/x")
    assert "cannot be written there" in line
    assert "Choose another path." in line
    assert "\n" not in line


FILES = [
    "search none red --out {}.html",
    "index export none --out {}.csv",
    "index info none --out {}.json",
    "index duplicates none --out {}.json",
    "index accelerate none --out {}.json",
    "train starter none.parquet --out {}.safetensors",
    "train reco --index none --data none.parquet --out {}-run",
    "classify --names a b --images {} --out {}",
]


@pytest.mark.parametrize("words", FILES, ids=lambda words: words.partition(" --")[0])
def test_existing_files_are_never_overwritten(words, tmp_path, capsys):
    out = tmp_path / "mine"
    out.mkdir()
    for name in ("mine.html", "mine.csv", "mine.json", "mine.safetensors", "mine-run.toml", "mine/predictions.csv"):
        (tmp_path / name).write_text("precious")
    assert main(words.replace("{}", str(out)).split()) == 2
    assert "already exists" in capsys.readouterr().err
    assert all(file.read_text() == "precious" for file in tmp_path.rglob("*.*"))


@pytest.mark.parametrize(("answer", "replaced"), [("y", True), ("", False)])
def test_a_terminal_user_is_asked_before_a_file_is_replaced(answer, replaced, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("builtins.input", lambda question: answer)
    (tmp_path / "a.json").write_text("{}")
    if replaced:
        check_writable(tmp_path / "a.json", "--out", "new file")
    else:
        with pytest.raises(UserError, match="already exists"):
            check_writable(tmp_path / "a.json", "--out", "new file")


@pytest.mark.parametrize("words", [each for each in COMMANDS if "--out" in each], ids=lambda words: words[:16])
def test_a_folder_instead_of_a_file_or_the_reverse_is_reported_first(words, tmp_path, capsys):
    command, _, out = words.rpartition(" ")
    existing = tmp_path / out.rpartition("/")[2]
    existing.mkdir() if existing.suffix else existing.write_text("a file")
    assert main([*command.split(), str(existing)]) == 2
    assert "is a f" in capsys.readouterr().err
