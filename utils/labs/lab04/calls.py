"""Run a learner's model for several calls: back to back or one at a time, on a side stream, with another batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from ..check import Answer, Refused
from ..device import Run, Setting, run_once, window
from ..layers import FLOPS, ROWS, batch, bytes_taken, changed, digest_of, expected, pinned, same
from ..spans import copies, products
from .delays import reference

CALLS = 5
GAP_US = 2000.0   # from the constructor to the first call: what was queued there, such as zeros, is done by then


@dataclass(frozen=True)
class Plan:
    """How a model is called. ``sync``: the caller waits for each result. ``side``: all calls but the first come from
    another stream. ``again``: every call gets the same x, in which the caller has put something else. ``rows``: of x,
    call by call."""

    layers: int
    sync: bool = False
    side: bool = False
    again: bool = False
    rows: tuple[int, ...] = (ROWS,) * CALLS

    def __str__(self) -> str:
        return f"{self.layers} layer{'' if self.layers == 1 else 's'}, {self.manner}"

    @property
    def manner(self) -> str:
        """How the calls come, in words."""
        words = ("one call at a time" if self.sync else "back to back") + (", calls 2 to 5 on another stream"
                                                                           if self.side else "")
        words += ", the same tensor as x in every call, with other numbers in it" if self.again else ""
        return words + (", another batch in every call" if len(set(self.rows)) > 1 else "")


@dataclass
class Seen:
    """What the caller kept of one run, and when it went on to the first call, and calls began and returned (µs).

    ``news``: what the caller puts into each x. ``taken``: bytes of device memory, where suspiciously often."""

    plan: Plan
    weights: list[Any]
    inputs: list[Any]
    news: list[Any]
    side: Any
    calls: list[tuple[float, float]] = field(default_factory=list)
    began_us: float = 0.0
    taken: int = 0
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
    """A run of a model by a plan, its trace from the first call on: what the constructor had queued is done by then.

    ``early``: the number of copies before that. ``calls``: when each call began and returned, in µs of the trace."""

    plan: Plan
    run: Run
    calls: list[tuple[float, float]]
    early: int
    taken: int

    @classmethod
    def of(cls, plan: Plan, run: Run, seen: Seen) -> Trial:
        """Cut what the constructor did off a run."""
        trace, zero = window(run.trace, seen.began_us), seen.began_us
        calls = [(start - zero, stop - zero) for start, stop in seen.calls]
        return cls(plan, replace(run, trace=trace), calls, len(copies(run.trace)) - len(copies(trace)), seen.taken)

    @property
    def took_us(self) -> float:
        """From the first call to the end of the last product."""
        work = products(self.run.trace)
        return (work[-1].end if work else self.run.done_us) - self.calls[0][0]

    @property
    def hosting(self) -> Run:
        """The run with the host times of the model's own calls, without the constructor and the caller's waits."""
        own = [(start, stop) for start, stop in self.calls if stop > start]
        blocked = sum(self.run.trace.busy_us("sync", start=start, stop=stop) for start, stop in own)
        return replace(self.run, returned_us=sum(stop - start for start, stop in own), blocked_us=blocked)

    @property
    def bytes_copied(self) -> int:
        """To the device, from the first call on."""
        return sum(copy.bytes for copy in copies(self.run.trace))


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
    return Trial.of(plan, run, kept[-1])


@lru_cache(maxsize=256)
def goal(puzzle: str, plan: Plan, ratio: float) -> Trial:
    """The worked answer's run by the same plan: the target."""
    return run_plan(puzzle, reference(puzzle), plan, ratio, numerics="shapes")


def setting_of(puzzle: str, plan: Plan, kept: list[Seen], values: bool = True) -> Setting:
    """Fresh weights and inputs; every run's ``Seen`` is put into ``kept``."""
    from ... import simgpu

    def prepare() -> tuple[tuple[Any, ...], Seen]:
        import torch

        news = [batch(call, rows).to("cuda") for call, rows in enumerate(plan.rows)]
        inputs = ([simgpu.name(news[0].clone(), "x")] * CALLS if plan.again else
                  [simgpu.name(new.clone(), f"x of call {call}") for call, new in enumerate(news, 1)])
        weights, side = pinned(plan.layers), simgpu.name(torch.cuda.Stream(), "side stream")
        kept.append(Seen(plan, weights, inputs, news, side))
        return (list(weights), kept[-1]), kept[-1]

    read = _read if values else lambda _, seen: setattr(seen, "model", None)
    return Setting(puzzle, prepare, read, simgpu.RTX_5060_LAPTOP, flops=FLOPS)


def program(puzzle: str, answer: Answer, gap_us: float = GAP_US) -> Callable[[list[Any], Seen], list[Any]]:
    """The caller: makes the model, then calls it with one x after the other."""

    def caller(host_weights: list[Any], seen: Seen) -> list[Any]:
        import torch

        from ... import simgpu

        started, here = simgpu.clock(), torch.cuda.current_stream()
        seen.model = answer(host_weights)
        if not callable(seen.model):
            raise TypeError(f"{puzzle}(host_weights) cannot be called: the class needs a method __call__(self, x)")
        simgpu.host_work(gap_us)
        results, before, seen.began_us = [], _pieces(), simgpu.clock() - started
        for number, (x, new) in enumerate(zip(seen.inputs, seen.news, strict=True)):
            stream = seen.side if seen.plan.side and number else here
            stream.wait_stream(here)
            with torch.cuda.stream(stream), torch.profiler.record_function(f"call {number + 1}"):
                x.copy_(new)   # the caller's own work, which makes x
                began = simgpu.clock() - started
                results.append(seen.model(x))
                seen.calls.append((began, simgpu.clock() - started))
            if seen.plan.sync:
                torch.cuda.current_stream().synchronize()
        here.wait_stream(seen.side)
        if _pieces() - before > 2 * seen.plan.layers * CALLS:
            seen.taken = bytes_taken(started + seen.began_us)
        return results

    caller.__signature__ = inspect.signature(caller)   # not that of what it wraps
    own = inspect.getattr_static(answer, "__call__", None)   # of a class: what its objects do
    caller.__wrapped__ = own if inspect.isfunction(own) else answer   # an error names a line of these
    return caller


def _pieces() -> int:
    """How often device memory was taken."""
    import torch

    return torch.cuda.memory_stats()["allocation.all.allocated"]


def _read(results: Any, seen: Seen) -> Outcome:
    """Read every result on the current stream, as a caller does; the model lives until all is done."""
    import torch

    rows, layers = seen.plan.rows, seen.plan.layers
    digests = tuple(digest_of(result, count) for result, count in zip(results, rows, strict=True))
    torch.cuda.synchronize()
    last = {id(x): call for call, x in enumerate(seen.inputs)}   # of the calls that had this tensor
    touched = next((f"x of call {call + 1}" for call in last.values()
                    if not same(seen.inputs[call], batch(call, rows[call]))), "")
    if changed(seen.weights, layers):
        touched = "host_weights"
    seen.model = None
    return Outcome(digests, tuple(expected(call, count, layers) for call, count in enumerate(rows)), touched,
                   _shared(results))


def _shared(results: list[Any]) -> tuple[int, int] | None:
    """The first two calls whose results lie in the same memory."""
    import torch

    places: dict[int, tuple[int, int]] = {}
    for call, result in enumerate(results, 1):
        if isinstance(result, torch.Tensor):
            start, stop = _place(result)
            for other, (first, last) in places.items():
                if start < last and first < stop:
                    return other, call
            places[call] = start, stop
    return None


def _place(tensor: Any) -> tuple[int, int]:
    """The first address of a tensor and the one behind its last."""
    if not tensor.numel():
        return tensor.data_ptr(), tensor.data_ptr()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()
