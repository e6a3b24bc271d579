"""Products are counted as a hand counts them, in the pass in which they are made."""

from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F

from recollect.efsa.cost import CostCounters, Meter, measured
from recollect.efsa.options import EpisodeReport
from recollect.index import Hits


def test_products_of_both_passes_are_those_of_a_hand_count():
    weight = torch.randn(5, 7, requires_grad=True)
    with Meter() as products:
        out = F.linear(torch.randn(3, 7), weight, torch.zeros(5))
        assert (products.forward, products.backward) == (3 * 5 * 7, 0)
        out.sum().backward()
    assert (products.forward, products.backward) == (3 * 5 * 7, 3 * 5 * 7)  # rows need no gradient


@pytest.mark.parametrize("grad", [False, True])
def test_products_in_place_and_of_attention_count_too(grad):
    query, key, value = (torch.randn(2, 4, 6, 8, requires_grad=grad) for _ in range(3))
    with Meter() as products:
        torch.zeros(2, 3, 4).baddbmm_(torch.randn(2, 3, 5), torch.randn(2, 5, 4))
        assert products.forward == 2 * 3 * 5 * 4
        torch.zeros(3, 4).addmm_(torch.randn(3, 5), torch.randn(5, 4))
        assert products.forward == 3 * (3 * 5 * 4)
        F.scaled_dot_product_attention(query, key, value)
    assert products.forward == 3 * (3 * 5 * 4) + 2 * (2 * 4 * 6 * 6 * 8)


@dataclass
class Sleeper:
    """A search that does what the test says."""

    counters: CostCounters = field(default_factory=CostCounters)
    report: EpisodeReport = field(default_factory=EpisodeReport)

    def search(self, queries, k=10):
        self.counters.forward(images=2 * len(queries), texts=len(queries))
        for _ in queries:
            torch.randn(4, 5) @ torch.randn(5, 6)
        return [Hits((), query) for query in queries]


def test_costs_are_of_one_query():
    results, cost = measured(Sleeper(), [f"query {number}" for number in range(20)], 10)
    assert len(results) == 20
    assert (cost.images_forward, cost.texts_forward, cost.images_backward) == (2, 1, 0)
    assert cost.forward_products == 4 * 5 * 6
    assert cost.seconds > 0


def test_the_peak_is_what_tensors_held_at_once():
    before = torch.ones(1000)
    with Meter() as meter:
        one = torch.ones(1000)
        for _ in range(5):
            torch.zeros(2000).add_(1)  # gone before the next is made
        assert (meter.held, meter.peak) == (4000, 12_000)
        view = one.view(10, 100).t()
        before.add_(1)
        assert (meter.held, meter.peak) == (4000, 12_000)  # neither makes a tensor
        del one
        assert meter.held == 4000  # the view holds it
        del view
        assert meter.held == 0


def test_what_a_backward_pass_keeps_is_held():
    weight = torch.ones(100, 100, requires_grad=True)
    with Meter() as meter:
        out = (torch.ones(50, 100) @ weight).exp().sum()
        assert meter.held >= 2 * 4 * 50 * 100  # what went into the product, and what exp gave
        out.backward()
        del out
        assert meter.held == 4 * 100 * 100  # the gradient
