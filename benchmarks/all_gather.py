"""Layers gathered from another GPU behind products, and a pipeline of two, measured: lesson 09 beside PyTorch's FSDP2.

    python benchmarks/all_gather.py --output FILE --traces FOLDER    on two CUDA devices; ~3 minutes
    python benchmarks/all_gather.py --small --output FILE            the same code without a GPU, tiny: two processes
                                                                     with gloo, each with a simulated device
Parts, each in processes of its own and saved as soon as it, or a row of it, is done (--only some, --update keeps the
results of the others):
  rates     NCCL's all-gather by size, alone and beside products, and how much slower those become
  copies    the same with copy engines, in one process
  mlp       24 layers, 8192 wide: resident, one slot, the ring with NCCL and with copy engines, FSDP2
  llama     16 layers of the shape of Llama 3 8B in the same ways (with transformers)
  pipeline  two stages, forward only: the share of bubbles against the formula
All programs take turns within a repeat; times are those of the slower rank. NVLink's multicast stays off.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.multiprocessing as mp

from benchmarks.all_gather_models import llama, mlp
from benchmarks.all_gather_pipeline import two_stages
from benchmarks.all_gather_rates import copies, rates
from benchmarks.all_gather_world import World, joined
from benchmarks.machine import describe_machine
from benchmarks.onload_programs import versions

MIB = 2**20
PARTS = {"rates": rates, "copies": copies, "mlp": mlp, "llama": llama, "pipeline": two_stages}
RANKS = 2
FULL: dict[str, Any] = {
    "width": 8192, "layers": 24, "rows": 8192, "nbytes": [n * MIB for n in (1, 4, 16, 64, 128, 256, 416, 1024)],
    "beside_from": 128 * MIB, "moves": 30, "products": 24, 
    "tokens": [256, 512, 1024, 1536, 2048, 4096, 8192], "calls": 10, "repeats": 4, "traced": [512, 4096],
    "llama_layers": 16, "llama_tokens": [512, 1024, 2048, 8192], "llama_calls": 6, "llama_repeats": 3,
    "micro": [1, 2, 4, 8, 16], "stage_tokens": 2048, "stage_repeats": 5}
SMALL: dict[str, Any] = {
    "width": 64, "layers": 3, "rows": 64, "nbytes": [1024, 8192], "beside_from": 4096, "moves": 2, "products": 3,
    "tokens": [8, 64], "calls": 2, "repeats": 2, "traced": [8],
    "llama_layers": 2, "llama_tokens": [8], "llama_calls": 2, "llama_repeats": 1, "micro": [1, 3],
    "stage_tokens": 8, "stage_repeats": 2}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("all_gather.json"))
    parser.add_argument("--traces", type=Path, help="folder for traces of the ring and of FSDP2; without it none")
    parser.add_argument("--small", action="store_true", help="without a GPU, with tiny sizes")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--update", action="store_true", help="keep the parts of the output that are not run")
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--tokens", type=int, nargs="+", help="on each GPU, for the MLP")
    parser.add_argument("--seconds", type=float, default=100, help="longest time for a part")
    options = parser.parse_args(arguments)
    if not options.small and torch.cuda.device_count() < RANKS:
        parser.error(f"this needs {RANKS} CUDA devices, and there are {torch.cuda.device_count()}; or --small")
    given = {name: value for name in ("repeats", "tokens") if (value := getattr(options, name)) is not None}
    options.sizes = (SMALL if options.small else FULL) | given
    return options


def work(rank: int, ranks: int, parts: list[str], options: argparse.Namespace, folder: str) -> None:
    """What one process does."""
    for part in parts:
        store, file = (Path(folder, f"{part}.{ending}") for ending in ("store", "json"))
        world = World(rank, ranks, options.small, store, file, options.traces)
        with joined(world):
            if part != "copies" or rank == 0:
                PARTS[part](world, options.sizes)
            world.wait()


def run_parts(parts: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """The parts in fresh processes; whatever happens to those, what they have saved is returned."""
    begun, failed = time.monotonic(), ""
    ranks = 1 if parts == ["copies"] else RANKS
    with tempfile.TemporaryDirectory() as folder:
        running = mp.start_processes(work, (ranks, parts, options, folder), ranks, join=False, start_method="spawn")
        try:
            while not running.join(timeout=1):
                if time.monotonic() - begun > options.seconds * len(parts):
                    raise TimeoutError(f"took longer than {options.seconds * len(parts):.0f} s")
        except Exception as error:
            failed = str(error).strip().splitlines()[-1]
            print(error, file=sys.stderr)
        finally:
            for process in running.processes:
                if process.is_alive():
                    process.kill()
        found = {part: saved(Path(folder, f"{part}.json")) for part in parts}
    for part in parts if failed else ():
        found[part]["failed"] = failed
    print(f"{', '.join(parts)}: {time.monotonic() - begun:.0f} s {failed and 'failed: '}{failed}", flush=True)
    return found


def saved(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def run(options: argparse.Namespace) -> dict[str, Any]:
    result = saved(options.output) if options.update else {}
    together = [list(options.only)] if options.small else [[part] for part in options.only]   # small: one start will do
    for parts in together:
        result |= run_parts(parts, options)
        result["machine"] = describe_machine() | versions() | {"gpus": RANKS, "nccl": nccl(options.small)}
        options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


def nccl(small: bool) -> dict[str, Any] | None:
    """Its version and the settings that change what it does."""
    if small:
        return None
    settings = {name: value for name, value in os.environ.items() if name.startswith("NCCL_")}
    return {"version": ".".join(map(str, torch.cuda.nccl.version())), "NCCL_NVLS_ENABLE": "0"} | settings


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    for folder in (options.output.parent, *([options.traces] if options.traces else [])):
        folder.mkdir(parents=True, exist_ok=True)
    result = run(options)
    if failed := [part for part in options.only if "failed" in result[part]]:
        sys.exit(f"failed: {', '.join(failed)}; what was measured is in {options.output.name}")


if __name__ == "__main__":
    main()
