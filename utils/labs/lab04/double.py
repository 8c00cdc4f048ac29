"""Judge of the first puzzle: one cold call through two given buffers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from ..check import Answer
from ..device import (
    CALLS_US,
    RATIOS,
    SLACK,
    Run,
    Setting,
    busy_host,
    passed,
    refuse,
    refute_race,
    refute_streams,
    run_once,
)
from ..values import shown
from ..verdict import Verdict
from .causes import copies, first_late, who
from .data import FLOPS, ROWS, WEIGHT_BYTES, batch, changed, digest_of, expected, layer, pinned
from .delays import reference

PUZZLE = "double_buffer"
TICKS = ("correct", "race-free", "memory", "time")
LAYERS = (5, 8, 1, 2, 3)          # 5 first: it shows what goes wrong between layers
LONG, LONG_RATIOS = (23, 24), (0.5, 2.0)
SPARE = 0.75                  # of a layer: an own stream's library workspace and an activation are not judged
PICTURE = (5, 1.0)
NO_PIN = "(pageable)"


@dataclass(frozen=True)
class Outcome:
    """The result's digest as the caller sees it, and which input was changed, if any."""

    seen: Any
    touched: str

    def __repr__(self) -> str:
        return shown(self.seen)


class Kept(NamedTuple):
    """What a run leaves to be looked at."""

    x: Any
    weights: list[Any]
    buffers: list[Any]


def judge_double_buffer(answer: Answer) -> Verdict:
    """One cold call: right, race-free, nothing but two buffers and activations, c + (L - 1) * max + k."""
    runs = {}
    for layers, ratios in _cases():
        found = [run_once(_setting(layers), answer, ratio) for ratio in ratios]
        _refute_kind(found)
        refute_race(_setting(layers), answer, found, expected(1, ROWS, layers), TICKS, _same, _who(found[0], layers))
        _refute_values(found, layers)
        runs |= {(layers, run.ratio): run for run in found}
    refute_streams(PUZZLE, TICKS, runs[PICTURE], "h2d", ("copy_stream",))
    for judge in (_judge_memory, _judge_time):
        for (layers, ratio), run in runs.items():
            judge(run, _goal(layers, ratio), layers)
    whys = ("the result, bit for bit", "every order is stated", "two buffers and the activations",
            "c + (L - 1) max + k, and the host only launches")
    return passed(PUZZLE, TICKS, whys, runs[PICTURE], _goal(*PICTURE), tried=_tried())


def _cases() -> list[tuple[int, tuple[float, ...]]]:
    return [(layers, RATIOS) for layers in LAYERS] + [(layers, LONG_RATIOS) for layers in LONG]


def _tried() -> str:
    few, long = (", ".join(map(str, sorted(counts))) for counts in (LAYERS, LONG))
    ratios, some = (", ".join(f"{ratio:g}" for ratio in chosen) for chosen in (RATIOS, LONG_RATIOS))
    return f"{few} layers with copy/compute {ratios}; {long} layers with {some}"


def _setting(layers: int) -> Setting:
    from ... import simgpu

    return Setting(PUZZLE, lambda: _arguments(layers), _read, simgpu.RTX_5060_LAPTOP,
                   start=lambda kept: kept.x.mul_(1.0), flops=FLOPS,
                   streams=lambda arguments: {"copy_stream": arguments[3]})


def _arguments(layers: int) -> tuple[tuple[Any, ...], Kept]:
    import torch

    from ... import simgpu

    weights, x = pinned(layers), simgpu.name(batch(1).to("cuda"), "x")
    buffers = [simgpu.name(layer(90 + i).to("cuda"), f"buffers[{i}]") for i in range(2)]   # old contents
    stream = simgpu.name(torch.cuda.Stream(), "copy_stream")
    x @ buffers[0]   # the library's workspace is there before memory is counted
    return (x, list(weights), list(buffers), stream), Kept(x, weights, buffers)


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


def _who(run: Run, layers: int) -> str:
    """Which layers the two operations of a hazard belong to."""
    hazard = (*run.hazards, *run.later, None)[0]
    return who(run.trace, (hazard.first.index, hazard.second.index), layers) if hazard else ""


def _refute_kind(runs: list[Run]) -> None:
    if odd := next((run for run in runs if isinstance(run.value.seen, str) and run.value.seen != "nan"), None):
        raise refuse(PUZZLE, TICKS, "correct", f"returned {odd.value.seen}",
                     "Return the output of the last layer, a tensor on the GPU.", odd.trace)


def _refute_values(runs: list[Run], layers: int) -> None:
    count = f"{layers} layer{'' if layers == 1 else 's'}"
    for run in runs:
        seen, touched, wanted = run.value.seen, run.value.touched, expected(1, ROWS, layers)
        if touched:
            raise refuse(PUZZLE, TICKS, "correct", f"{touched} was changed",
                         f"{touched} belongs to the caller: make new tensors instead of overwriting it.", run.trace)
        if seen == "nan":
            raise refuse(PUZZLE, TICKS, "correct", f"read before written, {count}",
                         "The result holds memory that nothing has written.", run.trace)
        if seen != wanted:
            raise refuse(PUZZLE, TICKS, "correct", f"{count}, copy/compute {run.ratio:g}",
                         f"Every order is stated, but the result is another: checksum {shown(seen)} instead of "
                         f"{shown(wanted)}. Is every layer used once, in order, out of the buffer that it was copied "
                         "to?", run.trace)


def _judge_memory(run: Run, goal: Run, layers: int) -> None:
    count = f"{layers} layer{'' if layers == 1 else 's'}"
    if run.peak_bytes > goal.peak_bytes + SPARE * WEIGHT_BYTES:
        raise refuse(PUZZLE, TICKS, "memory", f"{_sizes(run)} layers' worth at the peak, {count}",
                     f"At the peak there was, beside the two buffers that you were given, device memory as large as "
                     f"{_sizes(run)} layers. The activations need {_sizes(goal)}. Copy into the given buffers, and "
                     "make no others.", run.trace)
    if layers > 2 and run.allocations > goal.allocations + 0.7 * layers:
        raise refuse(PUZZLE, TICKS, "memory", f"{run.allocations} allocations, {count}",
                     f"{run.allocations} pieces of device memory were allocated, where {goal.allocations} outputs of "
                     "layers are enough: the loop allocates. Copy into the given buffers.", run.trace)


def _sizes(run: Run) -> str:
    return f"{run.peak_bytes / WEIGHT_BYTES:.1f}"


def _judge_time(run: Run, goal: Run, layers: int) -> None:
    count = f"{layers} layer{'' if layers == 1 else 's'}, copy/compute {run.ratio:g}"
    if busy := busy_host(run, goal):
        pageable = any(NO_PIN in name for name in run.trace.columns["name"])
        raise refuse(PUZZLE, TICKS, "time", f"the host does not only launch, {count}",
                     f"Correct, but {busy}" + (PAGEABLE if pageable else ""), run.trace, goal)
    if run.done_us > goal.done_us * SLACK + CALLS_US:
        more = len(copies(run.trace)) > layers
        says = first_late(run.trace, layers) or "Compare the two timelines: which operation starts later?"
        raise refuse(PUZZLE, TICKS, "time", f"{run.done_us:.0f} µs instead of {goal.done_us:.0f}, {count}",
                     f"Correct, but too slow. {says}" + (" More is copied than each layer once." if more else ""),
                     run.trace, goal)


PAGEABLE = (" A copy from pageable memory cannot be asynchronous: the weights that you are given are pinned, copies of "
            "them on the host are not.")


@lru_cache(maxsize=64)
def _goal(layers: int, ratio: float) -> Run:
    return run_once(_setting(layers), reference(PUZZLE), ratio)
