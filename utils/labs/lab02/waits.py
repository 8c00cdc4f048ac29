"""Judges of the first two puzzles: one wait between two streams, and two waits that join two producers."""

from __future__ import annotations

from typing import Any

from ..check import Answer
from ..device import CALLS_US, RATIOS, SLACK, Run, Setting, passed, refuse, refute_race, run_all, run_once
from ..values import shown
from ..verdict import Verdict
from .data import counting, digest, permutation

TICKS = ("correct", "race-free", "time")


def judge_load_while_computing(answer: Answer) -> Verdict:
    """``(x @ ready) @ weight`` with the weight's copy on its stream, under the first product."""
    x, ready, loaded = counting(1), permutation(2), permutation(3)

    def prepare() -> tuple[tuple[Any, ...], Any]:
        import torch

        from ... import simgpu

        host = simgpu.name(loaded.clone().pin_memory(), "host_weight")
        weight = simgpu.name(permutation(9).to("cuda"), "weight")   # old contents that must not be used
        stream = simgpu.name(torch.cuda.Stream(), "copy_stream")
        return (x.to("cuda"), ready.to("cuda"), weight, host, stream), None

    wanted = digest(x @ ready @ loaded)
    return _judge("load_while_computing", prepare, wanted, answer, "copy under the first product",
                  "Target: the copy runs while x @ ready does, so max(copy, product) + product.")


def judge_add_two(answer: Answer) -> Verdict:
    """``a + b`` on the current stream, each loaded on a stream of its own."""
    first, second = counting(4), counting(5)

    def prepare() -> tuple[tuple[Any, ...], Any]:
        import torch

        from ... import simgpu

        hosts = [simgpu.name(tensor.clone().pin_memory(), f"host_{name}")
                 for name, tensor in (("a", first), ("b", second))]
        tensors = [simgpu.name(counting(seed).to("cuda"), name) for name, seed in (("a", 7), ("b", 8))]
        streams = [simgpu.name(torch.cuda.Stream(), f"stream_{name}") for name in "ab"]
        return (*tensors, *hosts, *streams), None

    wanted = digest(first + second)
    return _judge("add_two", prepare, wanted, answer, "two copies, then the sum",
                  "Target: both copies, then the sum, and a host that only launches.")


def _judge(puzzle: str, prepare: Any, wanted: Any, answer: Answer, what: str, target_says: str) -> Verdict:
    from ... import simgpu

    setting = Setting(puzzle, prepare, lambda result, _: digest(result), simgpu.RTX_5060_LAPTOP)
    runs = run_all(setting, answer)
    _refute_kind(puzzle, runs, wanted)
    refute_race(setting, answer, runs, wanted, TICKS, lambda given, right: given == right)
    if wrong := next((run for run in runs if run.value != wanted), None):
        raise refuse(puzzle, TICKS, "correct", f"copy/compute {wrong.ratio:g}",
                     f"Every order is said, but the result is another: checksum {shown(wrong.value)} instead of "
                     f"{shown(wanted)}. Is the right tensor copied, and are the right ones used?", wrong.trace)
    goals = [run_once(setting, reference(puzzle), run.ratio) for run in runs]
    for run, goal in zip(runs, goals, strict=True):
        _judge_time(puzzle, run, goal, target_says)
    whys = ("the result, bit for bit", "every order is said", f"{what}; the host only launches")
    return passed(puzzle, TICKS, whys, runs[2], goals[2], tried=tried(), advice=spare_waits(runs[2], goals[2]))


def _refute_kind(puzzle: str, runs: list[Run], wanted: Any) -> None:
    if odd := next((run for run in runs if isinstance(run.value, str) and run.value != "nan"), None):
        raise refuse(puzzle, TICKS, "correct", f"returned {odd.value}", "Return the resulting tensor.", odd.trace)


def _judge_time(puzzle: str, run: Run, goal: Run, target_says: str) -> None:
    if run.blocked_us > goal.blocked_us + CALLS_US:
        raise refuse(puzzle, TICKS, "time", f"the host waits {run.blocked_us:.0f} µs, copy/compute {run.ratio:g}",
                     "Correct, but the host stands still until the GPU is done, and nothing can be launched meanwhile. "
                     "Let a *stream* wait: synchronize() is for the host.", run.trace, goal)
    if run.done_us > goal.done_us * SLACK:
        raise refuse(puzzle, TICKS, "time", f"{run.done_us:.0f} µs, copy/compute {run.ratio:g}",
                     f"Correct, but {run.done_us:.0f} µs instead of {goal.done_us:.0f}. {target_says} What waits here "
                     "for something that it does not need?", run.trace, goal)


def spare_waits(run: Run, goal: Run) -> list[str]:
    """Advice when the host makes noticeably more calls than are needed."""
    more = run.returned_us - goal.returned_us
    return [f"the host needs {more:.0f} µs more than it has to: fewer calls do"] if more > CALLS_US / 2 else []


def tried() -> str:
    """The configurations that were judged."""
    return "copy/compute " + ", ".join(f"{ratio:g}" for ratio in RATIOS)


def reference(puzzle: str) -> Answer:
    """The worked answer, which sets the target time."""
    from ...lessons import import_lesson

    return getattr(import_lesson("solutions/02_streams_and_events"), puzzle)


