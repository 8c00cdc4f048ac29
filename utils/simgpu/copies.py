"""Copies between host and device: which are asynchronous, what the host waits for, and what they move.

A copy is asynchronous when it was asked to be (non_blocking) and the host side is pinned and contiguous. Where
dtypes differ or the device side is strided, a kernel converts on the device through a temporary there, still
asynchronously (measured on an H200 with torch 2.11; the first such call also loads the kernel, which takes tens of
ms). A strided host side is gathered by the host first and then counts as pageable. Every other copy holds the host,
except small pageable host-to-device ones, which return once staged.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from .costs import copy_ns, estimate, host_ns
from .geometry import Geometry, dense, geometry, of
from .overlap import refuse_overlap
from .space import Space
from .task import Task
from .tensor import SimTensor, new_tensor
from .transfers import CapturedDownload, PinnedUpload, copy_values, download, upload
from .values import Ref, ordinary, plain_torch


def copy_into(dst: torch.Tensor, src: torch.Tensor, non_blocking: bool) -> torch.Tensor:
    """``dst.copy_(src)`` with at least one side on the device."""
    if dst.shape != src.shape:
        with plain_torch():
            torch.broadcast_shapes(dst.shape, src.shape)
        if torch.broadcast_shapes(dst.shape, src.shape) != dst.shape:
            raise RuntimeError(
                f"The size of tensor a {tuple(dst.shape)} must match the size of tensor b {tuple(src.shape)}"
            )
        src = src.expand(dst.shape)
    if not dst.numel():
        return dst
    target, (dst, src) = dst, _in_order(dst, src)
    if isinstance(dst, SimTensor) and isinstance(src, SimTensor):
        device = dst.memory.device
        device.check_tensors((dst, src))
        refuse_overlap((dst,), (src,), whole=False)
        _device_to_device(device, dst, src)
    elif isinstance(dst, SimTensor):
        dst.memory.device.check_tensors((dst,))
        _host_to_device(dst.memory.device, dst, _plain(src), non_blocking)
    else:
        src.memory.device.check_tensors((src,), reading=True)
        _device_to_host(src.memory.device, _plain(dst), src, non_blocking)
    return target


def _in_order(dst: torch.Tensor, src: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both sides with their dimensions in the order of ``dst`` in memory, where that makes both contiguous.

    Of one dtype only: where it changes, PyTorch makes each side contiguous in the order of its dimensions first.
    """
    if dst.dtype is not src.dtype:
        return dst, src
    strides = _stride(dst)
    order = sorted(range(len(strides)), key=lambda dim: -strides[dim])
    if order == list(range(len(order))) or strides == dense(tuple(dst.shape), dst.dtype).stride:
        return dst, src
    one, other = _permuted(dst, order), _permuted(src, order)
    return (one, other) if _contiguous(one) and _contiguous(other) else (dst, src)


def _stride(tensor: torch.Tensor) -> tuple[int, ...]:
    return tensor.geometry.stride if isinstance(tensor, SimTensor) else tuple(tensor.stride())


def _contiguous(tensor: torch.Tensor) -> bool:
    return tensor.geometry.contiguous if isinstance(tensor, SimTensor) else tensor.is_contiguous()


def _permuted(tensor: torch.Tensor, order: list[int]) -> torch.Tensor:
    if isinstance(tensor, SimTensor):
        g = tensor.geometry
        permuted = geometry(tuple(g.shape[d] for d in order), tuple(g.stride[d] for d in order), g.dtype)
        return new_tensor(tensor.memory, tensor.start, permuted, tensor)
    with plain_torch():
        return tensor.detach().permute(order)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type != "cpu":
        raise RuntimeError(f"a copy between cuda:0 and {tensor.device} is not modelled; copy from or to a CPU tensor")
    return ordinary(tensor.detach())


def _ref(tensor: SimTensor) -> Ref:
    return Ref(tensor.memory.block.space, tensor.start, tensor.geometry)


# device to device: a kernel


def _device_to_device(device: Any, dst: SimTensor, src: SimTensor) -> None:
    same = dst.geometry.dtype is src.geometry.dtype and dst.geometry.contiguous and src.geometry.contiguous
    cost = estimate(device.profile, "copy_", [src.geometry], [dst.geometry])
    body = None
    if device.values:
        call = copy_values
        body = Task("copy_", call, (_ref(dst), _ref(src)), {}, [_ref(src)], [], [_ref(dst)], device.report)
    device.machine.launch(
        device.queue,
        "copy_",
        "d2d" if same else "kernel",
        "compute",
        cost.work,
        share=cost.share,
        nbytes=dst.geometry.nbytes if same else 0,
        reads=[src.place],
        writes=[dst.place],
        run=body,
    )


# host to device


def _host_to_device(device: Any, dst: SimTensor, src: torch.Tensor, non_blocking: bool) -> None:
    machine, profile = device.machine, device.profile
    g = dst.geometry
    home = device.host.space_of(src)
    matching = src.dtype is g.dtype and src.is_contiguous() and g.contiguous
    pinned = home is not None and matching
    if non_blocking and home is not None and not matching and src.is_contiguous() and profile.converts_on_device:
        staged = device.new(dense(g.shape, src.dtype), device.queue)
        _host_to_device(device, staged, src, True)
        _device_to_device(device, dst, staged)
        return
    held = not (non_blocking and pinned)
    if held:
        device.refuse_in_capture("a copy that is not asynchronous (non_blocking=True, pinned, same dtype, contiguous)")
    if held or not pinned:
        if home is not None and not matching:
            device.host.access(src, False, "copy_ (host conversion)")
        if not matching:
            machine.spend(host_ns(profile, src.numel() * src.element_size()), "convert for copy_")
    if pinned:
        reads, body = [(home, device.host.key(home, src))], None
        if device.values:
            body = PinnedUpload(
                device, _ref(dst), src, home, captured=device.graphs is not None and device.graphs.has(device.queue)
            )
    else:
        reads, body = [], None
        if device.values:
            with plain_torch():
                snapshot = src.to(g.dtype, copy=True)
            body = upload(_ref(dst), snapshot)
    name = "copy_" if pinned else "copy_ (pageable)"
    work = copy_ns(profile, "h2d", g.nbytes, pinned=pinned)
    op = machine.launch(
        device.queue, name, "h2d", "h2d", work, nbytes=g.nbytes, reads=reads, writes=[dst.place], run=body
    )
    if not held:
        return
    if not non_blocking:
        device.sync_current(f"blocking {name}")
        return
    _note_held(device, src, home, matching)
    if not matching or not profile.is_small(g.nbytes):
        device.hold(op, f"{name} holds the host")


def _note_held(device: Any, tensor: torch.Tensor, home: Space | None, matching: bool) -> None:
    why = "its host side is not pinned" if home is None else "dtypes differ" if not matching else ""
    if home is not None and matching is False and tensor.is_contiguous() is False:
        why = "a side is not contiguous"
    device.machine.note(
        "copy not asynchronous", f"copy_ with non_blocking=True of {_size(tensor)} was not asynchronous: {why}"
    )


def _size(tensor: torch.Tensor) -> str:
    from .memory import format_bytes

    return format_bytes(tensor.numel() * tensor.element_size())


# device to host


def _device_to_host(device: Any, dst: torch.Tensor, src: SimTensor, non_blocking: bool) -> None:
    machine, profile = device.machine, device.profile
    g = src.geometry
    home = device.host.space_of(dst)
    matching = dst.dtype is g.dtype and dst.is_contiguous() and g.contiguous
    if non_blocking and home is not None and not matching and dst.is_contiguous() and profile.converts_on_device:
        staged = device.new(dense(g.shape, dst.dtype), device.queue)
        _device_to_device(device, staged, src)
        _device_to_host(device, dst, staged, True)
        return
    direct = home is not None and matching
    if not (direct and non_blocking):
        device.refuse_in_capture("a copy that is not asynchronous (non_blocking=True, pinned, same dtype, contiguous)")
    body = None
    if device.values:
        captured = home is not None and device.graphs is not None and device.graphs.has(device.queue)
        body = (CapturedDownload if captured else download)(device, dst, _ref(src), home)
    writes = [(home, device.host.key(home, dst))] if home is not None else []
    name = "copy_" if home is not None else "copy_ (pageable)"
    work = copy_ns(profile, "d2h", g.nbytes, pinned=home is not None)
    machine.launch(device.queue, name, "d2h", "d2h", work, nbytes=g.nbytes, reads=[src.place], writes=writes, run=body)
    if direct and non_blocking:
        return
    if non_blocking:
        _note_held(device, dst, home, matching)
    device.sync_current(f"blocking {name}" if not non_blocking else f"{name} holds the host")
    if not matching:
        machine.spend(host_ns(profile, dst.numel() * dst.element_size()), "convert after copy_")


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor with the values, after waiting for the current stream."""
    if not isinstance(tensor, SimTensor):
        return tensor
    device = tensor.memory.device
    device.check_reading(tensor)
    with plain_torch():
        target = torch.empty(tensor.geometry.shape, dtype=tensor.geometry.dtype)
    copy_into(target, tensor, False)
    return target


def off_device(data: Any) -> Any:
    """Nested lists with every device tensor in them read, one by one, as torch.tensor does."""
    if isinstance(data, SimTensor):
        if data.geometry.numel != 1:
            raise ValueError("only one element tensors can be converted to Python scalars")
        return to_host(data)
    return type(data)(map(off_device, data)) if type(data) in (list, tuple) else data


# Tensor.to and its relatives


def converted(
    tensor: torch.Tensor,
    device: Any,
    dtype: torch.dtype | None,
    non_blocking: bool,
    memory_format: Any = None,
    *,
    copy: bool = False,
    pin: bool = False,
) -> torch.Tensor:
    """``tensor.to(...)`` where the source or the target is the simulated device."""
    with torch._C.DisableTorchFunction():
        return _converted(tensor, device, dtype, non_blocking, memory_format, copy)


def _converted(
    tensor: torch.Tensor, device: Any, dtype: torch.dtype | None, non_blocking: bool, memory_format: Any, copy: bool
) -> torch.Tensor:
    on_device = isinstance(tensor, SimTensor)
    to_device = on_device if device is None else torch.device(device).type == "cuda"
    if device is not None and torch.device(device).type not in ("cuda", "cpu"):
        raise RuntimeError(f"moving a tensor of cuda:0 to {device} is not modelled; only cuda and cpu are")
    dtype = dtype or tensor.dtype
    if on_device is to_device and dtype is tensor.dtype and not copy and memory_format in (None, torch.preserve_format):
        return tensor
    target_geometry = _like(tensor, dtype, memory_format)
    if on_device and not to_device:
        owner = tensor.memory.device
        owner.check_reading(tensor)
        target = _cpu_target(owner, target_geometry, pinned=non_blocking and owner.open)
        copy_into(target, tensor, non_blocking)
        return target
    from .sessions import require

    owner = tensor.memory.device if on_device else require("Tensor.to")
    if on_device:
        target = owner.new(target_geometry, owner.queue)
        _device_to_device(owner, target, tensor)
        return target
    target = owner.new(target_geometry, owner.queue)
    copy_into(target, tensor, non_blocking)
    return target


def _like(tensor: torch.Tensor, dtype: torch.dtype, memory_format: Any) -> Geometry:
    """Geometry of a copy: dense, in the same order of dimensions (preserve_format) or as asked."""
    g = tensor.geometry if isinstance(tensor, SimTensor) else of(tensor)
    return _like_geometry(g, dtype, memory_format or torch.preserve_format)


@lru_cache(maxsize=8192)
def _like_geometry(g: Geometry, dtype: torch.dtype, memory_format: Any) -> Geometry:
    with plain_torch():
        meta = torch.empty_strided(g.shape, g.stride, dtype=g.dtype, device="meta")
        return of(torch.empty_like(meta, dtype=dtype, memory_format=memory_format))


def _cpu_target(owner: Any, g: Geometry, *, pinned: bool) -> torch.Tensor:
    """An uninitialised CPU tensor of (the dense) geometry ``g``, an inference tensor in inference mode."""
    with torch._C.DisableTorchFunction():
        if not pinned:
            return torch.empty_strided(g.shape, g.stride, dtype=g.dtype)
        made = owner.host.empty(g.shape, g.dtype)
        return made if g.contiguous else made.as_strided(g.shape, g.stride)


__all__ = ["converted", "copy_into", "dense", "geometry", "to_host"]
