"""Whether a run did the work that was asked for, and whether its host did more than launch it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..trace import Trace
    from .device import Run

CALLS_US = 20.0       # host time that a few more calls may take; a wait for the GPU takes far longer
MORE_LAUNCHES = 10    # times the target's host time: with fewer launches than that, time alone counts
LEAST_WORK = 0.9      # of the target's kernel time and copied bytes
MANY = 10                     # times the target's launches: refused in any case, and thousands of them a run
DEVICE = ("h2d", "compute", "d2h")   # lanes


def waiting_words(run: Run) -> str:
    """What made the host wait, in words."""
    spans = run.trace.columns
    labels = {name for name, kind, start in zip(spans["name"], spans["kind"], spans["start_us"], strict=True)
              if kind == "sync" and start < run.returned_us}
    if any("copy" in label for label in labels):
        return ("A copy without non_blocking=True, or one that gives a value to the host, makes the host wait until it "
                "is done.")
    return "Let a *stream* wait (wait_event, wait_stream); synchronize() makes the host wait."


def busy_host(run: Run, goal: Run, calls: int = 1) -> str:
    """Why the host did more than launch, in words; empty when it did not. A few more launches are none of it."""
    allowed = goal.blocked_us + CALLS_US * calls
    if run.blocked_us > allowed:
        return (f"the host stands still until the GPU is done, for {run.blocked_us:.0f} µs in all, and nothing can be "
                f"launched meanwhile. {waiting_words(run)}")
    busy = run.returned_us - run.blocked_us
    says = f"the host is busy for {busy:.0f} µs where {goal.returned_us - goal.blocked_us:.0f} are enough. "
    idle = busy > 2 * goal.returned_us + 3 * CALLS_US * calls
    if idle and run.calls.queries > goal.calls.queries:
        return (f"{says}Asking again and again whether something is done keeps it from launching just as waiting does: "
                "let a *stream* wait.")
    if idle and run.calls.slept_us > busy / 2:
        return f"{says}For {run.calls.slept_us:.0f} µs of these it sleeps: no need to give the GPU time."
    if busy > MORE_LAUNCHES * goal.returned_us + 3 * CALLS_US * calls:
        mine, enough = (sum(lane in DEVICE for lane in one.trace.columns["lane"]) for one in (run, goal))
        return (f"{says}It launches {mine} copies and kernels where {enough} do: every launch takes host time, and a "
                "copy of many bytes takes no more of it than one of few." if mine > enough else
                f"{says}{_events(run, goal)}".rstrip())
    return ""


def _events(run: Run, goal: Run) -> str:
    mine, enough = run.calls.events, goal.calls.events
    if mine <= MORE_LAUNCHES * enough:
        return ""
    return f"Events are recorded and waited for {mine} times, where {enough} do: each time takes host time."


def many_launches(run: Run, goal: Run) -> str:
    """Whether far more is launched than needed, in words."""
    mine, enough = (sum(lane not in ("host", "sync") for lane in one.trace.columns["lane"]) for one in (run, goal))
    if mine <= MANY * enough:
        return ""
    return (f"it launches {mine} copies and kernels where {enough} do. Every launch takes host time, one of few bytes "
            "as much as one of many, and while a thousand are waiting the host stands still.")


def hurries(run: Run, goal: Run, calls: int = 1) -> str:
    """Whether the host is busy all the time, in words."""
    return many_launches(run, goal) or (busy_host(run, goal, calls) if run.blocked_us <= CALLS_US else "")


def skipped_work(run: Run, goal: Run, copied: int, needed: int) -> str:
    """What of the copies and products was left out, in words; empty when nothing was. Bytes to the device."""
    if copied < LEAST_WORK * needed:
        return (f"{copied / 1024:.0f} KiB were copied to the GPU, where every layer, each copied once and whole, makes "
                f"{needed / 1024:.0f}.")
    mine, enough = (_kernels_us(one.trace) for one in (run, goal))
    if len(mine) < len(enough) and sum(mine) < LEAST_WORK * sum(enough):
        return (f"the GPU computed for {sum(mine):.0f} µs, where one product for each layer, in float32, takes "
                f"{sum(enough):.0f}. What it is to do was left out, or done elsewhere.")
    return ""


def _kernels_us(trace: Trace) -> list[float]:
    spans = trace.columns
    return [took for took, kind in zip(spans["duration_us"], spans["kind"], strict=True) if kind == "kernel"]
