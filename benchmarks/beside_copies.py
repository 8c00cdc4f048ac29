"""What copies and products lose to each other when neither waits, and what the ring of lesson 04 loses beyond that.

    python benchmarks/beside_copies.py --output FILE            on a CUDA machine; ~4 minutes
    python benchmarks/beside_copies.py --small --output FILE    the same code on the simulated device, with small sizes

What sets the pace, the resident MLP of lesson 03 or its copies, runs *alone*, and again *beside* as many of the other
on another stream, in memory of their own: neither side ever waits for the other, so no schedule that copies as much can
cost less. Then RingMLP, which begins with nothing loaded, so that a window has all copies that its calls need; and
*alone* and *ring* with a synchronize after each call. Windows take turns in changing order, and a ratio is taken within
a round. Beside the times: power and clock of the SMs, from NVML.
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

ALONE, BESIDE, RING = "alone", "beside", "ring"
ALONE_WAITS, RING_WAITS = "alone, waits", "ring, waits"
PROGRAMS = (ALONE, BESIDE, RING, ALONE_WAITS, RING_WAITS)
FULL = {"layers": 24, "width": 8192, "windows": ((8192, 20, 8), (16384, 40, 7), (24576, 20, 7)), "heat_s": 3.0}
SMALL = {"layers": 4, "width": 64, "windows": ((32, 3, 2), (128, 3, 2)), "heat_s": 0.0}       # batch, calls, rounds
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
        if not half:
            return {}
        watt, mhz = zip(*half, strict=True)
        return {"watt": statistics.fmean(watt), "mhz": statistics.fmean(mhz)}


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
        self.other, self.meter = torch.cuda.Stream(), Meter()

    def copies(self, x: torch.Tensor) -> None:
        for n, weight in enumerate(self.weights):
            self.buffers[n % 2].copy_(weight, non_blocking=True)

    def window(self, program: str, x: torch.Tensor, calls: int, copy_bound: bool) -> dict[str, float]:
        """Milliseconds per call of what sets the pace, between events on its stream, from an idle device."""
        pace, company = (self.copies, self.resident) if copy_bound else (self.resident, self.copies)
        model = self.ring if program in (RING, RING_WAITS) else pace
        model(x)
        torch.cuda.synchronize()
        self.ring.ring.restart()
        with self.meter as meter:
            if program == BESIDE:
                with torch.cuda.stream(self.other):
                    for _ in range(calls):
                        company(x)
            begin = mark()
            for _ in range(calls):
                model(x)
                if program in (ALONE_WAITS, RING_WAITS):
                    torch.cuda.synchronize()
            end = mark()
            torch.cuda.synchronize()
        return {"ms": begin.elapsed_time(end) / calls} | meter.means()

    def copy_bound(self, x: torch.Tensor) -> bool:
        """Whether copies take longer than products."""
        copies, products = (self.window(ALONE, x, 2, bound)["ms"] for bound in (True, False))
        return copies > products

    def heat(self, x: torch.Tensor, seconds: float) -> None:
        """So that the first window finds the clocks of the others."""
        begun = time.monotonic()
        while time.monotonic() - begun < seconds:
            self.resident(x)
            torch.cuda.synchronize()

    def rounds(self, x: torch.Tensor, rounds: int, calls: int, heat_s: float) -> dict[str, Any]:
        """Times of every program in every round, and ratios to products alone in the same round."""
        self.ring.ring.copy_first = bound = self.copy_bound(x)          # launch first what takes longer
        self.heat(x, heat_s)
        found: dict[str, list[dict[str, float]]] = {program: [] for program in PROGRAMS}
        for n in range(rounds):
            for program in rotated(list(PROGRAMS), n):
                found[program].append(self.window(program, x, calls, bound))
        ms = {program: [window["ms"] for window in windows] for program, windows in found.items()}
        row: dict[str, Any] = {"batch": x.shape[0], "calls": calls, "rounds": rounds,
                               "pace": "copies" if bound else "products"}
        for program, windows in found.items():
            row[program] = {"ms": summary(ms[program])} | {
                name: round(statistics.fmean(window[name] for window in windows), 1)
                for name in ("watt", "mhz") if all(name in window for window in windows)}
            if program != ALONE:
                row[program]["over alone"] = ratio(ms[program], ms[ALONE])
        row[RING]["over beside"] = ratio(ms[RING], ms[BESIDE])
        row[RING_WAITS]["over alone, waits"] = ratio(ms[RING_WAITS], ms[ALONE_WAITS])
        return row


def tables(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Ratios, then power and clocks, in Markdown."""
    heads = ["calls, rounds", "pace", "alone, ms", *(f"{program} / alone" for program in PROGRAMS[1:]), "ring / beside",
             "ring, waits / alone, waits"]
    ratios = [(str(row["batch"]), [
        f"{row['calls']}, {row['rounds']}", row["pace"], f"{row[ALONE]['ms']['median']:.2f}",
        *(interval(row[program]["over alone"]) for program in PROGRAMS[1:]), interval(row[RING]["over beside"]),
        interval(row[RING_WAITS]["over alone, waits"])]) for row in rows]
    found = [grid("batch", heads, ratios)]
    if all("watt" in row[program] for row in rows for program in PROGRAMS):
        found.append(grid("W, MHz", list(PROGRAMS), [
            (str(row["batch"]), [f"{row[program]['watt']:.0f}, {row[program]['mhz']:.0f}" for program in PROGRAMS])
            for row in rows]))
    return found


@torch.no_grad()
def run(sizes: dict[str, Any], save: Callable[[list[dict[str, Any]]], None]) -> None:
    side = Side(random_weights(sizes["layers"], sizes["width"]))
    rows: list[dict[str, Any]] = []
    for batch, calls, rounds in sizes["windows"]:
        x = torch.randn(batch, sizes["width"], dtype=DTYPE, device="cuda")
        rows.append(side.rounds(x, rounds, calls, sizes["heat_s"]))
        save(rows)


def device(small: bool) -> AbstractContextManager[Any]:
    return simgpu.session(simgpu.H200.scaled(1 / 128)) if small else nullcontext()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--small", action="store_true", help="on the simulated device, with small sizes")
    options = parser.parse_args(arguments)
    if not options.small and not torch.cuda.is_available():
        parser.error("this needs a CUDA device, or --small")
    sizes = SMALL if options.small else FULL

    def save(rows: list[dict[str, Any]]) -> None:
        result = {"machine": describe_machine(), "layers": sizes["layers"], "width": sizes["width"], "rows": rows}
        options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    with device(options.small):
        run(sizes, save)
    print("\n\n".join(tables(json.loads(options.output.read_text())["rows"])))


if __name__ == "__main__":
    main()
