"""One lock for the simulated machine: host threads may share it, their calls do not interleave."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock, current_thread, main_thread
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


@contextmanager
def interrupts_held() -> Iterator[list]:
    """Keep Ctrl-C back while the machine's state changes; the list is not empty once one came.

    Only where Python's own handler is in place, on the main thread; who holds it looks at the list at safe places.
    """
    came: list = []
    ours = current_thread() is main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not ours:
        yield came
        return
    signal.signal(signal.SIGINT, lambda *_: came.append(True))
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if came:
            came.clear()
            raise KeyboardInterrupt
