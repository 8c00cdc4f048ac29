"""The longest path through a task graph, and how far every task is from it."""

from __future__ import annotations

from typing import NamedTuple

import networkx as nx

from .graph import Task, Time, check_graph


class CriticalPath(NamedTuple):
    """A longest path: its tasks in order, and the sum of their durations."""

    path: tuple[Task, ...]
    length: Time


def serial_time(graph: nx.DiGraph) -> Time:
    """Time to run every task one after the other, in any topological order: the sum of the durations."""
    return sum(graph.nodes[task]["duration"] for task in check_graph(graph))


def critical_path(graph: nx.DiGraph) -> CriticalPath:
    """Return a longest path by duration; among equal ones, the one whose tasks were added first.

    No schedule, with however many resources, ends before its length.
    """
    _, tails = heads_and_tails(graph)
    whole = {task: graph.nodes[task]["duration"] + tail for task, tail in tails.items()}
    rank = {task: index for index, task in enumerate(graph)}
    path: list[Task] = []
    candidates = [task for task in graph if graph.in_degree(task) == 0]
    while candidates:
        task = max(candidates, key=whole.__getitem__)   # max keeps the first of equal ones
        path.append(task)
        candidates = sorted(graph.successors(task), key=rank.__getitem__)
    return CriticalPath(tuple(path), whole[path[0]] if path else 0)


def heads_and_tails(graph: nx.DiGraph) -> tuple[dict[Task, Time], dict[Task, Time]]:
    """Longest work that must precede each task, and longest work that must follow it (its own duration in neither)."""
    order = check_graph(graph)
    durations = graph.nodes.data("duration")
    heads: dict[Task, Time] = {}
    for task in order:
        heads[task] = max((heads[before] + durations[before] for before in graph.predecessors(task)), default=0)
    tails: dict[Task, Time] = {}
    for task in reversed(order):
        tails[task] = max((tails[after] + durations[after] for after in graph.successors(task)), default=0)
    return heads, tails


def slack(graph: nx.DiGraph) -> dict[Task, Time]:
    """Total slack of each task: how much longer it could take before the whole graph takes longer.

    Zero slack means critical. (Free slack, how long a task may slip without moving any *other* task, is never larger.)
    """
    heads, tails = heads_and_tails(graph)
    length = critical_path(graph).length
    return {task: length - heads[task] - graph.nodes[task]["duration"] - tails[task] for task in graph}
