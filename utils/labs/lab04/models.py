"""Judges of the second and third puzzle: models that are called several times, back to back or one at a time."""

from __future__ import annotations

from dataclasses import dataclass

from ..check import Answer
from ..device import CALLS_US, RATIOS, SLACK, Run, busy_host, passed, refuse, refute_race
from ..values import shown
from ..verdict import Verdict
from .calls import CALLS, Plan, Right, Trial, goal, program, run_plan, setting_of
from .causes import copies, first_late, who
from .data import ROWS, WEIGHT_BYTES
from .double import NO_PIN, PAGEABLE, SPARE, TICKS

FEW = (0.5, 2.0)
AHEAD = 2   # copies that two buffers can hold for the next call
OTHER_ROWS = (ROWS // 2, ROWS // 4, ROWS, ROWS // 2, ROWS // 8)   # less and more than at first
Plans = list[tuple[Plan, tuple[float, ...]]]
BACK_TO_BACK: Plans = [
    (Plan(7), (0.1, 0.5, 2.0)), (Plan(8), RATIOS),   # odd and even: other races, other waits
    *((Plan(layers), FEW) for layers in (1, 2, 3)),
    (Plan(23), (2.0,)), (Plan(24), (0.5,)),
    (Plan(5, side=True), FEW),
    (Plan(4, rows=OTHER_ROWS), (1.0,)),
]
ONE_AT_A_TIME: Plans = [
    (Plan(7, sync=True), (0.1, 0.5, 2.0)), (Plan(8, sync=True), RATIOS),
    *((Plan(layers, sync=True), FEW) for layers in (1, 2, 3)),
    (Plan(23, sync=True), (2.0,)), (Plan(24, sync=True), (0.5,)),
    *((Plan(layers), FEW) for layers in (1, 2, 3, 6)),
    (Plan(5, side=True), FEW),
    (Plan(5, sync=True, rows=OTHER_ROWS), (1.0,)),
]
ACROSS = ("(These two belong to different calls. The first copies of a call have to wait, too: each for the product "
          "that read its buffer last, in the call before.)")
ELSEWHERE = ("(In this run the model is made outside of `with torch.cuda.stream(side):` and called inside. Ask for "
             "torch.cuda.current_stream() in the call: what it was in the constructor says nothing about a call.)")
CONSTRUCTOR = ("The clock starts at the first call, and a copy that was made before it is not hidden, only not "
               "counted. Let the constructor make the buffers, and the first call load its first layer.")


def judge_back_to_back(answer: Answer) -> Verdict:
    """Five calls without a wait of the host: right in each, race-free, and one copy uncovered in all five."""
    return _Judge("BackToBack", BACK_TO_BACK, (3, 0.5, False), "one copy uncovered in all the calls").run(answer)


def judge_prefetching(answer: Answer) -> Verdict:
    """Five calls, a wait of the host after each: no copy uncovered but the very first."""
    return _Judge("Prefetching", ONE_AT_A_TIME, (3, 0.5, True), "no copy uncovered but the first").run(answer)


@dataclass
class _Judge:
    """One puzzle of this file. ``picture``: layers, ratio and sync of the run that is shown when all is well."""

    puzzle: str
    plans: Plans
    picture: tuple[int, float, bool]
    in_time: str

    def run(self, answer: Answer) -> Verdict:
        trials: list[Trial] = []
        for plan, ratios in self.plans:
            found = [run_plan(self.puzzle, answer, plan, ratio) for ratio in ratios]
            self._refute_kind(found)
            self._refute_race(answer, found)
            self._refute_values(found)
            trials += found
            if any(self._polls(trial) for trial in found):   # refused in any case, and thousands of calls a run
                break
        for judge in (self._judge_memory, self._judge_time):   # all of one before any of the next
            for trial in sorted(trials, key=lambda trial: trial.plan.layers % 2):   # even counts have one cause less
                judge(trial, goal(self.puzzle, trial.plan, trial.run.ratio))
        layers, ratio, sync = self.picture
        best = next(trial for trial in trials if trial.plan == Plan(layers, sync) and trial.run.ratio == ratio)
        whys = ("every call, bit for bit", "every order is stated, between calls too",
                "two buffers and the activations", f"{self.in_time}, and the host only launches")
        return passed(self.puzzle, TICKS, whys, best.run, goal(self.puzzle, best.plan, ratio).run, tried=self._tried())

    def _polls(self, trial: Trial) -> bool:
        mine, best = trial.hosting, goal(self.puzzle, trial.plan, trial.run.ratio).hosting
        return mine.blocked_us <= CALLS_US and bool(busy_host(mine, best, CALLS))

    def _tried(self) -> str:
        alike: dict[tuple[str, tuple[float, ...]], list[str]] = {}
        for plan, ratios in self.plans:
            alike.setdefault((plan.manner, ratios), []).append(str(plan.layers))
        return "; ".join(f"{', '.join(layers)} layers, {manner} (copy/compute {', '.join(f'{r:g}' for r in ratios)})"
                         for (manner, ratios), layers in alike.items())

    def _refuse(self, tick: str, why: str, says: str, run: Run, target: Run | None = None) -> Exception:
        return refuse(self.puzzle, TICKS, tick, why, says, run.trace, target)

    def _refute_kind(self, trials: list[Trial]) -> None:
        for trial in trials:
            for call, seen in enumerate(trial.run.value.seen, 1):
                if isinstance(seen, str) and seen != "nan":
                    raise self._refuse("correct", f"call {call} returned {seen}",
                                       "A call returns the output of the last layer, a tensor on the GPU. In this "
                                       f"run: {trial.plan}.", trial.run)

    def _refute_race(self, answer: Answer, trials: list[Trial]) -> None:
        racing = [trial.run for trial in trials if trial.run.hazards or trial.run.later]
        if not racing:
            return
        plan, late = trials[0].plan, not racing[0].hazards
        hazard = (racing[0].hazards + racing[0].later)[0]
        hints = [who(racing[0].trace, (hazard.first.index, hazard.second.index), plan.layers, CALLS)]
        if plan.side:
            hints.append(ELSEWHERE)
        elif not late and hazard.first.layer is not None and hazard.first.layer != hazard.second.layer:
            hints.append(ACROSS)
        hints.append(f"In this run: {plan}.")
        refute_race(setting_of(self.puzzle, plan, []), program(self.puzzle, answer), racing, Right(), TICKS,
                    lambda given, _: given.right, "\n".join(filter(None, hints)))

    def _refute_values(self, trials: list[Trial]) -> None:
        for trial in trials:
            outcome, on = trial.run.value, f"{trial.plan}, copy/compute {trial.run.ratio:g}"
            if outcome.shared:
                first, second = outcome.shared
                raise self._refuse("correct", f"call {second} overwrites a result",
                                   f"Calls {first} and {second} returned the same memory. The result of a call belongs "
                                   "to the caller, who may read it after the next call. Give every call a new one.",
                                   trial.run)
            if outcome.touched:
                raise self._refuse("correct", f"{outcome.touched} was changed",
                                   f"{outcome.touched} belongs to the caller: make new tensors instead of overwriting "
                                   "it.", trial.run)
            if not outcome.right:
                self._refute_wrong(trial, on)

    def _refute_wrong(self, trial: Trial, on: str) -> None:
        call = trial.run.value.wrong[0]
        seen, wanted = trial.run.value.seen[call - 1], trial.run.value.wanted[call - 1]
        if seen == "nan":
            raise self._refuse("correct", f"read before written, call {call}",
                               f"Call {call} used memory that nothing has written. Was its layer copied before? "
                               f"In this run: {on}.", trial.run)
        raise self._refuse("correct", f"call {call}, {on}",
                           f"Every order is stated, but the result is {trial.run.value}: checksum {shown(seen)} "
                           f"instead of {shown(wanted)} in call {call}. Which layer is in which buffer when a call "
                           f"begins? In this run: {on}.", trial.run)

    def _judge_memory(self, trial: Trial, target: Trial) -> None:
        run, on = trial.run, str(trial.plan)
        if run.peak_bytes > target.run.peak_bytes + SPARE * WEIGHT_BYTES:
            sizes = [f"{each.peak_bytes / WEIGHT_BYTES:.1f}" for each in (run, target.run)]
            raise self._refuse("memory", f"{sizes[0]} layers' worth at the peak",
                               f"At the peak the model took device memory as large as {sizes[0]} layers. Two buffers, "
                               f"the activations and the results take {sizes[1]}. In this run: {on}.", run)
        steps = trial.plan.layers * CALLS
        if trial.plan.layers > 2 and run.allocations > target.run.allocations + 0.7 * steps:
            raise self._refuse("memory", f"{run.allocations} allocations",
                               f"{run.allocations} pieces of device memory were allocated, where two buffers and one "
                               f"output per layer are {target.run.allocations}: the loop allocates. Make the buffers "
                               f"once, in the constructor. In this run: {on}.", run)

    def _judge_time(self, trial: Trial, target: Trial) -> None:
        run, on = trial.run, f"{trial.plan}, copy/compute {trial.run.ratio:g}"
        if trial.early:
            raise self._refuse("time", "copies before the first call",
                               f"Copies queued by the constructor: {len(trial.early)}. {CONSTRUCTOR}", run, target.run)
        needed = trial.plan.layers * CALLS
        if trial.bytes_copied < needed * WEIGHT_BYTES:
            raise self._refuse("time", "not every layer is copied in every call",
                               f"{trial.bytes_copied / WEIGHT_BYTES:g} layers were copied, where {CALLS} calls of "
                               f"{trial.plan.layers} need {needed}: the target is the time with every copy.", run,
                               target.run)
        if busy := busy_host(trial.hosting, target.hosting, CALLS):
            pageable = any(NO_PIN in name for name in run.trace.columns["name"])
            raise self._refuse("time", f"the host does not only launch; {on}",
                               f"Correct, but {busy}" + (PAGEABLE if pageable else ""), run, target.run)
        if trial.took_us > target.took_us * SLACK + CALLS_US * (CALLS if trial.plan.sync else 1):
            raise self._refuse("time", f"{trial.took_us:.0f} µs instead of {target.took_us:.0f}, {on}",
                               f"Correct, but too slow. {_why_late(trial)}", run, target.run)


def _why_late(trial: Trial) -> str:
    layers, loads, trace = trial.plan.layers, copies(trial.run.trace), trial.run.trace
    needed = layers * CALLS
    if trial.bytes_copied > (needed + AHEAD) * WEIGHT_BYTES:
        return (f"{trial.bytes_copied / WEIGHT_BYTES:g} layers were copied, where {CALLS} calls of {layers} need "
                f"{needed}, and at most {AHEAD} can be under way for a call to come. Is one copied again that is there "
                "already?")
    for call, (began, _) in enumerate(trial.seen.calls[1:], 1):
        if trial.plan.sync and call * layers < len(loads) and loads[call * layers].queued > began:
            return first_late(trace, layers, CALLS, among=layers) or (
                f"The first layer of call {call + 1} is copied only when that call has begun, so its first product has "
                "to wait for it. The call before can queue that copy, behind its last but one product.")
    return (first_late(trace, layers, CALLS)
            or "Compare the two timelines: which operation starts later than in the target, and what does it wait for?")
