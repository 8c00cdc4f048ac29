"""Thousands of spans on a few hundred pixels: spans too narrow to see become blocks whose height is their share."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .model import Panel

NARROW_PX = 2.0     # bars below this width are candidates
CELL_PX = 2.0       # width of a block
CROWD = 2           # that many narrow bars in one cell of a row collapse,
MANY = 50           # and so do all of a lane that has that many: a lone thin bar would look busier than its neighbours


class Blocks(NamedTuple):
    """Cells of a row that stand for many bars of one kind; ``share``: busy part of the cell, 0 to 1."""

    lane: NDArray[np.int64]
    row: NDArray[np.int64]
    kind: NDArray[np.int64]
    start: NDArray[np.float64]
    stop: NDArray[np.float64]
    share: NDArray[np.float64]


def collapse(panel: Panel, window: tuple[float, float], pixels: float) -> tuple[NDArray[np.int64], Blocks]:
    """Split the bars that touch ``window`` (drawn ``pixels`` wide): indices of bars to draw as they are, and blocks.

    Blocks and kept bars together are busy as long as all bars were (where bars of a row overlap, up to a full cell).
    """
    first, last = window
    cell = (last - first) / pixels * CELL_PX
    shown = np.flatnonzero((panel.start <= last) & (panel.stop >= first))
    start, stop = np.clip(panel.start[shown], first, last), np.clip(panel.stop[shown], first, last)
    narrow = (panel.stop - panel.start)[shown] < cell / CELL_PX * NARROW_PX
    at = np.floor(((start + stop) / 2 - first) / cell).astype(np.int64)
    group = _groups(panel, shown)
    cells = int(pixels / CELL_PX) + 3
    spot = group * cells + at
    crowded = np.bincount(spot[narrow], minlength=int(spot.max(initial=0)) + 1) >= CROWD
    many = np.bincount(panel.lane[shown][narrow], minlength=len(panel.lanes)) >= MANY
    merged = narrow & (crowded[spot] | many[panel.lane[shown]])
    return shown[~merged], _blocks(group[merged], start[merged], stop[merged], first, cell, cells)


def _groups(panel: Panel, bars: NDArray[np.int64]) -> NDArray[np.int64]:
    return (panel.lane[bars] * 16 + panel.row[bars]) * 16 + panel.kind[bars]


def _blocks(
    group: NDArray[np.int64], start: NDArray[np.float64], stop: NDArray[np.float64], first: float, cell: float,
    cells: int,
) -> Blocks:
    # a narrow bar lies in one cell or in two neighbouring ones
    left = np.floor((start - first) / cell).astype(np.int64)
    border = first + (left + 1) * cell
    inside, beyond = np.minimum(stop, border) - start, np.maximum(stop - border, 0)
    spots = np.concatenate((group * cells + left, (group * cells + left + 1)[beyond > 0]))
    busy = np.concatenate((inside, beyond[beyond > 0]))
    used, index = np.unique(spots, return_inverse=True)
    share = np.minimum(np.bincount(index, weights=busy, minlength=len(used)) / cell, 1.0)
    groups, column = used // cells, used % cells
    return Blocks(groups // 256, groups // 16 % 16, groups % 16,
                  first + column * cell, first + (column + 1) * cell, share)
