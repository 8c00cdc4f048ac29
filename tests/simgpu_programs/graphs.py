"""Programs on CUDA and simulated: CUDA graphs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from simgpu_programs.measure import ones, outcome, program, waits
from utils import simgpu

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "simgpu_vs_gpu.py"


def graph_error_calls() -> dict[str, Callable[[], Any]]:
    """What one may and may not do during a capture."""
    pinned, pageable = torch.ones(4).pin_memory(), torch.ones(4)
    x, outside, side = ones(4), torch.cuda.Event(), torch.cuda.Stream()
    outside.record()
    inside = torch.cuda.Event()

    def leave_unjoined() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.add_(1)

    torch.cuda.synchronize()
    return {
        "kernel": lambda: x.add_(1),
        "pinned h2d": lambda: x.copy_(pinned, non_blocking=True),
        "pinned d2h": lambda: pinned.copy_(x, non_blocking=True),
        "pinned h2d blocking": lambda: x.copy_(pinned),
        "pageable h2d non_blocking": lambda: x.copy_(pageable, non_blocking=True),
        "pageable h2d": lambda: x.copy_(pageable),
        "pageable d2h non_blocking": lambda: pageable.copy_(x, non_blocking=True),
        "cpu": x.cpu,
        "item": lambda: x[0].item(),
        "device synchronize": torch.cuda.synchronize,
        "event record": lambda: inside.record(),
        "stream synchronize": lambda: torch.cuda.current_stream().synchronize(),
        "stream query": lambda: torch.cuda.current_stream().query(),
        "other stream synchronize": side.synchronize,
        "other stream query": side.query,
        "outside event synchronize": outside.synchronize,
        "outside event wait": lambda: outside.wait(),
        "outside event query": lambda: outside.query(),
        "unjoined": leave_unjoined,
        "fresh event wait": lambda: torch.cuda.Event().wait(),
        "allocation": lambda: torch.empty(4, device="cuda"),
        "nonzero": x.nonzero,
        "inside event synchronize": lambda: (inside.record(), inside.synchronize()),
        "set scalar": lambda: x.__setitem__(0, 5),
        "set slice": lambda: x.__setitem__(slice(0, 2), 5.0),
        "empty_cache": torch.cuda.empty_cache,
        "replay": lambda: torch.cuda.CUDAGraph().replay(),
    }


@program
def graph_errors() -> dict[str, str]:
    """On CUDA a failed capture spoils the process: each case has its own."""
    names = list(graph_error_calls())
    if simgpu.active() is not None:
        return {name: graph_error(name) for name in names}
    command = [sys.executable, str(SCRIPT), "--device", "cuda", "--graph-error"]
    running = {
        name: subprocess.Popen([*command, name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for name in names
    }
    return {
        name: (process.communicate()[0].strip().splitlines() or ["no answer"])[-1] for name, process in running.items()
    }


def graph_error(name: str) -> str:
    return outcome(lambda: _capture(graph_error_calls()[name]))


@program
def graph_misuse() -> dict[str, str]:
    return {
        "capture on the default stream": outcome(torch.cuda.CUDAGraph().capture_begin),
        "replay before capture": outcome(torch.cuda.CUDAGraph().replay),
        "pool before capture": outcome(torch.cuda.CUDAGraph().pool),
    }


def _capture(call: Callable[[], Any], **options: Any) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):
        call()
    return graph


@program
def graph_results() -> dict[str, Any]:
    x, out, kept = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda"), {}

    def body() -> None:
        kept["y"] = x + 1
        out.copy_(kept["y"] * 2)

    graph = _capture(body)
    torch.cuda.synchronize()
    found = {"capture executes": out[0].item()}
    for value in (1.0, 5.0):
        x.fill_(value)
        graph.replay()
        found[f"output for {value}"] = out[0].item()
        found[f"pool output for {value}"] = kept["y"][0].item()
    found["replay waits"] = waits(graph.replay)
    host = torch.ones(4).pin_memory()
    upload = _capture(lambda: x.copy_(host, non_blocking=True))
    host.fill_(3)
    upload.replay()
    found["host input is read at replay"] = x[0].item()
    return found


@program
def graph_pools() -> dict[str, int]:
    torch.cuda.synchronize()
    x = torch.zeros(4 << 20, dtype=torch.uint8, device="cuda")

    def body() -> None:
        y = x + 1
        del y

    torch.cuda.empty_cache()
    found, graphs = {}, []
    for name, options in (("first", {}), ("shared", None), ("own", {})):
        before = torch.cuda.memory_reserved()
        graphs.append(_capture(body, **({"pool": graphs[0].pool()} if options is None else options)))
        found[f"reserved by the {name} graph"] = torch.cuda.memory_reserved() - before
    return found
