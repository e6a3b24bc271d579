"""EFSA's studies at smoke scale: tables and figures in the paper's form, with cached searches."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pictures import captioned
from recollect.models import build_model
from recollect.models.transformers.encoder import quiet
from recollect_papers import cli
from recollect_papers.efsa import tables as efsa_tables
from recollect_papers.efsa.world import caption_labels
from recollect_papers.engine import paper_quote, printed
from recollect_papers.studies import find_study

DOMAINS = ("glyphs:scenes", "hard scenes")


def run(name, options):
    return find_study(f"efsa/{name}").load()(options)


@pytest.fixture(scope="module")
def table_3(options):
    return run("table-3", options)


def searches(out: Path) -> dict[Path, float]:
    return {path: path.stat().st_mtime for path in (out / "searches").glob("*.json")}


def test_averages_are_over_domains_and_gains_over_zero_shot(table_3):
    table = table_3.tables[0]
    for row in table.rows:
        first, second, average = (float(row[place]) for place in (1, 4, 7))
        assert average == pytest.approx((first + second) / 2, abs=0.06)
    zero_shot, episode = (float(table.rows[place][7]) for place in (0, 4))
    assert float(table.rows[4][10]) == pytest.approx(episode - zero_shot, abs=0.11)
    assert "zero-shot R@6" in table_3.notes[0]  # the limit for episodes of six candidates


def test_a_cell_is_mean_and_deviation_over_base_models(options):
    """Computed from the files."""
    report = run("figure-1", replace(options, seeds=2))
    values = {}
    for path in searches(options.out):
        found = json.loads(path.read_text())["value"]
        if {at["method"] for at, _ in found} == {"zero-shot"}:
            for at, value in found:
                if at["measure"] == "R@10":
                    values.setdefault(at["domain"], []).append(value)
    (row,) = report.tables[0].rows
    for place, domain in enumerate(DOMAINS):
        first, second = values[domain]
        cell = f"{(first + second) / 2:.1f} ± {abs(first - second) / 2**0.5:.1f}"
        assert row[3 + 3 * place] == cell
    assert len(list((options.out / "runs").glob("tiny-*"))) == 2  # base models; each is the other's teacher


def test_base_models_and_searches_are_cached(table_3, options):
    before, runs = searches(options.out), sorted((options.out / "runs").iterdir())
    assert run("table-3", options) == table_3
    assert searches(options.out) == before
    run("figure-5", options)
    assert sorted((options.out / "runs").iterdir()) == runs
    made = [json.loads(path.read_text())["value"] for path in searches(options.out) if path not in before]
    assert made
    assert all({at["method"] for at, _ in found} == {"zero-shot", "episode"} for found in made)


@pytest.mark.parametrize("number", [1, 3])
def test_every_figure_with_pictures_is_drawn(options, draw, number):
    draw(f"efsa/figure-{number}", options)


@pytest.fixture
def asked(monkeypatch):
    """Replace searches by random figures; return the requested searches."""
    searches = []

    def search(search, where, options):
        searches.append((search, where))
        draw = np.random.default_rng(len(searches))
        found = [
            [{"method": method, "domain": domain, "measure": f"R@{k}"}, float(draw.uniform(0, 50) + k)]
            for method in search.methods for domain in DOMAINS for k in search.depths
        ]  # fmt: skip
        return [found for _ in where.models]

    monkeypatch.setattr(efsa_tables, "searched", search)
    return searches


@pytest.mark.parametrize(("number", "rows"), [(4, 3), (5, 3), (6, 4)])
def test_every_figure_of_curves_is_drawn_with_its_numbers(options, draw, asked, number, rows):
    report = draw(f"efsa/figure-{number}", options)
    (table,) = report.tables
    assert len(table.rows) == rows
    assert table.rows[0][0] == "zero-shot"
    assert any(paper_quote("efsa", f"figure-{number}") in note for note in table.notes)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A folder with pictures, two captions each, and a model."""
    folder = tmp_path_factory.mktemp("own")
    texts = [f"a sign of {'red ' * number}paint,paint {'green ' * (12 - number)}here" for number in range(12)]
    captioned(folder, texts, columns="caption,second").rename(folder / "coco.csv")
    with quiet():
        build_model("tiny", texts=texts).save(folder / "model")
    return folder


def test_full_scale_is_the_users_pool_captions_and_model(own, tmp_path, capsys):
    words = ["efsa/table-3", "--scale", "full", "--data", own / "coco.csv", "--search.models", own / "model"]
    words += ["--search.captions", "column:second", "--search.split", "all", "--search.episode.k", 4]
    words += ["--search.episode.rank", 2, "--search.tuning.epochs", 1, "--search.queries", 5, "--out", tmp_path]
    assert cli.main([str(word) for word in words]) == 0, capsys.readouterr().err
    assert "RLCF is left out" in capsys.readouterr().out
    report = json.loads((tmp_path / "efsa-table-3.json").read_text())
    table = report["tables"][0]
    assert [row[0] for row in table["rows"]] == ["Z.S", "F.T", "T2T", "EFSA", "full parameters"]
    assert "paper: coco R@1" in table["columns"]  # a set of that name is shown next to the paper's
    assert printed("efsa", "table-3").rows["episode"][0] in table["rows"][3]
    assert "captions of the pool: column:second" in table["notes"][0]


def test_caption_files_are_matched_with_the_papers_captioners_by_name():
    files = (
        "/a/llava_13b/coco.jsonl,/a/llava_13b/nasa.jsonl",
        "/a/TinyLLaVA-3.1b/coco.jsonl,/a/TinyLLaVA-3.1b/nasa.jsonl",
    )
    labels = list(caption_labels((*files, "held-out")).values())
    assert labels[0] == "llava_13b/coco.jsonl,llava_13b/nasa.jsonl"
    assert len(set(labels)) == 3  # files of the same name are told apart by their folders
    rows = printed("efsa", "table-6").rows
    assert [efsa_tables.printed_captioner(label, rows) for label in labels] == ["LLaVA-13B", "TinyLLaVA-3.1B", None]
    assert efsa_tables.printed_captioner("LLaVA-7B.jsonl", rows) == "LLaVA-7B"
    assert efsa_tables.printed_captioner("Ground-truth", rows) == "Ground-truth"
    for other in ("llava-7b.jsonl,llava-13b.jsonl", "llava-v1.5-7b.jsonl", "blip.jsonl", "7b"):
        assert efsa_tables.printed_captioner(other, rows) is None
