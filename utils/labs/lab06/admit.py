"""Judge of ``admit``: who comes in before each step of a serving loop, in the order of arrival and in time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..check import Answer, Refused, call
from ..values import shown
from ..verdict import Tick, Verdict
from .data import KEY, Cells, Chart, Table, Workload, around, lesson, random_workload, right_rows

PUZZLE = "admit"
TICKS = ("correct", "in order", "steps")
TOO_LONG = 6          # times the steps that are enough: then a loop is broken off
WORKLOADS = (
    Workload(2, 8, ((3, 8, 0.0), (2, 2, 0.0), (5, 3, 1.0), (1, 4, 2.0))),
    Workload(3, 8, ((4, 3, 6.0), (9, 5, 0.0), (2, 6, 3.0), (6, 2, 3.0), (3, 9, 0.0), (5, 4, 40.0))),
    Workload(1, 4, ((3, 3, 2.0), (6, 2, 0.0), (2, 4, 1.0))),
    Workload(4, 16, tuple((4, 2 + 5 * (n % 3), 0.0) for n in range(12))),
    random_workload(20, 4, 16, gap_ms=1.5, seed=6),
    random_workload(24, 6, 12, gap_ms=0.4, seed=8),
)


class Fault(Exception):
    """What is wrong in a step: the tick, in short, and in words."""

    def __init__(self, tick: str, why: str, says: str) -> None:
        super().__init__(says)
        self.tick, self.why, self.says = tick, why, says


@dataclass
class Served:
    """A workload that was served: the chart of its slots, and the first time that somebody who could
    have come in had to wait: the step, and who was admitted while who ran."""

    requests: list[Any]
    chart: Chart
    late: tuple[int, str, int, int] | None = None
    ended: bool = False


def right_admit(waiting: list[Any], running: list[Any], slots: int, at_ms: float) -> list[Any]:
    """Those that have arrived, first come first served, as far as slots are free."""
    arrived = sorted((one for one in waiting if one.arrival_ms <= at_ms), key=lambda one: one.arrival_ms)
    return arrived[:slots - len(running)]


def judge_admit(answer: Answer) -> Verdict:
    """The expected tokens, nobody before its turn, and as many steps as the worked answer takes."""
    for load in WORKLOADS:
        _judge(answer, load)
    first = WORKLOADS[0]
    chart = _serve(right_admit, first).chart.lines("first workload")
    whys = ("every request has its tokens", "of arrival, into free slots", "as few as can be")
    return Verdict(PUZZLE, [Tick(name, True, why) for name, why in zip(TICKS, whys, strict=True)],
                   tried="; ".join(map(str, WORKLOADS)), picture=Table("\n".join([*chart, KEY])))


def _judge(answer: Answer, load: Workload) -> None:
    best = _serve(right_admit, load)

    def ask(*state: Any) -> Any:
        return call(PUZZLE, answer, *state, on=str(load))

    run = Served(load.requests(), Chart(load.slots))
    try:
        _serve(ask, load, run, TOO_LONG * len(best.chart.columns))
    except Fault as fault:
        raise _refused(fault.tick, fault.why, f"{load}. {fault.says}", run, None, len(run.chart.columns)) from None
    mine, enough = len(run.chart.columns), len(best.chart.columns)
    if not run.ended or mine > enough:
        why = f"{mine} steps instead of {enough}" if run.ended else "requests wait for ever"
        step = run.late[0] if run.late else 0
        raise _refused("steps", why, f"{load}. {_late_words(run)}", run, best, step)
    for request, fresh in zip(run.requests, load.requests(), strict=True):
        if request.tokens != lesson().expected(fresh):
            raise _refused("correct", "wrong tokens", f"{load}. {request.name}'s tokens are not the expected ones: are "
                           "the requests changed? The loop does that.", run, best, 0)


def _serve(admit: Callable[..., Any], load: Workload, run: Served | None = None, most: int = 10_000) -> Served:
    """The serving loop: admit, rows, model, take; one step is 1 ms."""
    run = run or Served(load.requests(), Chart(load.slots))
    waiting, running, free, cells = list(run.requests), [], list(range(load.slots)), Cells()
    for at in range(most):
        if not waiting and not running:
            run.ended = True
            return run
        for request in _chosen(admit(list(waiting), list(running), load.slots, float(at)), waiting, running, load, at):
            waiting = [one for one in waiting if one is not request]
            request.slot = free.pop(0)
            running.append(request)
        run.chart.note(running)
        rows = right_rows(running, load.budget)
        _note_late(run, waiting, running, load, at)
        tokens = cells.step((row.token, row.request.slot, row.position, row.last) for row in rows)
        _take(rows, tokens, running, free)
    return run


def _take(rows: list[Any], tokens: list[int | None], running: list[Any], free: list[int]) -> None:
    for row, token in zip(rows, tokens, strict=True):
        request = row.request
        if row.position < len(request.prompt):
            request.done = max(request.done, row.position + 1)
        if row.last:
            request.tokens.append(token)
        if request.finished:
            running[:] = [one for one in running if one is not request]
            free.append(request.slot)
            request.slot = None


def _chosen(given: Any, waiting: list[Any], running: list[Any], load: Workload, at: int) -> list[Any]:
    """The admitted requests; Fault unless each waits, has arrived, finds a slot, and nobody who came before waits."""
    try:
        chosen = list(given)
    except TypeError:
        raise Fault("correct", f"returned {shown(given)}", "Return a list of requests, empty for none.") from None
    ids, own = [id(one) for one in chosen], {id(one) for one in waiting}
    if strange := [one for one in chosen if id(one) not in own]:
        raise Fault("correct", f"step {at}: {_name(strange[0])} does not wait",
                    "Return requests of `waiting`. Those that run have their slots.")
    if len(set(ids)) < len(ids):
        raise Fault("correct", f"step {at}: a request twice", f"{_names(chosen)}: each gets one slot.")
    free = load.slots - len(running)
    if len(chosen) > free:
        raise Fault("correct", f"step {at}: {len(chosen)} admitted, free slots: {free}",
                    f"Before step {at} {len(running)} of {load.slots} slots are taken, and {_names(chosen)} would come "
                    "in. Two requests in one slot overwrite each other's cells.")
    if early := [one for one in chosen if one.arrival_ms > at]:
        raise Fault("correct", f"step {at}: {early[0].name} has not arrived",
                    f"At {at} ms {early[0].name} is admitted, which arrives at {early[0].arrival_ms:g}: nobody knows "
                    "of it yet.")
    left = [one for one in waiting if id(one) not in set(ids) and one.arrival_ms <= at]
    passed = [(one, other) for one in left for other in chosen if one.arrival_ms < other.arrival_ms]
    if passed:
        one, other = passed[0]
        raise Fault("in order", f"step {at}: {other.name} before {one.name}",
                    f"{other.name}, which arrived at {other.arrival_ms:g} ms, comes in while {one.name} still waits, "
                    f"since {one.arrival_ms:g} ms. `waiting` is in no particular order, and in a busy time whoever is "
                    "passed over can wait for ever.")
    return chosen


def _note_late(run: Served, waiting: list[Any], running: list[Any], load: Workload, at: int) -> None:
    """Remember the first time that a slot stays free while somebody waits."""
    left = [one for one in waiting if one.arrival_ms <= at]
    if run.late is None and left and len(running) < load.slots:
        before = sum(one.done > 0 for one in running)
        run.late = at, min(left, key=lambda one: one.arrival_ms).name, len(running) - before, before


def _late_words(run: Served) -> str:
    if run.late is None:
        return "All that have arrived are admitted, and yet it takes longer: is somebody chosen who came later?"
    at, name, came, before = run.late
    request = next(one for one in run.requests if one.name == name)
    says = f"In step {at} a slot is free and {name} waits, since {request.arrival_ms:g} ms. "
    if request.arrival_ms == at:
        says += "It has arrived: at_ms is its arrival_ms. "
    if came:
        return f"{says}{came} came in before this step: as many may come in as there are free slots."
    if before:
        return (f"{says}Nobody comes in while {before} still run{'s' * (before == 1)}: draining the whole batch first "
                "leaves slots empty until the longest request is through.")
    return f"{says}Nobody runs, and nobody is admitted."


def _name(request: Any) -> str:
    return request.name if isinstance(request, lesson().Request) else shown(request)


def _names(requests: list[Any]) -> str:
    return ", ".join(map(_name, requests))


def _refused(tick: str, why: str, says: str, run: Served, best: Served | None, step: int) -> Refused:
    at = TICKS.index(tick)
    ticks = [Tick(name, True if place < at else False if place == at else None, why if place == at else "")
             for place, name in enumerate(TICKS)]
    lines = run.chart.lines("yours", around(step)) if run.chart.columns else []
    lines += best.chart.lines("worked answer", around(step)) if best else []
    return Refused(Verdict(PUZZLE, ticks, says=says, picture=Table("\n".join([*lines, KEY])) if lines else None))
