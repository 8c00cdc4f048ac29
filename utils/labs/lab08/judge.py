"""The course of judgement that this lab's puzzles share: an answer runs in each case; race, numbers, time, memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ...timeline import timeline
from ..check import Answer, Refused, call
from ..defaults import usual_defaults
from ..device import CALLS_US as CALLS_US
from ..device import FOREIGN, OWN_DEVICE, one_thread, window
from ..values import shown
from ..verdict import Picture, Tick, Verdict
from ..worked import worked

if TYPE_CHECKING:
    from ...simgpu import Hazard, Profile
    from ...simgpu.device import SimDevice
    from ...trace import Trace

SOLUTIONS = "08_cuda_graphs"
LANES = ("host", "h2d", "compute", "d2h")
CAPTURING = "is capturing"    # in what CUDA says of a call that a capture does not permit
FEW = 3                       # values of a tensor that are shown


class Wrong(NamedTuple):
    """Something that is not right: for the tick, and in words."""

    why: str
    says: str


@dataclass
class Ran:
    """A run of an answer: what was reported, what is wrong, and what it took.

    ``wall_us``: of what is judged. ``begin_us``, ``stop_us``: the stretch of the trace that is shown. ``facts``: what a
    puzzle wants to know beside these.
    """

    case: Any
    hazards: list[Hazard]
    trace: Trace
    wall_us: float
    wrong: Wrong | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    begin_us: float = 0.0
    stop_us: float | None = None


class Judge(ABC):
    """One puzzle: its ticks, its cases, and how an answer runs in one.

    A case has ``profile``, ``side`` (whether another stream than the default one is current) and ``adversarial``.
    """

    puzzle: str
    ticks: tuple[str, ...]
    whys: tuple[str, ...]
    cases: tuple[Any, ...]
    shown: int = 0             # the case whose timeline is shown
    each: str = ""             # what all cases have in common

    # --- what a puzzle says of itself

    @abstractmethod
    def play(self, answer: Answer, case: Any, gpu: SimDevice) -> Ran:
        """Run an answer once, inside a session."""

    def race_words(self, run: Ran, hazard: Hazard) -> str:
        """What to say behind a hazard, in addition."""
        return ""

    def error_words(self, message: str) -> str:
        """What helps with an error of the learner's function."""
        return next((hint for words, hint in HINTS.items() if words in message), "")

    @abstractmethod
    def judge_cost(self, run: Ran, goal: Ran) -> None:
        """Raise Refused for what takes too long or too much memory."""

    def advice(self, runs: list[Ran]) -> list[str]:
        """What could be better and costs nothing."""
        return []

    # --- the course of judgement

    def run(self, answer: Answer) -> Verdict:
        """The verdict on an answer; raises Refused at the first fault."""
        runs = []
        for case in self.cases:
            run = self._played(answer, case)
            self._refute_race(answer, run)
            if run.wrong:
                raise self.refuse("correct", run.wrong.why, f"{run.wrong.says}\nIn this run: {case}.", run)
            runs.append(run)
        for run in runs:
            self.judge_cost(run, self.goal(run.case))
        return Verdict(self.puzzle, [Tick(name, True, why) for name, why in zip(self.ticks, self.whys, strict=True)],
                       advice=self.advice(runs), tried=self.each + "; ".join(map(str, self.cases)),
                       picture=self.picture(runs[self.shown], self.goal(self.cases[self.shown])))

    def goal(self, case: Any) -> Ran:
        """The worked answer's run: the target."""
        known = _goals.setdefault(self.puzzle, {})
        if case not in known:
            known[case] = self._played(worked(SOLUTIONS, self.puzzle), case)
        return known[case]

    def _played(self, answer: Answer, case: Any) -> Ran:
        with session(case) as gpu:
            try:
                return self.play(answer, case, gpu)
            except Refused as refused:
                words = [self.error_words(refused.verdict.says), f"In this run: {case}."]
                if gpu.hazards:   # an error that a race may well have caused
                    words.append(f"And there is a race:\n{gpu.hazards[0]}")
                refused.verdict.says = "\n".join(filter(None, [refused.verdict.says, *words]))
                raise

    def _refute_race(self, answer: Answer, run: Ran) -> None:
        if not run.hazards:
            return
        witness = run
        if run.wrong is None and not run.case.adversarial:
            hard = self._played(answer, replace(run.case, adversarial=True))
            witness = hard if hard.hazards else run
        hazard = witness.hazards[0]
        harm = witness.wrong.says if witness.wrong else ("The numbers came out right at these speeds, which proves "
                                                         "nothing: no order is promised.")
        more = f" ({len(witness.hazards)} hazards; this is the first.)" if len(witness.hazards) > 1 else ""
        says = [str(hazard), self.race_words(witness, hazard), f"In this run: {witness.case}.", harm + more]
        raise self.refuse("race-free", f"{hazard.kind}, {hazard.buffer}", "\n".join(filter(None, says)), witness)

    def refuse(self, tick: str, why: str, says: str, run: Ran | None = None, goal: Ran | None = None) -> Refused:
        """A refusal at one tick; those before it hold (with a race, none does), those after it are not judged."""
        at, before = self.ticks.index(tick), None if tick == "race-free" else True
        rows = [Tick(name, before if place < at else False if place == at else None, why if place == at else "")
                for place, name in enumerate(self.ticks)]
        return Refused(Verdict(self.puzzle, rows, says=says, picture=self.picture(run, goal) if run else None))

    def picture(self, run: Ran, goal: Ran | None = None) -> Picture | None:
        """The timeline of a run, beside the target's."""
        stop = {} if run.stop_us is None else {"stop": max(one.stop_us or 0 for one in (run, goal or run))}
        return timeline({"yours": run.trace, "target": goal.trace} if goal else run.trace, start=run.begin_us,
                        lanes=LANES, **stop)

    def target(self) -> Picture:
        """The timeline of the worked answer."""
        goal = self.goal(self.cases[self.shown])
        return timeline({"target": goal.trace}, start=goal.begin_us, stop=goal.stop_us, lanes=LANES)

    def called(self, answer: Answer, *arguments: Any, on: str, empty: bool = False) -> Any:
        """Call what the learner wrote; Refused when it leaves another stream current."""
        import torch

        from ... import simgpu

        here, capture = torch.cuda.current_stream(), simgpu.active().graphs
        result = call(self.puzzle, answer, *arguments, on=on, empty=empty)
        if simgpu.active().graphs is not capture:
            raise self.refuse("correct", "a capture is still in progress", "Every capture_begin() needs its "
                              "capture_end(); `with torch.cuda.graph(...):` does both.")
        if torch.cuda.current_stream() != here:
            torch.cuda.set_stream(here)
            raise self.refuse("correct", "another stream is current afterwards",
                              "Leave the current stream as it was: `with torch.cuda.stream(...):` does.")
        return result


_goals: dict[str, dict[Any, Ran]] = {}
JOINING = ("A stream joins a capture when it waits for the captured one, and has to be waited for in turn before the "
           "capture ends: side.wait_stream(here), then its work, then here.wait_stream(side).")
CAPTURE_HINT = ("While a stream is captured, nothing runs, so nothing can be waited for, and no value can be read. "
                "What a step does only in its first call (building a table, waiting) has to be over before that.")
HINTS = {CAPTURING: CAPTURE_HINT, "uncaptured work": JOINING, "unjoined work": JOINING,
         **dict.fromkeys(FOREIGN, OWN_DEVICE)}


@contextmanager
def session(case: Any) -> Iterator[SimDevice]:
    """The simulated device of a case."""
    import torch

    from ... import simgpu

    numerics = "adversarial" if case.adversarial else "exact"
    with one_thread(), usual_defaults(), simgpu.session(case.profile, numerics=numerics) as gpu:
        if case.side:
            torch.cuda.set_stream(simgpu.name(torch.cuda.Stream(), "current stream"))
        yield gpu


def move_on() -> None:
    """Another stream is current from now on, behind all that was launched on the last one."""
    import torch

    from ... import simgpu

    stream = simgpu.name(torch.cuda.Stream(), "the next current stream")
    stream.wait_stream(torch.cuda.current_stream())
    torch.cuda.set_stream(stream)


@contextmanager
def captures(gpu: SimDevice) -> Iterator[list[float]]:
    """The times (µs) at which captures begin inside the block."""
    from ...simgpu.cudagraph import CUDAGraph

    begins, real = [], CUDAGraph.capture_begin

    def capture_begin(self: Any, *arguments: Any, **named: Any) -> Any:
        begins.append(gpu.machine.host_ns / 1000)
        return real(self, *arguments, **named)

    CUDAGraph.capture_begin = capture_begin
    try:
        yield begins
    finally:
        CUDAGraph.capture_begin = real


def ended(gpu: SimDevice, case: Any, begin_us: float, wrong: Wrong | None, **facts: Any) -> Ran:
    """A run from ``begin_us`` on, when all its work is done. The host's waits in it are in ``facts["blocked_us"]``."""
    import torch

    from ... import simgpu

    torch.cuda.synchronize()
    trace = window(gpu.trace(), begin_us)
    return Ran(case, list(gpu.hazards), trace, simgpu.clock() - begin_us, wrong, facts)


def blocked_us(trace: Trace, stop_us: float) -> float:
    """Host time up to ``stop_us`` in which it waited for the device."""
    return trace.busy_us("sync", start=0, stop=stop_us) if stop_us > 0 else 0.0


def values(tensor: Any) -> str:
    """The first values of a tensor."""
    flat = tensor.flatten()
    some = ", ".join(f"{value:g}" for value in flat[:FEW].tolist())
    return f"[{some}{', ...' if flat.numel() > FEW else ''}]"


def kind_words(value: Any, like: Any) -> str:
    """Why ``value`` is not a tensor on the GPU like this one, in words; "" where it is."""
    import torch

    if not isinstance(value, torch.Tensor):
        return shown(value)
    if not value.is_cuda:
        return "a tensor on the CPU"
    if value.shape != like.shape or value.dtype != like.dtype:
        dtype = str(value.dtype).removeprefix("torch.")
        return f"a{'n' * dtype.startswith('int')} {dtype} tensor of shape {tuple(value.shape)}"
    return ""


def h200(change: Callable[[Profile], Profile] = lambda profile: profile) -> Profile:
    """An H200, changed."""
    from ... import simgpu

    return change(simgpu.H200)
