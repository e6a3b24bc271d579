"""A loss computed over several processes, each with its own rows, has the value and gradients of one process."""

import pytest
import torch

from recollect.objectives import ContrastiveObjective
from recollect.training.ranks import shard_of_this_process, sum_gradients
from recollect_papers.lixp.ablations import AblatedContextObjective, ContextOptions
from slow_losses import ABLATIONS

BATCH, WIDTH = 12, 6

STALE = [{"stale_rows": 7, "value_head": 1}, {"stale_rows": 30, "residual": True}, {"active_rows": 5}]
OPTIONS = [None, *ABLATIONS.values(), *STALE]
CASES = [
    (base, ("dense", "blockwise")[(place + number) % 2], options)
    for place, base in enumerate(("sigmoid", "softmax", "label"))
    for number, options in enumerate(OPTIONS)
]


def numbers(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def objective_of(base, form, options):
    torch.manual_seed(1)
    how = {"scale": 5.0, "bias": -2.0, "form": form}
    if options is None:
        objective = ContrastiveObjective(base, **how)
    else:
        objective = AblatedContextObjective(base, 0.7, ContextOptions(**options), width=WIDTH, tau_context=0.2, **how)
    objective = objective.double()
    with torch.no_grad():
        for parameter in objective.parameters():
            parameter.add_(torch.randn(parameter.shape, dtype=torch.float64) * 0.1)
    return objective


def outcome(place, case, shard):
    """Return loss, report and gradients of each step for this process's rows; with a stale buffer, two steps."""
    base, form, options = CASES[case]
    objective = objective_of(base, form, options)
    part = slice(place * BATCH // shard.size, (place + 1) * BATCH // shard.size)
    duplicate_ids = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 35, 8, 97] if case % 2 else range(BATCH))[:, None]
    found = []
    for step in range(2 if options and "stale_rows" in options else 1):
        rows = {name: numbers(BATCH, WIDTH, seed=10 * step + number)[part].requires_grad_()
                for number, name in enumerate(("images", "texts", "views", "context"))}  # fmt: skip
        given = {name: row for name, row in rows.items() if name in {"images", "texts"} | objective.needs}
        if "labels" in objective.needs:
            given["labels"] = (torch.arange(BATCH) % 4 - 1)[part]
        objective.zero_grad()
        loss, report = objective(
            **given,
            duplicate_ids=duplicate_ids[part],
            context_duplicate_ids=(duplicate_ids.flip(0) + 1)[part],
            seed=step,
            shard=shard,
        )
        loss.backward()
        sum_gradients(objective.parameters())
        own = {name: shard.gather(row.grad) for name, row in rows.items() if row.grad is not None}
        learned = {name: p.grad for name, p in objective.named_parameters() if p.grad is not None}
        found.append({"loss": shard.total(loss), **report, **own, **learned})
    return found


@pytest.mark.parametrize(
    ("processes", "cases"),
    # Two processes: every case. Four processes: every ablation, with one of the bases.
    [(2, range(len(CASES))), (4, [len(OPTIONS) * (number % 3) + number for number in range(len(OPTIONS))])],
)
def test_several_processes_give_the_loss_and_gradients_of_one(processes, cases, in_ranks, monkeypatch, unchecked):
    for module in ("context", "sigmoid", "softmax"):
        monkeypatch.setattr(f"recollect.objectives.{module}.tile_size", lambda device: 5)

    shares = in_ranks(lambda rank: [outcome(rank, case, shard_of_this_process()) for case in cases], processes)
    for place, case in enumerate(cases):
        name = CASES[case]
        for step, expected in enumerate(outcome(0, case, shard_of_this_process())):
            assert expected["loss"].isfinite()
            for share in shares:
                assert share[place][step].keys() == expected.keys(), name
                for key, value in expected.items():
                    error = (share[place][step][key] - value.detach()).abs().max()
                    assert error < 1e-9, f"{name} {key} {error}"
