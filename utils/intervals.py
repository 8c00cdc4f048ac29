"""Arithmetic on sets of time intervals, for busy, overlapping and uncovered time.

An interval set is a pair of float64 arrays ``(starts, ends)``, sorted and disjoint, as :func:`union` returns it.
Every other function takes such sets, so that time counted twice (two kernels side by side) can never enter a sum.
Times may be in any unit, the same everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Intervals = tuple[Array, Array]

EMPTY: Intervals = (np.empty(0), np.empty(0))


def union(starts: Sequence[float] | Array, ends: Sequence[float] | Array) -> Intervals:
    """Merge intervals in any order into a sorted, disjoint set; touching ones join, empty and negative ones vanish.

    ``starts`` and ``ends``: n times each. Raises ValueError when their lengths differ or a time is NaN.
    """
    first, last = np.asarray(starts, dtype=np.float64), np.asarray(ends, dtype=np.float64)
    if first.shape != last.shape:
        raise ValueError(f"{first.size} starts but {last.size} ends: give one end for every start")
    if np.isnan(first).any() or np.isnan(last).any():
        raise ValueError("a start or an end is NaN: drop spans without a time before merging them")
    kept = last > first
    if not kept.any():
        return EMPTY
    first, last = first[kept], last[kept]
    order = np.argsort(first, kind="stable")
    first, last = first[order], last[order]
    reach = np.maximum.accumulate(last)
    opens = np.concatenate(([True], first[1:] > reach[:-1]))   # starts beyond everything before it
    closes = np.concatenate((opens[1:], [True]))
    return first[opens], reach[closes]


def measure(intervals: Intervals) -> float:
    """Total length of an interval set."""
    starts, ends = intervals
    return float((ends - starts).sum())


def clip(intervals: Intervals, start: float, stop: float) -> Intervals:
    """The part of an interval set that lies between ``start`` and ``stop``."""
    starts, ends = np.clip(intervals[0], start, stop), np.clip(intervals[1], start, stop)
    kept = ends > starts
    return starts[kept], ends[kept]


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Times that lie in both sets."""
    if not a[0].size or not b[0].size:
        return EMPTY
    # between two neighbouring boundaries nothing changes: keep the cells that both sets cover
    edges = np.unique(np.concatenate((*a, *b)))
    kept = _covers(a, edges[:-1]) & _covers(b, edges[:-1])
    return union(edges[:-1][kept], edges[1:][kept])


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Times that lie in ``a`` and not in ``b``."""
    if not a[0].size or not b[0].size:
        return a
    edges = np.unique(np.concatenate((*a, *b)))
    kept = _covers(a, edges[:-1]) & ~_covers(b, edges[:-1])
    return union(edges[:-1][kept], edges[1:][kept])


def _covers(intervals: Intervals, times: Array) -> NDArray[np.bool_]:
    """Whether each time lies in the set, counting an interval's start and not its end."""
    starts, ends = intervals
    at = np.searchsorted(starts, times, side="right") - 1
    return (at >= 0) & (times < ends[np.maximum(at, 0)])
