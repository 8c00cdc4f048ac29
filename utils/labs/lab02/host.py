"""Judges of the puzzles about the host: it runs ahead, and it waits for exactly one thing."""

from __future__ import annotations

from typing import Any

from ..check import Answer
from ..device import (
    CALLS_US,
    SLACK,
    WIDTH,
    Run,
    Setting,
    passed,
    refuse,
    refute_race,
    refute_streams,
    run_all,
    run_once,
)
from ..exact import counting, digest, kind_of, permutation
from ..values import number, shown
from ..verdict import Verdict
from .waits import reference, tried

TICKS = ("correct", "race-free", "time")
STEPS = (1, 2, 7, 20)
UPLOAD = ("Another stream is busy with an upload that this result does not need, and the host waits for it too. Wait "
          "for one event: the one behind the copy to `out`.")
TWICE = ("It does not wait for the unrelated upload, which is right, but more is copied, computed or waited for than "
         "one product, one copy and one wait.")
EMPTY = -1.0      # what `out` holds before anything is copied there
SMALL = 1 / 2   # products as short as in a small model, so that a wait of the host shows


def judge_sums_per_step(answer: Answer) -> Verdict:
    """The sum of every intermediate product, as a list of floats, with no gap between the products."""
    from ... import simgpu

    x, weight = counting(11), counting(12) / 12_800   # a mixing matrix: no sum can be told from the one before
    last = None
    for steps in STEPS:
        wanted = _sums(x, weight, steps)

        def prepare(steps: int = steps) -> tuple[tuple[Any, ...], Any]:
            given = x.to("cuda"), weight.to("cuda")
            return (*given, steps), given

        setting = Setting("sums_per_step", prepare, lambda result, _: _floats(result),
                          simgpu.RTX_5060_LAPTOP, scale=SMALL)
        runs = run_all(setting, answer, (1.0,))
        refute_race(setting, answer, runs, wanted, TICKS, _close)
        if isinstance(runs[0].value, list) and "nan" in runs[0].value:
            raise refuse("sums_per_step", TICKS, "correct", "read before written",
                         "A sum is NaN: memory was read that nothing had been written to yet. Did the host read, "
                         "perhaps through numpy, before the copy had arrived?", runs[0].trace)
        if not _close(runs[0].value, wanted):
            raise refuse("sums_per_step", TICKS, "correct", f"{steps} step{'' if steps == 1 else 's'}",
                         f"Returned {shown(runs[0].value)}, expected {shown(wanted)}: one float for every step.",
                         runs[0].trace)
        untouched = Setting("sums_per_step", prepare, lambda _, given: _equal(given, (x, weight)),
                            simgpu.RTX_5060_LAPTOP, scale=SMALL)
        if not run_once(untouched, answer, 1.0).value:
            raise refuse("sums_per_step", TICKS, "correct", "x or weight was changed",
                         "The tensors that you are given belong to the caller: make new ones instead of overwriting "
                         "them.", runs[0].trace)
        if sum(kind == "kernel" for kind in runs[0].trace.columns["kind"]) < steps:
            raise refuse("sums_per_step", TICKS, "correct", "the products did not run on the GPU",
                         "x and weight are on the GPU: multiply there.", runs[0].trace)
        goal = run_once(setting, reference("sums_per_step"), 1.0)
        _judge_gaps(runs[0], goal, steps)
        last = runs[0], goal
    whys = ("every sum", "nothing unordered", "no gap between the products, one wait at the end")
    return passed("sums_per_step", TICKS, whys, *last, tried=f"{', '.join(map(str, STEPS))} steps")


def _equal(given: tuple[Any, ...], wanted: tuple[Any, ...]) -> bool:
    return all(bool((left.cpu() == right).all()) for left, right in zip(given, wanted, strict=True))


def _sums(x: Any, weight: Any, steps: int) -> list[float]:
    sums, x, weight = [], x.double(), weight.double()
    for _ in range(steps):
        x = x @ weight
        sums.append(float(x.sum()))
    return sums


def _close(given: Any, wanted: list[float]) -> bool:
    """Equal up to what float32 rounds away."""
    return isinstance(given, list) and len(given) == len(wanted) and all(
        isinstance(value, float) and abs(value - right) <= 1e-4 * abs(right)
        for value, right in zip(given, wanted, strict=True))


def _floats(result: Any) -> Any:
    if not isinstance(result, (list, tuple)):
        return kind_of(result)
    return [_float(value) for value in result]


def _judge_gaps(run: Run, goal: Run, steps: int) -> None:
    """Only time in which the GPU does nothing counts: an extra small kernel or copy per step is nobody's wait."""
    if _stalls(run):
        raise refuse("sums_per_step", TICKS, "time", f"{steps} step{'' if steps == 1 else 's'}",
                     "Correct, but the host waits before it has launched everything: values come back to the host one "
                     "by one or in parts, and after each the GPU may run dry. Keep the sums on the GPU, and fetch them "
                     "all at once, at the end.", run.trace, goal)
    more_work = run.returned_us > goal.returned_us * 1.25 + CALLS_US
    if run.returned_us <= goal.returned_us or not (more_work or _waited(run) > _waited(goal) + CALLS_US):
        return
    waits = sum(1 for kind in run.trace.columns["kind"] if kind == "d2h")
    says = f"Correct, but it takes {run.returned_us:.0f} µs instead of {goal.returned_us:.0f}. "
    if waits > 1:
        says += (f"The products ran back to back, but then {waits} values came back one by one, each with a copy and a "
                 "wait of its own. Make one tensor of them and fetch that.")
    else:
        says += "The host waits where it need not, or launches more than it has to."
    raise refuse("sums_per_step", TICKS, "time", f"{steps} step{'' if steps == 1 else 's'}", says, run.trace, goal)


def _stalls(run: Run) -> bool:
    """Whether the host waits and then launches another kernel."""
    spans = run.trace.spans
    kernels = spans[spans.kind == "kernel"].correlation
    launches = spans[(spans.kind == "host") & spans.correlation.isin(kernels)].start_us
    waits = spans[(spans.kind == "sync") & (spans.start_us < run.returned_us)].start_us
    return len(waits) > 0 and len(launches) > 0 and bool(waits.min() < launches.max())


def _waited(run: Run) -> float:
    return run.returned_us - run.trace.busy_us(["compute", "h2d", "d2h"], start=0, stop=run.returned_us)


def judge_fetch(answer: Answer) -> Verdict:
    """A product, its copy to pinned memory on ``stream``, and the host's sum of it, beside unrelated work."""
    from ... import simgpu

    x, weight = counting(21), permutation(22)
    wanted = float(x.sum())
    setting = Setting("fetch", lambda: _fetch_arguments(x, weight), _float_and_go_on,
                      simgpu.RTX_4090, start=_launch_unrelated, streams=lambda arguments: {"stream": arguments[3]})
    filled = Setting("fetch", setting.prepare, lambda _, state: _filled(state), simgpu.RTX_4090)
    runs = run_all(setting, answer)
    if odd := next((run for run in runs if isinstance(run.value, str) and run.value != "nan"), None):
        raise refuse("fetch", TICKS, "correct", f"returned {odd.value}", "Return the sum, one Python float.", odd.trace)
    refute_race(setting, answer, runs, wanted, TICKS, lambda given, right: given == right)
    if wrong := next((run for run in runs if run.value != wanted), None):
        raise refuse("fetch", TICKS, "correct", f"copy/compute {wrong.ratio:g}", _wrong_sum(wrong.value, wanted),
                     wrong.trace)
    if run_once(filled, answer, 1.0).value != digest(x @ weight):
        raise refuse("fetch", TICKS, "correct", "`out` does not hold the product",
                     "The sum is right, but not added up from `out`. Copy the product there, and let the host read it.",
                     runs[2].trace)
    refute_streams("fetch", TICKS, runs[2], "d2h", ("stream",))
    goals = [run_once(setting, reference("fetch"), run.ratio) for run in runs]
    for run, goal in reversed(list(zip(runs, goals, strict=True))):   # the upload lasts longest with slow copies
        if run.returned_us > goal.returned_us * SLACK + CALLS_US:
            raise refuse("fetch", TICKS, "time", f"{run.returned_us:.0f} µs, copy/compute {run.ratio:g}",
                         f"Correct, but {run.returned_us:.0f} µs instead of {goal.returned_us:.0f}. "
                         + (UPLOAD if run.returned_us >= _upload_end(run) else TWICE), run.trace, goal)
    whys = ("the sum, read after it arrived", "every order is stated", "the host waits for one copy and nothing else")
    return passed("fetch", TICKS, whys, runs[2], goals[2], tried=tried() + ", beside a long upload")


def _float(result: Any) -> Any:
    plain = number(result)
    if plain is None and isinstance(result, float):
        return "nan"
    return float(plain) if plain is not None else kind_of(result)


def _upload_end(run: Run) -> float:
    spans = run.trace.spans
    uploads = spans[spans.kind == "h2d"]
    return float((uploads.start_us + uploads.duration_us).max()) if len(uploads) else float("inf")


def _wrong_sum(given: Any, wanted: float) -> str:
    if given == EMPTY * WIDTH * WIDTH:
        return (f"The sum is {shown(given)}: that is `out` before anything arrived, {EMPTY:g} everywhere. The host "
                "read too early, in a way that the race detector cannot see, such as through numpy.")
    return (f"As far as the race detector can see every order is stated, but the sum is {shown(given)} instead of "
            f"{shown(wanted)}: which tensor was copied, and which was summed?")


def _float_and_go_on(result: Any, state: dict[str, Any]) -> Any:
    """The answer; and then a caller that uses `out` and the current stream, without another wait."""
    import torch

    state["out"].sum()
    later = [torch.zeros(state["out"].shape, device="cuda") for _ in range(2)]
    del later
    return _float(result)


def _filled(state: dict[str, Any]) -> Any:
    import torch

    torch.cuda.synchronize()
    return digest(state["out"])


def _fetch_arguments(x: Any, weight: Any) -> tuple[tuple[Any, ...], Any]:
    import torch

    from ... import simgpu

    out = simgpu.name(torch.full(x.shape, EMPTY).pin_memory(), "out")
    stream = simgpu.name(torch.cuda.Stream(), "stream")
    big = torch.zeros(16, *x.shape).pin_memory()
    state = {"out": out, "big": big, "to": torch.empty(16, *x.shape, device="cuda"), "stream": torch.cuda.Stream()}
    state["inputs"] = (x.to("cuda"), weight.to("cuda"))
    return (*state["inputs"], out, stream), state


def _launch_unrelated(state: dict[str, Any]) -> None:
    """Make the inputs, on the current stream; and a long upload on another, for which a device-wide wait waits."""
    import torch

    for tensor in state["inputs"]:
        tensor.mul_(1.0)
    with torch.cuda.stream(state["stream"]):
        state["to"].copy_(state["big"], non_blocking=True)
