"""Run-time type checks (``--jaxtyping-packages``) at less than half their usual cost.

jaxtyping binds the arguments of every call, checks them before the call and again with the return value, and remembers
array sizes in between. For signatures without arrays, a single beartype check is equivalent.
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

beartype_like_mypy = beartype(conf=BeartypeConf(is_pep484_tower=True))
"""Accept an int for `float`, as PEP 484 does."""


MAX_CHECKED_CALLS = 50
"""Maximum number of checked calls per function and test. In a loop of thousands, later calls resemble the first, and
checking them took a tenth of the suite's time."""

_test_number = 0


def begin_test() -> None:
    """Reset the call count of every function."""
    global _test_number
    _test_number += 1


def needs_jaxtyping(hint) -> bool:
    """Return whether a hint contains an array shape or a quoted name (which cannot be resolved here)."""
    if isinstance(hint, str | typing.ForwardRef):
        return True
    if isinstance(hint, list | tuple):  # the parameters of a Callable
        return any(map(needs_jaxtyping, hint))
    if inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return typing.get_origin(hint) is not typing.Literal and any(map(needs_jaxtyping, typing.get_args(hint)))


def check_once() -> None:
    """Patch jaxtyping to decorate only functions whose signatures contain arrays; others get beartype alone.

    The check is built on the first call, since a process calls few of the functions, and skipped after
    `MAX_CHECKED_CALLS` calls in one test.
    """
    whole, config = _decorator.jaxtyped, jaxtyping.config
    by_code = {}

    def jaxtyped(fn=_decorator._sentinel, *, typechecker=_decorator._sentinel):
        if isinstance(fn, type) and any(base.__module__.startswith("transformers.") for base in fn.__mro__):
            return fn  # a config's __init__ also takes keywords that are not fields
        if callable(typechecker):
            typechecker = beartype_like_mypy
        if not isinstance(fn, types.FunctionType) or not callable(typechecker):
            return whole(fn, typechecker=typechecker)
        if not fn.__annotations__:
            return fn
        checked, calls, test = None, 0, 0

        def decorate(fn):
            shapes = inspect.isgeneratorfunction(fn) or needs_jaxtyping(list(fn.__annotations__.values()))
            return whole(fn, typechecker=typechecker) if shapes else typechecker(fn)

        @functools.wraps(fn)
        def lazily_checked(*args, **options):
            nonlocal checked, calls, test
            if test != _test_number:
                test, calls = _test_number, 0
            calls += 1
            if calls > MAX_CHECKED_CALLS or config.jaxtyping_disable:
                return fn(*args, **options)
            if checked is None and "<locals>" not in fn.__qualname__:
                checked = decorate(fn)
            elif checked is None:
                if fn.__code__ not in by_code:
                    by_code[fn.__code__] = shared_check(fn, decorate)
                checked = functools.partial(by_code[fn.__code__], fn)
            return checked(*args, **options)

        return lazily_checked

    _decorator.jaxtyped = jaxtyping.jaxtyped = jaxtyped


def shared_check(first, decorate):
    """Build one check for all closures that share a code object, i.e. for every instance of an inner function.

    Args:
        first: any of the closures.
        decorate: adds the check to a function.

    Returns:
        A function that takes a closure and its arguments, and makes a checked call.
    """
    now = threading.local()
    cells = tuple(types.CellType() for _ in first.__closure__ or ())  # so the check keeps no captured object alive
    hollow = types.FunctionType(first.__code__, first.__globals__, first.__name__, first.__defaults__, cells)
    hollow.__kwdefaults__, hollow.__annotations__ = first.__kwdefaults__, first.__annotations__
    hollow.__qualname__, hollow.__module__ = first.__qualname__, first.__module__

    @functools.wraps(hollow)
    def current(*args, **options):
        fn, now.fn = now.fn, None
        return fn(*args, **options)

    checked = decorate(current)

    def call(fn, /, *args, **options):
        now.fn = fn
        return checked(*args, **options)

    return call


def make_protocol_checks_static() -> None:
    """Keep `isinstance(model, Encoder)`, which every type check calls, from evaluating properties.

    Before Python 3.12 it evaluates them all, and a model's fingerprint reads every weight.
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
