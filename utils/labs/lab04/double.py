"""Judge of the first puzzle: one cold call through two given buffers."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from functools import lru_cache, partial, wraps
from typing import TYPE_CHECKING, Any

from ..answercode import PINNED, names_in
from ..check import Answer
from ..device import (
    CALLS_US,
    ELSEWHERE,
    RATIOS,
    SLACK,
    Run,
    Setting,
    busy_host,
    passed,
    refuse,
    refute_race,
    run_once,
    skipped_work,
)
from ..layers import FLOPS, ROWS, WEIGHT_BYTES, batch, bytes_taken, changed, digest_of, expected, layer, pinned
from ..memory import ALL_KEPT, SPARE
from ..spans import copies, pageable, spans_of
from ..values import shown
from ..verdict import Verdict
from ..work import hurries, many_launches
from .causes import REUSED, first_late, who
from .delays import reference

if TYPE_CHECKING:
    from ...simgpu import Hazard

PUZZLE = "double_buffer"
TICKS = ("correct", "race-free", "memory", "time")
LAYERS = (5, 8, 1, 2, 3)          # 5 first: it shows what goes wrong between layers
LONG, SIDE, FEW = (23, 24), 4, (0.5, 2.0)
NO_MORE = " Copy into the given buffers, and make no others."


@dataclass(frozen=True)
class Outcome:
    """The result's digest as the caller sees it, which input was changed, if any, and the bytes of memory taken, if
    suspiciously often."""

    seen: Any
    touched: str
    taken: int = 0

    def __repr__(self) -> str:
        return shown(self.seen)


@dataclass(frozen=True)
class Case:
    """So many layers; ``side``: the call comes from another stream than the default one."""

    layers: int
    side: bool = False

    def __str__(self) -> str:
        count = f"{self.layers} layer{'' if self.layers == 1 else 's'}"
        return f"{count}, on another stream" if self.side else count

    @property
    def bytes(self) -> int:
        """Of all layers."""
        return self.layers * WEIGHT_BYTES


@dataclass
class Kept:
    """What a run leaves to be looked at; ``taken``: bytes of device memory, where it was taken suspiciously often."""

    x: Any
    weights: list[Any]
    taken: int = 0


CASES = [(Case(layers), RATIOS) for layers in LAYERS]
CASES += [(Case(layers), FEW) for layers in LONG] + [(Case(SIDE, side=True), FEW)]
PICTURE = (CASES[0][0], 1.0)


def judge_double_buffer(answer: Answer) -> Verdict:
    """One cold call: right, race-free, nothing but two buffers and activations, c + (L - 1) * max + k."""
    runs: dict[tuple[Case, float], Run] = {}
    for case, ratios in CASES:
        found: list[Run] = []
        for ratio in ratios:
            found.append(_run(case, answer, ratio))
            if busy := hurries(found[-1], _goal(case, ratio)):
                break
        _refute_kind(found)
        refute_race(_setting(case, []), answer, found, expected(1, ROWS, case.layers), TICKS, _same,
                    partial(_hint, case=case))
        _refute_values(found, case)
        _refute_skipped(found, case)
        runs |= {(case, run.ratio): run for run in found}
        if busy:
            break
    for judge in (_judge_memory, _judge_time):
        for (case, ratio), run in runs.items():
            judge(run, _goal(case, ratio), case)
    whys = ("the result, bit for bit", "every order is stated", "two buffers and the activations",
            "c + (L - 1) max + k, and the host only launches")
    return passed(PUZZLE, TICKS, whys, runs[PICTURE], _goal(*PICTURE), advice_on(answer), _tried())


def advice_on(answer: Answer) -> list[str]:
    """What costs nothing on the simulated device, but on a GPU: pinning in every call."""
    own = [answer]
    if inspect.isclass(answer):
        own = [part for base in answer.__mro__[:-1] for name, part in vars(base).items() if name != "__init__"]
    return [PINNED] if any("pin_memory" in names_in(part) for part in own if inspect.isfunction(part)) else []


def _tried() -> str:
    few, long = (", ".join(map(str, sorted(counts))) for counts in (LAYERS, LONG))
    ratios, some = (", ".join(f"{ratio:g}" for ratio in chosen) for chosen in (RATIOS, FEW))
    return (f"{few} layers with copy/compute {ratios}; {long} layers with {some}; {SIDE} layers with {some}, called on "
            "another stream than the default one")


def _run(case: Case, answer: Answer, ratio: float) -> Run:
    kept: list[Kept] = []
    run = run_once(_setting(case, kept), _watched(answer, kept), ratio)
    return replace(run, value=replace(run.value, taken=kept[-1].taken))


def _watched(answer: Answer, kept: list[Kept]) -> Answer:
    """The function, with a look at what it took from the allocator."""
    @wraps(answer)
    def watched(*arguments: Any) -> Any:
        import torch

        from ... import simgpu

        before, began = torch.cuda.memory_stats()["allocation.all.allocated"], simgpu.clock()
        result = answer(*arguments)
        if torch.cuda.memory_stats()["allocation.all.allocated"] - before > 2 * len(kept[-1].weights):
            kept[-1].taken = bytes_taken(began)
        return result
    return watched


def _setting(case: Case, kept: list[Kept]) -> Setting:
    from ... import simgpu

    return Setting(PUZZLE, lambda: _arguments(case.layers, kept), _read, simgpu.RTX_5060_LAPTOP,
                   start=lambda kept: kept.x.mul_(1.0), flops=FLOPS, side=case.side,
                   streams=lambda arguments: {"copy_stream": arguments[3]})


def _arguments(layers: int, kept: list[Kept]) -> tuple[tuple[Any, ...], Kept]:
    import torch

    from ... import simgpu

    weights, x = pinned(layers), simgpu.name(batch(1).to("cuda"), "x")
    buffers = [simgpu.name(layer(90 + i).to("cuda"), f"buffers[{i}]") for i in range(2)]   # old contents
    stream = simgpu.name(torch.cuda.Stream(), "copy_stream")
    kept.append(Kept(x, weights))
    return (x, list(weights), buffers, stream), kept[-1]


def _read(result: Any, kept: Kept) -> Outcome:
    """Read on the current stream, as a caller does."""
    import torch

    seen = digest_of(result)
    torch.cuda.synchronize()
    if digest_of(kept.x) != expected(1, ROWS, 0):
        return Outcome(seen, "x")
    return Outcome(seen, "host_weights" if changed(kept.weights, len(kept.weights)) else "")


def _same(given: Outcome, wanted: Any) -> bool:
    return given.seen == wanted


def _hint(run: Run, hazard: Hazard, case: Case) -> str:
    """Which layers the two operations of a hazard belong to, and what is special about this run."""
    began = min(span.queued for span in spans_of(run.trace, "kernel"))   # by the caller, who makes x
    hints = [who(run.trace, hazard, case.layers, [(began, float("inf"))]), ELSEWHERE if case.side else "",
             REUSED if "was freed" in hazard.remark else ""]
    return "\n".join(filter(None, hints))


def _refute_kind(runs: list[Run]) -> None:
    if odd := next((run for run in runs if isinstance(run.value.seen, str) and run.value.seen != "nan"), None):
        raise refuse(PUZZLE, TICKS, "correct", f"returned {odd.value.seen}",
                     "Return the output of the last layer, a tensor on the GPU.", odd.trace)


def _refute_values(runs: list[Run], case: Case) -> None:
    for run in runs:
        seen, touched, wanted = run.value.seen, run.value.touched, expected(1, ROWS, case.layers)
        if touched:
            raise refuse(PUZZLE, TICKS, "correct", f"{touched} was changed",
                         f"{touched} belongs to the caller: make new tensors instead of overwriting it.", run.trace)
        if seen == "nan":
            raise refuse(PUZZLE, TICKS, "correct", f"read before written, {case}",
                         "The result holds memory that nothing has written.", run.trace)
        if seen != wanted:
            raise refuse(PUZZLE, TICKS, "correct", f"{case}, copy/compute {run.ratio:g}",
                         f"Every order is stated, but the result is another: checksum {shown(seen)} instead of "
                         f"{shown(wanted)}. Is every layer used once, in order, out of the buffer that it was copied "
                         "to?", run.trace)


def _refute_skipped(runs: list[Run], case: Case) -> None:
    """Refuse unless every layer was copied, where the text says, and multiplied."""
    for run in runs:
        loads, stream = copies(run.trace), run.streams["copy_stream"]
        there = sum(load.bytes for load in loads if load.stream == stream)
        everywhere = sum(load.bytes for load in loads)
        if skipped := skipped_work(run, _goal(case, run.ratio), everywhere, case.bytes):
            raise refuse(PUZZLE, TICKS, "correct", f"not every layer is copied and multiplied, {case}",
                         f"The result is right, but {skipped} Copy every layer as it is, and multiply x by one "
                         "after the other.", run.trace)
        if there < case.bytes:
            raise refuse(PUZZLE, TICKS, "correct", f"copies on another stream than copy_stream, {case}",
                         f"The text asks for a copy on copy_stream, of every layer. {there / WEIGHT_BYTES:g} of "
                         f"{case.layers} layers were copied there. Launches go into the stream that is current: put "
                         "them inside `with torch.cuda.stream(copy_stream):`.", run.trace)


def _judge_memory(run: Run, goal: Run, case: Case) -> None:
    if run.peak_bytes > goal.peak_bytes + SPARE * WEIGHT_BYTES:
        why = ALL_KEPT if run.allocations <= goal.allocations else NO_MORE
        raise refuse(PUZZLE, TICKS, "memory", f"{_sizes(run)} layers' worth at the peak, {case}",
                     f"At the peak there was, beside the two buffers that you were given, device memory as large as "
                     f"{_sizes(run)} layers. The activations need {_sizes(goal)}.{why}", run.trace)
    if case.layers > 2 and run.value.taken > case.bytes:
        raise refuse(PUZZLE, TICKS, "memory", f"{run.allocations} allocations, {case}",
                     f"{run.allocations} pieces of device memory were allocated, as large as "
                     f"{run.value.taken / WEIGHT_BYTES:.0f} layers, where {goal.allocations} outputs of layers are "
                     "enough: the loop allocates. Copy into the given buffers.", run.trace)


def _sizes(run: Run) -> str:
    return f"{run.peak_bytes / WEIGHT_BYTES:.1f}"


def _judge_time(run: Run, goal: Run, case: Case) -> None:
    on = f"{case}, copy/compute {run.ratio:g}"
    if busy := many_launches(run, goal) or busy_host(run, goal):
        raise refuse(PUZZLE, TICKS, "time", f"the host does not only launch, {on}",
                     f"Correct, but {busy}" + (PAGEABLE if pageable(run.trace) else ""), run.trace, goal)
    if run.done_us > goal.done_us * SLACK + CALLS_US:
        more = sum(load.bytes for load in copies(run.trace)) > case.bytes
        says = first_late(run.trace, case.layers) or "Compare the two timelines: which operation starts later?"
        raise refuse(PUZZLE, TICKS, "time", f"{run.done_us:.0f} µs instead of {goal.done_us:.0f}, {on}",
                     f"Correct, but too slow. {says}" + (" More is copied than each layer once." if more else ""),
                     run.trace, goal)


PAGEABLE = (" A copy from pageable memory cannot be asynchronous: the weights that you are given are pinned, copies of "
            "them on the host are not.")


@lru_cache(maxsize=64)
def _goal(case: Case, ratio: float) -> Run:
    return run_once(_setting(case, []), reference(PUZZLE), ratio)
