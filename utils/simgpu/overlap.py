"""Tensors of one operator that share memory: what PyTorch refuses at the call."""

from __future__ import annotations

from collections.abc import Sequence

from .geometry import Geometry
from .tensor import SimTensor

_TWICE = (
    "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
    "Please clone() the tensor before performing the operation."
)
_BOTH = (
    "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single memory "
    "location. Please clone() the tensor before performing the operation."
)


def refuse_overlap(changed: Sequence[SimTensor], inputs: Sequence[SimTensor], *, whole: bool) -> None:
    """Refuse a written tensor that meets itself, or an input in part (``whole``: or altogether)."""
    for written in changed:
        if _repeats(written.geometry):
            raise RuntimeError(_TWICE)
        for other in inputs:
            if other is not written and other.memory is written.memory and _meets(written, other, whole):
                raise RuntimeError(_BOTH)


def _repeats(g: Geometry) -> bool:
    return any(step == 0 and size > 1 for size, step in zip(g.shape, g.stride, strict=True))


def _meets(one: SimTensor, other: SimTensor, whole: bool) -> bool:
    g, h = one.geometry, other.geometry
    if not g.numel or not h.numel or g.nbytes != g.span or h.nbytes != h.span:
        return False    # with holes: PyTorch does not look closer
    if one.start == other.start and g.span == h.span:
        return whole or g.stride != h.stride
    return one.start < other.start + h.span and other.start < one.start + g.span
