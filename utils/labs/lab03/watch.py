"""Watch what a learner's function does to a device: which events it records and reads, which figures it asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, NamedTuple

CLOCKS = ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time", "time_ns", "time")
FIGURES = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_stats",
           "mem_get_info", "reset_peak_memory_stats", "reset_max_memory_allocated", "empty_cache")


class Stamp(NamedTuple):
    """Where an event was recorded: behind how many calls of the model, and on which stream."""

    calls: int
    stream: Any


class Interval(NamedTuple):
    """What ``start.elapsed_time(end)`` was read as, in ms."""

    start: Stamp
    end: Stamp
    ms: float


class EventWatch:
    """The records and readings of events; ``count`` says how many calls of the model there were so far."""

    def __init__(self) -> None:
        self.count: Callable[[], int] = lambda: 0
        self.intervals: list[Interval] = []
        self._stamps: list[tuple[Any, Stamp]] = []

    def recorded(self, event: Any, stream: Any) -> None:
        """The latest record of an event is the one that counts."""
        self._stamps = [(other, stamp) for other, stamp in self._stamps if other is not event]
        self._stamps.append((event, Stamp(self.count(), stream)))

    def read(self, start: Any, end: Any, ms: float) -> None:
        found = [next((stamp for other, stamp in self._stamps if other is event), None) for event in (start, end)]
        if None not in found:
            self.intervals.append(Interval(*found, ms))


@contextmanager
def watch_events() -> Iterator[EventWatch]:
    """Follow the events of the simulated device inside the block."""
    import torch

    from ...simgpu.streams import Event

    watch, record, elapsed = EventWatch(), Event.record, Event.elapsed_time

    def watched_record(self: Any, stream: Any = None) -> None:
        record(self, stream)
        watch.recorded(self, torch.cuda.current_stream() if stream is None else stream)

    def watched_elapsed(self: Any, end_event: Any) -> float:
        ms = elapsed(self, end_event)
        watch.read(self, end_event, ms)
        return ms

    Event.record, Event.elapsed_time = watched_record, watched_elapsed
    try:
        yield watch
    finally:
        Event.record, Event.elapsed_time = record, elapsed


@contextmanager
def watch_figures(log: Callable[[str, Any], None]) -> Iterator[None]:
    """Call ``log(name, result)`` for every function about memory that is called inside, by any of its names."""
    import torch

    originals = [(where, name, getattr(where, name)) for where in (torch.cuda, torch.cuda.memory, torch.accelerator)
                 for name in FIGURES if hasattr(where, name)]

    def watched(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def ask(*arguments: Any, **named: Any) -> Any:
            result = original(*arguments, **named)
            log(name, result)
            return result
        return ask

    for where, name, original in originals:
        setattr(where, name, watched(name, original))
    try:
        yield
    finally:
        for where, name, original in originals:
            setattr(where, name, original)
