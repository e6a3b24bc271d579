"""The check of types at run time (``--jaxtyping-packages``), at less than half its price.

jaxtyping binds the arguments of every call, checks them before it and again with what it returns, and keeps the sizes
of arrays in between. Where a signature names no array, beartype alone does the same check once.
"""

import functools
import inspect
import sys
import threading
import types
import typing

import jaxtyping
from beartype import BeartypeConf, beartype
from jaxtyping import _decorator

as_mypy_reads_them = beartype(conf=BeartypeConf(is_pep484_tower=True))
"""A `float` may be an int (PEP 484)."""


MOST_CALLS = 50
"""Calls of a function that are checked in one test. In a loop of thousands, later calls are like the first, and
their checks took a tenth of the time of all tests."""

_begun = 0


def begin_test() -> None:
    """Count the calls of every function from zero again."""
    global _begun
    _begun += 1


def needs_jaxtyping(hint) -> bool:
    """Whether a hint has a shape in it, or a name in quotes, which may be known only to who reads the source."""
    if isinstance(hint, str | typing.ForwardRef):
        return True
    if isinstance(hint, list | tuple):  # the parameters of a Callable
        return any(map(needs_jaxtyping, hint))
    if inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return typing.get_origin(hint) is not typing.Literal and any(map(needs_jaxtyping, typing.get_args(hint)))


def check_once() -> None:
    """From now on jaxtyping decorates functions whose signatures name arrays, and leaves others to beartype.

    A check is made when a function is first called, since most are not called by any test of a process, and it is
    left out after `MOST_CALLS` calls in one test.
    """
    whole, config = _decorator.jaxtyped, jaxtyping.config
    of_code = {}

    def jaxtyped(fn=_decorator._sentinel, *, typechecker=_decorator._sentinel):
        if isinstance(fn, type) and any(base.__module__.startswith("transformers.") for base in fn.__mro__):
            return fn  # a config's __init__ also takes keywords that are no fields
        if callable(typechecker):
            typechecker = as_mypy_reads_them
        if not isinstance(fn, types.FunctionType) or not callable(typechecker):
            return whole(fn, typechecker=typechecker)
        if not fn.__annotations__:
            return fn
        checked, calls, test = None, 0, 0

        def made(fn):
            shapes = inspect.isgeneratorfunction(fn) or needs_jaxtyping(list(fn.__annotations__.values()))
            return whole(fn, typechecker=typechecker) if shapes else typechecker(fn)

        @functools.wraps(fn)
        def either(*args, **options):
            nonlocal checked, calls, test
            if test != _begun:
                test, calls = _begun, 0
            calls += 1
            if calls > MOST_CALLS or config.jaxtyping_disable:
                return fn(*args, **options)
            if checked is None and "<locals>" not in fn.__qualname__:
                checked = made(fn)
            elif checked is None:
                if fn.__code__ not in of_code:
                    of_code[fn.__code__] = check_of_each(fn, made)
                checked = functools.partial(of_code[fn.__code__], fn)
            return checked(*args, **options)

        return either

    _decorator.jaxtyped = jaxtyping.jaxtyped = jaxtyped


def check_of_each(first, made):
    """One check for all functions of one code, which are made again at each call of the one around them.

    Args:
        first: any of them.
        made: makes the check of a function.

    Returns:
        What calls a function, which is given first, and checks what goes in and out.
    """
    now = threading.local()
    cells = tuple(types.CellType() for _ in first.__closure__ or ())  # the check keeps nothing that a function holds
    hollow = types.FunctionType(first.__code__, first.__globals__, first.__name__, first.__defaults__, cells)
    hollow.__kwdefaults__, hollow.__annotations__ = first.__kwdefaults__, first.__annotations__
    hollow.__qualname__, hollow.__module__ = first.__qualname__, first.__module__

    @functools.wraps(hollow)
    def current(*args, **options):
        fn, now.fn = now.fn, None
        return fn(*args, **options)

    checked = made(current)

    def call(fn, /, *args, **options):
        now.fn = fn
        return checked(*args, **options)

    return call


def run_no_property_to_know_a_protocol() -> None:
    """Let `isinstance(model, Encoder)`, which the check of types asks at every call, run no property.

    Before Python 3.12 it runs them all, and a model's fingerprint reads every weight.
    """
    if sys.version_info >= (3, 12):
        return
    whole = typing._ProtocolMeta.__instancecheck__
    names = functools.cache(typing._get_protocol_attrs)

    def check(protocol, instance):
        if getattr(protocol, "_is_runtime_protocol", False) and getattr(protocol, "_is_protocol", False):
            kind, own = type(instance), getattr(instance, "__dict__", {})
            if all(getattr(kind, name, None) is not None or name in own for name in names(protocol)):
                return True
        return whole(protocol, instance)

    typing._ProtocolMeta.__instancecheck__ = check
