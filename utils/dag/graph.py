"""What counts as a task graph: the checks that every function here makes first."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from numbers import Integral, Real

import networkx as nx
import numpy as np

Task = Hashable
Time = float   # or int: arithmetic on integer durations stays exact

WORKER = "worker"   # resource of a task that names none


class GraphError(ValueError):
    """A task graph, or the resources given for it, cannot be used; the message says what to change."""


def check_graph(graph: nx.DiGraph) -> list[Task]:
    """Return the tasks in topological order (ties in the order in which they were added).

    Raises GraphError for anything but a DiGraph, for a cycle (which it names), and for a missing, negative or
    unusable duration.
    """
    durations_of(graph)
    rank = {task: index for index, task in enumerate(graph)}
    try:
        return list(nx.lexicographical_topological_sort(graph, key=rank.__getitem__))
    except nx.NetworkXUnfeasible:
        cycle = [edge[0] for edge in nx.find_cycle(graph)]
        loop = " → ".join(str(task) for task in [*cycle, cycle[0]])
        raise GraphError(f"the graph has a cycle, {loop}: none of these can ever start; remove one edge") from None


def durations_of(graph: nx.DiGraph) -> dict[Task, Time]:
    """Duration by task, numpy scalars as Python numbers (which do not overflow); raises GraphError as check_graph."""
    if not isinstance(graph, nx.DiGraph) or graph.is_multigraph():
        raise GraphError(f"a task graph is a networkx.DiGraph, not {type(graph).__name__}")
    return {task: _duration(task, attributes) for task, attributes in graph.nodes(data=True)}


def _duration(task: Task, attributes: Mapping[str, object]) -> Time:
    if "duration" not in attributes:
        raise GraphError(f"task {task!r} has no duration: add one with graph.add_node({task!r}, duration=…)")
    duration = attributes["duration"]
    plain = duration.item() if isinstance(duration, np.generic) else duration
    if isinstance(plain, bool) or not isinstance(plain, Real) or plain != plain or plain in (math.inf, -math.inf):
        raise GraphError(f"task {task!r} has duration {duration!r}: give a finite int or float")
    if plain < 0:
        raise GraphError(f"task {task!r} has duration {duration!r}: a task cannot take less than no time")
    return plain


def check_resources(graph: nx.DiGraph, resources: int | Mapping[str, int] | None) -> dict[str, int | None]:
    """Return units per resource name, None for as many as needed.

    An int means that many identical workers for every task, a mapping names each resource and its units.
    Raises GraphError as check_graph does, for fewer than one unit, for a resource without a name, and for a task
    whose resource is not in the mapping.
    """
    durations_of(graph)
    for task, resource in graph.nodes.data("resource"):
        if resource is not None and (not isinstance(resource, str) or not resource):
            raise GraphError(f"task {task!r} has resource {resource!r}: a resource is named by a string")
    if resources is None:
        return {_name(graph, task): None for task in graph}
    if isinstance(resources, Mapping):
        units = {name: _check_units(name, count) for name, count in resources.items()}
        for task in graph:
            _check_known(task, graph.nodes[task].get("resource"), units)
        return units
    return {WORKER: _check_units(WORKER, resources)}


def _check_units(name: str, count: object) -> int:
    if not isinstance(name, str) or not name:
        raise GraphError(f"resource {name!r}: a resource is named by a string")
    if isinstance(count, bool) or not isinstance(count, Integral) or count < 1:
        raise GraphError(f"resource {name!r} has {count!r} units: give a whole number from 1 up")
    return int(count)


def _check_known(task: Task, resource: str | None, units: Mapping[str, int]) -> None:
    if resource is None and WORKER not in units:
        known = ", ".join(repr(name) for name in units)
        choice = f"set its resource to one of {known}, or add" if known else "add"
        raise GraphError(f"task {task!r} names no resource: {choice} {WORKER!r} to the resources")
    if resource is not None and resource not in units:
        known = ", ".join(repr(name) for name in units) or "none"
        raise GraphError(f"task {task!r} needs resource {resource!r}, which was not given (given: {known})")


def _name(graph: nx.DiGraph, task: Task) -> str:
    return graph.nodes[task].get("resource") or WORKER


def resource_of(graph: nx.DiGraph, task: Task, units: Mapping[str, int | None]) -> str:
    """The resource that a task occupies under ``units``, as :func:`check_resources` returned them."""
    name = _name(graph, task)
    return name if name in units else WORKER
