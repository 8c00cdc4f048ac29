"""Which cells of the cache hold what they should, when a workload has been served."""

from __future__ import annotations

from typing import Any

from ..lab06.data import Cells


def logged(scheduler: Any) -> Any:
    """A scheduler that keeps the rows of each step that it ever gave, in ``given``."""
    scheduler.given, step = [], scheduler.step

    def logging(at_ms: float) -> Any:
        rows = step(at_ms)
        scheduler.given.append(rows)
        return rows
    scheduler.step = logging
    return scheduler


def others_words(before: Any, after: Any, spare: int, when: str, steps: list[Any] | None = None) -> str:
    """Which cell has changed that is of no row of these steps, nor the spare slot's, in words."""
    same = before == after
    same[:, spare] = True
    for row in (row for rows in steps or [] for row in rows):
        same[:, row.slot, row.position] = True
    places = (~same).any(0).nonzero().tolist()
    if not places:
        return ""
    slot, position = places[0]
    return (f"{when}, the cell of slot {slot}, position {position} was overwritten: that is of no row of any step, "
            "and may hold something needed, such as a prefix. Also a warm-up writes a cell for each of its rows. Only "
            f"those of slot {spare}, the spare one, are free for that.")


def rows_words(before: Any, after: Any, steps: list[Any]) -> str:
    """Which cell of a row is not as that row left it, in words; for answers whose tokens are right."""
    cells, names = Cells(), {}
    for rows in steps:
        cells.step((row.token, row.slot, row.position, False) for row in rows)
        names |= {(row.slot, row.position): row.request.name for row in rows}
    for (slot, position), name in names.items():
        if after[:, slot, position].tolist() != [layer[slot, position] for layer in cells.layers]:
            if (after[:, slot, position] == before[:, slot, position]).all():
                return (f"At the end the cell of slot {slot}, position {position} is as it was, though request {name} "
                        "had a row there: no row was written to the model's cells, the tensor that it had at the "
                        "start.")
            return (f"At the end the cell of slot {slot}, position {position} is not as a row of request {name} left "
                    "it. No token depended on it any more, but it may hold a prefix for whoever comes next. Which "
                    "cells do the padding rows write?")
    return ""
