"""Tests of the suite's own run-time type checks, which closures of one function share."""

import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
from beartype import beartype
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import Float, TypeCheckError, jaxtyped

from type_checks import MAX_CHECKED_CALLS, begin_test

checked = jaxtyped(typechecker=beartype)


class Captured:
    """Object captured by a closure."""


def functions(factor, captured):
    @checked
    def plain(number: int, more: int = 1, *, name: str = "") -> int:
        return (number + more) * factor if captured else 0

    @checked
    def scaled(rows: Float[np.ndarray, "n width"], weights: Float[np.ndarray, " n"]) -> Float[np.ndarray, "n width"]:
        return rows * factor

    @checked
    def generator(count: int) -> Iterator[int]:
        yield from range(count * factor)

    return plain, scaled, generator


@pytest.mark.parametrize("factor", [2, 3])
def test_every_closure_is_called_and_checked(factor):
    captured = Captured()
    plain, scaled, generator = functions(factor, captured)
    rows = np.ones((2, 3))
    assert plain(1, more=2) == 3 * factor
    assert scaled(rows, rows[:, 0]).max() == factor
    assert list(generator(2)) == list(range(2 * factor))
    for wrong in (lambda: plain("1"), lambda: plain(1, "2"), lambda: plain(1, name=3), lambda: generator("2")):
        with pytest.raises(BeartypeCallHintViolation):
            wrong()
    with pytest.raises(TypeCheckError):
        scaled(rows, rows[0])
    with pytest.raises(BeartypeCallHintViolation):
        functions(0.5, captured)[0](1)  # a return value of the wrong type


def test_only_the_first_calls_of_a_function_in_a_test_are_checked():
    plain = functions(2, Captured())[0]
    assert {plain(1) for _ in range(MAX_CHECKED_CALLS)} == {4}
    assert plain(1.5) == 5.0
    begin_test()
    with pytest.raises(BeartypeCallHintViolation):
        plain(1.5)


def test_a_check_keeps_no_captured_object_alive():
    captured = Captured()
    reference = weakref.ref(captured)
    assert functions(2, captured)[0](1) == 4
    del captured
    gc.collect()
    assert reference() is None
