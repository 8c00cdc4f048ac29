"""What a graph and its resources allow, and what a schedule left unused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import networkx as nx

from ..intervals import Intervals, measure, subtract, union
from .graph import GraphError, Time, check_resources, durations_of, resource_of
from .path import critical_path, heads_and_tails
from .schedule import Schedule


class Bound(NamedTuple):
    """A time that no schedule beats, and why.

    ``length``: the bound. ``limited_by``: ``"critical path"`` or the name of a resource.
    ``critical_path``: length of the longest path. ``loads``: per resource, its tasks' total duration over its units.
    """

    length: Time
    limited_by: str
    critical_path: Time
    loads: dict[str, Time]


def lower_bound(graph: nx.DiGraph, resources: int | Mapping[str, int] | None = None) -> Bound:
    """Return the cold bound: the larger of the critical path and, per resource, wait + load + wait.

    A resource cannot start before the first of its tasks can, must then work off its load, and when it is done the
    shortest chain behind its tasks still has to run. For a double buffer of L layers this gives
    copy + (L − 1)·max(copy, compute) + compute exactly. Without ``resources`` only the critical path counts.
    """
    units = check_resources(graph, resources)
    heads, tails = heads_and_tails(graph)
    durations, length = durations_of(graph), critical_path(graph).length
    bound, limited_by, loads = length, "critical path", {}
    for name, count in units.items():
        tasks = [task for task in graph if resource_of(graph, task, units) == name]
        if count is None or not tasks:
            continue
        loads[name] = _share(sum(durations[task] for task in tasks), count)
        reach = min(heads[task] for task in tasks) + loads[name] + min(tails[task] for task in tasks)
        if reach > bound:
            bound, limited_by = reach, name
    return Bound(bound, limited_by, length, loads)


def _share(total: Time, count: int) -> Time:
    return total // count if isinstance(total, int) and total % count == 0 else total / count


def idle(schedule: Schedule) -> dict[str, Time]:
    """Unused time per resource, from 0 to the makespan, summed over its units."""
    unused = {name: count * schedule.makespan for name, count in schedule.resources.items()}
    for run in schedule.runs.values():
        unused[run.resource] -= run.end - run.start
    return unused


def exposed(schedule: Schedule, resource: str, under: str | Iterable[str]) -> float:
    """Time during which ``resource`` works while nothing in ``under`` does: work that is not hidden.

    Raises GraphError for a resource that the schedule does not have.
    """
    covers = [under] if isinstance(under, str) else list(under)
    work = _busy(schedule, [resource])
    return measure(subtract(work, _busy(schedule, covers)))


def _busy(schedule: Schedule, names: list[str]) -> Intervals:
    for name in names:
        if name not in schedule.resources:
            known = ", ".join(map(repr, schedule.resources))
            raise GraphError(f"the schedule has no resource {name!r} (it has: {known})")
    runs = [run for run in schedule.runs.values() if run.resource in names]
    return union([run.start for run in runs], [run.end for run in runs])
