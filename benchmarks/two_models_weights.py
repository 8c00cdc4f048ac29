"""Two models whose layers lie packed in host memory once, for every way of moving them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from benchmarks.onload_windows import summary
from utils.lessons import import_lesson

lesson = import_lesson("05_offload_and_swap")
streaming = lesson.streaming
DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Sizes:
    """Of a DiTBlock, and how many each model has."""

    width: int
    heads: int
    hidden: int
    layers: int

    def meta(self) -> nn.Module:
        """A block without memory."""
        with torch.device("meta"):
            return lesson.DiTBlock(self.width, self.heads, self.hidden).to(DTYPE)

    def block(self, tensors: Mapping[str, torch.Tensor]) -> nn.Module:
        """A block with these parameters."""
        block = self.meta()
        for name, tensor in tensors.items():
            owner, _, last = name.rpartition(".")
            setattr(block.get_submodule(owner), last, nn.Parameter(tensor, requires_grad=False))
        return block


class Host:
    """Both models with random weights in pinned memory, a block of it for each layer.

    All ways use this memory: those that pack get these blocks while ``lending``, others ``fresh`` modules over it.
    """

    def __init__(self, sizes: Sizes):
        self.sizes = sizes
        shapes = {name: tensor.shape for name, tensor in sizes.meta().named_parameters()}
        self.models = [[sizes.block({name: torch.empty(shape, dtype=DTYPE) for name, shape in shapes.items()})
                        for _ in range(sizes.layers)] for _ in range(2)]
        every = [layer for model in self.models for layer in model]
        self.blocks = dict(zip(every, streaming.pack(every), strict=True))
        for layer in every:
            fill(layer)
        torch.cuda.synchronize()
        self.layer_bytes = lesson.packed_bytes(every[0])

    @contextmanager
    def lending(self) -> Iterator[None]:
        """What packs these layers meanwhile gets the blocks that they lie in already."""
        real, streaming.pack = streaming.pack, lambda layers: [self.blocks[layer] for layer in layers]
        try:
            yield
        finally:
            streaming.pack = real

    def tensors(self, m: int) -> Iterator[dict[str, torch.Tensor]]:
        for layer in self.models[m]:
            yield {name: tensor.detach() for name, tensor in layer.named_parameters()}

    def fresh(self, m: int) -> list[nn.Module]:
        """New modules over the same memory."""
        return [self.sizes.block(tensors) for tensors in self.tensors(m)]

    def copy_ms(self, times: int = 20) -> dict[str, object]:
        """Milliseconds of one layer's copy to the GPU, nothing else running."""
        blocks = [self.blocks[layer] for layer in self.models[0]]
        target = torch.empty(self.layer_bytes, dtype=torch.uint8, device="cuda")
        events = [torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]
        events[0].record()
        for n, event in enumerate(events[1:]):
            for block, piece in streaming.pieces(blocks[n % len(blocks)], target):
                piece.copy_(block.host, non_blocking=True)
            event.record()
        torch.cuda.synchronize()
        return summary([a.elapsed_time(b) for a, b in itertools.pairwise(events[1:])])


def fill(layer: nn.Module) -> None:
    """Random numbers, drawn on the GPU."""
    for tensor in layer.parameters():
        drawn = torch.randn(tensor.shape, dtype=DTYPE, device="cuda")
        tensor.data.copy_(drawn / tensor.shape[-1] ** 0.5)
