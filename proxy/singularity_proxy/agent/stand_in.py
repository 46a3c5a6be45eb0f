"""A class in the place of one of torch's, for code that makes objects of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def stand_in(stock: Any, make: Callable[..., Any], base: Any = None) -> Any:
    """A class that is `stock` to whoever checks or derives, but whose objects come from `make`.

    :param base: what it derives from, else `stock`. `make` may give objects of the class itself (`plain`): torch asks
        for `type(group) is ProcessGroup`
    """
    meta = type(stock)

    class StandIn(meta):  # type: ignore[misc, valid-type]
        def __new__(mcs, name: str, bases: tuple[Any, ...], content: dict[str, Any]) -> Any:
            return meta(name, tuple(stock if base is result else base for base in bases), content)

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return make(*args, **kwargs)

        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, stock) or getattr(type(value), "stands_in", False)

        def __subclasscheck__(cls, other: Any) -> bool:
            return other is cls or issubclass(other, stock)

        def __eq__(cls, other: object) -> bool:
            return other is cls or other is stock

        def __hash__(cls) -> int:
            return hash(stock)

    words = {"__module__": stock.__module__, "__doc__": stock.__doc__}
    result = meta.__new__(StandIn, stock.__name__, (base or stock,), words)
    return result


def plain(made: Any, stock: Any, *args: Any) -> Any:
    """An object of `made`, a stand-in for `stock`, itself."""
    return type(stock).__call__(made, *args)
