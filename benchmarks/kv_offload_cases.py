"""Cases of kv_offload.py: one model and chunk size each, programs in turn, and what their times say."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from benchmarks.kv_offload_link import Link
from benchmarks.kv_offload_steps import (
    COLD_STEPS,
    DECODE,
    DTYPE,
    PREFILL,
    RESIDENT,
    SERIAL,
    STREAMED,
    WITHIN,
    Played,
    Shape,
    differences,
    lesson,
    on_one_stream,
    plan,
    play,
    requested_bytes,
    start_over,
    steady,
)
from benchmarks.onload_mlp import rotated
from benchmarks.onload_windows import ratio, summary
from utils import simgpu

HEAT_MS = 300                   # resident steps before the windows of a repeat


class Case:
    """A decoder with one chunk size: the resident cache, the streamed one, and the same on one stream."""

    def __init__(self, shape: Shape, model: torch.nn.Module, ids: torch.Tensor, chunk: int, decode: int):
        self.shape, self.model, self.ids, self.chunk = shape, model, ids, chunk
        self.steps, rows = plan(len(ids), chunk, decode), len(ids) + decode
        self.budget_bytes = shape.budget(rows, chunk)
        self.resident = lesson.ResidentKV(shape.layers, (rows, *shape.row_shape), DTYPE)
        before = requested_bytes()
        self.cache = lesson.StreamedKV(shape.layers, (rows, *shape.row_shape), self.budget_bytes, DTYPE)
        self.cache_bytes = requested_bytes() - before
        self.links: list[Link] = []
        self.ms: dict[str, list[list[float]]] = defaultdict(list)
        self.host_ms: dict[str, list[list[float]]] = defaultdict(list)
        self.extra_bytes: dict[str, int] = defaultdict(int)
        self.wrong: dict[str, list[dict[str, int]]] = defaultdict(list)
        self.expected = self.play(RESIDENT)

    def play(self, program: str) -> Played:
        cache = self.resident if program == RESIDENT else self.cache
        with on_one_stream(cache) if program == SERIAL else nullcontext():
            return play(self.model, cache, self.ids, self.steps)

    def warm_up(self, times: int) -> None:
        for program in times * (RESIDENT, STREAMED):
            self.play(program)

    def repeat(self, link: Link, everything: bool) -> None:
        """One window of each program, the order rotated from repeat to repeat."""
        programs = [RESIDENT, STREAMED]
        self.heat()
        for program in rotated(programs, len(self.links)) + [SERIAL] * everything:
            self.record(program, self.play(program))
        self.links.append(link)

    def heat(self) -> None:
        """So that the first window finds the same clocks as the second."""
        begun = time.monotonic()
        while simgpu.active() is None and time.monotonic() - begun < HEAT_MS / 1e3:
            start_over(self.resident)
            for step in self.steps[:COLD_STEPS]:
                self.model(self.ids[:step.tokens], self.resident)

    def record(self, program: str, played: Played) -> None:
        self.ms[program].append(played.step_ms)
        self.host_ms[program].append(played.host_ms)
        self.extra_bytes[program] = max(self.extra_bytes[program], played.extra_bytes)
        self.wrong[program].append(differences(played, self.expected, self.steps))

    # ---- what it says

    def result(self) -> dict[str, Any]:
        """Times of all repeats, ratios over the steady steps, memory and equality."""
        working = self.extra_bytes[RESIDENT]
        return {
            "shape": self.shape.name, "layers": self.shape.layers, "chunk": self.chunk, "tokens": len(self.ids),
            "repeats": len(self.links), "budget_bytes": self.budget_bytes, "cache_bytes": self.cache_bytes,
            "resident_bytes": sum(rows.nbytes for rows in self.resident.rows),
            "peak_bytes": self.cache_bytes + self.extra_bytes[STREAMED] - working, "working_bytes": working,
            "steps": [self.of_step(n) for n in range(len(self.steps))],
            PREFILL: self.of_steps(steady(self.steps, PREFILL)), DECODE: self.of_steps(steady(self.steps, DECODE)),
            "wrong": dict(self.wrong)}

    def of_step(self, n: int) -> dict[str, Any]:
        step, moved = self.steps[n], self.steps[n].bytes(self.shape)
        row = {"kind": step.kind, "at": step.at, "tokens": step.tokens, **moved}
        row |= {f"{program}_ms": median(times[n] for times in self.ms[program]) for program in self.ms}
        return row | {"transfer_ms": median(self.transfer(link, [n]) for link in self.links),
                      "device_ms": median(moved["device_bytes"] / link.device_rate for link in self.links),
                      "bound_ms": median(self.bounds([n]))}

    def of_steps(self, which: Sequence[int]) -> dict[str, Any]:
        """Sums over steps, by repeat; a ratio is taken within each pair of repeats, one in each order."""
        if not which:
            return {}
        sums = {program: [sum(times[n] for n in which) for times in self.ms[program]] for program in self.ms}
        sums["transfer"] = [self.transfer(link, which) for link in self.links]
        sums["bound"] = self.bounds(which)
        sums[WITHIN] = [sum(self.steps[n].bytes(self.shape)["device_bytes"] for n in which) / link.device_rate
                        for link in self.links]
        found = {"steps": len(which), "ms_per_step": {
            name: summary([value / len(which) for value in values]) for name, values in sums.items()}}
        found["host_ms"] = {program: summary([median(times[n] for n in which) for times in repeats])
                            for program, repeats in self.host_ms.items()}
        full = len(sums.get(SERIAL, ()))
        streamed, bound, resident = (in_pairs(sums[name]) for name in (STREAMED, "bound", RESIDENT))
        return found | {"over_bound": ratio(streamed, bound), "over_resident": ratio(streamed, resident),
                        "serial_over_bound": ratio(sums[SERIAL], sums["bound"][:full]) if full else None}

    def transfer(self, link: Link, which: Sequence[int]) -> float:
        moved = [self.steps[n].bytes(self.shape) for n in which]
        return sum(link.transfer_ms(each["in_bytes"], each["out_bytes"]) for each in moved)

    def bounds(self, which: Sequence[int]) -> list[float]:
        """By repeat: for each step the resident one's time, or that of its copies at the rates of this repeat."""
        return [sum(max(times[n], self.transfer(link, [n])) for n in which)
                for times, link in zip(self.ms[RESIDENT], self.links, strict=True)]


def in_pairs(values: Sequence[float]) -> list[float]:
    """Sums over neighbours, in which either program came first once; as they are where that leaves fewer than two."""
    if len(values) < 4 or len(values) % 2:
        return list(values)
    return [a + b for a, b in zip(values[::2], values[1::2], strict=True)]


def median(values: Any) -> float:
    return round(statistics.median(values), 4)


def run_case(case: Case, measure_link: Callable[[], Link], warm_ups: int, repeats: int, full: int) -> dict[str, Any]:
    """Warm-ups, then repeats, the first ``full`` of them with the serial program."""
    case.warm_up(warm_ups)
    for n in range(repeats):
        case.repeat(measure_link(), everything=n < full)
    return case.result() | {"link": [link.summary() for link in case.links]}
