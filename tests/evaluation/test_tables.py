import numpy as np
import pytest
from scipy.stats import t as student_t

from recollect.evaluation.results import Result
from recollect.evaluation.tables import (
    gain_by_examples,
    log_linear_fit,
    mean_over_tasks,
    paired_gain,
    sample_efficiency,
    tidy,
)


def few_shot(model, data, training_seed, accuracies, classes=10):
    """A result whose accuracy at (method, shots, draw) is given."""
    rows = [
        {"method": method, "shots": shots, "seed": draw, "value": value}
        for (method, shots, draw), value in accuracies.items()
    ]
    return Result("few-shot", model, data, training_seed, rows, {"classes": classes})


def test_every_data_set_counts_the_same_however_often_it_was_drawn():
    frame = tidy(
        [
            few_shot("a", "one", 0, {("prototype", 4, draw): 80.0 for draw in range(5)}),
            few_shot("a", "two", 0, {("prototype", 4, 0): 40.0}),
        ]
    )
    assert mean_over_tasks(frame, ["method", "shots"]).loc["prototype", 4, 0] == 60.0


def test_gains_are_paired_by_training_seed():
    frame = tidy(
        [few_shot("base", "one", seed, {("prototype", 4, 0): 50.0 + 10 * seed}) for seed in range(3)]
        + [few_shot("context", "one", seed, {("prototype", 4, 0): 52.0 + 10 * seed}) for seed in (1, 2)]
    )
    gain = paired_gain(frame, "context", "base", ["method"])
    assert gain.tolist() == [2.0, 2.0]
    with pytest.raises(ValueError, match="no figure in common"):
        paired_gain(frame, "context", "absent", ["method"])


def test_sample_efficiency_is_the_ratio_of_shots_for_the_same_accuracy():
    frame = tidy(
        [
            few_shot("base", "one", 0, {("tip-adapter", k, 0): v for k, v in {1: 40, 8: 55, 32: 60}.items()}),
            few_shot("context", "one", 0, {("tip-adapter", k, 0): v for k, v in {1: 45, 8: 61, 32: 66}.items()}),
        ]
    )
    assert sample_efficiency(frame, "context", "base", "tip-adapter") == 4.0
    assert sample_efficiency(frame, "base", "context", "tip-adapter") is None


def test_relative_gain_and_number_of_examples():
    frame = tidy(
        [
            few_shot("base", "one", 0, {("tip-adapter", 32, 0): 50.0}, classes=10),
            few_shot("context", "one", 0, {("tip-adapter", 32, 0): 60.0}, classes=10),
        ]
    )
    table = gain_by_examples(frame, "context", "base", "tip-adapter", 32)
    assert table.loc[0, ["examples", "relative_gain"]].tolist() == [320.0, 20.0]


def test_the_fit_finds_the_line_and_its_p_value():
    """Against the normal equations, and the t-test of a slope with n - 2 degrees of freedom."""
    generator = np.random.default_rng(0)
    examples = 10 ** generator.uniform(1, 5, size=21)
    x, gains = np.log10(examples), 2.0 * np.log10(examples) - 1 + generator.normal(size=21)
    design = np.stack([np.ones_like(x), x], axis=1)
    inverse = np.linalg.inv(design.T @ design)
    intercept, slope = inverse @ design.T @ gains
    residual = gains - design @ np.array([intercept, slope])
    error = np.sqrt(residual @ residual / (21 - 2) * inverse[1, 1])
    fit = log_linear_fit(examples, gains)
    assert fit.slope == pytest.approx(slope)
    assert fit.intercept == pytest.approx(intercept)
    assert fit.p_value == pytest.approx(2 * student_t.sf(abs(slope / error), 19))


def test_a_line_is_not_fitted_through_two_points_or_one_size():
    with pytest.raises(ValueError):
        log_linear_fit(np.array([10.0, 100.0]), np.array([1.0, 2.0]))
    with pytest.raises(ValueError):
        log_linear_fit(np.array([10.0, 10.0, 10.0]), np.array([1.0, 2.0, 3.0]))
