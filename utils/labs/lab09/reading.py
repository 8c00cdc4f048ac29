"""Read what answers give: numbers of any kind, pairs, lists and what can be read like one, and never without end."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from ..check import Answer
from ..values import number


def plain(value: Any) -> Any:
    """One finite number, also as a tensor or an array without dimensions; None for anything else."""
    return number(value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value)


def whole(value: Any) -> int | None:
    """A whole number, whatever its type; None for anything else."""
    given = plain(value)
    return int(given) if given is not None and given == int(given) else None


def pair(value: Any) -> tuple[Any, Any] | None:
    """Two things, in whatever holds two in an order; None for anything else."""
    try:
        items = tuple(islice(value, 3)) if is_row(value) else ()
    except Exception:   # a tensor without dimensions
        items = ()
    return items if len(items) == 2 else None


def is_row(value: Any) -> bool:
    """Whether it is several things in an order."""
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes, dict, set, frozenset))


def listing(answer: Answer, most: int) -> Callable[..., Any]:
    """The answer, with a generator's items read while it is called: of those at most ``most`` and one more."""
    @functools.wraps(answer)
    def read(*arguments: Any) -> Any:
        given = answer(*arguments)
        return list(islice(given, most + 1)) if isinstance(given, Iterator) else given
    return read
