"""Judge of ``serve``: the loop around launches, so that each step is waited for once, a step late, and none is lost."""

from __future__ import annotations

import operator
from collections import Counter
from typing import Any

from ..check import Answer, Refused
from ..lab06.data import Workload
from ..values import shown
from ..verdict import Verdict
from .calling import run_part
from .judge import FULL, USUAL, Judge
from .serving import SLOW_NS, Case, Served, lesson, ready, requests_lesson, serve

ENDLESS = 6_000            # calls in one run; the worked answer needs some hundreds
NOBODY_US = 100            # host time that passes in `nobody`
SHORT = Workload(4, 16, ((3, 4, 0.0), (9, 5, 0.0), (2, 3, 0.0)))
LATER = Workload(3, 8, ((5, 6, 0.0), (3, 4, 0.0), (7, 5, 25.0), (2, 1, 25.0), (4, 6, 26.0), (3, 5, 50.0)))
FEW = Workload(1, 4, ((3, 1, 2.0), (4, 2, 9.0)))


class NeverEnds(RuntimeError):
    """Raised in a loop in which nothing moves any more."""


class Step:
    """A step that was launched."""

    def __init__(self, number: int, slot: Any, rows: list[Any]) -> None:
        self.number, self.slot, self.count = number, slot, len(rows)

    def __repr__(self) -> str:
        return f"step {self.number}"


class Loop:
    """What the learner's loop works with: requests behind it, and a pipeline of two slots."""

    def __init__(self, scheduler: Any, pipeline: Any, host_us: int) -> None:
        self._scheduler, self._pipeline, self._host_us, self._calls = scheduler, pipeline, host_us, 0
        self._begin, self._log = requests_lesson().now_ms(), []
        self._rows: list[Any] = []          # all that were scheduled: kept, so that their ids stay theirs

    @property
    def busy(self) -> bool:
        """Whether any request runs, waits, or is still to come."""
        self._count()
        return bool(self._scheduler.waiting or self._scheduler.running)

    def schedule(self) -> list[Any]:
        """The rows of the next step; none when nobody has a token to compute now."""
        self._count()
        rows = self._scheduler.step(self._now())
        if rows:
            self._log.append(("schedule", -1, id(rows)))
            self._rows.append(rows)
        return rows

    def launch(self, rows: list[Any]) -> Step:
        """Prepare and queue a step, and return it at once."""
        import torch

        from ... import simgpu

        self._count()
        if not rows:
            raise ValueError("launch([]): a step without rows; when nobody has a row there is nothing to launch")
        number = self._pipeline.steps
        with torch.profiler.record_function(f"step {number}"):
            simgpu.host_work(self._host_us, "schedule")
            step = Step(number, self._pipeline.launch(rows), rows)
        self._log.append(("launch", number, id(rows)))
        return step

    def tokens(self, step: Step) -> list[int]:
        """Wait for a step, and return what follows each of its rows."""
        self._count()
        if not isinstance(step, Step):
            raise TypeError(f"tokens({shown(step)}): give what launch returned")
        self._log.append(("tokens", step.number, 0))
        return step.slot.tokens()[:step.count]

    def give(self, rows: list[Any], tokens: list[int]) -> None:
        """Give the requests of these rows their tokens; who is finished leaves."""
        self._count()
        rows_, tokens = list(rows), [operator.index(token) for token in tokens]
        if len(rows_) != len(tokens):
            raise ValueError(f"give: {len(rows_)} rows and {len(tokens)} tokens; each row has one")
        requests_lesson().take(self._scheduler, rows_, tokens, self._now())
        self._log.append(("give", -1, id(rows)))
        if rows is self._scheduler.newest:   # known now, and no longer on its way
            self._scheduler.newest = []

    def nobody(self) -> None:
        """Let a moment pass, for when nobody has a row and no step is under way."""
        from ... import simgpu

        self._count()
        simgpu.host_work(NOBODY_US, "nobody is there")

    def _now(self) -> float:
        return requests_lesson().now_ms() - self._begin

    def _count(self) -> None:
        self._calls += 1
        if self._calls > ENDLESS:
            raise NeverEnds(f"after {ENDLESS} calls the loop is still running: what would have to happen for it to "
                            "end? Time passes in launch, in tokens where it waits, and in nobody")


class Serve(Judge):
    puzzle = "serve"
    whys = ("every token, once", "a slot is filled when its last step is over", "one step is under way while the next "
            "is prepared")
    cases = (Case(USUAL), Case(SHORT, host_us=800), Case(LATER, host_us=600, also="with pauses"), Case(FEW),
             Case(FULL, host_us=50, gpu_us=300), Case(USUAL, copy_ns=SLOW_NS), Case(FULL, gpu_us=600, adversarial=True))

    def serve(self, answer: Answer, case: Case) -> Served:
        loops: list[Loop] = []

        def loop(model: Any, scheduler: Any, host_us: int, pipeline: Any) -> int:
            scheduler.fit(model)
            made = ready(pipeline(model, scheduler.budget))
            loops.append(Loop(scheduler, made, host_us))
            try:
                run_part(self.puzzle, answer, loops[0], on=str(case), empty=True)
            except Refused as refused:
                refused.verdict.says += f"\n{_facts(loops[0]._log)}".rstrip()
                raise
            finally:
                made.close()
            return made.steps
        run = serve(case, lesson().Streams, loop=loop)
        run.facts = loops[0]._log
        return run

    def _refute_tokens(self, answer: Answer, run: Served) -> None:
        scheduler = run.scheduler
        unserved = scheduler.waiting or scheduler.running
        if not run.failed and not unserved and 2 * run.steps < self.goal(run.case).steps:
            raise self.refuse("correct", f"steps launched: {run.steps}", f"The loop ended, and {run.steps} steps were "
                              f"launched, where {self.goal(run.case).steps} are needed for all tokens.\n"
                              f"In this run: {run.case}.")
        if not run.failed and unserved and not _facts(run.facts):
            came = ", ".join(f"{one.name} at {one.arrival_ms:g} ms" for one in list(scheduler.waiting)[:3])
            says = f"The loop ended, and {len(scheduler.running)} requests run and {len(scheduler.waiting)} wait"
            raise self.refuse("correct", "not everybody is served", f"{says}{f' ({came})' * bool(came)}. No rows means "
                              "that nobody has a token to compute *now*: somebody may come later.\n"
                              f"In this run: {run.case}.")
        super()._refute_tokens(answer, run)

    def race_words(self, run: Served, hazard: Any) -> str:
        return (f"{_facts(run.facts)} There are two slots, and step n uses that of step n - 2: before it is launched, "
                "step n - 2 has to be waited for.").strip()

    def wrong_words(self, answer: Answer, run: Served) -> str:
        return _facts(run.facts) or "Is each step's list of tokens given with the rows of the same step?"

    def slow_words(self, run: Served, goal: Served) -> str:
        if late := _given_late(run.facts):
            return (f"The tokens of {_named(late, 'are')} known, and given only behind the next schedule(), which "
                    "therefore plans without them.")
        if early := _waited_early(run.facts):
            return (f"{_named(early)} waited for before the next one was launched, although somebody had rows for it: "
                    "meanwhile the host prepares nothing, and then the GPU has nothing to do.")
        idle = sum(name == "nobody is there" for name in run.trace.columns["name"])
        if idle > sum(name == "nobody is there" for name in goal.trace.columns["name"]):
            return "nobody() lets time pass while a step is under way: wait for that step instead."
        if run.waits > goal.waits:
            return (f"The host waits {run.waits} times, where {goal.waits} do, and prepares nothing meanwhile. "
                    "loop.tokens(step) waits for one step, which is all the waiting that is needed.")
        return self.asked_words(run, goal) or f"{run.steps} steps were launched, where {goal.steps} do."


def _facts(log: list[tuple[str, int, int]]) -> str:
    """What is wrong in the order of launches, waits and gifts, in words; "" where nothing is."""
    launched = {key: number for kind, number, key in log if kind == "launch"}
    numbers = sorted(launched.values())
    given = Counter(launched.get(key, -1) for kind, _, key in log if kind == "give")
    lost = [number for number in numbers if not given[number]]
    twice = [number for number in numbers if given[number] > 1]
    unlaunched = sum(kind == "schedule" and key not in launched for kind, _, key in log)
    if (deep := _deepest(log)) > 2:
        return f"{deep} steps were under way at once."
    if unlaunched:
        return f"{unlaunched} times the rows that schedule() gave were not launched: they count as on their way."
    if twice:
        return f"The tokens of {_named(twice, 'are')} given twice."
    last = None
    for kind, number, key in log:
        if kind == "give" and last is not None and launched.get(key, last) != last:
            return f"Step {launched[key]}'s rows are given the tokens of step {last}: keep rows and step together."
        last = number if kind == "tokens" else last
    if lost:
        end = " It is the last one: who waits for that?" if lost == numbers[-1:] else ""
        return f"The tokens of {_named(lost, 'are')} never given to anybody.{end}"
    return ""


def _deepest(log: list[tuple[str, int, int]]) -> int:
    """The most steps that were launched and not waited for."""
    flying, most = set(), 0
    for kind, number, _ in log:
        flying = flying | {number} if kind == "launch" else flying - {number}
        most = max(most, len(flying))
    return most


def _waited_early(log: list[tuple[str, int, int]]) -> list[int]:
    """Steps that were waited for right behind their own launch, with a later one to come."""
    newest, early = -1, []
    for kind, number, _ in log:
        newest = number if kind == "launch" else newest
        if kind == "tokens" and number == newest:
            early.append(number)
    return early[:-1] if early and early[-1] == newest else early


def _given_late(log: list[tuple[str, int, int]]) -> list[int]:
    """Steps whose tokens the host had when it scheduled another one, and had not given."""
    launched = {key: number for kind, number, key in log if kind == "launch"}
    held, late = set(), []
    for kind, number, key in log:
        if kind == "schedule":
            late += sorted(held - set(late))
        held = held | {number} if kind == "tokens" else held - {launched.get(key)} if kind == "give" else held
    return late


def _named(numbers: list[int], verb: str = "was") -> str:
    some = ", ".join(map(str, numbers[:3])) + ", ..." * (len(numbers) > 3)
    if verb == "was":
        return f"Step {some} was" if len(numbers) == 1 else f"Steps {some} were"
    return f"step{'s' * (len(numbers) > 1)} {some} {verb}"


def judge_serve(answer: Answer) -> Verdict:
    """Every token once; no slot filled too early; as quick as the worked answer."""
    return Serve().run(answer)
