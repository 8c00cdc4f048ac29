"""Judge of the second puzzle: load, update and store a layer's KV through three slots, in three lanes at once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..check import Answer
from ..defaults import usual_defaults
from ..device import GEMM_FLOPS, RATIOS, Run, Setting
from ..layers import batch, changed, digest_of, expected, layer
from ..verdict import Verdict
from .data import WEIGHT_BYTES, WIDTH, Outcome, digest_on_host, host_part, on_gpu, one_engine, part_of, two_engines
from .judge import Judge, stream_names
from .lanes import Key, Late, Shape, Steps

if TYPE_CHECKING:
    from ...simgpu import Hazard

PUZZLE = "three_lanes"
SLOTS = 3
FEW = (0.5, 2.0)
KV = 300          # of the batches: the first that is a layer's KV
KERNELS = ("addmm", "add_")


@dataclass(frozen=True)
class Case:
    """So many layers and calls in a row; ``side``: they come from another stream than the default one; ``engines``: of
    the device, for copies."""

    layers: int
    calls: int = 1
    side: bool = False
    engines: int = 2

    def __str__(self) -> str:
        words = [f"{self.layers} layer{'' if self.layers == 1 else 's'}"]
        words += [f"{self.calls} calls in a row"] * (self.calls > 1) + ["on another stream"] * self.side
        return " ".join([words[0], *(f"({word})" for word in words[1:] + ["one copy engine"] * (self.engines == 1))])


@dataclass
class Kept:
    """What a run leaves to be looked at; ``places``: the addresses of the KV that layers got."""

    case: Case
    inputs: list[Any]
    weights: list[Any]
    kv_host: list[Any]
    storing: Any
    places: set[int] = field(default_factory=set)


@lru_cache(maxsize=64)
@usual_defaults()
def right_values(layers: int, calls: int) -> tuple[tuple[Any, ...], tuple[tuple[Any, ...], ...]]:
    """Digests of every call's result, and of every layer's KV before the first call and behind each."""
    kv, results = [batch(KV + i, WIDTH) for i in range(layers)], []
    history = [tuple(map(digest_on_host, kv))]
    for call in range(calls):
        x = batch(call, WIDTH)
        for i in range(layers):
            x = kv[i] + x @ layer(i)
            kv[i] = kv[i] + x
        results.append(digest_on_host(x))
        history.append(tuple(map(digest_on_host, kv)))
    return tuple(results), tuple(history)


class ThreeLanes(Judge):
    """Loads on ``loading``, layers on the current stream, stores on ``storing``."""

    puzzle = PUZZLE
    cases = ((Case(5), RATIOS), (Case(8), (0.5, 1.0, 2.0)), (Case(4), FEW),
             *((Case(layers), (1.0,)) for layers in (1, 2, 3, 24)),
             *((Case(layers, calls=2), FEW) for layers in (4, 5)), (Case(1, calls=2), (1.0,)),
             (Case(5, side=True), FEW), (Case(7, engines=1), FEW))
    picture = (Case(8), 1.0)
    in_memory = "nothing beside the three slots and two outputs of layers at a time"
    in_time = "three lanes at once, and the host only launches"
    buffers = SLOTS
    given = "the three slots"
    instead = "Everything goes through the slots, and an output is read by the next layer alone."

    def setting(self, case: Case) -> Setting:
        profile = one_engine() if case.engines == 1 else two_engines()
        return Setting(PUZZLE, lambda: self._arguments(case), _read, profile,
                       start=lambda kept: kept.inputs[0].mul_(1.0), flops=GEMM_FLOPS, side=case.side,
                       streams=stream_names("loading", "storing", first=4))

    def program(self, case: Case, answer: Answer) -> Answer:
        """One call, or several with the same arguments but x, of which ``x`` is a list then."""
        if case.calls == 1:
            return answer

        def caller(inputs: list[Any], *rest: Any) -> list[Any]:
            return [answer(x, *(list(part) if isinstance(part, list) else part for part in rest)) for x in inputs]
        caller.__signature__ = inspect.Signature(
            [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in NAMES])
        caller.__wrapped__ = answer
        return caller

    def _arguments(self, case: Case) -> tuple[tuple[Any, ...], Kept]:
        import torch

        from ... import simgpu

        inputs = [simgpu.name(batch(call, WIDTH).to("cuda"), f"x of call {call + 1}" if case.calls > 1 else "x")
                  for call in range(case.calls)]
        kv_host = [simgpu.name(batch(KV + i, WIDTH).clone().pin_memory(), f"kv_host[{i}]") for i in range(case.layers)]
        slots = [simgpu.name(layer(90 + i).to("cuda"), f"slots[{i}]") for i in range(SLOTS)]   # old contents
        loading, storing = (simgpu.name(torch.cuda.Stream(), name) for name in ("loading", "storing"))
        kept = Kept(case, inputs, on_gpu(range(case.layers)), kv_host, storing)
        layers = [_layer(i, kept) for i in range(case.layers)]
        x = inputs[0] if case.calls == 1 else list(inputs)
        return (x, layers, list(kv_host), slots, loading, storing), kept

    def shape(self, case: Case) -> Shape:
        total = case.layers * case.calls

        def words(key: Key) -> str:
            call = f" of call {key.number // case.layers + 1}" if case.calls > 1 else ""
            what = "" if key.kind == "layer" else f"the {key.kind} of "
            return f"{what}layer {key.number % case.layers}{call}"
        return Shape({"load": total, "layer": total, "store": total}, words, KERNELS, len(KERNELS))

    def needs(self, case: Case, key: Key) -> Iterable[Key]:
        before = Key(key.kind, key.number - 1)
        if key.kind != "load":
            return before, Key("load" if key.kind == "layer" else "layer", key.number)
        call, number = divmod(key.number, case.layers)
        if call and number == 0:
            return before, Key("store", key.number - 1)
        return before, Key("store", key.number - SLOTS)

    def hint(self, run: Run, hazard: Hazard, case: Case) -> str:
        if "kv_host[" in hazard.buffer and hazard.host and run.later and hazard in run.later:
            return "(The caller waits for the current stream and for storing, and then reads kv_host.)"
        if case.calls > 1:   # one call alone was clean
            return ("(A call begins while the call before is still storing, from the same slots into what is to be "
                    "loaded: its loads have to wait for those stores, which are in another stream.)")
        if "slots[" in hazard.buffer and hazard.kind != "RAW":
            return "(A slot is free when its KV is stored, not when its layer is done.)"
        return ""

    def allowed(self, case: Case) -> int:
        return (2 + case.calls - 1) * WEIGHT_BYTES   # the caller keeps the results of the calls before

    def why_late(self, run: Run, case: Case) -> str:
        used = run.value.buffers
        if used < min(SLOTS, case.layers):
            return (f"{used} of the {SLOTS} slots {'is' if used == 1 else 'are'} used, so that no layer can be loaded, "
                    f"another computed and a third stored at the same time. {super().why_late(run, case)}")
        return super().why_late(run, case)

    def because(self, late: Late, steps: Steps, run: Run, case: Case) -> str:
        return super().because(late, steps, run, case) if run.value.buffers >= min(SLOTS, case.layers) else ""

    def wrong_value(self, run: Run, case: Case) -> str:
        results, history = right_values(case.layers, case.calls)
        for part in run.value.wrong:
            if part.name.startswith("kv_host["):
                i = int(part.name[8:-1])
                if part.seen in [stage[i] for stage in history[:-1]]:
                    last = "last " if case.calls > 1 else ""
                    return (f"{part.name} is as it was before the {last}call: was it loaded, changed by its layer, and "
                            "stored after that?")
        if case.calls > 1 and results[0] not in [part.wanted for part in run.value.wrong]:
            return ("The first call is right, the second is not: it has to begin with the KV that the first one has "
                    "stored.")
        return "Which layer's KV is in the slot that each layer gets, and which is there when it is stored?"


NAMES = ("x", "layers", "kv_host", "slots", "loading", "storing")


def _layer(number: int, kept: Kept) -> Callable[[Any, Any], Any]:
    """A layer with its weights: reads its KV and its input, changes the KV in place, and returns its output."""

    def run_layer(x: Any, kv: Any) -> Any:
        import torch

        kept.places.add(kv.data_ptr())
        with torch.profiler.record_function(f"layer {number}"):
            y = torch.addmm(kv, x, kept.weights[number])
            kv.add_(y)
        return y
    return run_layer


def _read(result: Any, kept: Kept) -> Outcome:
    """Read as the caller does: results on the current stream, the host's KV when that and ``storing`` are done."""
    import torch

    case = kept.case
    results, history = right_values(case.layers, case.calls)
    given = [result] if case.calls == 1 else result
    names = ["the result"] if case.calls == 1 else [f"result {call + 1}" for call in range(case.calls)]
    parts = [part_of(*values) for values in zip(names, given, results, strict=True)]
    torch.cuda.current_stream().synchronize()
    kept.storing.synchronize()
    parts += [host_part(f"kv_host[{i}]", kv, history[-1][i]) for i, kv in enumerate(kept.kv_host)]
    changed_x = any(digest_of(x, WIDTH) != expected(call, WIDTH, 0) for call, x in enumerate(kept.inputs))
    touched = "x" if changed_x else ""
    if changed([weight.cpu() for weight in kept.weights], len(kept.weights)):
        touched = "a layer"
    return Outcome(tuple(parts), touched, len(kept.places))


def judge_three_lanes(answer: Answer) -> Verdict:
    """Every layer's KV loaded, changed and stored, race-free, three slots, three lanes at once."""
    return ThreeLanes().run(answer)
