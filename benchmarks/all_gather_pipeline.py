"""Part of all_gather.py about a model in two stages, one on each GPU: forward only, more and more micro-batches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.all_gather_models import DTYPE, mlp_weights
from benchmarks.all_gather_world import World, lesson
from benchmarks.onload_windows import summary

IN_LINE, AHEAD = "in the compute stream", "queued ahead"


class Stage:
    """This rank's half of the layers. Stage 0 makes the inputs, stage 1 has the outputs."""

    def __init__(self, world: World, weights: list[torch.Tensor], tokens: int):
        half = len(weights) // 2
        self.world, self.weights = world, weights[:half] if world.rank == 0 else weights[half:]
        self.shape = (tokens, weights[0].shape[0])

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = x @ weight
        return x

    def alone(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        return [self.compute(x) for x in inputs]

    def in_line(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Send and receive between the products, as if they were products, too."""
        outputs = []
        for x in inputs:
            if self.world.rank:
                dist.recv(x := torch.empty_like(x), 0)
            outputs.append(self.compute(x))
            if self.world.rank == 0:
                dist.send(outputs[-1], 1)
        return outputs

    def ahead(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """All receives are queued at the start, and nobody waits for a send before the end."""
        outputs, sends, received = [], [], inputs
        if self.world.rank:
            received = [torch.empty_like(x) for x in inputs]
            receives = [dist.irecv(x, 0) for x in received]
        for n, x in enumerate(received):
            if self.world.rank:
                receives[n].wait()
            outputs.append(self.compute(x))
            if self.world.rank == 0:
                sends.append(dist.isend(outputs[-1], 1))
        for send in sends:
            send.wait()
        return outputs


def timed_ms(world: World, run: Callable[[], Any]) -> float:
    """From when all ranks are ready to when the last one is done."""
    world.wait()
    begin = time.perf_counter()
    run()
    if not world.small:
        torch.cuda.synchronize()
    return world.agree(1000 * (time.perf_counter() - begin))


def two_stages(world: World, sizes: dict[str, Any]) -> None:
    weights = mlp_weights(world, sizes["layers"], sizes["width"])
    stage, rows = Stage(world, weights, sizes["stage_tokens"]), []
    generator = torch.Generator().manual_seed(2)                     # the same inputs on both, to check the outputs
    inputs = [torch.randn(stage.shape, generator=generator).to(DTYPE).to(world.plain)
              for _ in range(max(sizes["micro"]))]
    ways = {IN_LINE: stage.in_line, AHEAD: stage.ahead}
    for way in ways.values():                                        # warm-up: the first send connects the ranks
        way(inputs[:2])
    world.keep("shape", {"layers": sizes["layers"], "tokens": sizes["stage_tokens"],
                         "sent_bytes": inputs[0].nbytes})
    for m in sizes["micro"]:
        found: dict[str, list[float]] = {name: [] for name in (*ways, "products alone")}
        for _ in range(sizes["stage_repeats"]):
            for name, way in ways.items():
                found[name].append(timed_ms(world, partial(way, inputs[:m])))
            found["products alone"].append(timed_ms(world, partial(stage.alone, inputs[:m])))
        shares = {name: [1 - busy / wall for busy, wall in zip(found["products alone"], found[name], strict=True)]
                  for name in ways}
        rows.append({"micro_batches": m, "formula": round(lesson.bubble_formula(2, m), 5),
                     "wrong": checked(world, stage, weights, inputs[:m], ways),
                     "ms": {name: summary(values) for name, values in found.items()},
                     "bubble_share": {name: {"median": round(statistics.median(values), 5),
                                             "all": [round(value, 5) for value in values]}
                                      for name, values in shares.items()}})
        world.keep("rows", rows)


def checked(world: World, stage: Stage, weights: list[torch.Tensor], inputs: list[torch.Tensor],
            ways: dict[str, Callable[[list[torch.Tensor]], list[torch.Tensor]]]) -> dict[str, int]:
    """How many outputs of the last stage are not those of all layers in one place, bit for bit."""
    wrong = {}
    for name, way in ways.items():
        outputs = way(inputs)
        expected = []
        for x in inputs:
            for weight in weights:
                x = x @ weight
            expected.append(x)
        differ = sum(not torch.equal(one, other) for one, other in zip(outputs, expected, strict=True))
        wrong[name] = int(world.agree(differ if world.rank else 0))
    return wrong
