"""Judge of ``Bucketed``: the steps of a serving loop as graphs of a few sizes, captured before the first request."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..check import Answer
from ..device import SLACK, window
from ..lab06.data import Workload, random_workload
from ..values import text_of
from ..verdict import Verdict
from .cells import logged, others_words, rows_words
from .judge import CALLS_US, Judge, Ran, Wrong, blocked_us, captures, ended, h200, kind_words, move_on

if TYPE_CHECKING:
    from ...simgpu import Hazard, Profile
    from ...simgpu.device import SimDevice

PUZZLE = "Bucketed"
PRODUCTS = 50                # of a step
ROW_US = 2.0                 # of a product, for each row, beside its latency
WIDTH = 64                   # of the lesson's model in the simulator
CELLS = 64
BEFORE_US, CAPTURE_US = 100.0, 2500.0   # of a capture while serving, what is shown
FEW = 3                      # waits of the host
MOST = 1.1                   # of the target's time: a few more copies of rows are none of the puzzle
ONE_BY_ONE = Workload(1, 4, ((2, 8, 0.0), (1, 6, 0.0)))
COME_AND_GO = Workload(8, 8, (   # rows of who has left lie far behind those of a step, and their slots are taken again
    (1, 24, 0.0), *[(1, 9, 0.0)] * 3, *[(1, 5, 0.0)] * 4, *[(1, 12, 10.0)] * 3))
FOUR = Workload(4, 4, ((1, 12, 0.0), (1, 12, 0.0), (1, 12, 0.0), (1, 12, 0.0)))


@dataclass(frozen=True)
class Case:
    """A workload, and the sizes that are to be captured."""

    load: Workload
    sizes: tuple[int, ...]
    moves: bool = False
    side: bool = False
    adversarial: bool = False

    def __str__(self) -> str:
        parts = [f"{self.load}", f"sizes {', '.join(map(str, self.sizes))}"] + ["another stream current"] * self.side
        parts += ["another stream current while serving than before"] * self.moves
        return ", ".join(parts + ["adversarial timing"] * self.adversarial)

    def size(self, count: int) -> int:
        """The one for a step of so many rows."""
        return min(size for size in self.sizes if size >= count)

    @property
    def profile(self) -> Profile:
        """An H200 on which a product's time grows with its rows."""
        return h200(lambda one: replace(one, flops={"default": 2 * WIDTH**2 / (ROW_US * 1e-6 * one.gemm_efficiency)}))


@lru_cache(maxsize=1)
def lesson() -> ModuleType:
    """Lesson 06: requests, the model in whole numbers, the synchronous loop."""
    from ...lessons import import_lesson

    return import_lesson("06_continuous_batching")


class Served:
    """Stands in the model's place in the loop: gives its rows to the learner's object, and keeps what that costs."""

    def __init__(self, judge: Bucketing, case: Case, model: Any, steps: Any) -> None:
        self.judge, self.case, self.steps, self.host_us, self.rows = judge, case, steps, [], []
        self.slots, self.length = case.load.slots, model.length

    def __call__(self, tokens: Any, slots: Any, positions: Any) -> Any:
        from ... import simgpu

        begin, rows = simgpu.clock(), len(tokens)
        found = self.judge.called(self.steps, tokens, slots, positions, on=f"a step of {rows} rows")
        self.host_us.append(simgpu.clock() - begin)
        self.rows.append(rows)
        if kind := kind_words(found, tokens):
            raise self.judge.refuse("correct", f"a step of {rows} rows gives {kind}",
                                    f"Return what follows each of the {rows} rows: an int64 tensor of shape ({rows},) "
                                    "on the GPU.")
        return found


class Bucketing(Judge):
    puzzle = PUZZLE
    ticks = ("correct", "race-free", "captures", "time")
    whys = ("every token is the expected one", "every order is stated", "none while serving",
            "each step in the smallest size that holds it")
    cases = (Case(random_workload(8, 4, 16, 0.0, seed=11, longest=9), (2, 16, 4, 1, 8)), Case(ONE_BY_ONE, (4, 1)),
             Case(FOUR, (8, 4, 2, 1), moves=True), Case(COME_AND_GO, (8,)),
             Case(random_workload(6, 3, 8, 0.0, seed=5, longest=6), (3, 8, 5), side=True, adversarial=True))

    def play(self, answer: Answer, case: Case, gpu: SimDevice) -> Ran:
        import torch

        from ... import simgpu

        model = _model(case.load.slots + 2)         # one is spare, and one holds prefixes only
        model.cells.copy_(torch.arange(model.cells.numel()).reshape(model.cells.shape))   # prefixes, kept from before
        cells, spare, kept = model.cells, case.load.slots, model.cells.cpu()
        with captures(gpu) as made:
            steps = self.called(answer, model, list(case.sizes), spare, on="model, sizes and spare")
        if not callable(steps):
            raise self.refuse("correct", "there is no __call__", "Write __call__(self, tokens, slots, positions), too.")
        if case.moves:
            move_on()
        if not case.adversarial:               # there it goes on at once
            torch.cuda.synchronize()
        changed = others_words(kept, cells.cpu(), spare, "When nobody was served yet")
        scheduler, requests = logged(lesson().Batching(case.load.slots, case.load.budget)), case.load.requests()
        scheduler.add(*requests)
        served, before, begin = Served(self, case, model, steps), model.calls, simgpu.clock()
        with captures(gpu) as captured:
            count = self._served(served, scheduler)
        returned = simgpu.clock() - begin
        found = ended(gpu, case, begin, None, steps=count, calls=model.calls - before, served=served, made=len(made),
                      captures=[at - begin for at in captured])
        found.facts["blocked_us"] = blocked_us(found.trace, returned)
        found.facts["whole"], (first, found.stop_us) = found.trace, _shown(found.trace)
        found.trace = window(found.trace, first)            # the same steps of an answer and of the target begin at 0
        after = cells.cpu()
        changed = changed or others_words(kept, after, spare, "While serving", scheduler.given)
        found.wrong = Wrong("a cell of somebody else changed", changed) if changed else _wrong(requests)
        if not found.wrong and (changed := rows_words(kept, after, scheduler.given)):
            found.wrong = Wrong("cells are not as the rows left them", changed)
        return found

    def _served(self, served: Served, scheduler: Any) -> int:
        import torch

        try:
            count = lesson().synchronous(served, scheduler, 20)
            torch.cuda.synchronize()
        except IndexError as error:   # of a kernel, found when its numbers are needed
            raise self.refuse("correct", f"a kernel of a step of {(served.rows or [0])[-1]} rows failed",
                              f"{text_of(error)}\nThat is a slot or a position of which the cache has none. {ROWS}"
                              ) from None
        return count

    def race_words(self, run: Ran, hazard: Hazard) -> str:
        return ("The loop makes the rows, and reads what you return, on the stream that is current in the call; the "
                "model writes its cells in the order of the steps. What runs on another stream has to wait for that "
                "one, and that one for it.")

    def advice(self, runs: list[Ran]) -> list[str]:
        more = [run for run in runs if _syncs(run) > _syncs(self.goal(run.case)) + FEW]
        waits = [f"The host waits {_syncs(run)} times, where {_syncs(self.goal(run.case))} do. It costs nothing in "
                 "this loop, which waits right behind each step, but would in an asynchronous one." for run in more][:1]
        eager = next((run for run in runs if run.facts["calls"]), None)
        if eager:
            waits.append(f"The model runs in Python in {eager.facts['calls']} of {eager.facts['steps']} steps. That "
                         "costs nothing here, where so many rows take longer than their launches; but the host is busy "
                         "all that time.")
        return waits + [f"You captured {run.facts['made']} graphs for {len(run.case.sizes)} sizes. Each takes time at "
                "the start, and on a GPU memory." for run in runs if run.facts["made"] > len(run.case.sizes)][:1]

    def _judge_products(self, run: Ran, goal: Ran, on: str) -> None:
        """As many as the model has, with as many rows as the step needs."""
        rows, mine, latency = run.facts["served"].rows, _products_us(run), _latency_us(goal)
        if len(mine) != len(rows):
            raise self.refuse("correct", "products are left out", f"{len(rows)} steps of {PRODUCTS} products each make "
                              f"{len(rows) * PRODUCTS}, and {run.facts['products']} were computed. The model is to be "
                              f"run as it is.{on}")
        for number, (count, took) in enumerate(zip(rows, mine, strict=True)):
            used, size = round((took / PRODUCTS - latency) / ROW_US, 1), run.case.size(count)
            if used < count:
                raise self.refuse("correct", "products are left out", f"Step {number} has {count} rows, and its "
                                  f"products had {used:g}. The model is to be run as it is.{on}")
            if used > size:
                extra = (sum(mine) - sum(PRODUCTS * (latency + ROW_US * run.case.size(one)) for one in rows)) / 1000
                raise self.refuse("time", f"a step of {count} rows is one of {used:g}",
                                  f"Right, but step {number} has {count} row{'s' * (count > 1)} and computes {used:g}, "
                                  f"where size {size} holds it. A product takes {ROW_US:g} µs more for each row, a "
                                  f"padding row, too: in all steps that is {extra:.2f} ms more than needed.{on}",
                                  run, goal)

    def judge_cost(self, run: Ran, goal: Ran) -> None:
        served, times = run.facts["served"], run.facts["captures"]
        on = f"\nIn this run: {run.case}."
        longest = max(range(len(served.host_us)), key=served.host_us.__getitem__)
        if times:
            many = f"{len(times)} graphs are captured while requests are served" if len(times) > 1 else \
                "a graph is captured while requests are served"
            run.trace, run.stop_us = window(run.facts["whole"], times[0] - BEFORE_US), CAPTURE_US
            raise self.refuse("captures", f"{len(times)} while serving",
                              f"Right, but {many}, in {run.facts['steps']} steps. Step {longest} takes the host "
                              f"{served.host_us[longest]:.0f} µs, where {max(goal.facts['served'].host_us):.0f} are "
                              f"enough, and everybody in it waits for that. Capture every size in __init__.{on}", run)
        self._judge_products(run, goal, on)
        if run.wall_us <= goal.wall_us * (SLACK if run.facts["calls"] else MOST) + CALLS_US:
            return
        raise self.refuse("time", f"{run.wall_us / 1000:.2f} ms instead of {goal.wall_us / 1000:.2f}",
                          f"Right, but {run.facts['steps']} steps take {run.wall_us / 1000:.2f} ms, where "
                          f"{goal.wall_us / 1000:.2f} are enough. {_slow_words(run, goal)}{on}", run, goal)


def _model(slots: int) -> Any:
    class Counted(lesson().IntegerModel):
        calls = 0

        def __call__(self, tokens: Any, slots: Any, positions: Any) -> Any:
            self.calls += 1
            return super().__call__(tokens, slots, positions)

    return Counted(slots, CELLS, PRODUCTS)


def _wrong(requests: list[Any]) -> Wrong | None:
    for request in requests:
        right = lesson().expected(request)
        if request.tokens != right:
            count = sum(one.tokens != lesson().expected(one) for one in requests)
            return Wrong("wrong tokens", f"{count} of {len(requests)} requests have wrong tokens: {request.name}'s are "
                                         f"{request.tokens[:6]}, expected {right[:6]}. {ROWS}")
    return None


ROWS = ("Does the graph read this step's rows? And the rows that the step does not have: each of them writes a cell, "
        "too. Which one?")


def _slow_words(run: Ran, goal: Ran) -> str:
    if run.facts["calls"]:
        return (f"The model runs in Python in {run.facts['calls']} of them, {PRODUCTS} products and more, one launch "
                "for each kernel: with few rows the launches are the bound.")
    if run.facts["blocked_us"] > goal.facts["blocked_us"] and _syncs(run) > _syncs(goal):
        return (f"The host waits {_syncs(run)} times, where the loop does so {_syncs(goal)} times. Nothing in a step "
                "has to wait.")
    return "The host needs longer for its steps: how many launches are there beside the replay?"


def _syncs(run: Ran) -> int:
    return sum(kind == "sync" for kind in run.facts["whole"].columns["kind"])


def _products_us(run: Ran) -> list[float]:
    """The time of the products of each step; what is left of the last ones makes one more."""
    columns = run.facts["whole"].columns
    spans = sorted((start, took) for start, took, name, lane in
                   zip(*(columns[name] for name in ("start_us", "duration_us", "name", "lane")), strict=True)
                   if lane == "compute" and name.split()[-1] == "mm")
    run.facts["products"] = len(spans)
    return [sum(took for _, took in spans[at:at + PRODUCTS]) for at in range(0, len(spans), PRODUCTS)]


def _latency_us(goal: Ran) -> float:
    """Of a product without rows."""
    return _products_us(goal)[0] / PRODUCTS - ROW_US * goal.case.size(goal.facts["served"].rows[0])


def _shown(trace: Any) -> tuple[float, float | None]:
    """The start of one step, and how long it is from there to the third behind it."""
    starts = [start for start, name in zip(trace.columns["start_us"], trace.columns["name"], strict=True)
              if name == "schedule"]
    at = len(starts) // 2
    return (starts[at], starts[at + 3] - starts[at]) if len(starts) > at + 3 else (0.0, None)


def judge_Bucketed(answer: Answer) -> Verdict:
    """The expected tokens, no capture while serving, each step in the smallest size that holds it."""
    return Bucketing().run(answer)
