"""The programs that onload.py compares: models of lessons 03 and 04, and peers with the same layers."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from benchmarks.onload_windows import Program
from utils import simgpu
from utils.lessons import import_lesson

serial = import_lesson("03_serial_mlp")
onload = import_lesson("04_double_buffered_onload")
DTYPE = torch.bfloat16

RESIDENT, SERIAL, PUBLISHED, COPIES = "resident", "serial", "published schedule", "copies alone"
PLAIN, RING, RING_3 = "2 slots", "2 slots, prefetch", "3 slots, prefetch"
STREAMED = "StreamedLayers, 2 slots, prefetch"
ACCELERATE, GROUP, GROUP_RECORD = "accelerate cpu_offload", "diffusers, stream", "diffusers, stream, record_stream"
BLOCKS = "diffusers by block, stream, record_stream"
PEERS = (ACCELERATE, GROUP, GROUP_RECORD, BLOCKS)


def random_weights(layers: int, width: int) -> list[torch.Tensor]:
    """As random_weights of lesson 03, drawn on the GPU: pinned (width, width) bfloat16 matrices."""
    weights = []
    for _ in range(layers):
        weight = torch.empty(width, width, dtype=DTYPE, pin_memory=True)
        weight.copy_(torch.randn(width, width, dtype=DTYPE, device="cuda") / math.sqrt(width))
        weights.append(weight)
    return weights


# ---- ours

def ring_mlp(name: str, weights: list[torch.Tensor], slots: int, prefetch: bool) -> Program:
    model = onload.RingMLP(weights, slots=slots, prefetch=prefetch)
    return Program(name, model, model.ring)


def streamed(layers: Sequence[nn.Module], slots: int = 2) -> Program:
    model = onload.StreamedLayers(layers, slots=slots)
    return Program(STREAMED, model, model.ring)


def copies_alone(copy_ins: Sequence[Callable[[torch.Tensor], None]], buffers: Sequence[torch.Tensor]) -> Program:
    """Copies every layer once per call into two buffers in turn, one copy right after the other."""
    def copy_all(x: torch.Tensor) -> torch.Tensor:
        for i, copy_in in enumerate(copy_ins):
            copy_in(buffers[i % 2])
        return x
    return Program(COPIES, copy_all)


def copy_of(weight: torch.Tensor) -> Callable[[torch.Tensor], None]:
    return lambda buffer: buffer.copy_(weight, non_blocking=True)


# ---- peers

class Product(nn.Linear):
    """x @ weight, so that the same GEMM runs as in the lessons; a Linear, because the peers ask for one."""

    def __init__(self, weight: torch.Tensor):
        super().__init__(*weight.shape, bias=False, device="meta", dtype=weight.dtype)
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


class Stack(nn.Module):
    """Layers one after the other.

    ``last`` does nothing, but diffusers (0.42) by block prefetches, and waits for its copies, only in a model that has
    something beside its list of layers: without it the outputs are wrong.
    """

    def __init__(self, layers: Iterable[nn.Module]):
        super().__init__()
        self.layers, self.last = nn.ModuleList(layers), nn.Identity()

    def forward(self, x: torch.Tensor, **more: Any) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, **more)
        return self.last(x)


def installed(package: str) -> bool:
    """Whether a peer can run here; accelerate moves weights to the meta device, which the simulated device does not."""
    if package == "accelerate" and simgpu.active() is not None:
        return False
    return importlib.util.find_spec(package) is not None


def peers(make: Callable[[], Sequence[nn.Module]], by_block: bool = False) -> dict[str, Callable[[], Program]]:
    """Makers of the peers that are installed, by name; ``make`` gives fresh modules over the same pinned memory."""
    makers: dict[str, Callable[[], Program]] = {}
    if installed("accelerate"):
        makers[ACCELERATE] = lambda: Program(ACCELERATE, cpu_offloaded(Stack(make())))
    if installed("diffusers"):
        makers[GROUP] = lambda: Program(GROUP, group_offloaded(Stack(make()), False))
        makers[GROUP_RECORD] = lambda: Program(GROUP_RECORD, group_offloaded(Stack(make()), True))
        if by_block:
            makers[BLOCKS] = lambda: Program(BLOCKS, group_offloaded(Stack(make()), True, by_block=True))
    return makers


def cpu_offloaded(stack: nn.Module) -> nn.Module:
    from accelerate import cpu_offload

    return cpu_offload(stack, execution_device=torch.device("cuda:0"))


def group_offloaded(stack: nn.Module, record_stream: bool, by_block: bool = False) -> nn.Module:
    from diffusers.hooks import apply_group_offloading

    level: dict[str, Any] = {"offload_type": "leaf_level"}
    if by_block:
        level = {"offload_type": "block_level", "num_blocks_per_group": 1}
    apply_group_offloading(stack, onload_device=torch.device("cuda"), offload_device=torch.device("cpu"),
                           use_stream=True, non_blocking=True, record_stream=record_stream, **level)
    return stack


def versions() -> dict[str, str]:
    """Versions of the peers that are installed."""
    from importlib.metadata import version

    return {name: version(name) for name in ("accelerate", "diffusers", "transformers") if installed(name)}


def mlp_makers(weights: list[torch.Tensor]) -> dict[str, Callable[[], Program]]:
    """Makers of all programs for the MLP, by name, in the order of the tables."""
    makers: dict[str, Callable[[], Program]] = {
        RESIDENT: lambda: Program(RESIDENT, serial.ResidentMLP(weights)),
        SERIAL: lambda: Program(SERIAL, serial.SerialMLP(weights)),
        PLAIN: lambda: ring_mlp(PLAIN, weights, 2, False),
        RING: lambda: ring_mlp(RING, weights, 2, True),
        RING_3: lambda: ring_mlp(RING_3, weights, 3, True),
        PUBLISHED: lambda: Program(PUBLISHED, onload.PublishedMLP(weights)),
    }
    return makers | peers(lambda: [Product(weight) for weight in weights])
