"""Two models that take turns on one GPU: lesson 05's Swap beside its peers, each with the time that the switch costs.

    python benchmarks/two_models.py --output FILE            on a CUDA machine, with accelerate; ~2.5 minutes
    python benchmarks/two_models.py --small --output FILE    the same code on the simulated device, with small sizes

Two stacks of 40 blocks, 5120 wide, with weights of their own, under a budget of 24 GiB; two denoising steps of the
first, then two of the second. Every window begins on an idle device with model 0 there, right after one step of it.
Exposed: time beyond that of both models resident, in the same repeat. Waited: how long the compute stream stood at the
events (or copies) in front of a layer. The final result of every window is compared with that of the resident models,
bit for bit, and the peak is all that the allocator has given out, activations included.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks import two_models_checks
from benchmarks.machine import describe_machine
from benchmarks.onload_mlp import rotated
from benchmarks.onload_programs import versions
from benchmarks.two_models_tables import targets
from benchmarks.two_models_ways import AHEAD, NEEDED, OURS, PEERS, RESIDENT, STREAMED, TO_PAGEABLE
from benchmarks.two_models_weights import Host, Sizes
from benchmarks.two_models_windows import SCHEDULE, Case
from utils import simgpu

GIB = 2**30
FULL = {"sizes": Sizes(5120, 40, 13824, 40), "budget": 24 * GIB, "tokens": (4096, 16384), "repeats": (4, 3)}
SMALL = {"sizes": Sizes(64, 4, 128, 4), "budget": 460_000, "tokens": (32, 64), "repeats": (2, 2)}
SMALL_SCALE = 1 / 64            # of the simulated H200: 64 wide takes as long as 4096
CLOSE = (NEEDED, AHEAD, STREAMED)       # ways whose times differ little: in every repeat
FEW_REPEATS = 2                         # of the others


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("two_models.json"))
    parser.add_argument("--small", action="store_true", help="on the simulated device, with small sizes")
    parser.add_argument("--tokens", type=int, nargs="+")
    parser.add_argument("--repeats", type=int, nargs="+", help="one number for each of the tokens")
    parser.add_argument("--seconds", type=float, default=130, help="begin no further window of a peer after that long")
    options = parser.parse_args(arguments)
    if not options.small and not torch.cuda.is_available():
        parser.error("this needs a CUDA device, or --small")
    given = {name: value for name in ("tokens", "repeats") if (value := getattr(options, name)) is not None}
    options.sizes = (SMALL if options.small else FULL) | given
    if len(options.sizes["tokens"]) != len(options.sizes["repeats"]):
        parser.error(f"{len(options.sizes['repeats'])} repeats for {len(options.sizes['tokens'])} numbers of tokens")
    return options


def device(options: argparse.Namespace) -> AbstractContextManager[Any]:
    return simgpu.session(simgpu.H200.scaled(SMALL_SCALE), keep="none") if options.small else nullcontext()


class Run:
    """Everything in turn; what is done is written to the output as soon as it is."""

    def __init__(self, options: argparse.Namespace):
        self.options, self.sizes, self.begun = options, options.sizes, time.monotonic()
        self.host, self.budget = Host(self.sizes["sizes"]), self.sizes["budget"]
        self.cases = [Case(self.host, self.budget, tokens) for tokens in self.sizes["tokens"]]
        self.result: dict[str, Any] = {
            "machine": describe_machine() | versions(), "schedule": SCHEDULE, "layers": self.host.sizes.layers,
            "layer_bytes": self.host.layer_bytes, "copy_ms": self.host.copy_ms(), "cases": [], "failures": []}
        self.save("weights")

    def save(self, part: str) -> None:
        self.result["cases"] = [case.result() for case in self.cases if case.expected is not None]
        self.result["targets"] = targets(self.result)
        self.options.output.write_text(json.dumps(self.result, indent=1) + "\n", encoding="utf-8")
        print(f"{part}: {time.monotonic() - self.begun:.0f} s", file=sys.stderr, flush=True)

    def ours(self) -> None:
        """The resident models first: the others are told the working memory that those needed."""
        for case, repeats in zip(self.cases, self.sizes["repeats"], strict=True):
            for n in range(repeats):
                ways = OURS if n < FEW_REPEATS else CLOSE
                case.repeat(n, [RESIDENT, *rotated(list(ways), n)])
                self.save(f"{case.tokens} tokens, repeat {n}")

    def checks(self) -> None:
        case = self.cases[0]
        self.result["failures"].append(two_models_checks.after_failure(case))
        self.result["too_small"] = two_models_checks.too_small(self.host, self.budget, case.working)
        self.save("checks")

    def peers(self) -> None:
        """A few windows, as long as there is time: they take long, and their switch is far from the limit."""
        windows = [(case, n, name) for n in range(FEW_REPEATS) for case in self.cases for name in PEERS
                   if not (name == TO_PAGEABLE and (n or case is not self.cases[0]))]
        for case, n, name in windows:
            if time.monotonic() - self.begun < self.options.seconds:
                case.repeat(n, [name])
                self.save(f"{case.tokens} tokens, {name}")


@torch.no_grad()
def run(options: argparse.Namespace) -> dict[str, Any]:
    torch.manual_seed(0)
    found = Run(options)
    found.ours()
    found.checks()
    found.peers()
    return found.result


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    with device(options):
        result = run(options)
    for target in result["targets"]:
        print(f"{target['state']:9} {target['target']}: {target['found']}")


if __name__ == "__main__":
    main()
