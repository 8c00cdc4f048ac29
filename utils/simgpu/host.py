"""The host's side of the simulated machine: its clock, what it waits for, and what it is ordered after."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .memory import Block
from .ops import DONE, Clock, Note, Op, join

if TYPE_CHECKING:
    from .machine import Machine


class HostSpan:
    """Something the host did: a launch, work, or a wait for ``waited``."""

    __slots__ = ("end", "kind", "layer", "name", "op", "start", "waited", "work")

    def __init__(self, name: str, kind: str, start: int, end: int, waited: tuple[Op, ...], work: int, op: int = -1):
        self.name, self.kind, self.start, self.end, self.waited, self.work, self.op = (
            name,
            kind,
            start,
            end,
            waited,
            work,
            op,
        )
        self.layer: str | None = None

    @property
    def label(self) -> str:
        return f"launch {self.name}" if self.kind == "launch" else self.name


class Host:
    """The methods of ``Machine`` that move the host's clock or order the host after the device."""

    def synchronize(self: Machine, marker: Op, name: str = "synchronize", *, ordered: bool = True) -> None:
        """The host waits for ``marker``; ``ordered``: and is from then on ordered after it."""
        start = self.host_ns
        self.advance(None, marker)
        arrived = max(start, marker.end)
        self.host_ns = arrived + self.profile.sync_ns
        if self.keep == "all":
            self.host_spans.append(HostSpan(name, "sync", start, self.host_ns, (marker,), self.profile.sync_ns))
        if ordered:
            self.join_host(marker.clock)
        self.raise_errors()

    def synchronize_all(self: Machine, name: str = "device synchronize") -> None:
        """The host waits for everything queued so far."""
        start, markers = self.host_ns, []
        for queue in self.queues:
            if queue.seq or queue.waits:
                markers.append(self.record(queue, cost=False, name=name))
        for marker in markers:
            self.advance(None, marker)
        self.host_ns = max([start, *(marker.end for marker in markers)]) + self.profile.sync_ns
        if self.keep == "all":
            self.host_spans.append(HostSpan(name, "sync", start, self.host_ns, tuple(markers), self.profile.sync_ns))
        for marker in markers:
            self.join_host(marker.clock)
        self.raise_errors()

    def query(self: Machine, marker: Op) -> bool:
        """Whether ``marker`` is done at the host's time; True orders the host after it."""
        self.spend(self.profile.query_ns, "query", "event")
        self.advance(self.host_ns)
        if marker.state != DONE:
            return False
        if self.keep == "all":
            self.host_spans[-1].waited = (marker,)
        self.join_host(marker.clock)
        self.raise_errors()
        return True

    def join_host(self: Machine, clock: Clock) -> None:
        """From now on the host, and all it launches, comes after ``clock``."""
        joined = join(self.host_clock, clock)
        if joined is not self.host_clock:
            self.host_clock = joined
            self.host_version += 1
            if self.lazy:
                self.compute_deferred(joined)
            if self.ordered is not None:
                self.ordered(joined)

    def settle(self: Machine, marker: Op, block: Block) -> None:
        """A block's other stream is done with it: forget those accesses, without ordering anything else."""
        low, high = block.offset, block.offset + block.size
        if self.lazy:
            self.settled.append((block.space, low, high, marker.clock))
        self.watch.forget(block.space, low, high, marker.clock)

    def spend(self: Machine, ns: int, name: str, kind: str = "host") -> None:
        """Let the host be busy for ``ns``."""
        start = self.host_ns
        self.host_ns = start + ns
        if self.keep == "all":
            span = HostSpan(name, kind, start, self.host_ns, (), ns)
            span.layer = self.layers[-1] if self.layers else None
            self.host_spans.append(span)

    def open_layer(self: Machine, name: str) -> None:
        """Name what is issued until ``close_layer``."""
        self.layers.append(name)
        self._opened.append(self.host_ns)

    def close_layer(self: Machine) -> None:
        if not self.layers:
            return
        name, start = self.layers.pop(), self._opened.pop()
        if self.keep == "all":
            self.ranges.append((name, start, self.host_ns))

    def note(self: Machine, kind: str, text: str) -> Note:
        note = Note(kind, text)
        if note not in self.notes:
            self.notes.append(note)
        return note

    def raise_errors(self: Machine) -> None:
        """Report one failed operation, once, at a synchronising call."""
        if self.errors:
            error = self.errors[0]
            self.errors.clear()
            raise error
