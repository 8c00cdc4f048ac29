"""The course of judgement that the puzzles share whose answer runs inside the asynchronous loop."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...timeline import timeline
from ..check import Answer, Refused
from ..device import CALLS_US, FOREIGN, OWN_DEVICE, SLACK
from ..lab06.data import Workload, random_workload
from ..values import text_of
from ..verdict import Tick, Verdict
from ..worked import worked
from .serving import SLOW_NS, Case, Served

if TYPE_CHECKING:
    from ...simgpu import Hazard
    from ...timeline import Picture
    from ...trace import Trace

SOLUTIONS = "07_async_batching"
TICKS = ("correct", "race-free", "time", "memory")
LANES = ("host", "h2d", "compute", "d2h")
SHOWN = 4            # steps in a picture
USUAL = Workload(4, 16, ((9, 12, 0.0), (20, 9, 0.0), (3, 14, 0.0), (5, 6, 0.0), (12, 9, 2.0), (2, 8, 2.0),
                         (17, 5, 5.0)))
FULL = Workload(3, 4, ((7, 5, 0.0), (9, 4, 0.0), (6, 6, 0.0), (8, 3, 1.0)))
MANY = random_workload(14, 4, 16, gap_ms=1.5, seed=6)


class Judge(ABC):
    """One puzzle: its cases, and how an answer is run in one."""

    puzzle: str
    whys: tuple[str, ...]
    slack: float = SLACK       # of the target time, for an answer without waits of its own
    cases: tuple[Case, ...] = (Case(USUAL), Case(FULL, host_us=50, gpu_us=300), Case(USUAL, copy_ns=SLOW_NS),
                               Case(MANY, host_us=300), Case(FULL, gpu_us=300, adversarial=True))

    # --- what a puzzle says of itself

    @abstractmethod
    def serve(self, answer: Answer, case: Case) -> Served:
        """Run the loop with the learner's part in it."""

    def report(self, hazard: Hazard) -> str:
        """A hazard in words."""
        return str(hazard)

    def race_words(self, run: Served, hazard: Hazard) -> str:
        """What to say behind a hazard, in addition."""
        return ""

    def wrong_words(self, answer: Answer, run: Served) -> str:
        """Why tokens are wrong although nothing races."""
        return ""

    def slow_words(self, run: Served, goal: Served) -> str:
        """What costs the time, in words."""
        return ""

    def asked_words(self, run: Served, goal: Served) -> str:
        """Whether the host asked or slept where it had to go on, in words."""
        if run.calls.queries > goal.calls.queries:
            return (f"The host asks {run.calls.queries} times whether something is done, and prepares nothing "
                    "meanwhile: let a *stream* wait.")
        if run.calls.slept_us > goal.calls.slept_us:
            return f"The host sleeps for {run.calls.slept_us / 1000:.2f} ms: no need to give the GPU time."
        return ""

    def memory_words(self, run: Served, goal: Served) -> tuple[str, str] | None:
        """What takes more memory than needed, for the tick and in words; None where nothing does."""
        return None

    def advice(self, runs: list[Served]) -> list[str]:
        """What could be better and costs nothing."""
        more = [run for run in runs if run.waits > self.goal(run.case).waits]
        return [f"the host waits {more[0].waits} times, where {self.goal(more[0].case).waits} do. The others cost "
                "nothing here, since what they wait for is over."] if more else []

    # --- the course of judgement

    def run(self, answer: Answer) -> Verdict:
        """The verdict on an answer; raises Refused at the first fault."""
        runs = []
        for case in self.cases:
            run = self._serve(answer, case)
            self._refute_race(answer, run)
            self._refute_tokens(answer, run)
            runs.append(run)
        for run in runs:
            self._judge_time(run)
        for run in runs:
            if found := self.memory_words(run, self.goal(run.case)):
                raise self.refuse("memory", found[0], f"Right, but {found[1]}\nIn this run: {run.case}.")
        return Verdict(self.puzzle, [Tick(name, True, why) for name, why in zip(TICKS, self.whys, strict=False)],
                       advice=self.advice(runs), tried="; ".join(map(str, self.cases)),
                       picture=_beside(runs[0], self.goal(self.cases[0])))

    def goal(self, case: Case) -> Served:
        """The worked answer's run: the target."""
        known = _goals.setdefault(self.puzzle, {})
        if case not in known:
            known[case] = self.serve(worked(SOLUTIONS, self.puzzle), case)
        return known[case]

    def _serve(self, answer: Answer, case: Case) -> Served:
        try:
            return self.serve(answer, case)
        except Refused as refused:
            says = refused.verdict.says
            refused.verdict.says = f"{says}{_own_device(says)}\nIn this run: {case}.".lstrip()
            raise

    def _refute_race(self, answer: Answer, run: Served) -> None:
        if not run.hazards:
            return
        witness = run
        if not run.failed and run.wrong is None:
            hard = self._serve(answer, replace(run.case, adversarial=True))
            witness = hard if hard.hazards else run
        hazard = witness.hazards[0]
        says = [self.report(hazard), self.race_words(witness, hazard), f"In this run: {witness.case}. {_harm(witness)}"]
        if len(witness.hazards) > 1:
            says[-1] += f" ({len(witness.hazards)} hazards; this is the first.)"
        raise self.refuse("race-free", f"{hazard.kind}, {hazard.buffer}", "\n".join(filter(None, says)),
                          _alone(witness, _step_of(hazard)))

    def _refute_tokens(self, answer: Answer, run: Served) -> None:
        if run.failed:
            says = text_of(run.failed)
            why = _own_device(says) or f"\n{self.wrong_words(answer, run)}"
            raise self.refuse("correct", f"the loop ended with {type(run.failed).__name__}",
                              f"{says}{why}\nIn this run: {run.case}.")
        if run.wrong:
            why = self.wrong_words(answer, run)
            raise self.refuse("correct", "wrong tokens", f"{run.wrong_words} Nothing races.\n{why}\n"
                              f"In this run: {run.case}.", _alone(run, 1))
        free = sorted(run.scheduler.free)
        if free != list(range(run.case.load.slots)) or run.scheduler.running or run.scheduler.waiting:
            raise self.refuse("correct", "not all is served", f"At the end slots {free} of {run.case.load.slots} are "
                              f"free, {len(run.scheduler.running)} requests run and {len(run.scheduler.waiting)} wait."
                              f"\nIn this run: {run.case}.")

    def _judge_time(self, run: Served) -> None:
        goal = self.goal(run.case)
        if run.wall_us <= goal.wall_us * (SLACK if run.waits > goal.waits else self.slack) + CALLS_US:
            return
        says = (f"Right, but too slow: {run.wall_us / 1000:.2f} ms for {run.steps} steps, where "
                f"{goal.wall_us / 1000:.2f} are enough. {self.slow_words(run, goal)}\nIn this run: {run.case}.")
        raise self.refuse("time", f"{run.wall_us / 1000:.2f} ms instead of {goal.wall_us / 1000:.2f}", says,
                          _beside(run, goal))

    def refuse(self, tick: str, why: str, says: str, picture: Picture | None = None) -> Refused:
        """A refusal at one tick; those before it hold (with a race, none does), those after it are not judged."""
        names = TICKS[:len(self.whys)]
        at, before = names.index(tick), None if tick == "race-free" else True
        ticks = [Tick(name, before if place < at else False if place == at else None, why if place == at else "")
                 for place, name in enumerate(names)]
        return Refused(Verdict(self.puzzle, ticks, says=says, picture=picture))


_goals: dict[str, dict[Case, Served]] = {}


def _own_device(says: str) -> str:
    """What to say to an error about another device's things."""
    return f"\n{OWN_DEVICE}" if any(words in says for words in FOREIGN) else ""


def _harm(run: Served) -> str:
    if run.failed:
        return f"It ended with {text_of(run.failed)}"
    if run.wrong:
        return run.wrong_words
    return "The tokens came out right at these speeds, which proves nothing: no order is promised."


def _step_of(hazard: Hazard) -> int:
    """The number of the step in which the later access was queued."""
    found = re.search(r"\d+", hazard.second.layer or hazard.first.layer or "")
    return int(found[0]) if found else 0


def stretch(traces: list[Trace], step: int, steps: int = SHOWN) -> dict[str, Any]:
    """Start and stop, in µs, of some steps from ``step`` on, that hold for all of the traces."""
    begins = [[start for start, name in zip(trace.columns["start_us"], trace.columns["name"], strict=True)
               if name == "schedule"] for trace in traces]
    first = max(0, min(step, *(len(some) - 1 for some in begins)) if begins[0] else 0)
    starts = [some[first] for some in begins if len(some) > first]
    stops = [some[first + steps] for some in begins if len(some) > first + steps]
    if not starts or not stops or max(stops) <= min(starts):
        return {"lanes": LANES}
    return {"start": min(starts), "stop": max(stops), "lanes": LANES}


def _alone(run: Served, step: int) -> Picture:
    return timeline(run.trace, **stretch([run.trace], max(0, step - 1)), title="yours")


def _beside(run: Served, goal: Served) -> Picture:
    return timeline({"yours": run.trace, "target": goal.trace}, **stretch([run.trace, goal.trace], 2))
