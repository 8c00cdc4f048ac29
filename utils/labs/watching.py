"""What a program calls that its trace does not tell, and a host's clock on which asking and sleeping end soon."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ..simgpu.device import SimDevice

QUERIES = 50      # in one run that take their usual time; each one behind them takes a
LONGER = 100      # part of the time so far, less than is judged: with all of them a check would take minutes


class Wait(NamedTuple):
    """A stream waits for all that another one was given so far; ``at``: the number of the next operation."""

    stream: int
    other: int
    at: int


@dataclass
class Calls:
    """``waits``: of one stream for another, by wait_stream. ``queries``: on events and streams.
    ``events``: how often one was recorded or waited for. ``void_waits``: for events that were not recorded yet, of the
    stream with the most of them."""

    waits: list[Wait] = field(default_factory=list)
    queries: int = 0
    events: int = 0
    void_waits: int = 0


@contextmanager
def watching(gpu: SimDevice) -> Iterator[Calls]:
    """Note the calls made inside the block. Sleeping takes the simulated host's time, and none of the real one's."""
    from ..simgpu.streams import Stream

    calls, machine, caller = Calls(), gpu.machine, threading.get_ident()
    before, began_ns = len(machine.host_spans), machine.host_ns
    wait_stream, query, sleep = Stream.wait_stream, machine.query, time.sleep

    def noted(stream: Any, other: Any) -> Any:
        calls.waits.append(Wait(stream.stream_id, getattr(other, "stream_id", -1), machine.count))
        return wait_stream(stream, other)

    def asked(marker: Any) -> bool:
        calls.queries += 1
        if calls.queries > QUERIES:
            machine.spend((machine.host_ns - began_ns) // LONGER, "query", "event")
        return query(marker)

    def slept(seconds: float) -> None:
        if threading.get_ident() != caller or not seconds > 0:
            return sleep(seconds)
        machine.spend(int(seconds * 1e9), "sleep")

    Stream.wait_stream, machine.query, time.sleep = noted, asked, slept
    try:
        yield calls
    finally:
        Stream.wait_stream, time.sleep = wait_stream, sleep
        del machine.query
        calls.events = sum(span.kind == "event" and span.name != "query" for span in machine.host_spans[before:])
        calls.void_waits = max((len(queue.void_waits) for queue in machine.queues), default=0)
