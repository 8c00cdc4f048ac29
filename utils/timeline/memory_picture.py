"""Drawing memory over time under the lanes of a panel, on the same axes: y in inches from their top."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from .kinds import CRITICAL, EDGE, GREY, GRID, INK, PAPER
from .lanes import DPI, FONT, Scale, text_artist
from .memory import STRIP_IN, Floats, MemoryPanel
from .names import drawable, inches

WORD = "memory"
ALLOCATED, HELD, OVER = "#B9C6D6", "#EEF1F5", "#F2A36B"      # light enough to be written on
HELD_HATCH, OVER_HATCH = "...", "////"
WORD_GAP_IN = 0.14
LABEL_GAP_IN = 0.03
HALO = {"path_effects": [withStroke(linewidth=3, foreground=PAPER)]}


def memory_gutter(memory: MemoryPanel) -> float:
    """Inches that the word and the labels of the scale take left of the axes."""
    return inches(WORD, FONT) + WORD_GAP_IN + max(inches(label, FONT) for label in _tick_labels(memory))


def memory_handles(memories: Sequence[MemoryPanel]) -> list[Patch]:
    """Entries of the legend."""
    style = {"edgecolor": EDGE, "linewidth": 0.7}
    handles = [Patch(facecolor=ALLOCATED, label="memory allocated", **style)]
    if any(memory.has_held for memory in memories):
        label = "freed, but another stream still needs it"
        handles.append(Patch(facecolor=HELD, hatch=HELD_HATCH, label=label, **style))
    if any(memory.budget is not None for memory in memories):
        handles.append(Patch(facecolor=OVER, hatch=OVER_HATCH, label="over budget", **style))
    return handles


def _tick_labels(memory: MemoryPanel) -> list[str]:
    scale = memory.scale
    return [f"{scale.label(part)} {scale.unit.name}" if part == scale.parts else scale.label(part)
            for part in range(scale.parts + 1)]


# what stays while bars move
def draw_memory_frame(axes: Axes, memory: MemoryPanel, scale: Scale) -> None:
    """Word, scale and grid."""
    total = axes.get_ylim()[0]
    heights = _height(memory, np.arange(memory.scale.parts + 1) * memory.scale.step, total)
    axes.hlines(heights[1:], *scale.window, color=GRID, linewidth=0.6, zorder=0.5)
    axes.hlines(heights[:1], *scale.window, color=GREY, linewidth=0.6, zorder=0.5)
    for height, label in zip(heights, _tick_labels(memory), strict=True):
        axes.add_artist(text_artist(-8 / scale.pixels, 1 - height / total, label, transform=axes.transAxes, ha="right"))
    left = -(memory_gutter(memory) * DPI + 8) / scale.pixels
    axes.add_artist(text_artist(left, 1 - heights.mean() / total, WORD, transform=axes.transAxes, ha="left"))


def _height(memory: MemoryPanel, count: Floats | float, total: float) -> Floats:
    return total - np.asarray(count, dtype=np.float64) / memory.scale.top * STRIP_IN


# what moves
def memory_artists(memory: MemoryPanel, window: tuple[float, float], scale: Scale, total: float) -> list[Artist]:
    """Staircase, what is held, what is over the budget, the budget and the peak, from back to front."""
    peak = memory.peak_in(window)
    if peak is None:
        return _budget_artists(memory, scale, total, left=False) if memory.budget is not None else []
    stairs = memory.stairs(scale.window, int(scale.pixels))
    allocated, in_use = stairs.allocated.astype(np.float64), stairs.in_use.astype(np.float64)
    layers = [(np.zeros_like(allocated), allocated, ALLOCATED, None), (allocated, in_use, HELD, HELD_HATCH)]
    if memory.budget is not None:
        layers.append((np.full_like(in_use, memory.budget), in_use, OVER, OVER_HATCH))
    artists: list[Artist] = []
    for low, high, colour, hatch in layers:
        shapes = _shapes(stairs.edges, _height(memory, low, total), _height(memory, high, total))
        if shapes:
            artists.append(PolyCollection(shapes, facecolors=colour, edgecolors=EDGE, linewidths=0.7, hatch=hatch))
    middle = (peak[0] + peak[1]) / 2
    if memory.budget is not None:
        artists += _budget_artists(memory, scale, total, left=middle > sum(scale.window) / 2)
    return artists + _peak_artists(memory, middle, peak[2], scale, total)


def _shapes(edges: Floats, low: Floats, high: Floats) -> list[Floats]:
    """One closed outline per stretch in which ``high`` lies above ``low`` (smaller y)."""
    above = np.concatenate(([False], high < low, [False]))
    begins, ends = np.flatnonzero(~above[:-1] & above[1:]), np.flatnonzero(above[:-1] & ~above[1:])
    shapes = []
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        x = np.repeat(edges[begin:end + 1], 2)[1:-1]
        top, bottom = np.repeat(high[begin:end], 2), np.repeat(low[begin:end], 2)
        shapes.append(np.stack((np.concatenate((x, x[::-1])), np.concatenate((top, bottom[::-1]))), axis=1))
    return shapes


def _budget_artists(memory: MemoryPanel, scale: Scale, total: float, *, left: bool) -> list[Artist]:
    """The dashed line and its label, on the side where the peak is not."""
    height = float(_height(memory, memory.budget or 0.0, total))
    label = drawable(f"budget {memory.scale.unit.text(memory.budget or 0.0)}")
    inset = 4 * (scale.window[1] - scale.window[0]) / scale.pixels
    x, side = (scale.window[0] + inset, "left") if left else (scale.window[1] - inset, "right")
    return [Line2D(scale.window, (height, height), color=INK, linewidth=1.3, dashes=(5, 3)),
            text_artist(x, height - LABEL_GAP_IN, label, ha=side, va="bottom", **HALO)]


def _peak_artists(memory: MemoryPanel, middle: float, peak: int, scale: Scale, total: float) -> list[Artist]:
    """A mark on the peak and its value above it, inside the axes."""
    height = float(_height(memory, peak, total))
    over = memory.budget is not None and peak > memory.budget
    colour = CRITICAL if over else INK
    label = f"peak {memory.scale.unit.text(peak)}"
    half = (inches(label, FONT) / 2 * DPI + 6) * (scale.window[1] - scale.window[0]) / scale.pixels
    x = min(max(middle, scale.window[0] + half), scale.window[1] - half)
    foot, line = height - 3 * LABEL_GAP_IN, float(_height(memory, memory.budget or 0.0, total))
    if foot - FONT / 72 < line < height:
        foot = min(foot, line - LABEL_GAP_IN)       # above the line of the budget, which would run through it
    mark = Line2D([middle], [height - LABEL_GAP_IN], color=colour, marker="v", markersize=5, linestyle="none",
                  clip_on=False)
    return [mark, text_artist(x, foot, label, ha="center", va="bottom", color=colour, **HALO)]
