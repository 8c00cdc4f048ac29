"""Judge of the ring of N slots: whole calls back to back, and an upload that holds the link for a while."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..answercode import pin_advice
from ..check import Answer
from ..device import (
    CALLS_US,
    RATIOS,
    SLACK,
    WEIGHT_BYTES,
    WIDTH,
    Run,
    Setting,
    busy_host,
    passed,
    refuse,
    refute_race,
    run_once,
    skipped_work,
)
from ..layers import FLOPS, ROWS, batch, changed, digest_of, expected, pinned
from ..values import shown
from ..verdict import Verdict
from .delays import computed_us, from_pageable, lost_time, reference, reuse_hint, uploaded

if TYPE_CHECKING:
    from ...simgpu import Hazard

PUZZLE = "RingOnload"
TICKS = ("correct", "race-free", "memory", "time")
ACTIVATION_BYTES = 4 * ROWS * WIDTH
SPARE_BYTES = 0.55 * WEIGHT_BYTES   # not judged: two more activations
CHANGED, CHANGED_WEIGHTS = "a changed x", "changed host_weights"
HINT = ("Which slot is written here, and which product read it last? A number of copies and products that counts on "
        "over all calls tells both.")
SIDE = ("The stream that is current in a call need not be the one of the constructor: ask for "
        "torch.cuda.current_stream() in the call.")


@dataclass(frozen=True)
class Case:
    """One configuration; ``upload``: how many copies long an unrelated upload behind the first call is; ``side``: from
    which call on calls come from another stream than the one on which the model is made; ``refilled``: every call gets
    the same tensor, with other contents."""

    layers: int
    slots: int
    calls: int = 3
    upload: float = 0
    ratios: tuple[float, ...] = RATIOS
    side: int | None = None
    refilled: bool = False

    def __str__(self) -> str:
        says = f"{self.layers} layer{'s' * (self.layers > 1)}, {self.slots} slot{'s' * (self.slots > 1)}"
        if self.side is not None:
            says += ", called from another stream" + (f" from call {self.side} on" if self.side else "")
        says += ", the same x with other contents in each call" if self.refilled else ""
        return says + (f", behind call 0 another upload as long as {self.upload:g} copies" if self.upload else "")

    @property
    def wanted(self) -> list[Any]:
        """The digest of each call's result."""
        return [expected(call, ROWS, self.layers) for call in range(self.calls)]

    def setting(self, values: bool = True) -> Setting:
        from ... import simgpu

        return Setting(PUZZLE, self._prepare, lambda result, given: _read(result, *given) if values else None,
                       simgpu.RTX_5060_LAPTOP, self._use_memory, flops=FLOPS)

    def _prepare(self) -> tuple[tuple[Any, ...], Any]:
        import torch

        from ... import simgpu

        inputs = [simgpu.name(batch(call).to("cuda"), f"x of call {call}") for call in range(self.calls)]
        inputs[0] @ inputs[0].T   # the library's workspace is there before memory is counted
        other = None
        if self.upload:
            elements = int(self.upload * WIDTH**2)
            other = torch.cuda.Stream(), torch.ones(elements).pin_memory(), torch.empty(elements, device="cuda")
        host, here = pinned(self.layers), torch.cuda.current_stream()
        side = simgpu.name(torch.cuda.Stream(), "side stream") if self.side is not None else here
        callers = [side if self.side is not None and call >= self.side else here for call in range(self.calls)]
        given = [simgpu.name(torch.empty_like(inputs[0]), "x")] if self.refilled else []
        return (list(host), self.slots, list(inputs), callers, other, given), (inputs, host)

    def _use_memory(self, _: Any) -> None:
        """Work in memory that is given back at once: whoever gets it next must not write before this is done."""
        import torch

        scratch = [torch.empty(WIDTH, WIDTH, device="cuda") for _ in range(self.slots)]
        for block in scratch:
            block[:1].fill_(-1)


CASES = (Case(3, 2), Case(4, 3), Case(24, 5, ratios=(0.5, 2.0)), Case(1, 2), Case(3, 1),
         Case(4, 2, ratios=(0.5, 2.0), side=0), Case(3, 2, ratios=(0.5,), side=1),
         Case(3, 2, ratios=(0.5,), refilled=True),
         Case(8, 4, calls=2, upload=4.5, ratios=(0.5,)))


def drive(answer: Answer) -> Answer:
    """A function that makes the learner's model once and calls it with every input, back to back."""
    def calls(host: list[Any], slots: int, inputs: list[Any], callers: list[Any], other: tuple[Any, ...] | None,
              given: list[Any]) -> Any:
        import torch

        model, results = answer(host, slots), []
        for x, caller in zip(inputs, callers, strict=True):   # whose streams wait for nothing, as x is there
            with torch.cuda.stream(caller):
                results.append(model(given[0].copy_(x) if given else x))
                if other and len(results) == 1:
                    _upload(*other)
        for caller in callers:
            torch.cuda.current_stream().wait_stream(caller)
        return results, model   # which stays alive until the results are read
    calls.__signature__ = inspect.signature(calls)
    calls.__wrapped__ = answer.__call__ if isinstance(answer, type) else answer   # whose lines are the learner's
    return calls


def _upload(stream: Any, source: Any, target: Any) -> None:
    import torch

    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        target.copy_(source, non_blocking=True)


def _read(result: Any, inputs: list[Any], host: list[Any]) -> list[Any]:
    import torch

    torch.cuda.synchronize()
    if changed(host, len(host)):
        return [CHANGED_WEIGHTS] * len(inputs)
    kept = [digest_of(x) == expected(call, ROWS, 0) for call, x in enumerate(inputs)]
    return [digest_of(y) if same else CHANGED for y, same in zip(result[0], kept, strict=True)]


def judge_ring_onload(answer: Answer) -> Verdict:
    """``RingOnload(host_weights, slots)`` is called several times without a wait between the calls."""
    drawn, most = None, 0
    for case in CASES:
        setting = case.setting()
        runs = [run_once(setting, drive(answer), ratio) for ratio in case.ratios]
        refute_race(setting, drive(answer), runs, case.wanted, TICKS, lambda given, right: given == right,
                    lambda run, hazard, case=case: _hint(case, hazard))
        _refute_values(case, runs)
        goals = [_goal(case, ratio) for ratio in case.ratios]
        for run in runs:
            _judge_memory(case, run)
        for run, goal in zip(runs, goals, strict=True):
            _judge_work(case, run, goal)
            _judge_time(case, run, goal)
        drawn = drawn or (runs[2], goals[2])   # copy/compute 1
        most = max(most, runs[0].allocations - goals[0].allocations - case.layers)
    whys = ("every call, bit for bit", "every order is stated", "no more than the slots and the activations",
            "as fast as the worked answer, and the host only launches")
    advice = ["device memory is taken for each layer anew, which costs host time: keep the slots"] if most > 0 else []
    return passed(PUZZLE, TICKS, whys, *drawn, tried=tried(), advice=advice + pin_advice(answer))


def _hint(case: Case, hazard: Hazard) -> str:
    where = ", in the constructor, whatever stream is current in a call" if case.side is not None else ""
    if says := reuse_hint(hazard, where):
        return f"{says} ({case}.)"
    return f"({case}. {SIDE if case.side is not None else HINT})"


@lru_cache(maxsize=64)
def _goal(case: Case, ratio: float) -> Run:
    return run_once(case.setting(values=False), drive(reference(PUZZLE)), ratio, numerics="shapes")


def tried() -> str:
    """The configurations that were judged."""
    texts = [f"{case}, {case.calls} calls, copy/compute {', '.join(f'{ratio:g}' for ratio in case.ratios)}"
             for case in CASES]
    return "; ".join(texts)


def _refute_values(case: Case, runs: list[Run]) -> None:
    for run in runs:
        if run.value == case.wanted:
            continue
        call = next(call for call, right in enumerate(case.wanted) if run.value[call] != right)
        given = run.value[call]
        says = (f"Every order is stated, but the result of call {call} has checksum {shown(given)} instead of "
                f"{shown(case.wanted[call])}. Which layer is in the slot that each product reads? A copy must not be "
                "queued before the product that reads what it overwrites.")
        if given == CHANGED:
            says = f"x of call {call} was changed. It belongs to the caller: make a new tensor instead."
        elif given == CHANGED_WEIGHTS:
            says = "host_weights were changed. They belong to the caller: make new tensors instead of overwriting them."
        elif case.refilled and given in case.wanted[:call]:
            says = (f"Call {call} returned the result of an earlier call. It got the same tensor, but x holds other "
                    "numbers by now: what is in it counts, in every call.")
        elif given in case.wanted[call + 1:]:
            says = f"The result of call {call} is now that of a later call: its memory was used again."
        elif given == "nan":
            says = f"The result of call {call} holds memory that nothing has written. Was each slot loaded?"
        elif isinstance(given, str):
            says = f"Call {call} returned {given}. Return the product with all layers, a tensor on the GPU."
        raise refuse(PUZZLE, TICKS, "correct", f"call {call}, {case}, copy/compute {run.ratio:g}", says, run.trace)


def _judge_work(case: Case, run: Run, goal: Run) -> None:
    steps = case.layers * case.calls
    if says := skipped_work(run, goal, uploaded(run, WEIGHT_BYTES), steps * WEIGHT_BYTES):
        raise refuse(PUZZLE, TICKS, "correct", f"{case.calls} calls of {case.layers} layers need {steps} copies and "
                     "products", f"The numbers are right, but {says} Copy each layer and multiply by it in every call: "
                     "with real weights, a product of all layers is neither exact nor the same model.", run.trace, goal)


def _judge_time(case: Case, run: Run, goal: Run) -> None:
    if busy := busy_host(run, goal, case.calls):
        raise refuse(PUZZLE, TICKS, "time", f"the host does not only launch, {case}",
                     f"Correct, but {busy}{from_pageable(run)}", run.trace, goal)
    took, target = computed_us(run), computed_us(goal)
    if took <= target * SLACK + CALLS_US:
        return
    why = lost_time(run, case.layers, case.slots, [WEIGHT_BYTES] * case.layers, case.calls)
    raise refuse(PUZZLE, TICKS, "time", f"{took:.0f} µs, {case}, copy/compute {run.ratio:g}",
                 f"Correct, but {took:.0f} µs for {case.calls} calls instead of {target:.0f}. {why}", run.trace, goal)


def _judge_memory(case: Case, run: Run) -> None:
    budget = case.slots * WEIGHT_BYTES + (case.calls + 1) * ACTIVATION_BYTES
    if run.peak_bytes <= budget + SPARE_BYTES:
        return
    more = round((run.peak_bytes - budget) / WEIGHT_BYTES) or 1
    raise refuse(PUZZLE, TICKS, "memory", f"{run.peak_bytes >> 10} KiB at the peak, {case}",
                 f"Correct, but {run.peak_bytes >> 10} KiB instead of {budget >> 10}: as much as {more} more "
                 f"slot{'s' * (more > 1)} of {WEIGHT_BYTES >> 10} KiB. Layers get {case.slots} "
                 f"slot{'s' * (case.slots > 1)}, taken once; every layer is copied into one of them.", run.trace)
