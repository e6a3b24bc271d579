"""The README's commands on real images, at smoke scale; skipped where the files are absent."""

import json

import pytest

from recollect.evaluation.results import load_results


@pytest.fixture(scope="module")
def trained_on_real(recollect, real_files, tmp_path_factory):
    """A few steps on emoji of some styles and on aerial pictures, without and with context."""
    out = tmp_path_factory.mktemp("real")
    sources = (f"{real_files('emoji')}?domain=twemoji,emojitwo", real_files("rsicd_captions"))
    for recipe in ("siglip-tiny", "siglixp-tiny"):
        recollect("train", recipe, "--data", *sources, "--steps", 5, "--batch-size", 64, "--out", out / recipe)
    return [out / "siglip-tiny" / "model", out / "siglixp-tiny" / "model"]


def test_both_sources_are_read_in_proportion(trained_on_real):
    line = json.loads((trained_on_real[0].parent / "metrics.jsonl").read_text().splitlines()[-1])
    emoji, aerial = (count for _, count in sorted(line["seen"].items()))
    assert emoji + aerial == 5 * 64
    assert 100 < aerial < 260


def test_few_shot_on_a_real_set(recollect, trained_on_real, real_files, tmp_path):
    words = ("--shots", 1, 4, "--seeds", 2, "--query", "test[:150]", "--out", tmp_path)
    recollect("evaluate", "few-shot", *trained_on_real, "--data", real_files("eurosat"), *words)
    results = load_results(tmp_path)
    assert [result.model[:-9] for result in results] == ["/".join(model.parts[-2:]) for model in trained_on_real]
    assert {result.settings["queries"] for result in results} == {150}
    assert {(row["shots"], row["seed"]) for row in results[0].rows} == {(0, 0), (1, 0), (1, 1), (4, 0), (4, 1)}


def test_zero_shot_on_held_out_concepts_in_held_out_styles(recollect, trained_on_real, real_files, tmp_path):
    recollect(
        "evaluate", "zero-shot", trained_on_real[1], "--data", f"{real_files('emoji')}?domain=noto",
        "--label-column", "group", "--class-name-column", "group", "--out", tmp_path / "zero.json",
    )  # fmt: skip
    (result,) = json.loads((tmp_path / "zero.json").read_text())
    assert 5 <= result["settings"]["classes"] <= 12
    assert result["settings"]["queries"] > 200


def test_retrieval_over_two_domains(recollect, trained_on_real, real_files, tmp_path):
    sources = (f"{real_files('emoji')}?domain=noto", real_files("rsicd_captions"))
    words = ("--pool", "merged", "--split", "test[:120]", "--out", tmp_path / "found.json")
    recollect("evaluate", "retrieval", trained_on_real[0], "--data", *sources, *words)
    (result,) = json.loads((tmp_path / "found.json").read_text())
    assert result["settings"]["images"] == 240
    assert {row["domain"] for row in result["rows"]} == {"noto", "aerial", "all", "mean of domains"}
    assert all(row["low"] <= row["value"] <= row["high"] for row in result["rows"] if "low" in row)
