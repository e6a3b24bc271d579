"""Models that cannot be opened give a one-line error: what, where, what to do."""

import json
import os
import shutil
import socket
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, BertConfig, BertModel, ViTConfig, ViTModel

from recollect.classifiers.texts import prompt_ensemble
from recollect.core.checksums import read_checksums, write_folder_checksums
from recollect.core.errors import UserError
from recollect.models import build_model, load_model
from recollect.models.hub import hub_or_cache

TOWER = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}


@pytest.fixture
def copied(checkpoint, tmp_path):
    """Return a function that copies a family's checkpoint."""

    def copy(family):
        return shutil.copytree(checkpoint(family), tmp_path / family)

    return copy


def load_error(name) -> str:
    with pytest.raises(UserError) as caught:
        load_model(name, "cpu")
    message = str(caught.value)
    assert "\n" not in message
    assert str(name) in message
    return message


@pytest.mark.parametrize(
    ("family", "dtype"), [("tiny-conv", torch.float64), ("siglip", torch.float64), ("clip", torch.bfloat16)]
)
def test_the_default_dtype_and_inference_mode_do_not_affect_a_loaded_model(family, dtype, checkpoint, tmp_path):
    """Users may work in float64 or without gradients."""
    place = tmp_path / "model"
    if family == "tiny-conv":
        build_model("tiny-conv", texts=["a cat"]).save(place)
    else:
        place = checkpoint(family)
    model, pixels = load_model(place, "cpu"), np.random.default_rng(0).integers(0, 256, (2, 40, 40, 3), dtype=np.uint8)
    expected = model.embed_images(pixels)
    torch.set_default_dtype(dtype)
    try:
        with torch.inference_mode():
            opened = load_model(place, "cpu")
            assert torch.equal(opened.embed_images(pixels), expected)
            assert prompt_ensemble(opened, [["a", "b"], ["c"]]).dtype == np.float32
            assert (opened.fingerprint, opened.dtype) == (model.fingerprint, torch.float32)
            assert torch.get_default_dtype() == dtype
    finally:
        torch.set_default_dtype(torch.float32)
    opened.encode_texts(opened.tokenize(["a cat"])).sum().backward()


@pytest.mark.parametrize("tower", ["image", "text"])
def test_nonfinite_embeddings_are_rejected(tower, captions, pictures):
    """Ranking or argmax over NaN would look like a valid result."""
    model = build_model("tiny-conv", texts=captions, seed=0)
    with torch.no_grad():
        next(model.tower_parameters(tower)).view(-1)[0] = torch.nan
    with pytest.raises(UserError, match="not finite"):
        model.embed_images(pictures) if tower == "image" else model.embed_texts(captions)


def test_an_unavailable_device_is_rejected(captions, tmp_path):
    place = build_model("vector-linear", texts=captions).save(tmp_path / "model")
    with pytest.raises(UserError, match=r"--device hpu: cannot be used here\. This machine has"):
        load_model(place, "hpu")


def test_a_typo_in_a_local_path_does_not_query_the_hub(tmp_path, monkeypatch):
    (tmp_path / "runs" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: pytest.fail("queried the hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    assert "Did you mean runs/model?" in load_error("runs/modle")
    with pytest.raises(UserError, match="runs/mmm"), hub_or_cache(f"runs/{'m' * 300}"):
        pass  # longer than the file system's limit
    assert "Did you mean runs/model?" in load_error("./runs/modle")
    with pytest.raises(UserError, match="Did you mean runs/model"):
        build_model("tiny", texts=None, tokenizer="runs/modle")


def test_a_cached_hub_id_is_used_despite_a_local_folder_named_like_its_owner(tmp_path, monkeypatch):
    (tmp_path / "some-lab" / "other").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    queried = []
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda _, name, **__: queried.append(name))
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda name, file: f"{name}/{file}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with hub_or_cache("some-lab/some-model"):
        pass
    assert queried == ["some-lab/some-model"]


def test_an_unreachable_hub_id_gives_advice_to_download():
    message = load_error("some-lab/some-model")
    assert "hf download some-lab/some-model --local-dir FOLDER" in message


@pytest.mark.parametrize("name", ["tiny", "nowhere", "RUN", "RUN/run", "RUN/config.json"])
def test_paths_without_a_model_are_rejected(name, tmp_path):
    (tmp_path / "run" / "model").mkdir(parents=True)
    (tmp_path / "config.json").write_text("{}")
    load_error(name.replace("RUN", str(tmp_path)))


@pytest.mark.parametrize("model", [lambda: BertModel(BertConfig(**TOWER)), lambda: ViTModel(ViTConfig(**TOWER))])
def test_a_single_tower_is_rejected(model, tmp_path):
    model().save_pretrained(tmp_path / "tower")
    load_error(tmp_path / "tower")


def without_weights(folder, prefix):
    weights = load_file(folder / "model.safetensors")
    kept = {name: each for name, each in weights.items() if not name.startswith(prefix)}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})


def with_another_vocabulary(folder):
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["vocab_size"] = 40
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    weights["text_model.embeddings.token_embedding.weight"] = torch.randn(40, 32)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def with_another_processor(folder):
    name = "processor_config.json" if (folder / "processor_config.json").exists() else "preprocessor_config.json"
    config = json.loads((folder / name).read_text())
    config.get("image_processor", config)["do_rescale"] = False
    (folder / name).write_text(json.dumps(config))


def without_tokenizer(folder):
    for file in folder.iterdir():
        if "tokenizer" in file.name or "vocab" in file.name or "merges" in file.name:
            file.unlink()


def written(name, text):
    return lambda folder: (folder / name).write_text(text)


def cut_off(keep):
    file = "model.safetensors"
    return lambda folder: (folder / file).write_bytes((folder / file).read_bytes()[:keep])


BROKEN = [
    *(written("config.json", text) for text in ("{", "{}", '{"model_type": "no-such-type"}', "[1]")),
    *(written("recollect.json", text) for text in ("{", "[]", '{"name": 1}', '{"format": 99}')),
    written("recollect.json", '{"format": 1, "text": {"padding": "longest"}}'),
    *(cut_off(keep) for keep in (0, 7, 100, -100)),
    lambda folder: without_weights(folder, "text_projection"),
    lambda folder: (folder / "model.safetensors").unlink(),
    lambda folder: (folder / "config.json").unlink(),
    without_tokenizer,
    with_another_vocabulary,
    with_another_processor,
]


@pytest.mark.parametrize("damage", BROKEN)
def test_a_damaged_checkpoint_is_rejected(damage, copied):
    folder = copied("clip")
    damage(folder)
    load_error(folder)


def test_a_pickle_is_never_opened(copied):
    class Trap:
        def __reduce__(self):
            return (open, (str(folder / "opened"), "w"))

    folder = copied("clip")
    (folder / "model.safetensors").unlink()
    torch.save(Trap(), folder / "pytorch_model.bin")
    message = load_error(folder)
    assert "opening a pickle can run code" in message
    assert ".save_pretrained('FOLDER')" in message
    assert not (folder / "opened").exists()


def test_the_conversion_advice_for_a_pickle_works(checkpoint, copied, captions):
    folder = copied("clip")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    load_error(folder)
    AutoModel.from_pretrained(folder).save_pretrained(folder)
    expected = load_model(checkpoint("clip"), "cpu").embed_texts(captions)
    assert torch.equal(load_model(folder, "cpu").embed_texts(captions), expected)


def test_a_model_card_has_no_checksum_and_stays_editable(tmp_path):
    (tmp_path / "README.md").write_text("a card")
    (tmp_path / "weights").write_bytes(b"12")
    write_folder_checksums(tmp_path)
    assert set(read_checksums(tmp_path)) == {"weights"}


def test_a_damaged_small_model_is_rejected(captions, tmp_path):
    folder = build_model("vector-linear", texts=captions).save(tmp_path / "model")
    record, weights = json.loads((folder / "recollect.json").read_text()), (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    assert "model.safetensors: differs from its checksum" in load_error(folder)
    sums = (folder / "checksums.json").read_text()
    (folder / "checksums.json").unlink()
    load_model(folder, "cpu")  # deleting the checksums accepts a deliberate change
    (folder / "checksums.json").write_text(sums)
    (folder / "model.safetensors").write_bytes(weights)
    other = [*record["vocabulary"][:-1], "another"]
    (folder / "recollect.json").write_text(json.dumps(record | {"vocabulary": other}))
    assert "recollect.json: differs from its checksum" in load_error(folder)
    (folder / "recollect.json").write_text(json.dumps(record | {"vocabulary": record["vocabulary"][:-1]}))
    assert "do not match" in load_error(folder)
    (folder / "recollect.json").write_text(json.dumps({"format": 1, "architecture": "vectors"}))
    assert "a vectors model" in load_error(folder)
    (folder / "recollect.json").write_text(json.dumps({"format": 1, "architecture": "vectors", "preset": "vector-mlp"}))
    assert "do not match" in load_error(folder)
    (folder / "model.safetensors").write_bytes(b"half")
    assert "model.safetensors is missing or damaged" in load_error(folder)


def test_a_checkpoint_with_separate_image_processor_and_tokenizer_opens(copied, captions):
    """Older checkpoints on the hub have no processor that joins them."""
    folder = copied("vit_bert")
    expected = load_model(folder, "cpu").embed_texts(captions)
    config = json.loads((folder / "processor_config.json").read_text())
    (folder / "preprocessor_config.json").write_text(json.dumps(config["image_processor"]))
    (folder / "processor_config.json").unlink()
    assert torch.equal(load_model(folder, "cpu").embed_texts(captions), expected)


def test_a_half_precision_checkpoint_opens_in_float32(copied):
    folder = copied("siglip")
    weights = {name: tensor.half() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    encoder = load_model(folder, "cpu")
    assert encoder.dtype == torch.float32
    assert not encoder.training


def test_an_unresponsive_hub_is_queried_only_a_few_times(tmp_path):
    """The server accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        program = (
            "from recollect.models import hub, load_model; hub.TIMEOUT_SECONDS = 0.3\n"
            "from recollect.data.sources import files; files._HUB_SECONDS = 0.3\n"
            "for open_it, name in (load_model, 'MODLE'), (load_model, 'runs/none'), (files.open_tables, 'no/set'):\n"
            "    try: open_it(name)\n"
            "    except Exception as error: print(type(error).__name__, error)\n"
        )
        hub = {"HF_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}", "HF_HOME": str(tmp_path)}
        kept = {key: value for key, value in os.environ.items() if "OFFLINE" not in key and "proxy" not in key.lower()}
        done = subprocess.run(
            [sys.executable, "-c", program], env=kept | hub, capture_output=True, text=True, timeout=300
        )
        silent.setblocking(False)
        calls = 0
        with suppress(BlockingIOError):
            while True:
                silent.accept()[0].close()
                calls += 1
    lines = done.stdout.strip().splitlines()
    assert len(lines) == 3, done.stderr
    assert calls <= 4
    assert all(line.startswith("UserError ") for line in lines)
    assert all("no such folder, and the hub does not answer" in line for line in lines[:2])
    assert "no/set" in lines[2]
    assert "no/set: the hub does not answer" in done.stderr
