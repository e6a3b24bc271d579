"""The few-shot command on embeddings from files."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from index_rows import unit
from recollect import cli
from recollect.classifiers.heads.methods import FEW_SHOT_METHODS
from recollect.evaluation.few_shot_protocol import FewShotTask, Protocol, nested_supports, run_protocol
from recollect.evaluation.own_features import read_arrays, vector_task, write_embedded
from recollect.evaluation.zero_shot import zero_shot

SHOTS = ("--shots", "1", "4", "--seeds", "2")
NAMES = np.array(["ant", "bee", "cat"])


@pytest.fixture(scope="module")
def world():
    random = np.random.default_rng(0)
    centers, labels = random.normal(size=(3, 8)), np.arange(60) % 3
    rows = centers[labels] + random.normal(size=(60, 8))
    return rows * 3, labels, unit(centers + random.normal(size=(3, 8)))  # not of unit norm


@pytest.fixture
def files(world, tmp_path):
    rows, labels, texts = world
    table = {"vector": list(rows), "label": NAMES[labels].tolist(), "split": ["train"] * 36 + ["test"] * 24}
    pq.write_table(pa.table(table), tmp_path / "own.parquet")
    np.save(tmp_path / "train.npy", rows[:36])
    np.save(tmp_path / "test.npy", rows[36:].astype(np.float16))
    np.save(tmp_path / "train-labels.npy", NAMES[labels[:36]])
    np.save(tmp_path / "test-labels.npy", NAMES[labels[36:]])
    pq.write_table(pa.table({"embedding": list(texts[[2, 0, 1]]), "class_name": NAMES[[2, 0, 1]].tolist()}),
                   tmp_path / "texts.parquet")  # fmt: skip
    return tmp_path


def run(*words):
    assert cli.main(["evaluate", "few-shot", *map(str, words)]) == 0


def figures(path):
    (result,) = json.loads(path.read_text())
    return {(row["method"], row["shots"], row["seed"]): row["value"] for row in result["rows"]}, result


def expected(world, methods, texts=True):
    rows, labels, named = world
    task = FewShotTask(unit(rows[:36]), labels[:36], unit(rows[36:]), labels[36:], named if texts else None)
    rows = run_protocol(task, Protocol(methods, (1, 4), (0, 1)))
    return {(row["method"], row["shots"], row["seed"]): row["value"] for row in rows}


def test_a_parquet_file_with_texts_matches_the_protocol(files, world, capsys):
    methods = ("zero-shot", "prototype", "proker")
    run("--features", files / "own.parquet", "--texts", files / "texts.parquet", "--methods", *methods, *SHOTS,
        "--out", files / "out.json")  # fmt: skip
    values, result = figures(files / "out.json")
    assert values == expected(world, methods)
    assert (result["data"], result["settings"]["classes"], result["settings"]["queries"]) == ("own", 3, 24)
    assert "proker" in capsys.readouterr().out


def test_without_texts_all_methods_but_zero_shot_use_class_means(world):
    methods = ("prototype", "tip-adapter", "tip-adapter-cv", "softmax", "softmax+zero-shot", "gda", "dmn-tf", "proker")
    rows, labels, _ = world
    values = expected(world, methods, texts=False)
    for name in methods:
        assert np.mean([values[name, 4, seed] for seed in (0, 1)]) > 50, name
    alone = FEW_SHOT_METHODS["tip-adapter-cv"](None, 100.0)
    chosen = nested_supports(labels[:36], 3, 4, 1).ravel()
    alone.fit(unit(rows[chosen]), labels[chosen])
    right = (alone.predict(unit(rows[36:])) == labels[36:]).mean()
    assert values["tip-adapter-cv", 4, 1] == pytest.approx(100 * right)
    with pytest.raises(ValueError):
        expected(world, ("zero-shot",), texts=False)


def test_a_file_without_splits_is_halved_per_class(files, capsys):
    run("--features", files / "train.npy", "--feature-labels", files / "train-labels.npy", *SHOTS,
        "--out", files / "out.json")  # fmt: skip
    _, result = figures(files / "out.json")
    assert result["settings"]["queries"] == result["settings"]["pool"] == 18
    assert "zero-shot" not in {row["method"] for row in result["rows"]}
    assert "train.npy" in " ".join(capsys.readouterr().err.split())


def test_equal_labels_of_any_dtype_match(files, world, capsys):
    """Labels as floats (pandas), bytes and decomposed Unicode (macOS); the smallest class limits the shots."""
    _, labels, _ = world
    for name, written in (("bytes", NAMES.astype(bytes)), ("number", np.array(["0", "1", "2"])),
                          ("letter", np.array(["é", "b", "c"]))):  # fmt: skip
        np.save(files / f"{name}.npy", written[labels[:36]])
    np.save(files / "float.npy", labels[36:].astype(float))
    np.save(files / "composed.npy", np.array(["e\u0301", "b", "c"])[labels[36:]])
    arrays = ("--features", files / "train.npy", files / "test.npy")
    for named in (("bytes", "test-labels"), ("number", "float"), ("letter", "composed")):
        run(*arrays, "--feature-labels", *(files / f"{name}.npy" for name in named), "--methods", "prototype",
            "--seeds", "1", "--out", files / named[0] / "out.json")  # fmt: skip
        assert "shots up to 8: the smallest class has 12 examples" in capsys.readouterr().out
        assert len(figures(files / named[0] / "out.json")[0]) == 4


@pytest.mark.parametrize(("small_classes", "classes", "queries"), [("drop", 2, 16), ("all", 3, 24)])
def test_small_classes_can_be_dropped_or_keep_fewer_shots(files, world, small_classes, classes, queries):
    rows, labels, texts = world
    few = np.delete(np.arange(36), np.arange(0, 36, 3)[4:])  # four ants, twelve of the others
    np.save(files / "few.npy", rows[few] * 1e200)
    np.save(files / "few-labels.npy", NAMES[labels[few]])
    run("--features", files / "few.npy", files / "test.npy", "--feature-labels", files / "few-labels.npy",
        files / "test-labels.npy", "--texts", files / "texts.parquet", "--shots", "8", "--seeds", "1", "--methods",
        "zero-shot", "prototype", "--small-classes", small_classes, "--out", files / "out.json")  # fmt: skip
    values, result = figures(files / "out.json")
    assert (result["settings"]["classes"], result["settings"]["queries"]) == (classes, queries)
    first = 3 - classes
    tested = labels[36:] >= first
    right = (unit(rows[36:][tested]) @ texts[first:].T).argmax(axis=1) == labels[36:][tested] - first
    assert values["zero-shot", 0, 0] == pytest.approx(100 * right.mean())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--features", "own.parquet", "--methods", "zero-shot"], "Give them with --texts"),
        (["--features", "own.parquet", "--methods", "coop"], "--features"),
        (["--features", "own.parquet", "--label-column", "kind"], "kind"),
        (["--features", "own.parquet", "--shots", "13"], "'ant'"),
        (["--features", "own.parquet", "--query", "train"], "split 'train'"),
        (["--features", "train.npy"], "--feature-labels"),
        (["--features", "train.npy", "--feature-labels", "test-labels.npy"], "test-labels.npy"),
        (["--features", "own.parquet", "--texts", "wide.npy"], "wide.npy"),
        (["--features", "own.parquet", "--texts", "few.parquet"], "'bee'"),
        (["--features", "broken.parquet"], "row 1"),
        (["--features", "empty.parquet"], "empty.parquet"),
        (["--features", "strange.parquet"], "'dog'"),
        (["--features", "several.parquet"], "several.parquet"),
        (["--features", "blank.parquet"], "(1)"),
        (["--features", "own.parquet", "--scale", "nan"], "--scale nan"),
        (["--features", "text.parquet"], "'vector'"),
        (["--features", "pickle.npy", "--feature-labels", "train-labels.npy"], "pickle.npy"),
    ],
)  # fmt: skip
def test_bad_files_give_a_one_line_error(files, words, message, capsys, monkeypatch):
    monkeypatch.chdir(files)
    np.save("wide.npy", np.ones((3, 5)))
    np.save("pickle.npy", np.array([{"a": 1}] * 36), allow_pickle=True)

    def write(name, vectors, labels=("ant", "cat")):
        pq.write_table(pa.table({"vector": vectors, "label": list(labels)}), name)

    write("several.parquet", [[1.0] * 8, [0.5] * 8], [["ant", "cat"], ["cat"]])
    write("blank.parquet", [[1.0] * 8, [0.5] * 8], ("ant", ""))
    write("few.parquet", [[1.0] * 8, [0.5] * 8])
    write("broken.parquet", [[1.0, 2.0], [1.0, np.nan]])
    write("text.parquet", ["a", "b"])
    write("empty.parquet", pa.array([], pa.list_(pa.float32())), ())
    pq.write_table(pa.table({"vector": [[1.0, 2.0]] * 3, "label": ["ant", "cat", "dog"],
                             "split": ["train", "train", "test"]}), "strange.parquet")  # fmt: skip
    assert cli.main(["evaluate", "few-shot", *words, *(SHOTS if "--shots" not in words else ())]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_class_texts_follow_the_numeric_order_of_labels(tmp_path):
    texts = np.eye(12)
    labels = np.repeat(np.arange(12), 3)
    for name, array in (("x", texts[labels]), ("y", labels), ("t", texts)):
        np.save(tmp_path / f"{name}.npy", array)
    rows = read_arrays(tmp_path / "x.npy", tmp_path / "y.npy")
    encoder, task = vector_task("numbered", (rows, rows), tmp_path / "t.npy")
    assert task.class_names == tuple(map(str, range(12)))
    assert zero_shot(encoder, task).rows[0]["value"] == 100


def test_written_class_texts_belong_to_their_classes_in_any_unicode_form(encoder, task, tmp_path):
    """macOS writes file names, and so classes, in decomposed form, which has another order."""
    task = replace(task, class_names=("zebra 0", "e\u0301clair 1", "ant 2", "cow 3"))
    folder = write_embedded(encoder, task, tmp_path / "out", model="m", form="npy")
    train, test = (read_arrays(folder / f"{split}.npy", folder / f"{split}-labels.npy") for split in ("train", "test"))
    vectors, again = vector_task("again", (train, test), folder / "texts.npy")
    assert zero_shot(vectors, again).rows[0]["value"] == zero_shot(encoder, task).rows[0]["value"]


def test_tested_rows_that_are_also_examples_are_reported(files, world, capsys):
    rows, labels, _ = world
    options = ("--methods", "prototype", "--shots", "12", "--seeds", "1")
    run("--features", files / "own.parquet", *options, "--out", files / "first.json")
    assert "embedded like an example" not in capsys.readouterr().err
    table = {"vector": [*rows[:36], *rows[:4], *rows[40:]], "split": ["train"] * 36 + ["test"] * 24}
    pq.write_table(
        pa.table(table | {"label": NAMES[[*labels[:36], *labels[:4], *labels[40:]]].tolist()}), files / "copies.parquet"
    )
    run("--features", files / "copies.parquet", *options, "--out", files / "second.json")
    assert "4 of 24" in capsys.readouterr().err
