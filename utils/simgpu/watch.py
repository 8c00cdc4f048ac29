"""Happens-before: finds pairs of accesses to the same bytes that nothing orders, when the second one is issued.

Order comes from the queue (FIFO), from waiting on a recorded marker, and from the host: what it launches comes after
all it has synchronised with. Time, and sharing an engine, order nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .ops import HOST_SIDE, Access, Clock, Hazard, HazardError, Note, Op, Queue
from .space import Key, Space, meet, shared_range

if TYPE_CHECKING:
    from .machine import Machine

HOST = -1
NOBODYS = "memory that no tensor holds now"


class Watch:
    """The hazards of one machine."""

    def __init__(self, machine: Machine, on_hazard: str):
        self.machine, self.on_hazard = machine, on_hazard
        self.hazards: list[Hazard] = []
        self._seen: set[tuple] = set()

    # device operations

    def check(self, op: Op, sides: dict[Space, tuple] | None = None) -> None:
        """Compare ``op`` with earlier accesses, report what is unordered, and remember its accesses."""
        found: list[tuple[str, Op, Space, Key, Key]] = []
        actor, clock = op.actor, op.clock
        for space, key in op.reads:
            writes = space.writes if sides is None else sides[space][1]
            if _others(writes.last, actor):
                found += [("RAW", old, space, old_key, key) for old, old_key in writes.unordered(actor, clock, key)]
        for space, key in op.writes:
            reads, writes = (space.reads, space.writes) if sides is None else sides[space]
            if _others(writes.last, actor):
                found += [("WAW", old, space, old_key, key) for old, old_key in writes.unordered(actor, clock, key)]
            if _others(reads.last, actor):
                found += [("WAR", old, space, old_key, key) for old, old_key in reads.unordered(actor, clock, key)]
        synced = self.machine.host_clock if sides is None else {}
        for space, key in op.reads:
            (space.reads if sides is None else sides[space][0]).add(op, key, synced)
        for space, key in op.writes:
            (space.writes if sides is None else sides[space][1]).add(op, key, synced)
        if found:
            self._report(found, op)

    def _report(self, found: list[tuple[str, Op, Space, Key, Key]], op: Op) -> None:
        for kind, first, space, old_key, key in _newest(found):
            if self.machine.lazy:
                _spoil(kind, first, op, space, old_key, key)
            self._add(kind, first, space, old_key, key, _access(op), op)

    # host operations

    def host_access(self, space: Space, key: Key, write: bool, name: str, call: int) -> bool:
        """The host touches pinned memory; returns whether something on the device is not ordered before that.

        ``call`` tells one call of the host, which may touch the memory many times, from the next.
        """
        machine = self.machine
        clock = machine.host_clock
        found = [
            ("WAW" if write else "RAW", op, space, old, key) for op, old in space.writes.unordered(HOST, clock, key)
        ]
        if write:
            found += [("WAR", op, space, old, key) for op, old in space.reads.unordered(HOST, clock, key)]
        for kind, first, _, old_key, _ in _newest(found):
            if machine.lazy and kind != "RAW":
                first.bad = [*(first.bad or ()), (space, key)]
            second = Access(machine.count, name, HOST_SIDE, _layer(machine))
            self._add(kind, first, space, old_key, key, second, None, call=call)
        return bool(found)

    def outside_write(self, op: Op, space: Space, key: Key) -> None:
        """The bytes of a pinned source changed between the call and the copy, by no operation that was seen."""
        if not any(count > op.index and meet(written, key) for count, written in space.host_writes):
            second = Access(op.index, "write outside torch (numpy or another view)", HOST_SIDE, None)
            self._add("WAR", op, space, key, key, second, None, deferred=True)

    def freed_host_memory(self, op: Op, space: Space, kind: str) -> None:
        """A graph was replayed whose captured copy reads (RAW) or writes (WAW) a pinned buffer that is gone."""
        label = space.live[0].label
        first = Access(op.index, f"release of {label}", HOST_SIDE, None)
        hazard = Hazard(
            kind,
            first,
            _access(op),
            label,
            (0, space.size),
            True,
            "keep the pinned tensor alive as long as the graph",
            "The host may have given this memory to other tensors since; a graph keeps addresses, not tensors.",
        )
        self.hazards.append(hazard)
        if self.on_hazard == "raise":
            raise HazardError(hazard)

    # reports

    def _add(
        self,
        kind: str,
        first: Op,
        space: Space,
        old_key: Key,
        key: Key,
        second: Access,
        op: Op | None,
        deferred: bool = False,
        call: int = 0,
    ) -> None:
        low, high = shared_range(old_key, key)
        block = find_block(space, low)
        start, label = (block.offset, block.label) if block is not None else (0, NOBODYS)
        identity = (first.index, op.index if op is not None else ("host", call), space.base + start)
        if identity in self._seen:
            return
        self._seen.add(identity)
        reused = block is not None and not space.host and first.index < block.birth
        moved = reused and first.queue is not block.queue  # else record_stream would name the block's own stream
        fix, remark = _fix(first, op, second, moved, label), _remark(first, op, reused)
        hazard = Hazard(kind, _access(first), second, label, (low - start, high - start), space.host, fix, remark)
        self.hazards.append(hazard)
        if self.on_hazard == "raise" and not deferred:
            raise HazardError(hazard)

    def forget(self, space: Space, low: int, high: int, clock: Clock) -> None:
        """Drop the accesses inside a range that are before ``clock``."""
        for side in (space.reads, space.writes):
            for actor, mine in side.by_actor.items():
                seen = clock.get(actor, 0)
                for key in [key for key, op in mine.items() if low <= key[0] and key[1] <= high and op.seq <= seen]:
                    del mine[key]


def _others(last: dict[int, int], actor: int) -> bool:
    return bool(last) and (len(last) > 1 or actor not in last)


def _newest(found: list[tuple]) -> list[tuple]:
    """Drop a finding whose first operation happens before another's: the later edge covers it."""
    if len(found) < 2:
        return found
    keep = []
    for item in found:
        first = item[1]
        covered = any(
            other[1] is not first
            and other[2] is item[2]
            and (
                first.seq < other[1].seq
                if other[1].actor == first.actor
                else first.seq <= other[1].clock.get(first.actor, 0)
            )
            for other in found
        )
        if not covered and not any(kept[1] is first and kept[2] is item[2] and meet(kept[4], item[4]) for kept in keep):
            keep.append(item)
    return keep


def _spoil(kind: str, first: Op, second: Op, space: Space, old_key: Key, key: Key) -> None:
    """Adversarial numerics: whoever could see the wrong bytes, does."""
    if kind == "RAW":
        second.bad = [*(second.bad or ()), (space, old_key)]
    elif kind == "WAR":
        first.bad = [*(first.bad or ()), (space, key)]
    else:
        second.bad = [*(second.bad or ()), (space, old_key)]


def _access(op: Op) -> Access:
    return Access(op.index, op.name, op.queue.name, op.layer)


def _layer(machine: Machine) -> str | None:
    return machine.layers[-1] if machine.layers else None


def find_block(space: Space, offset: int) -> Any:
    """The allocation at ``offset`` of ``space``, None where nothing is allocated now."""
    for start, block in space.live.items():
        if start <= offset < start + block.size:
            return block
    return None


def _variable(queue: Queue) -> str:
    """How a line of code would call a stream."""
    if queue.actor == 0:
        return "torch.cuda.default_stream()"
    return queue.name.replace(" ", "_")


def _fix(first: Op, op: Op | None, second: Access, reused: bool, label: str) -> str:
    where = _variable(first.queue)
    if op is None:
        return (
            f"{where}.synchronize()  # before the host touches {label}; "
            f"or synchronise with an event recorded after #{first.index}"
        )
    if reused:
        return (
            f"tensor.record_stream({where})  # for the tensor that #{first.index} uses, before it is freed; "
            f"or {_variable(op.queue)}.wait_stream({where}) before #{op.index}"
        )
    return (
        f"{_variable(op.queue)}.wait_stream({where})  # before {op.name} #{op.index} is queued; "
        f"or wait for an event recorded right after #{first.index}"
    )


def _remark(first: Op, op: Op | None, reused: bool) -> str:
    remarks = []
    if reused:
        remarks.append(
            f"The memory that #{first.index} uses was freed and given to another tensor while that work was pending."
        )
    if op is not None:
        remarks += [f"See note: {note.text}" for note in _void_waits(first, op)]
    return " ".join(dict.fromkeys(remarks))   # many waits may have one and the same note


def _void_waits(first: Op, op: Op) -> list[Note]:
    """Waits of the second queue on events without a record, each of which could have been the missing edge."""
    notes = []
    for event, note in op.queue.void_waits:
        marker = getattr(event, "marker", None)
        if marker is None or marker.clock.get(first.actor, 0) >= first.seq:
            notes.append(note)
    return notes
