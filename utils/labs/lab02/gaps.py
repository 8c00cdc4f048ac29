"""Judge of the puzzle about a trace's gaps: how long no kernel ran, and whether the host or the device was late."""

from __future__ import annotations

import random
from typing import Any

from ...timeline import timeline
from ...trace import Trace
from ..check import Answer, Refused, call
from ..values import number, shown
from ..verdict import Tick, Verdict

CAUSES = ("host", "device")
RANDOM_CASES = 12
Row = tuple[str, str, str, int, float, float, int]   # name, kind, lane, stream, start, duration, correlation


def trace_of(rows: list[Row], name: str) -> Trace:
    """A small trace; times in µs."""
    rows = sorted(rows, key=lambda row: row[4])
    names, kinds, lanes, streams, starts, took, correlation = (list(column) for column in zip(*rows, strict=True))
    return Trace.from_columns({"name": names, "kind": kinds, "lane": lanes, "stream": streams, "start_us": starts,
                               "duration_us": took, "bytes": [0] * len(rows), "correlation": correlation}, name=name)


def kernel(number: int, launched: float, start: float, took: float, stream: int = 7) -> list[Row]:
    """A kernel and its launch, which takes 5 µs from ``launched`` on."""
    return [(f"launch {number}", "host", "host", -1, launched, 5, number),
            (f"gemm {number}", "kernel", "compute", stream, start, took, number)]


def copy(number: int, launched: float, start: float, took: float) -> list[Row]:
    """A copy to the device and its launch."""
    return [(f"launch {number}", "host", "host", -1, launched, 5, number),
            (f"copy {number}", "h2d", "h2d", 13, start, took, number)]


def cases() -> dict[str, tuple[Trace, list[tuple[float, str]]]]:
    """Traces with, for each gap, its length and who was late."""
    return {
        "waiting for copies": (trace_of([
            *copy(1, 0, 5, 40), *kernel(2, 5, 45, 20), *copy(3, 10, 45, 40), *kernel(4, 15, 85, 20)],
            "waiting for copies"), [(20, "device")]),
        "a slow host": (trace_of([
            *kernel(1, 0, 5, 10), *kernel(2, 40, 46, 10), *kernel(3, 45, 56, 10), *kernel(4, 90, 96, 10)],
            "a slow host"), [(31, "host"), (30, "host")]),
        "two streams side by side": (trace_of([
            *kernel(1, 0, 5, 40), *kernel(2, 5, 10, 20, 9), *kernel(3, 10, 60, 20), *kernel(4, 15, 65, 10, 9)],
            "two streams side by side"), [(15, "device")]),
        "one of each": (trace_of([
            *kernel(1, 0, 5, 20), *copy(2, 5, 10, 40), *kernel(3, 10, 50, 20), *kernel(4, 90, 96, 5),
            *kernel(5, 95, 101, 5)], "one of each"), [(25, "device"), (26, "host")]),
        "a long kernel over short ones": (trace_of([
            *kernel(1, 0, 5, 100), *kernel(2, 5, 10, 10, 9), *kernel(3, 10, 30, 10, 9), *kernel(4, 130, 136, 10)],
            "a long kernel over short ones"), [(31, "host")]),
        "late, and then held up": (trace_of([
            *kernel(1, 0, 5, 20), *copy(2, 30, 36, 40), *kernel(3, 35, 76, 10)], "late, and then held up"),
            [(51, "host")]),
        "short gaps beside other rows": (trace_of([
            *kernel(1, 0, 5, 10), *kernel(2, 6, 15.4, 10), *kernel(4, 8, 26, 10),
            ("copy out", "d2h", "d2h", 15, 15, 12, 3), ("clear", "memset", "compute", 7, 25.5, 0.3, 5),
            ("synchronize", "sync", "sync", -1, 9, 30, -1)], "short gaps beside other rows"),
            [(0.4, "device"), (0.6, "device")]),
        "no gap": (trace_of([*kernel(1, 0, 5, 20), *kernel(2, 5, 25, 20)], "no gap"), []),
    }


def random_case(seed: int) -> tuple[Trace, list[tuple[float, str]]]:
    """Kernels on two streams and copies at whole µs, launched sometimes early and sometimes late, and the answer.

    Kernels start at different times, and no launch falls on the moment at which a gap begins.
    """
    rng = random.Random(seed)
    numbers, rows, kernels, start = rng.sample(range(100, 999), 12), [], [], 20
    for place, tag in enumerate(numbers):
        start += rng.randint(2, 25)
        took, early = rng.randint(3, 30), rng.choice((1, 1, 60))
        launched = max(0.5 + place / 100, start - 6 - early * rng.random())
        if place % 4 == 3:
            rows += copy(tag, launched, start, took)
        else:
            rows += kernel(tag, launched, start, took, rng.choice((7, 9)))
            kernels.append((start, start + took, launched))
    return trace_of(rows, f"random {seed}"), _by_the_clock(kernels)


def _by_the_clock(kernels: list[tuple[int, int, float]]) -> list[tuple[float, str]]:
    """The gaps, found µs by µs."""
    last = max(end for _, end, _ in kernels)
    idle = [moment for moment in range(kernels[0][0], last) if not any(a <= moment < b for a, b, _ in kernels)]
    gaps = []
    for moment in idle:
        if moment - 1 not in idle:
            stop = min(a for a, _, _ in kernels if a >= moment)
            launched = next(launch for a, _, launch in kernels if a == stop)
            gaps.append((float(stop - moment), "host" if launched >= moment else "device"))
    return gaps


def every_case() -> dict[str, tuple[Trace, list[tuple[float, str]]]]:
    """The drawn-up traces and the random ones, the same in every run."""
    return cases() | {f"random trace {seed}": random_case(seed) for seed in range(1, RANDOM_CASES + 1)}


def judge_explain_gaps(answer: Answer) -> Verdict:
    """One (length, cause) per gap, in order; lengths in µs, causes "host" or "device"."""
    judged = every_case()
    for on, (trace, wanted) in judged.items():
        given = _read(call("explain_gaps", answer, trace, on=on), on, trace)
        _judge_lengths(given, wanted, on, trace)
        for (length, cause), (_, right) in zip(given, wanted, strict=True):
            if cause != right:
                raise _refuse(f'{length:g} µs by the "{cause}"', on, _why(right), trace)
    gaps = sum(len(wanted) for _, wanted in judged.values())
    return Verdict("explain_gaps", [Tick("correct", True, f"{gaps} gaps in {len(judged)} traces")],
                   tried="; ".join(cases()) + f"; {RANDOM_CASES} random traces",
                   picture=timeline(judged["one of each"][0]))


def _read(given: Any, on: str, trace: Trace) -> list[tuple[float, str]]:
    try:
        pairs = [(number(length), str(cause)) for length, cause in given]
    except (TypeError, ValueError):
        raise _refuse(f"returned {shown(given)}", on, 'Return a list of pairs such as (25.0, "host").', trace) from None
    if odd := next(((length, cause) for length, cause in pairs if length is None or cause not in CAUSES), None):
        raise _refuse(f"a gap {shown(odd)}", on, 'A gap is its length in µs, and "host" or "device".', trace)
    return pairs


def _judge_lengths(given: list[tuple[float, str]], wanted: list[tuple[float, str]], on: str, trace: Trace) -> None:
    lengths, right = [length for length, _ in given], [length for length, _ in wanted]
    if len(lengths) == len(right) and all(abs(a - b) < 0.01 for a, b in zip(lengths, right, strict=True)):
        return
    says = f"No kernel runs for: {', '.join(f'{length:g}' for length in right) or 'no time at all'} µs."
    if min(lengths, default=0) < 0:
        says += " A gap is never negative: kernels overlap, so look at when the *last* of those before ended."
    elif len(lengths) > len(right):
        says += " A gap is one only if no other kernel is still running; before the first kernel there is none."
    raise _refuse(f"gaps of {', '.join(f'{length:g}' for length in lengths) or 'no'} µs", on, says, trace)


def _why(right: str) -> str:
    if right == "device":
        return ("The kernel behind that gap had been launched before the gap began. So the host was in time, and the "
                "kernel waited on the device.")
    return "The kernel behind that gap was not launched yet when the gap began. So the host was late."


def _refuse(seen: str, on: str, says: str, trace: Trace) -> Refused:
    return Refused(Verdict("explain_gaps", [Tick("correct", False, f"{seen}, on {on}")], says=says,
                           picture=timeline(trace)))
