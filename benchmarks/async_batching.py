"""Continuous batching, synchronous and a step ahead, measured on a GPU: lessons 06 and 07 beside bounds and peers.

    python benchmarks/async_batching.py --output FILE              on a CUDA machine, with transformers; ~5 minutes
    python benchmarks/async_batching.py --simulate --output FILE   the same code on the simulated device, tiny

A decoder with the shapes of Llama 3 8B and random weights, 32 requests at once with prompts of 64 tokens and 256 new
ones each. Parts, each saved as soon as it is done (--only some of them, --update to keep the others' results):
  step     one decode step beside its floor, the bytes that it reads over the rate of a copy in the same run
  memory   buffers of the pipeline's slots, and what graphs reserve in one pool and in two
  loops    four ways to serve, in turn: synchronous and asynchronous, eager and with graphs
  profile  short runs of the four under the profiler: the share of time with a kernel
  sweep    more and more host work in each step, with graphs
  peers    transformers' generate_batch on the same weights and requests
Time on the device is between events around each step; a repeat has every way once, each time from another one on.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.async_loops import loops, profiled, sweep
from benchmarks.async_peers import small, transformers_modes
from benchmarks.async_served import SYNC_GRAPHS, Ways, Work
from benchmarks.async_step import copy_gb_per_s, decode_step, memory
from benchmarks.async_tables import targets
from benchmarks.machine import describe_machine
from benchmarks.onload_programs import versions
from benchmarks.two_models_windows import give_back
from utils import simgpu
from utils.decoder import LLAMA_3_8B, TINY, SlotDecoder

PARTS = ("step", "memory", "loops", "profile", "sweep", "peers")
FULL = {"config": LLAMA_3_8B, "slots": 32, "cells": 320, "dtype": torch.bfloat16, "contexts": [64, 320],
        "work": Work(32, 64, 256, 512, LLAMA_3_8B.words), "repeats": 5, "inner": 30, "windows": 5, "copy": 4 << 30,
        "short": 32, "busy_ms": [0, 1, 2, 3, 4, 5, 6, 8, 12, 20], "swept": 96}
SMALL = {"config": TINY, "slots": 4, "cells": 48, "dtype": torch.float32, "contexts": [16, 48],
         "work": Work(4, 8, 12, 16, TINY.words), "repeats": 2, "inner": 2, "windows": 2, "copy": 1 << 20,
         "short": 4, "busy_ms": [0, 0.5, 2], "swept": 36}
SMALL_SCALE = 1 / 64            # of the simulated H200: 64 wide takes as long as 4096


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("async_batching.json"))
    parser.add_argument("--simulate", action="store_true", help="on the simulated device, with tiny sizes")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--update", action="store_true", help="keep the parts of the output that are not run")
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--busy-ms", type=float, nargs="+", help="host work of the sweep")
    parser.add_argument("--seconds", type=float, default=380, help="begin nothing new after that long")
    options = parser.parse_args(arguments)
    if not options.simulate and not torch.cuda.is_available():
        parser.error("this needs a CUDA device, or --simulate")
    given = {name: value for name in ("repeats", "busy_ms") if (value := getattr(options, name)) is not None}
    options.sizes = (SMALL if options.simulate else FULL) | given
    return options


def device(options: argparse.Namespace) -> AbstractContextManager[Any]:
    return simgpu.session(simgpu.H200.scaled(SMALL_SCALE), keep="all") if options.simulate else nullcontext()


class Run:
    """Everything in turn; what is done is written to the output as soon as it is."""

    def __init__(self, options: argparse.Namespace):
        self.options, self.sizes, self.begun = options, options.sizes, time.monotonic()
        kept = options.output.read_text(encoding="utf-8") if options.update and options.output.is_file() else "{}"
        self.result: dict[str, Any] = json.loads(kept)
        sizes, self.work = self.sizes, self.sizes["work"]
        self.decoder = SlotDecoder(sizes["config"], sizes["slots"], sizes["cells"], sizes["dtype"])
        torch.cuda.synchronize()
        self.result |= {"machine": describe_machine() | versions(), "slots": sizes["slots"], "cells": sizes["cells"],
                        "shape": vars(sizes["config"]), "weights_nbytes": self.decoder.weights.nbytes}
        self.save("weights")

    def save(self, part: str) -> None:
        self.result["targets"] = targets(self.result)
        self.options.output.write_text(json.dumps(self.result, indent=1) + "\n", encoding="utf-8")
        self.say(part)

    def say(self, what: str = "...") -> None:
        print(f"{what}: {time.monotonic() - self.begun:.0f} s", file=sys.stderr, flush=True)

    def late(self) -> bool:
        return time.monotonic() - self.begun > self.options.seconds

    def asked(self, part: str) -> bool:
        return part in self.options.only and not self.late()

    # ---- parts

    def step(self) -> None:
        sizes = self.sizes
        rate = copy_gb_per_s(sizes["copy"], sizes["windows"])
        give_back()
        self.result["copy_gb_per_s"] = rate
        self.result["step"] = decode_step(self.decoder, sizes["contexts"], rate["median"], sizes["inner"],
                                          sizes["windows"])
        give_back()

    def memory(self) -> None:
        self.result["memory"] = memory(self.decoder, self.work.budget)

    def serving(self) -> None:
        """The three parts that serve share the captured graphs."""
        ways, work, sizes = Ways(self.decoder, self.work.budget), self.work, self.sizes
        ways.warm_up(work)
        self.say("graphs and warm-up")
        if self.asked("loops"):
            self.result["loops"] = loops(ways, work, sizes["repeats"], self.say)
            self.save("loops")
        if self.asked("sweep"):
            self.result["sweep"] = sweep(ways, replace(work, tokens=sizes["swept"]), sizes["busy_ms"],
                                         sizes["repeats"], self.say, self.late)
            self.save("sweep")
        if self.asked("peers"):
            self.ours = ways.run(SYNC_GRAPHS, work).tokens
        if self.asked("profile"):
            self.result["profile"] = profiled(ways, replace(work, tokens=sizes["short"]), self.say)
            self.save("profile")

    def peers(self, on_gpu: bool) -> None:
        """Where transformers is installed; beside the simulated device on this CPU, which says nothing about time."""
        if importlib.util.find_spec("transformers") is None:
            print("peers: transformers is not installed", file=sys.stderr)
            return
        found = self.result["transformers" if on_gpu else "transformers, on this CPU"] = {}

        def keep(name: str, row: Any) -> None:
            found[name] = row
            self.save(f"transformers, {name}")

        if on_gpu:
            transformers_modes(self.decoder, self.work, self.ours, True, self.late, keep)
        else:
            sizes, work = self.sizes, small(self.work)
            decoder = SlotDecoder(sizes["config"], sizes["slots"], sizes["cells"], sizes["dtype"], device="cpu")
            transformers_modes(decoder, work, [], False, self.late, keep)


@torch.no_grad()
def run(options: argparse.Namespace) -> dict[str, Any]:
    torch.manual_seed(0)
    with device(options) as simulated:
        found = Run(options)
        for part, make in (("step", found.step), ("memory", found.memory)):
            if found.asked(part):
                make()
                found.save(part)
        if any(map(found.asked, ("loops", "sweep", "profile", "peers"))):
            found.serving()
            give_back()
        if simulated is not None and simulated.hazards:
            raise RuntimeError(f"a race: {simulated.hazards[0]}")
        if found.asked("peers") and not options.simulate:
            found.peers(on_gpu=True)
    if found.asked("peers") and options.simulate:
        found.peers(on_gpu=False)
    found.save("all")
    return found.result


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    result = run(options)
    for target in result["targets"]:
        print(f"{target['state']:9} {target['target']}: {target['found']}")


if __name__ == "__main__":
    main()
