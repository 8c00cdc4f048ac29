"""What is odd about a trace that was read whole: said once each, with the count and the first example."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import TraceWarning
from .spans import KIND_CODES, NS_PER_US, WORK_KINDS, Spans

EXACT_NS = 2**53                 # 104 days
CLOCK_STEP_NS = 1                # a start and a duration that were rounded on their own may disagree by this much


def warn(label: str, names: list[str], what: str) -> None:
    """Warn about spans, unless there are none."""
    if names:
        warnings.warn(f"{label}: {len(names)} spans {what}; the first is {names[0]!r}", TraceWarning, stacklevel=2)


def clip_negative(columns: dict[str, NDArray[Any]], label: str) -> None:
    """Set durations below zero to zero, in place."""
    negative = np.flatnonzero(columns["duration_ns"] < 0)
    if negative.size:
        first = columns["duration_ns"][negative[0]] / NS_PER_US
        names = [str(columns["name"][at]) for at in negative]
        warn(label, names, f"have a negative duration (the first {first:g} us): kept with duration 0")
        columns["duration_ns"][negative] = 0


def tell_overlaps(spans: Spans, label: str) -> None:
    """Warn when work overlaps within one stream, which a stream's order rules out; measures count such time once."""
    late = overlapping(spans)
    if late.size:
        at = late[0]
        where = f"first on stream {spans.stream[at]} at {spans.start_ns[at] / NS_PER_US:.3f} us"
        text = f"overlap earlier work on their own stream: kept, busy time counts once; {where}"
        warn(label, [str(spans.name[index]) for index in late], text)


def tell_span(spans: Spans, label: str) -> None:
    """Warn when a trace covers more time than nanoseconds in a double can tell apart: some stamp must be wrong."""
    if len(spans) and spans.start_ns[-1] - spans.start_ns[0] > EXACT_NS:
        gap = int(np.argmax(np.diff(spans.start_ns)))
        text = f"{label}: its spans cover more than 104 days, with the widest gap before {spans.name[gap + 1]!r}"
        warnings.warn(f"{text}: stamps of two kinds in one file; measures across the gap are not exact", TraceWarning,
                      stacklevel=2)


def overlapping(spans: Spans) -> NDArray[np.int64]:
    """Indices of device work that starts before earlier work on its stream and device has ended."""
    work = np.flatnonzero(np.isin(spans.kind, [KIND_CODES[kind] for kind in WORK_KINDS]) & (spans.duration_ns > 0))
    order = work[np.lexsort((spans.stream[work], spans.device[work]))]      # stable: starts stay sorted within a stream
    if not order.size:
        return order
    changes = (np.diff(spans.stream[order]) != 0) | (np.diff(spans.device[order]) != 0)
    late = [_late(spans, queue) for queue in np.split(order, np.flatnonzero(changes) + 1)]
    return np.sort(np.concatenate(late))


def _late(spans: Spans, queue: NDArray[np.int64]) -> NDArray[np.int64]:
    starts = spans.start_ns[queue]
    reach = np.maximum.accumulate(starts + spans.duration_ns[queue])
    return queue[1:][starts[1:] < reach[:-1] - CLOCK_STEP_NS]
