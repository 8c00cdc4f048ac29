"""What a learner's ``Stopping`` starts from, and workloads in which requests stop in every way and at every time."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .serving import requests_lesson

TRIES = 20_000        # prompts looked at
CANCEL, PREEMPT, AGAIN = "cancel", "preempt", "again"


class Serving:
    """``waiting`` and ``running`` requests, ``free`` slots, and ``newest``: the rows of the step that is under way.

    The loop makes rows, admits the first of ``waiting`` into the first of ``free`` before each step, and calls
    ``cancel`` and ``preempt`` between two launches.
    """

    def __init__(self, slots: int) -> None:
        self.waiting: list[Any] = []
        self.running: list[Any] = []
        self.free: list[int] = list(range(slots))
        self.newest: list[Any] = []

    def cancel(self, request: Any) -> None:
        """Its user takes it back."""
        if any(one is request for one in self.running):
            self.release(request)
        self.waiting = [one for one in self.waiting if one is not request]

    def preempt(self, request: Any) -> None:
        """It has to make room: it waits again, first in line, and starts over with all tokens that it has."""
        if any(one is request for one in self.running):
            self.release(request)
            request.done = 0
            self.waiting.insert(0, request)

    def release(self, request: Any) -> None:
        """Yours: give its slot back."""
        raise NotImplementedError


@dataclass(frozen=True)
class Script:
    """Requests (prompt, limit) that wait from the start, and what happens before a step: (step, how, which request).

    AGAIN: another request with the same name, prompt and limit comes.
    """

    on: str
    slots: int
    budget: int
    asked: tuple[tuple[tuple[int, ...], int], ...]
    events: tuple[tuple[int, str, int], ...] = ()

    def __str__(self) -> str:
        return self.on


@lru_cache(maxsize=8)
def ends_with_eos(tokens: int) -> tuple[int, ...]:
    """A prompt whose answer ends with EOS as token number ``tokens``."""
    rng, lesson = random.Random(tokens), requests_lesson()
    for _ in range(TRIES):
        prompt = tuple(rng.randrange(1, lesson.WORDS) for _ in range(4))
        found = lesson.expected(lesson.Request("", list(prompt), tokens + 1))
        if len(found) == tokens and found[-1] == lesson.EOS:
            return prompt
    raise LookupError(f"no answer of this model ends with EOS at token {tokens}")


@lru_cache(maxsize=1)
def scripts() -> tuple[Script, ...]:
    """What is judged: one for each way to stop, preemption before every step, then at random."""
    short, long = (7, 3, 9), tuple(range(1, 15))
    ends = tuple((ends_with_eos(n), 12) for n in (2, 4, 5))
    limits = ((short, 4), ((4, 8), 3), ((5,), 5), ((6, 2, 2, 8), 2), ((9, 9), 1))
    both = ((ends_with_eos(4), 4), (ends_with_eos(2), 2))
    found = [
        Script("answers that end at their limits", 2, 8, limits),
        Script("answers that end with EOS", 2, 8, (*ends, *limits)),
        Script("EOS and the limit in the same step", 2, 8, (*both, *ends, *limits)),
        Script("one slot, that is taken again at once", 1, 4, (*ends, *both, *limits)),
        Script("long prompts", 3, 4, ((long, 4), *ends, (long[::-1], 3), *limits)),
        Script("cancel", 2, 8, (*limits, *ends), ((2, CANCEL, 0), (3, CANCEL, 1), (3, CANCEL, 7))),
        Script("cancel, and the same request again at once", 2, 8, ((short, 6), ((4, 8), 9)),
               ((3, CANCEL, 0), (3, AGAIN, 0), (5, CANCEL, 1), (5, AGAIN, 1))),
        Script("idle, then a new request", 2, 8, (*ends[:1], (short, 3)), ((12, AGAIN, 0), (20, AGAIN, 1))),
    ]
    found += [Script(f"preempt before step {at}", 2, 8, (ends[1], (short, 5), ends[0], (long, 3)),
                     ((at, PREEMPT, at % 2), (at + 4, PREEMPT, 3))) for at in range(1, 9)]
    found.append(Script("one slot, preempt again and again", 1, 8, ((short, 6), ends[1]),
                        tuple((at, PREEMPT, at // 12) for at in range(3, 24, 3))))
    return tuple(found + [_random(seed) for seed in range(12)])


def _random(seed: int) -> Script:
    rng = random.Random(seed)
    asked = [(tuple(rng.randrange(1, 50) for _ in range(rng.randint(1, 12))), rng.randint(1, 8)) for _ in range(8)]
    asked += [(ends_with_eos(rng.choice((2, 4, 5))), 9) for _ in range(3)]
    events = tuple((rng.randrange(1, 24), rng.choice((CANCEL, PREEMPT, PREEMPT, AGAIN)), rng.randrange(11))
                   for _ in range(7))
    return Script(f"11 requests at random, {seed}", 3, 6, tuple(asked), events)
