"""The context objective and all its ablations, compared with a slow reference written from the paper."""

import math
from dataclasses import fields

import pytest
import torch
from torch import nn
from torch.nn.functional import gelu, layer_norm

from recollect.objectives import ContextObjective, ContrastiveObjective
from recollect_papers.lixp.ablations import AblatedContextObjective, ContextOptions
from slow_losses import ABLATIONS, attend, contrastive_loss, rows

BATCH, WIDTH = 9, 6


def pairs():
    return {"images": rows(BATCH) * 2, "texts": rows(BATCH, seed=1), "views": rows(BATCH, seed=2),
            "context": rows(5, seed=3)}  # fmt: skip


def stopped(options, part, tensors):
    return [tensor.detach() if options.stop_gradient in {part, "both"} else tensor for tensor in tensors]


def learned_maps(objective, options, keys, values):
    """Apply the learned parts to keys and values, using only their weights."""
    if options.layer_norm in {"keys", "both"}:
        weight, bias = objective.key_norm.weight, objective.key_norm.bias
        keys = [layer_norm(key, (WIDTH,), weight, bias) for key in keys]
    if options.layer_norm in {"values", "both"}:
        weight, bias = objective.value_norm.weight, objective.value_norm.bias
        values = [layer_norm(value, (WIDTH,), weight, bias) for value in values]
    if options.value_head:
        linears = [layer for layer in objective.head if isinstance(layer, nn.Linear)]
        assert len(linears) == options.value_head
        for place, layer in enumerate(linears):
            values = [layer.weight @ value + layer.bias for value in values]
            if place < len(linears) - 1:
                values = [gelu(value) for value in values]
    return stopped(options, "keys", keys), stopped(options, "values", values)


def reference(objective, images, texts, views=None, context=None, labels=None, stale=(), chosen=None):
    """Compute LIxP, Eq. 6, 8 and 9 with the ablations of section 4.2, row by row."""
    options, base = objective.options, objective.term.base
    unit = [image / image.norm() for image in images]
    words = torch.stack([text / text.norm() for text in texts])
    source = context if options.separate else views if options.augmented != "none" else images
    own = source is images and options.mask
    members = list(range(len(source))) if chosen is None else chosen
    tau_1 = objective.term.log_scale.exp()
    bias_1 = 0.0 if objective.term.bias is None else objective.term.bias
    term_2 = objective.context_term or objective.term
    tau_2 = tau_1 if options.tied in {"all", "scales"} else term_2.log_scale.exp()
    bias_2 = 0.0 if term_2.bias is None else term_2.bias
    tau = {"all": tau_1, "context": tau_2}.get(options.tied, objective.log_tau.exp())

    to_key = (lambda row: row / row.norm()) if options.normalize_keys else (lambda row: row)
    keys = [to_key(source[j]) for j in members]
    values = [words[j] if options.values == "texts" else source[j] for j in members]
    keys, values = learned_maps(objective, options, keys, values)
    old_keys, old_values = learned_maps(objective, options, [to_key(row) for row in stale], list(stale))
    keys, values = keys + old_keys, values + old_values

    found = []
    for i in range(len(images)):
        hidden = members.index(i) if own and i in members else None
        query = unit[i] if options.normalize_keys else images[i]
        value = attend(query, keys, values, hidden, tau)
        if options.stages == 2:
            mapped = [objective.map.weight @ image + objective.map.bias for image in images]
            value = attend(value / value.norm(), [row / row.norm() for row in mapped], mapped, hidden, tau)
        found.append(value / value.norm())
    found, unit = torch.stack(found), torch.stack(unit)
    if options.residual:
        mixed = objective.alpha * unit + (1 - objective.alpha) * found
        return contrastive_loss(base, mixed / mixed.norm(dim=1, keepdim=True), words, tau_1, bias_1, labels)
    first = contrastive_loss(base, unit, words, tau_1, bias_1, labels)
    seen = None if views is None else torch.stack([view / view.norm() for view in views])
    if options.augmented.startswith("all"):
        first = (first + contrastive_loss(base, seen, words, tau_1, bias_1, labels)) / 2
    loss = objective.alpha * first + (1 - objective.alpha) * contrastive_loss(base, found, words, tau_2, bias_2, labels)
    if options.augmented == "all+infonce":
        loss = loss + contrastive_loss("softmax", unit, seen, objective.log_scale_views.exp())
    return loss


def make(base="sigmoid", alpha=0.7, form="dense", **options):
    torch.manual_seed(4)
    objective = AblatedContextObjective(
        base, alpha, ContextOptions(**options), width=WIDTH, scale=6.0, bias=-2.0, tau_context=0.3, form=form
    ).double()
    with torch.no_grad():  # move away from identity maps and equal temperatures
        for parameter in objective.parameters():
            parameter.add_(torch.randn(parameter.shape, dtype=torch.float64) * 0.2)
    return objective


def gradients(loss, objective, inputs):
    leaves = [*objective.parameters(), *filter(torch.is_tensor, inputs.values())]
    leaves = [leaf for leaf in leaves if leaf.requires_grad]
    return torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)


def assert_same(result, expected, objective, inputs):
    """Compare a loss, its report and all gradients with a reference loss in float64."""
    loss, report = result
    torch.testing.assert_close([loss, report["loss"]], [expected] * 2, rtol=1e-10, atol=1e-10)
    found, wanted = (gradients(each, objective, inputs) for each in (loss, expected))
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-10)


def make_inputs(objective, labels=None):
    inputs = {name: tensor.requires_grad_() for name, tensor in pairs().items()}
    wanted = {"images", "texts"} | (objective.needs & {"views", "context"})
    inputs = {name: tensor for name, tensor in inputs.items() if name in wanted}
    return {**inputs, "labels": labels} if labels is not None else inputs


@pytest.mark.parametrize("base", ["sigmoid", "softmax", "label"])
@pytest.mark.parametrize("form", ["dense", "blockwise"])
@pytest.mark.parametrize("ablation", ABLATIONS)
def test_every_ablation_equals_the_slow_reference_in_value_and_gradients(ablation, form, base):
    objective = make(base, form=form, **ABLATIONS[ablation])
    inputs = make_inputs(objective, torch.tensor([0, 1, 0, -1, 2, 1, -1, 0, 3]) if base == "label" else None)
    assert_same(objective(**inputs), reference(objective, **inputs), objective, inputs)


@pytest.mark.parametrize("base", ["sigmoid", "softmax", "label"])
@pytest.mark.parametrize("form", ["dense", "blockwise"])
@pytest.mark.parametrize("duplicate_ids", [None, torch.tensor([[5], [6], [5], [7], [8], [6], [5], [9], [3]])])
def test_without_ablations_it_equals_the_plain_objective_bit_for_bit(base, form, duplicate_ids):
    ablated, plain = make(base, form=form), ContextObjective(base, 0.7, form=form).double()
    plain.load_state_dict({name: value for name, value in ablated.state_dict().items() if name != "stale_count"})
    labels = torch.tensor([0, 1, 0, -1, 2, 1, -1, 0, 3]) if base == "label" else None
    found = []
    for objective in (ablated, plain):
        inputs = {"images": rows(BATCH).requires_grad_(), "texts": rows(BATCH, seed=1).requires_grad_()}
        loss, report = objective(**inputs, labels=labels, duplicate_ids=duplicate_ids)
        found.append((loss, report, gradients(loss, objective, inputs)))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1].keys() == found[1][1].keys()
    assert all(torch.equal(value, found[1][1][name]) for name, value in found[0][1].items())
    assert all(torch.equal(*pair) for pair in zip(found[0][2], found[1][2], strict=True))


@pytest.mark.parametrize("base", ["sigmoid", "softmax"])
def test_label_smoothing_equals_explicit_soft_targets(base):
    objective = ContrastiveObjective(base, scale=6.0, bias=-2.0, smoothing=0.15).double()
    images, texts = rows(BATCH).requires_grad_(), rows(BATCH, seed=1).requires_grad_()
    unit, words = images / images.norm(dim=1, keepdim=True), texts / texts.norm(dim=1, keepdim=True)
    logits = objective.term.log_scale.exp() * unit @ words.T + (0.0 if base == "softmax" else objective.term.bias)
    targets = torch.full((BATCH, BATCH), 0.15 / (BATCH - 1), dtype=torch.float64).fill_diagonal_(0.85)
    if base == "sigmoid":
        cells = targets * logits.sigmoid().log() + (1 - targets) * (-logits).sigmoid().log()
    else:
        cells = targets * (logits.log_softmax(0) + logits.log_softmax(1)) / 2
    inputs = {"images": images, "texts": texts}
    assert_same(objective(**inputs), -cells.sum() / BATCH, objective, inputs)


def test_the_ablations_cover_every_option():
    used = {name for options in ABLATIONS.values() for name in options} | {"stale_rows", "active_rows"}
    assert used == {field.name for field in fields(ContextOptions)}


@pytest.mark.parametrize("form", ["dense", "blockwise"])
def test_with_active_rows_only_members_of_the_subset_are_masked(form):
    objective = make(form=form, active_rows=4)
    inputs = make_inputs(objective)
    losses = []
    for seed in range(6):
        result = objective(**inputs, seed=seed)
        chosen = torch.randperm(BATCH, generator=torch.Generator().manual_seed(seed))[:4].sort().values.tolist()
        assert_same(result, reference(objective, **inputs, chosen=chosen), objective, inputs)
        losses.append(result[0].item())
    assert len(set(losses)) > 3


def test_a_stale_buffer_smaller_than_a_batch_keeps_the_last_rows():
    objective, inputs = make(stale_rows=3), pairs()
    for step in range(3):
        images = rows(BATCH, seed=10 + step)
        objective(images, inputs["texts"], duplicate_ids=torch.arange(BATCH)[:, None] + 100 * step)
        kept = {tuple(row) for row in objective.stale.tolist()}
        assert kept == {tuple(row) for row in images[-3:].tolist()}
        by_row = dict(zip(map(tuple, images.tolist()), range(BATCH), strict=True))
        places = [by_row[tuple(row)] for row in objective.stale.tolist()]
        assert objective.stale_duplicate_ids[:, 0].tolist() == [100 * step + place for place in places]


def test_the_stale_buffer_is_part_of_the_state_dict():
    first, second, unmarked = make(stale_rows=5), make(stale_rows=5), make(stale_rows=5)
    texts, duplicate_ids = rows(BATCH, seed=1), torch.arange(BATCH)[:, None]
    first(rows(BATCH), texts, duplicate_ids=duplicate_ids)
    second.load_state_dict(first.state_dict())
    before = {name: value for name, value in first.state_dict().items() if name != "stale_duplicate_ids"}
    unmarked.load_state_dict(before)  # a state saved without duplicate_ids
    images = rows(BATCH, seed=8)
    losses = [each(images, texts, duplicate_ids=duplicate_ids)[0] for each in (first, second, unmarked)]
    assert torch.equal(losses[0], losses[1])
    assert not torch.isclose(losses[0], losses[2]), "stale copies of a row with known duplicate_ids are masked"


def test_without_a_mask_a_sharp_lookup_attends_only_to_itself():
    inputs = make_inputs(make())
    with_context = make(mask=False)
    with torch.no_grad():
        with_context.log_tau.fill_(math.log(1e-4))
    loss, report = with_context(**inputs)
    plain = ContrastiveObjective("sigmoid").double()
    for name in ("log_scale", "bias"):
        getattr(plain.term, name).data = getattr(with_context.context_term, name).data
    torch.testing.assert_close(report["context_loss"], plain(**inputs)[0].detach())
    torch.testing.assert_close(report["effective_neighbors"], torch.ones((), dtype=torch.float64))
    assert loss.requires_grad


def test_temperatures_are_listed_separately():
    objective = make(value_head=1, layer_norm="both", augmented="none")
    temperatures = {id(parameter) for parameter in objective.temperatures()}
    named = {name for name, parameter in objective.named_parameters() if id(parameter) in temperatures}
    assert named == {"term.log_scale", "term.bias", "context_term.log_scale", "context_term.bias", "log_tau"}
    frozen = make(freeze_temperature=True)
    assert not any(parameter is frozen.log_tau for parameter in frozen.temperatures())
    tied = make(tied="all")
    assert len(tied.temperatures()) == 3  # one shared scale, two biases


def test_initial_values_match_the_paper():
    _, report = ContextObjective()(rows(4), rows(4, seed=1))
    expected = {"scale": 10.0, "scale_context": 10.0, "tau_context": 1.0, "bias": -10.0, "bias_context": -10.0}
    assert {name: pytest.approx(report[name].item(), rel=1e-6) for name in expected} == expected
    assert ContextObjective().alpha == 0.9


@pytest.mark.parametrize(
    "wrong",
    [
        {"separate": True, "augmented": "all"},
        {"values": "texts", "mask": False},
        {"values": "texts", "separate": True},
        {"active_rows": 1},
        {"stale_rows": -1},
        {"tied": "all", "freeze_temperature": True},
        {"stages": 2, "active_rows": 4},
        {"stages": 2, "stop_gradient": "keys"},
        {"stages": 2, "value_head": 1},
        {"stages": 2, "layer_norm": "values"},
        {"stages": 2, "values": "texts"},
        {"stages": 2, "normalize_keys": False},
        {"residual": True, "augmented": "all"},
        {"residual": True, "tied": "scales"},
    ],
)
def test_contradictory_options_are_rejected(wrong):
    with pytest.raises(ValueError):
        ContextOptions(**wrong)


@pytest.mark.usefixtures("unchecked")
def test_errors_name_the_invalid_or_missing_input():
    with pytest.raises(ValueError, match="alpha"):
        ContextObjective(alpha=1.2)
    with pytest.raises(ValueError, match="width"):
        AblatedContextObjective(options=ContextOptions(stages=2))
    with pytest.raises(ValueError, match="positive"):
        ContextObjective(tau_context=0.0)
    with pytest.raises(ValueError, match="views"):
        make(augmented="all")(rows(4), rows(4))
    with pytest.raises(ValueError, match="labels"):
        make("label")(rows(4), rows(4))
    with pytest.raises(ValueError, match="key"):
        make()(rows(1), rows(1))


def saved_numbers(function):
    """Count the numbers that autograd saves for the backward pass, each storage once."""
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes() // tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = function()
    assert loss.requires_grad
    return sum(kept.values())


@pytest.mark.parametrize("base", ["sigmoid", "softmax"])
def test_the_blockwise_objective_saves_at_most_eight_numbers_per_entry(base):
    count, width = 600, 32
    objective = ContextObjective(base, form="blockwise")
    images, texts = torch.randn(count, width).requires_grad_(), torch.randn(count, width).requires_grad_()
    kept = saved_numbers(lambda: objective(images, texts)[0])
    assert kept <= 8 * count * width
    dense = saved_numbers(lambda: ContextObjective(base, form="dense")(images, texts)[0])
    assert dense > 3 * count * count


@pytest.mark.parametrize("form", ["dense", "blockwise"])
@pytest.mark.parametrize("more", [{}, {"value_head": 2}, {"residual": True}, {"layer_norm": "both"}, {"mask": False}])
def test_stale_rows_are_stored_and_used_in_later_steps(more, form):
    """The buffer holds more than a batch, and each step overwrites the oldest rows; evaluation writes nothing."""
    objective, past = make(form=form, stale_rows=BATCH + 3, **more), []
    for step in range(4):
        count = BATCH - step % 3
        inputs = {"images": rows(count, seed=10 + step), "texts": rows(count, seed=1)}
        expected = reference(objective, **inputs, stale=past)
        assert_same(objective(**inputs), expected, objective, inputs)
        past = (past + list(inputs["images"]))[-objective.options.stale_rows :]
        # Compare as sets: the buffer is circular, and attention ignores the order.
        assert {tuple(row.tolist()) for row in objective.stale[: len(past)]} == {tuple(row.tolist()) for row in past}
    before = objective.eval().stale.clone()
    objective(**inputs)
    assert torch.equal(objective.stale, before)


# --- copies of one sample in a batch -----------------------------------------------------------------------------

DUPLICATE_IDS = torch.tensor([[5], [6], [5], [7], [8], [6], [5], [9], [3]])


def without_copies(objective, images, texts, duplicate_ids, labels, past=()):
    """Compute the loss of a batch with copies, excluding them from a pair's negatives and a row's context.

    ``past`` holds stale rows with their duplicate_ids.
    """
    options, count = objective.options, len(images)
    copy = [[i != j and bool((duplicate_ids[i] == duplicate_ids[j]).any()) for j in range(count)] for i in range(count)]
    unit = images / images.norm(dim=1, keepdim=True)
    words = texts / texts.norm(dim=1, keepdim=True)
    members = torch.randperm(count, generator=torch.Generator().manual_seed(0))[: options.active_rows].tolist()
    found = []
    for i in range(count):
        seen = [j for j in members if not options.mask or (j != i and not copy[i][j])]
        old = [row for row, known in past if not (options.mask and bool((duplicate_ids[i] == known).any()))]
        if not seen and not old:
            found.append(torch.zeros(WIDTH, dtype=torch.float64))
            continue
        keys = [images[j] for j in seen] + old
        value = attend(unit[i], [key / key.norm() for key in keys], keys, None, objective.log_tau.exp())
        found.append(value / value.norm())

    def loss(rows, term):
        return contrastive_loss(objective.term.base, rows, words, term.log_scale.exp(), term.bias, labels, copy)

    found = torch.stack(found)
    return objective.alpha * loss(unit, objective.term) + (1 - objective.alpha) * loss(found, objective.context_term)


@pytest.mark.parametrize("form", ["dense", "blockwise"])
@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("base", ["sigmoid", "softmax", "label"])
@pytest.mark.parametrize(
    "duplicate_ids",
    [DUPLICATE_IDS, torch.cat([DUPLICATE_IDS, DUPLICATE_IDS.flip(0)], 1), torch.full_like(DUPLICATE_IDS, 2)],
)
def test_copies_are_neither_negatives_nor_context(base, mask, duplicate_ids, form, monkeypatch):
    monkeypatch.setattr("recollect.objectives.context.tile_size", lambda device: 4)
    monkeypatch.setattr("recollect.objectives.sigmoid.tile_size", lambda device: 4)
    monkeypatch.setattr("recollect.objectives.softmax.tile_size", lambda device: 4)
    objective = make(base, mask=mask)
    objective.form = objective.term.form = form
    inputs = {"images": rows(BATCH).requires_grad_(), "texts": rows(BATCH, seed=1).requires_grad_()}
    labels = torch.tensor([0, 1, 0, -1, -1, 2, -1, 1, -1]) if base == "label" else None
    expected = without_copies(objective, **inputs, duplicate_ids=duplicate_ids, labels=labels)
    result = objective(**inputs, duplicate_ids=duplicate_ids, labels=labels)
    assert all(value.isfinite() for value in result[1].values())
    assert_same(result, expected, objective, inputs)


@pytest.mark.parametrize("form", ["dense", "blockwise"])
@pytest.mark.parametrize("more", [{}, {"active_rows": 5}, {"mask": False}])
@pytest.mark.parametrize("repeats", ["in the batch and over steps", "over steps", "of texts over steps"])
def test_a_row_does_not_attend_to_its_own_stale_copies(repeats, more, form, monkeypatch):
    monkeypatch.setattr("recollect.objectives.context.tile_size", lambda device: 4)
    objective, past = make(form=form, stale_rows=BATCH + 4, **more), []
    for step in range(3):  # in the third step, the oldest rows are overwritten already
        duplicate_ids = torch.arange(BATCH)[:, None] + 5 * step
        if repeats == "in the batch and over steps":
            duplicate_ids = DUPLICATE_IDS + step
        elif repeats == "of texts over steps":
            duplicate_ids = torch.cat([100 * (step + 1) + duplicate_ids, duplicate_ids.flip(0)], 1)
        images, texts = rows(BATCH, seed=step).requires_grad_(), rows(BATCH, seed=9 + step).requires_grad_()
        inputs = {"images": images, "texts": texts}
        expected = without_copies(objective, **inputs, duplicate_ids=duplicate_ids, labels=None, past=past)
        assert_same(objective(**inputs, duplicate_ids=duplicate_ids), expected, objective, inputs)
        new = zip(inputs["images"].detach(), duplicate_ids, strict=True)
        past = [*past, *((row, known) for row, known in new)][-BATCH - 4 :]


@pytest.mark.parametrize("options", [{}, {"stale_rows": 2 * BATCH}])
@pytest.mark.parametrize("negative", [False, True])
def test_unique_or_negative_duplicate_ids_change_nothing(negative, options):
    objective, unmarked = make(**options), make(**options)
    for step in range(3):
        inputs = {"images": rows(BATCH, seed=step), "texts": rows(BATCH, seed=1)}
        duplicate_ids = -torch.ones(BATCH, 1).long() if negative else torch.arange(BATCH)[:, None] + BATCH * step
        assert torch.equal(unmarked(**inputs)[0], objective(**inputs, duplicate_ids=duplicate_ids)[0])


@pytest.mark.parametrize("form", ["dense", "blockwise"])
def test_a_separate_context_masks_copies_of_the_query(form):
    objective = make(separate=True)
    objective.form = form
    inputs, context = {"images": rows(4), "texts": rows(4, seed=1)}, rows(5, seed=3)
    duplicate_ids, context_ids = torch.tensor([[1], [2], [3], [4]]), torch.tensor([[9], [2], [8], [4], [7]])
    _, report = objective(**inputs, context=context, duplicate_ids=duplicate_ids, context_duplicate_ids=context_ids)
    fewer = [objective(**inputs, context=context[[j for j in range(5) if j != hidden]])[1] for hidden in (1, 3)]
    assert report["effective_neighbors"] < objective(**inputs, context=context)[1]["effective_neighbors"]
    assert fewer[0]["effective_neighbors"] != fewer[1]["effective_neighbors"]


@pytest.mark.parametrize("base", ["sigmoid", "softmax"])
def test_smoothing_has_no_effect_on_a_batch_of_one(base):
    images, texts = torch.randn(1, 4), torch.randn(1, 4)
    plain, smooth = (ContrastiveObjective(base, smoothing=share)(images, texts)[0] for share in (0.0, 0.3))
    assert torch.equal(plain, smooth)
