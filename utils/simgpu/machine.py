"""The simulated machine: one host thread's clock, queues, engines, in integer nanoseconds.

The host runs ahead: it queues operations at its own time, and the device catches up when the host looks
(``advance``). An operation starts when its predecessor in the queue and everything it waits for are done, it has been
launched and its engine has room; it is computed (``op.run``) at the moment it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Any

from .compute import Compute
from .engines import Engines
from .host import Host, HostSpan
from .lock import interrupts_held
from .memory import Allocator
from .ops import DONE, PENDING, READY, RUNNING, Clock, Hazard, Note, Op, Queue, join
from .profiles import Profile
from .space import Key, Space, meet
from .watch import Watch

MAX_UNFINISHED = 4096  # operations the host may queue before the device is brought up to the host's time


class Machine(Host, Compute):
    """One host thread and one device. ``numerics`` is "exact", "shapes" or "adversarial"."""

    def __init__(self, profile: Profile, *, numerics: str = "exact", on_hazard: str = "record", keep: str = "all"):
        self.profile, self.numerics, self.keep = profile, numerics, keep
        self.values = numerics != "shapes"
        self.lazy = numerics == "adversarial"
        self.host_ns = self.now = 0
        self.count = 0  # operations issued so far: their index in call order
        self.host_clock: Clock = {}
        self.host_version = 0
        self.queues: list[Queue] = []
        self.engines = Engines(profile)
        self.heap: list[tuple[int, int, int, Op, int]] = []
        self.running: dict[Op, None] = {}
        self.unfinished = 0
        self.deferred: list[Op] = []  # adversarial: done in time, not yet computed
        self.errors: list[BaseException] = []
        self.ops: list[Op] = []
        self.host_spans: list[HostSpan] = []
        self.layers: list[str] = []
        self.ranges: list[tuple[str, int, int]] = []  # named ranges that ended: name, start, end
        self._opened: list[int] = []
        self.notes: list[Note] = []
        self.watch = Watch(self, on_hazard)
        self.memory = Allocator(self, profile)
        self.closed = False
        self.capture: Any = None  # the CUDA graph capture in progress
        self.settled: list[tuple[Space, int, int, Clock]] = []  # adversarial: reused bytes whose old users are deferred
        self.interrupted: BaseException | None = None
        self.spoil: Callable[[Op], None] = lambda op: None  # marks what an operation writes (the layer with values)
        self.ordered: Callable[[Clock], None] | None = None  # told when the host is ordered after more
        self.computed: Callable[[Op, Any], None] | None = None  # told of each computation that has ended

    @property
    def hazards(self) -> list[Hazard]:
        return self.watch.hazards

    # queues

    def new_queue(self, name: str, priority: int = 0) -> Queue:
        queue = Queue(len(self.queues), name, priority, self)
        self.queues.append(queue)
        return queue

    def launch(
        self,
        queue: Queue,
        name: str,
        kind: str,
        engine: str,
        work: int,
        *,
        share: int = 1000,
        nbytes: int = 0,
        reads: Iterable[tuple[Space, Key]] = (),
        writes: Iterable[tuple[Space, Key]] = (),
        run: Callable[[Op], None] | None = None,
        cost_ns: int | None = None,
    ) -> Op:
        """Queue an operation at the host's time; ``work`` is its duration in ns when nothing slows it."""
        captured = self.capture is not None and self.capture.has(queue)
        if queue.pending >= self.profile.queue_depth and not captured:
            self._wait_for_room(queue)
        start = self.host_ns
        self.host_ns = start + (self.profile.launch_ns if cost_ns is None else cost_ns)
        op = Op(self.count, name, kind, queue, engine, work, self.host_ns)
        self.count += 1
        op.share, op.bytes, op.run, op.reads, op.writes = share, nbytes, run, tuple(reads), tuple(writes)
        if self.keep == "all":
            self.host_spans.append(HostSpan(name, "launch", start, self.host_ns, (), self.host_ns - start, op.index))
        if self.layers:
            op.layer = self.layers[-1]
        if captured:
            return self.capture.launch(op)
        self._order(op)
        self.watch.check(op)
        op.entries = 1
        self.keep_op(op)
        self._enqueue(op)
        return op

    def keep_op(self, op: Op) -> None:
        """Count an operation in, and remember it where history is kept."""
        if self.keep == "all":
            self.ops.append(op)
            op.host_node = len(self.host_spans) - 1
        if self.lazy:
            self.deferred.append(op)
        op.queue.pending += op.entries
        self.unfinished += 1
        if self.unfinished > MAX_UNFINISHED:
            self.advance(self.host_ns)

    def _order(self, op: Op) -> None:
        """Happens-before: what is earlier in the queue, what it waited for, what the host synchronised with."""
        queue = op.queue
        self._take_host_clock(queue)
        queue.seq += 1
        op.seq, op.clock = queue.seq, queue.clock

    def clock_of(self, queue: Queue) -> Clock:
        """All that comes before the next operation on ``queue``."""
        self._take_host_clock(queue)
        return join(queue.clock, {queue.actor: queue.seq})

    def _take_host_clock(self, queue: Queue) -> None:
        if queue.host_version != self.host_version:
            queue.clock = join(queue.clock, self.host_clock)
            queue.host_version = self.host_version

    def _enqueue(self, op: Op) -> None:
        queue = op.queue
        self.enqueue_after(op, [queue.tail, *queue.waits] if queue.tail is not None else queue.waits)
        queue.tail, queue.waits = op, []

    def enqueue_after(self, op: Op, before: list[Op]) -> None:
        """Let ``op`` start once ``before`` is done."""
        for dep in before:
            if dep.state != DONE:
                op.unmet += 1
                if dep.followers is None:
                    dep.followers = []
                dep.followers.append(op)
        if self.keep == "all":
            op.after = tuple(before)
        if not op.unmet:
            heappush(self.heap, (max(op.launch, self.now), 1, op.serial, op, 0))   # now: a flush runs ahead of the host

    def _wait_for_room(self, queue: Queue) -> None:
        """The launch queue is full: the host waits until the oldest launch is done."""
        self.advance(self.host_ns)
        last: Op | None = None
        start = self.host_ns
        with interrupts_held() as held:
            while queue.pending >= self.profile.queue_depth:
                last = self._step()
                self.host_ns = max(self.host_ns, self.now)
                self._raise_interrupt(held)
        if last is not None and self.keep == "all" and self.host_ns > start:
            self.host_spans.append(HostSpan("launch queue full", "sync", start, self.host_ns, (last,), 0))

    # markers: what events and synchronisation are made of

    def record(self, queue: Queue, *, cost: bool = True, name: str = "event record", run: Callable | None = None) -> Op:
        """A marker behind everything queued so far; it takes no device time, but may compute (``run``)."""
        if cost:
            self.spend(self.profile.event_ns, name, "event")
        marker = Op(self.count, name, "event", queue, None, 0, self.host_ns)
        self._take_host_clock(queue)
        marker.clock = join(queue.clock, {queue.actor: queue.seq})
        marker.seq = queue.seq
        if self.keep == "all":
            marker.host_node = len(self.host_spans) - 1
        marker.run = run
        self._enqueue(marker)
        if run is not None and self.lazy:
            self.deferred.append(marker)
        if len(self.heap) > MAX_UNFINISHED:
            self.advance(self.host_ns)
        return marker

    def wait(self, queue: Queue, marker: Op) -> None:
        """Later work on ``queue`` starts after ``marker``, and is ordered after all that is before it."""
        if marker.state != DONE or self.keep == "all":
            queue.waits.append(marker)
        self._take_host_clock(queue)
        queue.clock = join(queue.clock, marker.clock)

    # the device

    def advance(self, until: int | None, stop: Op | None = None) -> None:
        """Run the device up to time ``until`` (None: as far as it goes), or until ``stop`` is done."""
        heap = self.heap
        if not heap or (until is not None and heap[0][0] > until):
            return
        with interrupts_held() as held:
            while heap and (until is None or heap[0][0] <= until):
                if stop is not None and stop.state == DONE:
                    return
                self._step()
                self._raise_interrupt(held)

    def _step(self) -> Op | None:
        """Process everything that happens at the next moment: ends first, then starts."""
        heap = self.heap
        self.now = now = heap[0][0]
        ended: Op | None = None
        while heap and heap[0][0] == now:
            _, _, _, op, ticket = heappop(heap)
            if ticket != op.ticket or op.state == DONE:
                continue
            if op.state == RUNNING:
                self.engines.release(op, now, heap)
                self._finish(op, now)
                ended = op
            else:
                self._ready(op, now)
        for op in self.engines.startable(now, heap):
            self.running[op] = None
            if self.values and len(self.running) > 1:
                self._find_torn(op)
        return ended

    def _ready(self, op: Op, now: int) -> None:
        if op.engine is None:
            op.start = now
            self._finish(op, now)
        else:
            op.state = READY
            self.engines.queue_up(op)

    def _finish(self, op: Op, now: int) -> None:
        op.state, op.end = DONE, now
        if op.engine is not None:
            self.running.pop(op, None)
            self.unfinished -= 1
        op.queue.pending -= op.entries
        if op.run is not None and not self.lazy:
            self.compute(op)
        if op.followers:
            for after in op.followers:
                after.unmet -= 1
                if not after.unmet:
                    heappush(self.heap, (max(now, after.launch), 1, after.serial, after, after.ticket))
            op.followers = None

    # values: see compute.py

    def _find_torn(self, op: Op) -> None:
        """Mark what overlaps in time and touches the same bytes: neither side can be trusted."""
        for other in self.running:
            if other is not op:  # two of one stream overlap only as branches of a graph
                tear(op, other)
                tear(other, op)

    def flush(self) -> None:
        """Run everything that is queued, without moving the host's clock."""
        self.advance(None)
        if self.lazy:
            self.compute_deferred(None)


def tear(reader: Op, writer: Op) -> None:
    """Note on ``reader`` the ranges that ``writer`` changes while it runs."""
    for space, key in writer.writes:
        for mine in (reader.reads, reader.writes):
            for other_space, other_key in mine:
                if space is other_space and meet(key, other_key):
                    reader.bad = [*(reader.bad or ()), (space, key)]


__all__ = ["PENDING", "HostSpan", "Machine", "tear"]
