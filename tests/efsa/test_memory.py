"""Tensor memory is counted correctly."""

import torch

from recollect.efsa.memory import TensorMemory


def test_the_peak_is_the_memory_of_simultaneous_tensors():
    before = torch.ones(1000)
    with TensorMemory() as memory:
        one = torch.ones(1000)
        for _ in range(5):
            torch.zeros(2000).add_(1)  # freed before the next
        assert (memory.held, memory.peak) == (4000, 12_000)
        view = one.view(10, 100).t()
        before.add_(1)
        assert (memory.held, memory.peak) == (4000, 12_000)  # views and in-place operations allocate nothing
        del one
        assert memory.held == 4000  # the view keeps the storage
        del view
        assert memory.held == 0


def test_tensors_saved_for_backward_are_counted():
    weight = torch.ones(100, 100, requires_grad=True)
    with TensorMemory() as memory:
        out = (torch.ones(50, 100) @ weight).exp().sum()
        assert memory.held >= 2 * 4 * 50 * 100  # input of the product, output of exp
        out.backward()
        del out
        assert memory.held == 4 * 100 * 100  # the gradient
