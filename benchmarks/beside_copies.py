"""What products lose to copies that nobody waits for, and what the ring of lesson 04 loses beyond that.

    python benchmarks/beside_copies.py --output FILE            on a CUDA machine; ~4 minutes
    python benchmarks/beside_copies.py --small --output FILE    the same code on the simulated device, with small sizes

The resident MLP of lesson 03 runs alone, and again while one copy of a layer's size per product is under way on another
stream, into memory that no product touches: neither side ever waits for the other, so no schedule that copies as much
can cost less. Then RingMLP, its first layer loaded before the clock starts and that of one more call before it stops;
and resident and ring with a synchronize after each call. Windows take turns in changing order, and a ratio is taken
within a round. Beside the times: power and clock of the SMs, from NVML.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.machine import describe_machine
from benchmarks.onload_mlp import mark, rotated
from benchmarks.onload_programs import DTYPE, onload, random_weights, serial
from benchmarks.onload_tables import grid, interval
from benchmarks.onload_windows import ratio, summary
from utils import simgpu

ALONE, BESIDE, RING = "alone", "beside copies", "ring"
ALONE_WAITS, RING_WAITS = "alone, waits", "ring, waits"
PROGRAMS = (ALONE, BESIDE, RING, ALONE_WAITS, RING_WAITS)
FULL = {"layers": 24, "width": 8192, "batches": (12288, 16384, 24576, 32768), "calls": 10, "rounds": 10, "heat_s": 3.0}
SMALL = {"layers": 4, "width": 64, "batches": (96, 128), "calls": 3, "rounds": 2, "heat_s": 0.0}
SAMPLE_S = 0.01


class Meter:
    """Power in W and clock of the SMs in MHz, read every 10 ms in a thread; empty where NVML cannot be asked."""

    def __init__(self) -> None:
        self.read = reader()

    def __enter__(self) -> Meter:
        self.values: list[tuple[float, float]] = []
        self.stopped, self.thread = threading.Event(), threading.Thread(target=self._sample, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stopped.set()
        self.thread.join()

    def _sample(self) -> None:
        while self.read is not None and not self.stopped.wait(SAMPLE_S):
            self.values.append(self.read())

    def means(self) -> dict[str, float]:
        """Over the second half of the readings, since power is an average over some time before the reading."""
        half = self.values[len(self.values) // 2:]
        return {name: statistics.fmean(column) for name, column in zip(("watt", "mhz"), zip(*half, strict=True), strict=bool(half))}


def reader() -> Any:
    """A function that reads (W, MHz), or None."""
    if simgpu.active() is not None:
        return None
    try:
        import pynvml

        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetHandleByIndex(0)
        pynvml.nvmlDeviceGetPowerUsage(card)
    except Exception:                           # no NVML, or it may not be asked here: times are what counts
        return None
    return lambda: (pynvml.nvmlDeviceGetPowerUsage(card) / 1e3,
                    pynvml.nvmlDeviceGetClockInfo(card, pynvml.NVML_CLOCK_SM))


class Side:
    """The resident model, the ring, and unrelated copies: as many per call as there are layers."""

    def __init__(self, weights: Sequence[torch.Tensor]):
        self.weights, self.resident, self.ring = weights, serial.ResidentMLP(weights), onload.RingMLP(weights)
        self.buffers = [torch.empty_like(weights[0], device="cuda") for _ in range(2)]
        self.link, self.meter = torch.cuda.Stream(), Meter()

    def copies(self, calls: int) -> None:
        with torch.cuda.stream(self.link):
            for n in range(calls * len(self.weights)):
                self.buffers[n % 2].copy_(self.weights[n % len(self.weights)], non_blocking=True)

    def window(self, program: str, x: torch.Tensor, calls: int) -> dict[str, float]:
        """Milliseconds per call, between events on the compute stream, from an idle device."""
        model = self.ring if program in (RING, RING_WAITS) else self.resident
        if model is self.ring:
            model(x)                            # leaves the first layer of the next call in its slot
        torch.cuda.synchronize()
        with self.meter as meter:
            if program == BESIDE:
                self.copies(calls)
            begin = mark()
            for _ in range(calls):
                model(x)
                if program in (ALONE_WAITS, RING_WAITS):
                    torch.cuda.synchronize()
            end = mark()
            torch.cuda.synchronize()
        return {"ms": begin.elapsed_time(end) / calls} | meter.means()

    def heat(self, x: torch.Tensor, seconds: float) -> None:
        """So that the first window finds the clocks of the others."""
        begun = time.monotonic()
        while time.monotonic() - begun < seconds:
            self.resident(x)
            torch.cuda.synchronize()

    def rounds(self, x: torch.Tensor, rounds: int, calls: int, heat_s: float) -> dict[str, Any]:
        """Times of every program in every round, and ratios to products alone in the same round."""
        self.ring.ring.copy_first = False       # here products take as long as copies, or longer
        self.heat(x, heat_s)
        found: dict[str, list[dict[str, float]]] = {program: [] for program in PROGRAMS}
        for n in range(rounds):
            for program in rotated(list(PROGRAMS), n):
                found[program].append(self.window(program, x, calls))
        ms = {program: [window["ms"] for window in windows] for program, windows in found.items()}
        row: dict[str, Any] = {"batch": x.shape[0], "rounds": rounds}
        for program, windows in found.items():
            row[program] = {"ms": summary(ms[program])} | {
                name: round(statistics.fmean(window[name] for window in windows), 1)
                for name in ("watt", "mhz") if all(name in window for window in windows)}
            if program != ALONE:
                row[program]["over alone"] = ratio(ms[program], ms[ALONE])
        row[RING]["over beside"] = ratio(ms[RING], ms[BESIDE])
        row[RING_WAITS]["over alone, waits"] = ratio(ms[RING_WAITS], ms[ALONE_WAITS])
        return row


def table(rows: Sequence[dict[str, Any]]) -> str:
    """In Markdown."""
    heads = ["alone, ms", "W", "SM clock, MHz", *(f"{program} / alone" for program in PROGRAMS[1:]),
             "ring / beside copies", "W, ring", "SM clock, MHz, ring", "ring, waits / alone, waits"]
    lines = []
    for row in rows:
        def read(program: str, name: str, row: dict[str, Any] = row) -> str:
            return f"{row[program][name]:.0f}" if name in row[program] else ""
        lines.append((str(row["batch"]), [
            f"{row[ALONE]['ms']['median']:.2f}", read(ALONE, "watt"), read(ALONE, "mhz"),
            *(interval(row[program]["over alone"]) for program in PROGRAMS[1:]), interval(row[RING]["over beside"]),
            read(RING, "watt"), read(RING, "mhz"), interval(row[RING_WAITS]["over alone, waits"])]))
    return grid("batch", heads, lines)


@torch.no_grad()
def run(sizes: dict[str, Any], save: Callable[[list[dict[str, Any]]], None]) -> None:
    side = Side(random_weights(sizes["layers"], sizes["width"]))
    rows: list[dict[str, Any]] = []
    for batch in sizes["batches"]:
        x = torch.randn(batch, sizes["width"], dtype=DTYPE, device="cuda")
        rows.append(side.rounds(x, sizes["rounds"], sizes["calls"], sizes["heat_s"]))
        save(rows)


def device(small: bool) -> AbstractContextManager[Any]:
    return simgpu.session(simgpu.H200.scaled(1 / 128)) if small else nullcontext()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--small", action="store_true", help="on the simulated device, with small sizes")
    parser.add_argument("--rounds", type=int)
    options = parser.parse_args(arguments)
    if not options.small and not torch.cuda.is_available():
        parser.error("this needs a CUDA device, or --small")
    sizes = (SMALL if options.small else FULL) | ({"rounds": options.rounds} if options.rounds else {})

    def save(rows: list[dict[str, Any]]) -> None:
        result = {"machine": describe_machine(), **{name: sizes[name] for name in ("layers", "width", "calls")},
                  "rows": rows}
        options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    with device(options.small):
        run(sizes, save)
    print(table(json.loads(options.output.read_text())["rows"]))


if __name__ == "__main__":
    main()
