"""Parts of onload.py that hold without a clock: memory by program, and bit-equality over many calls."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from benchmarks.onload_programs import (
    DTYPE,
    PLAIN,
    PUBLISHED,
    RESIDENT,
    RING,
    RING_3,
    STREAMED,
    Product,
    mlp_makers,
    onload,
    random_weights,
    ring_mlp,
    serial,
    streamed,
)
from benchmarks.onload_windows import BACK_TO_BACK, Program, compare, measure
from utils import simgpu

MEMORY_CALLS = 4


def memory(weights: list[torch.Tensor], batch: int) -> dict[str, Any]:
    """By program: GPU bytes at rest and at the peak of calls back to back, beyond activations; allocations per call."""
    x = torch.randn(batch, weights[0].shape[0], dtype=DTYPE, device="cuda")
    makers = mlp_makers(weights) | {STREAMED: lambda: streamed([Product(weight) for weight in weights])}
    x @ torch.empty_like(weights[0], device="cuda")             # the workspace of matrix products is there from now on
    found = {name: bytes_of(make, x) for name, make in makers.items()}
    activations = found[RESIDENT]["peak_bytes"] - found[RESIDENT]["held_bytes"]
    for row in found.values():
        row["peak_beyond_activations_bytes"] = row["peak_bytes"] - activations
        row["peak_beyond_activations_layers"] = round(row["peak_beyond_activations_bytes"] / weights[0].nbytes, 3)
    return {"batch": batch, "activation_bytes": activations, "programs": found}


def bytes_of(make: Callable[[], Program], x: torch.Tensor) -> dict[str, Any]:
    torch.cuda.synchronize()
    gc.collect()                                                # programs before this one, which refer to themselves
    before = torch.cuda.memory_allocated()
    program = make()
    for _ in range(3):
        program(x)
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated() - before
    torch.cuda.reset_peak_memory_stats()
    counted = counters()
    for _ in range(MEMORY_CALLS):
        program(x)
    torch.cuda.synchronize()
    per_call = {name: (value - counted[name]) / MEMORY_CALLS for name, value in counters().items()}
    return {"held_bytes": held, "peak_bytes": torch.cuda.max_memory_allocated() - before, "per_call": per_call,
            "host_us_per_call": round(host_us(program, x), 1)}


def host_us(program: Program, x: torch.Tensor) -> float:
    """Median time that a call holds the host, the device idle before it."""
    clock_us = simgpu.clock if simgpu.active() is not None else lambda: time.perf_counter() * 1e6
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = clock_us()
        program(x)
        times.append(clock_us() - start)
    return statistics.median(times)


def counters() -> dict[str, int]:
    """Allocations so far: tensors, their bytes, and pieces of memory taken from the device."""
    stats = torch.cuda.memory_stats()
    names = {"tensors": "allocation.all.allocated", "bytes": "allocated_bytes.all.allocated",
             "segments": "segment.all.allocated"}
    return {short: stats[name] for short, name in names.items() if name in stats}


def equality(batches: Sequence[int], layers: Sequence[int], calls: int, width: int) -> list[dict[str, Any]]:
    """Wrong calls out of ``calls`` back to back, by program, number of layers and batch size."""
    weights = random_weights(max(layers), width)
    rows = []
    for batch in batches:
        inputs = [torch.randn(batch, width, dtype=DTYPE, device="cuda") for _ in range(calls)]
        for count in layers:
            some = weights[:count]
            resident = serial.ResidentMLP(some)
            expected = [resident(x) for x in inputs]
            for program in models(some):
                found = measure(program, inputs, BACK_TO_BACK, warm_up=0)
                wrong, error = compare(found.outputs, expected)
                rows.append({"program": program.name, "layers": count, "batch": batch, "calls": calls,
                             "wrong_calls": wrong, "largest_relative_error": round(error, 4)})
    return rows


def models(weights: list[torch.Tensor]) -> Iterator[Program]:
    """The models of lesson 04, one after the other."""
    yield ring_mlp(PLAIN, weights, 2, False)
    yield ring_mlp(RING, weights, 2, True)
    yield ring_mlp(RING_3, weights, 3, True)
    yield streamed([Product(weight) for weight in weights])
    yield Program(PUBLISHED, onload.PublishedMLP(weights))
