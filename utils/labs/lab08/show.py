"""The target of a puzzle, as a figure."""

from __future__ import annotations

from collections.abc import Callable

from ..verdict import Picture
from .judge import Judge


def shower(judges: dict[str, Judge]) -> Callable[[str], Picture]:
    """``target(puzzle)`` for these puzzles."""

    def target(puzzle: str) -> Picture:
        """The timeline of the worked answer in the first case of a puzzle; raises ValueError for another name."""
        if puzzle not in judges:
            raise ValueError(f"target({puzzle!r}): there is one of {', '.join(judges)}")
        return judges[puzzle].target()
    return target
