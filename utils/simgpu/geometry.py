"""Interned tensor geometries: shape, stride and dtype, with what the simulator derives from them once."""

from __future__ import annotations

from functools import lru_cache

import torch

from .space import Pattern, extent

ITEM_BYTES = {dtype: dtype.itemsize for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
MAX_GEOMETRIES = 100_000


class Geometry:
    """Shape, stride (elements) and dtype of a tensor; equal ones are the same object."""

    __slots__ = ("contiguous", "dtype", "item", "meta", "nbytes", "numel", "pattern", "shape", "span", "stride")

    def __init__(self, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype):
        self.shape, self.stride, self.dtype = shape, stride, dtype
        self.item = ITEM_BYTES[dtype]
        self.numel = 1
        for size in shape:
            self.numel *= size
        self.nbytes = self.numel * self.item
        self.contiguous = _is_contiguous(shape, stride)
        self.span: int
        self.pattern: Pattern | None
        self.span, self.pattern = extent(shape, stride, self.item)
        self.meta: torch.Tensor | None = None  # a meta tensor of this geometry, made when inference needs one

    def __repr__(self) -> str:
        return f"{tuple(self.shape)} {str(self.dtype).removeprefix('torch.')}"


def _is_contiguous(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size == 0:
            return True
        if size != 1:
            if step != expected:
                return False
            expected *= size
    return True


@lru_cache(maxsize=MAX_GEOMETRIES)
def geometry(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> Geometry:
    """The one Geometry for these values."""
    return Geometry(shape, stride, dtype)


@lru_cache(maxsize=MAX_GEOMETRIES)
def dense(shape: tuple[int, ...], dtype: torch.dtype) -> Geometry:
    """The contiguous geometry of a shape."""
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return geometry(shape, tuple(reversed(stride)), dtype)


def of(tensor: torch.Tensor) -> Geometry:
    """Geometry of any strided tensor."""
    return geometry(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)
