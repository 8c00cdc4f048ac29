"""What a simulated program did, as a trace, as a task graph, and re-timed under other rates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from .ops import Op

if TYPE_CHECKING:
    import networkx as nx

    from ..dag import Schedule
    from ..trace import Trace
    from .machine import Machine

NS_PER = {"us": 1000, "ns": 1}
NO_HISTORY = 'this session keeps no history (keep="none"); use keep="all" for traces and graphs'


def _need_history(machine: Machine) -> None:
    if machine.keep != "all":
        raise RuntimeError(NO_HISTORY)


# trace


def trace_of(machine: Machine, *, since_ns: int = 0, since_row: int = 0, name: str = "") -> Trace:
    """The spans that began at or after ``since_ns``, counted from there; ranges become annotations.

    The record of memory starts with what row ``since_row`` of the allocator's history says.
    """
    from ..trace import Trace

    _need_history(machine)
    rows = [*_device_rows(machine, since_ns), *_host_rows(machine, since_ns)]
    ranges = [
        (range_name, "host", "host", -1, start - since_ns, end - start, 0, -1)
        for range_name, start, end in machine.ranges
        if start >= since_ns
    ]
    return Trace.from_columns(_columns(rows), name=name, annotations=_columns(ranges) if ranges else None,
                              memory=_memory_columns(machine, since_ns, since_row))


def _memory_columns(machine: Machine, since: int, row: int) -> dict[str, list]:
    """The allocator's history from one row on; a freed block that waits for another stream is held, not allocated."""
    times, allocated, active, reserved = map(list, zip(*machine.memory.history[row:], strict=True))
    return {
        "us": [max(time - since, 0) / 1000 for time in times],
        "bytes": allocated,
        "held_bytes": [all_used - used for all_used, used in zip(active, allocated, strict=True)],
        "reserved_bytes": reserved,
    }


def _columns(rows: list[tuple]) -> dict[str, list]:
    names = ("name", "kind", "lane", "stream", "start_us", "duration_us", "bytes", "correlation")
    columns = (
        dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)) if rows else {column: [] for column in names}
    )
    for column in ("start_us", "duration_us"):
        columns[column] = [value / 1000 for value in columns[column]]
    return columns


def _device_rows(machine: Machine, since: int) -> Iterator[tuple]:
    for op in machine.ops:
        if op.launch >= since and op.end >= 0:
            lane = "compute" if op.engine == "compute" else op.engine
            yield op.name, op.kind, lane, op.actor, op.start - since, op.end - op.start, op.bytes, op.index


def _host_rows(machine: Machine, since: int) -> Iterator[tuple]:
    """What the host did. A wait stands twice, as in a profiler's trace: as a call of the host and on the sync lane."""
    for span in machine.host_spans:
        if span.start < since or span.kind == "event":
            continue
        for kind in ("host", "sync") if span.kind == "sync" else ("host",):
            yield span.label, kind, kind, -1, span.start - since, span.end - span.start, 0, span.op


def recorder(device: Any) -> Callable[[Callable[[], Any]], Trace]:
    """What ``utils.trace.record`` uses while ``device`` is active."""

    def record(call: Callable[[], Any]) -> Trace:
        machine = device.machine
        machine.synchronize_all()
        start, row = machine.host_ns, len(machine.memory.history) - 1
        call()
        machine.synchronize_all()
        return trace_of(machine, since_ns=start, since_row=row)

    return record


# graph


def graph_of(machine: Machine, *, unit: str = "us", host: bool = True) -> nx.DiGraph:
    """Operations and host work as tasks, with the order that streams, events and the host impose.

    Nodes: "name #index" for operations, "host name @n" for the host; attributes duration (``unit``: "us" or "ns"),
    resource, label, kind, bytes, and stream for operations. ``host=False`` leaves the host out:
    what the device alone could do.
    """
    import networkx as nx

    _need_history(machine)
    if unit not in NS_PER:
        raise ValueError(f'unit must be "us" or "ns", not {unit!r}')
    graph = nx.DiGraph(unit=unit)
    tasks = _Tasks(machine, graph, NS_PER[unit], host)
    tasks.add_all()
    return graph


class _Tasks:
    """Adds nodes and edges in call order."""

    def __init__(self, machine: Machine, graph: nx.DiGraph, divisor: int, host: bool):
        self.machine, self.graph, self.divisor, self.host = machine, graph, divisor, host
        self.resource = machine.engines.resource
        self.sources: dict[int, tuple[str, ...]] = {}  # serial of a marker -> the tasks that it stands for

    def add_all(self) -> None:
        spans = self.machine.host_spans if self.host else ()
        ops = iter(self.machine.ops)
        op = next(ops, None)
        before: str | None = None
        for number, span in enumerate(spans):
            while op is not None and op.host_node < number:
                self._add_op(op)
                op = next(ops, None)
            before = self._add_host(number, span, before)
        while op is not None:
            self._add_op(op)
            op = next(ops, None)

    def _time(self, ns: int) -> int | float:
        return ns if self.divisor == 1 else ns / self.divisor

    def _add_host(self, number: int, span: Any, before: str | None) -> str:
        node = self._host_name(number)
        self.graph.add_node(
            node,
            duration=self._time(span.work),
            resource="host",
            label=span.label,
            kind="sync" if span.kind == "sync" else "host",
            bytes=0,
        )
        if before is not None:
            self.graph.add_edge(before, node)
        self._edges(span.waited, node)
        return node

    def _host_name(self, number: int) -> str:
        return f"host {self.machine.host_spans[number].label} @{number}"

    def _add_op(self, op: Op) -> None:
        node = f"{op.name} #{op.index}"
        self.graph.add_node(
            node,
            duration=self._time(op.end - op.start),
            resource=self.resource(op.engine),
            label=op.name,
            kind=op.kind,
            stream=op.actor,
            bytes=op.bytes,
        )
        if self.host and op.host_node >= 0:
            self.graph.add_edge(self._host_name(op.host_node), node)
        self._edges(op.after or (), node)

    def _edges(self, before: tuple[Op, ...], node: str) -> None:
        for dep in before:
            for source in self._tasks_behind(dep):
                self.graph.add_edge(source, node)

    def _tasks_behind(self, op: Op) -> tuple[str, ...]:
        """The tasks that an operation or marker stands for: markers take no time and are left out."""
        if op.engine is not None:
            return (f"{op.name} #{op.index}",)
        todo = [op]
        while todo:
            marker = todo[-1]
            missing = [dep for dep in marker.after or () if dep.engine is None and dep.serial not in self.sources]
            if missing:
                todo += missing
                continue
            todo.pop()
            found: dict[str, None] = {}
            for dep in marker.after or ():
                found |= dict.fromkeys(
                    (f"{dep.name} #{dep.index}",) if dep.engine is not None else self.sources[dep.serial]
                )
            if self.host and marker.host_node >= 0:
                found[self._host_name(marker.host_node)] = None
            self.sources[marker.serial] = tuple(found)
        return self.sources[op.serial]


# other rates

COPIES = frozenset({"h2d", "d2h"})
KERNELS = frozenset({"kernel", "d2d", "memset"})


def retime(program: Any, *, copy_scale: float = 1.0, compute_scale: float = 1.0) -> Schedule:
    """Schedule a recorded program (a session, or its ``graph()``) with all copies and kernels so many times as long.

    The program does not run again: order, streams, events and host work stay, and so does how both copy directions
    slowed each other. Times are in the graph's unit (us). Raises ValueError for a scale that is not above 0.
    """
    from ..dag import schedule

    for word, scale in (("copy_scale", copy_scale), ("compute_scale", compute_scale)):
        if not scale > 0:
            raise ValueError(f"{word} must be above 0, not {scale!r}")
    graph = (program if hasattr(program, "nodes") else program.graph()).copy()
    for _, task in graph.nodes(data=True):
        if task["kind"] in COPIES:
            task["duration"] *= copy_scale
        elif task["kind"] in KERNELS:
            task["duration"] *= compute_scale
    return schedule(graph, dict.fromkeys({task["resource"] for _, task in graph.nodes(data=True)}, 1))
