"""Judge of ``inside_or_outside``: each operation is captured and replayed, and does what its line says, or does not."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from ..check import Answer, Refused, call
from ..defaults import usual_defaults
from ..device import one_thread
from ..values import shown
from ..verdict import Tick, Verdict

PUZZLE = "inside_or_outside"
INSIDE, OUTSIDE = "inside", "outside"
ROWS = 4
STEPS = 3
EOS = 0


class Slot:
    """What the operations work on, and what changes from step to step."""

    def __init__(self) -> None:
        import torch

        from ... import simgpu

        self.x, self.out, self.before, self.inputs = (torch.zeros(ROWS, device="cuda") for _ in range(4))
        self.sources, self.positions = (torch.zeros(ROWS, dtype=torch.int64, device="cuda") for _ in range(2))
        self.cells = torch.zeros(ROWS, 8, device="cuda")
        self.row = torch.arange(ROWS, device="cuda")
        self.host_in = simgpu.name(torch.zeros(ROWS).pin_memory(), "host_in")
        self.side, self.copying, self.copied_in = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Event()
        self.random, self.position, self.rows, self.values = random.Random(8), 0, ROWS, []

    def prepare(self, n: int) -> None:
        """New values for step n, and all is over."""
        import torch

        self.values = [float(10 * n + row + 1) for row in range(ROWS)]
        self.position, self.rows = n, ROWS - n
        self.x.copy_(torch.tensor([5.0 - n, 0.0 if n == 1 else 7.0, 2.0 + n, 3.0]))
        self.before.copy_(torch.tensor(self.values))
        self.sources.copy_(torch.tensor([n, -1, 3 - n, -1]))
        self.positions.fill_(n)
        self.out.fill_(-1)
        self.host_in.copy_(torch.tensor(self.values))
        with torch.cuda.stream(self.copying):
            self.copied_in.record()
        torch.cuda.synchronize()


class Operation(NamedTuple):
    """A line of a step, and what is compared: the output, or for a random one how it changes from step to step."""

    line: str
    run: Callable[[Slot], Any]
    random: bool = False


def _forward(slot: Slot) -> None:
    slot.out.copy_((slot.x * 3 + 1) % 97)


def _carry(slot: Slot) -> None:
    import torch

    slot.out.copy_(torch.where(slot.sources >= 0, slot.before[slot.sources.clamp(min=0)], slot.x))


def _cells(slot: Slot) -> None:
    slot.cells[slot.row, slot.positions] = slot.x
    slot.out.copy_(slot.cells.sum(1))


def _one_cell(slot: Slot) -> None:
    slot.cells[:, slot.position] = slot.x
    slot.out.copy_(slot.cells.sum(1))


def _kept(slot: Slot) -> None:
    slot.inputs.copy_(slot.host_in, non_blocking=True)
    slot.out.copy_(slot.inputs)


def _temporary(slot: Slot) -> None:
    import torch

    slot.inputs.copy_(torch.tensor(slot.values).pin_memory(), non_blocking=True)
    slot.out.copy_(slot.inputs)


def _forked(slot: Slot) -> None:
    import torch

    here = torch.cuda.current_stream()
    slot.side.wait_stream(here)
    with torch.cuda.stream(slot.side):
        slot.out.copy_(slot.x * 2)
    here.wait_stream(slot.side)


def _arrived(slot: Slot) -> None:
    import torch

    torch.cuda.current_stream().wait_event(slot.copied_in)
    slot.out.copy_(slot.inputs)


def _noise(slot: Slot) -> None:
    import torch

    slot.out.copy_(torch.rand(ROWS, device="cuda"))


def _noise_of_python(slot: Slot) -> None:
    slot.out.fill_(slot.random.random())


def _stop(slot: Slot) -> None:
    if slot.x[1].item() != EOS:
        slot.out.copy_(slot.x)


def _live(slot: Slot) -> None:
    live = slot.x[slot.x > EOS]
    slot.out[:len(live)] = live


def _first_rows(slot: Slot) -> None:
    slot.out[:slot.rows] = slot.x[:slot.rows]


OPERATIONS = {
    "forward": Operation("out.copy_((x * 3 + 1) % 97)", _forward),
    "carry": Operation("out.copy_(torch.where(sources >= 0, before[sources.clamp(min=0)], x))", _carry),
    "cells": Operation("cells[row, positions] = x", _cells),
    "cell": Operation("cells[:, slot.position] = x", _one_cell),
    "rows": Operation("inputs.copy_(host_in, non_blocking=True)", _kept),
    "new_rows": Operation("inputs.copy_(torch.tensor(values).pin_memory(), non_blocking=True)", _temporary),
    "fork": Operation("side.wait_stream(here), a kernel on side, here.wait_stream(side)", _forked),
    "arrived": Operation("here.wait_event(copied_in)", _arrived),
    "noise": Operation('torch.rand(4, device="cuda")', _noise, random=True),
    "drawn": Operation("out.fill_(random.random())", _noise_of_python, random=True),
    "stop": Operation("if x[1].item() != EOS: ...", _stop),
    "live": Operation("live = x[x > EOS]", _live),
    "count": Operation("out[:slot.rows] = x[:slot.rows]", _first_rows),
}


@dataclass
class Trial:
    """An operation in three steps, launched from Python and replayed: values, and what was reported of the graph."""

    outside: list[list[float]]
    launches: int                      # in a step, from Python
    replayed: list[list[float]] = field(default_factory=list)
    error: str = ""
    hazards: list[Any] = field(default_factory=list)

    def right(self, random: bool) -> str:
        """Where the operation belongs."""
        if self.error or self.hazards:
            return OUTSIDE
        if random:
            return INSIDE if self.changes else OUTSIDE
        return INSIDE if self.replayed == self.outside else OUTSIDE

    @property
    def changes(self) -> bool:
        """Whether no two replays give the same."""
        return len(set(map(tuple, self.replayed))) == STEPS


@lru_cache(maxsize=32)
def tried(name: str) -> Trial:
    """Run an operation three times from Python, and three times as a graph."""
    import torch

    from ... import simgpu

    run = OPERATIONS[name].run
    with one_thread(), usual_defaults(), simgpu.session(simgpu.H200) as gpu:
        slot, seen, launches = Slot(), [], 0
        for n in range(STEPS):
            slot.prepare(n)
            before = _launched(gpu)
            run(slot)
            launches = _launched(gpu) - before
            seen.append(slot.out.tolist())
    trial = Trial(seen, launches)
    with one_thread(), usual_defaults(), simgpu.session(simgpu.H200) as gpu:
        slot, graph = Slot(), torch.cuda.CUDAGraph()
        slot.prepare(0)
        run(slot)                              # the warm-up
        torch.cuda.synchronize()
        slot.cells.zero_()
        slot.random.seed(8)
        try:
            with torch.cuda.graph(graph):
                run(slot)
        except RuntimeError as error:
            trial.error = str(error).splitlines()[0]
            return trial
        for n in range(STEPS):
            slot.prepare(n)
            graph.replay()
            trial.replayed.append(slot.out.tolist())
        trial.hazards = list(gpu.hazards)
    return trial


def _launched(gpu: Any) -> int:
    return sum(span.kind == "launch" for span in gpu.machine.host_spans)


def _numbers(steps: list[list[float]]) -> str:
    return "; ".join(f"[{', '.join(f'{value:.3g}' for value in values)}]" for values in steps)


def witness(name: str) -> str:
    """What was seen of an operation, in words."""
    trial, operation = tried(name), OPERATIONS[name]
    if trial.error:
        return f"Captured, it is refused: {trial.error}"
    if trial.hazards:
        return (f"It is captured without a word, and the replays have {len(trial.hazards)} hazards. "
                f"{trial.hazards[0]}\n In three steps out is {_numbers(trial.outside)} from Python, and "
                f"{_numbers(trial.replayed)} from the graph.")
    if trial.right(operation.random) == INSIDE:
        same = ("each replay gives other numbers, as each step in Python does" if operation.random else
                f"three replays give the same as three steps in Python, {_numbers(trial.replayed)}")
        return (f"Captured, {same}, and nothing races. Outside it is {trial.launches} launches in each step, of 5 µs "
                "each; inside it is none of its own.")
    return (f"It is captured without a word, but with the values of that moment: three steps in Python give "
            f"{_numbers(trial.outside)}, three replays {_numbers(trial.replayed)}.")


def judge_inside_or_outside(answer: Answer) -> Verdict:
    """Every operation where it does what its line says, and costs no launch that is not needed."""
    given = call(PUZZLE, answer, on="no argument")
    if not isinstance(given, Mapping):
        raise _refused(f"it returned {shown(given)}", "Return a dict: the name of each operation, and where it goes.")
    missing, unknown = [name for name in OPERATIONS if name not in given], [n for n in given if n not in OPERATIONS]
    if missing or unknown:
        says = [f"Missing: {', '.join(missing)}."] * bool(missing)
        says += [f"Not in the table: {', '.join(map(shown, unknown))}."] * bool(unknown)
        raise _refused("the names are not those of the table", " ".join(says))
    for name, place in given.items():
        if not isinstance(place, str) or place not in (INSIDE, OUTSIDE):
            raise _refused(f"{name} is {shown(place)}", f'Say "{INSIDE}" or "{OUTSIDE}".')
    wrong = [name for name in OPERATIONS if given[name] != tried(name).right(OPERATIONS[name].random)]
    if wrong:
        more = f"\n{len(OPERATIONS) - len(wrong)} of {len(OPERATIONS)} are right; this is the first that is not."
        raise _refused(f"{wrong[0]} is not {given[wrong[0]]}",
                       f"{wrong[0]}: {OPERATIONS[wrong[0]].line}\n{witness(wrong[0])}{more}")
    inside = sum(place == INSIDE for place in given.values())
    return Verdict(PUZZLE, [Tick("correct", True, f"{inside} inside, {len(given) - inside} outside")],
                   tried="each operation, in three steps from Python, and captured and replayed three times")


def _refused(why: str, says: str) -> Refused:
    return Refused(Verdict(PUZZLE, [Tick("correct", False, why)], says=says))

