"""Multiplications are counted correctly, in the right pass."""

import pytest
import torch
import torch.nn.functional as F

from recollect.index import Hits
from recollect_papers.efsa.cost import CostMeter, measured


def test_products_of_both_passes_are_counted():
    weight = torch.randn(5, 7, requires_grad=True)
    with CostMeter() as products:
        out = F.linear(torch.randn(3, 7), weight, torch.zeros(5))
        assert (products.forward, products.backward) == (3 * 5 * 7, 0)
        out.sum().backward()
    assert (products.forward, products.backward) == (3 * 5 * 7, 3 * 5 * 7)  # rows need no gradient


@pytest.mark.parametrize("grad", [False, True])
def test_products_in_place_and_of_attention_count_too(grad):
    query, key, value = (torch.randn(2, 4, 6, 8, requires_grad=grad) for _ in range(3))
    with CostMeter() as products:
        torch.zeros(2, 3, 4).baddbmm_(torch.randn(2, 3, 5), torch.randn(2, 5, 4))
        assert products.forward == 2 * 3 * 5 * 4
        torch.zeros(3, 4).addmm_(torch.randn(3, 5), torch.randn(5, 4))
        assert products.forward == 3 * (3 * 5 * 4)
        F.scaled_dot_product_attention(query, key, value)
    assert products.forward == 3 * (3 * 5 * 4) + 2 * (2 * 4 * 6 * 6 * 8)


def counted_search(queries, k):
    """A search with a known number of products per query."""
    for _ in queries:
        torch.randn(4, 5) @ torch.randn(5, 6)
    return [Hits((), query) for query in queries]


def test_costs_are_per_query():
    results, cost = measured(counted_search, [f"query {number}" for number in range(20)], 10)
    assert len(results) == 20
    assert cost["forward_products per query"] == 4 * 5 * 6
    assert cost["seconds per query"] > 0
