"""How long an operator runs: the roofline of its FLOPs and bytes, plus the time of an empty kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from . import attention
from .geometry import Geometry
from .profiles import NS, Profile

GEMMS = frozenset({"mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "addbmm", "mv", "addmv", "dot"})
# Operators that read only what they return or change, not all of their (first) input.
GATHERS = frozenset({
    "embedding", "index_select", "gather", "index", "index_put_", "index_copy_", "scatter_", "index_put",
    "index_copy", "scatter", "scatter_add_", "index_add_", "index_fill_",
})


class Cost(NamedTuple):
    """Device time in ns and the share of the device (of 1000) that the kernel keeps busy."""

    work: int
    share: int


def estimate(
    profile: Profile, name: str, inputs: Sequence[Geometry], outputs: Sequence[Geometry],
    causal: bool | attention.Causal = False,
) -> Cost:
    """Cost of operator ``name``, attention with a ``causal`` mask; ``op_ns`` of the profile overrides it."""
    fixed = profile.op_ns.get(name)
    if fixed is not None:
        return Cost(max(1, int(fixed)), 1000)
    flops, dtype = _flops(name, inputs, outputs, causal)
    moved = _bytes(name, inputs, outputs)
    peak = profile.peak_flops(str(dtype).removeprefix("torch."))
    busy = (
        max(flops / (peak * profile.gemm_efficiency), moved / (profile.memory_bytes_per_s * profile.memory_efficiency))
        * NS
    )
    return from_busy(profile, busy)


def from_busy(profile: Profile, busy_ns: float) -> Cost:
    """A kernel that needs the whole device for ``busy_ns``: its latency leaves room for small ones beside it."""
    work = profile.kernel_latency_ns + round(busy_ns)
    return Cost(max(1, work), min(1000, max(1, round(1000 * busy_ns / max(work, 1)))))


def copy_ns(profile: Profile, engine: str, nbytes: int, *, pinned: bool) -> int:
    """Duration of a copy across the link."""
    rate = profile.h2d_bytes_per_s if engine == "h2d" else profile.d2h_bytes_per_s
    if not pinned:
        rate = min(rate, profile.pageable_bytes_per_s)
    return profile.copy_latency_ns + round(nbytes / rate * NS)


def host_ns(profile: Profile, nbytes: int) -> int:
    """Host time to convert or gather ``nbytes`` before a copy."""
    return round(nbytes / profile.host_bytes_per_s * NS)


def _bytes(name: str, inputs: Sequence[Geometry], outputs: Sequence[Geometry]) -> int:
    written = sum(g.nbytes for g in outputs)
    if name in GATHERS:
        rest = [g.nbytes for g in inputs[1:]]
        return 2 * (max(rest, default=0) if name.endswith("_") else written)
    return written + sum(_read(g) for g in inputs)


def _read(g: Geometry) -> int:
    """Bytes of a tensor that are there to be read: one that repeats rows or heads has each of them once."""
    distinct = g.item
    for size, step in zip(g.shape, g.stride, strict=True):
        distinct *= size if step or not size else 1
    return min(distinct, g.span)


def _flops(
    name: str, inputs: Sequence[Geometry], outputs: Sequence[Geometry], causal: bool | attention.Causal
) -> tuple[float, torch.dtype]:
    if not inputs or not outputs:
        return 0.0, torch.float32
    out = outputs[0]
    if (product := name.removesuffix("_")) in GEMMS:   # in place (addmm_) it is the same work
        first = inputs[1] if product in ("addmm", "baddbmm", "addbmm", "addmv") and len(inputs) > 2 else inputs[0]
        inner = first.shape[-1] if first.shape else 1
        summed = first.shape[0] if product == "addbmm" and len(first.shape) == 3 else 1
        return 2.0 * out.numel * inner * summed, out.dtype
    if name in ("convolution", "conv1d", "conv2d", "conv3d"):
        weight = inputs[1]
        return 2.0 * out.numel * (weight.numel // max(weight.shape[0], 1)), out.dtype
    if name == attention.NAME:
        return attention.flops_of(inputs[0], inputs[1], out, causal), out.dtype
    return 0.0, out.dtype
