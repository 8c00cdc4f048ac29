"""A progress bar for what takes more than a second, on standard error, where somebody is looking."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

DELAY_S = 1.0


def somebody_looks() -> bool:
    """Whether standard error is a terminal or a notebook."""
    ipython = sys.modules.get("IPython")
    notebook = ipython is not None and hasattr(ipython.get_ipython(), "kernel")
    return notebook or bool(getattr(sys.stderr, "isatty", bool)())


@contextmanager
def progress_bar(total: int, title: str, enabled: bool | None = None) -> Iterator[Callable[[int], object]]:
    """Yield a function that is told how many bytes were done; None shows the bar only where somebody looks."""
    if not (somebody_looks() if enabled is None else enabled):
        yield lambda done: None
        return
    from tqdm import tqdm
    with tqdm(total=total, desc=title, unit="B", unit_scale=True, delay=DELAY_S, leave=False) as bar:
        yield bar.update
