"""Memory of tensors is counted as a hand counts it."""

import torch

from recollect.efsa.memory import TensorMemory


def test_the_peak_is_what_tensors_held_at_once():
    before = torch.ones(1000)
    with TensorMemory() as memory:
        one = torch.ones(1000)
        for _ in range(5):
            torch.zeros(2000).add_(1)  # gone before the next is made
        assert (memory.held, memory.peak) == (4000, 12_000)
        view = one.view(10, 100).t()
        before.add_(1)
        assert (memory.held, memory.peak) == (4000, 12_000)  # neither makes a tensor
        del one
        assert memory.held == 4000  # the view holds it
        del view
        assert memory.held == 0


def test_what_a_backward_pass_keeps_is_held():
    weight = torch.ones(100, 100, requires_grad=True)
    with TensorMemory() as memory:
        out = (torch.ones(50, 100) @ weight).exp().sum()
        assert memory.held >= 2 * 4 * 50 * 100  # what went into the product, and what exp gave
        out.backward()
        del out
        assert memory.held == 4 * 100 * 100  # the gradient
