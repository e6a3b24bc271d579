"""A batch has the same gradient whether embedded at once, in chunks, or by several processes."""

from itertools import accumulate

import pytest
import torch
from torch import nn

from recollect.core.seeding import derive_seed
from recollect.training.step import Inputs, StepOptions, train_step
from recollect_papers.lixp.ablations import AblatedContextObjective, ContextOptions


def doubled(inputs: Inputs) -> Inputs:
    return Inputs(inputs.images.double(), inputs.tokens, inputs.labels, inputs.views, inputs.context)


def gradients(*modules) -> dict[str, torch.Tensor]:
    learning = [
        (f"{i}.{name}", p) for i, m in enumerate(modules) for name, p in m.named_parameters() if p.requires_grad
    ]
    return {name: parameter.grad.clone() for name, parameter in learning}


def plain_gradients(model, objective, inputs: Inputs, chunk: int, seed: int) -> dict[str, torch.Tensor]:
    """Compute the reference gradients: embed all chunks with their graphs, then one loss and one backward pass."""

    def rows(encode, what, columns, length):
        out = []
        for place, start in enumerate(range(0, length, chunk)):
            torch.manual_seed(derive_seed(seed, what, 0, place))
            out.append(encode({name: column[start : start + chunk] for name, column in columns.items()}))
        return torch.cat(out)

    def pixels(images, what):
        if images is None:
            return None
        return rows(lambda c: model.encode_images(c["pixels"]), what, {"pixels": images}, len(images))

    loss, _ = objective(
        pixels(inputs.images, "images"),
        rows(model.encode_texts, "texts", inputs.tokens, len(inputs.images)),
        labels=inputs.labels,
        views=pixels(inputs.views, "views"),
        context=pixels(inputs.context, "context"),
        seed=seed,
    )
    loss.backward()
    return gradients(model, objective)


def pair(small):
    torch.manual_seed(0)
    return small.Model().double(), small.Objective().double()


@pytest.mark.parametrize("chunk", [1, 5, 12])
@pytest.mark.parametrize("more", ["", "labels", "views", "context"])
def test_chunks_give_the_gradients_of_plain_training_with_dropout_on(small, chunk, more):
    inputs = doubled(small.inputs(0))
    extra = {
        "labels": torch.arange(12) // 2,
        "views": torch.randn(12, 4, dtype=torch.float64),
        "context": torch.randn(7, 4, dtype=torch.float64),
    }
    if more:
        inputs = Inputs(inputs.images, inputs.tokens, **{more: extra[more]})
    expected = plain_gradients(*pair(small), inputs, chunk, seed=3)
    model, objective = pair(small)
    train_step(model, objective, inputs, StepOptions(chunk=chunk, seed=3))
    assert "1.log_scale" in expected
    torch.testing.assert_close(gradients(model, objective), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("form", ["dense", "blockwise"])
@pytest.mark.parametrize("base", ["sigmoid", "softmax"])
@pytest.mark.parametrize("options", [{}, {"augmented": "all"}, {"separate": True}, {"active_rows": 5}, {"tied": "all"}])
def test_every_temperature_of_the_context_objective_gets_its_full_gradient(small, base, options, form):
    inputs = doubled(small.inputs(0))
    objectives = [
        AblatedContextObjective(
            base, 0.8, ContextOptions(**options), width=6, scale=7.0, bias=-2.0, tau_context=0.1, form=form
        )
        for _ in range(2)
    ]
    needs = objectives[0].needs
    extra = {name: torch.randn(12, 4, dtype=torch.float64) for name in ("views", "context") if name in needs}
    inputs = Inputs(inputs.images, inputs.tokens, **extra)
    expected = plain_gradients(pair(small)[0], objectives[0].double(), inputs, 5, seed=3)
    model = pair(small)[0]
    train_step(model, objectives[1].double(), inputs, StepOptions(chunk=5, seed=3))
    actual = gradients(model, objectives[1])
    assert any("tau" in name or "scale" in name for name in actual)
    assert all(gradient.abs().max() > 0 for gradient in expected.values())
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


def test_dropout_differs_between_chunks_and_seeds(small):
    model, objective = pair(small)
    same = small.inputs(0)
    repeated = Inputs(same.images[:1].double().repeat(4, 1), {k: v[:1].repeat(4, 1) for k, v in same.tokens.items()})
    rows = []
    model.image[2].register_forward_hook(lambda module, args, out: rows.append(out.flatten().tolist()))
    for seed in (0, 1, 0):
        train_step(model, objective, repeated, StepOptions(chunk=1, seed=seed))
    first, again = rows[:4], rows[4:8]
    assert len({tuple(row) for row in first}) == 4, "each chunk has its own dropout"
    assert again == first[::-1], "the second pass repeats the first one's dropout, last chunk first"
    assert rows[8:12] != first
    assert rows[16:20] == first


def test_a_step_leaves_the_callers_random_state_unchanged(small):
    modules = pair(small)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train_step(*modules, doubled(small.inputs(0)), StepOptions(chunk=4))
    assert torch.equal(torch.rand(3), expected)


def test_memory_depends_on_the_chunk_size_not_on_the_batch_size(small):
    def peak(rows: int, chunk: int | None) -> int:
        """Return the peak memory of a step in bytes."""
        model, objective = pair(small)
        model.image = nn.Sequential(nn.Linear(4, 64), *[nn.Linear(64, 64), nn.GELU()] * 20, nn.Linear(64, 6)).double()
        inputs = doubled(small.inputs(0, rows))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            train_step(model, objective, inputs, StepOptions(chunk=chunk))
        events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
        sizes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
        return max(accumulate(sizes))

    kept_by_tower = 2 * 20 * 64 * 8  # bytes per row
    assert peak(128, None) > 128 * kept_by_tower
    assert peak(128, 8) < 0.35 * peak(128, None)
    # Doubling the batch adds embeddings and loss matrices, but no tower activations.
    assert peak(128, 8) - peak(64, 8) < 0.5 * 64 * kept_by_tower


@pytest.mark.parametrize(("half", "scale"), [("bfloat16", 1.0), ("float16", 1024.0)])
def test_half_precision_towers_accumulate_gradients_in_float32_and_undo_the_scale_of_the_loss(small, half, scale):
    kept = {}
    for precision, factor in (("float32", 1.0), (half, scale)):
        model, objective, dtypes = small.Model(0.0), small.Objective(), []
        torch.manual_seed(0)
        for parameter in (*model.parameters(), *objective.parameters()):
            torch.nn.init.normal_(parameter, std=0.5)
        model.image[0].register_forward_hook(lambda module, args, out, dtypes=dtypes: dtypes.append(out.dtype))
        train_step(model, objective, small.inputs(0), StepOptions(chunk=5, precision=precision, loss_scale=factor))
        kept[precision] = gradients(model, objective)
        assert set(dtypes) == {getattr(torch, precision)}
    for name, exact in kept["float32"].items():
        rough = kept[half][name]
        assert rough.dtype == torch.float32
        assert not torch.equal(rough, exact) or exact.abs().max() == 0
        torch.testing.assert_close(rough, exact, rtol=0.1, atol=0.03)
