"""Embeddings in files, and results as another project writes them."""

import json

import pyarrow.parquet as pq
import pytest

from pictures import encoded, picture
from recollect.cli import main
from recollect.evaluation.clip_benchmark import as_clip_benchmark, save_clip_benchmark
from recollect.evaluation.results import Result, load_result
from recollect.models import build_model

NAMES = ("bright", "dark", "gray")  # sorted, as classes in files are: so draws are the same


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A small model and a labeled table of both splits."""
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


FEW = ("--methods", "zero-shot", "prototype", "proker", "--shots", "1", "2", "--seeds", "2")


@pytest.mark.parametrize("form", ["parquet", "npy"])
def test_the_protocol_on_files_gives_the_figures_of_the_model(place, tmp_path, monkeypatch, form):
    monkeypatch.chdir(place)
    assert main(["embed", "model", "--data", "shades.parquet", "--form", form, "--out", str(tmp_path / "out")]) == 0
    (folder,) = (tmp_path / "out").iterdir()
    scale = json.loads((folder / "embedded.json").read_text())["scale"]
    if form == "parquet":
        read = ["--features", str(folder / "images.parquet"), "--texts", str(folder / "texts.parquet")]
    else:
        files = [str(folder / f"{split}.npy") for split in ("train", "test")]
        labels = [str(folder / f"{split}-labels.npy") for split in ("train", "test")]
        read = ["--features", *files, "--feature-labels", *labels, "--texts", str(folder / "texts.npy")]
    out = ["--out", str(tmp_path / "files")]
    assert main(["evaluate", "few-shot", *read, "--scale", str(scale), *FEW, *out]) == 0
    words = ["evaluate", "few-shot", "model", "--data", "shades.parquet", *FEW, "--out", str(tmp_path / "model")]
    assert main(words) == 0
    of_files, of_model = (
        {
            (row["method"], row["shots"], row["seed"]): row["value"]
            for row in load_result(next(place.glob("*.json"))).rows
        }
        for place in (tmp_path / "files", tmp_path / "model")
    )
    assert of_files == pytest.approx(of_model)
    assert main(["embed", "model", "--data", "shades.parquet", "--out", str(tmp_path / "out")]) == 2  # is there already


def test_results_as_clip_benchmark_writes_them(place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(place)
    out = ("--form", "clip-benchmark", "--out", str(tmp_path / "out"))
    for words in (["zero-shot"], ["probe"], ["retrieval"]):
        assert main(["evaluate", *words, "model", "--data", "shades.parquet", *out]) == 0
    assert main(["evaluate", "zero-shot", "model", "--data", "shades.parquet", *out]) == 0  # takes its own place
    records = [json.loads(file.read_text()) for file in (tmp_path / "out").iterdir()]
    assert len(records) == 3
    found = {record["task"]: record for record in records}
    assert set(found) == {"zeroshot_classification", "linear_probe", "zeroshot_retrieval"}
    for record in found.values():
        assert set(record) == {"dataset", "model", "pretrained", "task", "metrics", "language"}
        assert record["pretrained"] == "model"
        assert all(0 <= share <= 1 for share in record["metrics"].values())
    assert set(found["zeroshot_classification"]["metrics"]) == {"acc1", "mean_per_class_recall"}
    assert set(found["linear_probe"]["metrics"]) == {"lp_acc1"}
    names = {f"{way}_retrieval_recall@{k}" for way in ("image", "text") for k in (1, 5, 10)}
    assert set(found["zeroshot_retrieval"]["metrics"]) == names
    assert main(["evaluate", "few-shot", "model", "--data", "shades.parquet", *FEW, *out]) == 2
    assert "few-shot" in capsys.readouterr().err
    single = ("--form", "clip-benchmark", "--out", str(tmp_path / "one.json"))
    assert main(["evaluate", "zero-shot", "model", "--data", "shades.parquet", *single]) == 2


def test_two_sets_of_one_name_do_not_take_each_others_place(tmp_path):
    rows = [{"metric": "top-1", "value": 10.0}]
    for content in ("one", "two", "one"):
        save_clip_benchmark(Result("zero-shot", "model", "birds", 0, rows, {"data_content": content}), tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_retrieval_is_that_of_the_whole_pool():
    row = {"method": "zero-shot", "metric": "recall", "k": 1}
    rows = [
        row | {"direction": "text to image", "domain": "a", "value": 10.0},
        row | {"direction": "text to image", "domain": "all", "value": 20.0},
        row | {"direction": "image to text", "domain": "all", "value": 30.0},
    ]
    record = as_clip_benchmark(Result("retrieval", "model", "data", 0, rows))
    assert record["metrics"] == {"image_retrieval_recall@1": 0.2, "text_retrieval_recall@1": 0.3}
