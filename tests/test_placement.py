"""Everything runs on a (simulated) GPU and gives the CPU's results."""

import json
import shlex
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import one_hot

from pictures import picture
from recollect.cli import main
from recollect.models import build_model
from recollect.training.loop import train
from recollect.training.recipes import RECIPES
from simulated_gpu import GPU, simulated_gpu

pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument", "ignore:User provided device_type of 'cuda'")


def test_the_simulated_gpu_rejects_what_a_real_one_rejects():
    with simulated_gpu() as device:
        on_gpu, on_cpu = torch.ones(4, 3, device=device).requires_grad_(), torch.randn(4, 3)
        assert on_gpu.device == GPU
        for wrong in (
            lambda: on_gpu + on_cpu,
            lambda: torch.cat([on_cpu, on_gpu]),
            lambda: on_cpu[torch.zeros(1, dtype=torch.long, device=device)],
            lambda: torch.randn(3, generator=torch.Generator(), device=device),
            lambda: np.asarray(on_gpu.detach()),
        ):
            with pytest.raises((RuntimeError, TypeError), match="GPU"):
                wrong()
        rows = on_gpu[torch.tensor([1, 1])] * torch.tensor(2.0) @ on_cpu.to(device).T
        (gradient,) = torch.autograd.grad(rows.cpu().sum(), on_gpu)
        assert gradient.device == GPU
        assert torch.allclose(gradient.cpu(), one_hot(torch.tensor([1]), 4).T * 4 * on_cpu.sum(0))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """Folder of sixteen captioned pictures in two classes, and a small model."""
    folder = tmp_path_factory.mktemp("placement")
    lines = ["path,caption"]
    for name, first in (("dark", 0), ("bright", 8)):
        (folder / "pictures" / name).mkdir(parents=True)
        for i in range(8):
            picture(15 * (first + i)).save(folder / "pictures" / name / f"{i}.png")
            lines.append(f"pictures/{name}/{i}.png,a {name} square number {i}")
    (folder / "pairs.csv").write_text("\n".join(lines))
    build_model("tiny-conv", texts=lines, seed=0, prefixes=("caption", "label")).save(folder / "model")
    return folder


@pytest.mark.parametrize(
    ("name", "changes"), [("latents-siglixp", {}), ("siglixp-tiny", {"chunk": 4, "average": 0.5}), ("prefix-tiny", {})]
)
def test_training_on_a_gpu_gives_the_same_weights_as_on_the_cpu(name, changes, workspace, tmp_path):
    recipe = replace(RECIPES[name](), steps=2, batch_size=8, log_every=1, **changes)
    if not recipe.data.sources:
        recipe = replace(recipe, data=replace(recipe.data, sources=(f"{workspace}/pairs.csv", f"{workspace}/pictures")))
    whole = load_file(train(recipe, tmp_path / "cpu", device="cpu") / "model.safetensors")
    with simulated_gpu() as device:
        if "chunk" in changes:  # also resume from a checkpoint
            train(replace(recipe, steps=1), tmp_path / "gpu", device=device)
        folder = train(recipe, tmp_path / "gpu", device=device, resume=True)
    found = load_file(folder / "model.safetensors")
    assert found.keys() == whole.keys()
    assert all(torch.equal(found[key], whole[key]) for key in whole)


def test_an_index_a_fusion_and_a_classifier_are_the_same_on_gpu_and_cpu(workspace, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(workspace)

    def make(out, device):
        for words in (
            f"index build pairs.csv --model model --out {out}/index",
            f"train reco model --index {out}/index --data pairs.csv --epochs 1 --batch-size 8 --out {out}/reco",
            f"search {out}/index 'a dark square' --k 3 --adapt --episode.k 4 --out {out}/found.json",
            f"evaluate zero-shot model --data pictures?split=train --index {out}/index --fusion {out}/reco/model "
            f"--out {out}/result",
            f"classify --support pictures --model model --images pictures --out {out}/classes",
        ):
            assert main([*shlex.split(words), "--device", device]) in (0, None), capsys.readouterr().err
        hits = json.loads((out / "found.json").read_text())["results"][0]["hits"]
        (result,) = map(json.loads, (file.read_text() for file in (out / "result").rglob("*.json")))
        predicted = (out / "classes" / "predictions.csv").read_text()
        fusion = load_file(next((out / "reco" / "model").glob("*.safetensors")))
        return [(hit["id"], hit["score"]) for hit in hits], result["rows"], predicted, fusion

    on_cpu = make(tmp_path / "cpu", "cpu")
    with simulated_gpu() as device:
        on_gpu = make(tmp_path / "gpu", device)
    assert on_cpu[:3] == on_gpu[:3]
    assert all(torch.equal(on_cpu[3][key], on_gpu[3][key]) for key in on_cpu[3])
