"""A lock between processes, released by the operating system when its holder ends, however it ends."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

POLL_S = 0.2


def _try_lock(handle: int) -> bool:
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


@contextlib.contextmanager
def locked(path: Path, when_waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock file at ``path``; calls ``when_waiting`` once if another process has it. OSError if unwritable."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not _try_lock(handle):
            when_waiting()
            while not _try_lock(handle):
                time.sleep(POLL_S)
        yield
    finally:
        os.close(handle)
