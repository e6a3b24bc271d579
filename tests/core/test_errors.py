"""Exceptions of other libraries become user errors on one line."""

import errno

import pytest

from recollect.core.errors import UserError, one_line, user_errors
from recollect.core.files import FullDiskError
from recollect.data.sources.images import BrokenImageError


def test_an_exception_becomes_one_line_with_its_reason():
    with pytest.raises(BrokenImageError) as caught, user_errors("a.png", ValueError, then="!", raises=BrokenImageError):
        raise ValueError("two\nlines.")
    assert str(caught.value) == "a.png (two lines)!"
    assert isinstance(caught.value.__cause__, ValueError)


def test_other_exceptions_and_user_errors_pass_unchanged():
    for error, kinds in ((KeyError("a"), (ValueError,)), (UserError("b"), ()), (UserError("b"), (OSError,))):
        with pytest.raises(type(error)) as caught, user_errors("c", *kinds):
            raise error
        assert caught.value is error


def test_a_full_disk_error_includes_the_callers_advice():
    full = FullDiskError("out")
    with (
        pytest.raises(UserError, match=r"^features .*RECOLLECT_CACHE$") as caught,
        user_errors("features", OSError, then=": set RECOLLECT_CACHE"),
    ):
        raise full
    assert caught.value is not full
    assert one_line(full) in str(caught.value)
    assert full.errno == errno.ENOSPC


def test_one_line_names_exceptions_without_a_message_and_shortens_long_ones():
    assert one_line(TimeoutError()) == "TimeoutError"
    assert len(one_line(ValueError("x" * 999))) < 210
