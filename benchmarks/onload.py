"""Onload measured on a GPU: the models of lessons 03 and 04 beside accelerate and diffusers, and beside their bounds.

    python benchmarks/onload.py --output FILE               on a CUDA machine, with the peers installed; ~6 minutes
    python benchmarks/onload.py --simulate --output FILE    the same code on the simulated device, small

Parts: ``memory`` (weights held, peak, allocations per call), ``equality`` (100 calls back to back, bit for bit),
``llama`` (a stack of transformer layers) and ``mlp`` (24 layers of width 8192, every batch size, both ways of calling).
Windows of all programs are interleaved in rotated order; each starts on an idle device with nothing loaded ahead, has
distinct inputs and is compared with the resident model in every call. A ratio is taken within each repeat; its
interval is Student's 95 % over the repeats.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.machine import describe_machine
from utils import simgpu

PARTS = ("memory", "equality", "llama", "mlp")
BATCHES = (2048, 4096, 8192, 12288, 16384, 24576, 32768)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("onload.json"))
    parser.add_argument("--update", action="store_true", help="keep the parts of the output that are not run")
    parser.add_argument("--simulate", action="store_true", help="on the simulated device; give small sizes")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=8192)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--calls", type=int, nargs="+", default=[20], help="per window: one number, or one per batch")
    parser.add_argument("--repeats", type=int, nargs="+", default=[4], help="one number, or one per batch")
    parser.add_argument("--full", type=int, default=3, help="repeats with every program; the others: what is judged")
    parser.add_argument("--equal-width", type=int, default=2048)
    parser.add_argument("--equal-layers", type=int, nargs="+", default=(1, 2, 3, 23, 24))
    parser.add_argument("--equal-batches", type=int, nargs="+", default=(1024, 16384))
    parser.add_argument("--equal-calls", type=int, default=100)
    parser.add_argument("--llama-layers", type=int, default=32)
    parser.add_argument("--llama-tokens", type=int, nargs="+", default=(4096, 16384))
    parser.add_argument("--llama-calls", type=int, default=8)
    parser.add_argument("--llama-repeats", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3600, help="begin no further repeat after that long")
    options = parser.parse_args(arguments)
    for name in ("repeats", "calls"):
        given = getattr(options, name)
        if len(given) not in (1, len(options.batches)):
            parser.error(f"--{name} has {len(given)} numbers, for {len(options.batches)} batch sizes")
        setattr(options, name, given * len(options.batches) if len(given) == 1 else given)
    if not options.simulate and not torch.cuda.is_available():
        parser.error("this needs a CUDA device, or --simulate")
    return options


def device(options: argparse.Namespace) -> AbstractContextManager[Any]:
    """The real device, or a simulated H200 on which this width takes as long as 8192 on a real one."""
    if not options.simulate:
        return nullcontext()
    return simgpu.session(simgpu.H200.scaled(options.width / 8192), keep="none")


@torch.no_grad()
def run(options: argparse.Namespace) -> dict[str, Any]:
    """Every part asked for; what is done is written to the output as soon as it is."""
    from benchmarks import onload_checks, onload_llama, onload_mlp, onload_programs, onload_targets

    begun = time.monotonic()
    torch.manual_seed(0)
    result: dict[str, Any] = json.loads(options.output.read_text()) if options.update else {}
    result |= {"machine": describe_machine() | onload_programs.versions(), "layers": options.layers,
               "width": options.width}

    def save(part: str, found: Any) -> None:
        result[part] = found if part != "mlp" else merged(result.get(part, []), found)
        result["targets"] = onload_targets.targets(result)
        options.output.write_text(json.dumps(result, indent=1) + "\n")
        print(f"{part}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)

    weights = onload_programs.random_weights(options.layers, options.width)
    parts: dict[str, Callable[[], Any]] = {
        "memory": lambda: onload_checks.memory(weights, sorted(options.batches)[len(options.batches) // 2]),
        "equality": lambda: onload_checks.equality(options.equal_batches, options.equal_layers, options.equal_calls,
                                                   options.equal_width),
        "llama": lambda: onload_llama.llama(options.llama_layers, options.llama_tokens, options.llama_repeats,
                                            options.llama_calls, options.simulate, begun + options.seconds),
        "mlp": lambda: onload_mlp.time_batches(weights, options.batches, options.repeats, options.full, options.calls,
                                               begun + options.seconds, lambda found: save("mlp", found)),
    }
    for part in PARTS:
        if part in options.parts:
            save(part, parts[part]())
            torch.cuda.empty_cache()
    return result


def merged(before: list[dict[str, Any]], found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows by batch size, those found in the place of earlier ones."""
    rows = {row["batch"]: row for row in [*before, *found]}
    return [rows[batch] for batch in sorted(rows)]


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    with device(options):
        result = run(options)
        torch.cuda.synchronize()
    for target in result["targets"]:
        print(f"{target['state']:9} {target['target']}: {target['found']}")


if __name__ == "__main__":
    main()
