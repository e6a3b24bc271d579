"""What a large run takes, from what is counted here: FLOP, bytes and network of one step, and the days of a whole run.

Nothing is timed: operations are counted by torch while one image, one text and a small batch pass through the real
model and objective, and scaled by what they depend on (rows, rows x batch). The machine's figures are arguments.

python benchmarks/scale.py --preset vit-b-16 --pairs 15e9 --batch 32768 --devices 64
"""

from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import tyro
from torch.utils.flop_counter import FlopCounterMode

from recollect.core.files import write_json
from recollect.core.progress import output
from recollect.models import build_model
from recollect.objectives import ContextObjective, ContrastiveObjective
from recollect.objectives.shards import Shard


@dataclass(frozen=True)
class Options:
    """The run, and the machines it is to run on."""

    preset: str = "vit-b-16"
    pairs: float = 15e9
    batch: int = 32_768
    devices: int = 64
    base: str = "sigmoid"
    chunked: bool = False
    """Embed in chunks: a second forward pass of the towers."""
    flops: float = 0.4 * 989e12
    """FLOP/s that a device sustains: 40 % of an H100's dense bf16 peak as its maker states it."""
    loss_flops: float = 0.4 * 67e12
    """The same of the objective, which computes in float32."""
    network: float = 50e9
    """Bytes/s between devices: 400 Gbit/s each."""
    out: Path | None = None


class Part(Shard):
    """One of many processes, alone: counts its work without the others; their rows are copies of its own."""

    def __init__(self, size: int) -> None:
        self.size = size

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.repeat(self.size, *[1] * (rows.ndim - 1))


def counted(work: object) -> int:
    """Floating-point operations of a call."""
    # The block-wise forms add products in place, which torch's table does not list.
    in_place = {torch.ops.aten.addmm_: lambda _, a, b, **__: 2 * a[0] * a[1] * b[1]}
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        work()  # type: ignore[operator]
    return counter.get_total_flops()


def objective_flops(base: str, context: bool, width: int, devices: int) -> float:
    """Operations of one device for each of its rows, each column and each entry of an embedding."""
    rows = 64
    make = ContextObjective if context else ContrastiveObjective
    objective = make(base, form="blockwise")  # type: ignore[arg-type]
    images, texts = (torch.randn(rows, width, requires_grad=True) for _ in range(2))
    total = counted(lambda: objective(images, texts, shard=Part(devices))[0].backward())
    return total / (rows * rows * devices * width)


def derive(options: Options) -> dict[str, float]:
    """Every figure, by name."""
    model = build_model(options.preset, texts=[f"{number} photos of a cat" for number in range(200)])
    pixels = torch.randn(1, 3, model.transform.size, model.transform.size)
    tokens = model.tokenize(["a photo of a cat left of a large red house"])
    with torch.no_grad():
        forward = counted(lambda: (model.encode_images(pixels), model.encode_texts(tokens)))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    rows, steps, width = options.batch / options.devices, options.pairs / options.batch, model.width
    towers = forward * (4 if options.chunked else 3) * rows  # a backward pass is two forward passes
    gathered = 4 * options.batch * width  # float32 bytes of one set of rows
    figures: dict[str, float] = {
        "parameters": parameters,
        "forward FLOP a pair": forward,
        "steps": steps,
        "towers, FLOP a device and step": towers,
        "weights, gradients and AdamW, bytes a device": 16 * parameters,
        "gradients over the network, bytes a device and step": 2 * 4 * parameters,
    }
    for name, context in (("plain", False), ("context", True)):
        flops = objective_flops(options.base, context, width, 4) * rows * options.batch * width
        # Gathered on the way there and added up on the way back: texts, and with context keys and values.
        moved = (3 if context else 1) * 2 * gathered
        seconds = towers / options.flops + flops / options.loss_flops
        network = (moved + 8 * parameters) / options.network
        figures |= {
            f"{name}: objective, FLOP a device and step": flops,
            f"{name}: embeddings over the network, bytes a device and step": moved,
            f"{name}: seconds of a step, computing": seconds,
            f"{name}: seconds of a step, network if nothing overlaps": network,
            f"{name}: days": steps * (seconds + network) / 86_400,
            f"{name}: objective's share of the computing": flops / options.loss_flops / seconds,
        }
    return figures


def main(options: Options) -> None:
    """Count, print and, where asked, write JSON."""
    torch.manual_seed(0)
    figures, console = derive(options), output()
    console.print(f"{options.preset}, {options.pairs:.3g} pairs, batch {options.batch:,}, {options.devices} devices")
    for name, value in figures.items():
        console.print(f"{name:72} {value:.4g}", highlight=False)
    if options.out:
        write_json(options.out, {"options": asdict(options) | {"out": None}, "figures": figures})


if __name__ == "__main__":
    main(tyro.cli(Options))
