"""Timelines of traces and schedules, and drawings of task graphs: pictures in notebooks, text everywhere else.

    h2d stream 13     |[128 MiB>[128 MiB>[128 MiB>[128 MiB>.........|
    compute stream 7  |.........[gemm#:..[gemm#:..[gemm#:..[gemm#::.|
    memory   400 MiB  |=============================================|
             200 MiB  |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
    ms                 0         10        20        30        40
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import networkx as nx

from .adapt import Options, check_unit, panels_of
from .graph_layout import view_of
from .names import clean
from .picture import Picture
from .scene import Scene

__all__ = ["Picture", "dag_and_schedule", "dag_figure", "timeline"]


def timeline(
    x: Any, *, start: float | None = None, stop: float | None = None, critical: bool | Iterable[Any] = True,
    bound: float | Mapping[str, float] | None = None, bound_kind: str = "", title: str = "", unit: str = "ms",
    lanes: Sequence[str] | None = None, memory: bool = False, budget: float | Mapping[str, float] | None = None,
) -> Picture:
    """Draw what ran when: one lane per stream and engine, or per unit of a resource.

    ``x``: a Trace, a dag Schedule, or several as a mapping from names or a list, stacked on one time axis.
    ``start``, ``stop``: the part to show. ``bound``: the time that is compared with the actual one (for several runs,
    per name if you like); a schedule knows its cold bound, for a trace say it, and say in ``bound_kind`` which it is
    ("cold", "steady"). Times are in µs for traces, for schedules in ``unit``: ns, us, ms, s or any other word.
    ``critical``: outline the critical path of a schedule; or the tasks (of a trace: row numbers) to outline.
    ``lanes``: engines of a trace to show, by default "host", "h2d", "compute", "d2h" and any that are no CUDA engine.
    ``memory``: under the lanes of each trace draw what was in use on the device: allocated, and in freed blocks that
    another stream still needs (only the simulated device knows those). Memory is taken and given back when the host
    asks, so the steps stand at its calls, before the work of the device. ``budget``: bytes, a dashed line (per name if
    you like); what lies above it stands out, and the title says by how much; it implies ``memory``.
    Bound, actual, lost, uncovered copies and the peak of memory are those of the whole run, also when a part is shown;
    the actual time of a trace runs from the first to the last span on the device. Idle gaps are shaded on the compute
    lanes; in a schedule without any, on the resources with the largest load per unit.
    Raises TypeError for anything else, ValueError for times that are no numbers, for windows that show nothing, and
    with ``memory`` for schedules and traces without a record.
    """
    memory = memory or budget is not None
    options = Options(start, stop, critical, bound, clean(bound_kind), check_unit(unit), lanes, memory, budget)
    return Picture(_scene(panels_of(x, options), title))


def dag_figure(
    graph: nx.DiGraph, *, critical: bool | Iterable[Hashable] = True, title: str = "", unit: str = "ms"
) -> Picture:
    """Draw a task graph from left to right, its critical path in red.

    ``critical``: False for none, or the tasks of a path to mark instead. ``unit``: as for :func:`timeline`.
    Raises GraphError for what is no task graph, ValueError for more than 300 tasks.
    """
    view = view_of(graph, critical, check_unit(unit))
    return Picture(Scene((), title=clean(title), graph=view))


def dag_and_schedule(
    graph: nx.DiGraph, schedule: Any, *, critical: bool | Iterable[Hashable] = True, title: str = "", unit: str = "ms",
    bound: float | None = None, bound_kind: str = "",
) -> Picture:
    """Draw a task graph above its schedule, in the same colours.

    ``schedule``: what ``dag.schedule`` made of ``graph``. The other arguments are those of :func:`timeline`.
    """
    if set(schedule.runs) != set(graph):
        raise ValueError("the schedule is not one of this graph: they have different tasks")
    critical = critical if isinstance(critical, bool) else tuple(critical)
    options = Options(None, None, critical, bound, clean(bound_kind), check_unit(unit))
    scene = _scene(panels_of(schedule, options), title)
    return Picture(Scene(scene.panels, scene.window, scene.title, view_of(graph, critical, options.unit)))


def _scene(panels: Sequence[Any], title: str) -> Scene:
    units = {panel.unit for panel in panels}
    if len(units) > 1:
        raise ValueError(f"runs in different units, {' and '.join(sorted(units))}, cannot share one time axis: "
                         "for schedules beside a trace give unit=\"us\"")
    window = min(panel.window[0] for panel in panels), max(panel.window[1] for panel in panels)
    return Scene(tuple(panels), window, clean(title))
