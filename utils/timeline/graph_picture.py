"""Drawing a laid-out task graph, and saying it in text."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from matplotlib.artist import Artist
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path
from matplotlib.patheffects import withStroke

from ..dag import serial_time
from .graph_layout import NODE_IN, ROW_IN, GraphView, Point, Task
from .kinds import CRITICAL, EDGE, GREY, KINDS
from .lanes import FONT, text_artist
from .names import columns, drawable, fit, inches
from .text import wrapped
from .units import SHOWN, decimals_for, quantity

SPACE_IN = 0.30        # least room between two layers, for the arrows
MOST_NODE_IN = 1.5
MARGIN_IN = 0.03       # for the outline of the first and last node
DOT_IN = 0.09
LABEL_COLUMNS = 24


def unit_word(view: GraphView) -> str:
    return SHOWN.get(view.unit, view.unit)


def durations(view: GraphView) -> dict[Task, str]:
    """Each task's duration with its unit, all with the same number of decimals."""
    values = dict(view.graph.nodes(data="duration"))
    return {task: quantity(value, unit_word(view), decimals_for([value])) for task, value in values.items()}


def graph_artists(view: GraphView, width: float, height: float) -> list[Artist]:
    """Edges, nodes and labels on axes of ``width`` × ``height`` inches (y downwards), from back to front."""
    if not view.places:
        return []
    times = durations(view)
    box_in, detail = _node_size(view, times, width)
    step = (width - box_in - 2 * MARGIN_IN) / max(view.layers - 1, 1)
    step = min(step, max(box_in + 1.2, 1.6))
    low, _ = view.rows()
    left = (width - box_in - step * (view.layers - 1)) / 2 + box_in / 2

    def at(place: Point) -> Point:
        return left + place[0] * step, 0.08 + NODE_IN / 2 + (place[1] - low) * ROW_IN

    on_path = set(pairwise(view.path))
    edges = sorted(view.graph.edges, key=lambda edge: edge in on_path)      # red arrows on top
    artists: list[Artist] = []
    for edge in edges:
        bends = [at(bend) for bend in view.bends[edge]]
        artists.append(_edge(at(view.places[edge[0]]), bends, at(view.places[edge[1]]), box_in, edge in on_path))
    for task in view.graph:
        artists += _node(view, task, at(view.places[task]), box_in, detail, times[task])
    return artists


def _node_size(view: GraphView, times: dict[Task, str], width: float) -> tuple[float, int]:
    """Width of a node and lines of text in it: name and duration, name, or none (a dot)."""
    room = width / view.layers - SPACE_IN if view.layers > 1 else MOST_NODE_IN
    names = max(inches(drawable(label), FONT, bold=True) for label in view.labels.values()) + 0.16
    spans = max(max(inches(drawable(text), FONT) for text in times.values()), inches("00.0 ms", FONT)) + 0.14
    for needed, lines in ((max(names, spans, 0.5), 2), (max(names, 0.3), 1)):
        if min(needed, MOST_NODE_IN) <= room:
            return min(needed, MOST_NODE_IN), lines
    return DOT_IN * 2, 0


def _edge(start: Point, bends: list[Point], end: Point, box_in: float, critical: bool) -> FancyArrowPatch:
    points = [(start[0] + box_in / 2, start[1]), *bends, (end[0] - box_in / 2 - 0.02, end[1])]
    vertices, codes = [points[0]], [Path.MOVETO]
    for (x, y), (to_x, to_y) in pairwise(points):
        middle = (x + to_x) / 2
        vertices += [(middle, y), (middle, to_y), (to_x, to_y)]
        codes += [Path.CURVE4] * 3
    colour, line = (CRITICAL, 2.2) if critical else (GREY, 0.9)
    return FancyArrowPatch(path=Path(vertices, codes), arrowstyle="-|>", mutation_scale=9, color=colour,
                           linewidth=line, zorder=2)


def _node(view: GraphView, task: Task, centre: Point, box_in: float, lines: int, time: str) -> Iterator[Artist]:
    critical = task in view.path
    kind = KINDS[view.kind_of[task]]
    high = NODE_IN if lines == 2 else 0.28 if lines else DOT_IN * 2
    corner, shape = (centre[0] - box_in / 2, centre[1] - high / 2), "round,pad=0,rounding_size=0.06"
    yield FancyBboxPatch(corner, box_in, high, boxstyle=shape, facecolor=kind.colour, edgecolor=EDGE, linewidth=0.8,
                         hatch=kind.hatch or None, zorder=3)
    if critical:
        yield FancyBboxPatch(corner, box_in, high, boxstyle=shape, facecolor="none", edgecolor=CRITICAL,
                             linewidth=2.4, zorder=3.5)
    if not lines:
        return
    most = max(int((box_in - 0.1) / inches("n", FONT)), 2)
    label = view.labels[task]
    label = fit(label, most).rstrip() if inches(drawable(label), FONT, bold=True) > box_in - 0.08 else label
    halo = {"path_effects": [withStroke(linewidth=3, foreground=kind.colour)]} if kind.hatch else {}
    shift = 0.085 if lines == 2 else 0.0
    yield text_artist(centre[0], centre[1] - shift, drawable(label), ha="center", fontweight="bold", zorder=4, **halo)
    if lines == 2:
        yield text_artist(centre[0], centre[1] + shift, drawable(time), ha="center", zorder=4, **halo)


def graph_text(view: GraphView) -> str:
    """One line per task: a star on the critical path, its duration, and what it leads to."""
    times, marked = durations(view), set(view.path)
    length = sum(view.graph.nodes[task]["duration"] for task in view.path)
    head = (f"graph: {len(view.graph)} tasks, {view.graph.number_of_edges()} edges, "
            f"serial {quantity(serial_time(view.graph), unit_word(view))}")
    if view.path:
        head += f", critical path {quantity(length, unit_word(view))} (marked *)"
    name_columns = min(max((columns(label) for label in view.labels.values()), default=0), LABEL_COLUMNS)
    time_columns = max((columns(text) for text in times.values()), default=0)
    lines = wrapped(head)
    for task in view.graph:
        after = ", ".join(view.labels[other] for other in view.graph.successors(task))
        mark = "*" if task in marked else " "
        line = f"{fit(view.labels[task], name_columns)}  {times[task]:>{time_columns}}"
        lines += _listed(f"{mark} {line}  -> ", after) if after else [f"{mark} {line}"]
    if view.path:
        lines += wrapped("critical path: " + " > ".join(view.labels[task] for task in view.path))
    return "\n".join(line.rstrip() for line in lines)


def _listed(head: str, items: str) -> list[str]:
    """``items`` behind ``head``, going on below in the same column when they do not fit."""
    lines, line = [], head
    for item in items.split(", "):
        piece = item if line == head else ", " + item
        if columns(line + piece) > 79 and line.strip() and line != head:
            lines, line = [*lines, line + ","], " " * min(columns(head), 40)
            piece = item
        line += piece
    return [fit(part, 80).rstrip() if columns(part) > 80 else part for part in [*lines, line]]
