"""Copy and compute engines: who runs next, how much runs at once, and how both copy directions slow each other.

A copy engine runs one operation. The compute engine has room for 1000 shares; kernels that do not fill the device run
side by side. Waiting operations start by priority, then in call order; a kernel without room is not overtaken.
"""

from __future__ import annotations

from heapq import heappop, heappush

from .ops import RUNNING, Op
from .profiles import Profile

FULL = 1000


class _Engine:
    __slots__ = ("active", "room", "waiting")

    def __init__(self) -> None:
        self.room = FULL
        self.waiting: list[tuple[int, int, Op]] = []
        self.active: Op | None = None  # the copy that runs (copy engines only)


class Engines:
    """The engines of one device; ``lanes`` maps what an operation asks for to the engine that does it."""

    def __init__(self, profile: Profile):
        compute = _Engine()
        h2d = _Engine()
        d2h = h2d if profile.copy_engines == 1 else _Engine()
        self.lanes = {"h2d": h2d, "d2h": d2h, "compute": compute}
        self.all = [h2d, compute] if d2h is h2d else [h2d, d2h, compute]
        self.duplex = round(profile.duplex_share * FULL) if d2h is not h2d else FULL
        self.pair = (h2d, d2h) if d2h is not h2d and self.duplex < FULL else None
        self.overlap = profile.small_kernels_overlap

    def resource(self, engine: str) -> str:
        """Name of the resource in graphs: one shared copy engine is "copy"."""
        return "copy" if engine != "compute" and self.lanes["h2d"] is self.lanes["d2h"] else engine

    def queue_up(self, op: Op) -> None:
        heappush(self.lanes[op.engine].waiting, (op.priority, op.serial, op))

    def startable(self, now: int, heap: list) -> list[Op]:
        """Start what has room; returns it."""
        started = []
        for engine in self.all:
            while engine.waiting:
                op = engine.waiting[0][2]
                share = op.share if self.overlap and op.engine == "compute" else FULL
                if engine.room < share:
                    break
                heappop(engine.waiting)
                engine.room -= share
                op.share, op.start, op.state = share, now, RUNNING
                started.append(op)
                self._begin(engine, op, now, heap)
        return started

    def release(self, op: Op, now: int, heap: list) -> None:
        engine = self.lanes[op.engine]
        engine.room += op.share
        if op is engine.active:
            engine.active = None
            self._change_rate(engine, now, heap)

    def _begin(self, engine: _Engine, op: Op, now: int, heap: list) -> None:
        if self.pair is None or op.engine == "compute":
            heappush(heap, (now + op.work, 0, op.serial, op, op.ticket))
            return
        other = self.pair[1] if engine is self.pair[0] else self.pair[0]
        engine.active = op
        op.left, op.rate_since = op.work * FULL, (FULL, now)
        self._set_rate(op, self.duplex if other.active else FULL, now, heap)
        if other.active:
            self._set_rate(other.active, self.duplex, now, heap)

    def _change_rate(self, engine: _Engine, now: int, heap: list) -> None:
        other = self.pair[1] if engine is self.pair[0] else self.pair[0]
        if other.active:
            self._set_rate(other.active, FULL, now, heap)

    def _set_rate(self, op: Op, rate: int, now: int, heap: list) -> None:
        """From now on ``op`` moves ``rate`` thousandths of its work per ns; its end is queued anew."""
        old, since = op.rate_since
        op.left -= (now - since) * old
        op.rate_since = (rate, now)
        op.ticket += 1
        heappush(heap, (now + max(0, -(-op.left // rate)), 0, op.serial, op, op.ticket))
