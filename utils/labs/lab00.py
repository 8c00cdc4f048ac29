"""The three questions inside lesson 00: what limits, where the break-even lies, which copies are uncovered."""

from __future__ import annotations

from .. import dag
from ..timeline import timeline
from ..trace import Trace
from .check import Answer, Check, Refused, call
from .values import number, same, shown
from .verdict import Tick, Verdict

COPY_MS, GEMM_MS, LAYERS = 3, 2, 4
CARD_TFLOP_PER_S, CARD_GB_PER_S, WEIGHT_BYTES = 150, 25, 1   # FP8 weights
BREAK_EVEN_ROWS = CARD_TFLOP_PER_S * 1e12 * WEIGHT_BYTES / (2 * CARD_GB_PER_S * 1e9)   # F·s / (2·BW)
TOLERANCE = 0.02
COPIES_US = ((0, 30), (30, 60), (80, 110))
KERNELS_US = ((30, 50), (60, 75), (110, 130))
UNCOVERED_US, COPIES_TOTAL_US, NO_KERNEL_US = 70, 90, 75


def small_schedule() -> dag.Schedule:
    """Four layers of a double buffer on one copy engine and one compute engine, times in ms."""
    from .lab01.buffers import ENGINES, reference

    return dag.schedule(reference(LAYERS, COPY_MS, GEMM_MS), ENGINES)


def small_trace() -> Trace:
    """Three copies and three kernels, times in µs."""
    spans = [("copy", "h2d", "h2d", 13, *span) for span in COPIES_US]
    spans += [("gemm", "kernel", "compute", 7, *span) for span in KERNELS_US]
    spans.sort(key=lambda span: span[4])
    names, kinds, lanes, streams, starts, ends = (list(column) for column in zip(*spans, strict=True))
    return Trace.from_columns({
        "name": names, "kind": kinds, "lane": lanes, "stream": streams, "start_us": starts,
        "duration_us": [end - start for start, end in zip(starts, ends, strict=True)],
        "bytes": [0] * len(spans), "correlation": [-1] * len(spans)}, name="three layers")


def judge_limiting_engine(answer: Answer) -> Verdict:
    """The engine that never rests, and the time between two of its operations: ``("h2d", 3)``."""
    given = call("limiting_engine", answer, on="the picture above")
    if not (isinstance(given, (tuple, list)) and len(given) == 2):
        raise _refuse("limiting_engine", given, 'Return two things, as in ("compute", 7): the engine, ms per layer.')
    engine, milliseconds = given
    if str(engine).lower() not in ("h2d", "compute"):
        raise _refuse("limiting_engine", given, 'The engines in the picture are "h2d" and "compute".')
    if str(engine).lower() != "h2d":
        raise _refuse("limiting_engine", given, "The compute lane has gaps: it waits for weights. Which lane has none?")
    if same(milliseconds, COPY_MS + GEMM_MS):
        raise _refuse("limiting_engine", given, f"{COPY_MS} + {GEMM_MS} is the time when nothing overlaps. Here the "
                                                "GEMM runs under the next copy: lanes are not added up.")
    if not same(milliseconds, COPY_MS):
        raise _refuse("limiting_engine", given, "How far apart do two copies start? That is what one more layer costs.")
    right = Tick("correct", True, f"h2d limits, at {COPY_MS} ms for each further layer")
    return Verdict("limiting_engine", [right], picture=timeline(small_schedule(), critical=False))


def judge_break_even_rows(answer: Answer) -> Verdict:
    """Rows at which a layer's GEMM takes as long as its copy, within 2 %."""
    given = call("break_even_rows", answer, on="this card")
    rows = number(given)
    if rows is None:
        raise _refuse("break_even_rows", given, "Return one number: rows.")
    for factor, says in (
        (1, ""), (0.5, "Half of it: how many bytes does an FP8 weight have?"),
        (2, "Twice as much: each weight takes part in a multiplication and an addition per row, so 2 operations, "
            "and an FP8 weight has one byte."),
        (4, "Four times as much: a multiplication and an addition per weight and row, and one byte per weight."),
        (1e9 / 2**30, "25 GB/s are 25·10^9 bytes per second. 2^30 is a GiB; rates are never given in it."),
        (1000, "A factor of 1000: 1 TFLOP/s is 10^12 operations per second, 1 GB/s is 10^9 bytes per second."),
        (0.001, "A factor of 1000: 1 TFLOP/s is 10^12 operations per second, 1 GB/s is 10^9 bytes per second."),
    ):
        if abs(rows - BREAK_EVEN_ROWS * factor) <= TOLERANCE * BREAK_EVEN_ROWS * factor:
            if says:
                raise _refuse("break_even_rows", given, says)
            right = Tick("correct", True, f"{BREAK_EVEN_ROWS:.0f} rows, whatever the width")
            return Verdict("break_even_rows", [right])
    raise _refuse("break_even_rows", given, "Set equal: bytes / copy rate = operations / compute rate. For a layer of "
                                            "n × n weights, how many bytes, and how many operations for B rows?")


def judge_uncovered_us(answer: Answer) -> Verdict:
    """Copy time under which no kernel runs, in µs."""
    given = call("uncovered_us", answer, on="the picture above")
    says = {
        UNCOVERED_US: "",
        COPIES_TOTAL_US: "That is all copy time. Some of it runs under a kernel, and so costs nothing.",
        COPIES_TOTAL_US - UNCOVERED_US: "That is the *covered* copy time. What is left of the 90 µs?",
        NO_KERNEL_US: "That is the time without a kernel; in 5 µs of it nothing was copied either.",
        40: "Is the third copy counted? No kernel runs under any part of it.",
        60: "Is the second copy counted? Its kernel ends 10 µs before it does.",
        95: "Count only while a copy is running; kernels may run alone as long as they like.",
        100: "Count only while a copy is running; kernels may run alone as long as they like.",
    }.get(round(number(given) or 0, 6), "Take the copies one by one: for how long does no kernel run?")
    if says:
        raise _refuse("uncovered_us", given, says)
    right = Tick("correct", True, "30 of the first copy, 10 of the second, 30 of the third")
    return Verdict("uncovered_us", [right], picture=timeline(small_trace()))


def _refuse(puzzle: str, given: object, says: str) -> Refused:
    return Refused(Verdict(puzzle, [Tick("correct", False, shown(given))], says=says))


check = Check({
    "limiting_engine": judge_limiting_engine,
    "break_even_rows": judge_break_even_rows,
    "uncovered_us": judge_uncovered_us,
})
