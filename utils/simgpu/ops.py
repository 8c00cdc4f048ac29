"""The records of the simulator: operations, markers (events), queues (streams), and what is reported about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .space import Key, Space

Clock = dict[int, int]  # per actor (queue), how many of its operations are known to have happened before
PENDING, READY, RUNNING, DONE = range(4)
HOST_SIDE = "host"  # the ``stream`` of what the host does


def join(one: Clock, other: Clock) -> Clock:
    """The later of two clocks, entry by entry; returns ``one`` itself when ``other`` adds nothing."""
    for actor, seq in other.items():
        if one.get(actor, 0) < seq:
            break
    else:
        return one
    both = dict(one)
    for actor, seq in other.items():
        if both.get(actor, 0) < seq:
            both[actor] = seq
    return both


_serials = count()


class Op:
    """One operation in a queue; ``engine`` None makes it a marker, which takes no time."""

    __slots__ = (
        "actor",
        "after",
        "bad",
        "bytes",
        "clock",
        "end",
        "engine",
        "entries",
        "followers",
        "host_node",
        "index",
        "kind",
        "launch",
        "layer",
        "left",
        "name",
        "plan",
        "priority",
        "queue",
        "rate_since",
        "reads",
        "run",
        "seq",
        "serial",
        "share",
        "start",
        "state",
        "then",
        "ticket",
        "unmet",
        "work",
        "writes",
    )

    def __init__(self, index: int, name: str, kind: str, queue: Queue, engine: str | None, work: int, launch: int):
        self.index, self.name, self.kind, self.queue, self.engine, self.work = index, name, kind, queue, engine, work
        self.launch, self.priority, self.actor = launch, queue.priority, queue.actor
        self.serial = next(_serials)  # unique, markers included: breaks ties
        self.start = self.end = -1
        self.state, self.unmet, self.share, self.bytes, self.ticket = PENDING, 0, 1000, 0, 0
        self.followers: list[Op] | None = None
        self.after: tuple[Op, ...] | None = None  # what it waited for, kept only with history
        self.reads: tuple[tuple[Space, Key], ...] = ()
        self.writes: tuple[tuple[Space, Key], ...] = ()
        self.bad: list[tuple[Space, Key]] | None = None  # ranges that were torn while it ran
        self.run: Callable[[Op], None] | None = None
        self.then: list[Callable[[], None]] | None = None  # what follows its computation at once
        self.entries = 0  # places it takes in its stream's launch queue until it is done
        self.layer: str | None = None
        self.seq, self.host_node = 0, -1
        self.clock: Clock = {}
        self.plan: Any = None

    def __repr__(self) -> str:
        return f"<{self.name} #{self.index} on {self.queue.name}>"


class Queue:
    """One stream: a FIFO with a priority; higher priorities have lower numbers, as in CUDA."""

    __slots__ = (
        "actor",
        "clock",
        "device",
        "host_version",
        "last_seq",
        "name",
        "pending",
        "priority",
        "seq",
        "tail",
        "void_waits",
        "waits",
        "workspace",
    )

    def __init__(self, actor: int, name: str, priority: int, device: Any):
        self.actor, self.name, self.priority, self.device = actor, name, priority, device
        self.clock: Clock = {}
        self.host_version = -1
        self.seq = 0
        self.pending = 0
        self.tail: Op | None = None
        self.waits: list[Op] = []
        self.void_waits: list[tuple[Any, Note]] = []
        self.workspace: Any = None


@dataclass(frozen=True)
class Access:
    """One side of a hazard: the operation's call order, name, stream (or "host") and enclosing record_function."""

    index: int
    name: str
    stream: str
    layer: str | None = None

    @property
    def label(self) -> str:
        """What the host did has no number: ``index`` says before which operation it came."""
        return self.name if self.stream == HOST_SIDE else f"{self.name} #{self.index}"

    def __str__(self) -> str:
        inside = f" in {self.layer}" if self.layer else ""
        return f"{self.label} ({self.stream}{inside})"


@dataclass(frozen=True)
class Note:
    """Something worth knowing that is not a hazard: ``kind`` in a word or two, ``text`` in a sentence."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(frozen=True)
class Hazard:
    """Two accesses to the same bytes that nothing orders.

    ``kind`` is what ``second`` does after ``first``: "RAW", "WAR" or "WAW"; ``byte_range`` counts from the start of
    ``buffer``; ``host`` says whether the bytes are host memory.
    """

    kind: str
    first: Access
    second: Access
    buffer: str
    byte_range: tuple[int, int]
    host: bool
    fix: str = field(default="", compare=False)
    remark: str = field(default="", compare=False)

    def __str__(self) -> str:
        what = {
            "RAW": "reads {b} while {f} may still be writing it",
            "WAR": "writes {b} while {f} may still be reading it",
            "WAW": "writes {b} while {f} may still be writing it",
        }[self.kind]
        low, high = self.byte_range
        place = f"{self.buffer} (bytes {low:,} to {high:,}{', host memory' if self.host else ''})"
        lines = [
            f"{self.kind}: {self.second} {what.format(b=place, f=self.first)}.",
            f"  Missing edge: {self.first.label} -> {self.second.label}; "
            "nothing on the host or in the streams orders them, whatever the timing.",
            f"  Add: {self.fix}",
        ]
        if self.remark:
            lines.append(f"  {self.remark}")
        return "\n".join(lines)


class HazardError(RuntimeError):
    """Raised at the call that races, with ``on_hazard="raise"``; ``hazard`` is the finding."""

    def __init__(self, hazard: Hazard):
        super().__init__(str(hazard))
        self.hazard = hazard


class Unsupported(NotImplementedError):
    """Something that the simulated device does not model; the message names it and says what to do."""
