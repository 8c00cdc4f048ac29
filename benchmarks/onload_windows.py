"""One window of calls under the clock, and what several of them say together: medians, spread, paired ratios."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

# t of Student's distribution, two-sided 95 %, by degrees of freedom
T_95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228}
BACK_TO_BACK, SYNCHRONIZE, READ = "back to back", "synchronize after each", "wait for each result"


def wait_for_result() -> None:
    """What reading the output waits for: the compute stream, and not the copies for the next call."""
    torch.cuda.current_stream().synchronize()


AFTER_EACH: dict[str, Callable[[], None] | None] = {
    BACK_TO_BACK: None,
    SYNCHRONIZE: lambda: torch.cuda.synchronize(),      # looked up at the call: the simulated device replaces it
    READ: wait_for_result,
}


class Program:
    """Something to call with an input; ``ring``: the Ring of a model of lesson 04, started over before each window."""

    def __init__(self, name: str, call: Callable[..., torch.Tensor], ring: Any = None, **more: Any):
        self.name, self.call, self.ring, self.more, self.copies = name, call, ring, more, 0
        if ring is not None:
            self.copy_in, ring.copy_in = ring.copy_in, self._counted

    def _counted(self, *args: Any) -> None:
        self.copies += 1
        self.copy_in(*args)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(x, **self.more)

    def start_over(self) -> None:
        """Wait for everything, then forget what was loaded ahead: the next call copies its first layer again."""
        torch.cuda.synchronize()
        self.copies = 0
        if self.ring is not None:
            self.ring.restart()
            if self.ring.begun != self.ring.done:
                ahead = self.ring.begun - self.ring.done
                raise RuntimeError(f"{self.name}: layers loaded before the clock starts: {ahead}")

    def check_copies(self, calls: int) -> None:
        """A window holds every copy that its calls need."""
        if self.ring is not None and self.copies < calls * self.ring.layers:
            raise RuntimeError(f"{self.name}: {self.copies} copies for {calls} calls of {self.ring.layers} layers")


@dataclass
class Window:
    """``ms`` per call, and of each call (``call_ms``, from the end of the one before); ``outputs`` of every call;
    ``copies`` queued by a ring; device memory ``segments`` allocated."""

    ms: float
    call_ms: list[float]
    outputs: list[torch.Tensor]
    copies: int
    segments: int


def measure(program: Program, inputs: Sequence[torch.Tensor], way: str, warm_up: int = 1) -> Window:
    """Time the calls on these inputs by events, from an idle device to the last output.

    ``warm_up`` calls run just before, so that the clocks are those of this program; then the program starts over, so
    that every copy that the window needs is in the window.
    """
    after_each = AFTER_EACH[way]
    for x in inputs[:warm_up]:
        program(x)
    program.start_over()
    start, *ends = (torch.cuda.Event(enable_timing=True) for _ in range(len(inputs) + 1))
    outputs, segments = [], segments_allocated()
    start.record()
    for x, end in zip(inputs, ends, strict=True):
        outputs.append(program(x))
        end.record()
        if after_each is not None:
            after_each()
    torch.cuda.synchronize()
    program.check_copies(len(inputs))
    call_ms = [before.elapsed_time(end) for before, end in itertools.pairwise([start, *ends])]
    return Window(start.elapsed_time(ends[-1]) / len(inputs), call_ms, outputs, program.copies,
                  segments_allocated() - segments)


def segments_allocated() -> int:
    """How often memory was taken from the device itself so far (0 where that is not counted)."""
    return torch.cuda.memory_stats().get("segment.all.allocated", 0)


def compare(outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> tuple[int, float]:
    """Number of calls whose output differs in any bit, and the largest relative difference (norm) among those."""
    worst, wrong = 0.0, 0
    for found, right in zip(outputs, expected, strict=False):
        if not torch.equal(found, right):
            wrong += 1
            off = torch.linalg.vector_norm(found.float() - right.float()) / torch.linalg.vector_norm(right.float())
            worst = max(worst, off.item())
    return wrong, worst


# ---- several windows

def summary(values: Sequence[float]) -> dict[str, Any]:
    """Median, and largest over smallest in percent above 1."""
    spread = 100 * (max(values) / min(values) - 1)
    return {"median": round(statistics.median(values), 4), "spread_percent": round(spread, 3),
            "all": [round(value, 4) for value in values]}


def ratio(upper: Sequence[float], lower: Sequence[float]) -> dict[str, Any]:
    """Mean of the ratios within each repeat, with its 95 % interval by Student's t; None for fewer than two repeats."""
    pairs = [a / b for a, b in zip(upper, lower, strict=True)]
    mean = statistics.fmean(pairs)
    if len(pairs) < 2:
        return {"mean": round(mean, 5), "interval": None, "repeats": 1}
    half = T_95[len(pairs) - 1] * statistics.stdev(pairs) / math.sqrt(len(pairs))
    return {"mean": round(mean, 5), "interval": [round(mean - half, 5), round(mean + half, 5)], "repeats": len(pairs)}


def upper_end(found: dict[str, Any]) -> float:
    """The larger end of the interval of a ratio; its mean where there is no interval."""
    return found["interval"][1] if found["interval"] else found["mean"]


def lower_end(found: dict[str, Any]) -> float:
    return found["interval"][0] if found["interval"] else found["mean"]
