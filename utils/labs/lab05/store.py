"""Judge of the first puzzle: store every layer's output through two staging buffers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..check import Answer
from ..device import GEMM_FLOPS, RATIOS, Run, Setting
from ..layers import batch, changed, digest_of, expected, layer
from ..verdict import Verdict
from .data import WIDTH, Outcome, host_part, on_gpu, outputs, part_of, stale, stale_value, two_engines
from .judge import Judge, stream_names
from .lanes import Key, Shape, steps_in

if TYPE_CHECKING:
    from ...simgpu import Hazard

PUZZLE = "store_each"
STAGING = 2
FEW = (0.5, 2.0)


@dataclass(frozen=True)
class Case:
    """So many layers; ``side``: the call comes from another stream than the default one."""

    layers: int
    side: bool = False

    def __str__(self) -> str:
        count = f"{self.layers} layer{'' if self.layers == 1 else 's'}"
        return f"{count}, on another stream" if self.side else count


@dataclass
class Kept:
    """What a run leaves to be looked at."""

    case: Case
    x: Any
    weights: list[Any]
    host: list[Any]
    storing: Any


class StoreEach(Judge):
    """Products on the current stream, stores on ``storing``, two buffers between them."""

    puzzle = PUZZLE
    cases = (*((Case(layers), RATIOS) for layers in (5, 8, 1, 2, 3)), (Case(24), (0.5,)), (Case(4, side=True), FEW))
    picture = (Case(5), 1.0)
    in_memory = "nothing beside the two staging buffers"
    in_time = "k + (L - 1) max + s, and the host only launches"
    buffers = STAGING
    given = "the two staging buffers"
    instead = "A product can write into a buffer, torch.mm(x, weight, out=staging[slot]), and its store reads it there."

    def setting(self, case: Case) -> Setting:
        return Setting(PUZZLE, lambda: self._arguments(case), _read, two_engines(),
                       start=lambda kept: kept.x.mul_(1.0), flops=GEMM_FLOPS, side=case.side,
                       streams=stream_names("storing", first=4))

    def _arguments(self, case: Case) -> tuple[tuple[Any, ...], Kept]:
        import torch

        from ... import simgpu

        x, weights = simgpu.name(batch(1, WIDTH).to("cuda"), "x"), on_gpu(range(case.layers))
        for i, weight in enumerate(weights):
            simgpu.name(weight, f"weights[{i}]")
        staging = [simgpu.name(layer(90 + i).to("cuda"), f"staging[{i}]") for i in range(STAGING)]   # old contents
        host = [stale(i, f"host[{i}]") for i in range(case.layers)]
        kept = Kept(case, x, weights, host, simgpu.name(torch.cuda.Stream(), "storing"))
        return (x, list(weights), staging, list(host), kept.storing), kept

    def shape(self, case: Case) -> Shape:
        return Shape({"layer": case.layers, "store": case.layers}, _words)

    def needs(self, case: Case, key: Key) -> Iterable[Key]:
        before = Key(key.kind, key.number - 1)
        return (before, Key("layer", key.number)) if key.kind == "store" else (before, Key("store", key.number - 2))

    def hint(self, run: Run, hazard: Hazard, case: Case) -> str:
        if "host[" in hazard.buffer:
            return "(The caller waits for the current stream and for storing, and then reads host.)"
        steps = steps_in(run.trace, hazard, self.shape(case))
        if len(steps) == 2 and steps[0].kind != steps[1].kind and (steps[0].number - steps[1].number) % STAGING:
            return TURNS
        return ""

    def wrong_value(self, run: Run, case: Case) -> str:
        wrong = {part.name: part.seen for part in run.value.wrong}
        right = outputs(1, case.layers)
        for i in range(case.layers):
            if (seen := wrong.get(f"host[{i}]")) in right:
                return f"host[{i}] holds the output of layer {right.index(seen)}."
            if seen == stale_value(i):
                return f"host[{i}] holds what it held before the call: it was never written."
        return "Does every store read the buffer that its layer wrote, and before another layer writes it?"


TURNS = ("(If the buffers take turns, and each store reads the one that its own product has written, these two have "
         "nothing in common: is it the right buffer that is written, and the right one that is stored?)")


def _words(key: Key) -> str:
    return f"the {'product' if key.kind == 'layer' else 'store'} of layer {key.number}"


def _read(result: Any, kept: Kept) -> Outcome:
    """Read as the caller does: the result on the current stream, the host's tensors when both streams are done."""
    import torch

    right = outputs(1, kept.case.layers)
    parts = [part_of("the result", result, right[-1])]
    torch.cuda.current_stream().synchronize()
    kept.storing.synchronize()
    parts += [host_part(f"host[{i}]", tensor, right[i]) for i, tensor in enumerate(kept.host)]
    touched = "x" if digest_of(kept.x, WIDTH) != expected(1, WIDTH, 0) else ""
    if changed([weight.cpu() for weight in kept.weights], len(kept.weights)):
        touched = "weights"
    return Outcome(tuple(parts), touched)


def judge_store_each(answer: Answer) -> Verdict:
    """Every output in host memory, race-free, two buffers, k + (L - 1) max + s."""
    return StoreEach().run(answer)
