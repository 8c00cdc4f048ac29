"""What takes memory and what takes time in a run, in words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ..memory import ALL_KEPT, SPARE
from ..spans import LEAST_US, spans_of
from .data import WEIGHT_BYTES

if TYPE_CHECKING:
    from ..device import Run
    from .lanes import Late, Steps

MORE = 2             # matrices' worth that may be allocated beside what the worked answer takes, one after the other
LITTLE = 1.5         # matrices: a value that the host reads or prints
TOO_MUCH = (" wait_stream waits for everything that was queued in a stream so far: wait for the event of what is "
            "needed.")
WHOSE = (" Whose event does it wait for? What is waited for needs an event of its own, recorded right behind it and "
         "not again before the wait.")
PAGEABLE = (" A copy from or to pageable memory is never asynchronous: the host tensors that you are given are "
            "pinned, copies of them are not.")
SCATTERED = (" A copy of columns, or of anything else that does not lie in one piece, is not asynchronous even with "
             "non_blocking=True: copy rows.")
HELD = ("Of that, {held} lay in tensors that were dropped: record_stream keeps their memory until the other stream has "
        "come to that point. What is used on one stream alone needs no record_stream.")
VOID = re.compile(r" ?See note: .*?that wait did nothing")


class Found(NamedTuple):
    """Something that takes memory: for the tick, and a sentence."""

    why: str
    says: str


def matrices(size: float) -> str:
    """Bytes in matrices."""
    count = f"{size / WEIGHT_BYTES:.2g}"
    return "1 matrix" if count == "1" else f"{count} of a matrix" if size < WEIGHT_BYTES else f"{count} matrices"


def _enough(size: float) -> str:
    return f"memory for {matrices(size)} is enough" if size else "none is needed"


def peak_words(run: Run, goal: Run, stated: int) -> Found | None:
    """Whether more memory is in use at one time than in the worked answer and than ``stated`` (bytes), and which."""
    allowed = max(goal.peak_bytes, stated)
    if run.peak_bytes <= allowed + SPARE * WEIGHT_BYTES:
        return None
    says = f"there was device memory for {matrices(run.peak_bytes)} at the peak, where {_enough(allowed)}."
    if run.taken.held_bytes > SPARE * WEIGHT_BYTES:
        says += " " + HELD.format(held=matrices(run.taken.held_bytes))
    elif 0 < run.allocations <= goal.allocations:
        says += ALL_KEPT
    return Found(f"{matrices(run.peak_bytes)} at the peak", says)


def loop_words(run: Run, goal: Run) -> Found | None:
    """Whether memory is taken again and again."""
    if run.taken.bytes <= goal.taken.bytes + MORE * WEIGHT_BYTES:
        return None
    says = (f"{run.allocations} pieces of device memory were allocated, one after the other, as large as "
            f"{matrices(run.taken.bytes)} in all, where {_enough(goal.taken.bytes)}: the loop allocates.")
    if within := len(spans_of(run.trace, "d2d")) - len(spans_of(goal.trace, "d2d")):
        says += f" {within} more copies, from GPU memory to GPU memory, then take it where it belongs."
    return Found(f"{run.allocations} allocations", says)


def held_words(run: Run) -> str:
    """Which copies made the host wait, "" where the calls say it."""
    copies = [span for kind in ("h2d", "d2h") for span in spans_of(run.trace, kind, ("(pageable)",))]
    if sum(span.bytes for span in copies) > LITTLE * WEIGHT_BYTES:
        return PAGEABLE
    return SCATTERED if any("not contiguous" in note.text for note in run.notes) else ""


def waited_words(late: Late, steps: Steps, run: Run) -> str:
    """Why a step waits for more than it needs: for a whole stream, or for another event; "" within one stream."""
    if late.cause is None or steps[late.cause].stream == steps[late.key].stream:
        return ""
    step, cause = steps[late.key], steps[late.cause]
    whole = any((wait.stream, wait.other) == (step.stream, cause.stream) and cause.index < wait.at <= step.index
                for wait in run.calls.waits)
    return TOO_MUCH if whole else WHOSE


def last_words(run: Run, steps: Steps) -> str:
    """What runs on when all steps are done, in words."""
    done = max(span.end for span in steps.values())
    columns = run.trace.columns
    ends = {start + took: name for name, kind, start, took in
            zip(columns["name"], columns["kind"], columns["start_us"], columns["duration_us"], strict=True)
            if kind not in ("host", "sync")}
    if not ends or max(ends) <= done + LEAST_US:
        return ""
    return f"All steps are over at {done:.0f} µs, and {ends[max(ends)]} at {max(ends):.0f}: what is that for?"


def without_void_waits(remark: str) -> str:
    """A hazard's remark without what it says of waits for events that were not recorded yet."""
    return VOID.sub("", remark).strip()
