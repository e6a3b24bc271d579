"""The check of types at run time (``--jaxtyping-packages``), at less than half its price.

jaxtyping binds the arguments of every call, checks them before it and again with what it returns, and keeps the sizes
of arrays in between. Where a signature names no array, beartype alone does the same check once.
"""

import functools
import inspect
import sys
import types
import typing

import jaxtyping
from jaxtyping import _decorator


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
    """From now on jaxtyping decorates functions whose signatures name arrays, and leaves others to beartype."""
    whole = _decorator.jaxtyped

    def jaxtyped(fn=_decorator._sentinel, *, typechecker=_decorator._sentinel):
        plain = isinstance(fn, types.FunctionType) and callable(typechecker) and not inspect.isgeneratorfunction(fn)
        if not plain:
            return whole(fn, typechecker=typechecker)
        if not fn.__annotations__:
            return fn
        checked = None

        @functools.wraps(fn)
        def either(*args, **options):
            nonlocal checked
            if jaxtyping.config.jaxtyping_disable:
                return fn(*args, **options)
            if checked is None:  # what nobody calls with its types checked needs no check made for it
                shapes = needs_jaxtyping(list(fn.__annotations__.values()))
                checked = whole(fn, typechecker=typechecker) if shapes else typechecker(fn)
            return checked(*args, **options)

        return either

    _decorator.jaxtyped = jaxtyping.jaxtyped = jaxtyped


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
