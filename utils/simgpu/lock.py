"""One lock for the simulated machine: host threads may share it, their calls do not interleave."""

from __future__ import annotations

import functools
from _signal import SIGINT, default_int_handler, getsignal, signal  # signal's own make an enum of each, which is slow
from collections.abc import Callable
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


class interrupts_held:
    """Keep Ctrl-C back while the machine's state changes; the list is not empty once one came.

    Only where Python's own handler is in place, on the main thread; who holds it looks at the list at safe places.
    """

    __slots__ = ("came", "ours")

    def __enter__(self) -> list:
        came = self.came = []
        self.ours = current_thread() is main_thread() and getsignal(SIGINT) is default_int_handler
        if self.ours:
            signal(SIGINT, lambda *_: came.append(True))
        return came

    def __exit__(self, *error: object) -> None:
        if not self.ours:
            return
        signal(SIGINT, default_int_handler)
        if self.came:
            self.came.clear()
            raise KeyboardInterrupt
