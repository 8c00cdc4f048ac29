"""A decoder's KV cache in host memory, measured on a GPU: StreamedKV of lesson 05 beside its bounds and beside others.

    python benchmarks/kv_offload.py --output FILE            on a CUDA machine, with transformers; ~3 minutes
    python benchmarks/kv_offload.py --small --output FILE    the same code on the simulated device, with small sizes

For each task and chunk size: prefill in chunks, then some tokens one by one, back to back. In each repeat the rates
of the link are measured, then the windows of the programs follow in turn; the bound of a step is the larger of the
resident one's time and that of its copies at the rates of that repeat. The first two steps of prefill and of decode are
cold and are not judged. On an H200 the window that comes first in a repeat was 2 to 5 % slower, so the order alternates
and a ratio is taken within each pair of repeats; its interval is Student's 95 % over the pairs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks import kv_offload_checks, kv_offload_peers
from benchmarks.kv_offload_cases import Case, run_case
from benchmarks.kv_offload_link import Directions
from benchmarks.kv_offload_steps import WORDS, Shape, plan
from benchmarks.kv_offload_tables import targets
from benchmarks.machine import describe_machine
from benchmarks.onload_programs import versions
from benchmarks.two_models_windows import give_back
from utils import simgpu

MIB = 2**20


@dataclass(frozen=True)
class Task:
    """A model, the tokens of a prompt, and the sizes of its chunks; ``extras``: failures, a picture and prefixes."""

    shape: Shape
    tokens: int
    chunks: tuple[int, ...]
    extras: bool = True


TASKS = (Task(Shape("Llama 2 7B", 32, 4096, 32, 32, 11008), 16384, (2048, 4096)),
         Task(Shape("Llama 3 8B", 32, 4096, 32, 8, 14336), 16384, (2048, 4096)),
         Task(Shape("Llama 3 8B, long", 32, 4096, 32, 8, 14336), 32768, (4096,), extras=False))
FULL = {"decode": 10, "repeats": 8, "full": 2, "warm_ups": 2, "piece": 64 * MIB, "copies": 80,
        "prefixes": (1024, 2048, 4096, 8192, 16384)}
SMALL_TASKS = (Task(Shape("Llama 2 7B", 4, 64, 4, 4, 172), 384, (64, 128)),
               Task(Shape("Llama 3 8B", 3, 64, 4, 1, 224), 384, (64, 128)),
               Task(Shape("Llama 3 8B, long", 3, 64, 4, 1, 224), 768, (128,), extras=False))
SMALL = {"decode": 3, "repeats": 2, "full": 1, "warm_ups": 0, "piece": 64 * 1024, "copies": 6, "prefixes": (128, 384)}
SMALL_SCALE = 1 / 32            # of the simulated H200: 64 wide takes as long as 2048


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("kv_offload.json"))
    parser.add_argument("--traces", type=Path, help="folder for one chunk's trace and timeline (that of the output)")
    parser.add_argument("--small", action="store_true", help="on the simulated device, with small sizes")
    parser.add_argument("--only", help="the model of this name alone")
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--seconds", type=float, default=3600, help="begin no further case after that long")
    options = parser.parse_args(arguments)
    if not options.small and not torch.cuda.is_available():
        parser.error("this needs a CUDA device, or --small")
    given = {} if options.repeats is None else {"repeats": options.repeats}
    options.sizes = (SMALL if options.small else FULL) | given
    every = SMALL_TASKS if options.small else TASKS
    options.tasks = [task for task in every if options.only in (None, task.shape.name)]
    if not options.tasks:
        parser.error(f"no model is called {options.only}: there are {', '.join(task.shape.name for task in every)}")
    options.traces = options.traces or options.output.parent
    return options


def device(options: argparse.Namespace) -> AbstractContextManager[Any]:
    return simgpu.session(simgpu.H200.scaled(SMALL_SCALE), keep="all") if options.small else nullcontext()


class Run:
    """Everything in turn; what is done is written to the output as soon as it is."""

    def __init__(self, options: argparse.Namespace):
        self.options, self.sizes, self.begun = options, options.sizes, time.monotonic()
        self.directions = Directions(self.sizes["piece"])
        self.directions.measure(self.sizes["copies"])
        self.result: dict[str, Any] = {"machine": describe_machine() | versions(), "cases": [], "failures": [],
                                       "pictures": [], "prefixes": {}}

    def save(self, part: str) -> None:
        self.result["targets"] = targets(self.result)
        self.options.output.write_text(json.dumps(self.result, indent=1) + "\n", encoding="utf-8")
        print(f"{part}: {time.monotonic() - self.begun:.0f} s", file=sys.stderr, flush=True)

    def late(self) -> bool:
        return time.monotonic() - self.begun > self.options.seconds

    def link(self) -> Any:
        return self.directions.measure(self.sizes["copies"])

    def task(self, task: Task) -> None:
        """All chunk sizes of one model; prefixes, failures and the picture with one of them."""
        shape, tokens, decode, chunks = task.shape, task.tokens, self.sizes["decode"], task.chunks
        model, ids = shape.decoder(tokens + decode), torch.randint(WORDS, (tokens,)).to("cuda")
        self.save(f"{shape.name}, weights")
        give_back()                     # the float32 weights, or the rows of the case before: blocks of other sizes
        counts = [self.sizes[name] for name in ("warm_ups", "repeats", "full")]
        for chunk in chunks:
            if self.late():
                return
            case = Case(shape, model, ids, chunk, decode)
            self.result["cases"].append(run_case(case, self.link, *counts))
            self.save(f"{shape.name}, chunks of {chunk}")
            if task.extras and chunk == chunks[len(chunks) // 2]:
                self.with_one(case)
            if task.extras and chunk == chunks[-1]:
                self.result["prefixes"][shape.name] = kv_offload_peers.prefixes(case, self.sizes["prefixes"], 4)
            del case
            give_back()

    def with_one(self, case: Case) -> None:
        self.result["failures"].append(kv_offload_checks.after_failures(case))
        self.save(f"{case.shape.name}, failures")
        try:
            found = kv_offload_checks.picture(case, self.options.traces)
        except Exception as error:      # the profiler is another's: what it does is no reason to lose the other parts
            found = {"shape": case.shape.name, "error": f"{type(error).__name__}: {error}"}
        self.result["pictures"].append(found)
        self.save(f"{case.shape.name}, picture")

    def transformers(self, task: Task) -> None:
        """Where it is installed; with the chunk size in the middle."""
        self.result["transformers"] = None
        if self.late() or importlib.util.find_spec("transformers") is None:
            return
        chunk, ids = task.chunks[len(task.chunks) // 2], torch.randint(WORDS, (task.tokens,))
        steps = plan(task.tokens, chunk, self.sizes["decode"])
        self.result["transformers"] = kv_offload_peers.transformers_cache(task.shape, ids.to("cuda"), steps, 2)
        self.save("transformers")


@torch.no_grad()
def run(options: argparse.Namespace) -> dict[str, Any]:
    torch.manual_seed(0)
    found = Run(options)
    for task in options.tasks:
        found.task(task)
        give_back()
    if options.only is None:
        found.transformers(next(task for task in reversed(options.tasks) if task.extras))
    found.save("all")
    return found.result


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    options.traces.mkdir(parents=True, exist_ok=True)
    with device(options):
        result = run(options)
    for target in result["targets"]:
        print(f"{target['state']:9} {target['target']}: {target['found']}")


if __name__ == "__main__":
    main()
