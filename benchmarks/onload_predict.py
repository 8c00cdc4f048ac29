"""Predicted times of lesson 04's models beside those that onload.py measured: no GPU needed.

    python benchmarks/onload_predict.py

The simulated device gets the time of one copy and one product from simgpu_predict_h200.json, calibrated there in
another run and on another program that keeps the GPU equally busy; it then runs the windows of onload_h200.json.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.onload_programs import PLAIN, RING, RING_3, ring_mlp
from benchmarks.onload_tables import grid
from benchmarks.onload_windows import BACK_TO_BACK, SYNCHRONIZE, measure
from utils import simgpu

RESULTS = Path(__file__).resolve().parent / "results"
WINDOWS = {(RING, BACK_TO_BACK): (2, True), (RING, SYNCHRONIZE): (2, True), (RING_3, BACK_TO_BACK): (3, True),
           (PLAIN, BACK_TO_BACK): (2, False), (PLAIN, SYNCHRONIZE): (2, False)}     # -> slots, prefetch


@torch.no_grad()
def predict(batch: int, width: int, layers: int, copy_ms: float, gemm_ms: float,
            calls: dict[Any, int]) -> dict[Any, float]:
    """Milliseconds per call of each window, on a simulated H200 with these times."""
    profile = replace(simgpu.H200, copy_latency_ns=0, h2d_bytes_per_s=2 * width * width / (copy_ms / 1e3))
    found = {}
    for window, (slots, prefetch) in WINDOWS.items():
        with simgpu.session(profile.with_op_time(mm=round(gemm_ms * 1e6)), numerics="shapes", keep="none"):
            weights = [torch.empty(width, width, dtype=torch.bfloat16, pin_memory=True) for _ in range(layers)]
            x = torch.empty(batch, width, dtype=torch.bfloat16, device="cuda")
            program = ring_mlp(window[0], weights, slots, prefetch)
            found[window] = measure(program, [x] * calls[window], window[1]).ms
    return found


def errors_percent() -> dict[int, dict[tuple[str, str], float]]:
    """Predicted over measured, in percent above 1, by batch size and window; for the batch sizes calibrated."""
    measured = json.loads((RESULTS / "onload_h200.json").read_text())
    rows = {row["batch"]: row["programs"] for row in measured["mlp"]}
    errors = {}
    for row in json.loads((RESULTS / "simgpu_predict_h200.json").read_text())["rows"]:
        windows = {window: rows[row["batch"]][window[0]][window[1]] for window in WINDOWS}
        predicted = predict(row["batch"], measured["width"], measured["layers"], row["copy_ms"],
                            row["gemm_ms"]["overlapped"], {window: found["calls"] for window, found in windows.items()})
        errors[row["batch"]] = {window: round(100 * (predicted[window] / found["ms"]["median"] - 1), 1) + 0.0
                                for window, found in windows.items()}
    return errors


def table(errors: dict[int, dict[tuple[str, str], float]]) -> str:
    rows = [(", ".join(window), [f"{found[window]:.1f}".replace("-", "−") for found in errors.values()])
            for window in WINDOWS]
    return grid("error in percent", list(errors), rows)


if __name__ == "__main__":
    print(table(errors_percent()))
