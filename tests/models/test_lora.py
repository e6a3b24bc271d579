"""Low-rank adapters: which layers they change, by how much, and that PEFT opens saved adapters."""

import copy

import pytest
import torch

from recollect.core.errors import UserError
from recollect.models import build_model, load_model
from recollect.models.lora import AdapterOptions, adapter_sites, add_lora, initial_weights, load_lora, merged, save_lora

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


def both_towers(encoder, pixels, texts):
    return encoder.encode_images(pixels.double()), encoder.encode_texts(encoder.tokenize(texts))


def test_sites_are_exactly_the_attention_and_mlp_layers_of_all_blocks(encoder, family):
    names = list(adapter_sites(encoder))
    for tower, kind in zip(("vision_model.", "text_model."), TOWERS[family], strict=True):
        found = sorted(name.rpartition(".")[2] for name in names if name.startswith(tower))
        assert found == sorted(2 * BLOCK[kind])


def test_a_model_without_transformer_blocks_is_rejected():
    small = build_model("vector-linear", texts=["a b c"])
    with pytest.raises(UserError, match="no attention or MLP layers"):
        adapter_sites(small)


def randomized(sites, seed=0, rank=3):
    """Return random nonzero A and B."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * 0.3

    down = {name: draw(rank, layer.in_features) for name, layer in sites.items()}
    return down, {name: draw(layer.out_features, rank) for name, layer in sites.items()}


def changed(encoder, seed=0):
    """Return a copy of a model with random adapters of scale 0.7."""
    twin = copy.deepcopy(encoder)
    add_lora(twin, *randomized(adapter_sites(encoder), seed), 0.7)
    return twin


def test_adapters_add_scaled_ba_to_the_weights_before_and_after_merging(encoder, pixels, captions):
    by_hand = copy.deepcopy(encoder)
    down, up = randomized(adapter_sites(encoder))
    for name, layer in adapter_sites(by_hand).items():
        layer.weight.data += 0.7 * up[name] @ down[name]
    adapted = changed(encoder)
    with torch.no_grad():
        wanted, plain = (both_towers(each, pixels, captions) for each in (by_hand, encoder))
        for model in (adapted, merged(adapted)):
            for found, right, before in zip(both_towers(model, pixels, captions), wanted, plain, strict=True):
                torch.testing.assert_close(found, right, atol=1e-12, rtol=1e-12)
                assert (found - before).abs().max() > 1e-3
    assert merged(adapted).state_dict().keys() == encoder.state_dict().keys()


def test_only_the_adapters_learn(encoder):
    adapted = changed(encoder.requires_grad_(True))
    learning = [name for name, each in adapted.named_parameters() if each.requires_grad]
    assert len(learning) == 2 * len(adapter_sites(encoder))
    assert all("lora_" in name for name in learning)


def test_initialization_is_xavier_and_the_same_in_every_precision(checkpoint):
    encoder = load_model(checkpoint("siglip"), "cpu")
    sites = adapter_sites(encoder)
    single, ups = initial_weights(sites, AdapterOptions(rank=8, seed=3))
    assert not any(up.any() for up in ups.values())  # an untrained adapter does not change the model
    double, _ = initial_weights(adapter_sites(encoder.double()), AdapterOptions(rank=8, seed=3))
    other, _ = initial_weights(sites, AdapterOptions(rank=8, seed=4))
    for name, down in single.items():
        bound = (6 / (8 + down.shape[1])) ** 0.5
        assert 0.8 * bound < down.abs().max() <= bound
        assert torch.equal(down.float(), double[name].float())
        assert not torch.equal(down, other[name])


def test_saved_adapters_open_here_and_in_peft(encoder, pixels, tmp_path):
    from peft import PeftModel

    adapted = changed(encoder)
    save_lora(tmp_path / "adapter", adapted, "somewhere")
    again = copy.deepcopy(encoder)
    load_lora(tmp_path / "adapter", again)
    held = again.state_dict()
    assert all(torch.equal(each, held[name]) for name, each in adapted.state_dict().items())
    with torch.no_grad():
        wanted = adapted.encode_images(pixels.double())
        theirs = copy.deepcopy(encoder)
        theirs.model = PeftModel.from_pretrained(theirs.model, tmp_path / "adapter").base_model.model.double()
        torch.testing.assert_close(theirs.encode_images(pixels.double()), wanted, atol=1e-6, rtol=1e-5)
