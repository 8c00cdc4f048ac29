"""What the copies between host and device do when they run."""

from __future__ import annotations

from typing import Any

import torch

from .hostmem import content, holds
from .ops import Op
from .space import Space
from .task import Task
from .values import CLEAN, TORN, UNWRITTEN, Ref, is_tainted, plain_torch, poison, set_taint, taint_view, untold, view


class PinnedUpload:
    """Read pinned memory when the copy runs; notice bytes that changed since the call.

    A pending copy keeps its source alive, as CUDA's caching host allocator does; a captured one does not.
    """

    def __init__(self, device: Any, dst: Ref, src: torch.Tensor, home: Space, *, captured: bool = False):
        self.device, self.dst, self.home = device, dst, home
        self.src = None if captured else src
        self.key = None if captured else device.host.key(home, src)
        self.seen = None if captured else content(home, self.key)
        self.like = _outline(device, home, src) if captured else None
        if not captured:
            home.uploads.append(self)

    def refresh(self) -> None:
        """A copy to the host changed the source, as it was told to."""
        self.seen = content(self.home, self.key)

    def again(self, op: Op) -> Any:
        """For one replay: the source as it is at the replay's launch."""
        src = self.device.host.rebuild(self.home, self.like)
        if src is None:
            self.device.machine.watch.freed_host_memory(op, self.home, "RAW")
            return _spoiled(self.dst)
        return PinnedUpload(self.device, self.dst, src, self.home)

    def __call__(self, op: Op) -> None:
        self.home.uploads.remove(self)
        with plain_torch():
            if not holds(self.home, self.key, self.seen):
                self.device.machine.watch.outside_write(op, self.home, self.key)
                self.refresh()
            target = view(self.dst)
            target.copy_(self.src)
            mask = self.device.host.taint_of(self.home, self.src)
            if mask is None:
                set_taint(self.dst, CLEAN)
            else:
                set_taint(self.dst, mask)
            _tear(op, self.dst, self.home)


def _tear(op: Op, dst: Ref, home: Space) -> None:
    """A source that changed meanwhile spoils the whole copy; a second writer, what both wrote."""
    if not op.bad:
        return
    if any(space is home for space, _ in op.bad):
        poison(view(dst))
        set_taint(dst, TORN)
    Task("copy_", copy_values, (), {}, [], [], [dst], lambda op, ref: None)._tear_writes(op)


def _outline(device: Any, home: Space, tensor: torch.Tensor) -> torch.Tensor:
    """A meta tensor with a pinned tensor's geometry, and its offset in the buffer."""
    with plain_torch():
        low, high, _ = device.host.key(home, tensor)
        item = tensor.element_size()
        whole = torch.empty(-(-high // item), dtype=tensor.dtype, device="meta")
        return whole.as_strided(tensor.shape, tensor.stride(), low // item)


def _spoiled(dst: Ref) -> Any:
    def run(op: Op) -> None:
        with plain_torch():
            poison(view(dst))
            set_taint(dst, TORN)

    return run


def upload(dst: Ref, source: torch.Tensor) -> Any:
    def run(op: Op) -> None:
        with plain_torch():
            view(dst).copy_(source)
            set_taint(dst, CLEAN)
            Task("copy_", copy_values, (), {}, [], [], [dst], lambda op, ref: None)._tear_writes(op)

    return run


def copy_values(dst: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    return dst.copy_(src)


class CapturedDownload:
    """A captured copy to pinned memory, which a graph does not keep alive."""

    def __init__(self, device: Any, dst: torch.Tensor, src: Ref, home: Space):
        self.device, self.src, self.home, self.like = device, src, home, _outline(device, home, dst)

    def again(self, op: Op) -> Any:
        """For one replay: into the buffer where it still is."""
        dst = self.device.host.rebuild(self.home, self.like)
        if dst is None:
            self.device.machine.watch.freed_host_memory(op, self.home, "WAW")
            return None
        return download(self.device, dst, self.src, self.home)


def download(device: Any, dst: torch.Tensor, src: Ref, home: Space | None) -> Any:
    def run(op: Op) -> None:
        with plain_torch():
            dst.copy_(view(src))
            bad = bool(op.bad)
            if bad or is_tainted(src):
                mask = taint_view(src)
                poison(dst, None if bad else untold(mask, dst.dtype))
                if home is not None:
                    device.host.taint(home, dst, None if bad else mask)
                if not bad and (mask == UNWRITTEN).any():
                    device.report(op, src)
            elif home is not None:
                device.host.clean(home, dst)
            for pending in home.uploads if home is not None else ():
                pending.refresh()

    return run
