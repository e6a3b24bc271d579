"""Adapters of many queries at once, compared with single queries and plain autograd."""

import pytest
import torch

from dual_encoders import sentences
from recollect.efsa.adapters import Adapters, FirstStep, adapted
from recollect.models.lora import AdapterOptions, adapter_sites, initial_weights


@pytest.fixture
def encoder(make_encoder, family):
    return make_encoder(family).double().requires_grad_(False)


@pytest.fixture
def pixels(encoder):
    return draw_pixels(encoder, 5)


def draw_pixels(encoder, rows, seed=2):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 3, encoder.transform.size, encoder.transform.size, generator=generator).double()


def begin(sites, **options):
    options = AdapterOptions(**options)
    return Adapters(*initial_weights(sites, options), options.scale)


def randomized(sites, queries, seed=0, rank=3):
    """Return random nonzero adapters."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * 0.3

    down = {name: draw(rank, layer.in_features) for name, layer in sites.items()}
    return Adapters(down, {name: draw(queries, layer.out_features, rank) for name, layer in sites.items()}, 0.7)


def only(adapters, query):
    return Adapters(adapters.down, {name: each[[query]] for name, each in adapters.up.items()}, adapters.scale)


def both_towers(encoder, pixels, texts):
    return encoder.encode_images(pixels.double()), encoder.encode_texts(encoder.tokenize(texts))


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("each", [1, 3])
def test_adapting_many_queries_at_once_equals_one_at_a_time(encoder, grad, each):
    """With 3 rows per query, the adapted weights are materialized; with one, the row passes through A and B."""
    sites = adapter_sites(encoder)
    adapters = randomized(sites, 2)
    images = draw_pixels(encoder, 2 * each)
    texts = sentences(2 * each)
    with torch.set_grad_enabled(grad), adapted(sites, adapters):
        together = both_towers(encoder, images, texts)
    for query in range(2):
        own = slice(query * each, (query + 1) * each)
        with torch.no_grad(), adapted(sites, only(adapters, query)):
            alone = both_towers(encoder, images[own], texts[own])
        for all_rows, rows in zip(together, alone, strict=True):
            torch.testing.assert_close(all_rows[own], rows, atol=1e-12, rtol=1e-12)


def test_the_model_is_unchanged_even_after_an_error(encoder, pixels):
    sites = adapter_sites(encoder)
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    attributes = {name: set(vars(module)) for name, module in encoder.named_modules()}
    with pytest.raises(KeyboardInterrupt), adapted(sites, randomized(sites, 5)):
        encoder.encode_images(pixels.double())
        raise KeyboardInterrupt
    after = encoder.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert {name: set(vars(module)) for name, module in encoder.named_modules()} == attributes


def test_the_first_gradient_of_each_query_matches_autograd(encoder):
    """Although queries share pictures and captions, each gradient of B depends only on the query's rows."""
    sites = adapter_sites(encoder)
    start = begin(sites, rank=3, scale=0.4)
    generator = torch.Generator().manual_seed(5)
    images = draw_pixels(encoder, 4)
    tokens = encoder.tokenize(sentences(4))
    lists = torch.tensor([[0, 1, 2], [1, 2, 3], [2, 0, 1]])  # rows of each query in the union
    weights = torch.randn(2, 3, 3, encoder.width, generator=generator).double()

    collector = FirstStep(sites, start, 3)
    with collector.recording():
        outputs = encoder.encode_images(images), encoder.encode_texts(tokens)
    for raw, own in zip(outputs, weights, strict=True):
        for query in range(3):  # one pass per query; other queries' rows get zero gradient
            gradients = torch.zeros_like(raw).index_add(0, lists[query], own[query])
            collector.backward(raw, gradients, torch.full((4,), query), keep=True)

    for query in range(3):
        up = {name: each[None].clone().requires_grad_() for name, each in start.up.items()}
        with adapted(sites, Adapters(start.down, up, start.scale)):
            raw_images = encoder.encode_images(images)[lists[query]]
            raw_texts = encoder.encode_texts(tokens)[lists[query]]
        loss = (raw_images * weights[0, query]).sum() + (raw_texts * weights[1, query]).sum()
        for name, wanted in zip(up, torch.autograd.grad(loss, list(up.values())), strict=True):
            torch.testing.assert_close(collector.gradient[name][query], wanted[0], atol=1e-12, rtol=1e-10)
