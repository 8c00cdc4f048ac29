"""The same small programs on a CUDA device and simulated: what blocks, what is ordered, comes out, raises.

    python benchmarks/simgpu_vs_gpu.py --device cuda > cuda.json
    python benchmarks/simgpu_vs_gpu.py --device sim > sim.json
    python benchmarks/simgpu_vs_gpu.py --compare cuda.json sim.json     exit status 1 when they differ

Every observation is a yes or no, a value, or the name of an error: nothing depends on the machine's speed. Work that
keeps the device busy is torch.cuda._sleep for BUSY_MS; a call "waits" when the host is held for more than half of that.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from simgpu_programs import copies, errors, graphs, memory, reads, streams
from simgpu_programs.measure import PROGRAMS, calibrate

from utils import simgpu

MODULES = (copies, reads, streams, memory, graphs, errors)      # importing them fills PROGRAMS, in this order


def run(names: list[str]) -> dict[str, Any]:
    calibrate()
    found: dict[str, Any] = {}
    for name in names or PROGRAMS:
        try:
            found[name] = PROGRAMS[name]()
            torch.cuda.synchronize()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return found


def compare(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """A line per observation that differs."""
    lines = []
    for name in {**one, **other}:
        a, b = one.get(name), other.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            lines += [
                f"{name}: {key}: {a.get(key)!r} | {b.get(key)!r}" for key in {**a, **b} if a.get(key) != b.get(key)
            ]
        elif a != b:
            lines.append(f"{name}: {a!r} | {b!r}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "sim"), help="where to run")
    parser.add_argument("--compare", nargs=2, metavar="FILE", help="two results")
    parser.add_argument("--graph-error", help="run one case of graph_errors and print its outcome")
    parser.add_argument("programs", nargs="*", help="names of programs (default: all)")
    options = parser.parse_args()
    if options.compare:
        one, other = (json.loads(Path(name).read_text())["results"] for name in options.compare)
        lines = compare(one, other)
        print("\n".join(lines) or "no difference")
        sys.exit(bool(lines))
    if options.graph_error:
        print(graphs.graph_error(options.graph_error))
        return
    if options.device == "sim":
        with simgpu.session(simgpu.H200) as gpu:
            results, device = run(options.programs), f"simulated {gpu.profile.name}"
    else:
        results, device = run(options.programs), torch.cuda.get_device_name()
    print(
        json.dumps(
            {"device": device, "torch": torch.__version__, "date": time.strftime("%Y-%m-%d"), "results": results},
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
