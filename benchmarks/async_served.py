"""What async_batching.py serves, and the four ways to serve it: lesson 06's and 07's loops, eager and with CUDA graphs.

A step in which every row is of another slot goes through ``SlotDecoder.decode``, which reads the cache in place; the
graphs hold such a step, with padding rows for slots that have none, and one graph belongs to each slot of the pipeline.
Other steps, with pieces of prompts, are launched operator by operator in every way.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from utils import simgpu
from utils.decoder import SlotDecoder
from utils.lessons import import_lesson

lesson_06, lesson_07 = import_lesson("06_continuous_batching"), import_lesson("07_async_batching")
Padded, now_ms = import_lesson("08_cuda_graphs").Padded, lesson_06.now_ms
PADDING = (0, 0, -1, -1)                # token, cache slot, position, source


# ---- requests, and who is in a step

class Request(lesson_06.Request):
    """Ends by its limit alone: to random weights EOS is a token like others."""

    @property
    def finished(self) -> bool:
        return len(self.tokens) >= self.limit


@dataclass(frozen=True)
class Work:
    """So many requests at once, with random prompts of one length, and rows per step."""
    requests: int
    prompt: int
    tokens: int
    budget: int
    words: int
    seed: int = 7

    def make(self) -> list[Request]:
        rng = random.Random(self.seed)
        return [Request(f"r{n}", [rng.randrange(self.words) for _ in range(self.prompt)], self.tokens)
                for n in range(self.requests)]


class Told:
    """A scheduler that tells the model what the next step consists of, and keeps the host busy for a while."""

    model: Served
    busy_us: float = 0.0

    def step(self, at_ms: float) -> list[Any]:
        rows = super().step(at_ms)              # type: ignore[misc]
        self.model.one_each = len({row.slot for row in rows}) == len(rows)
        busy(self.busy_us)
        return rows


class Batching(Told, lesson_06.Batching):
    pass


class AsyncBatching(Told, lesson_07.AsyncBatching):
    pass


def busy(us: float) -> None:
    """Host work: in simulated time, or by looking at the clock again and again."""
    if simgpu.active():
        simgpu.host_work(us, "busy")
        return
    until = time.perf_counter() + us / 1e6
    while time.perf_counter() < until:
        pass


# ---- the model, as the loops call it

class Served:
    """A decoder, with events around each of its steps, and the host's time to launch it."""

    def __init__(self, decoder: SlotDecoder):
        self.decoder, self.slots, self.length = decoder, decoder.slots, decoder.length
        self.one_each, self.begun = False, None
        self.forget()

    def forget(self) -> None:
        self.spans, self.launches = [], []

    def begin(self) -> None:
        """From here on it is the next step's time."""
        self.begun = mark()

    @contextmanager
    def timed(self) -> Iterator[None]:
        begun, self.begun = self.begun or mark(), None
        since = now_ms()
        yield
        self.launches.append(now_ms() - since)
        self.spans.append((begun, mark()))

    def __call__(self, tokens: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        with self.timed():
            if self.one_each:
                return self.decode(tokens, slots, positions)
            return self.decoder(tokens, slots, positions)

    def decode(self, *rows: torch.Tensor) -> torch.Tensor:
        return self.decoder.decode(*rows)


class Replayed(Served):
    """Its decode steps replay one graph, for the synchronous loop."""

    def __init__(self, decoder: SlotDecoder):
        super().__init__(decoder)
        self.static = padding(decoder.slots)[:3].to("cuda")
        self.graph, self.outputs = capture(lambda: decoder.decode(*self.static), torch.cuda.Stream(), None)

    def __call__(self, *rows: torch.Tensor) -> torch.Tensor:
        if self.one_each:               # before the step's time: the other loops' rows are in place already
            count = len(rows[0])
            for static, given in zip(self.static, rows, strict=True):
                static[:count].copy_(given)
            self.static[2, count:].fill_(-1)
        return super().__call__(*rows)

    def decode(self, *rows: torch.Tensor) -> torch.Tensor:
        self.graph.replay()
        return self.outputs[:len(rows[0])]


def mark() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def padding(rows: int) -> torch.Tensor:
    """int64 (4, rows) on the host."""
    return torch.tensor(PADDING)[:, None].repeat(1, rows)


def capture(step: Callable[[], Any], stream: torch.cuda.Stream, pool: Any) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph of ``step`` and what it returned, which dies when another graph of its pool is replayed."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, pool=pool):
        found = step()
    torch.cuda.synchronize()
    return graph, found


# ---- the asynchronous pipeline

class Timed(lesson_07.Streams):
    """A step's time begins with its carry-over."""

    def carry(self, tokens: torch.Tensor, sources: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        self.model.begin()
        return lesson_07.carry(tokens, sources, before)


class Graphed(Timed):
    """A graph for each slot, captured before serving, carry-over included; both in one pool, outputs outside."""

    def __init__(self, model: Served, rows: int):
        super().__init__(model, rows)
        self.slots, self.graphs = [Padded(rows), Padded(rows)], {}

    def capture(self, shared: bool = True, count: int = 2) -> Graphed:
        """Of the first ``count`` slots."""
        pool = torch.cuda.graph_pool_handle() if shared else None
        for slot, before in (self.slots, self.slots[::-1])[:count]:
            self.graphs[slot], _ = capture(lambda slot=slot, before=before: self.one_step(slot, before),
                                           self.computing, pool)
        return self

    def one_step(self, slot: Any, before: Any) -> None:
        count = self.model.slots
        tokens, slots, positions, sources = slot.inputs[:, :count]
        tokens = lesson_07.carry(tokens, sources, before.outputs)
        slot.outputs[:count] = self.model.decoder.decode(tokens, slots, positions)

    def compute(self, slot: Any, before: Any, rows: int) -> None:
        if not self.model.one_each:
            return super().compute(slot, before, rows)
        with torch.cuda.stream(self.computing):
            self.computing.wait_event(slot.copied_in)
            with self.model.timed():
                self.graphs[slot].replay()
            slot.computed.record()


# ---- a run

SYNC, ASYNC, SYNC_GRAPHS, ASYNC_GRAPHS = "synchronous", "asynchronous", "synchronous, graphs", "asynchronous, graphs"
WAYS = (SYNC, ASYNC, SYNC_GRAPHS, ASYNC_GRAPHS)
PAIRS = ((SYNC, ASYNC), (SYNC_GRAPHS, ASYNC_GRAPHS))


@dataclass
class Played:
    """One run of a loop: times in ms."""
    wall: float
    steps: int
    forward: list[float]                # each step's time on the device
    launches: list[float]               # the host's to launch it, during which the device may be at it
    between: list[float]                # from a step's end to the next one's begin
    tokens: list[list[int]]

    @property
    def idle_between(self) -> float:
        """Share of the time from the first step's begin to the last one's end."""
        return sum(self.between) / (sum(self.between) + sum(self.forward))

    @property
    def host(self) -> float:
        """What a step of the synchronous loop takes beside its time on the device, h."""
        return (self.wall - sum(self.forward)) / self.steps

    @property
    def ahead(self) -> float:
        """Of a synchronous run, the wall time of the asynchronous one: a step takes max(H, g), as lesson 06 has it.

        H is all that the host does, h and the launches, which the synchronous loop has under g: pieces of prompts are
        launched operator by operator, and that takes long. One h more: nothing hides the first step's, or the last look
        for rows.
        """
        each = zip(self.launches, self.forward, strict=True)
        return sum(max(self.host + launch, g) for launch, g in each) + self.host

    @property
    def gpu(self) -> float:
        return sum(self.forward) / self.steps


class Ways:
    """All four on one decoder; graphs, streams and buffers are made once, here, as a server would."""

    def __init__(self, decoder: SlotDecoder, budget: int):
        self.decoder, self.budget = decoder, budget
        self.eager, self.replayed = Served(decoder), Replayed(decoder)
        self.timed, self.graphed = Timed(self.eager, budget), Graphed(self.eager, budget).capture()

    def warm_up(self, work: Work) -> None:
        """Everything once, shortly: kernels are loaded, and each stream has its memory."""
        for name in WAYS:
            self.run(name, replace(work, tokens=min(work.tokens, 4)))

    def run(self, way: str, work: Work, busy_us: float = 0.0) -> Played:
        """Serve everything once."""
        model = self.replayed if way == SYNC_GRAPHS else self.eager
        scheduler = (AsyncBatching if way in (ASYNC, ASYNC_GRAPHS) else Batching)(model.slots, self.budget)
        scheduler.model, scheduler.busy_us = model, busy_us
        requests = work.make()
        model.forget()
        scheduler.add(*requests)
        torch.cuda.synchronize()
        begin = now_ms()
        steps = self.loop(way)(model, scheduler)
        torch.cuda.synchronize()
        wall = now_ms() - begin
        return played(wall, steps, model, requests)

    def loop(self, way: str) -> Callable[..., int]:
        if way in (SYNC, SYNC_GRAPHS):
            return lesson_06.synchronous
        pipeline = self.timed if way == ASYNC else self.graphed
        pipeline.steps = 0
        return lambda model, scheduler: lesson_07.asynchronous(model, scheduler, pipeline=lambda model, rows: pipeline)


def played(wall: float, steps: int, model: Served, requests: list[Request]) -> Played:
    spans = model.spans
    if len(spans) != steps or not all(request.finished for request in requests):
        raise RuntimeError(f"{len(spans)} steps on the device, {steps} of the loop; "
                           f"{sum(request.finished for request in requests)} of {len(requests)} requests are finished")
    forward = [begin.elapsed_time(end) for begin, end in spans]
    between = [end.elapsed_time(begin) for (_, end), (begin, _) in itertools.pairwise(spans)]
    return Played(wall, steps, forward, model.launches, between, [request.tokens for request in requests])
