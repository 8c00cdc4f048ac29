"""What a program calls that its trace does not tell, and a host's clock on which asking and sleeping end soon."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ..simgpu.device import SimDevice
    from ..simgpu.machine import Machine

QUERIES = 50      # in one run that take their usual time; each one behind them takes a
LONGER = 100      # part of the time so far, less than is judged: with all of them a check would take minutes
LONGEST_NS = 10**9    # and no longer than that, so that the time stays a number of a trace


class Wait(NamedTuple):
    """A stream waits for all that another one was given so far; ``at``: the number of the next operation."""

    stream: int
    other: int
    at: int


@dataclass
class Calls:
    """What a program called, as far as its trace does not tell.

    ``waits``: of one stream for another, by wait_stream. ``queries``: on events and streams. ``slept_us``: on the
    host's clock. ``events``: how often one was recorded or waited for. ``void_waits``: for events that were not
    recorded yet, of the stream with the most of them.
    """

    waits: list[Wait] = field(default_factory=list)
    queries: int = 0
    slept_us: float = 0.0
    events: int = 0
    void_waits: int = 0


class _Watch:
    """Stands in for calls of one thread, on one device."""

    def __init__(self, machine: Machine, wait_stream: Callable[..., Any]) -> None:
        self.calls, self.machine, self.thread = Calls(), machine, threading.get_ident()
        self.before, self.began_ns = len(machine.host_spans), machine.host_ns
        self.real_wait, self.real_query, self.real_sleep = wait_stream, machine.query, time.sleep

    def wait_stream(self, stream: Any, other: Any) -> Any:
        self.calls.waits.append(Wait(stream.stream_id, getattr(other, "stream_id", -1), self.machine.count))
        return self.real_wait(stream, other)

    def query(self, marker: Any) -> bool:
        self.calls.queries += 1
        if self.calls.queries > QUERIES:
            self.machine.spend(min((self.machine.host_ns - self.began_ns) // LONGER, LONGEST_NS), "query", "event")
        return self.real_query(marker)

    def sleep(self, seconds: float) -> None:
        if threading.get_ident() != self.thread or not seconds > 0:
            return self.real_sleep(seconds)
        self.calls.slept_us += seconds * 1e6
        self.machine.spend(int(seconds * 1e9), "sleep")

    def count_events(self) -> None:
        spans = self.machine.host_spans[self.before:]
        self.calls.events = sum(span.kind == "event" and span.name != "query" for span in spans)
        self.calls.void_waits = max((len(queue.void_waits) for queue in self.machine.queues), default=0)


@contextmanager
def watching(gpu: SimDevice) -> Iterator[Calls]:
    """Note the calls made inside the block. Sleeping takes the simulated host's time, and none of the real one's."""
    from ..simgpu.streams import Stream

    machine, watch = gpu.machine, _Watch(gpu.machine, Stream.wait_stream)

    def wait_stream(self: Any, stream: Any) -> Any:   # a function, for PyTorch's names of its parameters
        return watch.wait_stream(self, stream)

    Stream.wait_stream, machine.query, time.sleep = wait_stream, watch.query, watch.sleep
    try:
        yield watch.calls
    finally:
        Stream.wait_stream, time.sleep = watch.real_wait, watch.real_sleep
        del machine.query
        watch.count_events()
