"""Operators with their own rules: copies, reads, and what is refused."""

from __future__ import annotations

from typing import Any

import torch

from . import copies
from .geometry import dense, geometry
from .ops import Unsupported
from .tensor import SimTensor, new_tensor


def _copy_(func: Any, args: tuple, kwargs: dict) -> Any:
    non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
    return copies.copy_into(args[0], args[1], bool(non_blocking))


def _to_copy(func: Any, args: tuple, kwargs: dict) -> Any:
    return copies.converted(
        args[0],
        kwargs.get("device"),
        kwargs.get("dtype"),
        bool(kwargs.get("non_blocking")),
        kwargs.get("memory_format"),
        copy=True,
        pin=bool(kwargs.get("pin_memory")),
    )


def _item(func: Any, args: tuple, kwargs: dict) -> Any:
    return copies.to_host(args[0]).item()


def _equal(func: Any, args: tuple, kwargs: dict) -> bool:
    one, other = args
    _no_mixed("equal", one, other)
    if one.place == other.place and one.geometry is other.geometry:
        return True  # the same bytes: known without looking
    return torch.equal(copies.to_host(one), copies.to_host(other))


def _nonzero_flag(func: Any, args: tuple, kwargs: dict) -> bool:
    return bool(copies.to_host(args[0]).item())


def _allclose(func: Any, args: tuple, kwargs: dict) -> bool:
    one, other, *rest = args
    _no_mixed("allclose", one, other)
    return torch.allclose(copies.to_host(one), copies.to_host(other), *rest, **kwargs)


def _record_stream(func: Any, args: tuple, kwargs: dict) -> None:
    args[0].record_stream(args[1])


def _no_mixed(name: str, *tensors: Any) -> None:
    if not all(isinstance(t, SimTensor) for t in tensors):
        raise RuntimeError(
            f"{name}: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
        )


def _reshape_alias(func: Any, args: tuple, kwargs: dict) -> SimTensor:
    base, size, stride = args
    return new_tensor(base.memory, base.start, geometry(tuple(size), tuple(stride), base.geometry.dtype))


def _one_hot(func: Any, args: tuple, kwargs: dict) -> SimTensor:
    index = args[0]
    classes = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
    if classes == -1:
        classes = int(copies.to_host(index).max()) + 1
    steps = index.memory.device.factory("arange", dense((classes,), torch.int64), lambda: torch.arange(classes))
    return (index.unsqueeze(-1) == steps).to(torch.int64)


def _refuse(name: str, advice: str) -> Any:
    def refuse(func: Any, args: tuple, kwargs: dict) -> Any:
        raise Unsupported(f"{name} is not modelled by the simulated device; {advice}")

    return refuse


SPECIAL = {
    "copy_": _copy_,
    "_to_copy": _to_copy,
    "_local_scalar_dense": _item,
    "item": _item,
    "equal": _equal,
    "is_nonzero": _nonzero_flag,
    "allclose": _allclose,
    "record_stream": _record_stream,
    "one_hot": _one_hot,
    "_reshape_alias": _reshape_alias,
    "_has_compatible_shallow_copy_type": lambda func, args, kwargs: False,
    "set_": _refuse("Tensor.set_", "assign views or new tensors instead"),
    "resize_": _refuse("Tensor.resize_", "allocate a tensor of the size you need"),
    "_pin_memory": _refuse("pin_memory of a CUDA tensor", "only CPU tensors can be pinned"),
}
