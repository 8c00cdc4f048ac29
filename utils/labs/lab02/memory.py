"""Judge of the puzzle about memory that is reused while another stream still reads it."""

from __future__ import annotations

from typing import Any

from ..check import Answer
from ..device import CALLS_US, RATIOS, SLACK, TICKS, Run, Setting, passed, refuse, refute_race, run_all, run_once
from ..values import shown
from ..verdict import Verdict
from .data import counting, digest, permutation
from .waits import reference

BLOCK_BYTES = 4 * 256 * 256
COUNTS = (1, 2, 5, 8)


def judge_save_all(answer: Answer) -> Verdict:
    """Products saved to the host on another stream, with at most two of them in device memory at a time."""
    from ... import simgpu

    weight = permutation(31)
    for count in COUNTS:
        inputs = [counting(40 + i) for i in range(count)]
        wanted = [digest(x @ weight) for x in inputs]
        setting = Setting("save_all", lambda inputs=inputs: _arguments(inputs, weight),
                          lambda _, outs: _digests(outs), simgpu.RTX_4090)
        runs = run_all(setting, answer)
        refute_race(setting, answer, runs, wanted, TICKS, lambda given, right: given == right)
        _refute_values(runs, wanted)
        goals = [run_once(setting, reference("save_all"), ratio) for ratio in RATIOS]
        for run, goal in zip(runs, goals, strict=True):
            _judge_time(run, goal, count)
            _judge_memory(run, goal, count)
    whys = ("every product arrived", "every order is said", "products and copies overlap", "at most two blocks")
    tried = f"{', '.join(map(str, COUNTS))} inputs, each with copy/compute " + ", ".join(f"{r:g}" for r in RATIOS)
    return passed("save_all", TICKS, whys, runs[2], goals[2], tried=tried)


def _arguments(inputs: list[Any], weight: Any) -> tuple[tuple[Any, ...], Any]:
    import torch

    from ... import simgpu

    outs = [simgpu.name(torch.full(x.shape, -1.0).pin_memory(), f"outs[{i}]") for i, x in enumerate(inputs)]
    stream = simgpu.name(torch.cuda.Stream(), "stream")
    on_device, weight = [x.to("cuda") for x in inputs], weight.to("cuda")
    on_device[0] @ weight   # the library's workspace is there before memory is counted
    torch.cuda.synchronize()
    return (on_device, weight, outs, stream), outs


def _digests(outs: list[Any]) -> list[Any]:
    import torch

    torch.cuda.synchronize()
    return [digest(out) for out in outs]


def _refute_values(runs: list[Run], wanted: list[Any]) -> None:
    for run in runs:
        for i, (given, right) in enumerate(zip(run.value, wanted, strict=True)):
            if given != right:
                raise refuse("save_all", TICKS, "correct", f"outs[{i}] of {len(wanted)}, copy/compute {run.ratio:g}",
                             f"outs[{i}] has checksum {shown(given)} instead of {shown(right)}, though every order is "
                             "said. Is each product copied into the out of the same number?", run.trace)


def _judge_time(run: Run, goal: Run, count: int) -> None:
    if run.blocked_us > goal.blocked_us + CALLS_US * count:
        raise refuse("save_all", TICKS, "time", f"the host waits {run.blocked_us:.0f} µs, {count} inputs",
                     "Correct, but the host waits for the GPU. Let the current stream wait for an event instead.",
                     run.trace, goal)
    if run.done_us > goal.done_us * SLACK:
        raise refuse("save_all", TICKS, "time", f"{run.done_us:.0f} µs, {count} inputs, copy/compute {run.ratio:g}",
                     f"Correct, but {run.done_us:.0f} µs instead of {goal.done_us:.0f}: a product waits for a copy "
                     "whose block it does not need. With two blocks, product i needs only copy i - 2.",
                     run.trace, goal)


def _judge_memory(run: Run, goal: Run, count: int) -> None:
    if run.peak_bytes <= goal.peak_bytes:
        return
    blocks = run.peak_bytes / BLOCK_BYTES
    raise refuse("save_all", TICKS, "memory", f"{blocks:g} blocks at the peak, {count} inputs",
                 f"Correct, but {blocks:g} products were in device memory at once instead of "
                 f"{goal.peak_bytes / BLOCK_BYTES:g}. A kept reference keeps its block; and after record_stream() a "
                 "block comes back only once the host sees that the other stream is done, and the host runs ahead. "
                 "Drop a product once the current stream waits for its copy.", run.trace)
