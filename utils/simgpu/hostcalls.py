"""Torch functions on CPU tensors: what they read and write of pinned memory."""

from __future__ import annotations

from typing import Any

import torch

from .tensor import SimTensor

READS_NOTHING = frozenset({
    "__get__", "size", "stride", "dim", "numel", "data_ptr", "storage_offset", "is_contiguous", "untyped_storage",
    "element_size", "is_pinned", "view", "view_as", "t", "transpose", "permute", "numpy", "detach", "unsqueeze",
    "squeeze", "narrow", "split", "chunk", "unbind", "expand", "expand_as", "as_strided", "select", "__len__",
    "ndimension", "nelement", "requires_grad_", "type", "is_floating_point", "is_complex", "get_device",
    "empty_like", "__hash__", "register_hook", "_is_view", "is_shared", "swapaxes", "is_same_size", "record_stream",
    "__set__", "__array__", "movedim", "unfold", "diagonal", "unflatten", "is_tensor", "storage", "typed_storage",
})
MAY_VIEW = frozenset({
    "__getitem__", "reshape", "flatten", "contiguous", "to", "float", "half", "bfloat16", "double", "int", "long",
    "cpu", "ravel", "reshape_as", "__iter__", "tensor_split", "view_as_real", "T", "mT", "pin_memory", "as_tensor",
})
IN_PLACE = frozenset({
    "__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__iand__", "__ior__",
    "__ixor__", "__imod__", "__ipow__",
})


def host_call(device: Any, func: Any, args: tuple, kwargs: dict) -> Any:
    """Run a function on CPU tensors, telling the device which pinned ones it reads and writes."""
    name = getattr(func, "__name__", "")
    if name in READS_NOTHING:
        return func(*args, **kwargs)
    pinned, on_device = _pinned(device, (*args, *kwargs.values()))
    if not pinned or on_device:
        return func(*args, **kwargs)
    if name in MAY_VIEW:
        result = func(*args, **kwargs)
        if _shares(result, pinned[0]):
            return result
    written = _written(name, args, kwargs)
    for tensor in pinned:
        if not any(tensor is w for w in written):
            device.host.access(tensor, False, f"host {name.strip('_')}")
    for tensor in written:
        device.host.access(_target(name, tensor, args), True, f"host {name.strip('_')}")
    return func(*args, **kwargs)


def _pinned(device: Any, values: Any) -> tuple[list[torch.Tensor], bool]:
    found, on_device = [], False
    for value in values:
        if isinstance(value, SimTensor):
            on_device = True
        elif isinstance(value, torch.Tensor):
            if device.host.space_of(value) is not None:
                found.append(value)
        elif isinstance(value, (list, tuple)):
            inside, there = _pinned(device, value)
            found += inside
            on_device |= there
    return found, on_device


def _written(name: str, args: tuple, kwargs: dict) -> list[torch.Tensor]:
    written = [kwargs["out"]] if isinstance(kwargs.get("out"), torch.Tensor) else []
    if (
        args
        and isinstance(args[0], torch.Tensor)
        and (name in IN_PLACE or (name.endswith("_") and not name.endswith("__")))
    ):
        written.append(args[0])
    return written


def _target(name: str, tensor: torch.Tensor, args: tuple) -> torch.Tensor:
    """The part of a tensor that ``tensor[index] = …`` writes."""
    if name == "__setitem__":
        part = tensor[args[1]]
        if _shares(part, tensor):
            return part
    return tensor


def _shares(result: Any, tensor: torch.Tensor) -> bool:
    if isinstance(result, (list, tuple)):
        return bool(result) and _shares(result[0], tensor)
    return (
        isinstance(result, torch.Tensor)
        and result.device.type == "cpu"
        and not isinstance(result, SimTensor)
        and result.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
    )
