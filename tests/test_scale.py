"""The counts that docs/scale.md derives its figures from."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize("processes", [1, 4])
@pytest.mark.parametrize(
    ("base", "context", "products"),
    [("sigmoid", False, 6), ("softmax", False, 8), ("sigmoid", True, 26), ("softmax", True, 30)],
)
def test_each_process_makes_its_share_of_the_products(base, context, products, processes, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    try:
        import scale

        assert scale.objective_flops(base, context, 16, processes) == products
    finally:
        sys.modules.pop("scale", None)
