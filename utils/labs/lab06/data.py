"""What lab 06 serves: workloads of requests, the lesson's model in plain Python, and a chart of slots and steps."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

LESSON = "06_continuous_batching"
NAMES = "abcdefghijklmnopqrstuvwxyz"
COLUMNS = 50          # steps that a chart shows
HEAD = 22             # characters before them


@lru_cache(maxsize=1)
def lesson() -> ModuleType:
    """Lesson 06: its requests, rows, and what the model answers."""
    from ...lessons import import_lesson

    return import_lesson(LESSON)


@dataclass(frozen=True)
class Workload:
    """Requests for so many slots and rows in a step; ``asked``: (length of the prompt, limit, arrival in ms) of each.

    A step takes 1 ms.
    """

    slots: int
    budget: int
    asked: tuple[tuple[int, int, float], ...]
    prefixes: bool = False      # the first half of every other prompt is in the cache already

    def __str__(self) -> str:
        return (f"{len(self.asked)} requests, {self.slots} slot{'s' * (self.slots != 1)}, {self.budget} rows a step"
                f"{', with prefixes' * self.prefixes}")

    def requests(self, make: Callable[..., Any] | None = None) -> list[Any]:
        """Fresh requests, in the order in which they were asked."""
        rng = random.Random(len(self.asked) * 100 + self.slots)
        make = make or lesson().Request
        return [make(NAMES[n], [rng.randrange(1, lesson().WORDS) for _ in range(length)], limit, arrival_ms)
                for n, (length, limit, arrival_ms) in enumerate(self.asked)]


def random_workload(count: int, slots: int, budget: int, gap_ms: float, seed: int, longest: int = 16) -> Workload:
    """Requests of all lengths, which do not lie in the order in which they arrive."""
    rng = random.Random(seed)
    asked = [(rng.randint(1, 20), rng.randint(1, longest), n * gap_ms) for n in range(count)]
    rng.shuffle(asked)
    return Workload(slots, budget, tuple(asked))


class Cells:
    """The lesson's model in plain Python: what each row of a step writes, and the token that follows it."""

    def __init__(self) -> None:
        self.layers: list[dict[tuple[int, int], int]] = [{} for _ in range(lesson().LAYERS)]   # by slot and position

    def step(self, rows: Iterable[tuple[int, int, int, bool]]) -> list[int | None]:
        """Rows of token, slot, position and whether it is asked what follows -> that, or None."""
        rows, mix, prime = list(rows), lesson().mix, lesson().PRIME
        x = [token for token, *_ in rows]
        for cells in self.layers:
            cells.update(((slot, position), mix(value, position))
                         for value, (_, slot, position, _) in zip(x, rows, strict=True))
            x = [sum(cells.get((slot, n), 0) * pow(31, n, prime) for n in range(position + 1)) % prime
                 for _, slot, position, _ in rows]
        return [value * value % prime % lesson().WORDS if asked else None
                for value, (*_, asked) in zip(x, rows, strict=True)]


def right_rows(running: Iterable[Any], budget: int) -> list[Any]:
    """Decodes, and chunks of prompts in what they leave of the budget."""
    row, running = lesson().Row, list(running)
    rows = [row(request, request.tokens[-1], request.done + len(request.tokens) - 1, True)
            for request in running if decodes(request)]
    for request in running:
        if not decodes(request):
            stop = min(len(request.prompt), request.done + budget - len(rows))
            rows += [row(request, request.prompt[n], n, n == len(request.prompt) - 1)
                     for n in range(request.done, stop)]
    return rows


def decodes(request: Any) -> bool:
    """Whether all of its prompt has gone through the model."""
    return request.done >= len(request.prompt)


class Chart:
    """Which request has each slot in each step: small letters while its prompt goes through, capitals in decode."""

    def __init__(self, slots: int) -> None:
        self.slots, self.columns = slots, []

    def note(self, running: Sequence[Any]) -> None:
        """The next step."""
        column = ["."] * self.slots
        for request in running:
            if request.slot is not None and request.slot < self.slots:
                column[request.slot] = request.name.upper() if decodes(request) else request.name
        self.columns.append(column)

    def lines(self, title: str, start: int = 0) -> list[str]:
        """One line for each slot, with the steps from ``start`` on."""
        stop = min(len(self.columns), start + COLUMNS)
        ruler = "".join(f"{n:<10}" for n in range(start, stop, 10))[:stop - start + 3]
        rest = " ..." if stop < len(self.columns) else ""
        return [f"{title}, step".ljust(HEAD) + ruler.rstrip(),
                *(f"  slot {slot}".ljust(HEAD) + "".join(column[slot] for column in self.columns[start:stop]) + rest
                  for slot in range(self.slots))]


KEY = "small letters: a request's prompt, capitals: its decode, . the slot is free"


@dataclass(frozen=True)
class Table:
    """A witness in text."""

    text: str

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return {"text/plain": self.text}


def around(step: int) -> int:
    """The first step that a chart shows, so that ``step`` is in it."""
    return max(0, step - COLUMNS * 2 // 3) // 10 * 10
