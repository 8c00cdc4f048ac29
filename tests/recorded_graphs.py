"""Lesson 10's module, the recordings and their graphs, simulated and handmade traces."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

from utils import simgpu
from utils.lessons import import_lesson
from utils.trace import Trace

ROOT = Path(__file__).resolve().parents[1]
lesson, onload = import_lesson("10_real_systems"), import_lesson("04_double_buffered_onload")
RECORDED = sorted(path.name.removesuffix(".json.gz") for path in (ROOT / "traces").glob("*.json.gz"))
BUFFERS = {rows: f"h200_double_buffer_b{rows}" for rows in (4096, 8192, 16384)}


@cache
def trace_of(name):
    return Trace.load(ROOT / "traces" / f"{name}.json.gz")


@cache
def graph_of(name):
    return lesson.graph_of(trace_of(name))


def length(trace):
    return trace.stop_us - trace.start_us


def simulated(tokens, slots, gpu=simgpu.H200, layers=8):
    """(trace, true graph) of two calls of a ring on the simulated device."""
    with simgpu.session(gpu, numerics="shapes") as device, torch.inference_mode():
        weights = [torch.empty(8192, 8192, dtype=torch.bfloat16, pin_memory=True)] * layers
        model = onload.RingMLP(weights, slots)
        x = torch.empty(tokens, 8192, dtype=torch.bfloat16, device="cuda")
        for _ in range(2):
            model(x)
        torch.cuda.synchronize()
        return device.trace(), device.graph()


def ring_of(graph, slots=2):
    return lesson.long_ones(graph, "h2d"), lesson.long_ones(graph, "kernel"), slots


def call(start, end, number=-1, name="launch"):
    return name, "host", -1, start, end - start, number


def span(kind, stream, start, end, number):
    return kind, kind, stream, start, end - start, number


def handmade(*rows):
    names = ("name", "kind", "stream", "start_us", "duration_us", "correlation")
    return Trace.from_columns(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
