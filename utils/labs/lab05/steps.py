"""Decode steps some of whose layers have their KV in host memory: run them on the simulated device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..defaults import usual_defaults
from ..device import one_thread

if TYPE_CHECKING:
    from ...simgpu import Profile
    from ...trace import Trace

MIB = 2**20
SLOTS = 2
BUFFERS = 2               # for new KV, each free again when its store is done
STEPS, STEADY = 12, 4     # steps that are run, and how many of them count: all but the last, behind which nothing loads
SHOWN = slice(3, 6, 2)    # of the ends of steps: between these lies what is drawn, and the run goes on behind it
SMALLER = 2**14           # by which bytes and rates are divided: the times are the same


@dataclass(frozen=True)
class Job:
    """Steps of ``layers`` layers of ``layer_us`` µs. Each reads ``kv_bytes`` of KV and writes ``new_bytes`` in a step.

    ``gpu_bytes``, ``host_bytes``: memory for KV. Rates in bytes/s, of either direction alone; while both run, each has
    ``duplex_share`` of its own.
    """

    layers: int
    layer_us: int
    kv_bytes: int
    new_bytes: int
    gpu_bytes: int
    host_bytes: int
    h2d_bytes_per_s: float
    d2h_bytes_per_s: float
    duplex_share: float

    def __str__(self) -> str:
        gpu, host, kv, new = map(_size, (self.gpu_bytes, self.host_bytes, self.kv_bytes, self.new_bytes))
        rates = f"{self.h2d_bytes_per_s / 1e9:g} and {self.d2h_bytes_per_s / 1e9:g} GB/s"
        return (f"{self.layers} layers of {self.layer_us} µs, KV {kv} and {new} new, GPU {gpu}, host {host}, "
                f"{rates}, duplex share {self.duplex_share:g}")

    @property
    def compute_us(self) -> float:
        """All layers."""
        return self.layers * self.layer_us

    @property
    def most_resident(self) -> int:
        """Layers that fit on the GPU, beside the slots if any is streamed; below 0 when not even the slots fit."""
        room = self.gpu_bytes // self.kv_bytes
        return self.layers if room >= self.layers else room - SLOTS

    @property
    def possible(self) -> bool:
        """Whether GPU and host have room for it."""
        return self.most_resident >= 0 and (self.layers - self.most_resident) * self.kv_bytes <= self.host_bytes

    def copies_us(self, streamed: int) -> tuple[float, float]:
        """Loads and stores of a step, each direction alone."""
        return (streamed * self.kv_bytes / self.h2d_bytes_per_s * 1e6,
                streamed * self.new_bytes / self.d2h_bytes_per_s * 1e6)

    def bound_us(self, streamed: int) -> float:
        """The steady bound of a step: the layers, or the copies with the shorter direction under the longer one."""
        short, long = sorted(self.copies_us(streamed))
        return max(self.compute_us, long - short + short / self.duplex_share)


@dataclass(frozen=True)
class Steady:
    """The steady time of a step, the trace with copies and layers by the layers' numbers, two steps in it, and how
    long the GPU and the link were idle in a step."""

    step_us: float
    trace: Trace
    window: tuple[float, float]
    gpu_idle_us: float
    link_idle_us: float


def _size(size: int) -> str:
    return f"{size / MIB:g} MiB" if size < 2 << 30 else f"{size / (1 << 30):g} GiB"


def spread(job: Job, resident: int) -> tuple[int, ...]:
    """So many resident layers, between streamed ones that lie evenly apart."""
    count = job.layers - resident
    streamed = {i * job.layers // count for i in range(count)}
    return tuple(i for i in range(job.layers) if i not in streamed)


@lru_cache(maxsize=128)
@usual_defaults()
def steady(job: Job, resident: tuple[int, ...]) -> Steady:
    """Run some steps with these layers resident."""
    from ... import simgpu

    with one_thread(), simgpu.session(_profile(job), numerics="shapes") as gpu:
        _run(job, set(range(job.layers)) - set(resident))
        trace = gpu.trace()
    table = trace.columns
    ends = sorted(start + took for start, took, kind in
                  zip(table["start_us"], table["duration_us"], table["kind"], strict=True) if kind == "kernel")
    ends = ends[job.layers - 1::job.layers]   # of each step
    start, stop = float(ends[-STEADY - 2]), float(ends[-2])
    idle = [(stop - start - trace.busy_us(kind, start=start, stop=stop)) / STEADY for kind in ("kernel", "h2d")]
    numbered = _numbered(trace, job, sorted(set(range(job.layers)) - set(resident)))
    return Steady((stop - start) / STEADY, numbered, tuple(map(float, ends[SHOWN])), *idle)


def _profile(job: Job) -> Profile:
    """A device with these rates whose launches and latencies take next to no time."""
    from ... import simgpu

    return replace(simgpu.H200, h2d_bytes_per_s=job.h2d_bytes_per_s / SMALLER,
                   d2h_bytes_per_s=job.d2h_bytes_per_s / SMALLER, duplex_share=job.duplex_share, copy_engines=2,
                   copy_latency_ns=0, kernel_latency_ns=0, launch_ns=100, event_ns=100)


def _run(job: Job, streamed: set[int]) -> None:
    import torch

    def memory(size: int, **where: Any) -> Any:
        return torch.empty(size // SMALLER, dtype=torch.uint8, **where)

    here, loading, storing = torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()
    slots = [memory(job.kv_bytes, device="cuda") for _ in range(SLOTS)]
    buffers = [memory(job.new_bytes, device="cuda") for _ in range(BUFFERS)]
    kv, kept = memory(job.kv_bytes).pin_memory(), memory(job.new_bytes).pin_memory()
    read, stored = ([torch.cuda.Event() for _ in range(many)] for many in (SLOTS, BUFFERS))
    count = 0
    for number in list(range(job.layers)) * STEPS:
        slot, new = count % SLOTS, count % BUFFERS
        if number in streamed:
            with torch.cuda.stream(loading):
                loading.wait_event(read[slot])
                slots[slot].copy_(kv, non_blocking=True)
            here.wait_stream(loading)
            here.wait_event(stored[new])
        torch.cuda._sleep(job.layer_us * 1000)
        if number in streamed:
            count += 1
            read[slot].record()
            storing.wait_stream(here)
            with torch.cuda.stream(storing):
                kept.copy_(buffers[new], non_blocking=True)
                stored[new].record()
    torch.cuda.synchronize()


def _numbered(trace: Trace, job: Job, streamed: list[int]) -> Trace:
    """The trace of the device alone, with layers and copies by the layers' numbers."""
    from ...trace import Trace

    table = trace.columns
    rows = sorted((row for row, lane in enumerate(table["lane"]) if lane in ("h2d", "compute", "d2h")),
                  key=lambda row: table["start_us"][row])
    columns = {name: [values[row] for row in rows] for name, values in table.items()}
    for kind, layers in (("kernel", list(range(job.layers))), ("h2d", streamed), ("d2h", streamed)):
        for place, row in enumerate(row for row, what in enumerate(columns["kind"]) if what == kind):
            columns["name"][row] = str(layers[place % len(layers)])
    return Trace.from_columns(columns)


def ranges(numbers: Sequence[int]) -> str:
    """Numbers in words, neighbours together: "0-3, 6"."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts) or "none"
