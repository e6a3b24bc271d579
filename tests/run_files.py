"""Read the files of a training run."""

import json

from safetensors.torch import load_file


def metrics(out):
    """Return the logged lines without timings."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert all(line.pop("examples_per_second", 1) > 0 for line in lines)
    return lines


def weights(model):
    return load_file(model / "model.safetensors")


def files(folder):
    """Return the contents of all files by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
