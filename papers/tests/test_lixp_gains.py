import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as student_t

from recollect_papers.lixp.gains import gain_against_examples, gain_by_examples, log_linear_fit


def frame():
    return pd.DataFrame([
        {"model": model, "data": data, "classes": 10 * (1 + place), "method": "tip-adapter", "shots": 32,
         "value": 50.0 + 5 * place + gain}
        for model, gain in (("base", 0), ("context", 10)) for place, data in enumerate(("one", "two", "three"))
    ])  # fmt: skip


def test_relative_gain_and_number_of_examples():
    table = gain_by_examples(frame(), "context", "base", "tip-adapter", 32)
    assert table.set_index("data").loc["one", ["examples", "relative_gain"]].tolist() == [320.0, 20.0]
    figure = gain_against_examples(frame(), "context", "base", "tip-adapter", 32)
    assert "p =" in figure.axes[0].get_title()
    assert figure.get_suptitle() == "Default Tip, 32 shots: context over base"
    assert [text.get_text() for text in figure.axes[0].texts] == ["one", "three", "two"]


def test_the_fit_finds_the_line_and_its_p_value():
    """Compared with the normal equations, and the t-test of a slope with n - 2 degrees of freedom."""
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
    assert fit.pvalue == pytest.approx(2 * student_t.sf(abs(slope / error), 19))
