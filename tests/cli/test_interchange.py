"""Embeddings in files, and results in the format of clip_benchmark."""

import json

import pyarrow.parquet as pq
import pytest

from pictures import encoded, picture
from recollect.cli import main
from recollect.evaluation.clip_benchmark import as_clip_benchmark, save_clip_benchmark
from recollect.evaluation.results import Result, load_results
from recollect.models import build_model, load_model

NAMES = ("bright", "dark", "gray")  # sorted like class names in files, so both runs draw the same examples


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with a small model and a labeled table with both splits."""
    import pyarrow as pa

    folder = tmp_path_factory.mktemp("interchange")
    build_model("tiny-conv", texts=NAMES, seed=0).save(folder / "model")
    rows = [(part, i) for part in ("train", "test") for i in range(12)]
    columns = {
        "image": [encoded(picture(20 * i + 3 * len(part))) for part, i in rows],
        "split": [part for part, _ in rows],
        "label": [i % 3 for _, i in rows],
        "class_name": [NAMES[i % 3] for _, i in rows],
        "caption": [f"{NAMES[i % 3]} {i}" for _, i in rows],
    }
    pq.write_table(pa.table(columns), folder / "shades.parquet")
    return folder


FEW = ("--methods", "zero-shot", "softmax+zero-shot", "prototype", "proker", "--shots", "1", "2", "--seeds", "2")


@pytest.mark.parametrize("form", ["parquet", "npy"])
def test_few_shot_on_embedded_files_matches_few_shot_on_the_model(world, tmp_path, monkeypatch, form):
    monkeypatch.chdir(world)
    monkeypatch.setattr("recollect.cli.defaults.default_model", lambda: "model")
    assert main(["embed", "--data", "shades.parquet", "--form", form, "--out", str(tmp_path / "out")]) == 0
    (folder,) = (tmp_path / "out").iterdir()
    if form == "parquet":
        read = ["--features", str(folder / "images.parquet"), "--texts", str(folder / "texts.parquet")]
    else:
        files = [str(folder / f"{split}.npy") for split in ("train", "test")]
        labels = [str(folder / f"{split}-labels.npy") for split in ("train", "test")]
        read = ["--features", *files, "--feature-labels", *labels, "--texts", str(folder / "texts.npy")]
    out = ["--out", str(tmp_path / "files")]
    assert main(["evaluate", "few-shot", *read, *FEW, *out]) == 0
    words = ["evaluate", "few-shot", "model", "--data", "shades.parquet", *FEW, "--out", str(tmp_path / "model")]
    assert main(words) == 0
    accuracies, errors = (
        [
            {(row["method"], row["shots"], row["seed"]): row[figure] for row in load_results(tmp_path / name)[0].rows}
            for name in ("files", "model")
        ]
        for figure in ("value", "ece")
    )
    assert accuracies[0] == accuracies[1]
    # A float32 cosine is off by at most width * 2^-24, a score by scale times that, a confidence by half of the gap of
    # two scores; calibration errors are means of these, in percent.
    bound = 100 * 100 * load_model("model").width * 2.0**-24
    assert errors[0] == pytest.approx(errors[1], rel=0, abs=bound)
    assert main(["embed", "model", "--data", "shades.parquet", "--out", str(tmp_path / "out")]) == 2  # already exists


def test_results_can_be_written_in_the_format_of_clip_benchmark(world, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(world)
    out = ("--form", "clip-benchmark", "--out", str(tmp_path / "out"))
    for words in (["zero-shot"], ["probe"], ["retrieval"]):
        assert main(["evaluate", *words, "model", "--data", "shades.parquet", *out]) == 0
    assert main(["evaluate", "zero-shot", "model", "--data", "shades.parquet", *out]) == 0  # replaces the first
    records = [json.loads(file.read_text()) for file in (tmp_path / "out").iterdir()]
    assert len(records) == 3
    by_task = {record["task"]: record for record in records}
    assert set(by_task) == {"zeroshot_classification", "linear_probe", "zeroshot_retrieval"}
    for record in by_task.values():
        assert set(record) == {"dataset", "model", "pretrained", "task", "metrics", "language"}
        assert record["pretrained"] == "model"
        assert all(0 <= share <= 1 for share in record["metrics"].values())
    assert set(by_task["zeroshot_classification"]["metrics"]) == {"acc1", "mean_per_class_recall"}
    assert set(by_task["linear_probe"]["metrics"]) == {"lp_acc1"}
    names = {f"{way}_retrieval_recall@{k}" for way in ("image", "text") for k in (1, 5, 10)}
    assert set(by_task["zeroshot_retrieval"]["metrics"]) == names
    assert main(["evaluate", "few-shot", "model", "--data", "shades.parquet", *FEW, *out]) == 2
    assert "few-shot" in capsys.readouterr().err
    single = ("--form", "clip-benchmark", "--out", str(tmp_path / "one.json"))
    assert main(["evaluate", "zero-shot", "model", "--data", "shades.parquet", *single]) == 2


def test_different_data_sets_with_the_same_name_get_separate_files(tmp_path):
    rows = [{"metric": "top-1", "value": 10.0}]
    for content in ("one", "two", "one"):
        save_clip_benchmark(Result("zero-shot", "model", "birds", 0, rows, {"data_content": content}), tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_clip_benchmark_results_use_the_whole_pool():
    row = {"method": "zero-shot", "metric": "recall", "k": 1}
    rows = [
        row | {"direction": "text to image", "domain": "a", "value": 10.0},
        row | {"direction": "text to image", "domain": "all", "value": 20.0},
        row | {"direction": "image to text", "domain": "all", "value": 30.0},
    ]
    record = as_clip_benchmark(Result("retrieval", "model", "data", 0, rows))
    assert record["metrics"] == {"image_retrieval_recall@1": 0.2, "text_retrieval_recall@1": 0.3}
