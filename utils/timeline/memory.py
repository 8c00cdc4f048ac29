"""Memory over time as a timeline shows it: a staircase on the time axis of its panel, beside a budget.

What stands highest is what is in use: allocated to tensors, and in freed blocks that another stream still needs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .names import MIB
from .units import nice_step, number

Floats = NDArray[np.float64]

STRIP_IN, HEADROOM_IN = 0.95, 0.24      # heights: of the staircase, and of the room above it for labels
MOST_PARTS = 5                          # of the scale
UNITS = ((4 * 2**30, 2**30, "GiB"), (MIB, MIB, "MiB"), (2**10, 2**10, "KiB"), (0, 1, "B"))    # from, bytes, name
MOST_DECIMALS = 3                       # 512 bytes are about half of 0.001 MiB
LEAST_SHARE = 0.1                       # of a unit: less is told in a smaller one


class Unit(NamedTuple):
    """A unit of memory."""

    size: int
    name: str

    def rounded(self, count: float) -> float:
        return round(count / self.size, MOST_DECIMALS)

    def text(self, count: float) -> str:
        """``count`` bytes with at most three decimals; in a smaller unit when they would show little of it."""
        value = self.rounded(count)
        if 0 < count < LEAST_SHARE * self.size:
            return unit_for(count).text(count)
        return f"{value:.{MOST_DECIMALS}f}".rstrip("0").rstrip(".") + f" {self.name}"


def unit_for(count: float) -> Unit:
    """The unit in which ``count`` bytes read well: MiB up to 4 GiB."""
    return next(Unit(size, name) for least, size, name in UNITS if count >= least)


class ByteScale(NamedTuple):
    """The vertical axis that all runs of a picture share: ``parts`` steps of ``step`` bytes."""

    step: float
    parts: int
    unit: Unit

    @property
    def top(self) -> float:
        return self.step * self.parts

    def label(self, part: int) -> str:
        """The bytes at the upper edge of a part (0: the bottom)."""
        step = self.step / self.unit.size
        return number(part * step, max(0, -math.floor(math.log10(step) + 1e-9)))


ONE_MIB = ByteScale(MIB, 1, Unit(MIB, "MiB"))


def scale_for(largest: float) -> ByteScale:
    """A round scale that ``largest`` bytes fit."""
    unit = unit_for(largest)
    step = nice_step(max(largest / unit.size, 1.0), MOST_PARTS)
    step = max(step, 1.0) if unit.size == 1 else step
    return ByteScale(step * unit.size, max(math.ceil(largest / unit.size / step - 1e-9), 1), unit)


class Stairs(NamedTuple):
    """n steps between n + 1 edges."""

    edges: Floats
    allocated: NDArray[np.int64]
    in_use: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class MemoryPanel:
    """Memory of one run; each row holds until the next, the last one marks the end. Times in the panel's unit."""

    time: Floats
    allocated: NDArray[np.int64]
    in_use: NDArray[np.int64]
    reserved: NDArray[np.int64]
    budget: float | None = None
    scale: ByteScale = ONE_MIB

    @property
    def largest(self) -> float:
        """What the scale must reach."""
        return max(float(self.in_use.max()), self.budget or 0.0)

    @property
    def has_held(self) -> bool:
        return bool((self.in_use > self.allocated).any())

    def rows_in(self, window: tuple[float, float]) -> slice:
        """The rows that hold at some time of the window, without the end mark."""
        last = int(np.searchsorted(self.time[:-1], window[1], side="right"))
        first = int(np.searchsorted(self.time[:-1], window[0], side="left"))
        on_a_row = first < len(self.time) - 1 and self.time[first] == window[0]
        return slice(max(first - (not on_a_row), 0), last)

    def peak_in(self, window: tuple[float, float]) -> tuple[float, float, int] | None:
        """From when to when the most is in use within the window for the first time, and how much; None: no record."""
        rows = self.rows_in(window)
        if rows.start >= rows.stop or window[0] >= self.time[-1] > self.time[0]:
            return None
        at = rows.start + int(np.argmax(self.in_use[rows]))
        first, last = np.clip((self.time[at], self.time[at + 1]), *window)
        return float(first), float(last), int(self.in_use[at])

    def stairs(self, window: tuple[float, float], cells: int) -> Stairs:
        """The staircase within the window; of more steps than ``cells``, the highest level in each cell."""
        rows = self.rows_in(window)
        if rows.stop - rows.start > cells:
            edges = np.linspace(*window, cells + 1)
            return Stairs(edges, self.highest(self.allocated, edges), self.highest(self.in_use, edges))
        edges = np.clip(self.time[rows.start:rows.stop + 1], *window)
        return Stairs(edges, self.allocated[rows], self.in_use[rows])

    def highest(self, series: NDArray[np.int64], edges: Floats) -> NDArray[np.int64]:
        """The highest level of ``series`` from each edge to the next, 0 outside of the record."""
        padded = np.concatenate(([0], series, [0]))                 # row r stands at r + 1
        first = np.searchsorted(self.time, edges[:-1], side="left")
        on_a_row = self.time[np.minimum(first, len(self.time) - 1)] == edges[:-1]
        begin = np.minimum(first + on_a_row, len(self.time))
        end = np.searchsorted(self.time, edges[1:], side="left") + 1
        end[-1] = np.searchsorted(self.time, edges[-1], side="right") + 1
        end = np.maximum(end, begin + 1)
        return np.maximum.reduceat(padded, np.stack((begin, end), axis=1).ravel())[::2]


def memory_panel(trace: Any, name: str, stop: float, budget: float | None) -> MemoryPanel:
    """The record of a trace whose spans end at ``stop``. Raises ValueError for a trace without one."""
    if not hasattr(trace, "has_memory"):
        raise ValueError(f"{name or 'this run'} has no record of memory: memory=True shows traces, such as gpu.trace() "
                         "of the simulated device or record(fn, memory=True)")
    try:
        record = trace.memory
    except ValueError as error:
        raise ValueError(f"{name}: {error}" if name else str(error)) from None
    end = max(stop, float(record.us[-1]))
    series = (np.append(levels, 0) for levels in (record.bytes, record.in_use_bytes, record.reserved_bytes))
    return MemoryPanel(np.append(record.us, end), *series, budget=budget)


def check_budget(budget: Any) -> float | None:
    """Bytes above 0, or None. Raises ValueError for anything else."""
    if budget is None:
        return None
    if isinstance(budget, bool) or not isinstance(budget, (int, float, np.integer, np.floating)) or not (
            math.isfinite(budget) and budget > 0):
        raise ValueError(f"budget is {budget!r}: give a number of bytes above 0, such as 8 * 2**30")
    return float(budget)


def share_scale(panels: Sequence[Any]) -> list[Any]:
    """The panels with one scale for all of their memory."""
    scale = scale_for(max((panel.memory.largest for panel in panels if panel.memory), default=0.0))
    return [replace(panel, memory=replace(panel.memory, scale=scale)) if panel.memory else panel for panel in panels]


def budgets_of(budget: Any, names: Sequence[str]) -> dict[str, float | None]:
    """The budget of each run. Raises ValueError for a name that is no run's."""
    if not isinstance(budget, Mapping):
        return dict.fromkeys(names, check_budget(budget))
    if unknown := [name for name in budget if name not in names]:
        raise ValueError(f"budget names {unknown[0]!r}, which is no run; there are {', '.join(map(repr, names))}")
    return {name: check_budget(budget.get(name)) for name in names}


# in words
def memory_line(memory: MemoryPanel, window: tuple[float, float]) -> str:
    """Peak of the whole run, budget, and by how much it is over or under; and the peak of the part that is shown."""
    unit, peak = memory.scale.unit, int(memory.in_use.max())
    words = f"peak memory {unit.text(peak)}"
    if memory.has_held:
        words += f" ({unit.text(int(memory.allocated.max()))} allocated)"
    if memory.budget is not None:
        words += f", budget {unit.text(memory.budget)}: {_difference(peak, memory.budget, unit)}"
    shown = memory.peak_in(window)
    if shown is not None and shown[2] != peak:
        words += f"; in the part shown at most {unit.text(shown[2])}"
    return words


def _difference(peak: float, budget: float, unit: Unit) -> str:
    """The difference as printed, or exactly where it is small."""
    if peak == budget:
        return "just met"
    exact, printed = abs(peak - budget), abs(unit.rounded(peak) - unit.rounded(budget)) * unit.size
    size = unit.text(printed if exact >= LEAST_SHARE * unit.size else exact)
    return f"{'over' if peak > budget else 'under'} by {size}"
