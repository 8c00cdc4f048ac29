"""Place the tasks of a graph on limited resources, each as early as it can start."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import networkx as nx

from .graph import GraphError, Task, Time, check_graph, check_resources, durations_of, resource_of
from .path import critical_path

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Run:
    """One task's place: when it starts and ends, on which resource, on which of its identical units (from 0)."""

    task: Task
    start: Time
    end: Time
    resource: str
    unit: int


@dataclass(frozen=True)
class Schedule:
    """Where every task of ``graph`` runs; ``runs`` is in order of start, ``resources`` gives units per name."""

    graph: nx.DiGraph
    runs: dict[Task, Run]
    makespan: Time
    resources: dict[str, int]

    @cached_property
    def critical(self) -> tuple[Task, ...]:
        """Tasks on the critical path of the graph."""
        return critical_path(self.graph).path

    def table(self) -> pd.DataFrame:
        """One row per task, in order of start: task, resource, unit, start, end."""
        import pandas as pd

        rows = [(run.task, run.resource, run.unit, run.start, run.end) for run in self.runs.values()]
        return pd.DataFrame(rows, columns=["task", "resource", "unit", "start", "end"])


def schedule(
    graph: nx.DiGraph, resources: int | Mapping[str, int] | None = None, fifo: bool | str | Iterable[str] = ()
) -> Schedule:
    """Start each task as soon as its predecessors have ended and a unit of its resource is free.

    ``resources``: None for as many units as needed, an int for that many identical workers, or units by name.
    ``fifo``: resources (True: all) on which tasks start in the order in which they were added to the graph, like
    launches queued in a stream; elsewhere a task that cannot start yet is overtaken. Several that could start at the
    same moment start in the order in which they were added, on the lowest free unit. No resource is left
    idle while a task could run on it; with limited resources that is a good schedule, not always the shortest.
    Raises GraphError as ``check_graph`` and ``check_resources`` do, when a name in ``fifo`` is unknown, and when the
    order of a queue contradicts the edges.
    """
    units = check_resources(graph, resources)
    queued = set(units) if fifo is True else _names(fifo)
    if unknown := queued - set(units):
        raise GraphError(f"fifo names {sorted(map(str, unknown))}, but the resources are {sorted(units)}")
    return _Placing(graph, units, queued).run()


def _names(fifo: bool | str | Iterable[str]) -> set[str]:
    if isinstance(fifo, str):
        return {fifo}
    try:
        return set(fifo or ())
    except TypeError:
        raise GraphError(f"fifo is {fifo!r}: give True, the name of a resource, or several names") from None


@dataclass
class _Pool:
    """The units of one resource and the tasks that wait for them (heap of ranks)."""

    size: int | None
    order: list[int] | None = None                      # ranks still to start, last first; only for queues
    waiting: list[int] = field(default_factory=list)
    free: list[int] = field(default_factory=list)
    used: int = 0

    def can_start(self) -> bool:
        ready = bool(self.waiting) and (self.order is None or self.waiting[0] == self.order[-1])
        return ready and (bool(self.free) or self.size is None or self.used < self.size)

    def take(self) -> tuple[int, int]:
        """Pop the next task's rank and the lowest free unit."""
        if self.order is not None:
            self.order.pop()
        if self.free:
            return heapq.heappop(self.waiting), heapq.heappop(self.free)
        self.used += 1
        return heapq.heappop(self.waiting), self.used - 1

    def give_back(self, unit: int) -> None:
        heapq.heappush(self.free, unit)


class _Placing:
    """One run of the event loop: release what ended, start what can."""

    def __init__(self, graph: nx.DiGraph, units: dict[str, int | None], queued: set[str]) -> None:
        check_graph(graph)
        self.graph, self.tasks, self.durations = graph, list(graph), durations_of(graph)
        self.rank = {task: index for index, task in enumerate(self.tasks)}
        self.missing = [graph.in_degree(task) for task in self.tasks]
        self.resource = [resource_of(graph, task, units) for task in self.tasks]
        self.pools = {name: _Pool(size, [] if name in queued else None) for name, size in units.items()}
        for index in range(len(self.tasks) - 1, -1, -1):
            order = self.pools[self.resource[index]].order
            if order is not None:
                order.append(index)
        self.ending: list[tuple[Time, int, int]] = []   # (end, rank, unit)
        self.runs: dict[Task, Run] = {}

    def run(self) -> Schedule:
        for index, count in enumerate(self.missing):
            if count == 0:
                self._release(index)
        now: Time = 0
        self._start_all(now)
        while self.ending:
            now = self.ending[0][0]
            while self.ending and self.ending[0][0] == now:
                self._finish(*heapq.heappop(self.ending)[1:])
            self._start_all(now)
        if len(self.runs) < len(self.tasks):
            raise GraphError(self._stuck())
        makespan = max((run.end for run in self.runs.values()), default=0)
        used = {name: pool.size or pool.used for name, pool in self.pools.items()}
        return Schedule(self.graph, self.runs, makespan, used)

    def _release(self, index: int) -> None:
        heapq.heappush(self.pools[self.resource[index]].waiting, index)

    def _start_all(self, now: Time) -> None:
        for name, pool in self.pools.items():
            while pool.can_start():
                index, unit = pool.take()
                task = self.tasks[index]
                end = now + self.durations[task]
                self.runs[task] = Run(task, now, end, name, unit)
                heapq.heappush(self.ending, (end, index, unit))

    def _finish(self, index: int, unit: int) -> None:
        self.pools[self.resource[index]].give_back(unit)
        for after in self.graph.successors(self.tasks[index]):
            self.missing[self.rank[after]] -= 1
            if self.missing[self.rank[after]] == 0:
                self._release(self.rank[after])

    def _stuck(self) -> str:
        heads = [self.tasks[pool.order[-1]] for pool in self.pools.values() if pool.order]
        names = ", ".join(repr(task) for task in heads)
        return (f"the queues cannot go on: at the head stands {names}, waiting for a task that is queued behind it or "
                "behind another head; add the tasks to the graph in an order in which they can run")
