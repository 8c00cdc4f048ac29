"""What a learner's ``Releasing`` starts from: requests that may be equal, and the lists of a serving loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

EOS = 0


@dataclass
class Asked:
    """A request as a plain dataclass: two users may send the same, and then ``==`` says so."""

    name: str = field(compare=False)
    prompt: list[int]
    limit: int
    arrival_ms: float = field(default=0.0, compare=False)
    tokens: list[int] = field(default_factory=list, compare=False)
    done: int = field(default=0, compare=False)
    slot: int | None = field(default=None, compare=False)

    @property
    def finished(self) -> bool:
        """Whether it has as many tokens as it may, or the last one is EOS."""
        return len(self.tokens) >= self.limit or self.tokens[-1:] == [EOS]


class Serving:
    """``waiting`` and ``running`` requests, ``free`` slots, and ``rows``: of the step under way, empty between steps.

    The loop moves the first of ``waiting`` into the first of ``free``, at any time, and makes and launches the rows.
    """

    def __init__(self, slots: int) -> None:
        self.waiting: list[Any] = []
        self.running: list[Any] = []
        self.free: list[int] = list(range(slots))
        self.rows: list[Any] = []
