"""Values: what the queued operations compute, on the CPU, and which bytes cannot be trusted.

Taint is one byte per byte: 0 clean, else why not. A tainted float is NaN; a tainted integer is a loud placeholder that
no index accepts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from .geometry import Geometry
from .space import Key, Space

highest = np.maximum.reduce  # of bytes, much faster than any()
CLEAN, UNWRITTEN, TORN, DERIVED = range(4)
PLACEHOLDER = {
    torch.int64: -7_777_777_777_777_777,
    torch.int32: -1_777_777_777,
    torch.int16: -17_777,
    torch.int8: -77,
    torch.uint8: 171,
    torch.bool: True,
}
LEAVES = frozenset({int, float, bool, type(None), str, torch.dtype, torch.Tensor})


class Ref(NamedTuple):
    """A tensor of the device inside a queued operation: where it is, not who holds it."""

    space: Space
    start: int
    geometry: Geometry

    @property
    def key(self) -> Key:
        return (self.start, self.start + self.geometry.span, self.geometry.pattern)


class plain_torch:
    """No modes, no gradients: the operations of the simulator itself."""

    __slots__ = ("functions", "inference")

    def __enter__(self) -> None:
        self.functions, self.inference = torch._C.DisableTorchFunction(), torch._C._InferenceMode(False)
        try:
            self.functions.__enter__()
            self.inference.__enter__()
            torch._C._set_grad_enabled(False)
        except BaseException:  # Ctrl-C
            self.__exit__(None, None, None)
            raise

    def __exit__(self, *error: Any) -> None:
        self.inference.__exit__(*error)  # sets the gradients back, too
        self.functions.__exit__(*error)


def ordinary(tensor: torch.Tensor, *, inference: bool = False) -> torch.Tensor:
    """A CPU tensor itself, or its bytes under one that may be changed outside of inference mode (or else, inside)."""
    if tensor.is_inference() is inference:
        return tensor
    with torch._C.DisableTorchFunction(), torch._C._InferenceMode(inference), torch.no_grad():
        empty = torch.empty(0, dtype=tensor.dtype)
        return empty.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def open_bytes(space: Space) -> None:
    """Give a segment its bytes, all of them unwritten."""
    with plain_torch():
        space.data = {torch.uint8: torch.empty(space.size, dtype=torch.uint8)}
        space.taint = torch.full((space.size,), UNWRITTEN, dtype=torch.uint8)


def view(ref: Ref) -> torch.Tensor:
    """The CPU tensor over a device tensor's bytes."""
    space, start, g = ref
    if space.data is None:
        open_bytes(space)
    base = space.data.get(g.dtype)
    if base is None:
        base = space.data[g.dtype] = space.data[torch.uint8].view(g.dtype)
    return base.as_strided(g.shape, g.stride, start // g.item)


def is_tainted(ref: Ref) -> bool:
    """Whether any byte of a tensor is tainted."""
    g = ref.geometry
    if g.pattern is not None:
        return bool(taint_view(ref).any())
    if ref.space.data is None:
        open_bytes(ref.space)
    return bool(g.span and highest(ref.space.taint.numpy()[ref.start : ref.start + g.span]))


def taint_view(ref: Ref) -> torch.Tensor:
    """Taint of each element: of any of its bytes, to be read only."""
    g = ref.geometry
    if ref.space.data is None:
        open_bytes(ref.space)
    taint, steps = ref.space.taint, [step * g.item for step in g.stride]
    if g.item == 1 or (g.pattern is None and not taint[ref.start : ref.start + g.span].any()):
        return taint.as_strided(g.shape, steps, ref.start)
    return taint.as_strided((*g.shape, g.item), (*steps, 1), ref.start).amax(-1)


def set_taint(ref: Ref, why: int | torch.Tensor) -> None:
    """Set the taint of every byte of a tensor."""
    g = ref.geometry
    if ref.space.data is None:
        open_bytes(ref.space)
    if isinstance(why, int) and g.pattern is None:
        ref.space.taint.numpy()[ref.start : ref.start + g.span] = why
        return
    byte = ref.space.taint.as_strided((*g.shape, g.item), (*(step * g.item for step in g.stride), 1), ref.start)
    byte.copy_(why.unsqueeze(-1).expand(byte.shape)) if isinstance(why, torch.Tensor) else byte.fill_(why)


def poison(tensor: torch.Tensor, mask: torch.Tensor | None = None) -> None:
    """Write NaN or the loud placeholder where ``mask`` is not 0 (None: everywhere)."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        value: Any = float("nan")
    else:
        value = PLACEHOLDER.get(tensor.dtype, 0)
    if mask is None:
        tensor.fill_(value)
    else:
        tensor.masked_fill_(mask != 0, value)


def untold(taint: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Where a tainted element's value says nothing. A truth value that was computed says what came of its inputs."""
    return (taint != CLEAN) & (taint != DERIVED) if dtype is torch.bool else taint != CLEAN


def mark_key(mark: torch.Tensor, key: Key) -> None:
    """Set the bytes of ``key``."""
    from .space import runs_of

    for low, high in runs_of(key):
        mark[low:high] = 1


def fill(value: Any, resolve: Callable[[Ref], torch.Tensor]) -> Any:
    """The structure ``value`` with every Ref replaced."""
    if type(value) in LEAVES:
        return value
    if isinstance(value, Ref):
        return resolve(value)
    if isinstance(value, (list, tuple)):
        return type(value)(fill(item, resolve) for item in value)
    if isinstance(value, dict):
        return {key: fill(item, resolve) for key, item in value.items()}
    return value


def refs_in(value: Any) -> list[Ref]:
    """Every Ref in a structure, in order."""
    if isinstance(value, Ref):
        return [value]
    if isinstance(value, (list, tuple)):
        return [ref for item in value for ref in refs_in(item)]
    if isinstance(value, dict):
        return refs_in(list(value.values()))
    return []
