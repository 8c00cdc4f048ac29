"""Sliders on the task times of a graph and on the number of workers."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import networkx as nx

from .. import dag
from ..timeline import Picture, dag_and_schedule, timeline
from ..timeline.units import nice_step
from .controls import Control
from .view import TimelineSliders

WORKERS = "workers"
MOST_TASKS = 8          # sliders made when no tasks are named
FURTHER = 2.5           # a slider reaches to about so many times the first duration
Limits = tuple[float, float]


class ScheduleSliders(TimelineSliders):
    """A task graph above its schedule, with sliders for task times and numbers of workers.

    ``graph``, ``resources``, ``fifo``: as for ``dag.schedule``; the graph is copied. ``tasks``: which ones get a
    slider (default: all, if there are at most 8), or a mapping from task to (low, high).
    ``workers``: (low, high) for the number of identical workers, or a mapping from resource to (low, high).
    ``draw_graph``: False shows the schedule alone. Raises ValueError for unknown tasks and resources.
    """

    def __init__(
        self, graph: nx.DiGraph, resources: int | Mapping[str, int] | None = None, *,
        tasks: Sequence[Hashable] | Mapping[Hashable, Limits] | None = None,
        workers: tuple[int, int] | Mapping[str, tuple[int, int]] | None = None, fifo: bool | Iterable[str] = (),
        title: str = "", unit: str = "ms", draw_graph: bool = True,
    ) -> None:
        dag.check_graph(graph)
        self._graph = graph.copy()
        self._resources, self._workers = resources, _worker_limits(resources, workers)
        self._fifo = fifo if isinstance(fifo, bool) else tuple(fifo)
        self._style: dict[str, Any] = {"title": title, "unit": unit}
        self._draw_graph = draw_graph
        limits = _task_limits(graph, tasks)
        self._task_of = {str(task): task for task in limits}
        controls = [_task_control(graph, task, *limit, unit) for task, limit in limits.items()]
        controls += [_worker_control(name, *limit, resources) for name, limit in self._workers.items()]
        super().__init__(controls, self._draw, {name: limit[1] for name, limit in self._workers.items()})

    def _draw(self, **values: float) -> Picture:
        graph = self._graph.copy()
        for name, task in self._task_of.items():
            graph.nodes[task]["duration"] = values[name]
        counts = {name: int(values[name]) for name in self._workers}
        resources = ({**self._resources, **counts} if isinstance(self._resources, Mapping)
                     else counts.get(WORKERS, self._resources))
        schedule = dag.schedule(graph, resources, fifo=self._fifo)
        return dag_and_schedule(graph, schedule, **self._style) if self._draw_graph else timeline(
            schedule, **self._style)


def _task_limits(graph: nx.DiGraph, tasks: Any) -> dict[Hashable, Limits]:
    if tasks is None:
        tasks = list(graph) if len(graph) <= MOST_TASKS else []
    if unknown := [task for task in tasks if task not in graph]:
        raise ValueError(f"{unknown[0]!r} is no task of the graph; its tasks are {', '.join(map(str, graph))}")
    if isinstance(tasks, Mapping):
        return dict(tasks)
    return {task: (0, _reach(graph.nodes[task]["duration"])) for task in tasks}


def _reach(duration: float) -> float:
    """A round upper limit well beyond ``duration``."""
    if duration == 0:
        return 10
    step = nice_step(duration * FURTHER, 5)
    most = step * -(-duration * FURTHER // step)
    return max(int(most), 1) if isinstance(duration, int) else most


def _task_control(graph: nx.DiGraph, task: Hashable, low: float, high: float, unit: str) -> Control:
    duration = graph.nodes[task]["duration"]
    whole = all(isinstance(each, int) for each in (duration, low, high))
    return Control(str(task), low, high, duration, label=str(graph.nodes[task].get("label", task)), unit=unit,
                   whole=whole)


def _worker_limits(resources: Any, workers: Any) -> dict[str, tuple[int, int]]:
    if workers is None:
        return {}
    if isinstance(workers, Mapping):
        known = resources if isinstance(resources, Mapping) else {}
        if unknown := [name for name in workers if name not in known]:
            raise ValueError(f"workers names {unknown[0]!r}, which is no resource; "
                             f"there are {', '.join(map(repr, known)) or 'none'}")
        return dict(workers)
    if isinstance(resources, Mapping):
        raise ValueError("resources names each resource, so workers must too: workers={\"compute\": (1, 4)}")
    return {WORKERS: tuple(workers)}


def _worker_control(name: str, low: int, high: int, resources: Any) -> Control:
    first = resources[name] if isinstance(resources, Mapping) else resources
    return Control(name, low, high, low if first is None else first, whole=True)
