"""The tensor of the simulated device: geometry and memory here, values (if any) in the arena."""

from __future__ import annotations

from typing import Any

import torch

from .geometry import Geometry
from .memory import Block
from .space import Key, Space

CUDA = torch.device("cuda", 0)
_make = torch.Tensor._make_wrapper_subclass
_normal_mode = torch._C._InferenceMode
_in_inference = torch.is_inference_mode_enabled


def _dispatch(func: Any, args: tuple, kwargs: dict | None) -> Any:
    raise RuntimeError("the dispatcher of the simulated device is not loaded")


def set_dispatcher(function: Any) -> None:
    """Who handles operators on device tensors (``dispatch`` does; it imports this module, not the other way round)."""
    global _dispatch
    _dispatch = function


class DeviceStorage:
    """What the views of one allocation share; the block goes back when the last of them is gone."""

    __slots__ = ("block", "device", "version")

    def __init__(self, device: Any, block: Block):
        self.device, self.block, self.version = device, block, 0

    def __del__(self) -> None:
        device = self.device
        if device is not None:
            device.release(self.block)


class SimTensor(torch.Tensor):
    """A tensor on the simulated device (made by ``new_tensor`` only)."""

    geometry: Geometry
    memory: DeviceStorage
    start: int  # bytes from the start of the segment
    _place: tuple[Space, Key] | None

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return _dispatch(func, args, kwargs)

    @property
    def device(self) -> torch.device:
        return CUDA

    @property
    def is_cuda(self) -> bool:
        return True

    @property
    def is_meta(self) -> bool:
        return False

    @property
    def is_cpu(self) -> bool:
        return False

    @property
    def _version(self) -> int:
        """Changes in place so far, through any view of the memory, as autograd counts them."""
        return self.memory.version

    @property
    def place(self) -> tuple[Space, Key]:
        """The segment and byte range that this tensor covers."""
        place = self._place
        if place is None:
            g = self.geometry
            place = self._place = (self.memory.block.space, (self.start, self.start + g.span, g.pattern))
        return place

    def get_device(self) -> int:
        return 0

    def data_ptr(self) -> int:
        return self.memory.block.space.base + self.start if self.geometry.numel else 0

    def untyped_storage(self) -> Any:
        return StorageView(self.memory)

    def is_pinned(self, device: Any = None) -> bool:
        return False

    def element_size(self) -> int:
        return self.geometry.item


class StorageView:
    """What ``untyped_storage()`` of a device tensor tells: address, size and device."""

    def __init__(self, memory: DeviceStorage):
        self._memory = memory
        self.device = CUDA

    def data_ptr(self) -> int:
        block = self._memory.block
        return block.space.base + block.offset

    def nbytes(self) -> int:
        return self._memory.block.request

    size = __len__ = nbytes


def new_tensor(memory: DeviceStorage, start: int, g: Geometry) -> SimTensor:
    """A tensor of geometry ``g`` at byte ``start`` of its segment."""
    offset = (start - memory.block.offset) // g.item
    if _in_inference():
        with _normal_mode(False):
            tensor = _make(SimTensor, g.shape, strides=g.stride, storage_offset=offset, dtype=g.dtype, device="meta")
    else:
        tensor = _make(SimTensor, g.shape, strides=g.stride, storage_offset=offset, dtype=g.dtype, device="meta")
    tensor.geometry, tensor.memory, tensor.start, tensor._place = g, memory, start, None
    return tensor


def name(thing: Any, label: str) -> Any:
    """Call a device tensor's memory, a pinned tensor's memory or a stream ``label`` in hazards; returns ``thing``."""
    from . import sessions

    device = sessions.active()
    if device is not None:
        device.set_name(thing, label)
    elif isinstance(thing, SimTensor):
        thing.memory.block.name = label
    return thing
