"""Judge of the puzzle about memory that is reused while another stream still reads it."""

from __future__ import annotations

from typing import Any

from ..check import Answer
from ..device import (
    CALLS_US,
    RATIOS,
    SLACK,
    TICKS,
    Run,
    Setting,
    busy_host,
    passed,
    refuse,
    refute_race,
    refute_streams,
    run_all,
    run_once,
)
from ..exact import counting, digest, permutation
from ..values import shown
from ..verdict import Verdict
from .waits import reference

BLOCK_BYTES = 4 * 256 * 256
COUNTS = (5, 1, 2, 8)   # first one that shows a race inside the loop, not only what is left behind
MOST_BLOCKS = 2
SPARE_BLOCKS = 0.75   # not judged: the matrix library's workspace for a stream that has had none yet
HINT = "(record_stream makes it race-free but costs memory. See the hints for a way that does not.)"


def judge_save_all(answer: Answer) -> Verdict:
    """Products saved to the host on another stream, with at most two of them in device memory at a time."""
    from ... import simgpu

    weight = permutation(31)
    for count in COUNTS:
        given = [counting(40 + i) for i in range(count)]
        wanted = [digest(x @ weight) for x in given] + [digest(x) for x in given]
        setting = Setting("save_all", lambda given=given: _arguments(given, weight),
                          lambda _, kept: _digests(*kept), simgpu.RTX_4090, _launch_producers,
                          streams=lambda arguments: {"stream": arguments[3]})
        runs = run_all(setting, answer)
        refute_race(setting, answer, runs, wanted, TICKS, lambda given, right: given == right, HINT)
        _refute_values(runs, wanted)
        refute_streams("save_all", TICKS, runs[2], "d2h", ("stream",))
        goals = [run_once(setting, reference("save_all"), ratio) for ratio in RATIOS]
        for run, goal in zip(runs, goals, strict=True):
            _judge_time(run, goal, count)
            _judge_memory(run, count)
    whys = ("every product arrived", "every order is stated", "products and copies overlap", "at most two blocks")
    counts, ratios = ", ".join(map(str, sorted(COUNTS))), ", ".join(f"{ratio:g}" for ratio in RATIOS)
    tried = f"{counts} inputs, each with copy/compute {ratios}"
    return passed("save_all", TICKS, whys, runs[2], goals[2], tried=tried)


def _arguments(inputs: list[Any], weight: Any) -> tuple[tuple[Any, ...], Any]:
    import torch

    from ... import simgpu

    outs = [simgpu.name(torch.full(x.shape, -1.0).pin_memory(), f"outs[{i}]") for i, x in enumerate(inputs)]
    stream = simgpu.name(torch.cuda.Stream(), "stream")
    on_device, weight = [x.to("cuda") for x in inputs], weight.to("cuda")
    on_device[0] @ weight   # the library's workspace is there before memory is counted
    torch.cuda.synchronize()
    return (list(on_device), weight, list(outs), stream), (outs, on_device)   # lists of the learner's own to change


def _launch_producers(kept: tuple[list[Any], list[Any]]) -> None:
    """The inputs come from work on the current stream: another stream must wait before it reads them."""
    for tensor in kept[1]:
        tensor.mul_(1.0)


def _digests(outs: list[Any], on_device: list[Any]) -> list[Any]:
    """Go on as a caller would, with new tensors on the current stream, and then read."""
    import torch

    later = [torch.zeros(outs[0].shape, device="cuda") for _ in range(MOST_BLOCKS)]
    torch.cuda.synchronize()
    del later
    return [digest(out) for out in outs] + [digest(x) for x in on_device]


def _refute_values(runs: list[Run], wanted: list[Any]) -> None:
    for run in runs:
        names = [f"{name}[{i}]" for name in ("outs", "inputs") for i in range(len(wanted) // 2)]
        for name, given, right in zip(names, run.value, wanted, strict=True):
            if given != right:
                says = (f"{name} has checksum {shown(given)} instead of {shown(right)}, though every order is stated. "
                        "Is each product copied into the out of the same number, and into the tensor that was given?")
                if name.startswith("inputs"):
                    says = f"{name} was changed. The inputs are not yours to overwrite."
                raise refuse("save_all", TICKS, "correct", f"{name}, copy/compute {run.ratio:g}", says, run.trace)


def inputs(count: int) -> str:
    """A number of inputs in words."""
    return f"{count} input{'' if count == 1 else 's'}"


def _judge_time(run: Run, goal: Run, count: int) -> None:
    if busy := busy_host(run, goal, count):
        raise refuse("save_all", TICKS, "time", f"the host does not only launch, {inputs(count)}",
                     f"Correct, but {busy}", run.trace, goal)
    if run.done_us > goal.done_us * SLACK + CALLS_US:
        raise refuse("save_all", TICKS, "time", f"{run.done_us:.0f} µs, {inputs(count)}, copy/compute {run.ratio:g}",
                     f"Correct, but {run.done_us:.0f} µs instead of {goal.done_us:.0f}: "
                     + ("a product waits for a copy whose block it does not need. With two blocks, product i waits "
                        "only for copy i - 2." if count > 1 else "more is done than one product and one copy."),
                     run.trace, goal)


def _judge_memory(run: Run, count: int) -> None:
    if run.peak_bytes <= (MOST_BLOCKS + SPARE_BLOCKS) * BLOCK_BYTES:
        return
    blocks = run.peak_bytes // BLOCK_BYTES
    raise refuse("save_all", TICKS, "memory", f"{blocks:g} blocks at the peak, {inputs(count)}",
                 f"Correct, but {blocks:g} products were in device memory at once instead of at most {MOST_BLOCKS}. "
                 "A kept reference keeps its block; and after record_stream() a "
                 "block comes back only once the host sees that the other stream is done, and the host runs ahead. "
                 "Drop a product once the current stream waits for its copy.", run.trace)
