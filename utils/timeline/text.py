"""A timeline as text of at most 80 columns: for terminals, screen readers, and strict comparison of outputs."""

from __future__ import annotations

import textwrap

import numpy as np
from numpy.typing import NDArray

from .kinds import BEGIN_CHAR, IDLE_CHAR, KINDS, PART_CHAR
from .memory import memory_line
from .memory_text import chart_key, chart_rows, memory_table, row_labels
from .model import Panel
from .names import clean, columns, fit, label_columns
from .units import axis_unit, decimals_for, number, quantity, ticks

Floats = NDArray[np.float64]

WIDTH = 80
LABEL_WIDTH = 20      # columns that lane labels may take
LABELLED_CELLS = 2    # bars from this width show where they begin
EPSILON = 1e-9
TICK_COLUMNS = 12     # at most one tick per so many columns


def facts_line(panel: Panel, unit: str, factor: float) -> str:
    """Bound, actual, lost and uncovered copy time in words and ``unit``; lost is the difference as printed."""
    facts = panel.facts
    words = []
    if facts.bound is not None and facts.lost is not None:
        places = decimals_for([facts.actual * factor, facts.bound * factor])
        bound, actual = round(facts.bound * factor, places), round(facts.actual * factor, places)
        kind = f" ({facts.bound_kind})" if facts.bound_kind else ""
        words += [f"bound {quantity(bound, unit, places)}{kind}", f"actual {quantity(actual, unit, places)}",
                  f"lost {quantity(actual - bound, unit, places)}"]
    else:
        places = decimals_for([facts.actual * factor])
        words.append(f"actual {quantity(facts.actual * factor, unit, places)}")
    if facts.uncovered is not None:
        words.append(f"uncovered copies {quantity(facts.uncovered * factor, unit, places)}")
    return ", ".join(words)


def window_line(panel: Panel, window: tuple[float, float], unit: str, factor: float) -> str:
    """Says which part is shown; empty when it is all of it."""
    first, last = window
    hidden = bool(((panel.stop < first) | (panel.start > last)).any())
    cut = bool(((panel.start < first) | (panel.stop > last)).any())
    if not (hidden or cut):
        return ""
    places = decimals_for([first * factor, last * factor])
    return f"shown: {number(first * factor, places)} to {quantity(last * factor, unit, places)} of the run"


def timeline_text(panels: list[Panel], window: tuple[float, float], title: str) -> str:
    """All panels on the same axis, the key in words, and one table per panel."""
    unit, factor = axis_unit(panels[0].unit, window[1] - window[0], keep=panels[0].keep_unit)
    labels = [unit, *(lane.label for panel in panels for lane in panel.lanes)]
    memories = [panel.memory for panel in panels if panel.memory]
    labels += [label for memory in memories for label in row_labels(memory)]
    gutter = min(max(columns(label) for label in labels), LABEL_WIDTH)
    cells = WIDTH - gutter - 3
    lines = wrapped(title) if title else []
    for panel in panels:
        if panel.name and panel.name != title:
            lines += wrapped(f"{panel.name}:")
        lines += wrapped(facts_line(panel, unit, factor))
        lines += wrapped(memory_line(panel.memory, panel.window)) if panel.memory else []
        lines += wrapped(window_line(panel, window, unit, factor))
        lines += [f"{fit(lane.label, gutter)} |{lane_row(panel, index, window, cells)}|"
                  for index, lane in enumerate(panel.lanes)]
        lines += [] if panel.lanes or panel.memory else ["(no spans)"]
        lines += chart_rows(panel.memory, window, cells, gutter) if panel.memory else []
    lines.append(f"{fit(unit, gutter)}  {axis_row(window, cells, factor)}")
    lines += wrapped(key_line(panels))
    lines += wrapped(chart_key(memories)) if memories else []
    for panel in panels:
        lines += ["", *table_lines(panel, unit, factor, gutter, len(panels) > 1)]
        lines += memory_table(panel.memory, panel.window, unit, factor, gutter) if panel.memory else []
        if panel.path:
            lines += wrapped(f"critical path: {' > '.join(panel.path)}")
        elif panel.critical.any():
            lines += wrapped(f"outlined: {', '.join(panel.label(int(i)) for i in panel.critical.nonzero()[0])}")
    return "\n".join(line.rstrip() for line in lines)


def wrapped(text: str) -> list[str]:
    """``text`` in lines of at most 80 columns; the following ones indented."""
    if columns(text) == len(text):
        return textwrap.wrap(clean(text, 10_000), WIDTH, subsequent_indent="  ")
    lines, line = [], ""
    for word in clean(text, 10_000).split(" "):
        if line and columns(line) + 1 + columns(word) > WIDTH:
            lines, line = [*lines, line], " "
        line = f"{line} {word}" if line else word
        while columns(line) > WIDTH:
            head = fit(line, WIDTH + 1)[:-1].rstrip()
            lines, line = [*lines, head], "  " + line[len(head):]
    return [*lines, line] if line else lines


def lane_row(panel: Panel, lane: int, window: tuple[float, float], cells: int) -> str:
    """One character per cell: what fills at least half of it; bars of two cells and more open with "[" and a label."""
    first, last = window
    scale = cells / (last - first)
    mine = np.flatnonzero((panel.lane == lane) & (panel.start <= last) & (panel.stop >= first))
    left = np.clip((panel.start[mine] - first) * scale, 0, cells)
    right = np.clip((panel.stop[mine] - first) * scale, 0, cells)
    kind = panel.kind[mine]
    wide = np.rint(right) - np.rint(left) >= LABELLED_CELLS
    begin, end = np.where(wide, np.rint(left), left), np.where(wide, np.rint(right), right)
    per_kind = np.stack([_coverage(begin[kind == code], end[kind == code], cells) for code in range(len(KINDS))])
    filled = per_kind.sum(axis=0)
    touched = filled > EPSILON
    touched[np.minimum(begin[~wide].astype(np.int64), cells - 1)] = True      # spans of no duration
    row = [KINDS[code].char if share >= 0.5 - EPSILON else PART_CHAR if touch else IDLE_CHAR
           for code, share, touch in zip(per_kind.argmax(axis=0).tolist(), filled.tolist(), touched.tolist(),
                                         strict=True)]
    for bar in np.flatnonzero(wide & (panel.row[mine] == 0)).tolist():
        at = int(begin[bar])
        if panel.start[mine[bar]] >= first:
            row[at], at = BEGIN_CHAR, at + 1
        label = label_columns(panel.label(int(mine[bar])), int(end[bar]) - at, panel.cut_labels)
        row[at:at + columns(label)] = [label, *[""] * (columns(label) - 1)] if label else []
    return "".join(row)


def _coverage(left: Floats, right: Floats, cells: int) -> Floats:
    """Busy share of each cell, from the running integral of the bars."""
    edges = np.arange(cells + 1, dtype=np.float64)
    begun = _integral(np.sort(left), edges)
    ended = _integral(np.sort(right), edges)
    return np.maximum(np.diff(begun - ended), 0.0)


def _integral(points: Floats, edges: Floats) -> Floats:
    """Sum of max(0, edge − point) over all points, for each edge."""
    before = np.searchsorted(points, edges)
    return before * edges - np.concatenate(([0.0], np.cumsum(points)))[before]


def axis_row(window: tuple[float, float], cells: int, factor: float) -> str:
    """Numbers whose first digit stands under their time."""
    first, last = window[0] * factor, window[1] * factor
    places, decimals = ticks(first, last, cells // TICK_COLUMNS)
    row = ""
    for tick in places:
        column = min(int((tick - first) / (last - first) * cells), cells - 1)
        text = number(tick, decimals)
        if column >= len(row) + bool(row) and column + len(text) <= cells + 1:
            row = row.ljust(column) + text
    return row


def key_line(panels: list[Panel]) -> str:
    """What the characters mean, in words."""
    used = sorted({int(code) for panel in panels for code in np.unique(panel.kind)})
    words = [f"{KINDS[code].char} {KINDS[code].word}" for code in used]
    words += [f"{PART_CHAR} busy for less than half", f"{IDLE_CHAR} idle", f"{BEGIN_CHAR} a bar begins"]
    return "key: " + ", ".join(words)


def table_lines(panel: Panel, unit: str, factor: float, gutter: int, named: bool) -> list[str]:
    """Spans, busy time and idle share of every lane inside the window."""
    gutter = max(gutter, 4)
    head = clean(panel.name, 30) if named else ""
    lines = [f"{fit('lane', gutter)}  {'spans':>7}  {'busy':>12}  {'idle':>5}" + (f"   ({head})" if head else "")]
    shown = panel.shown()
    busy = [panel.busy_time(lane) * factor for lane in range(len(panel.lanes))]
    places = decimals_for(busy)
    for index, lane in enumerate(panel.lanes):
        spans = int((shown & (panel.lane == index)).sum())
        idle = f"{round(100 * panel.idle_share(index)) + 0} %"
        lines.append(f"{fit(lane.label, gutter)}  {spans:>7}  {quantity(busy[index], unit, places):>12}  {idle:>5}")
    return lines


def summary(panels: list[Panel], window: tuple[float, float], title: str) -> str:
    """One sentence per panel: the alternative text of the picture."""
    unit, factor = axis_unit(panels[0].unit, window[1] - window[0], keep=panels[0].keep_unit)
    parts = []
    for panel in panels:
        lanes = ", ".join(f"{lane.label} {round(100 * (1 - panel.idle_share(index)))} % busy"
                          for index, lane in enumerate(panel.lanes[:12]))
        name = f"{panel.name}: " if panel.name and panel.name != title else ""
        facts = facts_line(panel, unit, factor)
        facts += f", {memory_line(panel.memory, panel.window)}" if panel.memory else ""
        parts.append(f"{name}{facts}. Lanes: {lanes or 'none'}.")
    return " ".join([f"Timeline{' of ' + title if title else ''}.", *parts])

