"""The longest path through a task graph, and how far every task is from it."""

from __future__ import annotations

from typing import NamedTuple

import networkx as nx

from .graph import Task, Time, check_graph, durations_of

ROUNDING = 1e-9   # of the length: what sums of floats in different orders differ by, and no real slack


class CriticalPath(NamedTuple):
    """A longest path: its tasks in order, and the sum of their durations."""

    path: tuple[Task, ...]
    length: Time


def serial_time(graph: nx.DiGraph) -> Time:
    """Time to run every task one after the other, in any topological order: the sum of the durations."""
    check_graph(graph)
    return sum(durations_of(graph).values())


def critical_path(graph: nx.DiGraph) -> CriticalPath:
    """Return a longest path by duration; among equal ones, the one that ends in and passes the tasks added first.

    No schedule, with however many resources, ends before its length.
    """
    order, durations = check_graph(graph), durations_of(graph)
    rank = {task: index for index, task in enumerate(graph)}
    finish: dict[Task, Time] = {}
    latest: dict[Task, Task | None] = {}
    for task in order:   # added up from the start, as a schedule does, so that both agree to the last bit
        before = sorted(graph.predecessors(task), key=rank.__getitem__)
        latest[task] = max(before, key=finish.__getitem__, default=None)
        finish[task] = durations[task] + (finish[latest[task]] if before else 0)
    if not finish:
        return CriticalPath((), 0)
    ends = [task for task in graph if graph.out_degree(task) == 0]
    path = [max(ends, key=finish.__getitem__)]   # max keeps the first of equal ones
    length = finish[path[0]]
    while any(True for _ in graph.predecessors(path[-1])):
        path.append(latest[path[-1]])
    return CriticalPath(tuple(reversed(path)), length)


def heads_and_tails(graph: nx.DiGraph) -> tuple[dict[Task, Time], dict[Task, Time]]:
    """Longest work that must precede each task, and longest work that must follow it (its own duration in neither)."""
    order, durations = check_graph(graph), durations_of(graph)
    heads: dict[Task, Time] = {}
    for task in order:
        heads[task] = max((heads[before] + durations[before] for before in graph.predecessors(task)), default=0)
    tails: dict[Task, Time] = {}
    for task in reversed(order):
        tails[task] = max((tails[after] + durations[after] for after in graph.successors(task)), default=0)
    return heads, tails


def slack(graph: nx.DiGraph) -> dict[Task, Time]:
    """Total slack of each task: how much longer it could take, with as many units as needed, before the whole does.

    Zero slack means critical; with float durations, so does anything within ROUNDING of the length, which is returned
    as 0. (Free slack, how long a task may slip without moving any *other* task, is never larger.)
    """
    heads, tails = heads_and_tails(graph)
    durations, length = durations_of(graph), critical_path(graph).length
    room = {task: length - heads[task] - durations[task] - tails[task] for task in graph}
    return {task: 0 if isinstance(free, float) and abs(free) <= ROUNDING * length else free
            for task, free in room.items()}
