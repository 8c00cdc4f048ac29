"""The tensor of the simulated device: geometry and memory here, values (if any) in the arena."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from .geometry import Geometry
from .memory import Block
from .space import Key, Space

CUDA = torch.device("cuda", 0)
_make = torch.Tensor._make_wrapper_subclass
_inference_mode = torch._C._InferenceMode
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

    def __del__(self, at_exit: Callable[[], bool] = sys.is_finalizing) -> None:
        if not at_exit():   # then, the modules that it takes may be gone
            self.device.release(self.block)


class SimTensor(torch.Tensor):
    """A tensor on the simulated device (made by ``new_tensor`` only)."""

    geometry: Geometry
    memory: DeviceStorage
    start: int  # bytes from the start of the segment
    _place: tuple[Space, Key] | None
    inference: bool
    uncounted: bool  # as PyTorch sees it, an inference tensor without a counter of changes

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
        if self.uncounted:
            raise RuntimeError("Inference tensors do not track version counter.")
        return self.memory.version

    @property
    def place(self) -> tuple[Space, Key]:
        """The segment and byte range that this tensor covers."""
        place = self._place
        if place is None:
            g = self.geometry
            place = self._place = (self.memory.block.space, (self.start, self.start + g.span, g.pattern))
        return place

    def is_inference(self) -> bool:
        return self.inference

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


def new_tensor(
    memory: DeviceStorage, start: int, g: Geometry, base: SimTensor | None = None, *, detached: bool = False
) -> SimTensor:
    """A tensor of geometry ``g`` at byte ``start`` of its segment: a new one, or a view of ``base``.

    New ones are inference tensors if they are made in inference mode, views if their base is one; what is ``detached``
    outside of inference mode counts changes in any case.
    """
    inside = _in_inference()
    inference = inside if base is None else base.inference
    return wrap(memory, start, g, inference, inference and (inside or not detached))


def wrap(memory: DeviceStorage, start: int, g: Geometry, inference: bool, uncounted: bool) -> SimTensor:
    """A tensor of either kind; PyTorch lets nobody change an ``uncounted`` one in place outside of inference mode."""
    offset = (start - memory.block.offset) // g.item
    if uncounted is _in_inference():
        tensor = _make(SimTensor, g.shape, strides=g.stride, storage_offset=offset, dtype=g.dtype, device="meta")
    else:
        with _inference_mode(uncounted):
            tensor = _make(SimTensor, g.shape, strides=g.stride, storage_offset=offset, dtype=g.dtype, device="meta")
    tensor.geometry, tensor.memory, tensor.start, tensor._place = g, memory, start, None
    tensor.inference, tensor.uncounted = inference, uncounted
    return tensor


def count_change(tensor: SimTensor, name: str) -> None:
    """``name`` changes a tensor in place: RuntimeError outside of inference mode if it was made inside."""
    tensor.memory.version += 1
    if tensor.uncounted and not _in_inference():
        raise RuntimeError(
            f"Inplace update to inference tensor outside InferenceMode: {name} changed a tensor that was made in "
            "torch.inference_mode(); change a clone of it, or make it under torch.inference_mode(False)"
        )


def name(thing: Any, label: str) -> Any:
    """Call a device tensor's memory, a pinned tensor's memory or a stream ``label`` in hazards; returns ``thing``."""
    from . import sessions

    device = sessions.active()
    if device is not None:
        device.set_name(thing, label)
    elif isinstance(thing, SimTensor):
        thing.memory.block.name = label
    return thing
