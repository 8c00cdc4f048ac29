"""Join rows that begin something (ph B) with the rows that end it (ph E)."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def pair(halves: list[tuple[int, Row]]) -> tuple[list[tuple[Row, int, int]], list[str], int]:
    """Match (time in ns, row) halves as the trace event format says: per process and thread, last begun first ended.

    Returns (row, start in ns, duration in ns) per beginning, with the arguments of both halves; the names of those
    that never end (duration 0); and how many ends have no beginning.
    """
    open_rows: dict[Any, list[tuple[int, Row]]] = {}
    pairs, extra_ends = [], 0
    for time, row in sorted(halves, key=lambda half: half[0]):
        stack = open_rows.setdefault((row.get("pid"), row.get("tid")), [])
        if row["ph"] == "B":
            stack.append((time, row))
        elif stack:
            begun, first = stack.pop()
            args = {**(first.get("args") or {}), **(row.get("args") or {})}
            pairs.append(({**first, "args": args}, begun, time - begun))
        else:
            extra_ends += 1
    unfinished = [half for stack in open_rows.values() for half in stack]
    pairs += [(row, time, 0) for time, row in unfinished]
    return pairs, [str(row.get("name")) for _, row in unfinished], extra_ends
