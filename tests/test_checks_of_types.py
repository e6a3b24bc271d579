"""The suite's own check of types: made once for functions that are made again and again, and of each of them."""

import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
from beartype import beartype
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import Float, TypeCheckError, jaxtyped

from checks_of_types import MOST_CALLS, begin_test

checked = jaxtyped(typechecker=beartype)


class Held:
    """Something that a function holds."""


def functions(factor, held):
    @checked
    def plain(number: int, more: int = 1, *, name: str = "") -> int:
        return (number + more) * factor if held else 0

    @checked
    def shaped(rows: Float[np.ndarray, "n width"], weights: Float[np.ndarray, " n"]) -> Float[np.ndarray, "n width"]:
        return rows * factor

    @checked
    def several(count: int) -> Iterator[int]:
        yield from range(count * factor)

    return plain, shaped, several


@pytest.mark.parametrize("factor", [2, 3])
def test_each_function_of_a_code_is_called_and_checked(factor):
    held = Held()
    plain, shaped, several = functions(factor, held)
    rows = np.ones((2, 3))
    assert plain(1, more=2) == 3 * factor
    assert shaped(rows, rows[:, 0]).max() == factor
    assert list(several(2)) == list(range(2 * factor))
    for wrong in (lambda: plain("1"), lambda: plain(1, "2"), lambda: plain(1, name=3), lambda: several("2")):
        with pytest.raises(BeartypeCallHintViolation):
            wrong()
    with pytest.raises(TypeCheckError):
        shaped(rows, rows[0])
    with pytest.raises(BeartypeCallHintViolation):
        functions(0.5, held)[0](1)  # what it returns, too


def test_the_first_calls_of_a_function_in_each_test_are_checked():
    plain = functions(2, Held())[0]
    assert {plain(1) for _ in range(MOST_CALLS)} == {4}
    assert plain(1.5) == 5.0
    begin_test()
    with pytest.raises(BeartypeCallHintViolation):
        plain(1.5)


def test_a_check_keeps_nothing_alive_that_a_function_holds():
    held = Held()
    reference = weakref.ref(held)
    assert functions(2, held)[0](1) == 4
    del held
    gc.collect()
    assert reference() is None
