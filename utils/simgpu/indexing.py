"""Indexing of device tensors: basic items are views made by hand, tensors become index operators."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch

from . import copies
from .geometry import dense, geometry
from .tensor import SimTensor, new_tensor

aten = torch.ops.aten


def _items(index: Any) -> tuple:
    """The items of an index: what stands for one integer as an int, read from the device where it must be."""
    return tuple(map(_item, index)) if isinstance(index, tuple) else (_item(index),)


def _item(item: Any) -> Any:
    if item is None or item is Ellipsis or type(item) in (int, bool, list):
        return item
    if isinstance(item, slice):
        return slice(*(None if part is None else operator.index(part) for part in (item.start, item.stop, item.step)))
    if isinstance(item, torch.Tensor):
        with torch._C.DisableTorchFunction():
            whole = item.dim() or item.is_floating_point() or item.is_complex()
        if whole:
            return item
        value = item.item()     # waits for the device where the index is there
        return bool(value) if item.dtype in (torch.bool, torch.uint8) else value
    if isinstance(item, np.bool_):
        raise IndexError("only integers, slices (`:`), ellipsis (`...`), None and tensors are indices, not numpy.bool")
    if isinstance(item, np.ndarray) and item.ndim:
        return item
    return operator.index(item) if hasattr(item, "__index__") else item


def _basic(index: Any) -> bool:
    return (
        index is None
        or index is Ellipsis
        or isinstance(index, slice)
        or (isinstance(index, int) and not isinstance(index, bool))
    )


def get_item(self: SimTensor, index: Any) -> SimTensor:
    items = _items(index)
    if all(_basic(item) for item in items):
        return _basic_view(self, items)
    base, indices = _split_index(self, items)
    return aten.index.Tensor(base, indices)


def _basic_view(self: SimTensor, items: tuple) -> SimTensor:
    """Integers, slices, None and ... : shape, stride and offset by hand."""
    g = self.geometry
    used = sum(1 for item in items if item is not None and item is not Ellipsis)
    if used > len(g.shape):
        raise IndexError(f"too many indices for tensor of dimension {len(g.shape)}")
    shape, stride, offset, dim = [], [], 0, 0
    for item in items:
        if item is None:
            shape.append(1)
            stride.append(0)
        elif item is Ellipsis:
            skip = len(g.shape) - used
            shape += g.shape[dim : dim + skip]
            stride += g.stride[dim : dim + skip]
            dim += skip
        elif isinstance(item, slice):
            if isinstance(item.step, int) and item.step <= 0:
                raise ValueError("step must be greater than zero")
            low, high, step = item.indices(g.shape[dim])
            shape.append(max(0, -(-(high - low) // step)))
            stride.append(g.stride[dim] * step)
            offset += low * g.stride[dim]
            dim += 1
        else:
            size = g.shape[dim]
            if not -size <= item < size:
                raise IndexError(f"index {item} is out of bounds for dimension {dim} with size {size}")
            offset += (item + size if item < 0 else item) * g.stride[dim]
            dim += 1
    shape += g.shape[dim:]
    stride += g.stride[dim:]
    return new_tensor(self.memory, self.start + offset * g.item, geometry(tuple(shape), tuple(stride), g.dtype), self)


def _split_index(self: SimTensor, items: tuple) -> tuple[SimTensor, list[Any]]:
    """A view for the basic items, and the tensors of the others by dimension."""
    used = sum(_dims_of(item) for item in items)
    full: list[Any] = []
    for item in items:
        full += [slice(None)] * (len(self.geometry.shape) - used) if item is Ellipsis else [item]
    basic = tuple(item if _basic(item) else slice(None) for item in _spread(full))
    base = _basic_view(self, basic)
    indices: list[Any] = []
    for item in full:
        if _basic(item):
            indices += [] if isinstance(item, int) else [None]
        elif isinstance(item, bool):    # a new dimension of one element, or of none
            indices.append(self.memory.device.factory("zeros", dense((int(item),), torch.int64), _zeros(item)))
        else:
            indices.append(_index_tensor(item))
    return base, indices


def _zeros(flag: bool) -> Any:
    return lambda: torch.zeros(int(flag), dtype=torch.int64)


def _spread(full: list[Any]) -> list[Any]:
    """One item per dimension: a mask stands for as many as it has."""
    return [
        None if isinstance(part, bool) else part
        for item in full
        for part in ([item] if _basic(item) or _dims_of(item) < 2 else [slice(None)] * _dims_of(item))
    ]


def _dims_of(item: Any) -> int:
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    if isinstance(item, torch.Tensor):
        with torch._C.DisableTorchFunction():
            return item.dim() if item.dtype in (torch.bool, torch.uint8) else 1
    return 1


def _index_tensor(item: Any) -> SimTensor:
    if isinstance(item, SimTensor):
        return item
    with torch._C.DisableTorchFunction():
        tensor = item if isinstance(item, torch.Tensor) else torch.tensor(copies.off_device(item))
    return copies.converted(tensor, "cuda", None, False)


def set_item(self: SimTensor, index: Any, value: Any) -> None:
    items = _items(index)
    if all(_basic(item) for item in items):
        target = _basic_view(self, items)
        if isinstance(value, torch.Tensor):
            target.copy_(value)
        elif not target.geometry.shape:  # one element: PyTorch copies a CPU scalar there, and waits
            target.copy_(_cpu_scalar(value, self.dtype))
        else:
            target.fill_(value)
        return
    base, indices = _split_index(self, items)
    masks = [i for i in indices if i is not None]
    if (
        not isinstance(value, torch.Tensor)
        and len(masks) == 1
        and masks[0].dtype is torch.bool
        and indices[0] is not None
    ):
        mask = masks[0]
        base.masked_fill_(mask.reshape(*mask.shape, *[1] * (base.dim() - mask.dim())), value)
        return
    if not isinstance(value, torch.Tensor):
        value = _cpu_scalar(value, self.dtype)
    if not isinstance(value, SimTensor):
        value = copies.converted(value, "cuda", self.dtype, False)
    aten.index_put_.default(base, indices, value)


def _cpu_scalar(value: Any, dtype: torch.dtype) -> torch.Tensor:
    with torch._C.DisableTorchFunction():
        return torch.tensor(value, dtype=dtype)
