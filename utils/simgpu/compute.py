"""When the operations of the simulated machine are computed: once, at their end, or as late as anyone may see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lock import interrupts_held
from .ops import Clock, Op
from .space import Key, Space, meet

if TYPE_CHECKING:
    from .machine import Machine


class Compute:
    """The methods of ``Machine`` that compute values."""

    def compute(self: Machine, op: Op) -> None:
        """Run the operation's computation once; a failure is kept for the next synchronising call."""
        run, op.run = op.run, None
        if run is None:
            return
        try:
            run(op)
        except Exception as error:
            self.errors.append(error)
        except BaseException as error:  # Ctrl-C: what it leaves half done cannot be trusted; the rest goes on
            self.interrupted = self.interrupted or error
            self.spoil(op)
        op.bad = None
        then, op.then = op.then or (), None
        for follow in then:
            follow()
        if self.computed is not None:
            self.computed(op, run)

    def compute_deferred(self: Machine, clock: Clock | None) -> None:
        """Adversarial numerics: compute, in call order, what happens before ``clock`` (None: everything)."""
        with interrupts_held() as held:
            self._compute_before(clock)
            self._raise_interrupt(held)

    def _compute_before(self: Machine, clock: Clock | None) -> None:
        waiting = []
        for op in self.deferred:
            if op.run is None:
                continue
            if clock is None or op.seq <= clock.get(op.actor, 0):
                self._compute_users_before(op)
                self.compute(op)
            else:
                waiting.append(op)
        self.deferred = waiting if clock is not None else []

    def _compute_users_before(self: Machine, op: Op) -> None:
        """The old users of a block that ``op`` reuses come first: the allocator waited for them, nobody else did."""
        if self.settled:
            for space, key in (*op.reads, *op.writes):
                self.compute_settled(space, key[0], key[1])

    def compute_settled(self: Machine, space: Space, low: int, high: int) -> None:
        """Compute what still uses the old contents of a range that the allocator handed on."""
        due = [entry for entry in self.settled if entry[0] is space and entry[1] < high and low < entry[2]]
        if due:
            self.settled = [entry for entry in self.settled if entry not in due]
        for _, _, _, clock in due:
            for op in self.deferred:
                if op.run is not None and op.seq <= clock.get(op.actor, 0):
                    self._compute_users_before(op)
                    self.compute(op)

    def settled_users(self: Machine, space: Space, key: Key) -> list[Op]:
        """What still is to be computed of the work before a range was handed on."""
        return [
            op
            for where, low, high, clock in self.settled
            if where is space and low < key[1] and key[0] < high
            for op in self.deferred
            if op.run is not None and op.seq <= clock.get(op.actor, 0)
            and any(s is space and meet(mine, key) for s, mine in (*op.reads, *op.writes))
        ]

    def _raise_interrupt(self: Machine, held: list) -> None:
        """Between two operations the state is whole: a Ctrl-C that came meanwhile takes effect here."""
        error, self.interrupted = self.interrupted, None
        if error is not None:
            raise error
        if held:
            held.clear()
            raise KeyboardInterrupt
