"""What goes wrong when a model is timed: each trap beside the honest number, in one process per trap.

    python benchmarks/timing_traps.py benchmarks/results/timing_traps_h200.json

The model is lesson 03's: 24 layers, 8192 wide, bfloat16, batch 8192. Every measurement runs in a process of its own, so
that first calls are first calls and a peak holds one model alone. Times in ms, memory in MiB.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.machine import describe_machine
from utils.lessons import import_lesson

LAYERS, WIDTH, BATCH, CALLS = 24, 8192, 8192, 10
REST_S = 2.0
MIB = 2**20


def random_pinned() -> list[torch.Tensor]:
    """Weights as in the lesson, made on the GPU because that is faster."""
    return [(torch.randn(WIDTH, WIDTH, device="cuda") / WIDTH**0.5).to(torch.bfloat16).cpu().pin_memory()
            for _ in range(LAYERS)]


def random_input() -> torch.Tensor:
    return torch.randn(BATCH, WIDTH, device="cuda", dtype=torch.bfloat16)


def event_ms(call: Callable[[], object], calls: int = 1) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / calls


def first_calls() -> dict[str, Any]:
    """The first calls of a process, one by one, and a call in a long row."""
    weights = random_pinned()
    x = random_input().cpu()
    model = import_lesson("03_serial_mlp").ResidentMLP(weights)
    x = x.to("cuda")
    torch.cuda.synchronize()
    return {"first_calls_ms": [event_ms(lambda: model(x)) for _ in range(6)],
            "in_a_row_ms": event_ms(lambda: model(x), 20)}


def without_sync() -> dict[str, Any]:
    """The host's clock around a call, without and with a synchronisation."""
    model, x = import_lesson("03_serial_mlp").ResidentMLP(random_pinned()), random_input()
    for _ in range(5):
        model(x)
    found: dict[str, list[float]] = {"without_sync_ms": [], "with_sync_ms": []}
    for _ in range(CALLS):
        for name, wait in (("without_sync_ms", False), ("with_sync_ms", True)):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            model(x)
            if wait:
                torch.cuda.synchronize()
            found[name].append((time.perf_counter() - begin) * 1e3)
    return {name: statistics.median(times) for name, times in found.items()}


def data() -> dict[str, Any]:
    """Random numbers against zeros: a GPU multiplies zeros with less power, so at higher clocks. Interleaved."""
    resident = import_lesson("03_serial_mlp").ResidentMLP
    weights = random_pinned()
    models = {"random_ms": (resident(weights), random_input()),
              "zeros_ms": (resident([torch.zeros_like(weight) for weight in weights]),
                           torch.zeros(BATCH, WIDTH, device="cuda", dtype=torch.bfloat16))}
    found: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(CALLS):
        for name, (model, x) in models.items():
            model(x)
            found[name].append(event_ms(lambda model=model, x=x: model(x), 10))
    return {name: statistics.median(times) for name, times in found.items()}


def rested() -> dict[str, Any]:
    """One call after a rest, and calls in a row: clocks and heat."""
    model, x = import_lesson("03_serial_mlp").ResidentMLP(random_pinned()), random_input()
    found: dict[str, list[float]] = {"after_rest_ms": [], "in_a_row_ms": []}
    for _ in range(4):
        for _ in range(10):
            model(x)
        found["in_a_row_ms"].append(event_ms(lambda: model(x), 20))
        time.sleep(REST_S)
        found["after_rest_ms"].append(event_ms(lambda: model(x)))
    return {name: statistics.median(times) for name, times in found.items()}


def peak_mib(run: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / MIB


def calls_that_keep(model: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Callable[[], object]:
    """Calls in a loop whose last output stays alive, as benchmarks are usually written."""
    def run() -> None:
        output = None
        for _ in range(3):
            output = model(x)
        del output
    return run


def peak_of(kind: str) -> dict[str, Any]:
    """Peak of one model that is alone in its process."""
    make = {"resident": import_lesson("03_serial_mlp").ResidentMLP, "serial": import_lesson("03_serial_mlp").SerialMLP,
            "double_buffer": import_lesson("04_double_buffered_onload").RingMLP}[kind]
    weights = [torch.empty(WIDTH, WIDTH, dtype=torch.bfloat16).pin_memory() for _ in range(LAYERS)]
    x = torch.empty(BATCH, WIDTH, device="cuda", dtype=torch.bfloat16)
    return {f"{kind}_alone_mib": peak_mib(calls_that_keep(make(weights), x))}


def peak_together() -> dict[str, Any]:
    """Both models alive, and the last output of the other one, as in the article's program."""
    weights = [torch.empty(WIDTH, WIDTH, dtype=torch.bfloat16).pin_memory() for _ in range(LAYERS)]
    x = torch.empty(BATCH, WIDTH, device="cuda", dtype=torch.bfloat16)
    resident = import_lesson("03_serial_mlp").ResidentMLP(weights)
    streamed = import_lesson("04_double_buffered_onload").PublishedMLP(weights)
    kept = streamed(x)
    first = peak_mib(calls_that_keep(resident, x))
    kept = resident(x)
    del resident
    second = peak_mib(calls_that_keep(streamed, x))
    del kept
    return {"resident_beside_the_other_mib": first, "double_buffer_beside_an_output_mib": second}


TRAPS: dict[str, Callable[[], dict[str, Any]]] = {
    "first_calls": first_calls, "without_sync": without_sync, "data": data, "rested": rested,
    "peak_resident": lambda: peak_of("resident"), "peak_serial": lambda: peak_of("serial"),
    "peak_double_buffer": lambda: peak_of("double_buffer"), "peak_together": peak_together,
}


def main(output: Path) -> None:
    """Run every trap in a fresh process and write what they found."""
    found: dict[str, Any] = {"machine": describe_machine(), "layers": LAYERS, "width": WIDTH, "batch": BATCH}
    for name in TRAPS:
        done = subprocess.run([sys.executable, __file__, "--one", name], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{name} failed:\n{done.stderr}")
        found |= {name: json.loads(done.stdout)}
        print(name, found[name], file=sys.stderr)
    output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        with torch.inference_mode():
            print(json.dumps(TRAPS[sys.argv[2]]()))
    elif len(sys.argv) == 2:
        main(Path(sys.argv[1]))
    else:
        raise SystemExit(__doc__)
