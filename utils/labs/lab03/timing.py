"""Judge of the puzzle about measuring: the time of one call of a model whose first calls are slower."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..answercode import names_in
from ..check import Answer, Refused
from ..device import WIDTH, Run, Setting, passed, refuse, run_once
from ..values import number, shown
from ..verdict import Tick, Verdict
from .onload import reference
from .watch import CLOCKS, EventWatch, Interval, watch_events

TICKS = ("correct", "race-free")
TOLERANCE = 0.01
MM_NS = 1_500_000          # of every product: as long as a 2048-wide one in float32 on the laptop profile
BACKLOG_NS = 20_000_000    # of work that is still queued when the learner's function is called
SETUP_MS = 9               # of the first call; of a second and third one less
HOST_SETUP_US = 4_000
MOST_CALLS = 100           # of a model; each takes the learner's computer real time
SMALL = 16                 # width of matrices whose times are given


class CalledTooOften(Exception):
    """The learner's function calls the model without an end in sight."""


@dataclass
class Model:
    """A callable on x whose first ``cold`` calls do some set-up; it counts its calls and notes their streams."""

    layers: Callable[[Any], Any]
    cold: int
    setup: Callable[[int], None]
    streams: list[Any] = field(default_factory=list)

    def __call__(self, x: Any) -> Any:
        import torch

        if len(self.streams) == MOST_CALLS:
            raise CalledTooOften(f"the model was called {MOST_CALLS} times, and ten calls are enough: each takes your "
                                 "computer real time.")
        self.streams.append(torch.cuda.current_stream())
        if len(self.streams) <= self.cold:
            self.setup(len(self.streams))
        return self.layers(x)


@dataclass(frozen=True)
class Case:
    """One model to measure; ``queued``: the GPU is still busy when the learner's function is called."""

    name: str
    make: Callable[[], Model]
    queued: bool = True
    aside: bool = False   # the current stream is another one than the default one


def cases() -> list[Case]:
    """What is measured. The last one launches so many small kernels that the host sets its pace."""
    return [
        Case("6 products, set-up in call 1", lambda: Model(_products(6), 1, _work_on_gpu)),
        Case("2 products, set-up in calls 1 to 3", lambda: Model(_products(2), 3, _work_on_gpu)),
        Case("4 copies and products, set-up in calls 1 and 2", lambda: Model(_onload(4), 2, _work_on_gpu)),
        Case("3 products, called on another stream", lambda: Model(_products(3), 1, _work_on_gpu), aside=True),
        Case("100 small kernels, set-up in calls 1 to 3", lambda: Model(_additions(100), 3, _work_on_host), False),
    ]


def _products(count: int) -> Callable[[Any], Any]:
    import torch

    weights = [torch.eye(SMALL, device="cuda") for _ in range(count)]

    def layers(x: Any) -> Any:
        for weight in weights:
            x = x @ weight
        return x
    return layers


def _onload(count: int) -> Callable[[Any], Any]:
    import torch

    host, buffer = torch.eye(WIDTH).pin_memory(), torch.empty(WIDTH, WIDTH, device="cuda")
    weight = buffer[:SMALL, :SMALL]

    def layers(x: Any) -> Any:
        for _ in range(count):
            buffer.copy_(host, non_blocking=True)
            x = x @ weight
        return x
    return layers


def _additions(count: int) -> Callable[[Any], Any]:
    def layers(x: Any) -> Any:
        for _ in range(count):
            x = x + 1
        return x
    return layers


def _work_on_gpu(call: int) -> None:
    import torch

    torch.cuda._sleep(SETUP_MS * 1_000_000 // call)


def _work_on_host(call: int) -> None:
    from ... import simgpu

    simgpu.host_work(HOST_SETUP_US / call, "set-up")


def judge_measure_ms(answer: Answer) -> Verdict:
    """The time of one warm call in ms, within 1 %."""
    runs = []
    for case in cases():
        wanted, _, _, _ = measure(reference("measure_ms"), case)
        given, run, watch, model = measure(answer, case)
        if run.hazards or run.later:
            raise refuse("measure_ms", TICKS, "race-free", case.name,
                         f"{(run.hazards + run.later)[0]}\nThe model was called on another stream than the one that "
                         "is still making x. Call it on the current stream, as it is.", run.trace)
        if number(given) is None or abs(given - wanted) > TOLERANCE * wanted or not model.streams:
            says = explain(given, wanted, watch, model, names_in(answer))
            raise refuse("measure_ms", TICKS, "correct", f"{shown(given)} instead of {wanted:.4g} ms",
                         f"{case.name}: {says}", run.trace)
        runs.append(run)
    whys = (f"within {TOLERANCE:.0%} for {len(runs)} models", "nothing unordered")
    return passed("measure_ms", TICKS, whys, runs[2], tried="; ".join(case.name for case in cases())
                  + ". All but the last while the GPU is busy with earlier work")


def measure(answer: Answer, case: Case) -> tuple[Any, Run, EventWatch, Model]:
    """What a function returns for one case, the run, the events it read, and the model after it."""
    from ... import simgpu

    made: list[Model] = []
    with watch_events() as watch:
        watch.count = lambda: len(made[0].streams) if made else 0

        def prepare() -> tuple[tuple[Any, ...], Any]:
            import torch

            if case.aside:
                torch.cuda.set_stream(simgpu.name(torch.cuda.Stream(), "current stream"))
            x = simgpu.name(torch.ones(SMALL, SMALL, device="cuda"), "x")
            made.append(case.make())
            return (made[0], x), x

        profile = simgpu.RTX_5060_LAPTOP.with_op_time(mm=MM_NS)
        setting = Setting("measure_ms", prepare, lambda result, _: _plain(result), profile,
                          _keep_busy if case.queued else None)
        try:
            run = run_once(setting, answer, 1.0)
        except Refused as refused:
            raise _with_advice(refused, case) from refused
    return run.value, run, watch, made[0]


def _keep_busy(x: Any) -> None:
    import torch

    torch.cuda._sleep(BACKLOG_NS)
    x.mul_(1.0)


def _plain(result: Any) -> Any:
    plain = number(result)
    return plain if plain is not None else f"a {type(result).__name__}" if result is not None else None


def _with_advice(refused: Refused, case: Case) -> Refused:
    """The refusal names the model that was measured; an error about events gets a sentence on what to do."""
    says = refused.verdict.says
    refused.verdict.ticks = [Tick(tick.name, tick.holds, tick.why.replace("copy/compute 1", case.name))
                             for tick in refused.verdict.ticks]
    if "device not ready" in says:
        says += "\nThe host runs ahead: when it asked, the GPU had not reached the second event. Wait for it first."
    elif "enable_timing" in says:
        says += "\nAn event has a time only if it was made for that: torch.cuda.Event(enable_timing=True)."
    elif "must be recorded" in says:
        says += "\nBoth events need a record(): one before the calls that you time, one behind them."
    refused.verdict.says = says
    return refused


def explain(given: Any, wanted: float, watch: EventWatch, model: Model, names: set[str]) -> str:
    """Why a time is wrong, in words, from the events that were read and the calls between them."""
    if number(given) is None:
        return f"it returned {shown(given)}. Return one number, the milliseconds of a call."
    if not model.streams:
        return f"it returned {given:.4g} without calling the model once."
    intervals = [found for found in watch.intervals if found.end is not found.start]
    if not intervals:
        return _without_events(given, wanted, model, names)
    used = set(model.streams)
    if odd := next((found for found in intervals if {found.start.stream, found.end.stream} - used), None):
        which = "first" if odd.start.stream not in used else "second"
        return (f"the {which} event was recorded on another stream than the one that the model ran on. An event says "
                "when *its* stream got there, so the time between the two is not that of the calls.")
    return _between_events(given, wanted, intervals, model)


def _without_events(given: float, wanted: float, model: Model, names: set[str]) -> str:
    if clock := next((name for name in CLOCKS if name in names), None):
        return (f"{given:.4g} ms is what {clock} says: real time, in which this computer launched and worked out what "
                f"the simulated GPU does. One call takes {wanted:.4g} ms on that GPU. (On a real one a clock of the "
                "host sees only the launches, unless the host waits for the GPU on both sides.) Use CUDA events.")
    seen = f"you returned {given:.4g} ms, a call takes {wanted:.4g}. No elapsed_time() of two events was read. "
    if "clock" in names:
        return seen + ("simgpu.clock() is the clock of the host, which runs ahead: it sees launches, and earlier work "
                       "where the host waits.")
    calls = len(model.streams)
    seen += f"The model was called {calls} time{'s' if calls != 1 else ''}"
    if calls <= model.cold:
        return seen + f", and {_calls(0, model.cold)} of this one still did set-up: warm up first."
    return seen + ": put one event before and one behind those that you time."


def _between_events(given: float, wanted: float, intervals: list[Interval], model: Model) -> str:
    first, last = min(found.start.calls for found in intervals), max(found.end.calls for found in intervals)
    total, count = sum(found.ms for found in intervals), sum(found.end.calls - found.start.calls for found in intervals)
    lie = f"your events enclose {_calls(first, last)}, {total:.4g} ms in all. "
    if count <= 0:
        return (f"your events enclose no call of the model: {total:.4g} ms. One has to be recorded before the calls "
                "that are timed, and one behind them.")
    if first < model.cold and total > count * wanted * (1 + TOLERANCE):
        return (lie + f"{_calls(0, model.cold).capitalize()} of this model still did set-up; a warm one takes "
                f"{wanted:.4g} ms. The first calls (up to three) must be over before the first event is recorded.")
    if total / count < wanted * (1 - TOLERANCE):
        return (lie + f"A call takes {wanted:.4g} ms. When they were launched, the GPU was still busy with something "
                "else that you gave it, and afterwards worked through its queue without the gaps that a call has.")
    if total / count > wanted * (1 + TOLERANCE):
        return (lie + f"A call takes {wanted:.4g} ms, so there is more between them than calls: "
                "record the events right before and right behind the calls.")
    lie += f"That is {wanted:.4g} ms per call, "
    if abs(given - wanted / 1000) <= TOLERANCE * wanted / 1000:
        return lie + f"and elapsed_time() is in milliseconds already. You returned {given:.4g}."
    if abs(given - wanted * 1000) <= TOLERANCE * wanted * 1000:
        return lie + f"and milliseconds are asked for, not microseconds. You returned {given:.4g}."
    return lie + (f"but you returned {given:.4g}, as if that were {total / given:.4g} times a call." if given else
                  "but you returned 0.")


def _calls(first: int, last: int) -> str:
    """Calls first+1 to last, in words."""
    return f"call {last}" if last - first == 1 else f"calls {first + 1} to {last}"
