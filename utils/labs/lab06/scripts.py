"""Workloads on which ``Releasing`` is judged: requests, and when they are cancelled."""

from __future__ import annotations

import random
from dataclasses import dataclass

from .data import lesson
from .serving import EOS, Asked

TRIES = 10_000        # prompts looked at
BETWEEN, UNDER_WAY = "between", "under way"


@dataclass(frozen=True)
class Script:
    """Requests (prompt, limit) that all wait from the start, and cancels: (step, when, which request).

    ``when``: between steps, before the step is made, or while it is under way.
    """

    on: str
    slots: int
    budget: int
    asked: tuple[tuple[tuple[int, ...], int], ...]
    cancels: tuple[tuple[int, str, int], ...] = ()

    def __str__(self) -> str:
        return self.on


def _ends_with_eos(limit: int) -> tuple[int, ...]:
    """A prompt whose answer ends with EOS exactly at its limit."""
    rng = random.Random(limit)
    for _ in range(TRIES):
        prompt = tuple(rng.randrange(1, lesson().WORDS) for _ in range(5))
        tokens = lesson().expected(Asked("", list(prompt), limit + 3))
        if len(tokens) == limit and tokens[-1] == EOS:
            return prompt
    raise LookupError(f"no answer of this model ends with EOS at token {limit}")


def scripts() -> list[Script]:
    """What is judged: one for each way to end, then at random."""
    same, other, long = (7, 3, 9), (4, 8), tuple(range(1, 15))
    some = ((same, 4), (other, 3), ((5,), 5), ((6, 2, 2, 8), 2), ((9, 9), 6))
    both = _ends_with_eos(3)
    found = [
        Script("requests that end at their limits", 2, 8, some),
        Script("EOS and the limit in the same step", 2, 8, ((both, 3), (both, 9), *some)),
        Script("cancel between two steps", 2, 8, some, ((2, BETWEEN, 0),)),
        Script("cancel twice", 2, 8, some, ((2, BETWEEN, 0), (2, BETWEEN, 0), (3, BETWEEN, 0))),
        Script("cancel of one that waits", 2, 8, some, ((1, BETWEEN, 3), (1, BETWEEN, 3))),
        Script("cancel of one that is finished", 2, 8, some, ((12, BETWEEN, 0), (12, UNDER_WAY, 1))),
        Script("cancel while a step is under way", 2, 8, (*some, (long, 4)), ((2, UNDER_WAY, 0),)),
        Script("cancel twice while a step is under way", 2, 8, (*some, (long, 4)), ((2, UNDER_WAY, 1),) * 2),
        Script("cancel in the step of the last token", 2, 8, ((same, 4), (other, 9), *some), ((3, UNDER_WAY, 0),)),
        Script("cancel within a long prompt", 2, 4, ((long, 4), *some), ((1, UNDER_WAY, 0),)),
        Script("cancel of a prompt that has no row in the step under way", 3, 3,
               ((other, 6), (long, 4), (tuple(range(2, 12)), 3), *some), ((1, UNDER_WAY, 2),)),
        Script("two equal requests, one cancelled", 2, 8, ((same, 6), (same, 6), (other, 3), (same, 6), (same, 6)),
               ((2, BETWEEN, 1), (3, BETWEEN, 4))),
        Script("two equal requests, one cancelled under way", 2, 8, ((same, 6), (same, 6), (other, 3), (same, 6)),
               ((3, UNDER_WAY, 1),)),
    ]
    return found + [_random(seed) for seed in range(12)]


def _random(seed: int) -> Script:
    rng = random.Random(seed)
    asked = [(tuple(rng.randrange(1, 9) for _ in range(rng.randint(1, 12))), rng.randint(1, 8)) for _ in range(6)]
    asked += rng.choices(asked, k=4)   # equal ones
    cancels = tuple((rng.randrange(30), rng.choice((BETWEEN, UNDER_WAY)), rng.randrange(10)) for _ in range(8))
    return Script(f"10 requests at random, {seed}", 3, 6, tuple(asked), cancels)
