"""Measure the rates that the course computes with: copies between host and GPU, and one layer's GEMM by batch size.

    python benchmarks/rates.py benchmarks/results/rates_h200.json

Copies are 128 MiB, GEMMs are (batch, 8192) x (8192, 8192) in bfloat16 on random data. Every time is the median of
repeated, event-timed runs after a warm-up, each of several operations in a row, so that the launch of the first one
does not count. GEMMs run back to back for at least a tenth of a second, so they are
*isolated* times: next to copies the same GEMM can be faster or slower, because clocks follow power.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.machine import describe_machine

WIDTH = 8192
COPY_BYTES = WIDTH * WIDTH * 2
BATCHES = (1, 256, 1024, 2048, 4096, 8192, 12288, 16384, 24576, 32768)
REPEATS = 15
IN_A_ROW = 10


def event_ms(run: Callable[[], object], inner: int = 1) -> float:
    """Median device time of ``run`` in ms, after three warm-up runs."""
    for _ in range(3):
        run()
    times = []
    for _ in range(REPEATS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(inner):
            run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / inner)
    return statistics.median(times)


def duplex_ms(up: Callable[[], object], down: Callable[[], object]) -> float:
    """Median time of one copy each way, IN_A_ROW of them at a time on a stream for each direction."""
    streams = torch.cuda.Stream(), torch.cuda.Stream()

    def both() -> None:
        main = torch.cuda.current_stream()
        for stream, copy in zip(streams, (up, down), strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                for _ in range(IN_A_ROW):
                    copy()
        for stream in streams:
            main.wait_stream(stream)

    return event_ms(both) / IN_A_ROW


def measure_copies() -> dict[str, float]:
    """Rates in GB/s (10^9 bytes per second) for one copy of 128 MiB."""
    device = torch.device("cuda")
    on_gpu, other = (torch.empty(COPY_BYTES, dtype=torch.uint8, device=device) for _ in range(2))
    pageable = torch.empty(COPY_BYTES, dtype=torch.uint8).random_()
    pinned, back = pageable.pin_memory(), torch.empty(COPY_BYTES, dtype=torch.uint8).pin_memory()

    def up() -> None:
        on_gpu.copy_(pinned, non_blocking=True)

    def down() -> None:
        back.copy_(other, non_blocking=True)

    def rate(milliseconds: float) -> float:
        return round(COPY_BYTES / milliseconds / 1e6, 2)

    return {
        "pinned_h2d": rate(event_ms(up, IN_A_ROW)),
        "pinned_d2h": rate(event_ms(down, IN_A_ROW)),
        "pageable_h2d": rate(event_ms(lambda: on_gpu.copy_(pageable), IN_A_ROW)),
        "both_directions_total": round(2 * COPY_BYTES / duplex_ms(up, down) / 1e6, 2),
        "device_copy_read_plus_write": round(2 * COPY_BYTES / event_ms(lambda: on_gpu.copy_(other), IN_A_ROW) / 1e6, 1),
    }


def measure_gemms() -> dict[str, float]:
    """Milliseconds of one layer by batch size."""
    device, times = torch.device("cuda"), {}
    weight = torch.randn(WIDTH, WIDTH, dtype=torch.bfloat16, device=device) / WIDTH**0.5
    for batch in BATCHES:
        x = torch.randn(batch, WIDTH, dtype=torch.bfloat16, device=device)
        out = torch.empty_like(x)
        inner = max(1, int(100 / (0.05 + batch * 2e-4)) // REPEATS)
        times[str(batch)] = round(event_ms(lambda x=x, out=out: torch.mm(x, weight, out=out), inner), 4)
    return times


@torch.inference_mode()
def main(path: str) -> None:
    """Measure, print and store."""
    if not torch.cuda.is_available():
        sys.exit("benchmarks/rates.py measures a CUDA GPU, and there is none here")
    torch.manual_seed(0)
    result: dict[str, Any] = {"machine": describe_machine(), "copy_bytes": COPY_BYTES, "width": WIDTH,
                              "copy_gb_per_s": measure_copies(), "gemm_ms": measure_gemms()}
    Path(path).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "rates.json")
