"""Where the tasks of a graph stand: layers from left to right, few crossings, the same for the same edges.

The layout depends on tasks and edges alone, never on durations, so a graph stays in place while sliders move.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np

from ..dag import check_graph, critical_path
from .kinds import code_of
from .names import clean

Task = Hashable
Point = tuple[float, float]

SWEEPS = 8
MOST_TASKS = 300          # beyond, a drawing shows nothing
ROW_IN, NODE_IN = 0.52, 0.40


@dataclass(frozen=True, eq=False)
class GraphView:
    """A laid-out graph: per task its place (layer, row), label and kind; per edge its bends; the marked path."""

    graph: nx.DiGraph
    unit: str
    labels: dict[Task, str]
    kind_of: dict[Task, int]
    places: dict[Task, Point]
    bends: dict[tuple[Task, Task], list[Point]]
    path: tuple[Task, ...]

    @property
    def kinds(self) -> tuple[int, ...]:
        return tuple(sorted(set(self.kind_of.values())))

    @property
    def layers(self) -> int:
        return 1 + int(max((x for x, _ in self.places.values()), default=0))

    def rows(self) -> tuple[float, float]:
        """Lowest and highest row in use."""
        rows = [y for _, y in self.places.values()] + [y for bend in self.bends.values() for _, y in bend]
        return min(rows, default=0.0), max(rows, default=0.0)


def graph_height(view: GraphView) -> float:
    """Height of the drawing in inches."""
    low, high = view.rows()
    return (high - low) * ROW_IN + NODE_IN + 0.16


def view_of(graph: nx.DiGraph, critical: bool | Iterable[Task], unit: str) -> GraphView:
    """Lay out ``graph``. Raises GraphError as ``dag.check_graph`` does, ValueError when there are too many tasks."""
    check_graph(graph)
    if len(graph) > MOST_TASKS:
        raise ValueError(f"{len(graph)} tasks cannot be read as a drawing (at most {MOST_TASKS}): "
                         "draw their schedule with timeline() instead")
    path = tuple(critical_path(graph).path) if critical is True else tuple(critical or ())
    if unknown := [task for task in path if task not in graph]:
        raise ValueError(f"critical names {unknown[0]!r}, which is no task of the graph")
    places, bends = _layout(graph)
    return GraphView(
        graph, unit, {task: clean(data.get("label", task)) for task, data in graph.nodes(data=True)},
        {task: code_of(data.get("kind"), data.get("resource")) for task, data in graph.nodes(data=True)},
        places, bends, path)


def _layout(graph: nx.DiGraph) -> tuple[dict[Task, Point], dict[tuple[Task, Task], list[Point]]]:
    layers, chains = _layers_with_bends(graph)
    _order(layers, chains)
    row = _rows(layers, chains)
    layer_of = {node: index for index, layer in enumerate(layers) for node in layer}
    point = {node: (float(layer_of[node]), row[node]) for node in layer_of}
    places = {task: point["task", task] for task in graph}
    bends = {edge: [point[node] for node in chain[1:-1]] for edge, chain in chains.items()}
    return places, bends


def _layers_with_bends(graph: nx.DiGraph) -> tuple[list[list[Any]], dict[tuple[Task, Task], list[Any]]]:
    """Tasks by generation; an edge across several layers gets a bend in each, so that it runs around the tasks."""
    rank = {task: index for index, task in enumerate(graph)}
    generations = [sorted(layer, key=rank.__getitem__) for layer in nx.topological_generations(graph)]
    layers: list[list[Any]] = [[("task", task) for task in layer] for layer in generations]
    level = {task: index for index, layer in enumerate(generations) for task in layer}
    chains = {}
    for first, last in graph.edges:
        inner = [("bend", first, last, index) for index in range(level[first] + 1, level[last])]
        for node in inner:
            layers[node[3]].append(node)
        chains[first, last] = [("task", first), *inner, ("task", last)]
    return layers, chains


def _neighbours(chains: dict[tuple[Task, Task], list[Any]]) -> tuple[dict[Any, list[Any]], dict[Any, list[Any]]]:
    before: dict[Any, list[Any]] = {}
    after: dict[Any, list[Any]] = {}
    for chain in chains.values():
        for left, right in pairwise(chain):
            after.setdefault(left, []).append(right)
            before.setdefault(right, []).append(left)
    return before, after


def _order(layers: list[list[Any]], chains: dict[tuple[Task, Task], list[Any]]) -> None:
    """Reorder every layer by the mean position of its neighbours, back and forth (barycentre heuristic)."""
    before, after = _neighbours(chains)
    best, fewest = [list(layer) for layer in layers], _crossings(layers, after)
    for sweep in range(SWEEPS):
        forward = sweep % 2 == 0
        position = {node: index for layer in layers for index, node in enumerate(layer)}
        for layer in layers if forward else layers[::-1]:
            links = before if forward else after
            mean = {node: float(np.mean([position[other] for other in links[node]])) if links.get(node)
                    else float(position[node]) for node in layer}
            layer.sort(key=mean.__getitem__)
            position.update({node: index for index, node in enumerate(layer)})
        count = _crossings(layers, after)
        if count < fewest:
            best, fewest = [list(layer) for layer in layers], count
    layers[:] = best


def _crossings(layers: list[list[Any]], after: dict[Any, list[Any]]) -> int:
    count = 0
    for layer, following in pairwise(layers):
        position = {node: index for index, node in enumerate(following)}
        ends = [end for node in layer for end in sorted(position[other] for other in after.get(node, []))]
        count += sum(int((np.asarray(ends[:index]) > end).sum()) for index, end in enumerate(ends))
    return count


def _rows(layers: list[list[Any]], chains: dict[tuple[Task, Task], list[Any]]) -> dict[Any, float]:
    """Vertical places: near the mean of the neighbours, at least one row apart, in the order of the layer."""
    before, after = _neighbours(chains)
    row = {node: index - (len(layer) - 1) / 2 for layer in layers for index, node in enumerate(layer)}
    for sweep in range(SWEEPS):
        links = (before, after)[sweep % 2]
        for layer in layers if sweep % 2 == 0 else layers[::-1]:
            wanted = [float(np.mean([row[other] for other in links[node]])) if links.get(node) else row[node]
                      for node in layer]
            row.update(zip(layer, _apart(wanted), strict=True))
    return {node: round(place * 4) / 4 for node, place in row.items()}    # quarter rows: straight lines stay straight


def _apart(wanted: list[float]) -> list[float]:
    """The places nearest to ``wanted`` (least squares) that keep order and a distance of one."""
    blocks: list[tuple[float, int]] = []      # (mean of wanted − index, members), means rising
    for index, place in enumerate(wanted):
        mean, count = place - index, 1
        while blocks and blocks[-1][0] >= mean:
            other, members = blocks.pop()
            mean, count = (other * members + mean * count) / (members + count), members + count
        blocks.append((mean, count))
    spread = [mean for mean, count in blocks for _ in range(count)]
    return [place + index for index, place in enumerate(spread)]
