"""Judges of the second and third puzzle: models that are called several times, back to back or one at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..check import Answer
from ..device import CALLS_US, RATIOS, SLACK, Run, busy_host, passed, refuse, refute_race, skipped_work
from ..layers import ROWS, WEIGHT_BYTES
from ..memory import ALL_KEPT, SPARE
from ..spans import copies, pageable, whole
from ..values import shown
from ..verdict import Verdict
from ..work import hurries, many_launches
from .calls import CALLS, Plan, Right, Trial, goal, program, run_plan, setting_of
from .causes import AHEAD, REUSED, first_late, who
from .double import PAGEABLE, TICKS, advice_on

if TYPE_CHECKING:
    from ...simgpu import Hazard

FEW = (0.5, 2.0)
OTHER_ROWS = (ROWS // 2, ROWS // 4, ROWS, ROWS // 2, ROWS // 8)   # less and more than at first
Plans = list[tuple[Plan, tuple[float, ...]]]
BACK_TO_BACK: Plans = [
    (Plan(7), (0.1, 0.5, 2.0)), (Plan(8), RATIOS),   # odd and even: other races, other waits
    *((Plan(layers), FEW) for layers in (1, 2, 3)),
    (Plan(23), (2.0,)), (Plan(24), (0.5,)),
    (Plan(5, side=True), FEW),
    (Plan(2, again=True), (1.0,)),
    (Plan(4, rows=OTHER_ROWS), (1.0,)),
]
ONE_AT_A_TIME: Plans = [
    (Plan(7, sync=True), (0.1, 0.5, 2.0)), (Plan(8, sync=True), RATIOS),
    *((Plan(layers, sync=True), FEW) for layers in (1, 2, 3)),
    (Plan(23, sync=True), (2.0,)), (Plan(24, sync=True), (0.5,)),
    *((Plan(layers), FEW) for layers in (1, 2, 3, 6)),
    (Plan(5, side=True), FEW),
    (Plan(2, sync=True, again=True), (1.0,)),
    (Plan(5, sync=True, rows=OTHER_ROWS), (1.0,)),
]
ACROSS = ("(These two belong to different calls. The first copies of a call have to wait, too: each for the product "
          "that read its buffer last, in the call before.)")
ELSEWHERE = ("(In this run the model is made outside of `with torch.cuda.stream(side):` and called inside. Ask for "
             "torch.cuda.current_stream() in the call: what it was in the constructor says nothing about a call.)")
NEVER_COMES = " (copies at the end, for a call that never comes, do not count)"
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
            found: list[Trial] = []
            for ratio in ratios:
                found.append(run_plan(self.puzzle, answer, plan, ratio))
                if busy := self._hurries(found[-1]):   # refused in any case, and thousands of launches a run
                    break
            self._refute_kind(found)
            self._refute_race(answer, found)
            self._refute_values(found)
            trials += found
            if busy:
                break
        for judge in (self._judge_memory, self._judge_time):   # all of one before any of the next
            for trial in sorted(trials, key=lambda trial: trial.plan.layers % 2):   # even counts have one cause less
                judge(trial, goal(self.puzzle, trial.plan, trial.run.ratio))
        layers, ratio, sync = self.picture
        best = next(trial for trial in trials if trial.plan == Plan(layers, sync) and trial.run.ratio == ratio)
        target = goal(self.puzzle, best.plan, ratio)
        more = NEVER_COMES if best.bytes_copied > target.bytes_copied else ""
        whys = ("every call, bit for bit", "every order is stated, between calls too",
                "two buffers and the activations", f"{self.in_time}, and the host only launches{more}")
        return passed(self.puzzle, TICKS, whys, best.run, target.run, advice_on(answer), self._tried())

    def _hurries(self, trial: Trial) -> bool:
        return bool(hurries(trial.hosting, goal(self.puzzle, trial.plan, trial.run.ratio).hosting, CALLS))

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
        racing = [trial for trial in trials if trial.run.hazards or trial.run.later]
        if racing:
            plan = racing[0].plan   # without a gap behind the constructor: there are pictures of these runs only
            refute_race(setting_of(self.puzzle, plan, []), program(self.puzzle, answer, gap_us=0.0),
                        [trial.run for trial in racing], Right(), TICKS, lambda given, _: given.right,
                        lambda _, hazard: self._hint(racing[0], hazard))

    def _hint(self, trial: Trial, hazard: Hazard) -> str:
        plan, late = trial.plan, not trial.run.hazards
        hints = [who(trial.run.trace, hazard, plan.layers, trial.calls)]
        if plan.side:
            hints.append(ELSEWHERE)
        elif "was freed" in hazard.remark:
            hints.append(REUSED)
        elif not late and hazard.first.layer is not None and hazard.first.layer != hazard.second.layer:
            hints.append(ACROSS)
        hints.append(f"In this run: {plan}.")
        return "\n".join(filter(None, hints))

    def _refute_values(self, trials: list[Trial]) -> None:
        for trial in trials:
            outcome, on = trial.run.value, f"{trial.plan}, copy/compute {trial.run.ratio:g}"
            if trial.plan.again and not outcome.right and not outcome.touched:
                raise self._refuse("correct", f"call {outcome.wrong[0]}, {trial.plan}",
                                   f"Every order is stated, but the result is {outcome}. In this run x is the same "
                                   "tensor in every call, and the caller has put other numbers in it. A call computes "
                                   "from what x holds; nothing may be kept for an x that was seen before.", trial.run)
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
            kept = ALL_KEPT if run.allocations <= target.run.allocations else ""
            raise self._refuse("memory", f"{sizes[0]} layers' worth at the peak",
                               f"At the peak the model took device memory as large as {sizes[0]} layers. Two buffers, "
                               f"the activations and the results take {sizes[1]}.{kept} In this run: {on}.", run)
        if trial.plan.layers > 2 and trial.taken > trial.plan.layers * CALLS * WEIGHT_BYTES:
            raise self._refuse("memory", f"{run.allocations} allocations",
                               f"{run.allocations} pieces of device memory were allocated, as large as "
                               f"{trial.taken / WEIGHT_BYTES:.0f} layers, where two buffers and one output per layer "
                               f"are {target.run.allocations}: the loop allocates. Make the buffers once, in the "
                               f"constructor. In this run: {on}.", run)

    def _judge_time(self, trial: Trial, target: Trial) -> None:
        run, on = trial.run, f"{trial.plan}, copy/compute {trial.run.ratio:g}"
        if trial.early:
            raise self._refuse("time", "copies before the first call",
                               f"Copies queued by the constructor: {trial.early}. {CONSTRUCTOR}", run, target.run)
        needed = trial.plan.layers * CALLS
        if trial.bytes_copied < needed * WEIGHT_BYTES:
            raise self._refuse("time", "not every layer is copied in every call",
                               f"{trial.bytes_copied / WEIGHT_BYTES:g} layers were copied, where {CALLS} calls of "
                               f"{trial.plan.layers} need {needed}: the target is the time with every copy. A layer is "
                               f"copied anew even if a buffer still holds it. In this run: {on}.", run, target.run)
        if skipped := skipped_work(run, target.run, trial.bytes_copied, needed * WEIGHT_BYTES):
            raise self._refuse("time", f"not every layer is multiplied in every call, {on}",
                               f"The results are right, but {skipped} A call multiplies x by every layer in turn, "
                               "each as the host holds it.", run, target.run)
        if busy := many_launches(run, target.run) or busy_host(trial.hosting, target.hosting, CALLS):
            raise self._refuse("time", f"the host does not only launch; {on}",
                               f"Correct, but {busy}" + (PAGEABLE if pageable(run.trace) else ""), run, target.run)
        if trial.took_us > target.took_us * SLACK + CALLS_US * (CALLS if trial.plan.sync else 1):
            raise self._refuse("time", f"{trial.took_us:.0f} µs instead of {target.took_us:.0f}, {on}",
                               f"Correct, but too slow. {_why_late(trial)}", run, target.run)


def _why_late(trial: Trial) -> str:
    layers, trace = trial.plan.layers, trial.run.trace
    loads, needed = whole(copies(trace)) or [], layers * CALLS
    if trial.bytes_copied > (needed + AHEAD) * WEIGHT_BYTES:
        return (f"{trial.bytes_copied / WEIGHT_BYTES:g} layers were copied, where {CALLS} calls of {layers} need "
                f"{needed}, and at most {AHEAD} can be under way for a call to come. Is one copied again that is there "
                "already?")
    for call, (began, _) in enumerate(trial.calls[1:], 1):
        if trial.plan.sync and call * layers < len(loads) and loads[call * layers].queued > began:
            return first_late(trace, layers, CALLS, among=layers) or (
                f"The first layer of call {call + 1} is copied only when that call has begun, so its first product has "
                "to wait for it. The call before can queue that copy, behind its last but one product.")
    return (first_late(trace, layers, CALLS)
            or "Compare the two timelines: which operation starts later than in the target, and what does it wait for?")
