"""Run a learner's CUDA program on the simulated device under several speeds, and say what is wrong with it.

A puzzle of a device lab is a *setting*: it makes fresh tensors with distinct values, calls the learner's function and
reads the result. It is run with slow and with fast copies; the same function, the same data, other delays. A race is
shown by the first of these runs whose numbers are wrong, or, where timing saves them all, by the run in which every
unordered access goes wrong ("adversarial").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .check import Answer, Refused, call
from .values import shown
from .verdict import Tick, Verdict

if TYPE_CHECKING:
    from ..simgpu import Hazard, Note, Profile
    from ..trace import Trace

RATIOS = (0.1, 0.5, 1.0, 2.0, 10.0)   # copy time over compute time
SLACK = 1.02                           # of the target time: launches may come in another order
CALLS_US = 20.0                        # host time that a few more calls may take; a wait for the GPU takes far longer
WIDTH = 256                            # of the square matrices in device labs, which stand for
SCALE = 1 / 8                          # of 2048-wide ones: times are those of the larger (simgpu's Profile.scaled)
GEMM_FLOPS = 2 * WIDTH**3
WEIGHT_BYTES = 4 * WIDTH**2
TICKS = ("correct", "race-free", "time", "memory")


@dataclass
class Run:
    """One run: the function's result as plain Python values, what was reported, and what it took.

    ``returned_us``: when the learner's function returned, on the host's clock from its call. ``blocked_us``: host time
    spent waiting in it. ``done_us``: when the last device work ended. ``peak_bytes``: most device memory in use
    beyond what was there before, freed blocks that another stream still needs included ("active" to the allocator).
    """

    ratio: float
    value: Any
    hazards: list[Hazard]
    notes: list[Note]
    returned_us: float
    blocked_us: float
    done_us: float
    peak_bytes: int
    trace: Trace
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """What a puzzle runs: ``prepare`` makes the arguments on the device, ``read`` turns the result into Python values.

    Both run inside the session; ``prepare`` returns ``(arguments, state)`` and ``read`` gets ``(result, state)``.
    """

    puzzle: str
    prepare: Callable[[], tuple[tuple[Any, ...], Any]]
    read: Callable[[Any, Any], Any]
    profile: Profile
    start: Callable[[Any], None] | None = None     # launched just before the learner's function, such as other work
    scale: float = SCALE


def at_ratio(profile: Profile, ratio: float, scale: float) -> Profile:
    """The profile with a link on which one weight matrix takes ``ratio`` times as long as one product."""
    return profile.scaled(scale).with_ratio(ratio, WEIGHT_BYTES, GEMM_FLOPS, dtype="float32")


def run_once(setting: Setting, answer: Answer, ratio: float, numerics: str = "exact") -> Run:
    """Run the learner's function once. Raises Refused with its own error; NotImplementedError goes through."""
    import torch

    from .. import simgpu

    with simgpu.session(at_ratio(setting.profile, ratio, setting.scale), numerics=numerics) as gpu:
        arguments, state = setting.prepare()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before, begin = torch.cuda.memory_stats()["active_bytes.all.current"], simgpu.clock()
        if setting.start is not None:
            setting.start(state)
        result = call(setting.puzzle, answer, *arguments, on=f"copy/compute {ratio:g}", empty=True)
        returned = simgpu.clock()
        peak = torch.cuda.memory_stats()["active_bytes.all.peak"] - before
        trace = window(gpu.trace(), begin)   # before the result is read, which is none of the learner's time
        value = setting.read(result, state)
        del result, arguments
        host_us = returned - begin
        return Run(ratio, value, list(gpu.hazards), list(gpu.notes), host_us, _blocked(trace, host_us), _done(trace),
                   peak, trace)


def window(trace: Trace, begin_us: float) -> Trace:
    """The part of a session's trace from ``begin_us`` on, which becomes its zero."""
    from ..trace import Trace

    columns = trace.columns
    kept = [i for i, start in enumerate(columns["start_us"]) if start >= begin_us - 1e-6]
    cut = {name: [values[i] for i in kept] for name, values in columns.items()}
    cut["start_us"] = [start - begin_us for start in cut["start_us"]]
    return Trace.from_columns(cut, name="yours")


def _blocked(trace: Trace, until_us: float) -> float:
    """Host time up to the return of the function in which the host waited for the device."""
    return trace.busy_us("sync", start=0, stop=until_us) if until_us > 0 else 0.0


def _done(trace: Trace) -> float:
    spans = trace.columns
    ends = [start + took for start, took, kind in
            zip(spans["start_us"], spans["duration_us"], spans["kind"], strict=True) if kind not in ("host", "sync")]
    return max(ends, default=0.0)


def run_all(setting: Setting, answer: Answer, ratios: tuple[float, ...] = RATIOS) -> list[Run]:
    """Run the function at every ratio."""
    return [run_once(setting, answer, ratio) for ratio in ratios]


def refuse(puzzle: str, ticks: tuple[str, ...], failed: str, why: str, says: str, trace: Trace | None = None,
           target: Run | None = None, title: str = "") -> Refused:
    """A refusal at one tick: those before it hold, those after it are not judged."""
    from ..timeline import timeline

    at = ticks.index(failed)
    rows = [Tick(name, True if place < at else False if place == at else None, why if place == at else "")
            for place, name in enumerate(ticks)]
    verdict = Verdict(puzzle, rows, says=says)
    if trace is not None:
        verdict.picture = timeline({"yours": trace, "target": target.trace} if target else trace, title=title)
    return Refused(verdict)


def refute_race(setting: Setting, answer: Answer, runs: list[Run], wanted: Any, ticks: tuple[str, ...],
                same: Callable[[Any, Any], bool]) -> None:
    """Raise Refused when any run has a hazard, with a run whose numbers are wrong as the witness."""
    racing = [run for run in runs if run.hazards]
    if not racing:
        return
    witness = next((run for run in racing if not same(run.value, wanted)), None)
    how = ""
    if witness is None:
        witness = run_once(setting, answer, racing[0].ratio, numerics="adversarial")
        how = " when nothing but your waits orders them"
    hazard = (witness.hazards or racing[0].hazards)[0]
    ending = (f"With copy/compute {witness.ratio:g}{how} the result is {shown(witness.value)}, not {shown(wanted)}."
              if not same(witness.value, wanted) else
              "At these speeds the numbers came out right, which proves nothing: no order is promised.")
    more = f" ({len(witness.hazards)} hazards; this is the first.)" if len(witness.hazards) > 1 else ""
    raise refuse(setting.puzzle, ticks, "race-free", f"{hazard.kind}, copy/compute {witness.ratio:g}",
                 f"{hazard}\n{ending}{more}", witness.trace)


def passed(puzzle: str, ticks: tuple[str, ...], whys: tuple[str, ...], run: Run, target: Run | None = None,
           advice: list[str] | None = None, tried: str = "") -> Verdict:
    """The verdict on an answer with nothing wrong: its timeline beside the target's."""
    from ..timeline import timeline

    picture = timeline({"yours": run.trace, "target": target.trace} if target else run.trace)
    return Verdict(puzzle, [Tick(name, True, why) for name, why in zip(ticks, whys, strict=True)],
                   advice=advice or [], tried=tried, picture=picture)
