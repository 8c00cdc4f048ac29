"""Memory over time as text: a bar chart of a few rows under the lanes, and a line of the table."""

from __future__ import annotations

import numpy as np

from .memory import MemoryPanel
from .names import fit
from .units import decimals_for, quantity

ALLOCATED_CHAR, HELD_CHAR, OVER_CHAR, BUDGET_CHAR, PART_CHAR = "@", "%", "X", "=", ":"
WORD = "memory"
COLUMN = 15
EPSILON = 1e-9


def row_labels(memory: MemoryPanel) -> list[str]:
    """Upper edge of each row, from the top; the word for all of them in front of the first."""
    scale = memory.scale
    sizes = [f"{scale.label(part)} {scale.unit.name}" for part in range(scale.parts, 0, -1)]
    width = max(len(size) for size in sizes)
    return [f"{WORD if not index else '':{len(WORD)}} {size:>{width}}" for index, size in enumerate(sizes)]


def chart_rows(memory: MemoryPanel, window: tuple[float, float], cells: int, gutter: int) -> list[str]:
    """Rows of at most ``gutter`` + 3 + ``cells`` columns: in each cell, the most that was in use."""
    edges = np.linspace(*window, cells + 1)
    allocated, in_use = (memory.highest(series, edges) / memory.scale.step
                         for series in (memory.allocated, memory.in_use))
    budget = None if memory.budget is None else memory.budget / memory.scale.step
    rows = []
    for index, label in enumerate(row_labels(memory)):
        low = memory.scale.parts - 1 - index
        cells_of_row = (_cell(low, has, used, budget) for has, used in zip(allocated, in_use, strict=True))
        left, size = label[:len(WORD)], label[len(WORD):].strip()
        head = f"{left} {size:>{gutter - len(left) - 1}}"
        rows.append(f"{fit(head, gutter)} |{''.join(cells_of_row)}|")
    return rows


def _cell(low: int, allocated: float, in_use: float, budget: float | None) -> str:
    """One character of the row from ``low`` to ``low + 1``, all in parts of the scale."""
    if in_use > low + EPSILON:
        if budget is not None and in_use > budget and low + 1 > budget:
            return OVER_CHAR
        if in_use < low + 0.5 - EPSILON:
            return PART_CHAR
        return ALLOCATED_CHAR if allocated >= low + 0.5 - EPSILON else HELD_CHAR
    return BUDGET_CHAR if budget is not None and low < budget <= low + 1 else " "


def chart_key(panels: list[MemoryPanel]) -> str:
    """What the characters of the charts mean."""
    words = [f"{ALLOCATED_CHAR} memory allocated"]
    if any(panel.has_held for panel in panels):
        words.append(f"{HELD_CHAR} freed, but another stream still needs it")
    if any(panel.budget is not None for panel in panels):
        words += [f"{BUDGET_CHAR} budget", f"{OVER_CHAR} over it"]
    return ", ".join([*words, f"{PART_CHAR} less than half of the row"])


def memory_table(memory: MemoryPanel, window: tuple[float, float], unit: str, factor: float, gutter: int) -> list[str]:
    """The most in use within the window and when, the budget, and the most that was reserved."""
    gutter = max(gutter, len(WORD))
    head = "".join(f"{title:>{COLUMN}}" for title in ("peak", "at", "budget", "reserved"))
    shown = memory.peak_in(window)
    if shown is None:
        return [f"{WORD}: no record in the part shown"]
    size, time = memory.scale.unit, shown[0] * factor
    reserved = int(memory.reserved[memory.rows_in(window)].max())
    values = (size.text(shown[2]), quantity(time, unit, decimals_for([time])),
              "none" if memory.budget is None else size.text(memory.budget),
              size.text(reserved) if reserved or not shown[2] else "unknown")
    return [fit(WORD, gutter) + head, fit("in use", gutter) + "".join(f"{value:>{COLUMN}}" for value in values)]
