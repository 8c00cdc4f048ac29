"""CUDA graphs in the core: what a capture collects, and how a replay queues it.

While a capture lasts nothing executes. Operations become nodes; a stream joins the capture by waiting for an event
recorded in it. Races between branches are found at capture, with clocks of their own; for everything outside, a
replay is one operation on its stream.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .machine import HostSpan
from .ops import Clock, Op, Queue, join
from .space import Space, new_sides

if TYPE_CHECKING:
    from .machine import Machine

NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"


@dataclass
class Node:
    """One captured operation; ``deps`` are positions of nodes that come before."""

    op: Op
    name: str
    deps: tuple[int, ...]


@dataclass(eq=False)
class CapturedMarker:
    """An event record inside a capture."""

    capture: Capture
    deps: tuple[int, ...]
    clock: Clock
    lane: Queue


@dataclass
class _Lane:
    deps: tuple[int, ...] = ()  # nodes that the next operation waits for
    clock: Clock = field(default_factory=dict)
    seq: int = 0


class Capture:
    """A capture in progress, on ``origin`` and the streams that joined it."""

    def __init__(self, machine: Machine, origin: Queue, number: int, pool: Any):
        self.machine, self.origin, self.number, self.pool = machine, origin, number, pool
        self.lanes: dict[Queue, _Lane] = {origin: _Lane()}
        self.nodes: list[Node] = []
        self.sides: dict[Space, tuple] = defaultdict(new_sides)
        self.broken: str | None = None

    def has(self, queue: Queue) -> bool:
        return queue in self.lanes

    def refuse(self, what: str) -> None:
        """Nothing may wait for the device while it is captured."""
        self.broken = f"{NOT_PERMITTED}: {what}"
        raise RuntimeError(self.broken)

    def launch(self, op: Op) -> Op:
        """Take an operation in as a node."""
        lane = self.lanes[op.queue]
        lane.seq += 1
        op.seq, op.clock = lane.seq, lane.clock
        plain, op.name = op.name, f"graph {self.number}, node {op.name}"
        self.machine.watch.check(op, self.sides)
        self.nodes.append(Node(op, plain, lane.deps))
        lane.deps = (len(self.nodes) - 1,)
        return op

    def record(self, queue: Queue) -> CapturedMarker:
        lane = self.lanes[queue]
        return CapturedMarker(self, lane.deps, join(lane.clock, {queue.actor: lane.seq}), queue)

    def wait(self, queue: Queue, marker: Any) -> bool:
        """Handle a wait that concerns this capture; False when it does not."""
        if isinstance(marker, CapturedMarker) and marker.capture is self:
            lane = self.lanes.setdefault(queue, _Lane())
            lane.deps = tuple(dict.fromkeys((*lane.deps, *marker.deps)))
            lane.clock = join(lane.clock, marker.clock)
            return True
        if queue in self.lanes and marker is not None:
            self.broken = (
                "CUDA error: dependency created on uncaptured work in another stream: a captured stream waited for an "
                "event recorded outside the capture"
            )
            raise RuntimeError(self.broken)
        return False

    def finish(self) -> list[Node]:
        """The nodes; raises when a stream that joined was not joined back."""
        if self.broken:
            raise RuntimeError(f"CUDA error: the capture was invalidated by an earlier error ({self.broken})")
        known = join(self.lanes[self.origin].clock, {self.origin.actor: self.lanes[self.origin].seq})
        for queue, lane in self.lanes.items():
            if lane.seq > known.get(queue.actor, 0):
                raise RuntimeError(
                    f"CUDA error: capturing stream has unjoined work: let {self.origin.name} wait for {queue.name} "
                    "before the capture ends"
                )
        return self.nodes


def replay(machine: Machine, queue: Queue, nodes: list[Node], label: str) -> None:
    """Queue a captured graph: one launch of the host, the nodes in the order of their fork and join."""
    if queue.pending >= machine.profile.queue_depth:
        machine._wait_for_room(queue)
    start = machine.host_ns
    machine.host_ns = start + machine.profile.launch_ns
    if machine.keep == "all":
        machine.host_spans.append(
            HostSpan(label, "launch", start, machine.host_ns, (), machine.host_ns - start, machine.count)
        )
    machine._take_host_clock(queue)
    first = [op for op in (queue.tail, *queue.waits) if op is not None]
    queue.waits = []
    ops: list[Op] = []
    leaves: dict[int, Op] = {}
    for position, node in enumerate(nodes):
        op = _instance(machine, queue, node.op, f"{label}, node {node.name}")
        machine.enqueue_after(op, [ops[dep] for dep in node.deps] or first)
        for dep in node.deps:
            leaves.pop(dep, None)
        leaves[position] = op
        ops.append(op)
    end = Op(machine.count, label, "event", queue, None, 0, machine.host_ns)
    end.entries = 1  # the whole replay is one entry of the launch queue
    queue.pending += 1
    end.host_node = len(machine.host_spans) - 1
    machine.enqueue_after(end, list(leaves.values()) or first)
    queue.tail = end


def _instance(machine: Machine, queue: Queue, node: Op, name: str) -> Op:
    """A node as an operation of this replay: an access of the replaying stream."""
    op = Op(machine.count, name, node.kind, queue, node.engine, node.work, machine.host_ns)
    machine.count += 1
    op.share, op.bytes, op.reads, op.writes, op.layer = node.share, node.bytes, node.reads, node.writes, node.layer
    again = getattr(node.run, "again", None)
    op.run = again(op) if again is not None else node.run
    op.bad = list(node.bad) if node.bad else None  # races between the branches, found at capture
    queue.seq += 1
    op.seq, op.clock = queue.seq, queue.clock
    machine.watch.check(op)
    machine.keep_op(op)
    return op
