"""A caching allocator on one arena: segments cut into blocks, freed blocks reused at once by their stream.

The rules and sizes are those of PyTorch's CUDACachingAllocator (c10/cuda): 512-byte rounding, 2 MiB segments for
requests up to 1 MiB, 20 MiB segments below 10 MiB, then multiples of 2 MiB; a cached block is cut if at least 512
bytes remain (requests up to 1 MiB) or more than 1 MiB (larger ones), else the tensor has all of it. A scaled profile
scales these sizes. Where it differs: a tensor without elements takes a block here, and none on CUDA.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from .ops import Op, Queue
from .profiles import MIB, Profile
from .space import Space

if TYPE_CHECKING:
    from .machine import Machine

ARENA_BASE = 0x7F00_0000_0000
ARENA_GAP = 2 * MIB


class OutOfMemory(MemoryError):
    """The device has no block and no room for one; the text is the one of torch.cuda.OutOfMemoryError."""


class Block:
    """Part of a segment, free or in use; ``before`` and ``behind`` are its neighbours in the segment."""

    __slots__ = (
        "before",
        "behind",
        "birth",
        "free",
        "name",
        "number",
        "offset",
        "pool",
        "queue",
        "request",
        "shared",
        "size",
        "space",
    )

    def __init__(self, space: Space, offset: int, size: int, queue: Queue, pool: tuple):
        self.space, self.offset, self.size, self.queue, self.pool = space, offset, size, queue, pool
        self.before: Block | None = None
        self.behind: Block | None = None
        self.free = True
        self.request = self.birth = self.number = 0
        self.name: str | None = None
        self.shared: set[Queue] | None = None  # other streams that record_stream named

    def __lt__(self, other: Block) -> bool:
        return (self.size, self.space.base, self.offset) < (other.size, other.space.base, other.offset)

    @property
    def label(self) -> str:
        return self.name or f"buffer {self.number} ({format_bytes(self.request)})"


def format_bytes(count: int) -> str:
    """A size as people write it: 512 B, 128 KiB, 8.1 MiB."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.1f}".removesuffix(".0") + f" {unit}"


@dataclass
class Stats:
    """Bytes now and at their peak: ``allocated`` to tensors, ``active`` with freed blocks that other streams still
    use (record_stream), ``requested`` of the active ones without what rounding and unsplit blocks add, ``reserved``
    from the device."""

    allocated: int = 0
    active: int = 0
    requested: int = 0
    reserved: int = 0
    allocated_peak: int = 0
    active_peak: int = 0
    requested_peak: int = 0
    reserved_peak: int = 0
    allocations: int = 0
    live: int = 0
    ooms: int = 0
    retries: int = 0

    def add(self, allocated: int = 0, reserved: int = 0, active: int = 0, requested: int = 0) -> None:
        self.allocated += allocated
        self.active += active
        self.requested += requested
        self.reserved += reserved
        if self.allocated > self.allocated_peak:
            self.allocated_peak = self.allocated
        if self.active > self.active_peak:
            self.active_peak = self.active
        if self.requested > self.requested_peak:
            self.requested_peak = self.requested
        if self.reserved > self.reserved_peak:
            self.reserved_peak = self.reserved

    def reset_peaks(self) -> None:
        self.allocated_peak, self.active_peak = self.allocated, self.active
        self.requested_peak, self.reserved_peak = self.requested, self.reserved


@dataclass
class Allocator:
    """Device memory of one machine."""

    machine: Machine
    profile: Profile
    stats: Stats = field(default_factory=Stats)

    def __post_init__(self) -> None:
        p = self.profile
        self.round = p.scaled_bytes(512)
        self.small = p.scaled_bytes(MIB, 512)
        self.small_segment = p.scaled_bytes(2 * MIB, 1024)
        self.medium = p.scaled_bytes(10 * MIB, 1024)
        self.medium_segment = p.scaled_bytes(20 * MIB, 2048)
        self.free_blocks: dict[tuple, list[Block]] = {}
        self.held: list[tuple[Block, list[Op]]] = []
        self.deferred: list[Block] = []  # freed during a capture: their streams are asked after it
        self.next_base = ARENA_BASE
        self.numbers = count()
        self.limit = p.memory_bytes
        self.pool_users: dict[object, int] = {}  # graphs per private pool
        self.history = [(0, 0, 0, 0)]  # the host's time; allocated, active, reserved after each change

    def pools_in_use(self) -> set[object]:
        return {pool for pool, users in self.pool_users.items() if users}

    # allocate / free

    def allocate(self, nbytes: int, queue: Queue, pool: object = None) -> Block:
        """A block of at least ``nbytes`` for work on ``queue``; raises OutOfMemory."""
        if self.held or self.deferred:
            self._release_held()
        size = max(self.round, -(-nbytes // self.round) * self.round)
        key = (pool, queue.actor, size <= self.small)
        block = self._take_free(key, size) or self._take_new(key, size, queue)
        self._split(block, size, key)
        block.free, block.request, block.birth = False, nbytes, self.machine.count
        block.number, block.name, block.shared, block.queue = next(self.numbers), None, None, queue
        block.space.live[block.offset] = block
        self.stats.add(allocated=block.size, active=block.size, requested=nbytes)
        self.stats.allocations += 1
        self.stats.live += 1
        self._remember()
        return block

    def free(self, block: Block) -> None:
        """Give a block back; blocks that other streams use (record_stream) wait until that work is done."""
        self.stats.add(allocated=-block.size)
        self.stats.live -= 1
        if block.shared and not self.machine.closed:
            if self.machine.capture is not None:
                self.deferred.append(block)
            else:
                self._hold(block)
        else:
            self._give_back(block)
        self._remember()

    def _remember(self) -> None:
        """Keep what is in use at the host's time: the allocator acts at the call, whenever the device gets there."""
        if self.machine.keep == "all" and not self.machine.closed:
            stats = self.stats
            self.history.append((self.machine.host_ns, stats.allocated, stats.active, stats.reserved))

    def _hold(self, block: Block) -> None:
        markers = [self.machine.record(queue, cost=False) for queue in block.shared or ()]
        self.held.append((block, markers))

    def share(self, block: Block, queue: Queue) -> None:
        """record_stream: ``queue`` uses the block too."""
        if queue is not block.queue:
            block.shared = (block.shared or set()) | {queue}

    def has_unused(self) -> bool:
        """Whether a whole segment is free, or a block waits for other streams."""
        keep = self.pools_in_use()
        return bool(self.held or self.deferred) or any(
            block.before is None and block.behind is None
            for key, blocks in self.free_blocks.items()
            if key[0] not in keep
            for block in blocks
        )

    def empty_cache(self, keep: frozenset | set = frozenset()) -> None:
        """Return unused segments to the device, except those of the private pools in ``keep``."""
        for key, blocks in self.free_blocks.items():
            if key[0] in keep:
                continue
            whole = [block for block in blocks if block.before is None and block.behind is None]
            self.stats.add(reserved=-sum(block.size for block in whole))
            blocks[:] = [block for block in blocks if block.before is not None or block.behind is not None]
        self._remember()

    # finding and cutting

    def _take_free(self, key: tuple, size: int) -> Block | None:
        blocks = self.free_blocks.get(key)
        if not blocks:
            return None
        at = bisect_left(blocks, size, key=lambda block: block.size)
        return blocks.pop(at) if at < len(blocks) else None

    def _take_new(self, key: tuple, size: int, queue: Queue) -> Block:
        if size <= self.small:
            segment = self.small_segment
        elif size < self.medium:
            segment = self.medium_segment
        else:
            segment = -(-size // self.small_segment) * self.small_segment
        if self.stats.reserved + segment > self.limit:
            self.stats.retries += 1
            self.machine.synchronize_all("free cached memory")
            self._release_held()
            self.empty_cache(self.pools_in_use())
        if self.stats.reserved + segment > self.limit:
            self.stats.ooms += 1
            raise OutOfMemory(self._oom_text(size))
        space = Space(segment, host=False, base=self.next_base)
        self.next_base += -(-segment // ARENA_GAP) * ARENA_GAP + ARENA_GAP
        self.stats.add(reserved=segment)
        return Block(space, 0, segment, queue, key)

    def _split(self, block: Block, size: int, key: tuple) -> None:
        rest = block.size - size
        if rest < self.round or (not key[2] and rest <= self.small):
            return
        tail = Block(block.space, block.offset + size, rest, block.queue, key)
        tail.before, tail.behind = block, block.behind
        if tail.behind is not None:
            tail.behind.before = tail
        block.behind, block.size = tail, size
        insort(self.free_blocks.setdefault(key, []), tail)

    def _give_back(self, block: Block) -> None:
        self.stats.add(active=-block.size, requested=-block.request)
        block.space.live.pop(block.offset, None)
        block.free = True
        blocks = self.free_blocks.setdefault(block.pool, [])
        behind, before = block.behind, block.before
        if behind is not None and behind.free:
            blocks.remove(behind)
            block.size += behind.size
            block.behind = behind.behind
            if block.behind is not None:
                block.behind.before = block
        if before is not None and before.free:
            blocks.remove(before)
            before.size += block.size
            before.behind = block.behind
            if before.behind is not None:
                before.behind.before = before
            block = before
        insort(blocks, block)

    def _release_held(self) -> None:
        """Free the blocks whose recorded streams are done, as the allocator's event queries find out."""
        if self.machine.capture is None:
            deferred, self.deferred = self.deferred, []
            for block in deferred:
                self._hold(block)
        self.machine.advance(self.machine.host_ns)
        waiting = []
        for block, markers in self.held:
            if all(marker.state == 3 for marker in markers):
                for marker in markers:
                    self.machine.settle(marker, block)
                self._give_back(block)
            else:
                waiting.append((block, markers))
        self.held = waiting

    def _oom_text(self, size: int) -> str:
        free = max(0, self.limit - self.stats.reserved)
        return (
            f"CUDA out of memory. Tried to allocate {format_bytes(size)}. GPU 0 ({self.profile.name}, simulated) has a "
            f"total capacity of {format_bytes(self.limit)} of which {format_bytes(free)} is free. "
            f"{format_bytes(self.stats.allocated)} is allocated by tensors, "
            f"{format_bytes(self.stats.reserved - self.stats.allocated)} is reserved but unallocated."
        )
