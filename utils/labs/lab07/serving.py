"""Serve a workload on the simulated device with the lesson's loop, in which a learner's part takes a place."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..check import Refused, Unsolved
from ..defaults import usual_defaults
from ..device import one_thread, window
from ..lab06.data import Workload
from ..memory import mark, taken_since
from ..values import shown
from ..watching import watching

if TYPE_CHECKING:
    from ...simgpu import Hazard, Note, Profile
    from ...trace import Trace
    from ..watching import Calls

LESSON = "07_async_batching"
CELLS = 64            # of a request's slot in the cache
COPY_NS = 1_500       # of a copy of a step's rows or tokens, usually
SLOW_NS = 300_000
ENDLESS = 5_000       # rounds of one run; the longest has some hundreds
UNWRITTEN = " (?: from memory that was read before it was written, or meanwhile.)"


@lru_cache(maxsize=1)
def lesson() -> ModuleType:
    """Lesson 07: slots, the asynchronous scheduler, and the loop."""
    from ...lessons import import_lesson

    return import_lesson(LESSON)


@lru_cache(maxsize=1)
def requests_lesson() -> ModuleType:
    """Lesson 06: requests, the model in whole numbers, and what it answers."""
    from ...lessons import import_lesson

    return import_lesson("06_continuous_batching")


@dataclass(frozen=True)
class Case:
    """A workload, and how fast host, GPU and copies are.

    ``rows``: of the buffers, where they are larger than a step of this workload needs. ``adversarial``: everything that
    no edge orders goes wrong.
    """

    load: Workload
    host_us: int = 500
    gpu_us: int = 1000
    copy_ns: int = COPY_NS
    rows: int = 0
    adversarial: bool = False
    also: str = ""

    def __str__(self) -> str:
        parts = [f"{self.load}", f"host {self.host_us / 1000:g} ms, GPU {self.gpu_us / 1000:g} ms"]
        parts += [f"copies {self.copy_ns / 1e6:g} ms"] * (self.copy_ns != COPY_NS)
        parts += [f"buffers for {self.rows} rows"] * bool(self.rows) + [self.also] * bool(self.also)
        return ", ".join(parts + ["adversarial timing"] * self.adversarial)

    @property
    def profile(self) -> Profile:
        """An H200 on which the product of a step takes so long."""
        from ... import simgpu

        return replace(simgpu.H200.with_op_time(mm=self.gpu_us * 1000), copy_latency_ns=self.copy_ns)


@dataclass
class Served:
    """A run: its requests, what was reported, and what it took.

    ``workspaces``: of the matrix library, one for each stream with a product. ``device_bytes``, ``pinned_bytes``: the
    most that was taken while it ran. ``calls``: what its trace does not tell. ``failed``: the error that ended it.
    ``facts``: what a puzzle wants to know beside these.
    """

    case: Case
    requests: list[Any]
    hazards: list[Hazard]
    notes: list[Note]
    trace: Trace
    wall_us: float
    steps: int
    waits: int
    workspaces: int
    device_bytes: int
    pinned_bytes: int
    calls: Calls
    scheduler: Any
    failed: Exception | None = None
    facts: Any = None

    @property
    def wrong(self) -> tuple[Any, list[int]] | None:
        """The first request whose tokens are not the expected ones, and those."""
        for request in self.requests:
            right = requests_lesson().expected(request)
            if request.tokens != right:
                return request, right
        return None

    @property
    def wrong_words(self) -> str:
        """The first wrong tokens, in words."""
        request, right = self.wrong
        count = sum(request_.tokens != requests_lesson().expected(request_) for request_ in self.requests)
        at = next((n for n, (one, two) in enumerate(zip(request.tokens, right, strict=False)) if one != two),
                  min(len(right), len(request.tokens)))
        begin = max(0, at - 2)
        dots = "..., " if begin else ""
        mine, wanted = (", ".join("?" if token < 0 else str(token) for token in some[begin:at + 4]) +
                        ", ..." * (len(some) > at + 4) for some in (request.tokens, right))
        return (f"{count} of {len(self.requests)} requests have wrong tokens. {request.name}'s are "
                f"[{dots}{mine}], expected [{dots}{wanted}]." + UNWRITTEN * ("?" in mine))


def serve(case: Case, pipeline: Callable[..., Any], scheduler: Callable[..., Any] | None = None,
          loop: Callable[..., Any] | None = None, change: Callable[[list[Any]], None] | None = None) -> Served:
    """Run the loop once. ``pipeline(model, rows)``, ``scheduler(slots, budget)`` and ``loop`` default to the lesson's.
    ``change``: the requests, before they are added.

    Refused and Unsolved of a learner's function pass through; another error is kept in the result.
    """
    import torch

    from ... import simgpu

    lesson(), requests_lesson()
    with (one_thread(), usual_defaults(),
          simgpu.session(case.profile, numerics="adversarial" if case.adversarial else "exact") as gpu):
        model = requests_lesson().IntegerModel(case.load.slots, CELLS, products=1)
        booked = (scheduler or lesson().AsyncBatching)(case.load.slots, case.load.budget)
        requests = case.load.requests()
        if change:
            change(requests)
        booked.add(*requests)
        torch.cuda.synchronize()
        failed, count, started = None, 0, []

        def begun(model: Any, rows: int) -> Any:
            made = pipeline(model, case.rows or rows)
            started[:] = simgpu.clock(), mark(gpu), pinned_bytes(gpu)
            return made
        try:
            with watching(gpu) as calls:
                count = (loop or _ending(booked))(model, booked, case.host_us, begun)
        except Refused as refused:
            if gpu.hazards:
                refused.verdict.says += f"\nAnd there is a race:\n{gpu.hazards[0]}"
            raise
        except Unsolved:
            raise
        except Exception as error:   # of the loop, with what a faulty part has made
            failed = error
        begin, before, pinned = started or (simgpu.clock(), mark(gpu), pinned_bytes(gpu))
        wall = simgpu.clock() - begin
        trace = window(gpu.trace(), begin)
        found = Served(case, requests, list(gpu.hazards), list(gpu.notes), trace, wall, count, 0,
                       mark(gpu).workspaces, taken_since(gpu, before).peak_bytes, pinned_bytes(gpu) - pinned, calls,
                       booked, failed)
        found.waits = sum(kind == "sync" for kind in trace.columns["kind"])
        return found


def _ending(booked: Any) -> Callable[..., Any]:
    """The lesson's loop, which ends where nothing moves any more."""
    usual, rounds = booked.step, itertools.count(1)

    def step(at_ms: float) -> list[Any]:
        if next(rounds) > ENDLESS:
            raise RuntimeError(f"after {ENDLESS} rounds the loop is still running, and not everybody is served")
        return usual(at_ms)
    booked.step = step
    return lesson().asynchronous


def pinned_bytes(gpu: Any) -> int:
    """Pinned memory in use."""
    return sum(block.request for space in gpu.host.spaces.values() for block in space.live.values())


def given(tensor: Any) -> str:
    """A tensor, or what there is in its place, in words."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        return shown(tensor)
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"a{'n' * kind.startswith('int')} {kind} tensor of shape {tuple(tensor.shape)} on {tensor.device.type}"


STREAMS = ("copying_in", "computing", "copying_out")


def ready(pipeline: Any) -> Any:
    """The pipeline, with names for hazards (of memory, where it is one tensor's alone), and made to the end."""
    import torch

    from ... import simgpu

    for stream, name in zip(pipeline.streams, STREAMS, strict=True):
        simgpu.name(stream, name)
    for part in PARTS:
        for number, slot in enumerate(pipeline.slots):
            tensor = getattr(slot, part)
            named = tensor.is_cuda or tensor.is_pinned()
            if named and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size():
                same = number and tensor.data_ptr() == getattr(pipeline.slots[0], part).data_ptr()
                simgpu.name(tensor, f"{part} of both slots" if same else f"slot {number} {part}")
    torch.cuda.synchronize()
    return pipeline


PARTS = ("host_in", "host_out", "inputs", "outputs")
