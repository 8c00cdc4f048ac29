"""Judge of ``place_layers``: which layers' KV stays on the GPU, and how long a step takes then."""

from __future__ import annotations

from typing import Any

from ...timeline import timeline
from ..check import Answer, Refused, call
from ..values import number, shown
from ..verdict import Picture, Tick, Verdict
from .steps import MIB, SLOTS, Job, ranges, spread, steady

PUZZLE = "place_layers"
TICKS = ("correct", "memory", "time", "predicted")
WITHIN = 1.02            # of the bound, and of the time that was predicted
NEAR = 0.004             # relative: how closely a wrong formula is recognised
SHAPE = "Return a pair: the list of the resident layers' numbers, and the time of a step in µs."
GIB = 1024


def _job(layers: int, layer_us: int, kv_mib: int, new_mib: int, room: float, host_mib: int,
         rates: tuple[float, float, float]) -> Job:
    """``room``: of the GPU, in layers' KV; ``rates``: H2D and D2H in GB/s, and the duplex share."""
    return Job(layers, layer_us, kv_mib * MIB, new_mib * MIB, int(room * kv_mib * MIB), host_mib * MIB,
               rates[0] * 1e9, rates[1] * 1e9, rates[2])


JOBS = (
    _job(8, 1300, 128, 16, 6, 64 * GIB, (55, 55, 0.9)),
    _job(12, 500, 96, 48, 9.5, 64 * GIB, (55, 50, 0.8)),
    _job(16, 400, 64, 32, 11, 64 * GIB, (55, 55, 0.5)),
    _job(9, 600, 64, 16, 7, 4 * 64, (50, 50, 0.8)),
    _job(24, 300, 48, 8, 12.25, 64 * GIB, (25, 20, 0.8)),
    _job(7, 900, 64, 48, 4, 64 * GIB, (12, 25, 0.7)),
    _job(16, 500, 128, 16, 14, 64 * GIB, (64, 64, 0.9)),     # copies and layers nearly as long, few streamed
    _job(24, 300, 48, 8, 16, 64 * GIB, (75, 60, 0.8)),       # and not at whole distances
    _job(8, 500, 64, 48, 6, 64 * GIB, (50, 12, 0.8)),        # stores longer than loads
    _job(4, 2000, 96, 24, 2, 64 * GIB, (55, 55, 0.8)),       # none resident
    _job(10, 700, 64, 16, 10, 0, (25, 25, 0.8)),
    _job(10, 700, 64, 16, 11, 2 * 64, (25, 25, 0.8)),
)
TOO_SMALL = (
    _job(12, 500, 96, 24, 7, 6 * 96, (55, 55, 0.8)),
    _job(6, 500, 96, 24, 1.5, 64 * GIB, (55, 55, 0.8)),
    _job(4, 500, 96, 24, 2, 3 * 96, (55, 55, 0.8)),
)
PICTURE = JOBS[0]


def judge_place_layers(answer: Answer) -> Verdict:
    """Within both memories, at most 1.02 of the bound for as many layers as fit, and the time predicted."""
    for job in (*JOBS, *TOO_SMALL):
        given = _ask(answer, job)
        if given is not None:
            resident, step_us = _read(given, job)
            _judge_memory(resident, job)
            _judge_time(resident, job)
            _judge_predicted(resident, step_us, job)
    best = spread(PICTURE, PICTURE.most_resident)
    mine = tuple(sorted(int(layer) for layer in call(PUZZLE, answer, PICTURE, on=str(PICTURE))[0]))
    ticks = [Tick(name, True, why) for name, why in zip(TICKS, (
        "and ValueError where there is no room", "the slots, the resident layers, and the host's part",
        f"at most {WITHIN} of the bound, run step by step", f"within {WITHIN - 1:.0%}"), strict=True)]
    tried = "; ".join(map(str, JOBS)) + ". No room: " + "; ".join(map(str, TOO_SMALL))
    return Verdict(PUZZLE, ticks, tried=tried, picture=_picture(mine, best, PICTURE))


def _ask(answer: Answer, job: Job) -> object | None:
    """The answer; None for a ValueError where there is no room. Refused for one where there is, and for no error."""
    try:
        given = call(PUZZLE, answer, job, on=f"this job: {job}")
    except Refused as refused:
        if not isinstance(refused.__cause__, ValueError):
            if not job.possible:
                refused.verdict.says += f"\n{_no_room(job)} Raise ValueError, and nothing else."
            raise
        if job.possible:
            refused.verdict.says += (f"\nThere is room: {_room(job)}, and {job.layers - job.most_resident} layers in "
                                     f"{job.host_bytes / MIB:g} MiB of host memory.")
            raise
        return None
    if job.possible:
        return given
    raise _refused("correct", "no ValueError where there is no room", f"{job}. {_no_room(job)} Raise ValueError.")


def _room(job: Job) -> str:
    if job.most_resident == job.layers:
        return "all layers fit on the GPU, and then no slots are needed"
    return f"{SLOTS} slots and {max(0, job.most_resident)} layers fit on the GPU"


def _no_room(job: Job) -> str:
    if job.most_resident < 0:
        return (f"Two slots take {SLOTS * job.kv_bytes / MIB:g} MiB, and the GPU has {job.gpu_bytes / MIB:g}: nothing "
                "can be streamed.")
    streamed = job.layers - job.most_resident
    return (f"At most {job.most_resident} layers fit on the GPU beside the slots. The other {streamed} need "
            f"{streamed * job.kv_bytes / MIB:g} MiB of host memory, and there are {job.host_bytes / MIB:g}.")


def _read(given: object, job: Job) -> tuple[tuple[int, ...], float]:
    """The resident layers in order, and the predicted time."""
    try:
        layers, step_us = given   # type: ignore[misc]
        numbers = [_number(layer) for layer in layers]
    except (TypeError, ValueError):
        raise _refused("correct", f"returned {shown(given)}", SHAPE) from None
    step = _number(step_us)
    if step is None or None in numbers:
        raise _refused("correct", f"returned {shown(given)}", SHAPE)
    known = set(range(job.layers))
    if len(set(numbers)) != len(numbers) or not set(numbers) <= known:
        raise _refused("correct", f"layers {shown(list(layers))}",
                       f"The layers are 0 to {job.layers - 1}, each at most once. {job}.")
    return tuple(sorted(int(layer) for layer in numbers)), float(step)


def _number(value: Any) -> Any:
    """A number, also as a tensor without dimensions; None for anything else."""
    return number(value.item() if getattr(value, "ndim", None) == 0 else value)


def _judge_memory(resident: tuple[int, ...], job: Job) -> None:
    streamed = job.layers - len(resident)
    slots = SLOTS if streamed else 0
    needed = (len(resident) + slots) * job.kv_bytes
    if needed > job.gpu_bytes:
        forgotten = " Are the two slots counted?" if len(resident) * job.kv_bytes <= job.gpu_bytes else ""
        raise _refused("memory", f"{needed / MIB:g} MiB on the GPU",
                       f"{job}. {len(resident)} resident layer{'s' * (len(resident) != 1)}"
                       f"{f' and {slots} slots' if slots else ''} take {needed / MIB:g} MiB, and the GPU has "
                       f"{job.gpu_bytes / MIB:g}.{forgotten}")
    if streamed * job.kv_bytes > job.host_bytes:
        raise _refused("memory", f"{streamed * job.kv_bytes / MIB:g} MiB in host memory",
                       f"{job}. {streamed} streamed layers take {streamed * job.kv_bytes / MIB:g} MiB of host memory, "
                       f"and there are {job.host_bytes / MIB:g}. {_room(job)[0].upper()}{_room(job)[1:]}.")


def _judge_time(resident: tuple[int, ...], job: Job) -> None:
    run, best = steady(job, resident), job.bound_us(job.layers - job.most_resident)
    if run.step_us <= best * WITHIN:
        return
    streamed = sorted(set(range(job.layers)) - set(resident))
    says = f"{job}. With {_layers(resident)} resident a step takes {run.step_us:.0f} µs; the bound is {best:.0f}. "
    if (fewer := job.most_resident - len(resident)) and job.bound_us(len(streamed)) > best * WITHIN:
        says += f"{_room(job)[0].upper()}{_room(job)[1:]}, {fewer} more than yours: every one of them saves copies."
    else:
        says += (f"In each step the GPU waits for copies, {run.gpu_idle_us:.0f} µs, and the link is idle, "
                 f"{run.link_idle_us:.0f} µs. The streamed layers are {ranges(streamed)}: with two slots, loads are at "
                 "most two streamed layers ahead. Where those lie close together, a load has few layers to "
                 "hide behind; where many resident ones follow, the slots are full and the link waits.")
    raise _refused("time", f"{run.step_us:.0f} µs instead of {best:.0f}", says,
                   _picture(resident, spread(job, job.most_resident), job))


def _layers(numbers: tuple[int, ...]) -> str:
    return f"layer{'' if len(numbers) == 1 else 's'} {ranges(numbers)}" if numbers else "no layer"


def _judge_predicted(resident: tuple[int, ...], step_us: float, job: Job) -> None:
    run = steady(job, resident)
    if run.step_us / WITHIN <= step_us <= run.step_us * WITHIN:
        return
    says = f"{job}. With {_layers(resident)} resident a step takes {run.step_us:.0f} µs, not {shown(step_us)}. "
    loads, stores = job.copies_us(job.layers - len(resident))
    raise _refused("predicted", f"{shown(step_us)} µs instead of {run.step_us:.0f}",
                   f"{says}{_formula(step_us, resident, job)}\nThe layers take {job.compute_us:g} µs, the loads "
                   f"{loads:.0f} and the stores {stores:.0f}, each direction alone.",
                   _picture(resident, resident, job))


def _formula(step_us: float, resident: tuple[int, ...], job: Job) -> str:
    """Which wrong formula gives this time, in words."""
    streamed = job.layers - len(resident)
    compute, share, right = job.compute_us, job.duplex_share, job.bound_us(streamed)
    loads, stores = job.copies_us(streamed)
    short, long = sorted((loads, stores))
    copies = long - short + short / share
    times = {
        LOADS_LONGER: max(compute, loads - stores + stores / share),
        FULL_RATE: max(compute, long), TURNS: max(compute, long + short), ALWAYS_SLOW: max(compute, long / share),
        BOTH: max(compute, (long + short) / share), SHORTER: max(compute, long * share),
        "That has every layer streamed. Resident layers need no copies.": job.bound_us(job.layers),
        "That adds copies and layers. They run at the same time.": compute + copies,
        "That is everything one after the other. Layers and copies run at the same time.": compute + long + short,
        "That is the time of the layers alone. The copies take longer here.": compute,
        "That is the time of the copies alone. The layers take longer here.": copies,
        "That is in ms: give µs.": right / 1e3, "That is in seconds: give µs.": right / 1e6,
        "That is the time of one layer: give that of a step.": right / job.layers,
    }
    if loads >= stores:   # then it is right
        del times[LOADS_LONGER]
    near = [says for says, wrong in times.items() if abs(step_us - wrong) <= NEAR * wrong]
    return near[0] if near else ("A step takes as long as its slowest part: the layers, or the copies. How much of the "
                                 "shorter direction is under the longer one, and how fast are both then?")


FULL_RATE = ("That is right if both directions could run at their full rates at once. While both run, each has only "
             "duplex_share of its rate.")
TURNS = "That lets loads and stores take turns. They run at once, each at duplex_share of its rate."
ALWAYS_SLOW = ("That has the copies slowed all the time. They are slowed only while both directions run: when the "
               "shorter one is done, the other has its full rate.")
BOTH = "That adds the directions and slows both. They run at once, and are slowed only while they do."
LOADS_LONGER = "That takes the loads for the longer direction. Here the stores take longer."
SHORTER = "A share below 1 makes copies longer, not shorter."


def _picture(mine: tuple[int, ...], best: tuple[int, ...], job: Job) -> Picture:
    """Two steps of a run, beside those with streamed layers evenly apart."""
    runs = {"yours": steady(job, mine), "spread evenly": steady(job, best)}
    if mine == best:
        del runs["spread evenly"]
    start = min(run.window[0] for run in runs.values())
    stop = max(run.window[1] for run in runs.values())
    return timeline({name: run.trace for name, run in runs.items()}, start=start, stop=stop,
                    title="Two steps, layers by their numbers", lanes=("h2d", "compute", "d2h"))


def _refused(tick: str, why: str, says: str, picture: Picture | None = None) -> Refused:
    at = TICKS.index(tick)
    ticks = [Tick(name, True if place < at else False if place == at else None, why if place == at else "")
             for place, name in enumerate(TICKS)]
    return Refused(Verdict(PUZZLE, ticks, says=says, picture=picture))
