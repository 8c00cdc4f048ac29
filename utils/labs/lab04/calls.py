"""Run a learner's model for several calls: back to back or one at a time, on a side stream, with another batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from ..check import Answer, Refused
from ..device import Run, Setting, run_once
from .causes import Span, copies, products, spans_of
from .data import FLOPS, ROWS, batch, changed, digest_of, expected, pinned, same
from .delays import reference

CALLS = 5


@dataclass(frozen=True)
class Plan:
    """How a model is called. ``sync``: the caller waits for each result. ``side``: all calls but the first come from
    another stream. ``rows``: of x, call by call."""

    layers: int
    sync: bool = False
    side: bool = False
    rows: tuple[int, ...] = (ROWS,) * CALLS

    def __str__(self) -> str:
        return f"{self.layers} layer{'' if self.layers == 1 else 's'}, {self.manner}"

    @property
    def manner(self) -> str:
        """How the calls come, in words."""
        words = ("one call at a time" if self.sync else "back to back") + (", calls 2 to 5 on another stream"
                                                                           if self.side else "")
        return words + (", another batch in every call" if len(set(self.rows)) > 1 else "")


@dataclass
class Seen:
    """What the caller kept of one run, and when the model was made and its calls began and returned (µs)."""

    plan: Plan
    weights: list[Any]
    inputs: list[Any]
    side: Any
    calls: list[tuple[float, float]] = field(default_factory=list)
    made_us: float = 0.0
    model: Any = None


@dataclass(frozen=True)
class Outcome:
    """The digest of every call's result beside the right one, what was changed, and the result that overwrote one."""

    seen: tuple[Any, ...]
    wanted: tuple[Any, ...]
    touched: str = ""
    shared: tuple[int, int] | None = None

    @property
    def right(self) -> bool:
        """Whether every call gave the right result."""
        return self.seen == self.wanted

    @property
    def wrong(self) -> list[int]:
        """The numbers of the calls that were wrong, from 1."""
        return [call for call, pair in enumerate(zip(self.seen, self.wanted, strict=True), 1) if pair[0] != pair[1]]

    def __repr__(self) -> str:
        good = [call for call in range(1, len(self.seen) + 1) if call not in self.wrong]
        return f"wrong in {calls_of(self.wrong)}" + (f" and right in {calls_of(good)}" if good else "")


class Right:
    """The outcome that was wanted, in words."""

    def __repr__(self) -> str:
        return "right in every call"


def calls_of(numbers: list[int]) -> str:
    """Some calls in words."""
    *first, last = map(str, numbers)
    return f"calls {', '.join(first)} and {last}" if first else f"call {last}"


@dataclass(frozen=True)
class Trial:
    """A run of a model by a plan; times in µs from the first call on, which is where the clock starts."""

    plan: Plan
    run: Run
    seen: Seen

    @property
    def began_us(self) -> float:
        """When the first call began, after the constructor, in the run's trace."""
        return self.seen.calls[0][0]

    @property
    def took_us(self) -> float:
        """From the first call, or the end of what the constructor had queued if that is later, to the last product."""
        work = products(self.run.trace)
        made = [span.end for span in spans_of(self.run.trace, "kernel") if span.queued <= self.seen.made_us]
        return (work[-1].end if work else self.run.done_us) - max([self.began_us, *made])

    @property
    def hosting(self) -> Run:
        """The run with the host times of the model's own calls, without the constructor and the caller's waits."""
        blocked = sum(self.run.trace.busy_us("sync", start=start, stop=stop)
                      for start, stop in self.seen.calls if stop > start)
        return replace(self.run, returned_us=sum(stop - start for start, stop in self.seen.calls), blocked_us=blocked)

    @property
    def early(self) -> list[Span]:
        """Copies that were queued before the first call."""
        return [copy for copy in copies(self.run.trace) if copy.queued <= self.began_us + 1e-6]

    @property
    def bytes_copied(self) -> int:
        """To the device, from the first call on."""
        columns = self.run.trace.columns
        return int(sum(size for size, kind, start in
                       zip(columns["bytes"], columns["kind"], columns["start_us"], strict=True)
                       if kind == "h2d" and start >= self.began_us - 1e-6))


def run_plan(puzzle: str, answer: Answer, plan: Plan, ratio: float, numerics: str = "exact") -> Trial:
    """Make a model and call it by the plan, once. Raises Refused with the learner's own error, Unsolved for a stub.

    Without values for ``numerics="shapes"``, which is faster.
    """
    kept: list[Seen] = []
    setting = setting_of(puzzle, plan, kept, values=numerics != "shapes")
    try:
        run = run_once(setting, program(puzzle, answer), ratio, numerics)
    except Refused as refused:
        refused.verdict.says += f"\nIn this run: {plan}."
        raise
    return Trial(plan, run, kept[-1])


@lru_cache(maxsize=256)
def goal(puzzle: str, plan: Plan, ratio: float) -> Trial:
    """The worked answer's run by the same plan: the target."""
    return run_plan(puzzle, reference(puzzle), plan, ratio, numerics="shapes")


def setting_of(puzzle: str, plan: Plan, kept: list[Seen], values: bool = True) -> Setting:
    """Fresh weights and inputs; every run's ``Seen`` is put into ``kept``."""
    from ... import simgpu

    def prepare() -> tuple[tuple[Any, ...], Seen]:
        import torch

        inputs = [simgpu.name(batch(call, rows).to("cuda"), f"x of call {call + 1}")
                  for call, rows in enumerate(plan.rows)]
        weights, side = pinned(plan.layers), simgpu.name(torch.cuda.Stream(), "side stream")
        square = torch.zeros(ROWS, ROWS, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        for stream in (torch.cuda.current_stream(), side):   # each has the library's workspace before memory is counted
            with torch.cuda.stream(stream):
                square @ square
        kept.append(Seen(plan, weights, inputs, side))
        return (list(weights), kept[-1]), kept[-1]

    read = _read if values else lambda _, seen: setattr(seen, "model", None)
    return Setting(puzzle, prepare, read, simgpu.RTX_5060_LAPTOP, flops=FLOPS)


def program(puzzle: str, answer: Answer) -> Callable[[list[Any], Seen], list[Any]]:
    """The caller: makes the model, then calls it with one x after the other."""

    def caller(host_weights: list[Any], seen: Seen) -> list[Any]:
        import torch

        from ... import simgpu

        started, here = simgpu.clock(), torch.cuda.current_stream()
        seen.model = answer(host_weights)
        seen.made_us = simgpu.clock() - started
        if not callable(seen.model):
            raise TypeError(f"{puzzle}(host_weights) cannot be called: the class needs a method __call__(self, x)")
        results = []
        for number, x in enumerate(seen.inputs):
            stream = seen.side if seen.plan.side and number else here
            stream.wait_stream(here)
            with torch.cuda.stream(stream), torch.profiler.record_function(f"call {number + 1}"):
                x.mul_(1.0)   # the caller's own work, which makes x
                began = simgpu.clock() - started
                results.append(seen.model(x))
                seen.calls.append((began, simgpu.clock() - started))
            if seen.plan.sync:
                torch.cuda.current_stream().synchronize()
        here.wait_stream(seen.side)
        return results

    caller.__signature__ = inspect.signature(caller)   # not that of what it wraps
    own = inspect.getattr_static(answer, "__call__", None)   # of a class: what its objects do
    caller.__wrapped__ = own if inspect.isfunction(own) else answer   # an error names a line of these
    return caller


def _read(results: Any, seen: Seen) -> Outcome:
    """Read every result on the current stream, as a caller does; the model lives until all is done."""
    import torch

    rows, layers = seen.plan.rows, seen.plan.layers
    digests = tuple(digest_of(result, count) for result, count in zip(results, rows, strict=True))
    torch.cuda.synchronize()
    touched = next((f"x of call {call + 1}" for call, count in enumerate(rows)
                    if not same(seen.inputs[call], batch(call, count))), "")
    if changed(seen.weights, layers):
        touched = "host_weights"
    seen.model = None
    return Outcome(digests, tuple(expected(call, count, layers) for call, count in enumerate(rows)), touched,
                   _shared(results))


def _shared(results: list[Any]) -> tuple[int, int] | None:
    """The first two calls whose results lie in the same memory."""
    import torch

    places: dict[int, int] = {}
    for call, result in enumerate(results, 1):
        if isinstance(result, torch.Tensor):
            place = result.untyped_storage().data_ptr()
            if place in places:
                return places[place], call
            places[place] = call
    return None
