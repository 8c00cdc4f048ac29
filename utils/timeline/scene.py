"""Composing a picture: title, task graph, panels on one time axis, legend; and redrawing it fast.

A ``Stage`` keeps the last frame (axes, labels, legend) as pixels. While only bars move, it restores those pixels
and draws the bars on top, which is what lets sliders follow the hand.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from .collapse import collapse
from .graph_layout import GraphView, graph_height
from .graph_picture import graph_artists
from .kinds import INK, PAPER
from .lanes import DPI, FONT, Scale, bar_artists, draw_frame, panel_height, text_artist
from .legend import legend_handles, legend_lines
from .memory import memory_line
from .memory_picture import draw_memory_frame, memory_artists, memory_gutter, memory_handles
from .model import Panel
from .names import FAMILY, columns, drawable, fit, inches
from .text import facts_line, window_line
from .units import axis_unit, nice_step

WIDTH_IN = 9.4          # fits beside a file browser on a 1366-pixel screen
RIGHT_IN, EDGE_IN = 0.25, 0.10
LINE_IN, TITLE_IN = 0.20, 0.24      # a line of text, the title
AXIS_IN = 0.26          # tick labels
LEGEND_IN, LEGEND_LINE_IN = 0.30, 0.22      # the first line and its margin, a further line
LEGEND_WIDTH_IN = WIDTH_IN - 2 * EDGE_IN
GAP_IN = 0.10           # between panels
TITLE_POINTS = 10.5
STICKY_SHARE = 0.4      # a sticky axis stays while the run fills at least this share of it
STICKY_ROOM = 0.05      # and starts with this much room to grow
RC = {key: mpl.rcParamsDefault[key] for key in (
    "hatch.linewidth", "hatch.color", "axes.linewidth", "text.usetex", "path.sketch", "path.effects", "font.family",
    "font.size", "axes.unicode_minus", "lines.linewidth", "patch.linewidth", "axes.formatter.use_mathtext",
    "text.hinting", "text.antialiased", "xtick.labelsize", "xtick.direction", "axes.prop_cycle")}
RC |= {"hatch.linewidth": 0.5}


@dataclass(frozen=True, eq=False)
class Scene:
    """Everything in one picture; ``window`` is the time axis that all panels share."""

    panels: tuple[Panel, ...]
    window: tuple[float, float] = (0.0, 1.0)
    title: str = ""
    graph: GraphView | None = None
    height_in: float = 0.0        # at least this high, so that a picture under sliders does not jump


@dataclass(frozen=True)
class _Row:
    """One axes of the figure: its panel (None: the task graph), heights in inches, lines of text above it."""

    panel: Panel | None
    height: float
    above: float


@dataclass
class Stage:
    """A figure that shows one scene after another; ``sticky``: keep the time axis while the bars still fit it."""

    sticky: bool = False
    figure: Figure = field(default_factory=Figure)
    _key: Hashable = None
    _axes: list[Axes] = field(default_factory=list)
    _scale: Scale | None = None
    _moving: list[Artist] = field(default_factory=list)
    _frame: object = None
    _window: tuple[float, float] | None = None
    _height: float = 0.0

    def show(self, scene: Scene) -> Figure:
        """Put all of ``scene`` into the figure, without rendering it."""
        with mpl.rc_context(RC):
            self._build(scene)
            self._move(scene)
        return self.figure

    def pixels(self, scene: Scene) -> NDArray[np.uint8]:
        """The rendered scene, height × width × 3."""
        with mpl.rc_context(RC):
            window = self._window_for(scene)
            if self._frame is None or self._key != _frame_key(scene, window):
                self._build(scene)
                self.figure.canvas.draw()
                self._frame = self.figure.canvas.copy_from_bbox(self.figure.bbox)
            self.figure.canvas.restore_region(self._frame)
            self._move(scene)
            for artist in self._moving:
                artist.axes.draw_artist(artist)
            return np.asarray(self.figure.canvas.buffer_rgba())[..., :3].copy()

    # the frame
    def _window_for(self, scene: Scene) -> tuple[float, float]:
        first, last = scene.window
        if not self.sticky:
            return scene.window
        length, shown = last - first, self._window[1] - self._window[0] if self._window else 0.0
        if self._window and self._window[0] == first and STICKY_SHARE * shown <= length <= shown:
            return self._window
        step = nice_step(length, 8)
        return first, first + step * math.ceil(length * (1 + STICKY_ROOM) / step)

    def _build(self, scene: Scene) -> None:
        window = self._window_for(scene)
        self._window, self._key = window, _frame_key(scene, window)
        rows = _rows(scene, window)
        title_in = TITLE_IN if scene.title else 0.0
        self._height = max(scene_height(scene), self._height if self.sticky else 0.0)
        self.figure = Figure(figsize=(WIDTH_IN, self._height), dpi=DPI, facecolor=PAPER)
        FigureCanvasAgg(self.figure)
        self._moving = []
        self._place_axes(scene, rows, EDGE_IN + title_in)
        if scene.title:
            self._write(EDGE_IN, EDGE_IN + LINE_IN / 2, scene.title, fontsize=TITLE_POINTS, fontweight="bold")
        self._draw_legend(scene, EDGE_IN + title_in + sum(row.height + row.above for row in rows))

    def _place_axes(self, scene: Scene, rows: list[_Row], top: float) -> None:
        width, height = self.figure.get_size_inches()
        left = _gutter(scene)
        unit, factor = scene_unit(scene, self._window)
        pixels = (width - left - RIGHT_IN) * DPI
        self._scale = Scale(self._window, pixels, unit, factor)
        self._axes = []
        for index, row in enumerate(rows):
            top += row.above
            start, end = (left, width - RIGHT_IN) if row.panel else (EDGE_IN, width - EDGE_IN)
            axes = self.figure.add_axes(
                (start / width, 1 - (top + row.height) / height, (end - start) / width, row.height / height))
            axes.set_ylim(row.height, 0)
            if row.panel:
                draw_frame(axes, row.panel, self._scale, axis_labels=index == len(rows) - 1)
                if row.panel.memory:
                    draw_memory_frame(axes, row.panel.memory, self._scale)
            else:
                axes.set_xlim(0, end - start)
                axes.set_axis_off()
            self._axes.append(axes)
            top += row.height

    def _write(self, x: float, y: float, text: str, **style: object) -> None:
        width, height = self.figure.get_size_inches()
        most = int((width - 2 * EDGE_IN) / inches("n", FONT))
        text = fit(text, most).rstrip() if columns(text) > most else text
        self.figure.add_artist(text_artist(x / width, 1 - y / height, drawable(text),
                                     transform=self.figure.transFigure, **style))

    def _draw_legend(self, scene: Scene, top: float) -> None:
        uneven = any(collapse(panel, self._window, self._scale.pixels)[1].share.size for panel in scene.panels)
        top += AXIS_IN if scene.panels else 0
        memories = [panel.memory for panel in scene.panels if panel.memory]
        lines = legend_lines(legend_handles(scene.panels, scene.graph, uneven), LEGEND_WIDTH_IN)
        for entries in [*lines, memory_handles(memories) if memories else []]:
            if entries:
                self.figure.legend(
                    handles=entries, loc="upper left", bbox_to_anchor=(0.004, 1 - top / self._height),
                    ncols=len(entries), frameon=False, handlelength=1.6, handleheight=1.0, columnspacing=1.2,
                    labelcolor=INK, prop={"family": FAMILY, "size": FONT})
                top += LEGEND_LINE_IN

    # the bars
    def _move(self, scene: Scene) -> None:
        for artist in self._moving:
            artist.remove()
        self._moving = []
        for axes, row in zip(self._axes, _rows(scene, self._window), strict=True):
            artists = (bar_artists(row.panel, self._scale) if row.panel
                       else graph_artists(scene.graph, axes.get_xlim()[1], row.height))
            if row.panel and row.panel.memory:
                artists += memory_artists(row.panel.memory, row.panel.window, self._scale, row.height)
            if row.panel:
                artists += _heading(row.panel, self._scale, scene.title)
            for artist in artists:
                axes.add_artist(artist)
            self._moving += artists


def _heading(panel: Panel, scale: Scale, title: str) -> list[Artist]:
    """Name and facts above a panel; they change with the bars."""
    name = f"{panel.name}: " if panel.name and panel.name != title else ""
    lines = [name + facts_line(panel, scale.unit, scale.factor)]
    if panel.memory:
        lines.append(memory_line(panel.memory, panel.window))
    if extra := window_line(panel, panel.window, scale.unit, scale.factor):
        lines.append(extra)
    return [text_artist(scale.window[0], -LINE_IN * (index + 0.55), drawable(line))
            for index, line in enumerate(reversed(lines))]


def _rows(scene: Scene, window: tuple[float, float]) -> list[_Row]:
    rows = [_Row(None, graph_height(scene.graph), 0.0)] if scene.graph else []
    for panel in scene.panels:
        lines = 1 + bool(panel.memory) + bool(window_line(panel, panel.window, "", 1.0))
        rows.append(_Row(panel, panel_height(panel), LINE_IN * lines + 0.06 + (GAP_IN if rows else 0)))
    return rows


def _gutter(scene: Scene) -> float:
    widths = [inches(drawable(lane.label), FONT) for panel in scene.panels for lane in panel.lanes]
    widths += [memory_gutter(panel.memory) for panel in scene.panels if panel.memory]
    return min(max(widths, default=0.0), 2.4) + EDGE_IN + 0.14


def scene_height(scene: Scene) -> float:
    """Height of the picture in inches."""
    rows = sum(row.height + row.above for row in _rows(scene, scene.window))
    below = LEGEND_IN + (AXIS_IN if scene.panels else 0)
    below += LEGEND_LINE_IN * (len(legend_lines(legend_handles(scene.panels, scene.graph, True), LEGEND_WIDTH_IN)) - 1)
    below += LEGEND_LINE_IN if any(panel.memory for panel in scene.panels) else 0.0
    return max(2 * EDGE_IN + (TITLE_IN if scene.title else 0.0) + rows + below, scene.height_in)


def scene_unit(scene: Scene, window: tuple[float, float]) -> tuple[str, float]:
    """Unit of the time axis and the factor to it."""
    if not scene.panels:
        return "", 1.0
    return axis_unit(scene.panels[0].unit, window[1] - window[0], keep=scene.panels[0].keep_unit)


def _frame_key(scene: Scene, window: tuple[float, float]) -> Hashable:
    """Two scenes with equal keys have the same frame."""
    panels = tuple((panel.lanes, panel.rows, bool(window_line(panel, panel.window, "", 1.0)),
                    any(starts.size for starts, _ in panel.gaps.values()), _memory_key(panel))
                   for panel in scene.panels)
    graph = (len(scene.graph.places), graph_height(scene.graph)) if scene.graph else None
    legend = legend_handles(scene.panels, scene.graph, uneven=False)
    return (window, scene.title, panels, graph, tuple(handle.get_label() for handle in legend), scene.height_in)


def _memory_key(panel: Panel) -> Hashable:
    memory = panel.memory
    return memory and (memory.scale, memory.has_held, memory.budget is not None)
