"""The pure loss functions compared with float64 loops, and their two forms with each other."""

import math
from functools import partial

import pytest
import torch
from torch.nn.functional import normalize

import slow_losses
from recollect.objectives import (
    ContextObjective,
    ContrastiveObjective,
    attend,
    contextualize,
    label_contrastive,
    sigmoid_contrastive,
    softmax_contrastive,
)
from slow_losses import contrastive_loss, rows

SIZES = [(2, 1), (5, 2), (23, 7), (24, 8), (9, 64)]


def number(value, dtype=torch.float64):
    return torch.tensor(value, dtype=dtype)


def slow_contextualize(images, tau):
    keys = [image / image.norm() for image in images]
    found = [slow_losses.attend(key, keys, images, i, tau) for i, key in enumerate(keys)]
    return torch.stack([value / value.norm() for value in found])


def labels_for(count):
    return torch.tensor([(7 * index) % 5 - 1 for index in range(count)])


def pair_inputs(*numbers):
    return lambda n, dtype: (
        *(normalize(rows(n, seed=seed, dtype=dtype), dim=1) for seed in (0, 1)),
        *(number(value, dtype) for value in numbers),
    )


CASES = {
    "sigmoid": (sigmoid_contrastive, partial(contrastive_loss, "sigmoid"), pair_inputs(7.0, -2.5)),
    "softmax": (softmax_contrastive, partial(contrastive_loss, "softmax"), pair_inputs(9.0)),
    "label": (
        lambda x, t, s, **how: label_contrastive(x, t, labels_for(len(x)), s, **how),
        lambda x, t, s: contrastive_loss("label", x, t, s, labels=labels_for(len(x))),
        pair_inputs(9.0),
    ),
    "context": (contextualize, slow_contextualize, lambda n, dtype: (rows(n, dtype=dtype) * 3, number(0.2, dtype))),
}
"""Function, slow reference, and inputs for a number of rows."""


def value_and_gradients(function, inputs):
    inputs = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    value = function(*inputs)
    # Weight the outputs differently, so each has a distinct gradient.
    weights = torch.ones(()) if value.ndim == 0 else rows(*value.shape, seed=9)
    gradients = torch.autograd.grad((value * weights.to(value)).sum(), inputs)
    return [value.detach(), *gradients]


@pytest.mark.parametrize("form", ["dense", "blockwise"])
@pytest.mark.parametrize(("count", "tile"), SIZES)
@pytest.mark.parametrize("case", CASES)
def test_both_forms_equal_the_loop_in_value_and_every_gradient(case, count, tile, form):
    function, slow, make = CASES[case]
    inputs = make(count, torch.float64)
    found = value_and_gradients(lambda *tensors: function(*tensors, form=form, tile=tile), inputs)
    torch.testing.assert_close(found, value_and_gradients(slow, inputs), rtol=1e-10, atol=1e-10)


def pair_terms(case, images, texts, scale, bias=None):
    """Return the size of the terms that add up to a pair loss and to its gradients (images, texts, scale, bias)."""
    count, similarity = len(images), images @ texts.T
    logits = scale * similarity
    if case == "sigmoid":
        slope = torch.sigmoid(logits + bias) + torch.eye(count)
        value = torch.nn.functional.softplus(logits + bias).sum() + (logits + bias).diagonal().abs().sum()
    else:
        slope = (logits.softmax(0) + logits.softmax(1) + 2) / 2  # weights of positives are at most one
        value = logits.abs().amax() * count + math.log(count) * count
    value, slope = value / count, slope / count
    sizes = [value, scale * slope.sum(1).max(), scale * slope.sum(0).max(), (slope * similarity.abs()).sum()]
    return sizes + ([slope.sum()] if bias is not None else [])


def context_terms(images, tau):
    """Return the same for `contextualize` and its gradients (images, tau), including all intermediate rounding."""
    unit, width = normalize(images, dim=1), images.shape[1]
    logits = (unit @ unit.T / (tau * math.sqrt(width))).fill_diagonal_(-torch.inf)
    weights = logits.softmax(1)
    found = weights @ images
    norms = found.norm(dim=1, keepdim=True)
    # If values cancel in a mixture, its relative error grows by their norm over the norm of the mixture.
    cancels = ((weights @ images.norm(dim=1, keepdim=True)) / norms).max()
    incoming = rows(*images.shape, seed=9).norm(dim=1, keepdim=True) / norms
    slope = weights * incoming * (images.norm(dim=1) + norms)
    logits = logits.fill_diagonal_(0.0)
    logits = logits - (weights * logits).sum(1, keepdim=True)
    through_keys = (slope.sum(0) + slope.sum(1)) / tau / math.sqrt(width) / images.norm(dim=1)
    through_values = (weights * incoming).sum(0)
    return [cancels, cancels * (through_keys + through_values).max(), cancels * (slope * logits.abs()).sum() / tau]


def assert_as_close_as_float32_allows(case, single, inputs):
    """Allow a few roundings of logits, products and sums, relative to the size of the summed terms."""
    function = CASES[case][0]
    inputs = [tensor.double() for tensor in inputs]
    exact = value_and_gradients(lambda *t: function(*t, form="dense"), inputs)
    sizes = context_terms(*inputs) if case == "context" else pair_terms(case, *inputs)
    largest = 1 / (inputs[1] * math.sqrt(inputs[0].shape[1])) if case == "context" else inputs[2]
    roundings = largest + inputs[0].shape[1] + math.log2(len(inputs[0]))
    for ours, theirs, size in zip(single, exact, sizes, strict=True):
        assert ours.dtype == torch.float32
        assert (ours.double() - theirs).abs().max() <= torch.finfo(torch.float32).eps * roundings * size


@pytest.mark.parametrize("form", ["dense", "blockwise"])
@pytest.mark.parametrize("case", CASES)
def test_temperatures_may_be_plain_numbers_or_tensors_with_one_entry(case, form):
    function, _, make = CASES[case]
    tensors = [tensor.requires_grad_() for tensor in make(9, torch.float64)]
    expected = function(*tensors, form=form, tile=4)
    count = 1 if case == "context" else 2
    for convert in (float, lambda each: each.detach().reshape(1).requires_grad_()):
        found = function(*tensors[:count], *map(convert, tensors[count:]), form=form, tile=4)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
        found.sum().backward()


@pytest.mark.parametrize("case", CASES)
def test_float32_blockwise_is_close_to_float64_dense(case):
    function, _, make = CASES[case]
    inputs = make(300, torch.float32)
    single = value_and_gradients(lambda *t: function(*t, form="blockwise", tile=64), inputs)
    assert_as_close_as_float32_allows(case, single, inputs)


@pytest.mark.parametrize("width", [6, 64])
@pytest.mark.parametrize("tau", [1e-2, 1e-3, 1e-4, 1e-5])
def test_float32_gradients_stay_accurate_when_tau_context_is_small(tau, width):
    """The gradient of tau sums terms that nearly cancel: without subtracting their mean, it was 1e-4 to 1.4 off."""
    images, tau = rows(300, width, dtype=torch.float32) * 3, number(tau, torch.float32)
    single = value_and_gradients(lambda *t: contextualize(*t, form="blockwise", tile=64), (images, tau))
    assert_as_close_as_float32_allows("context", single, (images, tau))
    dense = value_and_gradients(lambda *t: contextualize(*t, form="dense"), (images.double(), tau.double()))
    worst = max(1e-3, 2e-3 if width == 6 else 0) if tau > 1e-5 else 1e-2
    assert abs(single[2].double() / dense[2] - 1) < worst


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [6, 64])
@pytest.mark.parametrize("tau", [1e-8, 1e-10, 1e-12, 1e-15])
def test_a_saturated_lookup_has_the_gradient_of_its_only_neighbor(tau, width, dtype):
    """With one neighbor per row, queries and keys get no gradient, however large the factor of the logits."""
    images = rows(300, width, dtype=dtype) * 3
    single = value_and_gradients(lambda *t: contextualize(*t, form="blockwise", tile=64), (images, number(tau, dtype)))
    units = normalize(images.double(), dim=1)
    nearest = (units @ units.T).fill_diagonal_(-2).argmax(1)
    exact = value_and_gradients(lambda x: normalize(x[nearest], dim=1), [images.double()])
    torch.testing.assert_close(single[0].double(), exact[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(single[1].double(), exact[1], rtol=1e-5, atol=1e-5)
    assert torch.isfinite(single[2])


@pytest.mark.parametrize("form", ["dense", "blockwise"])
def test_the_entropy_of_a_saturated_lookup_is_zero(form):
    units = normalize(rows(50, dtype=torch.float32), dim=1)
    found = attend(units, units, units, number(1e10, torch.float32), torch.arange(50), form=form, tile=16)
    torch.testing.assert_close(found.entropy, torch.zeros(50))


@pytest.mark.parametrize("case", CASES)
def test_half_precision_embeddings_give_a_full_precision_loss_under_autocast(case):
    function, _, make = CASES[case]
    inputs = make(40, torch.float32)
    half = tuple(t.bfloat16() if t.ndim == 2 else t for t in inputs)
    for form in ("dense", "blockwise"):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = function(*half, form=form, tile=16)
        expected = function(*(t.float() for t in half), form="dense")
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_siglip_starts_near_ten_on_random_embeddings():
    # log(1 + e^10) per positive, almost nothing for negatives; the sign printed in the paper would give 630.
    images, texts = normalize(rows(64, 128), dim=1), normalize(rows(64, 128, seed=1), dim=1)
    loss = sigmoid_contrastive(images, texts, number(10.0), number(-10.0))
    assert 8 < loss < 11.5


@pytest.mark.parametrize("form", ["dense", "blockwise"])
def test_queries_can_attend_to_a_set_that_does_not_contain_them(form):
    queries, keys, values = rows(5, seed=3), rows(11, seed=4), rows(11, 3, seed=5)
    own = torch.tensor([2, -1, 10, -1, 0])
    found = attend(queries, keys, values, number(0.7), own, form=form, tile=4)
    for row in range(5):
        seen = [key for key in range(11) if key != own[row]]
        weights = torch.softmax(torch.stack([0.7 * queries[row].dot(keys[key]) for key in seen]), 0)
        torch.testing.assert_close(found.values[row], sum(w * values[k] for w, k in zip(weights, seen, strict=True)))
        torch.testing.assert_close(found.entropy[row], -(weights * weights.log()).sum())


@pytest.mark.parametrize("form", ["dense", "blockwise"])
def test_huge_logits_stay_finite(form):
    images, texts = normalize(rows(20), dim=1), normalize(rows(20, seed=1), dim=1)
    how = {"form": form, "tile": 6}
    for loss in (
        sigmoid_contrastive(images, texts, number(1e4), number(-1e4), **how),
        softmax_contrastive(images, texts, number(1e4), **how),
        contextualize(images, number(1e-7), **how).sum(),
    ):
        assert torch.isfinite(loss)


@pytest.mark.usefixtures("unchecked")
def test_errors_name_mismatched_shapes_and_unknown_forms():
    with pytest.raises(ValueError, match=r"\(3, 6\) and \(4, 6\)"):
        sigmoid_contrastive(rows(3), rows(4), number(1.0), number(0.0))
    with pytest.raises(ValueError, match="one label for each of 3 rows"):
        label_contrastive(rows(3), rows(3), torch.zeros(4, dtype=torch.int64), number(1.0))
    with pytest.raises(ValueError, match="key"):
        contextualize(rows(1), number(1.0))
    with pytest.raises(ValueError, match="form must be"):
        softmax_contrastive(rows(3), rows(3), number(1.0), form="sparse")
    for objective in (ContrastiveObjective(), ContextObjective()):  # ids without columns were ignored
        with pytest.raises(ValueError, match=r"\(batch, columns\), got \(3,\)"):
            objective(rows(3), rows(3), duplicate_ids=torch.zeros(3, dtype=torch.int64))


@pytest.mark.parametrize("form", ["dense", "blockwise"])
@pytest.mark.parametrize("function", [softmax_contrastive, sigmoid_contrastive])
def test_negative_duplicate_ids_never_match(function, form):
    images, texts = normalize(rows(6), dim=1), normalize(rows(6, seed=1), dim=1)
    settings = [number(5.0)] if function is softmax_contrastive else [number(5.0), number(-3.0)]
    none = torch.full((6, 1), -1)
    assert torch.equal(
        function(images, texts, *settings, duplicate_ids=none, form=form), function(images, texts, *settings, form=form)
    )
    some, known = torch.tensor([[-1], [3], [-1], [3], [-2], [-2]]), torch.tensor([[10], [3], [11], [3], [12], [13]])
    assert torch.equal(
        function(images, texts, *settings, duplicate_ids=some, form=form),
        function(images, texts, *settings, duplicate_ids=known, form=form),
    )


@pytest.mark.parametrize("form", ["dense", "blockwise"])
@pytest.mark.parametrize("case", CASES)
def test_float64_embeddings_accept_a_float32_temperature(case, form):
    function, _, inputs = CASES[case]
    tensors = [tensor.float() if tensor.ndim == 0 else tensor for tensor in inputs(9, torch.float64)]
    assert value_and_gradients(lambda *given: function(*given, form=form), tensors)[0].dtype == torch.float64
