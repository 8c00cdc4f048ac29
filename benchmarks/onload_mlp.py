"""Part of onload.py about the MLP: times and ratios by batch size, and copies and GEMMs beside each other."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.onload_programs import (
    ACCELERATE,
    COPIES,
    DTYPE,
    GROUP,
    GROUP_RECORD,
    PLAIN,
    PUBLISHED,
    RESIDENT,
    RING,
    RING_3,
    SERIAL,
    copies_alone,
    copy_of,
    mlp_makers,
)
from benchmarks.onload_windows import BACK_TO_BACK, READ, SYNCHRONIZE, Program, compare, measure, ratio, summary
from utils import simgpu

PER_SPAN = 8            # copies between two events, beside GEMMs
COMPANY_MS = 600        # how long copies and GEMMs run beside each other, at least; the first third does not count
HEAT_MS = 1000          # GEMMs before the windows whose ratios are taken, so that all start with the same clocks;
HEAT_LONG_MS = 3000     # and where GEMMs set the pace: after a rest a card runs faster for a second or two
NEAR = 0.9              # GEMMs that take this share of the copies or more matter as well


@dataclass(frozen=True)
class Task:
    """A window of one repeat: ``calls`` per window."""

    program: str
    way: str
    calls: int


def core(calls: int) -> list[Task]:
    """Windows of every repeat, one right after the other: what is judged, and what it is judged by.

    All that is compared to 0.5 % is equally long and takes turns, because clocks and link drift from second to second.
    """
    return [Task(COPIES, BACK_TO_BACK, calls), Task(RING, BACK_TO_BACK, calls), Task(RESIDENT, BACK_TO_BACK, calls),
            Task(RING, SYNCHRONIZE, calls), Task(RESIDENT, SYNCHRONIZE, max(2, calls // 2)), Task(RING, READ, calls),
            Task(GROUP_RECORD, BACK_TO_BACK, calls)]


def nearest(calls: int) -> list[Task]:
    """Windows right after the core: peers that wait in or after every call, so that few calls tell as much as many."""
    few = max(2, calls // 12)
    return [Task(GROUP, BACK_TO_BACK, few), Task(ACCELERATE, BACK_TO_BACK, few),
            *(Task(name, SYNCHRONIZE, few) for name in (GROUP, GROUP_RECORD))]


def others(calls: int) -> list[Task]:
    """The other windows of the first repeats."""
    few, some = max(2, calls // 12), max(2, calls // 4)
    return [
        Task(RING_3, BACK_TO_BACK, some), Task(PLAIN, BACK_TO_BACK, some), Task(PLAIN, SYNCHRONIZE, few),
        Task(SERIAL, BACK_TO_BACK, few), Task(PUBLISHED, BACK_TO_BACK, calls),
    ]


@dataclass
class Records:
    """What the windows of one program and way gave, one entry per repeat (``repeat`` says which)."""

    calls: int
    ms: dict[int, float] = field(default_factory=dict)
    median_call: dict[int, float] = field(default_factory=dict)
    wrong: list[int] = field(default_factory=list)
    error: float = 0.0
    copies: list[int] = field(default_factory=list)
    segments: int = 0


class Timing:
    """All programs on one batch size; ``repeat`` runs every window once, in rotated order."""

    def __init__(self, weights: list[torch.Tensor], programs: dict[str, Program], inputs: list[torch.Tensor]):
        self.weights, self.programs, self.inputs = weights, programs, inputs
        calls = len(inputs)
        self.core, self.nearest, self.others = ([task for task in tasks if task.program in programs]
                                                for tasks in (core(calls), nearest(calls), others(calls)))
        self.records: dict[tuple[str, str], Records] = {}
        self.company: list[tuple[float, float]] = []
        self.repeats = 0
        self.expected = [programs[RESIDENT](x) for x in inputs]
        copy, compute = (measure(programs[name], inputs[:3], BACK_TO_BACK).ms for name in (COPIES, RESIDENT))
        self.copy_first, self.keep_warm = copy >= compute, compute >= NEAR * copy

    def repeat(self, everything: bool) -> None:
        for program in self.programs.values():
            if program.ring is not None:
                program.ring.copy_first = self.copy_first
        self._reserve()
        core = rotated(self.core, self.repeats)
        if self.keep_warm:                      # a card rests during copies: no window may come right after them
            copies = next(task for task in core if task.program == COPIES)
            core.remove(copies)
            self._window(copies)
        self._heat(HEAT_LONG_MS if self.keep_warm else HEAT_MS)
        for task in core:
            self._window(task, warm_up=2)
        more = rotated(self.others, 3 * self.repeats) if everything else []
        for task in rotated(self.nearest, self.repeats) + more:
            self._window(task)
        if everything and not self.company:
            self.company.append(side_by_side(self.programs[RESIDENT], self.weights, self.inputs[0], self._alone()))
        self.repeats += 1

    def _heat(self, ms: float) -> None:
        start = time.monotonic()
        while simgpu.active() is None and time.monotonic() - start < ms / 1e3:
            self.programs[RESIDENT](self.inputs[0])
            torch.cuda.synchronize()

    def _reserve(self) -> None:
        """Have the allocator hold as many activations as a window keeps, so that none is allocated under the clock."""
        torch.cuda.synchronize()
        held = [torch.empty_like(self.inputs[0]) for _ in range(len(self.inputs) + 3)]
        del held

    def _window(self, task: Task, warm_up: int = 1) -> None:
        inputs = self.inputs[:task.calls]
        found = measure(self.programs[task.program], inputs, task.way, warm_up)
        record = self.records.setdefault((task.program, task.way), Records(len(inputs)))
        wrong, error = compare(found.outputs, inputs if task.program == COPIES else self.expected)
        record.ms[self.repeats] = found.ms
        record.median_call[self.repeats] = statistics.median(found.call_ms)
        record.wrong.append(wrong)
        record.error = max(record.error, error)
        record.copies.append(found.copies)
        record.segments += found.segments

    def _alone(self) -> tuple[float, float]:
        """(copy, compute) per call in ms, alone."""
        return tuple(self.records[name, BACK_TO_BACK].ms[self.repeats] for name in (COPIES, RESIDENT))

    # ---- what it says

    def result(self) -> dict[str, Any]:
        rows: dict[str, Any] = defaultdict(dict)
        for (program, way), record in self.records.items():
            rows[program][way] = self._row(program, way, record)
        return {"batch": self.inputs[0].shape[0], "repeats": self.repeats, "copy_first": self.copy_first,
                "beside_each_other": company(self.company), "programs": rows}

    def _row(self, program: str, way: str, record: Records) -> dict[str, Any]:
        row = {"calls": record.calls, "ms": summary(list(record.ms.values())), "wrong_calls": record.wrong,
               "segments_allocated": record.segments,
               "median_call": {"ms": summary(list(record.median_call.values()))}}
        if record.error:
            row["largest_relative_error"] = round(record.error, 4)
        if any(record.copies):
            row["copies_in_window"] = record.copies
        if program in (RING, RING_3, PLAIN):
            row |= self._ratios(way, record, "ms")
            row["median_call"] |= self._ratios(way, record, "median_call")
        return row

    def _ratios(self, way: str, record: Records, what: str) -> dict[str, Any]:
        """Ratios of whole windows (``what``: "ms") or of the median calls of windows."""
        ours = getattr(record, what)
        copy, compute = (getattr(self.records[name, BACK_TO_BACK], what) for name in (COPIES, RESIDENT))
        bound = {n: max(copy[n], compute[n]) for n in copy}
        found = {"over_bound": paired(ours, bound), "resident_over_this": paired(compute, ours)}
        if way == SYNCHRONIZE:
            found["resident_in_this_way_over_this"] = paired(getattr(self.records[RESIDENT, way], what), ours)
        for peer in (GROUP, GROUP_RECORD, ACCELERATE):
            against = self.records.get((peer, way)) or self.records.get((peer, BACK_TO_BACK))
            if against is not None:
                found[f"over {peer}"] = paired(ours, getattr(against, what))
        return found


def paired(upper: dict[int, float], lower: dict[int, float]) -> dict[str, Any]:
    """The ratio over the repeats that both have."""
    common = sorted(set(upper) & set(lower))
    return ratio([upper[n] for n in common], [lower[n] for n in common])


def rotated(tasks: list[Task], by: int) -> list[Task]:
    turn = by % max(1, len(tasks))
    return tasks[turn:] + tasks[:turn]


# ---- copies and GEMMs beside each other, unrelated

def side_by_side(resident: Program, weights: Sequence[torch.Tensor], x: torch.Tensor,
                 alone: tuple[float, float]) -> tuple[float, float]:
    """(copies, GEMMs) of one call in ms, while both run and neither waits for the other; ``alone``: the same alone."""
    copy_ms, compute_ms = alone
    calls = max(3, math.ceil(COMPANY_MS / compute_ms))
    spans = math.ceil(1.2 * calls * compute_ms / copy_ms * len(weights) / PER_SPAN)
    buffers, link = [torch.empty_like(weights[0], device="cuda") for _ in range(2)], torch.cuda.Stream()
    torch.cuda.synchronize()
    copied, computed = [], []
    with torch.cuda.stream(link):
        for span in range(spans):
            copied.append(mark())
            for n in range(span * PER_SPAN, (span + 1) * PER_SPAN):
                buffers[n % 2].copy_(weights[n % len(weights)], non_blocking=True)
        copied.append(mark())
    for _ in range(calls):
        computed.append(mark())
        resident(x)
    computed.append(mark())
    torch.cuda.synchronize()
    return len(weights) / PER_SPAN * mean(within(copied, computed)), mean(within(computed, copied))


def mark() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def within(events: Sequence[Any], other: Sequence[Any]) -> list[float]:
    """Milliseconds between neighbouring events, for pairs that lie in the last two thirds of the span of others."""
    times = [events[0].elapsed_time(event) for event in events]
    start, stop = (events[0].elapsed_time(event) for event in (other[0], other[-1]))
    start += (stop - start) / 3
    return [b - a for a, b in itertools.pairwise(times) if start <= a and b <= stop]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def company(found: Sequence[tuple[float, float]]) -> dict[str, Any]:
    if not found:
        return {}
    copies, computes = zip(*found, strict=True)
    return {"copy_ms": summary(copies), "compute_ms": summary(computes)}


# ---- all batch sizes

def time_batches(weights: list[torch.Tensor], batches: Sequence[int], repeats: Sequence[int], full: int,
                 calls: Sequence[int], stop_at_s: float, save: Callable[[list[Any]], None]) -> list[dict[str, Any]]:
    """Repeats in rounds over the batch sizes, until the time is up.

    Batch size n has ``repeats[n]`` of them with ``calls[n]`` calls per window; the first ``full`` have every program.
    """
    width = weights[0].shape[0]
    largest = [torch.randn(max(batches), width, dtype=DTYPE, device="cuda") for _ in range(max(calls))]
    programs = {name: make() for name, make in mlp_makers(weights).items()}
    buffers = [torch.empty_like(weights[0], device="cuda") for _ in range(2)]
    programs[COPIES] = copies_alone([copy_of(weight) for weight in weights], buffers)
    for program in programs.values():
        for _ in range(2):                      # diffusers learns the order of the layers in its first call
            program(largest[0][:min(batches)])
    timings = [Timing(weights, programs, [x[:batch] for x in largest[:count]])
               for batch, count in zip(batches, calls, strict=True)]
    for number in range(max(repeats)):
        for timing, wanted in zip(timings, repeats, strict=True):
            if number < wanted and time.monotonic() < stop_at_s:
                timing.repeat(everything=number < full)
        save([timing.result() for timing in timings if timing.repeats])
    return [timing.result() for timing in timings if timing.repeats]
