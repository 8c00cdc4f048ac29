"""The simulated device as torch sees it: streams, tensors, random numbers, on top of the torch-free machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import local
from typing import Any

import torch

from . import record
from .geometry import Geometry
from .hostmem import HostMemory
from .kernels import Kernels
from .lock import LOCK
from .machine import Machine
from .memory import Block, OutOfMemory
from .ops import Hazard, Note, Op, Queue, Unsupported
from .profiles import Profile
from .space import runs_of
from .tensor import DeviceStorage, SimTensor, new_tensor
from .values import TORN, UNWRITTEN, Ref, open_bytes, plain_torch, poison, set_taint, view

POOL_STREAMS = 32  # torch.cuda.Stream() hands out the streams of a pool of this size, then starts over
DEFAULT_SEED = 0


class SimDevice(Kernels):
    """One simulated GPU; what ``simgpu.session`` yields."""

    def __init__(self, profile: Profile, *, numerics: str = "exact", on_hazard: str = "record", keep: str = "all"):
        _one_of("numerics", numerics, ("exact", "shapes", "adversarial"))
        _one_of("on_hazard", on_hazard, ("record", "raise"))
        _one_of("keep", keep, ("all", "none"))
        self.profile = profile
        self.machine = Machine(profile, numerics=numerics, on_hazard=on_hazard, keep=keep)
        self.values = self.machine.values
        self.default = self.machine.new_queue("default stream")
        self.pools: dict[int, list[Queue]] = {}
        self.handed_out: dict[int, int] = {}
        self.current = local()  # per thread: ``queue``, its current stream
        self.host = HostMemory(self)
        if self.values:
            self.machine.spoil, self.machine.computed = spoil, self.host.computed
            self.machine.ordered = self.host.check_sources
        self.plans: dict[tuple, Any] = {}
        self.graph_count = 0
        self.graph_seeds: list[Block] = []
        self.capture_queue: Queue | None = None  # what torch.cuda.graph captures on when no stream is given
        self.seed, self.draws = DEFAULT_SEED, 0
        self._reported: set[tuple] = set()  # reads before writes that were noted
        self.open = True
        self.active = False  # whether this is the innermost session

    # what users see

    @property
    def hazards(self) -> list[Hazard]:
        """Races found so far, in the order of the call that completed them."""
        return self.machine.hazards

    @property
    def notes(self) -> list[Note]:
        """Things worth knowing that are not races."""
        return self.machine.notes

    @property
    def elapsed_ms(self) -> float:
        """The host's virtual clock since the session began."""
        return self.machine.host_ns / 1e6

    def trace(self) -> Any:
        """What ran so far as a ``utils.trace.Trace``, with memory over time; runs pending work first."""
        self.machine.flush()
        return record.trace_of(self.machine)

    def graph(self, *, unit: str = "us", host: bool = True) -> Any:
        """What ran so far as a ``utils.dag`` graph, durations in ``unit`` ("us" or "ns"); runs pending work first."""
        self.machine.flush()
        return record.graph_of(self.machine, unit=unit, host=host)

    def retime(self, *, copy_scale: float = 1.0, compute_scale: float = 1.0) -> Any:
        """The recorded program with all copies and kernels that many times as long, as a ``utils.dag.Schedule``."""
        return record.retime(self, copy_scale=copy_scale, compute_scale=compute_scale)

    # streams

    @property
    def graphs(self) -> Any:
        """The capture in progress, if any."""
        return self.machine.capture

    @property
    def queue(self) -> Queue:
        """The current stream of this thread."""
        return getattr(self.current, "queue", self.default)

    def pool_queue(self, priority: int) -> Queue:
        """The next stream of the pool of a priority: after 32 the first one again."""
        pool = self.pools.setdefault(priority, [])
        turn = self.handed_out.get(priority, 0)
        self.handed_out[priority] = turn + 1
        if turn < POOL_STREAMS:
            pool.append(self.machine.new_queue(f"stream {len(self.machine.queues)}", priority))
        return pool[turn % POOL_STREAMS]

    def sync_current(self, name: str) -> None:
        """The host waits for all of the current stream."""
        self.refuse_in_capture(f"{name} (it synchronises)")
        queue = self.queue
        self.machine.synchronize(self.machine.record(queue, cost=False, name=name), name)

    def hold(self, op: Op, name: str) -> None:
        """The host is busy until ``op`` is done, but nothing is ordered by that."""
        self.machine.synchronize(op, name, ordered=False)

    def refuse_in_capture(self, what: str) -> None:
        if self.graphs is not None:
            self.graphs.refuse(what)

    # tensors

    def new(self, g: Geometry, queue: Queue) -> SimTensor:
        """An uninitialised tensor of (the dense span of) geometry ``g``."""
        block = self.allocate(max(g.span, 1), queue)
        return new_tensor(DeviceStorage(self, block), block.offset, g)

    def allocate(self, nbytes: int, queue: Queue) -> Block:
        pool = self.graphs.pool if self.graphs is not None else None
        try:
            return self.machine.memory.allocate(nbytes, queue, pool)
        except OutOfMemory as error:
            raise torch.OutOfMemoryError(str(error)) from None

    def empty(self, g: Geometry) -> SimTensor:
        """An uninitialised tensor; its bytes count as unwritten, in stream order."""
        queue = self.queue
        self.machine.spend(self.profile.event_ns, "allocate", "event")
        tensor = self.new(g, queue)
        if self.values:
            self._forget_bytes(Ref(tensor.memory.block.space, tensor.start, g), queue)
        return tensor

    def _forget_bytes(self, ref: Ref, queue: Queue) -> None:
        """Count bytes as unwritten: now, or as soon as the work that used them before is computed.

        That is before any write that is ordered after that work, on whatever stream.
        """

        def forget() -> None:
            with plain_torch():
                poison(view(ref))
                set_taint(ref, UNWRITTEN)

        machine = self.machine
        settled = machine.settled_users(ref.space, ref.key) if machine.settled else []
        users = [*ref.space.users(ref.key), *settled]
        clock = machine.clock_of(queue)
        before = settled + [op for op in users if op not in settled and op.seq <= clock.get(op.actor, 0)]
        if not users:
            forget()
        elif self.graphs is None:
            _after_all(before or users, forget)

    def release(self, block: Block) -> None:
        """The last tensor of a block is gone."""
        with LOCK:
            self.machine.memory.free(block)

    def open_workspace(self, queue: Queue) -> None:
        """cuBLAS takes its workspace at the first GEMM of a stream."""
        if self.profile.workspace_bytes:
            queue.workspace = self.allocate(self.profile.workspace_bytes, queue)
            queue.workspace.name = "cuBLAS workspace"
        else:
            queue.workspace = True

    def set_name(self, thing: Any, label: str) -> None:
        """Name a tensor's memory or a stream."""
        queue = getattr(thing, "queue", None)
        if isinstance(thing, SimTensor):
            thing.memory.block.name = label
        elif isinstance(queue, Queue):
            queue.name = label
        elif isinstance(thing, torch.Tensor) and self.host.space_of(thing) is not None:
            self.host.space_of(thing).live[0].name = label
        else:
            raise TypeError(
                f"simgpu.name takes a device tensor, a pinned tensor or a stream, not {type(thing).__name__}"
            )

    def check_tensors(self, tensors: Sequence[SimTensor], reading: bool = False) -> None:
        """Device tensors work on their own device only, while it is active."""
        ours = self.active or (reading and not self.open)
        for tensor in tensors:
            if tensor.memory.device is not self or not ours:
                from . import sessions

                raise RuntimeError(_foreign(tensor, sessions.active()))

    def check_reading(self, tensor: SimTensor) -> None:
        if self.machine.numerics == "shapes":
            raise Unsupported(
                'reading a value: this session runs with numerics="shapes", which computes none; use numerics="exact"'
            )

    def before_data_dependent(self, name: str) -> None:
        if not self.values:
            raise Unsupported(
                f'{name}: the shape of its result depends on values, which numerics="shapes" does not compute'
            )

    # the end

    def close(self, *, failed: bool) -> None:
        """End of the session: pending work runs, except after an error."""
        if not failed and self.graphs is None:
            self.machine.flush()
            self.host.check_sources(None)
        self.open = False
        self.machine.closed = True
        if not failed:
            self.machine.raise_errors()


def _after_all(ops: Sequence[Op], call: Callable[[], None]) -> None:
    """Run ``call`` once all of ``ops`` are computed."""
    left = len(ops)

    def one_less() -> None:
        nonlocal left
        left -= 1
        if not left:
            call()

    for op in ops:
        op.then = [*(op.then or ()), one_less]


def spoil(op: Op) -> None:
    """An interrupted operation: what it was to write is torn; bytes of ones are NaN in every float dtype."""
    with plain_torch():
        for space, key in op.writes:
            raw = space.data() if space.host else None
            if space.host and raw is None:
                continue
            if not space.host and space.data is None:
                open_bytes(space)
            if space.taint is None:
                space.taint = torch.zeros(space.size, dtype=torch.uint8)
            flat = torch.from_numpy(raw) if space.host else space.data[torch.uint8]
            for low, high in runs_of(key):
                flat[low:high] = 255
                space.taint[low:high] = TORN

def _foreign(tensor: SimTensor, active: SimDevice | None) -> str:
    own = tensor.memory.device
    here = (
        f"the simulated {active.profile.name} that is active now" if active else "no simulated device: none is active"
    )
    state = "" if own.open else " of a session that has ended"
    return f"a tensor of the simulated {own.profile.name}{state} was used on {here}; move it through the CPU"


def _one_of(word: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{word} must be one of {', '.join(map(repr, allowed))}, not {value!r}")
