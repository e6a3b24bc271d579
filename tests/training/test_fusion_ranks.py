"""A fusion trained on two processes takes the same step as on one."""

import pytest
import torch

from recollect.reco.block import FusionModule, FusionSettings
from recollect.reco.learning import FusionTowers
from recollect.reco.objective import TERMS, FusionObjective
from recollect.training.ranks import shard_of_this_process, sum_gradients

BATCH, PLACES, WIDTH = 12, 4, 8
CASES = [
    (start, terms, masked)
    for start in ("embedding", "gate")
    for terms, masked in ((TERMS, False), (TERMS, True), (("image",), True))
]


def perturbed(module):
    """Convert to float64 and perturb: an untrained block has zero branches, behind which no gradient flows."""
    module = module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, dtype=torch.float64))
    return module


def rows_of(rank, shard):
    return slice(rank * BATCH // shard.size, (rank + 1) * BATCH // shard.size)


def gradients(**modules):
    named = [(f"{room}.{name}", one) for room, module in modules.items() for name, one in module.named_parameters()]
    return {name: one.grad for name, one in named if one.grad is not None}


def fused(case, rank, shard):
    """Return loss, report and gradients of fusion and temperature for this process's rows of a batch."""
    start, terms, masked = CASES[case]
    torch.manual_seed(1)
    towers = perturbed(FusionTowers(FusionModule(FusionSettings(WIDTH, start=start))))
    objective = FusionObjective(terms, scale=5.0).double()
    images, texts = (torch.randn(BATCH, PLACES, WIDTH, dtype=torch.float64) for _ in range(2))
    images[3, 2:] = 0  # empty slots
    groups = torch.stack([torch.arange(BATCH) % 5, torch.arange(BATCH) % 7], dim=1)  # some span both processes
    own = rows_of(rank, shard)
    # Call the fusion directly: the towers would convert to float32.
    refined = [towers.fusion(*each) for each in (("image", images[own]), ("text", texts[own]))]
    rows = [
        torch.cat([embedded, tokens[own, 0]], dim=1) for embedded, tokens in zip(refined, (images, texts), strict=True)
    ]
    loss, report = objective(*rows, labels=groups[own] if masked else None, shard=shard)
    loss.backward()
    sum_gradients([*towers.parameters(), *objective.parameters()])
    return {"total": shard.total(loss), **report, **gradients(towers=towers, objective=objective)}


def test_two_processes_give_the_loss_and_gradients_of_one(in_ranks):
    shares = in_ranks(lambda rank: [fused(case, rank, shard_of_this_process()) for case in range(len(CASES))], 2)
    for case in range(len(CASES)):
        expected = fused(case, 0, shard_of_this_process())
        assert float(expected["total"].detach()) == pytest.approx(float(expected["loss"]))
        learned = {name for name, value in expected.items() if "fusion." in name and value.abs().max() > 1e-6}
        assert learned, case
        for share in shares:
            assert share[case].keys() == expected.keys()
            for name, value in expected.items():
                error = float((share[case][name] - value.detach()).abs().max())
                assert error < 1e-9, (case, name, error)
