"""The protocols that training can evaluate."""

from pathlib import Path

import pytest

from pictures import captioned
from recollect.core.errors import UserError
from recollect.evaluation.protocols import PROTOCOLS, Measurement
from recollect.evaluation.results import Result
from recollect.testing import HashEncoder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Two classes of ten pictures each for training and test, captioned, in a CSV."""
    names = ("cat", "dog") * 20
    rows = [f"{name} number {n},{name},{'train' if n < 20 else 'test'}" for n, name in enumerate(names)]
    return str(captioned(tmp_path_factory.mktemp("pictures"), rows, columns="caption,label,split"))


FIGURES = {
    "zero-shot": {"top-1", "mean per class"},
    "few-shot": {"prototype 8 shots", "proker 8 shots"},
    "probe": {"top-1"},
    "retrieval": {f"{way} R@{k}" for way in ("text to image", "image to text") for k in (1, 5, 10)},
}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_each_protocol_returns_its_named_figures(name, pictures):
    (task,) = PROTOCOLS[name].open(pictures)
    figures = PROTOCOLS[name].figures(HashEncoder(width=16), task)
    assert set(figures) == FIGURES[name]
    assert all(0 <= value <= 100 for value in figures.values())


@pytest.mark.parametrize("name", ["zero-shot", "few-shot", "retrieval"])
def test_a_model_with_prefixes_reads_texts_as_captions_as_evaluate_does(name, pictures):
    class Prefixed(HashEncoder):
        def embed_texts(self, texts, prefix=None):
            read.append(prefix)
            return super().embed_texts(texts, prefix)

    (task,), read = PROTOCOLS[name].open(pictures), []
    encoder = Prefixed(width=16)
    encoder.prefixes = {"caption": ("<|caption|>",), "label": ("<|label|>",)}
    PROTOCOLS[name].figures(encoder, task)
    assert set(read) == {"caption"}


def test_classes_with_too_few_examples_are_left_out_and_listed(pictures, capfd):
    lines, few = Path(pictures).read_text().splitlines(), Path(pictures).with_name("few.csv")
    few.write_text("\n".join([*lines, "1.png,emu,emu,train", "3.png,emu,emu,test"]))
    (task,) = PROTOCOLS["few-shot"].open(str(few))
    assert task.class_names == ("cat", "dog")
    assert "left out 1 of 3 classes with fewer than 8 examples: emu" in " ".join(capfd.readouterr().err.split())
    few.write_text("\n".join(line for line in lines if "dog" not in line or line.startswith(("1.", "21."))))
    with pytest.raises(UserError, match="8 examples"):
        PROTOCOLS["few-shot"].open(str(few))


def test_figures_average_over_draws_and_skip_unnamed_rows():
    rows = [{"metric": "a", "value": 1.0}, {"metric": "a", "value": 4.0}, {"metric": "b", "value": 9.0}]
    evaluation = Measurement(
        lambda spec: [spec],
        lambda encoder, task: Result("own", "", task, 0, rows, {}),
        lambda row: row["metric"] if row["metric"] == "a" else None,
    )
    assert evaluation.figures(HashEncoder(width=4), "task") == {"a": 2.5}
