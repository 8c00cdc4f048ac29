"""Predicted against measured time of layer pipelines: the simulated device, fed with operations measured on a real one.

    python benchmarks/simgpu_predict.py --output FILE     on a CUDA machine; --layers, --width, --batches to change

One GEMM and one copy are timed with events in a calibration program (8 layers over and over, ring of 4 slots or
serial, so the clocks see the same duty cycle), and alone. The pipelines below are run on the device and, as the same
functions, on the simulated one with those times. Calibration and measurement alternate in several rounds, and medians
are compared; per pipeline and batch size the result gives milliseconds per call and the error of both predictions in
percent.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from utils import simgpu

CALLS, WARM_UP_S, ROUNDS = 5, 0.7, 3
CALIBRATION_LAYERS, CALIBRATION_SLOTS = 8, 4
CALIBRATION_STEPS = 120  # as many as the longest pipeline runs without a pause: GEMMs in a long queue run slower
NS = 1_000_000_000


class Pipeline:
    """Layers y = x @ w, weights streamed from pinned memory through ``slots`` buffers; 1 slot is the serial program."""

    def __init__(self, weights: list[torch.Tensor], batch: int, slots: int, *, timed: bool = False):
        width = weights[0].shape[0]
        self.weights, self.count, self.timed = weights, slots, timed
        self.slots = [torch.empty(width, width, dtype=torch.bfloat16, device="cuda") for _ in range(slots)]
        self.xs = [torch.randn(batch, width, dtype=torch.bfloat16, device="cuda") for _ in range(2)]  # not zeros: power
        self.loaded, self.free = ([torch.cuda.Event() for _ in range(slots)] for _ in range(2))
        self.onload = torch.cuda.Stream() if slots > 1 else torch.cuda.current_stream()
        self.onload.wait_stream(torch.cuda.current_stream())
        self.copies: list[tuple[Any, Any]] = []
        self.gemms: list[tuple[Any, Any]] = []

    def run(self, steps: int) -> None:
        """``steps`` layers, the weights over and over; copies run ahead as far as there are slots."""
        ahead = self.count - 1
        for step in range(min(ahead, steps)):
            self._load(step)
        for step in range(steps):
            if step + ahead < steps:
                self._load(step + ahead)
            self._compute(step)

    def _load(self, step: int) -> None:
        slot = step % self.count
        with torch.cuda.stream(self.onload):
            self.onload.wait_event(self.free[slot])
            with self._span(self.copies):
                self.slots[slot].copy_(self.weights[step % len(self.weights)], non_blocking=True)
            self.loaded[slot].record()

    def _compute(self, step: int) -> None:
        slot = step % self.count
        torch.cuda.current_stream().wait_event(self.loaded[slot])
        with self._span(self.gemms):
            torch.mm(self.xs[step % 2], self.slots[slot], out=self.xs[1 - step % 2])
        self.free[slot].record()

    def _span(self, spans: list[tuple[Any, Any]]) -> Any:
        return Span(spans if self.timed else None)


class Span:
    """A pair of timing events around a block (none when ``spans`` is None)."""

    def __init__(self, spans: list[tuple[Any, Any]] | None):
        self.spans = spans

    def __enter__(self) -> None:
        if self.spans is not None:
            self.spans.append(tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)))
            self.spans[-1][0].record()

    def __exit__(self, *error: Any) -> None:
        if self.spans is not None:
            self.spans[-1][1].record()


def median_ms(spans: list[tuple[Any, Any]]) -> float:
    return statistics.median(start.elapsed_time(end) for start, end in spans)


def warm_up(call: Callable[[], None]) -> None:
    """Until the clocks have settled; the simulated device has no clocks, there once is enough."""
    start = time.perf_counter()
    while True:
        call()
        torch.cuda.synchronize()
        if simgpu.active() is not None or time.perf_counter() - start > WARM_UP_S:
            return


def calibrate(weights: list[torch.Tensor], batch: int, slots: int) -> tuple[float, float]:
    """(copy, GEMM) in ms inside the calibration program."""
    program = Pipeline(weights[:CALIBRATION_LAYERS], batch, slots, timed=True)
    warm_up(lambda: program.run(CALIBRATION_STEPS))
    program.copies.clear()
    program.gemms.clear()
    program.run(CALIBRATION_STEPS)
    torch.cuda.synchronize()
    middle = slice(CALIBRATION_SLOTS, -CALIBRATION_SLOTS)
    return median_ms(program.copies[middle]), median_ms(program.gemms[middle])


def isolated_ms(weights: list[torch.Tensor], batch: int) -> float:
    """The GEMM alone, back to back."""
    x = torch.randn(batch, weights[0].shape[0], dtype=torch.bfloat16, device="cuda")
    w, spans = weights[0].to("cuda"), []
    y = torch.empty_like(x)
    for _ in range(20):
        with Span(spans):
            torch.mm(x, w, out=y)
    torch.cuda.synchronize()
    return median_ms(spans[5:])


def per_call_ms(clock_us: Callable[[], float], call: Callable[[], None]) -> float:
    """Median of several calls, each with a synchronisation after it."""
    times = []
    warm_up(call)
    for _ in range(CALLS):
        torch.cuda.synchronize()
        start = clock_us()
        call()
        torch.cuda.synchronize()
        times.append((clock_us() - start) / 1e3)
    return statistics.median(times)


def measure(weights: list[torch.Tensor], batch: int, clock_us: Callable[[], float]) -> dict[str, float]:
    """Milliseconds per call of every pipeline."""
    layers = len(weights)
    found = {}
    for name, slots in (("serial", 1), ("double buffer", 2), ("ring of 3", 3)):
        program = Pipeline(weights, batch, slots)
        found[name] = per_call_ms(clock_us, lambda p=program: p.run(layers))
    program = Pipeline(weights, batch, 2)
    found["prefetch across calls"] = per_call_ms(clock_us, lambda: program.run(CALLS * layers)) / CALLS
    return found


def predict(width: int, layers: int, batch: int, copy_ms: float, gemm_ms: float) -> dict[str, float]:
    """The same pipelines on the simulated device, with these times for one copy and one GEMM."""
    nbytes = 2 * width * width
    base = replace(simgpu.H200, copy_latency_ns=0, h2d_bytes_per_s=nbytes / (copy_ms / 1e3))
    with simgpu.session(base.with_op_time(mm=round(gemm_ms * NS / 1e3)), numerics="shapes", keep="none"):
        weights = [torch.empty(width, width, dtype=torch.bfloat16, pin_memory=True) for _ in range(layers)]
        return measure(weights, batch, simgpu.clock)


def error_percent(predicted: dict[str, float], measured: dict[str, float]) -> dict[str, float]:
    return {name: round(100 * (predicted[name] / value - 1), 2) for name, value in measured.items()}


def one_round(weights: list[torch.Tensor], batch: int) -> dict[str, Any]:
    """Calibration and measurement once, one after the other: the card's clocks drift over seconds, for both alike."""
    return {"serial": calibrate(weights, batch, 1), "overlapped": calibrate(weights, batch, CALIBRATION_SLOTS),
            "alone": isolated_ms(weights, batch),
            "measured": measure(weights, batch, lambda: time.perf_counter() * 1e6)}


def spread_percent(times: list[float]) -> float:
    """Largest over smallest, in percent above 1."""
    return round(100 * (max(times) / min(times) - 1), 2)


def compare(weights: list[torch.Tensor], batch: int) -> dict[str, Any]:
    """Measured and both predictions for one batch size."""
    width, layers = weights[0].shape[0], len(weights)
    rounds = [one_round(weights, batch) for _ in range(ROUNDS)]
    serial, overlapped = ([statistics.median(times) for times in zip(*(found[name] for found in rounds), strict=True)]
                          for name in ("serial", "overlapped"))
    alone = statistics.median(found["alone"] for found in rounds)
    measured = {name: statistics.median(found["measured"][name] for found in rounds) for name in rounds[0]["measured"]}
    calibrated = predict(width, layers, batch, *overlapped)
    calibrated["serial"] = predict(width, layers, batch, *serial)["serial"]
    from_isolated = predict(width, layers, batch, overlapped[0], alone)
    return {
        "batch": batch, "copy_ms": overlapped[0],
        "gemm_ms": {"serial": serial[1], "overlapped": overlapped[1], "isolated": alone},
        "measured_ms": measured,
        "measured_spread_percent": {name: spread_percent([found["measured"][name] for found in rounds])
                                    for name in measured},
        "predicted_ms": calibrated, "error_percent": error_percent(calibrated, measured),
        "error_percent_with_isolated_gemm": error_percent(from_isolated, measured),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=8192)
    parser.add_argument("--batches", type=int, nargs="+", default=[2048, 4096, 8192, 12288, 16384, 32768])
    parser.add_argument("--output", type=Path, default=Path("prediction.json"))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this needs a CUDA device: it measures one")
    weights = [torch.zeros(options.width, options.width, dtype=torch.bfloat16).normal_(0, 0.011).pin_memory()
               for _ in range(options.layers)]
    machine = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}
    result = machine | {"layers": options.layers, "width": options.width, "rows": []}
    for batch in options.batches:
        result["rows"].append(compare(weights, batch))
        print(batch, result["rows"][-1]["error_percent"], file=sys.stderr, flush=True)
        options.output.write_text(json.dumps(result, indent=1) + "\n")      # a stopped run keeps what it has


if __name__ == "__main__":
    main()
