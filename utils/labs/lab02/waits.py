"""Judges of the first two puzzles: one wait between two streams, and two waits that join two producers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
from ..exact import counting, digest, digest_on_gpu, permutation
from ..values import shown
from ..verdict import Verdict
from ..worked import worked

TICKS = ("correct", "race-free", "time")
FILLED = {"load_while_computing": ("weight",), "add_two": ("a", "b")}


def judge_load_while_computing(answer: Answer) -> Verdict:
    """``(x @ ready) @ weight`` with the weight's copy on its stream, under the first product."""
    x, ready, loaded = counting(1), permutation(2), permutation(3)

    def prepare() -> tuple[tuple[Any, ...], Any]:
        import torch

        from ... import simgpu

        host = simgpu.name(loaded.clone().pin_memory(), "host_weight")
        weight = simgpu.name(permutation(9).to("cuda"), "weight")   # old contents that must not be used
        stream = simgpu.name(torch.cuda.Stream(), "copy_stream")
        on_gpu = x.to("cuda"), ready.to("cuda")
        kept = weight.view_as(weight)   # stays where it is, whatever `weight.data = ...` does
        return (*on_gpu, weight, host, stream), State((kept,), on_gpu)

    return _Judge("load_while_computing", prepare, digest(x @ ready @ loaded), (digest(loaded),), {"copy_stream": 4},
                  "the copy under the first product; the host only launches").run(answer)


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
        return (*tensors, *hosts, *streams), State(tuple(tensors), ())

    return _Judge("add_two", prepare, digest(first + second), (digest(first), digest(second)),
                  {"stream_a": 4, "stream_b": 5},
                  "two copies, then the sum; the host only launches").run(answer)


class State(NamedTuple):
    """What a run leaves to be looked at: tensors that must be filled, and inputs whose producers are still pending."""

    filled: tuple[Any, ...]
    inputs: tuple[Any, ...]


def launch_producers(state: State) -> None:
    """The inputs come from work on the current stream: another stream must wait before it reads them."""
    for tensor in state.inputs:
        tensor.mul_(1.0)


@dataclass
class _Judge:
    """One puzzle of this file: ``filled`` are checksums of tensors that must hold their data afterwards, ``streams``
    the places of the streams among the arguments."""

    puzzle: str
    prepare: Callable[[], tuple[tuple[Any, ...], Any]]
    wanted: Any
    filled: tuple[Any, ...]
    streams: dict[str, int]
    in_time: str

    def run(self, answer: Answer) -> Verdict:
        runs = [run_once(self._setting(), answer, ratio) for ratio in RATIOS]
        self._refute_kind(runs)
        refute_race(self._setting(), answer, runs, self.wanted, TICKS, lambda given, right: given == right)
        self._refute_values(answer, runs)
        refute_streams(self.puzzle, TICKS, runs[2], "h2d", tuple(self.streams))
        goals = [run_once(self._setting(), reference(self.puzzle), run.ratio) for run in runs]
        for run, goal in zip(runs, goals, strict=True):
            self._judge_time(run, goal)
        whys = ("the result, bit for bit", "every order is stated", self.in_time)
        return passed(self.puzzle, TICKS, whys, runs[2], goals[2], tried=tried(), advice=spare_waits(runs[2], goals[2]))

    def _setting(self, read: Callable[[Any, Any], Any] | None = None) -> Setting:
        from ... import simgpu

        read = read or (lambda result, _: digest_on_gpu(result))
        return Setting(self.puzzle, self.prepare, read, simgpu.RTX_5060_LAPTOP, launch_producers,
                       streams=lambda arguments: {name: arguments[at] for name, at in self.streams.items()},
                       reuse=False)   # that tensors are filled which were given comes first

    def _refute_kind(self, runs: list[Run]) -> None:
        if odd := next((run for run in runs if isinstance(run.value, str) and run.value != "nan"), None):
            raise refuse(self.puzzle, TICKS, "correct", f"returned {odd.value}",
                         "Return the resulting tensor, on the GPU.", odd.trace)

    def _refute_values(self, answer: Answer, runs: list[Run]) -> None:
        if any(run.value == "nan" for run in runs):
            raise refuse(self.puzzle, TICKS, "correct", "read before written",
                         "The result holds memory that nothing has written.", runs[0].trace)
        if wrong := next((run for run in runs if run.value != self.wanted), None):
            raise refuse(self.puzzle, TICKS, "correct", f"copy/compute {wrong.ratio:g}",
                         f"Every order is stated, but the result is another: checksum {shown(wrong.value)} instead of "
                         f"{shown(self.wanted)}. Is the right tensor copied, and are the right ones used?", wrong.trace)
        left = run_once(self._setting(lambda _, state: _after_all(state.filled)), answer, 1.0)
        for name, given, right in zip(FILLED[self.puzzle], left.value, self.filled, strict=True):
            if given not in (right, self.wanted):   # the result may have been computed in place
                raise refuse(self.puzzle, TICKS, "correct", f"`{name}` was not filled",
                             f"The result is right, but `{name}` does not hold the data of host_{name}. Copy into the "
                             f"tensor that you were given: {name}.copy_(host_{name}, ...).", left.trace)

    def _judge_time(self, run: Run, goal: Run) -> None:
        if busy := busy_host(run, goal):
            raise refuse(self.puzzle, TICKS, "time", f"the host does not only launch, copy/compute {run.ratio:g}",
                         f"Correct, but {busy}", run.trace, goal)
        if run.done_us > goal.done_us * SLACK + CALLS_US:
            raise refuse(self.puzzle, TICKS, "time", f"{run.done_us:.0f} µs, copy/compute {run.ratio:g}",
                         f"Correct, but {run.done_us:.0f} µs instead of {goal.done_us:.0f}. Compare the two timelines: "
                         "which operation starts later than in the target, and what does it wait for?", run.trace, goal)


def _after_all(tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    import torch

    torch.cuda.synchronize()
    return tuple(map(digest, tensors))


def spare_waits(run: Run, goal: Run) -> list[str]:
    """Advice when the host makes noticeably more calls than are needed."""
    more = run.returned_us - goal.returned_us
    return [f"the host needs {more:.0f} µs more than it has to: fewer calls do"] if more > CALLS_US / 2 else []


def tried() -> str:
    """The configurations that were judged."""
    return "copy/compute " + ", ".join(f"{ratio:g}" for ratio in RATIOS)


def reference(puzzle: str) -> Answer:
    """The worked answer, which sets the target time."""
    return worked("02_streams_and_events", puzzle)


