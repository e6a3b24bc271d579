"""Whatever cannot be opened as a model says so in one line: what, where, what to do."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, BertConfig, BertModel, ViTConfig, ViTModel

from recollect.classifiers.texts import prompt_ensemble
from recollect.core.checksums import sealed
from recollect.core.errors import UserError
from recollect.models import build_model, load_model
from recollect.models.hub import asked_once

TOWER = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}


@pytest.fixture
def copied(checkpoint, tmp_path):
    """A copy of a family's checkpoint, to be damaged."""

    def copy(family):
        return shutil.copytree(checkpoint(family), tmp_path / family)

    return copy


def refusal(name) -> str:
    with pytest.raises(UserError) as caught:
        load_model(name, "cpu")
    message = str(caught.value)
    assert "\n" not in message
    assert str(name) in message
    return message


@contextmanager
def default_dtype(dtype):
    """Within, and whether another thread that makes tensors meanwhile ever had another."""
    seen, done = set(), threading.Event()

    def make():
        while not done.wait(1e-4):
            seen.add(torch.empty(0).dtype)

    torch.set_default_dtype(dtype)
    other = threading.Thread(target=make)
    other.start()
    try:
        yield seen
    finally:
        done.set(), other.join()
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("family", "dtype"),
    [("tiny-conv", torch.float64), ("siglip", torch.float64), ("clip", torch.bfloat16), ("gated", torch.float64)],
)
def test_a_model_is_the_same_whatever_tensors_its_user_makes(family, dtype, checkpoint, tmp_path):
    """In float64, as in much of science, and where no gradients are wanted; other threads go on making theirs."""
    place = tmp_path / "model"
    if family == "tiny-conv":
        build_model("tiny-conv", texts=["a cat"]).save(place)
    elif family == "gated":
        gated = load_model(checkpoint("clip"), "cpu")
        gated.add_gated(0)
        gated.save(place)
    else:
        place = checkpoint(family)
    model, pixels = load_model(place, "cpu"), np.random.default_rng(0).integers(0, 256, (2, 40, 40, 3), dtype=np.uint8)
    expected = model.embed_images(pixels)
    with default_dtype(dtype) as seen, torch.inference_mode():
        opened = load_model(place, "cpu")
        assert torch.equal(opened.embed_images(pixels), expected)
        assert prompt_ensemble(opened, [["a", "b"], ["c"]]).dtype == np.float32
        assert (opened.fingerprint, opened.dtype) == (model.fingerprint, torch.float32)
    assert seen == {dtype}
    opened.encode_texts(opened.tokenize(["a cat"])).sum().backward()


def test_a_device_that_is_not_here(captions, tmp_path):
    place = build_model("vector-linear", texts=captions).save(tmp_path / "model")
    with pytest.raises(UserError, match=r"--device hpu: cannot be used here\. This machine has"):
        load_model(place, "hpu")


def test_no_such_folder(tmp_path):
    assert "nothing: no such folder" in refusal(tmp_path / "nothing")


def test_a_slip_in_a_local_path_is_no_question_to_the_hub(tmp_path, monkeypatch):
    (tmp_path / "runs" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: pytest.fail("asked the hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    assert "Did you mean runs/model?" in refusal("runs/modle")
    with pytest.raises(UserError, match="runs/mmm"), asked_once(f"runs/{'m' * 300}"):
        pass  # longer than a file's name may be
    assert "Did you mean runs/model?" in refusal("./runs/modle")
    with pytest.raises(UserError, match="Did you mean runs/model"):
        build_model("tiny", texts=None, tokenizer="runs/modle")


def test_what_was_fetched_before_is_a_hub_id_beside_a_folder_of_its_owners_name(tmp_path, monkeypatch):
    (tmp_path / "some-lab" / "other").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    asked = []
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda _, name, **__: asked.append(name))
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda name, file: f"{name}/{file}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with asked_once("some-lab/some-model"):
        pass
    assert asked == ["some-lab/some-model"]


def test_a_hub_id_that_cannot_be_reached():
    message = refusal("some-lab/some-model")
    assert "hf download some-lab/some-model --local-dir FOLDER" in message


def test_a_preset_is_no_model_yet():
    assert "tiny: a preset" in refusal("tiny")


def test_a_folder_without_a_config(tmp_path):
    assert "config.json" in refusal(tmp_path)


def test_a_file(copied):
    assert "config.json: a file" in refusal(copied("clip") / "config.json")


def test_the_folder_of_a_run_names_its_model(tmp_path):
    (tmp_path / "run" / "model").mkdir(parents=True)
    assert str(tmp_path / "run" / "model") in refusal(tmp_path / "run")


@pytest.mark.parametrize(
    ("kind", "model"),
    [("bert", lambda: BertModel(BertConfig(**TOWER))), ("vit", lambda: ViTModel(ViTConfig(**TOWER)))],
)
def test_a_checkpoint_of_one_tower(kind, model, tmp_path):
    model().save_pretrained(tmp_path / kind)
    assert f"a {kind} model, which has no image and text tower. Name a dual encoder" in refusal(tmp_path / kind)


@pytest.mark.parametrize("text", ["{", "{}", '{"model_type": "no-such-type"}', "[1]"])
def test_a_config_that_is_none(text, copied):
    folder = copied("clip")
    (folder / "config.json").write_text(text)
    assert "config.json cannot be read" in refusal(folder)


@pytest.mark.parametrize("keep", [0, 7, 100, -100])
def test_weights_that_were_cut_off(keep, copied):
    file = copied("siglip") / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    assert "its weights cannot be read" in refusal(file.parent)


def test_weights_that_are_missing_are_counted(copied):
    folder = copied("vit_bert")
    weights = load_file(folder / "model.safetensors")
    gone = sorted(name for name in weights if name.startswith("text_projection"))
    save_file(
        {name: weights[name] for name in weights if name not in gone}, folder / "model.safetensors", {"format": "pt"}
    )
    assert f"1 weights are missing, such as {gone[0]}" in refusal(folder)


def test_no_weights_at_all(copied):
    folder = copied("clip")
    (folder / "model.safetensors").unlink()
    assert "no model.safetensors" in refusal(folder)


def test_a_pickle_is_never_opened(copied):
    class Trap:
        def __reduce__(self):
            return (open, (str(folder / "opened"), "w"))

    folder = copied("clip")
    (folder / "model.safetensors").unlink()
    torch.save(Trap(), folder / "pytorch_model.bin")
    message = refusal(folder)
    assert "opening a pickle can run code" in message
    assert ".save_pretrained('FOLDER')" in message
    assert not (folder / "opened").exists()


def test_the_advice_for_a_pickle_works(checkpoint, copied, captions):
    folder = copied("clip")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    refusal(folder)
    AutoModel.from_pretrained(folder).save_pretrained(folder)
    expected = load_model(checkpoint("clip"), "cpu").embed_texts(captions)
    assert torch.equal(load_model(folder, "cpu").embed_texts(captions), expected)


def test_a_tokenizer_that_is_missing(copied):
    folder = copied("vit_bert")
    for file in folder.iterdir():
        if "tokenizer" in file.name or "vocab" in file.name:
            file.unlink()
    assert "tokenizer cannot be opened" in refusal(folder)


def test_a_tokenizer_of_another_model(copied):
    folder = copied("clip")
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["vocab_size"] = 40
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    weights["text_model.embeddings.token_embedding.weight"] = torch.randn(40, 32)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert "a trial picture and text cannot be embedded" in refusal(folder)


def test_an_image_processor_that_nothing_here_can_do(copied):
    folder = copied("clip")
    name = "processor_config.json" if (folder / "processor_config.json").exists() else "preprocessor_config.json"
    config = json.loads((folder / name).read_text())
    config.get("image_processor", config)["do_rescale"] = False
    (folder / name).write_text(json.dumps(config))
    assert "its image processor does not scale pixels to 0…1" in refusal(folder)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("{", "recollect.json"),
        ("[]", "not written by recollect"),
        ('{"name": 1}', "not written by recollect"),
        ('{"format": 99}', "newer"),
        ('{"format": 1, "text": {"padding": "longest"}}', "not a dual encoder that can be used here"),
    ],
)
def test_a_record_that_is_damaged(record, message, copied):
    folder = copied("clip")
    (folder / "recollect.json").write_text(record)
    assert message in refusal(folder)


def test_a_models_card_stays_editable(tmp_path):
    (tmp_path / "README.md").write_text("a card")
    (tmp_path / "weights").write_bytes(b"12")
    assert set(sealed({}, tmp_path)["files"]) == {"weights"}


def test_a_damaged_small_model(captions, tmp_path):
    folder = build_model("vector-linear", texts=captions).save(tmp_path / "model")
    record, weights = json.loads((folder / "recollect.json").read_text()), (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    assert "model.safetensors: was changed or damaged (its checksum differs)" in refusal(folder)
    (folder / "recollect.json").write_text(
        json.dumps({key: record[key] for key in record if key not in ("files", "checksum")})
    )
    load_model(folder, "cpu")  # whoever changed it on purpose can say so
    (folder / "model.safetensors").write_bytes(weights)
    other = [*record["vocabulary"][:-1], "another"]
    (folder / "recollect.json").write_text(json.dumps(record | {"vocabulary": other}))
    assert "recollect.json: was changed or damaged (its checksum differs)" in refusal(folder)
    (folder / "recollect.json").write_text(json.dumps(record | {"vocabulary": record["vocabulary"][:-1]}))
    assert "do not fit together" in refusal(folder)
    (folder / "recollect.json").write_text(json.dumps({"format": 1, "architecture": "vectors"}))
    assert "a vectors model" in refusal(folder)
    (folder / "recollect.json").write_text(json.dumps({"format": 1, "architecture": "vectors", "preset": "vector-mlp"}))
    assert "do not fit together" in refusal(folder)
    (folder / "model.safetensors").write_bytes(b"half")
    assert "model.safetensors is missing or damaged" in refusal(folder)


def test_a_checkpoint_with_its_two_processors_apart_opens(copied, captions):
    """As older ones on the hub are: nothing joins the image processor and the tokenizer."""
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


def test_a_hub_that_does_not_answer_is_not_asked_again_and_again(tmp_path):
    """A server that takes the call and stays silent."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        program = (
            "from recollect.models import hub, load_model; hub.SECONDS = 0.3\n"
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
