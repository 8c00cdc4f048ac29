"""The program that recorded the ``*_serial_*``, ``*_double_buffer_*`` and ``*_pageable_*`` traces in this folder.

    python traces/record_onload.py h200 OUTPUT_FOLDER

A 24-layer MLP, 8192 wide, bfloat16, whose weights stay in pinned host memory. *Serial*: one buffer, each layer is
copied and then multiplied. *Double buffer*: two buffers and a copy stream, so layer i+1 is copied while layer i runs.

    copy stream     [copy 0][copy 1][copy 2] ...
    compute stream          [gemm 0][gemm 1] ...

*Pageable* is the double buffer again, with weights in ordinary host memory.

A copy waits until the last GEMM that read its buffer is done, also across calls; a GEMM waits for its copy.
Each trace holds two calls, back to back, after two calls of warm-up that it does not hold.
"""

from __future__ import annotations

import gzip
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

LAYERS, WIDTH, CALLS = 24, 8192, 2
DTYPE = torch.bfloat16


def host_weights() -> list[torch.Tensor]:
    """One pageable (WIDTH, WIDTH) matrix per layer, scaled so that activations keep their size."""
    return [torch.randn(WIDTH, WIDTH, dtype=DTYPE) / WIDTH**0.5 for _ in range(LAYERS)]


class Serial:
    """Copy a layer, multiply, copy the next into the same buffer: one stream, nothing overlaps."""

    def __init__(self, weights: list[torch.Tensor]) -> None:
        self.weights = weights
        self.buffer = torch.empty(WIDTH, WIDTH, dtype=DTYPE, device="cuda")

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            self.buffer.copy_(weight, non_blocking=True)
            x = x @ self.buffer
        return x


class DoubleBuffer:
    """Two buffers, a copy stream, and an event per buffer for each direction of waiting."""

    def __init__(self, weights: list[torch.Tensor]) -> None:
        self.weights = weights
        self.buffers = [torch.empty(WIDTH, WIDTH, dtype=DTYPE, device="cuda") for _ in range(2)]
        self.copy_stream = torch.cuda.Stream()
        self.filled = [torch.cuda.Event() for _ in range(2)]
        self.read = [torch.cuda.Event() for _ in range(2)]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        compute = torch.cuda.current_stream()
        self._fill(0)
        for layer in range(LAYERS):
            if layer + 1 < LAYERS:
                self._fill(layer + 1)
            slot = layer % 2
            compute.wait_event(self.filled[slot])
            x = x @ self.buffers[slot]
            self.read[slot].record(compute)
        return x

    def _fill(self, layer: int) -> None:
        slot = layer % 2
        with torch.cuda.stream(self.copy_stream):
            self.copy_stream.wait_event(self.read[slot])   # before its first record this waits for nothing
            self.buffers[slot].copy_(self.weights[layer], non_blocking=True)
            self.filled[slot].record(self.copy_stream)


def record(model: Callable[[torch.Tensor], torch.Tensor], batch: int, path: Path) -> None:
    """Profile CALLS calls and store the trace, without the paths of the machine that made it."""
    x = torch.randn(batch, WIDTH, dtype=DTYPE, device="cuda")
    for _ in range(2):
        model(x)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(CALLS):
            model(x)
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(raw))
        text = re.sub(rb',?\s*"traceName":\s*"[^"]*"', b"", raw.read_bytes())   # it names a file of this machine
    path.write_bytes(gzip.compress(text, compresslevel=9, mtime=0))


@torch.inference_mode()
def main(card: str, folder: Path) -> None:
    """Record every trace of this program."""
    torch.manual_seed(0)
    pageable = host_weights()
    pinned = [weight.pin_memory() for weight in pageable]
    for name, model, batch in (
        ("serial", Serial(pinned), 8192),
        ("double_buffer", DoubleBuffer(pinned), 4096),
        ("double_buffer", DoubleBuffer(pinned), 8192),
        ("double_buffer", DoubleBuffer(pinned), 16384),
        ("pageable", DoubleBuffer(pageable), 8192),
    ):
        path = folder / f"{card}_{name}_b{batch}.json.gz"
        record(model, batch, path)
        print(path.name, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
