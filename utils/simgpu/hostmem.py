"""Pinned host memory: plain CPU tensors whose storages are known here, and what the host does to them.

Pinned memory belongs to the process, not to a device: what another session or CUDA itself has pinned counts as pinned.
Reads through numpy cannot be seen; writes through numpy are noticed when the copy that reads the bytes runs.
"""

from __future__ import annotations

import weakref
import zlib
from bisect import bisect_right, insort
from typing import Any

import numpy as np
import torch

from .geometry import of
from .memory import Block
from .ops import Clock, Op
from .space import Key, Space, meet
from .values import mark_key, ordinary, plain_torch, poison

ALIGNMENT = 64
KEPT_BYTES = 1 << 18    # of a source that are kept to tell whether it changed; of a larger one, a checksum is
KEPT_SOURCES = 256      # of which that much is kept at a time
REAL_CUDA = torch.cuda.is_available()   # asked when this is imported, before anything stands in for torch.cuda

_owners: dict[int, weakref.ref] = {}    # address -> memory that any session has pinned and that is still in use
_bases: list[int] = []                  # those addresses in order


Source = tuple[Op, Space, Key, "bytes | int | None"]


class _Pinned(Block):
    """What a pinned buffer is called in hazards."""

    __slots__ = ()

    @property
    def label(self) -> str:
        return self.name or "pinned " + super().label


class HostMemory:
    """The pinned buffers of one device."""

    def __init__(self, device: Any):
        self.device = device
        self.spaces: dict[int, Space] = {}
        self.kept: list[Any] = []       # memory that CUDA pinned, which nothing else here would keep
        self.calls = 0                  # calls of the host that touched pinned memory
        self.sources: list[Source] = []   # uploads that ran, the host not ordered after them

    # making and finding pinned memory

    def empty(self, shape: Any, dtype: torch.dtype, *, clean: bool = False) -> torch.Tensor:
        """An uninitialised pinned tensor; float ones hold NaN, integer ones the placeholder."""
        with plain_torch():
            shape = torch.Size(shape)
            nbytes = max(1, shape.numel() * dtype.itemsize)
            raw = np.empty(nbytes + ALIGNMENT, dtype=np.uint8)
            shift = -raw.ctypes.data % ALIGNMENT
            owner = raw[shift : shift + nbytes]
            flat = torch.from_numpy(owner)
            tensor = flat[: shape.numel() * dtype.itemsize].view(dtype).reshape(shape)
            if self.device.values and not clean:
                poison(tensor)
        self._register(flat.data_ptr(), nbytes, owner)
        return ordinary(tensor, inference=torch.is_inference_mode_enabled())

    def _register(self, address: int, nbytes: int, owner: np.ndarray) -> None:
        space = Space(nbytes, host=True, base=address)
        block = _Pinned(space, 0, nbytes, self.device.default, ())
        block.request, block.number = nbytes, next(self.device.machine.memory.numbers)
        block.birth = self.device.machine.count
        space.live[0] = block
        space.data = weakref.ref(owner)
        self.spaces[address] = space
        if address not in _owners:
            insort(_bases, address)
        _owners[address] = weakref.ref(owner)
        weakref.finalize(owner, _forget, weakref.ref(self), address, space).atexit = False

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """A pinned copy of a CPU tensor (the tensor itself when it is pinned already)."""
        if self.space_of(tensor) is not None:
            return tensor
        target = self.empty(tensor.shape, tensor.dtype, clean=True)
        with plain_torch():
            ordinary(target).copy_(tensor)
        return target

    def space_of(self, tensor: torch.Tensor) -> Space | None:
        """The pinned buffer that a CPU tensor lies in, None when it is pageable."""
        if not _owners and not REAL_CUDA:
            return None
        try:
            address = tensor.untyped_storage().data_ptr()
        except (RuntimeError, NotImplementedError):
            return None
        base = _base(address)
        space = self.spaces.get(base)
        return space if space is not None else self._adopt(base, tensor)

    def _adopt(self, address: int, tensor: torch.Tensor) -> Space | None:
        """Take in memory that another session, or CUDA itself, has pinned."""
        owner = _owners[address]() if address in _owners else None
        if owner is None and REAL_CUDA:
            with plain_torch():
                if tensor.is_pinned():
                    whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
                    owner = whole.numpy()
                    self.kept.append(owner)
        if owner is None:
            return None
        self._register(address, len(owner), owner)
        return self.spaces[address]

    def rebuild(self, space: Space, like: torch.Tensor) -> torch.Tensor | None:
        """The pinned tensor with the geometry and place of ``like`` (a meta tensor); None when the buffer is gone."""
        owner = space.data()
        if owner is None:
            return None
        with plain_torch():
            whole = torch.from_numpy(owner)
            whole = whole[: len(owner) // like.dtype.itemsize * like.dtype.itemsize].view(like.dtype)
            return whole.as_strided(like.shape, like.stride(), like.storage_offset())

    def key(self, space: Space, tensor: torch.Tensor) -> Key:
        g = of(tensor)
        start = _start(space, tensor, g.item)
        return (start, start + g.span, g.pattern)

    # what the host does

    def access(self, tensor: torch.Tensor, write: bool, name: str, call: int | None = None) -> None:
        """The host reads or writes a pinned tensor: race check, and the bytes it would see at this time.

        Accesses of one ``call`` of the host (``next_call``) to the same memory are reported once.
        """
        space = self.space_of(tensor)
        if space is None or not tensor.numel():
            return
        machine = self.device.machine
        key = self.key(space, tensor)
        machine.advance(machine.host_ns)
        if write:
            self._note_write(space, key)
        unordered = machine.watch.host_access(space, key, write, name, self.next_call() if call is None else call)
        if not unordered or not machine.values:
            return
        for op in machine.running:
            if write and any(s is space and meet(k, key) for s, k in (*op.reads, *op.writes)):
                op.bad = [*(op.bad or ()), (space, key)]
        if not write:
            for op in machine.deferred if machine.lazy else machine.running:
                self._poison(tensor, space, key, op)

    def next_call(self) -> int:
        self.calls += 1
        return self.calls

    def _note_write(self, space: Space, key: Key) -> None:
        """Uploads that were issued before see other bytes from now on, and not by a write outside torch."""
        if space.uploads or any(item[1] is space for item in self.sources):
            space.host_writes = [*space.host_writes, (self.device.machine.count, key)]
        elif space.host_writes:
            space.host_writes = []

    def _poison(self, tensor: torch.Tensor, space: Space, key: Key, op: Any) -> None:
        """Spoil the part of a tensor that ``op`` is writing right now; its end puts the right values there."""
        for where, other in op.writes:
            if where is space and meet(other, key):
                with plain_torch():
                    g = of(tensor)
                    mark = torch.zeros(space.size, dtype=torch.uint8)
                    mark_key(mark, other)
                    mask = mark.as_strided(g.shape, [step * g.item for step in g.stride], key[0])
                    poison(ordinary(tensor.detach()), mask)
                for pending in space.uploads:   # what they find is no write outside torch
                    pending.refresh()
                self._renew(space)

    # writes that torch does not see

    def computed(self, op: Op, run: Any) -> None:
        """Keep watch over the source of an upload that has run; renew what an operation changed as it was told to."""
        for space, _ in op.writes:
            if space.host:
                self._renew(space)
        seen = getattr(run, "seen", None)
        if seen is not None:
            much = len(self.sources) >= KEPT_SOURCES
            self.sources.append((op, run.home, run.key, content(run.home, run.key, 0) if much else seen))

    def _renew(self, space: Space) -> None:
        self.sources = [
            (*item[:3], content(space, item[2], _keep(item[3]))) if item[1] is space else item for item in self.sources
        ]

    def check_sources(self, clock: Clock | None) -> None:
        """The host is ordered after ``clock`` (None: everything): until now, nobody might change those sources."""
        ours, later = [], []
        for item in self.sources:
            done = clock is None or item[0].seq <= clock.get(item[0].actor, 0)
            (ours if done else later).append(item)
        self.sources = later
        for op, space, key, before in ours:
            if not holds(space, key, before):
                self.device.machine.watch.outside_write(op, space, key)

    # taint that a copy brought from the device

    def taint(self, space: Space, tensor: torch.Tensor, mask: torch.Tensor | None) -> None:
        if space.taint is None:
            space.taint = torch.zeros(space.size, dtype=torch.uint8)
        byte = self._taint_bytes(space, tensor)
        byte.fill_(3) if mask is None else byte.copy_(mask.unsqueeze(-1).expand(byte.shape))

    def clean(self, space: Space, tensor: torch.Tensor) -> None:
        if space.taint is not None:
            self._taint_bytes(space, tensor).fill_(0)

    def taint_of(self, space: Space, tensor: torch.Tensor) -> torch.Tensor | None:
        """Elements that came tainted from the device and still look it; None: none."""
        if space.taint is None:
            return None
        with plain_torch():
            marked = self._taint_bytes(space, tensor).amax(-1)
            looks = tensor.clone()
            poison(looks)
            same = torch.isnan(tensor) if tensor.dtype.is_floating_point else tensor == looks
            marked = torch.where(same, marked, torch.zeros_like(marked))
            return marked if bool(marked.any()) else None

    def _taint_bytes(self, space: Space, tensor: torch.Tensor) -> torch.Tensor:
        g = of(tensor)
        start = _start(space, tensor, g.item)
        return space.taint.as_strided((*g.shape, g.item), (*(step * g.item for step in g.stride), 1), start)


def _base(address: int) -> int:
    """Where the pinned buffer that holds an address begins; the address itself when none does."""
    if address in _owners:
        return address
    at = bisect_right(_bases, address)
    if at:
        owner = _owners[_bases[at - 1]]()
        if owner is not None and address < _bases[at - 1] + len(owner):
            return _bases[at - 1]
    return address


def _start(space: Space, tensor: torch.Tensor, item: int) -> int:
    """Bytes from the start of a pinned buffer; numpy may have cut a tensor's storage out of it."""
    return tensor.untyped_storage().data_ptr() - space.base + tensor.storage_offset() * item


def content(space: Space, key: Key, keep: int = KEPT_BYTES) -> bytes | int | None:
    """What pinned memory holds: its bytes, up to ``keep`` of them, else a checksum; None when it is gone."""
    owner = space.data()
    if owner is None:
        return None
    part = owner[key[0] : key[1]]
    return part.tobytes() if part.nbytes <= keep else zlib.crc32(part)


def holds(space: Space, key: Key, before: bytes | int | None) -> bool:
    """Whether pinned memory still holds that content, as far as it is there."""
    now = content(space, key, _keep(before))
    return now is None or before is None or now == before


def _keep(before: bytes | int | None) -> int:
    return KEPT_BYTES if isinstance(before, bytes) else 0


def _forget(owner: Any, address: int, space: Space) -> None:
    known = _owners.get(address)
    if known is not None and known() is None:
        del _owners[address]
        _bases.remove(address)
    memory = owner()
    if memory is not None and memory.spaces.get(address) is space:
        del memory.spaces[address]
