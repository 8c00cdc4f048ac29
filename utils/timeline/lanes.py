"""Drawing one panel on a matplotlib axes whose y axis is in inches from the top."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from numpy.typing import NDArray

from .collapse import Blocks, collapse
from .kinds import CRITICAL, EDGE, GAP, GAP_INK, GREY, GRID, INK, KINDS
from .memory import HEADROOM_IN, STRIP_IN
from .model import Panel
from .names import FAMILY, drawable, families, inches, label_inches
from .units import number, quantity, ticks

FONT = 9.0            # points, the smallest size used
DPI = 100
LANE_IN, CROWDED_LANE_IN, ROW_IN = 0.33, 0.27, 0.17     # heights: a lane, one of many lanes, a further row
MANY_LANES = 12
PAD_IN = 0.05         # between a lane's border and its bars
EDGE_PX = 4.0         # bars narrower than this carry no border
LEAST_SHARE = 0.12    # drawn height of the emptiest block
LABEL_PAD_PX = 8.0
MOST_LABELS = 250
TICK_PX = 90


class Scale(NamedTuple):
    """What a panel is drawn with: shown window, width of the axes in pixels, unit of the axis."""

    window: tuple[float, float]
    pixels: float
    unit: str
    factor: float

    def px(self, time: NDArray[np.float64] | float) -> NDArray[np.float64] | float:
        return time * self.pixels / (self.window[1] - self.window[0])


def lane_heights(panel: Panel) -> list[float]:
    """Height of each lane in inches."""
    base = CROWDED_LANE_IN if len(panel.lanes) > MANY_LANES else LANE_IN
    return [base + ROW_IN * (rows - 1) for rows in panel.rows]


def panel_height(panel: Panel) -> float:
    """Inches for all lanes, and for memory where it is shown."""
    lanes = sum(lane_heights(panel))
    return lanes + HEADROOM_IN + STRIP_IN if panel.memory else lanes or LANE_IN


# what stays while bars move
def draw_frame(axes: Axes, panel: Panel, scale: Scale, axis_labels: bool = True) -> None:
    """Lane labels and separators, time axis and grid; empty lanes included."""
    heights = lane_heights(panel)
    total = axes.get_ylim()[0]
    axes.set_xlim(*scale.window)
    axes.set_facecolor("none")
    axes.tick_params(left=False, labelleft=False, bottom=axis_labels, labelbottom=axis_labels,
                     colors=INK, labelsize=FONT, length=3, width=0.6)
    for side in ("left", "right", "top", "bottom"):
        axes.spines[side].set_visible(side == "bottom" and axis_labels)
    axes.spines["bottom"].set(color=GREY, linewidth=0.6)
    _draw_ticks(axes, scale)
    tops = np.concatenate(([0.0], np.cumsum(heights)))
    axes.hlines(tops[1:] if panel.memory else tops[1:-1], *scale.window, color=GRID, linewidth=0.8)
    for lane, top, height in zip(panel.lanes, tops, heights, strict=False):
        axes.add_artist(text_artist(-8 / scale.pixels, 1 - (top + height / 2) / total, drawable(lane.label),
                              transform=axes.transAxes, ha="right"))


def _draw_ticks(axes: Axes, scale: Scale) -> None:
    first, last = scale.window[0] * scale.factor, scale.window[1] * scale.factor
    places, decimals = ticks(first, last, max(int(scale.pixels / TICK_PX), 2))
    labels = [number(place, decimals) for place in places]
    if labels and scale.unit:
        labels[-1] = f"{labels[-1]} {scale.unit}"
    axes.set_xticks([place / scale.factor for place in places], [drawable(label) for label in labels],
                    fontfamily=FAMILY)
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)


def text_artist(x: float, y: float, text: str, **style: object) -> Text:
    """Drawable text in the course's font; dollar signs are dollar signs."""
    settings = {"fontsize": FONT, "color": INK, "va": "center", "ha": "left", "fontfamily": list(families()),
                "parse_math": False, "clip_on": False, **style}
    return Text(x, y, text, **settings)


# what moves
def bar_artists(panel: Panel, scale: Scale) -> list[Artist]:
    """Idle gaps, bars, blocks, critical outlines and labels, from back to front."""
    low, high = _bands(panel)
    kept, blocks = collapse(panel, scale.window, scale.pixels)
    artists = [*_gap_artists(panel, scale), *_block_artists(panel, blocks)]
    start, stop = panel.start[kept], panel.stop[kept]
    boxes = _boxes(start, stop, low[panel.lane[kept], panel.row[kept]], high[panel.lane[kept], panel.row[kept]])
    width = scale.px(np.minimum(stop, scale.window[1]) - np.maximum(start, scale.window[0]))
    for code in np.unique(panel.kind[kept]):
        mine = panel.kind[kept] == code
        for narrow in (False, True):
            chosen = mine & ((width < EDGE_PX) == narrow)
            if chosen.any():
                artists.append(_bars(boxes[chosen], int(code), narrow))
    critical = panel.critical[kept]
    if critical.any():
        artists.append(PolyCollection(boxes[critical], facecolors="none", edgecolors=CRITICAL, linewidths=2.2))
    artists += _label_artists(panel, kept, boxes, width, scale)
    return artists


def _bands(panel: Panel) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Top and bottom of the bars of every (lane, row), in inches from the top of the axes."""
    heights = lane_heights(panel)
    low, high = np.zeros((len(heights), 4)), np.zeros((len(heights), 4))
    top = 0.0
    for lane, (height, rows) in enumerate(zip(heights, panel.rows, strict=True)):
        each = (height - 2 * PAD_IN) / rows
        for row in range(rows):
            low[lane, row], high[lane, row] = top + PAD_IN + row * each, top + PAD_IN + (row + 1) * each
        top += height
    return low, high


def _boxes(
    start: NDArray[np.float64], stop: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Corners of rectangles, n × 4 × 2."""
    return np.stack([np.stack([start, start, stop, stop], axis=1), np.stack([high, low, low, high], axis=1)], axis=2)


def _bars(boxes: NDArray[np.float64], code: int, narrow: bool) -> PolyCollection:
    kind = KINDS[code]
    edge = kind.colour if narrow and kind.key != "sync" else EDGE
    return PolyCollection(boxes, facecolors=kind.colour, edgecolors=edge, linewidths=0.7,
                          hatch=None if narrow else kind.hatch or None)


def _block_artists(panel: Panel, blocks: Blocks) -> list[Artist]:
    low, high = _bands(panel)
    artists: list[Artist] = []
    for code in np.unique(blocks.kind):
        mine = blocks.kind == code
        top, bottom = low[blocks.lane[mine], blocks.row[mine]], high[blocks.lane[mine], blocks.row[mine]]
        drawn = np.maximum(blocks.share[mine], LEAST_SHARE)
        boxes = _boxes(blocks.start[mine], blocks.stop[mine], bottom - (bottom - top) * drawn, bottom)
        artists.append(PolyCollection(boxes, facecolors=KINDS[code].colour, edgecolors="none", antialiaseds=False))
        crest = boxes[:, [1, 2], :]     # a dark crest keeps blocks apart from bars in print
        artists.append(LineCollection(crest, colors=EDGE, linewidths=0.5))
    return artists


def _gap_artists(panel: Panel, scale: Scale) -> Iterator[Artist]:
    heights = lane_heights(panel)
    tops = np.concatenate(([0.0], np.cumsum(heights)))
    for lane, (starts, ends) in panel.gaps.items():
        lengths = ends - starts
        starts, ends = np.maximum(starts, scale.window[0]), np.minimum(ends, scale.window[1])
        wide = scale.px(ends - starts) >= 1
        starts, ends, lengths = starts[wide], ends[wide], lengths[wide]
        if not starts.size:
            continue
        shape = np.ones(starts.shape)
        yield PolyCollection(_boxes(starts, ends, shape * (tops[lane] + 0.02), shape * (tops[lane + 1] - 0.02)),
                             facecolors=GAP, edgecolors="none")
        middle = (tops[lane] + tops[lane + 1]) / 2
        for first, last, length in zip(starts.tolist(), ends.tolist(), lengths.tolist(), strict=True):
            label = "idle " + quantity(length * scale.factor, scale.unit)      # all of it, also when cut by the window
            if label := label_inches(label, _room(scale.px(last - first)), FONT, cut=False):
                yield text_artist((first + last) / 2, middle, label, ha="center", color=GAP_INK)


def _room(pixels: float) -> float:
    """Inches that a label may take in a bar."""
    return (pixels - LABEL_PAD_PX) / DPI


def _label_artists(
    panel: Panel, kept: NDArray[np.int64], boxes: NDArray[np.float64], width: NDArray[np.float64], scale: Scale
) -> Iterator[Artist]:
    room = np.flatnonzero(_room(width) >= inches("i", FONT))
    if room.size > MOST_LABELS:
        room = np.sort(room[np.argsort(-width[room], kind="stable")[:MOST_LABELS]])
    for bar in room.tolist():
        label = label_inches(panel.label(int(kept[bar])), _room(width[bar]), FONT, panel.cut_labels)
        if not label:
            continue
        left, right = max(boxes[bar, 0, 0], scale.window[0]), min(boxes[bar, 2, 0], scale.window[1])
        kind = KINDS[panel.kind[kept[bar]]]
        halo = {"path_effects": [withStroke(linewidth=3, foreground=kind.colour)]} if kind.hatch else {}
        yield text_artist((left + right) / 2, boxes[bar, :2, 1].mean(), label, ha="center", clip_on=True, **halo)
