"""The operation counts from which docs/scale.md derives its figures."""

import json
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def scale(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import scale

    yield scale
    sys.modules.pop("scale", None)


def test_every_operation_of_a_vision_transformer_is_counted(scale):
    """Compare with a count by hand, including attention, which torch's counter omits on a CPU."""
    from recollect.models import build_model

    tower = build_model("tiny", texts=["a"]).model.vision_model
    width, layers, mlp, tokens, patch = 96, 3, 192, 16, 3 * 8 * 8
    products = tokens * patch * width + layers * tokens * (4 * width * width + 2 * width * mlp)
    attention = layers * 2 * tokens * tokens * width
    # The pooling head: one query attends to all tokens and passes through a separate MLP.
    pooling = (2 + 2 * tokens) * width * width + 2 * tokens * width + 2 * width * mlp
    with torch.no_grad():
        counted = scale.counted(lambda: tower(torch.zeros(1, 3, 32, 32)))
    assert counted == 2 * (products + attention + pooling)


def test_the_saved_figures_match_a_new_run(scale):
    saved = json.loads((BENCHMARKS.parent / "results" / "bench" / "scale.json").read_text())
    options = scale.Options(preset="tiny")
    run, index = scale.training(options), scale.index_figures(options, json.loads(scale.MEMORY.read_text()))
    assert list(run) == list(saved["figures"]["run"])
    figures = saved["figures"]["run"]
    derived = scale.run_figures(scale.Options(), figures)  # recomputed from the saved counts of the large towers
    assert derived == pytest.approx({name: figures[name] for name in derived})
    width, mlp, layers, tokens, words = figures["width of the embeddings"], 3072, 12, 256, 64
    assert width == 768

    def blocks(rows):
        return layers * (rows * (4 * width**2 + 2 * width * mlp) + 2 * rows**2 * width)

    pooling = (2 + 2 * tokens) * width**2 + 2 * tokens * width + 2 * width * mlp
    by_hand = tokens * 3 * 16 * 16 * width + blocks(tokens) + pooling + blocks(words) + width**2
    assert figures["forward pass, FLOP per pair"] == 2 * by_hand  # ViT-B/16 at 256 px, a text tower as wide and deep
    products = [figures[f"{name}: objective, FLOP per batch x rows x width"] for name in ("plain", "context")]
    assert products == [6, 26]
    reading = json.loads(scale.READING.read_text())["figures"]["one core"]
    assert figures["pictures per second and core (measured)"] == reading["ours"]
    assert index == pytest.approx(saved["figures"]["index"])
    assert saved["options"] == {**vars(scale.Options()), "out": None}
    smaller = index["inverted file of ten million rows, hours to build on one core"]
    assert index["inverted file, days to build on one core"] > smaller / 24
    assert 0 < run["activations, bytes per pair"] < 4e6


@pytest.mark.parametrize("processes", [1, 4])
@pytest.mark.parametrize(
    ("base", "context", "products"),
    [("sigmoid", False, 6), ("softmax", False, 8), ("sigmoid", True, 26), ("softmax", True, 30)],
)
def test_each_process_computes_its_share_of_the_products(base, context, products, processes, scale):
    assert scale.objective_flops(base, context, 16, processes) == products
