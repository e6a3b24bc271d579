import pytest

from recollect.evaluation.results import Result
from recollect.evaluation.tables import gain_over_draws, mean_over_tasks, sample_efficiency, tidy


def few_shot(model, data, training_seed, accuracies, classes=10):
    """Return a result with the given accuracies per (method, shots, draw)."""
    rows = [
        {"method": method, "shots": shots, "seed": draw, "value": value}
        for (method, shots, draw), value in accuracies.items()
    ]
    return Result("few-shot", model, data, training_seed, rows, {"classes": classes})


def test_every_data_set_has_equal_weight_whatever_its_number_of_draws():
    frame = tidy(
        [
            few_shot("a", "one", 0, {("prototype", 4, draw): 80.0 for draw in range(5)}),
            few_shot("a", "two", 0, {("prototype", 4, 0): 40.0}),
        ]
    )
    assert mean_over_tasks(frame, ["method", "shots"]).loc["prototype", 4, 0] == 60.0


def test_data_sets_with_the_same_name_are_numbered_within_a_protocol():
    def result(protocol, content):
        return Result(protocol, "model", "birds", 0, [{"value": 1.0}], {"data_content": content})

    frame = tidy([result("zero-shot", "test"), result("few-shot", "both"), result("few-shot", "another")])
    assert frame[["protocol", "data"]].to_numpy().tolist() == [
        ["zero-shot", "birds"], ["few-shot", "birds"], ["few-shot", "birds (2)"],
    ]  # fmt: skip


def test_sample_efficiency_is_the_ratio_of_shots_for_the_same_accuracy():
    frame = tidy(
        [
            few_shot("base", "one", 0, {("tip-adapter", k, 0): v for k, v in {1: 40, 8: 55, 32: 60}.items()}),
            few_shot("context", "one", 0, {("tip-adapter", k, 0): v for k, v in {1: 45, 8: 61, 32: 66}.items()}),
        ]
    )
    saved = sample_efficiency(frame, "context", "base", "tip-adapter")
    shots = 2 ** (3 * (60 - 45) / (61 - 45))  # interpolated between 1 and 8 shots, in the logarithm
    assert saved.factor == pytest.approx(32 / shots)
    assert (saved.bound, saved.accuracy, saved.baseline_shots) == ("exactly", 60.0, 32.0)
    reverse = sample_efficiency(frame, "base", "context", "tip-adapter")
    assert (reverse.bound, reverse.factor) == ("less than", 1.0)
    assert str(reverse) == "less than 1x"


def test_gains_are_paired_by_draw():
    frame = tidy([
        few_shot(name, data, 0, {("prototype", 4, draw): base + 10 * draw + gain for draw in range(3)})
        for name, gain in (("base", 0), ("model", 2)) for data, base in (("one", 30), ("two", 60))
    ])  # fmt: skip
    gain = gain_over_draws(frame, "model", "base", "prototype", 4)
    assert (gain.mean, gain.std, gain.count) == (2.0, 0.0, 3)
    several_seeds = tidy([
        few_shot(name, "one", seed, {("prototype", 4, draw): 40.0 + gain * seed for draw in range(3)})
        for name, gain in (("base", 0), ("model", 2)) for seed in (0, 1)
    ])  # fmt: skip
    gain = gain_over_draws(several_seeds, "model", "base", "prototype", 4)
    assert (gain.mean, gain.count) == (1.0, 6)  # each draw of each training
