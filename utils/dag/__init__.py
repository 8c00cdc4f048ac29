"""Task graphs: critical path, bounds, and schedules on limited resources.

A task graph is a ``networkx.DiGraph``. Each node carries ``duration`` (a number ≥ 0, in any unit, the same
everywhere; integers stay integers) and may carry ``resource`` (the name of what it occupies).
An edge u → v says: v starts after u ends.

>>> graph = nx.DiGraph([("copy", "gemm")])
>>> nx.set_node_attributes(graph, {"copy": 3, "gemm": 5}, "duration")
>>> critical_path(graph)
CriticalPath(path=('copy', 'gemm'), length=8)
"""

from .graph import GraphError, check_graph, check_resources, durations_of
from .measure import Bound, exposed, idle, lower_bound
from .path import CriticalPath, critical_path, heads_and_tails, serial_time, slack
from .schedule import Run, Schedule, schedule

__all__ = [
    "Bound", "CriticalPath", "GraphError", "Run", "Schedule", "check_graph", "check_resources", "critical_path",
    "durations_of", "exposed", "heads_and_tails", "idle", "lower_bound", "schedule", "serial_time", "slack",
]
