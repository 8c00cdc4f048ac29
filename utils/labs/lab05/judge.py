"""The course of judgement that the device puzzles of this lab share: right, race-free, memory, time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..answercode import names_in
from ..check import Answer, Refused
from ..device import (
    CALLS_US,
    ELSEWHERE,
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
from ..spans import spans_of
from ..verdict import Verdict
from ..work import hurries, many_launches
from .causes import held_words, last_words, loop_words, peak_words, waited_words, without_void_waits
from .data import WEIGHT_BYTES, Outcome, Right, part_words, reference
from .lanes import Key, Late, Shape, Steps, first_late, steps_of, who

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ...simgpu import Hazard

TICKS = ("correct", "race-free", "memory", "time")
UNMADE = "(The caller is still making x, on the current stream: another stream has to wait for that.)"
ORDER = "Is each tensor the one that is meant, at the time when it is read?"
Cases = tuple[tuple[Any, tuple[float, ...]], ...]   # a configuration, and copy/compute


class Judge(ABC):
    """One puzzle: its cases, what a run leaves, what it must have copied, and which step needs which."""

    puzzle: str
    cases: Cases
    picture: tuple[Any, float]
    in_memory: str
    in_time: str
    given: str           # the memory that is to be enough, in words
    instead: str         # of what takes more
    reused = ("(A tensor that is dropped while another stream than its own still uses it gives its memory away. The "
              "buffers that you are given are enough, and stay.)")
    buffers: int         # that are used again and again: the first waits for each of them find nothing to wait for

    # --- what a puzzle says of itself

    @abstractmethod
    def setting(self, case: Any) -> Setting:
        """The arguments of a run and how its result is read, as an Outcome."""

    @abstractmethod
    def shape(self, case: Any) -> Shape:
        """How many loads, layers and stores a run makes, and their names."""

    @abstractmethod
    def needs(self, case: Any, key: Key) -> Iterable[Key]:
        """What has to be over before a step starts."""

    def program(self, case: Any, answer: Answer) -> Answer:
        """What is called in a run."""
        return answer

    def wrong_value(self, run: Run, case: Any) -> str:
        """A reason for a wrong result that only this puzzle knows, "" where there is none."""
        return ""

    def extra_copies(self, run: Run, goal: Run, case: Any) -> str:
        """A copy that should not be there, in words."""
        return ""

    def hint(self, run: Run, hazard: Hazard, case: Any) -> str:
        """What to say behind a hazard of this puzzle, in addition."""
        return ""

    def allowed(self, case: Any) -> int:
        """Bytes of outputs at a time that the text allows, also where the worked answer has fewer."""
        return 0

    def because(self, late: Late, steps: Steps, run: Run, case: Any) -> str:
        """Why a step waits for more than it needs, in words."""
        return waited_words(late, steps, run)

    # --- the course of judgement

    def run(self, answer: Answer) -> Verdict:
        """The verdict on an answer; raises Refused at the first fault."""
        runs: dict[tuple[Any, float], Run] = {}
        for case, ratios in self.cases:
            found, busy = self._runs(case, answer, ratios)
            self._refute_kind(found, case)
            refute_race(self.setting(case), self.program(case, answer), found, Right(), TICKS,
                        lambda given, _: not given.wrong, partial(self._hint, case=case),
                        partial(self._report, case=case))
            self._refute_values(found, case)
            self._refute_skipped(found, case)
            runs |= {(case, run.ratio): run for run in found}
            if busy:   # refused in any case, and thousands of launches a run
                break
        for judge in (self._judge_memory, self._judge_time):   # all of one before any of the next
            for (case, ratio), run in runs.items():
                judge(run, self.goal(case, ratio), case)
        return self._passed(answer, runs)

    def goal(self, case: Any, ratio: float) -> Run:
        """The worked answer's run: the target."""
        known = _goals.setdefault(self.puzzle, {})
        if (case, ratio) not in known:
            known[case, ratio] = run_once(self.setting(case), self.program(case, reference(self.puzzle)), ratio)
        return known[case, ratio]

    def _runs(self, case: Any, answer: Answer, ratios: tuple[float, ...]) -> tuple[list[Run], bool]:
        found: list[Run] = []
        for ratio in ratios:
            found.append(self._run(case, answer, ratio))
            if hurries(found[-1], self.goal(case, ratio)):
                return found, True
        return found, False

    def _run(self, case: Any, answer: Answer, ratio: float) -> Run:
        try:
            return run_once(self.setting(case), self.program(case, answer), ratio)
        except Refused as refused:
            refused.verdict.says += f"\nIn this run: {case}."
            raise

    def _passed(self, answer: Answer, runs: dict[tuple[Any, float], Run]) -> Verdict:
        in_time = self.time_words(runs[self.picture], self.picture[0])
        whys = ("every number, bit for bit", "every order is stated", self.in_memory, in_time)
        return passed(self.puzzle, TICKS, whys, runs[self.picture], self.goal(*self.picture), self.advice(answer),
                      self.tried())

    def advice(self, answer: Answer) -> list[str]:
        """What costs nothing here, but on a GPU."""
        return [PINS] if "pin_memory" in names_in(answer) else []

    def tried(self) -> str:
        """Every configuration that is judged."""
        alike: dict[tuple[float, ...], list[str]] = {}
        for case, ratios in self.cases:
            alike.setdefault(ratios, []).append(str(case))
        return "; ".join(f"{', '.join(names)} (copy/compute {', '.join(f'{ratio:g}' for ratio in ratios)})"
                         for ratios, names in alike.items())

    def _refuse(self, tick: str, why: str, says: str, run: Run, goal: Run | None = None) -> Exception:
        return refuse(self.puzzle, TICKS, tick, why, says, run.trace, goal)

    def _refute_kind(self, runs: list[Run], case: Any) -> None:
        for run in runs:
            for part in run.value.wrong:
                if isinstance(part.seen, str) and part.seen != "nan":
                    raise self._refuse("correct", f"{part.name} is {part.seen}, {case}",
                                       "Return the output of the last layer, a tensor on the GPU.", run)

    def _report(self, run: Run, hazard: Hazard, case: Any) -> str:
        """A hazard's report, without the remark on waits for events before their record where those are right."""
        right = run.calls.void_waits <= self.buffers * getattr(case, "calls", 1)
        return str(replace(hazard, remark=without_void_waits(hazard.remark)) if right else hazard)

    def _hint(self, run: Run, hazard: Hazard, case: Any) -> str:
        hints = [who(run.trace, hazard, self.shape(case)), self.hint(run, hazard, case),
                 UNMADE if hazard.buffer.split(" ")[0] == "x" else "", ELSEWHERE if case.side else "",
                 self.reused if "was freed" in hazard.remark else "",
                 f"In this run: {case}."]
        return "\n".join(filter(None, hints))

    def _refute_values(self, runs: list[Run], case: Any) -> None:
        for run in runs:
            outcome: Outcome = run.value
            if outcome.touched:
                raise self._refuse("correct", f"{outcome.touched} changed, {case}",
                                   f"The caller's own {outcome.touched} changed: leave everything that is only read as "
                                   "it was.", run)
            if not outcome.wrong:
                continue
            part, on = outcome.wrong[0], f"{case}, copy/compute {run.ratio:g}"
            if part.seen == "nan":
                raise self._refuse("correct", f"read before written, {part.name}, {on}",
                                   f"{part.name} holds memory that nothing has written. {self.wrong_value(run, case)}",
                                   run)
            why = self.wrong_value(run, case) or ORDER
            raise self._refuse("correct", f"{outcome}, {on}",
                               f"Every order is stated, but {part_words(part)}. {why}", run)

    def _refute_skipped(self, runs: list[Run], case: Any) -> None:
        """Refuse unless every step was made, copies where the text says."""
        for run in runs:
            goal = self.goal(case, run.ratio)
            for kind, stream, what in (("h2d", "loading", "load"), ("h2d", "copying", "load"),
                                       ("d2h", "storing", "store")):
                if stream in run.streams:
                    self._refute_copies(run, goal, case, (kind, stream, what))
            loaded, needed = (_moved(one, "h2d") for one in (run, goal))
            if skipped := skipped_work(run, goal, loaded, needed):
                raise self._refuse("correct", f"not every layer is computed, {case}",
                                   f"The numbers are right, but {skipped}", run)
            if extra := self.extra_copies(run, goal, case):
                raise self._refuse("correct", f"more is copied than needed, {case}", extra, run)

    def _refute_copies(self, run: Run, goal: Run, case: Any, asked: tuple[str, str, str]) -> None:
        kind, stream, what = asked
        everywhere, needed = _moved(run, kind), _moved(goal, kind)
        there = _moved(run, kind, run.streams[stream])
        if everywhere < needed:
            raise self._refuse("correct", f"not everything is copied, {case}",
                               f"The numbers are right, but of {needed / WEIGHT_BYTES:g} {what}s that are asked for "
                               f"{everywhere / WEIGHT_BYTES:g} can be seen. Each copy counts, also one whose data the "
                               "host could find in another way.", run)
        if there < needed:
            raise self._refuse("correct", f"a {what} on another stream than {stream}, {case}",
                               f"Every {what} belongs on {stream}. {there / WEIGHT_BYTES:g} of "
                               f"{needed / WEIGHT_BYTES:g} were made there. Launches go into the stream that is "
                               f"current: put them inside `with torch.cuda.stream({stream}):`.", run)

    def _judge_memory(self, run: Run, goal: Run, case: Any) -> None:
        found = peak_words(run, goal, self.allowed(case)) or loop_words(run, goal)
        if found:
            raise self._refuse("memory", f"{found.why}, {case}",
                               f"Correct, but beside {self.given} {found.says} {self.instead}", run)

    def _judge_time(self, run: Run, goal: Run, case: Any) -> None:
        on = f"{case}, copy/compute {run.ratio:g}"
        if busy := many_launches(run, goal) or busy_host(run, goal):
            raise self._refuse("time", f"the host does not only launch, {on}",
                               f"Correct, but {busy}{held_words(run)}", run, goal)
        if run.done_us > goal.done_us * SLACK + CALLS_US:
            raise self._refuse("time", f"{run.done_us:.0f} µs instead of {goal.done_us:.0f}, {on}",
                               f"Correct, but too slow. {self.why_late(run, case)}", run, goal)

    def time_words(self, run: Run, case: Any) -> str:
        """What is said of the time of a right answer."""
        return self.in_time

    def why_late(self, run: Run, case: Any) -> str:
        """The first step that starts later than it could, in words."""
        steps = steps_of(run.trace, self.shape(case))
        if isinstance(steps, str):
            return steps
        if last := last_words(run, steps):
            return last
        needs: Callable[[Key], Iterable[Key]] = partial(self.needs, case)
        late = first_late(steps, needs, self.shape(case), getattr(case, "engines", 2) == 1)
        return f"{late.says}{self.because(late, steps, run, case)}" if late else COMPARE


PINS = ("the host tensors are pinned already. Pinning memory takes the host a long time, which the simulated device "
        "does not count")
COMPARE = "Compare the two timelines: which operation starts later than in the target, and what does it wait for?"
_goals: dict[str, dict[tuple[Any, float], Run]] = {}


def _moved(run: Run, kind: str, stream: int | None = None) -> int:
    return sum(span.bytes for span in spans_of(run.trace, kind) if stream is None or span.stream == stream)


def stream_names(*names: str, first: int) -> Any:
    """Streams among the arguments of a puzzle, by name; they follow each other from argument ``first`` on."""
    return lambda arguments: {name: arguments[first + at] for at, name in enumerate(names)}
