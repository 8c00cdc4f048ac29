"""What a timeline shows: lanes of bars on one time axis, free of any drawing.

    panel   one run: lanes from top to bottom, and the facts of its title
    lane    one stream on one engine, or one unit of a resource; under the lanes, if asked for, memory over time
    bar     one span of work: lane, row (spans that overlap in a lane get rows of their own), start, stop, kind
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..intervals import EMPTY, Intervals, clip, measure, union
from .memory import MemoryPanel

ROUNDING = 1e-10  # of the latest time: start + duration of one bar against the start of the next, in float64
MAX_ROWS = 3      # of overlapping spans in a lane; deeper ones share the last


@dataclass(frozen=True)
class Lane:
    """A row of the picture: engine or resource, and what tells it apart (stream, unit)."""

    engine: str
    title: str
    detail: str = ""

    @property
    def label(self) -> str:
        return f"{self.title} {self.detail}".rstrip()


@dataclass(frozen=True)
class Facts:
    """Times of the whole run, in the unit of its panel; ``bound_kind`` says which bound it is (cold, steady)."""

    actual: float
    bound: float | None = None
    bound_kind: str = ""
    uncovered: float | None = None

    @property
    def lost(self) -> float | None:
        return None if self.bound is None else self.actual - self.bound


@dataclass(frozen=True, eq=False)
class Panel:
    """One run; the arrays have one entry per bar, ordered by lane and start. Times are in ``unit``."""

    name: str
    unit: str
    lanes: tuple[Lane, ...]
    lane: NDArray[np.int64]
    start: NDArray[np.float64]
    stop: NDArray[np.float64]
    kind: NDArray[np.int64]
    label: Callable[[int], str]      # of a bar: made only for bars that are wide enough to carry it
    critical: NDArray[np.bool_]
    window: tuple[float, float]
    facts: Facts
    path: tuple[str, ...] = ()
    gaps: dict[int, Intervals] = field(default_factory=dict)
    keep_unit: bool = False          # show times in ``unit`` while they are readable
    cut_labels: bool = False         # labels that do not fit may be cut
    memory: MemoryPanel | None = None
    row: NDArray[np.int64] = field(init=False)
    rows: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        row = stack_rows(self.lane, self.start, self.stop)
        seen = self.shown()
        depth = [int(row[(self.lane == lane) & seen].max(initial=0)) + 1 for lane in range(len(self.lanes))]
        object.__setattr__(self, "row", row)
        object.__setattr__(self, "rows", tuple(depth))

    def busy(self, lane: int) -> Intervals:
        """When the lane works, inside the window."""
        mine = self.lane == lane
        return clip(union(self.start[mine], self.stop[mine]), *self.window)

    def busy_time(self, lane: int) -> float:
        return measure(self.busy(lane))

    def idle_share(self, lane: int) -> float:
        """Share of the window in which the lane does nothing."""
        return 1 - self.busy_time(lane) / (self.window[1] - self.window[0])

    def shown(self) -> NDArray[np.bool_]:
        """Which bars touch the window."""
        first, last = self.window
        return (self.start <= last) & (self.stop >= first)


def stack_rows(
    lane: NDArray[np.int64], start: NDArray[np.float64], stop: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Row of each bar in its lane, so that bars of one row never overlap (up to the last row); input ordered.

    Bars that overlap by no more than the rounding of their times touch.
    """
    row = np.zeros(len(lane), dtype=np.int64)
    stop = stop - ROUNDING * np.abs(stop).max(initial=0)
    for index in np.unique(lane):
        mine = np.flatnonzero(lane == index)
        reach = np.maximum.accumulate(stop[mine])
        if (start[mine][1:] < reach[:-1]).any():
            row[mine] = _first_free_rows(start[mine], stop[mine])
    return row


def _first_free_rows(start: NDArray[np.float64], stop: NDArray[np.float64]) -> list[int]:
    ends, rows = [-math.inf] * (MAX_ROWS - 1), []
    for first, last in zip(start.tolist(), stop.tolist(), strict=True):
        row = next((index for index, end in enumerate(ends) if end <= first), MAX_ROWS - 1)
        rows.append(row)
        if row < MAX_ROWS - 1:
            ends[row] = last
    return rows


def check_window(start: float | None, stop: float | None, whole: tuple[float, float]) -> tuple[float, float]:
    """The part to show. Raises ValueError for a window that is not a number, is empty or lies outside the run."""
    first = whole[0] if start is None else _number(start, "start")
    last = whole[1] if stop is None else _number(stop, "stop")
    if start is None and stop is None:
        return (first, last) if last > first else (first, first + 1)
    if last <= first:
        raise ValueError(f"the window runs from {first:g} to {last:g}: stop must be later than start")
    if last <= whole[0] or first >= whole[1]:
        raise ValueError(f"the window from {first:g} to {last:g} shows nothing: "
                         f"the run lies between {whole[0]:g} and {whole[1]:g}")
    return first, last


def _number(value: float, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise ValueError(f"{name} is {value!r}: give a number in the unit of the run")
    if not math.isfinite(value):
        raise ValueError(f"{name} is {value!r}: give a finite number in the unit of the run")
    return float(value)


def idle_gaps(busy: Intervals, span: tuple[float, float]) -> Intervals:
    """The times inside ``span`` that ``busy`` leaves out."""
    if span[1] <= span[0]:
        return EMPTY
    starts, ends = clip(busy, *span)
    first, last = np.concatenate(([span[0]], ends)), np.concatenate((starts, [span[1]]))
    kept = last > first
    return first[kept], last[kept]
