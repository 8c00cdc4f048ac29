"""Random workloads for lesson 07's loop: who comes when, who leaves, what is slow; and what has to hold afterwards.

``draw`` makes one from a ``random.Random``, ``run`` serves it with lesson 06's loop and with lesson 07's, and says
what is wrong. The tests run some of them, and everything with a piece left out; ``async_workloads.py`` runs many.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch

from benchmarks.async_workloads_seen import Watch, wrong_requests
from benchmarks.async_workloads_waits import wrong_waits
from utils import simgpu
from utils.lessons import import_lesson

lesson_06, lesson_07 = import_lesson("06_continuous_batching"), import_lesson("07_async_batching")
Request = lesson_06.Request

CANCEL, PREEMPT, RESUBMIT = "cancel", "preempt", "resubmit"


@dataclass(frozen=True)
class Disturbance:
    """After ``after`` steps somebody is cancelled, preempted, or cancelled and sent again.

    ``under_way``: while that step is being queued, so that two of his rows may be in flight.
    """

    after: int
    who: int
    how: str
    under_way: bool


@dataclass(frozen=True)
class Workload:
    """Requests as (prompt, limit, arrival in ms), and all that may happen to them and to the machine."""

    requests: tuple[tuple[tuple[int, ...], int, float], ...]
    slots: int = 2
    budget: int = 4
    disturbances: tuple[Disturbance, ...] = ()
    skips: frozenset[tuple[int, int]] = frozenset()     # (step, request) in which that request gets no row
    host_us: float = 0
    mm_us: float = 40
    copy_us: tuple[float, float] = (0, 0)               # how long a copy in and a copy out take
    copy_engines: int = 2
    delays_us: tuple[tuple[int, ...], ...] = ((0,), (0,), (0,))   # before a step's part in each stream, step by step
    numerics: str = "exact"

    @property
    def cells(self) -> int:
        return max(len(prompt) + limit - 1 for prompt, limit, _ in self.requests)

    def profile(self) -> simgpu.Profile:
        """An H200 with these products and copies."""
        rates = [1e9 if not us else nbytes / us * 1e6
                 for us, nbytes in zip(self.copy_us, (32 * self.budget, 8 * self.budget), strict=True)]
        return replace(simgpu.H200.with_op_time(mm=round(self.mm_us * 1000)), copy_engines=self.copy_engines,
                       h2d_bytes_per_s=rates[0], d2h_bytes_per_s=rates[1])

    def make(self) -> list[Any]:
        return [Request("same name", list(prompt), limit, at_ms) for prompt, limit, at_ms in self.requests]


@dataclass
class Outcome:
    """What happened, counted, and what is wrong: nothing, it is hoped."""

    counts: Counter = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    hazards: int = 0


# drawing

@cache
def prompt(length: int, seed: int, eos: int | None) -> tuple[int, ...]:
    """Tokens; where such a prompt is found, the answer's token number ``eos`` is EOS."""
    rng = random.Random(1000 * length + seed)
    for _ in range(200):
        tokens = [rng.randrange(lesson_06.WORDS) for _ in range(length)]
        if eos is None or lesson_06.expected(Request("", tokens, eos + 2))[eos:] == [lesson_06.EOS]:
            break
    return tuple(tokens)


def draw(rng: random.Random) -> Workload:
    """Up to six requests, of which a third or so end by EOS; one workload in three leaves everybody alone."""
    requests, at_ms = [], 0.0
    for _ in range(rng.randint(1, 6)):
        at_ms += rng.choice((0, 0, 0, 0.1, 0.4, 3))
        eos = rng.choice((None, None, None, 0, 1, 2, 3))
        limit = rng.randint(1, 5) if eos is None or rng.random() < 0.3 else rng.randint(eos + 1, eos + 3)
        requests.append((prompt(rng.choice((1, 1, 2, 3, 5, 8)), rng.randint(0, 3), eos), limit, at_ms))
    slots = rng.randint(1, 3)
    quiet = rng.random() < 1 / 3
    return Workload(
        tuple(requests), slots, slots + rng.choice((0, 0, 1, 3, 9)),
        () if quiet else tuple(disturbance(rng) for _ in range(rng.randint(0, 4))),
        frozenset() if quiet else frozenset((rng.randint(0, 9), rng.randint(0, 5)) for _ in range(rng.randint(0, 6))),
        host_us=rng.choice((0, 0, 50, 400)), mm_us=rng.choice((1, 40, 300)),
        copy_us=(rng.choice((0, 0, 60, 900)), rng.choice((0, 0, 60, 900))), copy_engines=rng.randint(1, 2),
        delays_us=tuple(tuple(rng.choice((0, 0, 30, 400, 1500)) for _ in range(rng.randint(1, 3))) for _ in range(3)),
        numerics=rng.choice(("exact", "adversarial")))


def disturbance(rng: random.Random) -> Disturbance:
    return Disturbance(rng.randint(0, 12), rng.randint(0, 7), rng.choice((CANCEL, PREEMPT, PREEMPT, RESUBMIT)),
                       rng.random() < 0.4)


# running

def delayed(pipeline: type, delays_us: tuple[tuple[int, ...], ...]) -> type:
    """The same pipeline, in which each stream is held up before its part of a step."""

    class Delayed(pipeline):
        def hold_up(self, n: int) -> None:
            if us := delays_us[n][self.steps % len(delays_us[n])]:
                with torch.cuda.stream(self.streams[n]):
                    torch.cuda._sleep(us * 1000)

        def copy_in(self, slot):
            self.hold_up(0)
            super().copy_in(slot)

        def compute(self, slot, before, rows):
            self.hold_up(1)
            super().compute(slot, before, rows)

        def copy_out(self, slot):
            self.hold_up(2)
            super().copy_out(slot)

    return Delayed


class Told(lesson_06.IntegerModel):
    """Tells its scheduler when a step is being queued: then somebody may leave."""

    scheduler = None

    def __call__(self, *rows):
        result = super().__call__(*rows)
        self.scheduler.disturb(under_way=True)
        return result


def synchronously(workload: Workload) -> tuple[list[list[int]], int]:
    """Each request's tokens with lesson 06's loop, where nobody is disturbed, and the number of hazards."""
    requests = workload.make()
    with simgpu.session(workload.profile(), numerics=workload.numerics, keep="none") as gpu:
        scheduler = lesson_06.Batching(workload.slots, workload.budget)
        scheduler.add(*requests)
        lesson_06.synchronous(lesson_06.IntegerModel(workload.slots, workload.cells, products=1), scheduler,
                              workload.host_us)
    return [request.tokens for request in requests], len(gpu.hazards)


def run(workload: Workload, *, pipeline: type = lesson_07.Streams, scheduler: type = lesson_07.AsyncBatching,
        loop: Callable[..., int] = lesson_07.asynchronous, waits: bool = True) -> Outcome:
    """Serve it with both loops, and judge tokens, rows, slots, hazards, and (``waits``) what the host waited for."""
    outcome, requests = Outcome(), workload.make()
    reference, hazards = synchronously(workload)
    if hazards or reference != [lesson_06.expected(request) for request in requests]:
        outcome.wrong.append("the synchronous loop's tokens are wrong, or it races")
    watched = type("Watched", (Watch, scheduler), {})(workload.slots, workload.budget)
    watched.begin(workload, requests)
    try:
        with simgpu.session(workload.profile(), numerics=workload.numerics) as gpu:
            model = Told(workload.slots, workload.cells, products=1)
            model.scheduler = watched
            torch.cuda.synchronize()
            since_us = simgpu.clock()
            steps = loop(model, watched, workload.host_us, pipeline=delayed(pipeline, workload.delays_us))
    except Exception as error:
        outcome.wrong.append(f"raises {type(error).__name__}: {error}")
        return outcome
    outcome.hazards = len(gpu.hazards)
    outcome.wrong += [f"hazard: {hazard}" for hazard in gpu.hazards[:1]]
    outcome.wrong += [*watched.wrong_rows(steps), *wrong_requests(watched, reference)]
    if waits:
        outcome.wrong += wrong_waits(gpu.trace(), steps, 8 * workload.budget, gpu.profile.sync_ns, since_us)
    outcome.counts = watched.count(steps)
    return outcome
