"""Byte ranges of one piece of memory, and who touched them last.

A ``Key`` is (low, high, pattern): bytes low to high, all of them when pattern is None, else only the runs that the
pattern lists: (run length, ((count, step), ...)) from the outermost to the innermost repetition, in bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from math import gcd, prod
from typing import Any

from .ops import Clock, Op

Pattern = tuple[int, tuple[tuple[int, int], ...]]
Key = tuple[int, int, Pattern | None]
MAX_RUNS = 1 << 16  # above this many runs a strided range is marked and reported as if it were solid
MAX_STEPS = 1 << 14  # cases that are looked at before two strided ranges count as meeting
KEEP_KEYS = 256  # distinct ranges kept per queue before those that no one can race with are dropped


@lru_cache(maxsize=8192)
def extent(shape: tuple[int, ...], stride: tuple[int, ...], itemsize: int) -> tuple[int, Pattern | None]:
    """Bytes from the first element to the end of the last, and the pattern inside (None: solid)."""
    dims = sorted((step * itemsize, size) for size, step in zip(shape, stride, strict=True) if size != 1 and step)
    if 0 in shape:
        return 0, None
    run, outer = itemsize, []
    for step, size in dims:
        if step <= run and not outer:
            run += (size - 1) * step
        else:
            outer.append((size, step))
    span = run + sum((size - 1) * step for size, step in outer)
    if not outer:
        return span, None
    return span, (run, tuple(reversed(outer)))


def runs_of(key: Key) -> Iterator[tuple[int, int]]:
    """The solid byte ranges of a key, in ascending order of the outermost repetition; too many count as one."""
    low, high, pattern = key
    if pattern is None or prod(count for count, _ in pattern[1]) > MAX_RUNS:
        yield low, high
        return
    run, outer = pattern
    for steps in product(*(range(0, count * step, step) for count, step in outer)):
        start = low + sum(steps)
        yield start, start + run


@lru_cache(maxsize=8192)
def _patterns_meet(one: Pattern | None, other: Pattern | None, shift: int, ends: tuple[int, int]) -> bool:
    """Whether runs of ``one`` (from byte 0) meet runs of ``other`` (from byte ``shift``)."""
    first, second = one or (ends[0], ()), other or (ends[1], ())
    if _apart(first, second, shift):
        return False
    budget = [MAX_STEPS]
    return _nested_meet(first[0], first[1], second[0], second[1], shift, budget)


def _apart(one: Pattern, other: Pattern, shift: int) -> bool:
    """Whether the places of the runs modulo what all steps have in common keep them apart."""
    common = gcd(*(step for _, step in (*one[1], *other[1])))
    place = shift % common
    return one[0] <= place and place + other[0] <= common


def _nested_meet(run: int, dims: tuple, other_run: int, other_dims: tuple, shift: int, budget: list[int]) -> bool:
    """Take the repetition with the largest step apart: only repeats whose extents meet can share a byte."""
    budget[0] -= 1
    if budget[0] < 0:
        return True  # too many cases: not shown to be apart
    span, other_span = _span(run, dims), _span(other_run, other_dims)
    if shift >= span or shift + other_span <= 0:
        return False
    if not dims and not other_dims:
        return True
    step, other_step = (dims[0][1] if dims else 0), (other_dims[0][1] if other_dims else 0)
    if step < other_step:
        return _nested_meet(other_run, other_dims, run, dims, -shift, budget)
    count, rest = dims[0][0], dims[1:]
    inner = _span(run, rest)
    if step == other_step:  # only the distance between two repeats counts
        other_count, other_rest = other_dims[0][0], other_dims[1:]
        other_inner = _span(other_run, other_rest)
        near = range(-((shift + other_inner - 1) // step), (inner - 1 - shift) // step + 1)
        return any(
            _nested_meet(run, rest, other_run, other_rest, shift + d * step, budget)
            for d in near
            if -count < d < other_count
        )
    low = max(0, -((inner - 1 - shift) // step))
    high = min(count - 1, (shift + other_span - 1) // step)
    return any(
        _nested_meet(run, rest, other_run, other_dims, shift - i * step, budget) for i in range(low, high + 1)
    )


def _span(run: int, dims: tuple) -> int:
    return run + sum((count - 1) * step for count, step in dims)


def meet(one: Key, other: Key) -> bool:
    """Whether two keys share a byte."""
    if one[0] >= other[1] or other[0] >= one[1]:
        return False
    if one[2] is None and other[2] is None:
        return True
    return _patterns_meet(one[2], other[2], other[0] - one[0], (one[1] - one[0], other[1] - other[0]))


def shared_range(one: Key, other: Key) -> tuple[int, int]:
    """The smallest solid range around the bytes that two meeting keys share."""
    low, high = max(one[0], other[0]), min(one[1], other[1])
    for key in (one, other):
        if key[2] is not None:
            inside = [(max(a, low), min(b, high)) for a, b in runs_of(key) if a < high and b > low]
            low, high = min(a for a, _ in inside), max(b for _, b in inside)
    return low, high


class _Side:
    """The last accesses of one sort (reads or writes), by queue and by range, oldest first."""

    __slots__ = ("by_actor", "last", "limit")

    def __init__(self) -> None:
        self.by_actor: dict[int, dict[Key, Op]] = {}
        self.last: dict[int, int] = {}
        self.limit = KEEP_KEYS

    def add(self, op: Op, key: Key, synced: Clock) -> None:
        actor = op.actor
        mine = self.by_actor.get(actor)
        if mine is None:
            mine = self.by_actor[actor] = {}
        elif key in mine:
            del mine[key]
        mine[key] = op
        self.last[actor] = op.seq
        if len(mine) > self.limit:
            self._prune(mine, synced.get(actor, 0))

    def _prune(self, mine: dict[Key, Op], seen: int) -> None:
        for key in [key for key, op in mine.items() if op.seq <= seen]:
            del mine[key]
        self.limit = max(KEEP_KEYS, 2 * len(mine))

    def unordered(self, actor: int, clock: Clock, key: Key) -> list[tuple[Op, Key]]:
        """Per other queue, the newest access to a byte of ``key`` that does not happen before ``clock``."""
        found = []
        for other, last in self.last.items():
            if other == actor:
                continue
            seen = clock.get(other, 0)
            if last <= seen:
                continue
            for old_key, op in reversed(self.by_actor[other].items()):
                if op.seq <= seen:
                    break
                if meet(old_key, key):
                    found.append((op, old_key))
                    break
        return found


def new_sides() -> tuple[_Side, _Side]:
    """Empty (reads, writes)."""
    return _Side(), _Side()


class Space:
    """One piece of memory, a device segment or a pinned host buffer: its accesses, and its bytes where they exist.

    ``data`` and ``taint`` belong to the layer that computes values; the core never looks inside.
    """

    __slots__ = (
        "__weakref__", "base", "data", "host", "host_writes", "live", "name", "reads", "size", "taint", "uploads",
        "writes",
    )

    def __init__(self, size: int, *, host: bool, base: int, name: str = ""):
        self.size, self.host, self.base, self.name = size, host, base, name
        self.reads, self.writes = _Side(), _Side()
        self.data: Any = None
        self.taint: Any = None
        self.uploads: list[Any] = []  # pending copies from here (host memory only)
        self.host_writes: list[tuple[int, Key]] = []  # the host's own while copies from here are pending
        self.live: dict[int, Any] = {}  # offset -> what is allocated there (size, label)

    def users(self, key: Key) -> list[Op]:
        """The operations on these bytes that are still to be computed."""
        return list(dict.fromkeys(
            op
            for side in (self.reads, self.writes)
            for mine in side.by_actor.values()
            for old, op in mine.items()
            if op.run is not None and meet(old, key)
        ))
