"""A class in the place of one of torch's, for code that makes objects of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def stand_in(stock: Any, make: Callable[..., Any], *same: Any) -> Any:
    """A class that is `stock` to whoever checks or derives, but whose objects come from `make`.

    :param same: classes that equal it, as `type(group) == ProcessGroup` of torch's asks
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
            return other is cls or other is stock or any(other is one for one in same)

        def __hash__(cls) -> int:
            return hash(stock)

    result = meta.__new__(StandIn, stock.__name__, (stock,), {"__module__": stock.__module__, "__doc__": stock.__doc__})
    return result
