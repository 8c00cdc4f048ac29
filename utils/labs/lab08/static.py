"""Judge of ``graphed``: one replay for a step's launches, the right numbers for new inputs, and results that stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..afterwards import take_freed_memory
from ..check import Answer
from ..device import SLACK
from ..verdict import Verdict
from .judge import CALLS_US, Judge, Ran, Wrong, blocked_us, captures, ended, h200, kind_words, move_on, values

if TYPE_CHECKING:
    from ...simgpu import Hazard, Profile
    from ...simgpu.device import SimDevice

PUZZLE = "graphed"
ROUNDS = 14          # of a step, of three kernels each
CALLS = 6
AGAIN = 3            # the call that gets the example itself; in some cases another stream is current from it on
MORE = 100           # calls behind those that are measured: no result may lie where one of them is written
LAST = CALLS + 1     # their input
OTHER = 1            # and that of the very last one
PRIME = 1009         # whole numbers below it are exact in float32, and three times as large, too
QUARTER = 0.25       # and with this added


@dataclass(frozen=True)
class Case:
    """A step: the shape and dtype of its input, and whether its first call prepares something."""

    shape: tuple[int, ...] = (64,)
    dtype: str = "int64"
    first: bool = False
    more: int = 0
    moves: bool = False
    side: bool = False
    adversarial: bool = False

    def __str__(self) -> str:
        parts = [f"{self.dtype} {self.shape}"]
        parts += ["its first call builds a table and waits"] * self.first + ["another stream current"] * self.side
        parts += [f"then {self.more} more calls"] * bool(self.more)
        parts += [f"from call {AGAIN} on another stream current than before"] * self.moves
        parts += ["a reader of the example on a stream of its own", "adversarial timing"] if self.adversarial else []
        return ", ".join(parts)

    @property
    def profile(self) -> Profile:
        """An H200."""
        return h200()


READER = "reader"


class Step:
    """A step whose result is a new tensor; counts its calls."""

    def __init__(self, case: Case) -> None:
        self.calls, self.table, self.first = 0, None, case.first

    def __call__(self, x: Any) -> Any:
        self.calls += 1
        if self.first and self.table is None:
            self.table = (x * 0).sum().item() + 1     # stands for what is prepared only once
        for n in range(ROUNDS):
            x = (x * 3 + n) % PRIME
        return x


class Graphed(Judge):
    puzzle = PUZZLE
    ticks = ("correct", "race-free", "time")
    whys = ("right for every input, and each result stays", "every order is stated", "one replay in a call")
    each = f"{CALLS} calls of a step of {3 * ROUNDS} kernels: "
    cases = (Case(more=MORE), Case(side=True), Case(first=True), Case((8, 16), "float32", moves=True),
             Case((32,), first=True, side=True, adversarial=True), Case((64,), adversarial=True))

    def play(self, answer: Answer, case: Case, gpu: SimDevice) -> Ran:
        import torch

        from ... import simgpu

        inputs = [_input(case, n).to("cuda") for n in range(LAST + 1)]
        x = [simgpu.name(torch.zeros_like(one), f"x of call {n}") for n, one in enumerate(inputs)]
        reader = simgpu.name(torch.cuda.Stream(), READER)
        step, example = Step(case), simgpu.name(torch.zeros_like(inputs[0]), "example")
        torch.cuda.synchronize()
        example.copy_(inputs[CALLS])           # still pending on the current stream
        reader.wait_stream(torch.cuda.current_stream())
        run = self.called(answer, step, example, on="step and example")
        if not callable(run):
            raise self.refuse("correct", "no function is returned",
                              f"{PUZZLE} returned {kind_words(run, example) or 'a tensor'}. Return a function of one "
                              "input.")
        if not case.adversarial:               # there it goes on at once
            torch.cuda.synchronize()
        take_freed_memory(gpu)
        if not case.adversarial:
            torch.cuda.synchronize()
        begin, before, results = simgpu.clock(), step.calls, []
        with captures(gpu) as captured:
            for n in range(CALLS):
                if n == AGAIN and case.moves:
                    move_on()
                if case.adversarial:
                    with torch.cuda.stream(reader):
                        example.clone()
                given = example if n == AGAIN else x[n].copy_(inputs[n])
                results.append(self.called(run, given, on=f"call {n}"))
                x[n].zero_() if n == AGAIN else x[n].sub_(inputs[n])   # zero, unless the answer wrote into it
        returned = simgpu.clock() - begin
        found = ended(gpu, case, begin, None, calls=step.calls - before, captures=len(captured))
        found.facts["blocked_us"], found.facts["returned_us"] = blocked_us(found.trace, returned), returned
        found.stop_us = 2.2 * found.wall_us / CALLS
        found.wrong = _wrong(case, results, example, x[:CALLS])
        if not found.wrong and case.more:
            for n in range(case.more):         # the same tensor in all of them, at the end with other numbers
                given = x[LAST].copy_(inputs[OTHER if n == case.more - 1 else LAST])
                last = self.called(run, given, on=f"call {CALLS + n}")
            found.wrong = _wrong(case, results, example, x[:CALLS]) or _kept(case, last)
        found.hazards = list(gpu.hazards)
        return found

    def race_words(self, run: Ran, hazard: Hazard) -> str:
        if "example" in hazard.buffer and READER in str(hazard):
            return ("(example is the caller's, and somebody else may read it at any time. So never write into it, not "
                    "even for a while.)")
        if "example" in hazard.buffer:
            return ("(The caller is still making example on the current stream when you get it: a stream of your own "
                    "has to wait for that.)")
        return ("The caller makes x, and uses the result, on the stream that is current in the call. What runs on "
                "another stream waits for that one first, and that one for it at the end.")

    def judge_cost(self, run: Ran, goal: Ran) -> None:
        if run.wall_us <= goal.wall_us * SLACK + CALLS_US:
            return
        says = (f"Right, but {CALLS} calls take {run.wall_us:.0f} µs, where {goal.wall_us:.0f} are enough. "
                f"{_slow_words(run, goal)}\nIn this run: {run.case}.")
        raise self.refuse("time", f"{run.wall_us:.0f} µs instead of {goal.wall_us:.0f}", says, run, goal)


def _input(case: Case, number: int) -> Any:
    import torch

    draw = torch.Generator().manual_seed(40 + number)
    whole = torch.randint(0, PRIME, case.shape, generator=draw).to(getattr(torch, case.dtype))
    return whole + QUARTER if whole.is_floating_point() else whole


def _right(case: Case, number: int) -> Any:
    x = _input(case, number)
    for n in range(ROUNDS):
        x = (x * 3 + n) % PRIME
    return x


def _wrong(case: Case, results: list[Any], example: Any, inputs: list[Any]) -> Wrong | None:
    """The first result that is not right, with what it is instead."""
    import torch

    right = [_right(case, CALLS if n == AGAIN else n) for n in range(CALLS)]
    for n, (result, wanted) in enumerate(zip(results, right, strict=True)):
        if kind := kind_words(result, wanted):
            return Wrong(f"call {n} returned {kind}", f"Return a tensor on the GPU: {case.dtype}, shape {case.shape}.")
    if (written := next((n for n, x in enumerate(inputs) if x.any().item()), None)) is not None:
        return Wrong(f"x of call {written} changed",
                     f"Your function wrote into x in call {written}. It is the caller's: read it only.")
    if not torch.equal(example.cpu(), _input(case, CALLS)):
        return Wrong("example changed", "Your function wrote into example, which is the caller's: it is used again, "
                                        "and holds another input now. Capture with a tensor of your own.")
    seen = [result.cpu() for result in results]
    for n, (one, wanted) in enumerate(zip(seen, right, strict=True)):
        if torch.equal(one, wanted):
            continue
        says = f"The result of call {n} is {values(one)}, not {values(wanted)}. "
        later = next((m for m in range(CALLS - 1, n, -1) if torch.equal(one, right[m])), None)
        if torch.equal(one, _right(case, LAST)):
            return Wrong(f"the result of call {n} has changed", says + OVERWRITTEN.format(n=n, later="a later one"))
        if n + 1 < CALLS and torch.equal(seen[n + 1], right[n]):
            return Wrong(f"call {n + 1} gives the result for the input of call {n}",
                         f"{says}And call {n + 1} gives what call {n} should: the replay comes before the copy of its "
                         "input.")
        if later == AGAIN:   # whose input is the example
            return Wrong("another input gives step(example)", says + FROZEN)
        if later is not None:
            return Wrong(f"the result of call {n} has changed", says + OVERWRITTEN.format(n=n, later=f"call {later}"))
        return Wrong(f"wrong result of call {n}", says + ADDRESSES)
    return None


def _kept(case: Case, last: Any) -> Wrong | None:
    """Whether the very last call takes its input for that of the call before, which was the same tensor."""
    import torch

    if kind := kind_words(last, _right(case, OTHER)):
        return Wrong(f"the last call returned {kind}", f"Return a tensor on the GPU: {case.dtype}, shape {case.shape}.")
    if torch.equal(last.cpu(), _right(case, OTHER)):
        return None
    return Wrong("the same tensor again, with other numbers",
                 f"The result of the last call is {values(last.cpu())}, not {values(_right(case, OTHER))}. Its x is a "
                 "tensor of calls before, into which the caller wrote other numbers: copy them in each call.")


FROZEN = ("That is the result for the tensor that was captured. A replay reads at the captured address: giving "
          "its name to another tensor changes nothing. Copy the new values into it.")
OVERWRITTEN = ("It was overwritten: that is what {later} gives. Every replay writes the same memory, and the "
               "caller keeps the result of call {n}: return a copy that no later call writes.")
ADDRESSES = ("A replay reads and writes at the addresses that were captured. Does it read this call's input, from "
             "memory that is still yours, and is the result what it wrote?")


def _slow_words(run: Ran, goal: Ran) -> str:
    if run.facts["captures"]:
        return (f"{run.facts['captures']} graphs are captured in these calls: a capture runs all of the step's Python, "
                "and waits. Capture once, before the first call." if run.facts["captures"] > 1 else
                "A graph is captured in one of these calls, which is that much longer. Capture before the first call.")
    if run.facts["calls"]:
        return (f"step is called in Python {run.facts['calls']} times, and its launches are the bound: the GPU waits "
                "for each of them. Replay a graph.")
    if run.facts["blocked_us"] > goal.facts["blocked_us"] + CALLS_US:
        return (f"The host waits {run.facts['blocked_us']:.0f} µs for the GPU in them, and nothing can be launched "
                "meanwhile. The caller reads the result on the same stream: no wait of the host is needed.")
    mine, enough = (sum(kind in ("kernel", "d2d") for kind in one.trace.columns["kind"]) for one in (run, goal))
    if mine > enough:
        return f"The GPU runs {mine} kernels, where {enough} do. What is in your graph?"
    if run.facts["returned_us"] > goal.facts["returned_us"] + CALLS_US:
        return (f"The host is busy for {run.facts['returned_us']:.0f} µs of it, where "
                f"{goal.facts['returned_us']:.0f} are enough: does it launch more, or ask again and again whether "
                "something is done?")
    return "Which operation is longer than in the target?"


def judge_graphed(answer: Answer) -> Verdict:
    """The right numbers for new inputs, results that stay, one replay in a call."""
    return Graphed().run(answer)
