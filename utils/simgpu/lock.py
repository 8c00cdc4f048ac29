"""One lock for the simulated machine: host threads may share it, their calls do not interleave."""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import RLock
from typing import Any, TypeVar

LOCK = RLock()
F = TypeVar("F", bound=Callable[..., Any])


def locked(function: F) -> F:
    """``function`` while no other thread is inside the simulator."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with LOCK:
            return function(*args, **kwargs)

    return call  # type: ignore[return-value]


def lock_methods(cls: type, *names: str) -> None:
    """Lock these methods of a class."""
    for name in names:
        setattr(cls, name, locked(vars(cls)[name]))
