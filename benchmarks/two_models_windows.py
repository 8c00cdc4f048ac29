"""Windows of two_models.py: one schedule on one way under the clock, and what several of them say."""

from __future__ import annotations

import gc
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.onload_mlp import mark
from benchmarks.onload_windows import T_95, summary
from benchmarks.two_models_ways import RESIDENT, makers
from benchmarks.two_models_weights import DTYPE, Host, lesson

SCHEDULE = (0, 0, 1, 1)


@dataclass
class Window:
    """``waited_ms``: how long the compute stream waited for copies (None where that is not marked)."""

    ms: float
    waited_ms: float | None
    y: torch.Tensor             # in host memory
    peak_bytes: int
    bytes_back: int


def window(way: Any, x: torch.Tensor, times: Sequence[torch.Tensor]) -> Window:
    """The whole schedule, from an idle device with model 0 on it, after one step of that for the clocks."""
    way.step(x, (times[0],), SCHEDULE[0])
    torch.cuda.synchronize()
    way.start_over()
    torch.cuda.reset_peak_memory_stats()
    back, start = way.bytes_back, mark()
    y = lesson.denoise(way, x, times, SCHEDULE, way.ahead)
    end = mark()
    torch.cuda.synchronize()
    waited = None if way.waits is None else sum(a.elapsed_time(b) for a, b in way.waits)
    return Window(start.elapsed_time(end), waited, y.cpu(), torch.cuda.max_memory_allocated(), way.bytes_back - back)


def give_back() -> None:
    """Let memory of what is gone go back to the device."""
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()


class Case:
    """One number of tokens: all ways in turn, each made for its window and gone after it."""

    def __init__(self, host: Host, budget: int, tokens: int):
        self.host, self.budget, self.tokens = host, budget, tokens
        self.makers = makers(host, budget)
        width = host.sizes.width
        self.x = torch.randn(1, tokens, width, dtype=DTYPE, device="cuda")
        self.times = [torch.randn(6, width, dtype=DTYPE, device="cuda") / 4 for _ in SCHEDULE]
        self.found: dict[str, dict[int, Window]] = defaultdict(dict)
        self.held: dict[str, int] = {}
        self.expected: torch.Tensor | None = None
        self.working = 0
        self.wrong: dict[str, list[int]] = defaultdict(list)

    def repeat(self, n: int, names: Sequence[str]) -> None:
        """A window of each; the first one of all is that of the resident models, which says what is right."""
        for name in names:
            if name in self.makers:
                self.play(n, name)

    def play(self, n: int, name: str) -> None:
        give_back()
        before = torch.cuda.memory_allocated()
        way = self.makers[name](self.working)
        self.held[name] = torch.cuda.memory_allocated() - before
        found = window(way, self.x, self.times)
        way.close()
        if self.expected is None:
            self.expected, self.working = found.y, found.peak_bytes - self.held[RESIDENT]
            if not torch.isfinite(found.y).all():
                raise RuntimeError(f"{self.tokens} tokens: the result has numbers that are not finite")
        self.wrong[name].append(int(not torch.equal(found.y, self.expected)))
        found.y = None
        self.found[name][n] = found

    # ---- what it says

    def result(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "working_bytes": self.working, "budget_bytes": self.budget,
                "ways": {name: self.of_way(name) for name in self.found}}

    def of_way(self, name: str) -> dict[str, Any]:
        """Total, exposed (over the resident models in the same repeat) and waited ms; memory; bytes back; equality."""
        windows, right = self.found[name], self.found[RESIDENT]
        waited = [each.waited_ms for each in windows.values() if each.waited_ms is not None]
        row = {"ms": summary([each.ms for each in windows.values()]), "wrong": self.wrong[name],
               "held_bytes": self.held[name], "peak_bytes": max(each.peak_bytes for each in windows.values()),
               "bytes_back": max(each.bytes_back for each in windows.values()),
               "waited_ms": summary_of_small(waited) if waited else None}
        common = sorted(windows.keys() & right.keys())
        return row | {"exposed_ms": average([windows[n].ms - right[n].ms for n in common])}


def summary_of_small(values: Sequence[float]) -> dict[str, Any]:
    """As summary, without a quotient: these may be zero."""
    return {"median": round(statistics.median(values), 4), "all": [round(value, 4) for value in values]}


def average(values: Sequence[float]) -> dict[str, Any]:
    """Mean with its 95 % interval by Student's t; None for fewer than two values."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return {"mean": round(mean, 4), "interval": None, "repeats": len(values)}
    half = T_95[len(values) - 1] * statistics.stdev(values) / math.sqrt(len(values))
    return {"mean": round(mean, 4), "interval": [round(mean - half, 4), round(mean + half, 4)], "repeats": len(values)}
