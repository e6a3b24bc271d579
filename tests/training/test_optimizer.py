import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recollect.training.optimizer import Optimizer, build_optimizer, learning_rate, parameters, set_learning_rate


def test_only_weight_matrices_decay(small):
    model, objective = small.Model(), small.Objective()
    optimizer = build_optimizer(model, objective, Optimizer(weight_decay=0.3))
    decay = {name: group["weight_decay"] for group in optimizer.param_groups for name in group["param_names"]}
    named = {"model": model, "objective": objective}
    parameters = {f"{part}.{name}": each for part in named for name, each in named[part].named_parameters()}
    assert decay == {name: 0.3 if each.ndim == 2 else 0.0 for name, each in parameters.items()}
    assert {decay["model.words.weight"], decay["model.image.1.weight"], decay["objective.bias"]} == {0.3, 0.0}


def test_temperatures_have_a_separate_learning_rate(small):
    optimizer = build_optimizer(small.Model(), small.Objective(), Optimizer(temperature_factor=20.0))
    set_learning_rate(optimizer, 0.01)
    rates = {name: group["lr"] for group in optimizer.param_groups for name in group["param_names"]}
    assert rates.pop("objective.log_scale") == rates.pop("objective.bias") == pytest.approx(0.2)
    assert set(rates.values()) == {0.01}


def test_frozen_parameters_are_not_optimized(small):
    model = small.Model()
    model.image.requires_grad_(False)
    assert not any("image" in name for name in parameters(build_optimizer(model, small.Objective(), Optimizer())))


def test_updates_match_adamw(small):
    """Loshchilov and Hutter, 2019, in float64: decay first, then the Adam step with bias correction."""
    options = Optimizer(weight_decay=0.1, beta1=0.8, beta2=0.9)
    objective = small.Objective().double()
    weight = objective.head.weight
    optimizer = build_optimizer(small.Model().double(), objective, options)
    expected, mean, square = weight.detach().clone(), torch.zeros_like(weight), torch.zeros_like(weight)
    generator = torch.Generator().manual_seed(0)
    for step in (1, 2, 3):
        gradient = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
        rate = learning_rate(options, step, 10)
        set_learning_rate(optimizer, rate)
        weight.grad = gradient
        optimizer.step()
        mean = 0.8 * mean + 0.2 * gradient
        square = 0.9 * square + 0.1 * gradient**2
        expected = expected * (1 - rate * 0.1)
        expected = expected - rate * (mean / (1 - 0.8**step)) / ((square / (1 - 0.9**step)).sqrt() + 1e-8)
        torch.testing.assert_close(weight.detach(), expected, rtol=0, atol=1e-12)


def test_the_rate_rises_to_its_peak_and_falls_to_zero():
    options = Optimizer(learning_rate=2.0, warmup=0.1)
    rates = [learning_rate(options, step, 100) for step in range(1, 101)]
    assert rates[0] == pytest.approx(0.2)
    assert max(rates) == rates[9] == rates[10] == pytest.approx(2.0)
    assert rates[55] == pytest.approx(2.0 * 0.5 * (1 + math.cos(math.pi / 2)))
    assert 0 < rates[-1] < 0.001


@given(steps=st.integers(1, 300), warmup=st.floats(0, 1))
def test_every_rate_is_positive_and_at_most_the_peak(steps, warmup):
    options = Optimizer(learning_rate=1.0, warmup=warmup)
    rates = [learning_rate(options, step, steps) for step in range(1, steps + 1)]
    assert all(0 < rate <= 1 for rate in rates)
    peak = rates.index(max(rates))
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
