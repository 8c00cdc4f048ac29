"""Judge of ``idle_share``: the share of a window in which no kernel runs."""

from __future__ import annotations

from typing import NamedTuple

from ... import intervals
from ...timeline import timeline
from ...trace import Trace
from ..check import Answer, Refused, call
from ..values import number, shown
from ..verdict import Picture, Tick, Verdict

PUZZLE = "idle_share"
WITHIN = 0.001       # absolute: of a share


class Span(NamedTuple):
    """One span of a timeline. ``lane``: host, h2d, compute or d2h; ``stream``: its CUDA stream."""

    lane: str
    stream: int
    start_us: float
    end_us: float


class Case(NamedTuple):
    """Spans, the window that is asked for, and what they show."""

    on: str
    spans: tuple[Span, ...]
    start_us: float
    stop_us: float


def _turns(host: float, copy: float, gpu: float, steps: int) -> tuple[Span, ...]:
    """Host, copy in, GPU and copy out take turns."""
    spans, at = [], 0.0
    for _ in range(steps):
        for lane, took in (("host", host), ("h2d", copy), ("compute", gpu), ("d2h", copy)):
            spans.append(Span(lane, 7, at, at + took))
            at += took
    return tuple(spans)


def _overlapped(host: float, gpu: float, steps: int) -> tuple[Span, ...]:
    """The host is one step ahead."""
    longer = max(host, gpu)
    return tuple(Span(lane, 7, at, at + took) for n in range(steps)
                 for lane, at, took in (("host", n * longer, host), ("compute", (n + 1) * longer, gpu)))


CASES = (
    Case("host and GPU in turns", _turns(500, 0, 1000, 4), 0, 6000),
    Case("two streams whose kernels overlap", (
        Span("host", 7, 0, 300), Span("host", 7, 500, 700), Span("compute", 7, 300, 900), Span("compute", 9, 600, 1100),
        Span("host", 7, 1100, 1500), Span("compute", 7, 1500, 2000), Span("compute", 9, 1600, 1800)), 0, 2000),
    Case("the host is a step ahead", _overlapped(400, 1000, 4), 1000, 5000),
    Case("a window that cuts kernels", _turns(600, 20, 960, 4), 1000, 3800),
    Case("copies take long", _turns(300, 250, 700, 3), 0, 4500),
    Case("out of order, with a gap at both ends", (
        Span("compute", 7, 900, 1300), Span("host", 7, 100, 300), Span("compute", 7, 300, 600),
        Span("host", 7, 650, 850), Span("compute", 9, 1200, 1300)), 0, 1600),
    Case("no kernel at all", (Span("host", 7, 0, 800), Span("h2d", 7, 100, 200)), 0, 1000),
)


def busy_us(case: Case, lanes: tuple[str, ...] = ("compute",)) -> float:
    """How long any span of these lanes runs inside the window."""
    spans = [span for span in case.spans if span.lane in lanes]
    union = intervals.union([span.start_us for span in spans], [span.end_us for span in spans])
    return intervals.measure(intervals.clip(union, case.start_us, case.stop_us))


def right_share(case: Case) -> float:
    """The idle share."""
    return 1 - busy_us(case) / (case.stop_us - case.start_us)


def judge_idle_share(answer: Answer) -> Verdict:
    """A number from 0 to 1 for each of the timelines."""
    for case in CASES:
        given = call(PUZZLE, answer, list(case.spans), case.start_us, case.stop_us, on=case.on)
        share = number(given.item() if getattr(given, "ndim", None) == 0 else given)
        if share is None:
            raise _refused(f"returned {shown(given)}", "Return one number, from 0 to 1.", case)
        if abs(share - right_share(case)) > WITHIN:
            raise _refused(f"{shown(share)} instead of {right_share(case):.4g}, {case.on}",
                           f"{_explain(float(share), case)}\n{_sums(case)}", case)
    return Verdict(PUZZLE, [Tick("correct", True, f"within {WITHIN}, {len(CASES)} timelines")],
                   tried="; ".join(case.on for case in CASES), picture=_picture(CASES[1]))


def _sums(case: Case) -> str:
    return (f"Window {case.start_us:g} to {case.stop_us:g} µs: kernels run in {busy_us(case):g} µs of it, and none in "
            f"{case.stop_us - case.start_us - busy_us(case):g}.")


def _total(case: Case, lane: str, clipped: bool = True) -> float:
    """The sum of the lane's spans."""
    low, high = (case.start_us, case.stop_us) if clipped else (float("-inf"), float("inf"))
    return sum(max(0.0, min(span.end_us, high) - max(span.start_us, low)) for span in case.spans if span.lane == lane)


def _explain(share: float, case: Case) -> str:
    """Which mistake gives this share, in words."""
    window, right = case.stop_us - case.start_us, right_share(case)
    host, whole = _total(case, "host"), _total(case, "host", clipped=False)
    summed, unclipped = _total(case, "compute"), _total(case, "compute", clipped=False)
    devices = busy_us(case, ("h2d", "compute", "d2h"))
    lanes = sum(_total(case, lane) for lane in ("h2d", "compute", "d2h"))
    ends = [span.start_us for span in case.spans if span.lane == "compute"], \
           [span.end_us for span in case.spans if span.lane == "compute"]
    own = max(ends[1], default=0) - min(ends[0], default=0)
    guesses = [
        (BUSY, [1 - right, summed / window, summed / (host + summed or 1)]),
        (RATIO, [part / busy for part in (host, whole, window - busy_us(case))
                 for busy in (busy_us(case), summed, unclipped) if busy]),
        (PERCENT, [100 * right]),
        (TIME, [right * window]),
        (SUMMED, [1 - summed / window]),
        (UNCLIPPED, [1 - unclipped / window]),
        (COPIES, [1 - devices / window, 1 - lanes / window]),
        (HOST, [part / (part + busy) for part in (host, whole) for busy in (busy_us(case), summed, unclipped)
                if part + busy] + [host / window, whole / window]),
        (ENDS, [1 - busy_us(case) / own] if own else []),
    ]
    near = [says for says, wrong in guesses if any(abs(share - value) <= WITHIN for value in wrong)]
    return near[0] if near else "Take the union of the kernels' spans inside the window; the rest of it is idle."


BUSY = "That is the share in which the GPU is *busy*."
RATIO = ("That is a ratio of idle to busy time. A share is a part of the whole: h / (h + g), and not h / g, which can "
         "be larger than 1.")
PERCENT = "That is in per cent: give a share, from 0 to 1."
TIME = "That is a time in µs: divide it by the window."
SUMMED = ("That adds up the kernels' spans. Where two streams run kernels at once, the GPU is busy once: take the "
          "union of the spans.")
UNCLIPPED = "A span that reaches over the window's edge counts with the part that is inside."
COPIES = "That counts copies as busy. While a copy runs and no kernel, nothing is computed: they are idle time here."
HOST = ("That is the host's part of all spans. It is the idle share only where host and GPU take turns with nothing "
        "beside them; here they do not: measure when no kernel runs.")
ENDS = "That is the share between the first kernel and the last. The window's ends count, too."


def _picture(case: Case) -> Picture:
    """The spans of a case."""
    kinds = {"compute": "kernel", "host": "host"}
    columns = {"name": [f"{span.lane} {n}" for n, span in enumerate(case.spans)],
               "kind": [kinds.get(span.lane, span.lane) for span in case.spans],
               "lane": [span.lane for span in case.spans], "stream": [span.stream for span in case.spans],
               "start_us": [span.start_us for span in case.spans],
               "duration_us": [span.end_us - span.start_us for span in case.spans],
               "bytes": [0] * len(case.spans), "correlation": list(range(len(case.spans)))}
    return timeline(Trace.from_columns(columns), start=case.start_us, stop=case.stop_us,
                    title=case.on[0].upper() + case.on[1:])


def _refused(why: str, says: str, case: Case) -> Refused:
    return Refused(Verdict(PUZZLE, [Tick("correct", False, why)], says=says, picture=_picture(case)))
