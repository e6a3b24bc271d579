"""Low-rank adapters against PEFT, against plain autograd and against one query at a time."""

import copy
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from recollect.core.errors import UserError
from recollect.models import build_model, load_model
from recollect.models.lora.files import load_adapters, save_adapters
from recollect.models.lora.first_step import FirstStep
from recollect.models.lora.layers import (
    AdapterOptions,
    Adapters,
    adapted,
    adapter_sites,
    initial_adapters,
    merge_adapters,
)

BLOCK = {
    "clip": ["k_proj", "v_proj", "q_proj", "out_proj", "fc1", "fc2"],
    "bert": ["query", "key", "value", "dense", "dense", "dense"],
    "vit": ["q_proj", "k_proj", "v_proj", "o_proj", "fc1", "fc2"],
}
TOWERS = {  # (image, text)
    "clip": ("clip", "clip"),
    "siglip": ("clip", "clip"),
    "naflex": ("clip", "clip"),
    "vit_bert": ("vit", "bert"),
    "swin_clip": ("vit", "clip"),
}


@pytest.fixture
def encoder(checkpoint, family):
    model = load_model(checkpoint(family), "cpu").double()
    return model.requires_grad_(False)


def randomised(sites, queries, seed=0, rank=3):
    """Adapters with nothing zero, one set for each query (or one set for all)."""
    generator = torch.Generator().manual_seed(seed)
    lead = () if queries is None else (queries,)

    def draw(*shape):
        return torch.randn(*lead, *shape, generator=generator, dtype=torch.float64) * 0.3

    down = {name: draw(rank, layer.in_features) for name, layer in sites.items()}
    up = {name: draw(layer.out_features, rank) for name, layer in sites.items()}
    return Adapters(down, up, 0.7)


def both_towers(encoder, pixels, texts):
    return encoder.encode_images(pixels.double()), encoder.encode_texts(encoder.tokenize(texts))


def peft_copy(encoder, adapters):
    """The same change made by PEFT on a copy of the model."""
    from peft import LoraConfig, inject_adapter_in_model

    other = copy.deepcopy(encoder)
    rank = len(next(iter(adapters.down.values())))
    config = LoraConfig(r=rank, lora_alpha=adapters.scale * rank, target_modules=list(adapters.down))
    inject_adapter_in_model(config, other.model)
    modules = dict(other.model.named_modules())
    with torch.no_grad():
        for name in adapters.down:
            modules[name].lora_A["default"].weight.copy_(adapters.down[name])
            modules[name].lora_B["default"].weight.copy_(adapters.up[name])
    return other.double()


def test_every_attention_and_mlp_layer_of_every_block_is_a_site_and_nothing_else(encoder, family):
    names = list(adapter_sites(encoder))
    for tower, kind in zip(("vision_model.", "text_model."), TOWERS[family], strict=True):
        found = sorted(name.rpartition(".")[2] for name in names if name.startswith(tower))
        assert found == sorted(2 * BLOCK[kind])


def test_a_model_without_blocks_says_so():
    small = build_model("vector-mlp", texts=["a b c"])
    with pytest.raises(UserError, match="no attention or MLP layers"):
        adapter_sites(small)


def test_the_sites_of_the_patch_tower_are_its_head_and_the_text_head():
    small = build_model("patches", texts=["a b c"])
    heads = [f"image_tower.1.{name}" for name in ("linear", "residual.1", "residual.3")]
    assert list(adapter_sites(small)) == [*heads, "text_head.0", "text_head.2"]


def test_one_set_computes_what_peft_computes(encoder, pixels, captions):
    adapters = randomised(adapter_sites(encoder), None)
    with torch.no_grad(), adapted(encoder, adapters):
        ours = both_towers(encoder, pixels, captions)
    with torch.no_grad():
        theirs = both_towers(peft_copy(encoder, adapters), pixels, captions)
        plain = both_towers(encoder, pixels, captions)
    for mine, wanted, before in zip(ours, theirs, plain, strict=True):
        torch.testing.assert_close(mine, wanted, atol=1e-12, rtol=1e-12)
        assert (mine - before).abs().max() > 1e-3


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("each", [1, 3])
def test_many_sets_are_each_query_by_itself(encoder, captions, grad, each):
    """With 3 pictures each query's weights are made; with one row of text its rows pass through A and B."""
    sites = adapter_sites(encoder)
    adapters = randomised(sites, 2)
    images = torch.randn(2 * each, 3, 32, 32, generator=torch.Generator().manual_seed(2)).double()
    texts = captions[: 2 * each]
    with torch.set_grad_enabled(grad), adapted(encoder, adapters):
        together = both_towers(encoder, images, texts)
    for query in range(2):
        mine = slice(query * each, (query + 1) * each)
        with torch.no_grad(), adapted(encoder, adapters.of(query)):
            alone = both_towers(encoder, images[mine], texts[mine])
        for all_rows, rows in zip(together, alone, strict=True):
            torch.testing.assert_close(all_rows[mine], rows, atol=1e-12, rtol=1e-12)


def test_one_a_may_serve_every_query(encoder, pixels):
    adapters = randomised(adapter_sites(encoder), 5)
    shared = Adapters({name: each[0] for name, each in adapters.down.items()}, adapters.up, adapters.scale)
    spread = Adapters({name: each.expand(5, -1, -1) for name, each in shared.down.items()}, shared.up, shared.scale)
    with torch.no_grad():
        with adapted(encoder, shared):
            one = encoder.encode_images(pixels.double())
        with adapted(encoder, spread):
            many = encoder.encode_images(pixels.double())
    torch.testing.assert_close(one, many, atol=1e-12, rtol=1e-12)


def test_merging_is_the_same_change(encoder, pixels, captions):
    adapters = randomised(adapter_sites(encoder), None)
    with torch.no_grad(), adapted(encoder, adapters):
        wanted = both_towers(encoder, pixels, captions)
    merge_adapters(encoder, adapters)
    for mine, theirs in zip(both_towers(encoder, pixels, captions), wanted, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=1e-12)


def test_b_zero_starts_from_the_model_itself_and_xavier_does_not(encoder, pixels):
    sites = adapter_sites(encoder)
    with torch.no_grad():
        plain = encoder.encode_images(pixels.double())
        with adapted(encoder, initial_adapters(sites, AdapterOptions(rank=4))):
            assert torch.equal(encoder.encode_images(pixels.double()), plain)
        with adapted(encoder, initial_adapters(sites, AdapterOptions(rank=4, both_xavier=True))):
            assert not torch.allclose(encoder.encode_images(pixels.double()), plain)


def test_the_start_is_xavier_and_the_same_in_every_precision(checkpoint):
    encoder = load_model(checkpoint("siglip"), "cpu")
    sites = adapter_sites(encoder)
    single = initial_adapters(sites, AdapterOptions(rank=8, seed=3))
    double = initial_adapters(adapter_sites(encoder.double()), AdapterOptions(rank=8, seed=3))
    other = initial_adapters(sites, AdapterOptions(rank=8, seed=4))
    for name, down in single.down.items():
        bound = (6 / (8 + down.shape[1])) ** 0.5
        assert 0.8 * bound < down.abs().max() <= bound
        assert torch.equal(down.float(), double.down[name].float())
        assert not torch.equal(down, other.down[name])


def test_the_model_is_untouched_even_after_an_error(encoder, pixels):
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    attributes = {name: set(vars(module)) for name, module in encoder.named_modules()}
    with pytest.raises(KeyboardInterrupt), adapted(encoder, randomised(adapter_sites(encoder), 5)):
        encoder.encode_images(pixels.double())
        raise KeyboardInterrupt
    after = encoder.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert {name: set(vars(module)) for name, module in encoder.named_modules()} == attributes


def test_rows_that_are_not_equal_runs_are_refused(checkpoint, pixels):
    encoder = load_model(checkpoint("siglip"), "cpu").double()
    adapters = randomised(adapter_sites(encoder), 2)
    with pytest.raises(ValueError, match="5 rows cannot be shared out"), adapted(encoder, adapters):
        encoder.encode_images(pixels.double())


def test_the_first_gradient_is_each_query_s_own(encoder, captions):
    """Queries share pictures and captions; each one's gradient of B is autograd's on its own rows alone."""
    sites = adapter_sites(encoder)
    start = initial_adapters(sites, AdapterOptions(rank=3, scale=0.4))
    generator = torch.Generator().manual_seed(5)
    images = torch.randn(4, 3, 32, 32, generator=generator).double()
    tokens = encoder.tokenize(captions[:4])
    lists = torch.tensor([[0, 1, 2], [1, 2, 3], [2, 0, 1]])  # rows of the union that each query counts
    weights = torch.randn(2, 3, 3, encoder.width, generator=generator).double()

    collector = FirstStep(sites, start, 3)
    with collector.recording():
        outputs = encoder.encode_images(images), encoder.encode_texts(tokens)
    for raw, own in zip(outputs, weights, strict=True):
        for query in range(3):  # one pass a query: rows that it does not count have no gradient
            gradients = torch.zeros_like(raw).index_add(0, lists[query], own[query])
            collector.backward(raw, gradients, torch.full((4,), query), keep=True)

    for query in range(3):
        up = {name: each.clone().requires_grad_() for name, each in start.up.items()}
        with adapted(encoder, Adapters(start.down, up, start.scale)):
            raw_images = encoder.encode_images(images)[lists[query]]
            raw_texts = encoder.encode_texts(tokens)[lists[query]]
        loss = (raw_images * weights[0, query]).sum() + (raw_texts * weights[1, query]).sum()
        for name, wanted in zip(up, torch.autograd.grad(loss, list(up.values())), strict=True):
            torch.testing.assert_close(collector.gradient[name][query], wanted, atol=1e-12, rtol=1e-10)


def test_rows_in_the_order_of_the_queries_give_the_same_gradient(checkpoint, captions):
    """The fast path, one product for all queries, against rows that must be put in order first."""
    encoder = load_model(checkpoint("clip"), "cpu").double().requires_grad_(False)
    sites = adapter_sites(encoder)
    start = initial_adapters(sites, AdapterOptions(rank=3))
    tokens = encoder.tokenize(captions)
    gradients = torch.randn(6, encoder.width, generator=torch.Generator().manual_seed(0)).double()
    found = []
    for order in ([0, 1, 2, 3, 4, 5], [5, 0, 3, 1, 4, 2]):
        collector = FirstStep(sites, start, 2)
        with collector.recording():
            raw = encoder.encode_texts({name: each[order] for name, each in tokens.items()})
        collector.backward(raw, gradients[order], torch.tensor([0, 0, 0, 1, 1, 1])[order])
        found.append(collector.gradient)
    for name in sites:
        torch.testing.assert_close(found[0][name], found[1][name], atol=1e-13, rtol=1e-11)


def test_the_short_cut_refuses_another_start(checkpoint):
    sites = adapter_sites(load_model(checkpoint("clip"), "cpu"))
    with pytest.raises(ValueError, match="from B = 0 only"):
        FirstStep(sites, initial_adapters(sites, AdapterOptions(rank=2, both_xavier=True)), 2)


def test_an_exported_adapter_opens_in_peft(checkpoint, family, pixels, tmp_path):
    from peft import PeftModel

    encoder = load_model(checkpoint(family), "cpu").double()
    adapters = randomised(adapter_sites(encoder), 2)
    folder = save_adapters(tmp_path / "adapter", adapters.of(1), base="somewhere")
    with torch.no_grad(), adapted(encoder, adapters.of(1)):
        wanted = encoder.encode_images(pixels.double())
    opened = load_adapters(folder, encoder)
    assert opened.scale == pytest.approx(0.7)
    with torch.no_grad(), adapted(encoder, opened):
        torch.testing.assert_close(encoder.encode_images(pixels.double()), wanted, atol=1e-12, rtol=1e-12)
    encoder.model = PeftModel.from_pretrained(encoder.model, folder).base_model.model.double()
    with torch.no_grad():
        torch.testing.assert_close(encoder.encode_images(pixels.double()), wanted, atol=1e-6, rtol=1e-5)


def test_an_adapter_that_peft_wrote_opens_here(checkpoint, pixels, tmp_path):
    from peft import LoraConfig, get_peft_model

    encoder = load_model(checkpoint("clip"), "cpu")
    other = copy.deepcopy(encoder)
    config = LoraConfig(
        r=4, lora_alpha=6, use_rslora=True, target_modules=["q_proj", "v_proj"], init_lora_weights=False
    )
    wrapped = get_peft_model(other.model, config).eval()
    wrapped.save_pretrained(str(tmp_path / "adapter"))
    adapters = load_adapters(tmp_path / "adapter", encoder)
    assert adapters.scale == pytest.approx(6 / 4**0.5)
    assert {name.rpartition(".")[2] for name in adapters.down} == {"q_proj", "v_proj"}
    with torch.no_grad(), adapted(encoder, adapters):
        torch.testing.assert_close(encoder.encode_images(pixels), other.encode_images(pixels), atol=1e-5, rtol=1e-5)


@pytest.fixture
def exported(checkpoint, tmp_path):
    encoder = load_model(checkpoint("clip"), "cpu")
    adapters = randomised(adapter_sites(encoder), None)
    return encoder, save_adapters(tmp_path / "adapter", adapters, about={"base": "a"})


@pytest.fixture
def of_peft(exported):
    """As PEFT leaves it."""
    (exported[1] / "adapted.json").unlink()
    return exported


def edit(folder, **changes):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "IA3"}, "a IA3 adapter. Only LoRA"),
        ({"use_dora": True}, "with use_dora"),
        ({"bias": "all"}, "with bias"),
    ],
)
def test_other_kinds_of_adapters_are_refused(of_peft, changes, message):
    encoder, folder = of_peft
    edit(folder, **changes)
    with pytest.raises(UserError, match=message):
        load_adapters(folder, encoder)


def test_damaged_or_foreign_adapters_are_refused(of_peft, checkpoint, tmp_path):
    encoder, folder = of_peft
    with pytest.raises(UserError, match=r"no adapter_config\.json"):
        load_adapters(tmp_path, encoder)
    with pytest.raises(UserError, match="another model"):
        load_adapters(folder, load_model(checkpoint("vit_bert"), "cpu"))
    weights = load_file(folder / "adapter_model.safetensors")
    short = {name: tensor[..., :5].contiguous() for name, tensor in weights.items()}
    save_file(short, folder / "adapter_model.safetensors")
    with pytest.raises(UserError, match=r"another model|other weights"):
        load_adapters(folder, encoder)
    save_file({**weights, "base_model.model.text_model.bias": torch.zeros(3)}, folder / "adapter_model.safetensors")
    with pytest.raises(UserError, match="other weights"):
        load_adapters(folder, encoder)
    (folder / "adapter_model.safetensors").write_bytes(b"cut short")
    with pytest.raises(UserError, match="missing or damaged"):
        load_adapters(folder, encoder)
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(UserError, match="missing or damaged"):
        load_adapters(folder, encoder)


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json", "adapted.json"])
def test_a_flipped_bit_in_an_adapter_is_no_other_adapter(exported, name):
    encoder, folder = exported
    (folder / "README.md").write_text("a card, which people may write and change")
    load_adapters(folder, encoder)
    held = (folder / name).read_bytes()
    place = len(held) - 1 if name.endswith("safetensors") else held.index(b'"base') + 1
    (folder / name).write_bytes(held[:place] + bytes([held[place] ^ 1]) + held[place + 1 :])
    with pytest.raises(UserError, match=rf"{name}: was changed or damaged \(its checksum differs\)"):
        load_adapters(folder, encoder)
    for wrong in ("[]", '{"files": 1'):
        (folder / "adapted.json").write_text(wrong)
        with pytest.raises(UserError, match=r"adapted\.json: not"):
            load_adapters(folder, encoder)


def test_only_one_set_is_exported_and_over_nothing(exported, tmp_path):
    encoder, folder = exported
    sets = randomised(adapter_sites(encoder), 2)
    with pytest.raises(ValueError, match="2 sets"):
        save_adapters(tmp_path / "other", sets)
    with pytest.raises(UserError, match="already exists"):
        save_adapters(folder, sets.of(0))
    assert not (tmp_path / "other").exists()
