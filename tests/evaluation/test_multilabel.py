"""Mean average precision of multi-label data: formulas, tables and the command."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from sklearn.metrics import average_precision_score

from recollect.core.errors import UserError
from recollect.evaluation.multilabel import average_precision, eleven_points, multilabel, multilabel_task
from recollect.testing import HashEncoder

NAMES = ("cat", "dog", "owl")


@given(st.integers(0, 10**6))
def test_average_precision_matches_scikit_learn_without_ties(seed):
    random = np.random.default_rng(seed)
    shows = random.random(20) < 0.4
    shows[0] = True
    scores = random.permutation(20).astype(float)
    assert average_precision(scores, shows) == pytest.approx(average_precision_score(shows, scores))
    recalls, order = np.linspace(0, 1, 11), np.argsort(-scores)
    slow = []
    for recall in recalls:
        best = 0.0
        for k in range(1, 21):
            hits = shows[order[:k]].sum()
            if hits / shows.sum() >= recall - 1e-12:
                best = max(best, hits / k)
        slow.append(best)
    assert eleven_points(scores, shows) == pytest.approx(np.mean(slow))


def test_tied_negatives_rank_first():
    for of_class in (average_precision, eleven_points):
        assert of_class(np.ones(4), np.array([True, False, False, False])) == 0.25
    with pytest.raises(ValueError):
        average_precision(np.ones(2), np.zeros(2, dtype=bool))


def picture(row):
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(row).integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(out, "PNG")
    return out.getvalue()


def table(path, labels):
    splits = ["train"] * 24 + ["test"] * (len(labels) - 24)
    rows = {"image": [picture(row) for row in range(len(labels))], "label": labels, "split": splits}
    pq.write_table(pa.table(rows), path)
    return str(path)


@pytest.fixture(scope="module")
def shows():
    flags = np.random.default_rng(0).random((36, 3)) < 0.4
    flags[np.arange(36), np.arange(36) % 3] = True
    return flags


@pytest.mark.parametrize("form", ["names", "numbers", "flags"])
def test_names_numbers_and_flags_give_the_same_task(shows, form, tmp_path):
    as_form = {
        "names": lambda row: [NAMES[place] for place in np.flatnonzero(row)],
        "numbers": lambda row: np.flatnonzero(row).tolist(),
        "flags": lambda row: row.astype(int).tolist(),
    }[form]
    spec = table(tmp_path / "set.parquet", [as_form(row) for row in shows])
    task = multilabel_task(spec, support="train", names=NAMES if form != "names" else ())
    assert task.class_names == NAMES
    np.testing.assert_array_equal(task.support_shows, shows[:24])
    np.testing.assert_array_equal(task.query_shows, shows[24:])


def oracle(shows):
    """Return an encoder that embeds each picture as its label vector."""
    pixels = [np.asarray(Image.open(io.BytesIO(picture(row)))).tobytes() for row in range(len(shows))]

    class Oracle(HashEncoder):
        def embed_images(self, images):
            rows = [shows[pixels.index(np.asarray(image).tobytes())] for image in images]
            return torch.nn.functional.normalize(torch.tensor(np.array(rows)) + 0.01, dim=1)

        def embed_texts(self, texts, prefix=None):
            return torch.eye(3)[[NAMES.index(text) for text in texts]]

    return Oracle(width=3)


def test_a_perfect_encoder_scores_nearly_100(shows, tmp_path):
    spec = table(tmp_path / "set.parquet", [[NAMES[place] for place in np.flatnonzero(row)] for row in shows])
    task = multilabel_task(spec, support="train", templates=("{}",))
    result = multilabel(oracle(shows), task, model="m")
    values = {(row["method"], row["metric"]): row["value"] for row in result.rows}
    assert values["probe", "mean average precision"] > 95
    assert values["zero-shot", "11 points"] > 80
    assert result.settings["pool"] == 24
    blind = multilabel(HashEncoder(), multilabel_task(spec, templates=("{}",)), model="m")
    assert blind.rows[0]["value"] < values["zero-shot", "mean average precision"]
    assert blind.file_name != result.file_name


def test_support_and_query_must_not_overlap(shows, tmp_path):
    spec = table(tmp_path / "set.parquet", [[NAMES[place] for place in np.flatnonzero(row)] for row in shows])
    with pytest.raises(UserError):
        multilabel_task(spec, support="all")
    assert multilabel_task(spec, query="train").support is None


def test_unusable_labels_are_rejected(shows, tmp_path):
    numbers = [np.flatnonzero(row).tolist() for row in shows]
    for labels, names in ((["cat", "dog"] * 18, ()), (numbers, ()), (numbers, ("cat", "dog"))):
        with pytest.raises(UserError):
            multilabel_task(table(tmp_path / "set.parquet", labels), names=names)
    with pytest.raises(UserError, match="'owl'"):
        multilabel_task(table(tmp_path / "few.parquet", [[0, 1]] * 36), names=NAMES)


def test_the_command_evaluates_zero_shot_and_the_probe(shows, tmp_path, monkeypatch, capsys):
    from recollect import cli
    from recollect.cli import evaluations

    monkeypatch.setattr(evaluations, "load_model", lambda name, device: HashEncoder())
    spec = table(tmp_path / "set.parquet", [np.flatnonzero(row).tolist() for row in shows])
    (tmp_path / "names.txt").write_text("\n".join(NAMES) + "\n")
    words = ["--class-names", str(tmp_path / "names.txt"), "--out", str(tmp_path / "out.json")]
    assert cli.main(["evaluate", "multilabel", "MODEL", "--data", spec, *words]) == 0
    (result,) = json.loads((tmp_path / "out.json").read_text())
    assert [row["method"] for row in result["rows"]] == ["zero-shot", "zero-shot", "probe", "probe"]
    assert "mean average precision" in capsys.readouterr().out
