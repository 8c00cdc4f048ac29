"""Judge of the serial onload: every layer's weights through one buffer, copy and product in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..answercode import pin_advice
from ..check import Answer
from ..device import (
    CALLS_US,
    RATIOS,
    SLACK,
    TICKS,
    WEIGHT_BYTES,
    Run,
    Setting,
    busy_host,
    one_thread,
    passed,
    refuse,
    refute_race,
    run_once,
    skipped_work,
)
from ..exact import counting, digest, digest_on_gpu, permutation
from ..values import shown
from ..verdict import Verdict
from ..watching import QUERIES
from ..worked import worked

if TYPE_CHECKING:
    from ...simgpu import Hazard

OLD = 9                  # seed of what buffer holds before
LAYERS = (5, 1, 2, 24)   # the first one, which shows a race between one layer and the next, at every ratio
ON_SIDE = 2              # layers of the configuration in which another stream than the default one is current
EARLIER = {"kernel": 1, "d2d": 1}   # operations that are still queued when the learner's function is called
DISTURBED = "wrong for an earlier reader of buffer"
ACTIVATIONS = 2          # blocks: one that a product reads, one that it writes
SPARE_BLOCKS = 0.75      # not judged
MOST = 60_000            # in x: more digits than half precision or TF32 has, and no more than the first can hold


@one_thread()
def judge_serial_onload(answer: Answer) -> Verdict:
    """The product of x with all layers, in the time of all copies and products, with no weights beyond the buffer."""
    x, last = counting(1, MOST), None
    for layers in LAYERS:
        weights = [permutation(100 + i) for i in range(layers)]
        wanted, setting = digest(_product(x, weights)), _setting(x, weights, side=layers == ON_SIDE)
        ratios = RATIOS if last is None else (1.0,)
        runs = _run_at(setting, answer, ratios)
        _refute_kind(runs)
        refute_race(setting, answer, runs, wanted, TICKS, lambda given, right: given == right,
                    lambda run, hazard, layers=layers: _hint(run, hazard, layers))
        _refute_values(runs, wanted, layers)
        left = run_once(_setting(x, weights, _left_behind), answer, 1.0)
        _refute_changes(left, x, weights)
        goals = [run_once(_setting(x, weights, lambda *_: None), reference("serial_onload"), run.ratio) for run in runs]
        for run, goal in zip(runs, goals, strict=True):
            _judge_work(run, goal, layers)
            _judge_time(run, goal, layers)
            _judge_memory(run, goal, layers, left.value[0] == digest(weights[-1]))
        _refute_unfilled(left, weights)
        last = last or (runs[len(runs) // 2], goals[len(runs) // 2])   # copy/compute 1
    whys = ("bit for bit", "every order is stated", "copies and products; the host only launches",
            "no weights beyond the buffer")
    return passed("serial_onload", TICKS, whys, *last, advice=_advice(answer, *last), tried=tried())


def _run_at(setting: Setting, answer: Answer, ratios: tuple[float, ...]) -> list[Run]:
    """The runs at these ratios; only the first ones if it asks all the time, which is refused in any case."""
    runs: list[Run] = []
    for ratio in ratios:
        runs.append(run_once(setting, answer, ratio))
        if runs[-1].calls.queries > QUERIES:
            break
    return runs


def tried() -> str:
    """The configurations that were judged."""
    first, *others = LAYERS
    return (f"{first} layers with copy/compute {', '.join(f'{ratio:g}' for ratio in RATIOS)}; "
            f"{', '.join(map(str, others))} layers with copy/compute 1, {ON_SIDE} while another stream than the "
            "default one is current")


def reference(puzzle: str) -> Answer:
    """The worked answer, which sets the target."""
    return worked("03_serial_mlp", puzzle)


def _product(x: Any, weights: list[Any]) -> Any:
    for weight in weights:
        x = x @ weight
    return x


def _setting(x: Any, weights: list[Any], read: Any = None, side: bool = False) -> Setting:
    from ... import simgpu

    return Setting("serial_onload", lambda: _arguments(x, weights), read or _result_and_go_on,
                   simgpu.RTX_5060_LAPTOP, _launch_earlier_work, side=side)


def _hint(run: Run, hazard: Hazard, layers: int) -> str:
    """Whose the earlier operation is, when it is the caller's; where the run was made if that may be why."""
    table = run.trace.columns
    earlier = sorted(number for number, lane in zip(table["correlation"], table["lane"], strict=True)
                     if lane == "compute")[:sum(EARLIER.values())]
    says = [f"(#{number} is the caller, {what})"
            for number, what in zip(earlier, ("making `x`.", "who still reads `buffer`."), strict=False)
            if number in (hazard.first.index, hazard.second.index)]
    if layers == ON_SIDE:
        says.append("(In this run another stream than the default one is current: ask for "
                    "torch.cuda.current_stream() where you need it.)")
    if "was freed" in str(hazard):
        says.append("(A tensor that is dropped while another stream than its own still uses it gives its memory away. "
                    "Let its own stream wait for the other one before you return.)")
    return " ".join(says)


def _arguments(x: Any, weights: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    import torch

    from ... import simgpu

    host = [simgpu.name(weight.clone().pin_memory(), f"host_weights[{i}]") for i, weight in enumerate(weights)]
    buffer = simgpu.name(permutation(OLD).to("cuda"), "buffer")   # old contents that must not be used
    given = simgpu.name(x.to("cuda"), "x")
    given @ buffer   # the library's workspace is there before memory is counted
    torch.cuda.synchronize()
    kept = buffer.view_as(buffer)   # stays where it is, whatever `buffer.data = ...` does
    return (given, list(host), buffer), {"x": given, "host": host, "buffer": kept, "seen": torch.empty_like(kept)}


def _launch_earlier_work(state: dict[str, Any]) -> None:
    """x is still being made, and buffer still being read, both on the current stream."""
    state["x"].mul_(1.0)
    state["seen"].copy_(state["buffer"])


def _result_and_go_on(result: Any, state: dict[str, Any]) -> Any:
    """The result; before it is read, a caller reuses buffer on the current stream. What the earlier work read counts,
    too."""
    state["buffer"].zero_()
    found = digest_on_gpu(result)
    undisturbed = isinstance(found, str) or bool((state["seen"].cpu() == permutation(OLD)).all())
    return found if undisturbed else DISTURBED


def _left_behind(_: Any, state: dict[str, Any]) -> tuple[Any, ...]:
    import torch

    torch.cuda.synchronize()
    return digest(state["buffer"]), digest(state["x"]), [tensor.clone() for tensor in state["host"]]


def _refute_kind(runs: list[Run]) -> None:
    if odd := next((run for run in runs if isinstance(run.value, str) and run.value not in ("nan", DISTURBED)), None):
        raise refuse("serial_onload", TICKS, "correct", f"returned {odd.value}",
                     "Return the resulting tensor, on the GPU.", odd.trace)


def _refute_values(runs: list[Run], wanted: Any, layers: int) -> None:
    wrong = next((run for run in runs if run.value != wanted), None)
    if wrong is None:
        return
    if wrong.value == "nan":
        why, says = "read before written", "The result holds memory that nothing has written."
    else:
        why = f"{words(layers)}, copy/compute {wrong.ratio:g}"
        copies = sum(kind == "h2d" for kind in wrong.trace.columns["kind"])
        says = (f"Every order is stated, but the result is another: checksum {shown(wrong.value)} instead of "
                f"{shown(wanted)}. There are {words(layers)}, and {copies} copies were made. Is every layer's weight "
                "copied once, in order, and is x multiplied by it from the right? And is the result a tensor of its "
                "own, not the buffer, which the caller uses again?")
    raise refuse("serial_onload", TICKS, "correct", why, says, wrong.trace)


def _refute_changes(left: Run, x: Any, weights: list[Any]) -> None:
    _, given_x, given_weights = left.value
    changed = "x" if given_x != digest(x) else next(
        (f"host_weights[{i}]" for i, (given, weight) in enumerate(zip(given_weights, weights, strict=True))
         if not bool((given == weight).all())), None)
    if changed:
        raise refuse("serial_onload", TICKS, "correct", f"{changed} was changed",
                     f"{changed} belongs to the caller, and holds other numbers afterwards: make new tensors instead "
                     "of overwriting it.", left.trace)


def _refute_unfilled(left: Run, weights: list[Any]) -> None:
    if left.value[0] != digest(weights[-1]):
        raise refuse("serial_onload", TICKS, "correct", "`buffer` does not hold the last layer",
                     "The result is right, but afterwards `buffer` does not hold the weights of the last layer. Every "
                     "layer goes through it: buffer.copy_(weight, ...).", left.trace)


def words(layers: int) -> str:
    """A number of layers in words."""
    return f"{layers} layer{'' if layers == 1 else 's'}"


def _judge_work(run: Run, goal: Run, layers: int) -> None:
    spans = run.trace.columns
    copied = sum(size for size, kind in zip(spans["bytes"], spans["kind"], strict=True) if kind == "h2d")
    if says := skipped_work(run, goal, copied, layers * WEIGHT_BYTES):
        raise refuse("serial_onload", TICKS, "correct", f"not one copy and product per layer, {words(layers)}",
                     f"The numbers are right, but {says} Copy each layer and multiply by it: with real weights, a "
                     "product of all layers is neither exact nor the same model.", run.trace, goal)


def _judge_time(run: Run, goal: Run, layers: int) -> None:
    spans = run.trace.columns
    pageable = sum("pageable" in name for name, kind in zip(spans["name"], spans["kind"], strict=True) if kind == "h2d")
    where = f"{words(layers)}, copy/compute {run.ratio:g}"
    if pageable:
        raise refuse("serial_onload", TICKS, "time", f"pageable memory, {where}",
                     f"Correct, but {pageable} of the copies came from pageable memory: {run.done_us:.0f} µs instead "
                     f"of {goal.done_us:.0f}, and the host stands still in them. host_weights are pinned; what is made "
                     "from them (clone(), a change of dtype, contiguous()) is not.", run.trace, goal)
    if busy := busy_host(run, goal, layers):
        waits = sum(1 for kind, start in zip(spans["kind"], spans["start_us"], strict=True)
                    if kind == "sync" and start < run.returned_us)
        lost = max(0.0, run.done_us - goal.done_us)
        cost = (f"It waits {waits} time{'s' if waits != 1 else ''}, and the GPU is done {lost:.0f} µs later than in "
                "the target. " if waits else "")
        raise refuse("serial_onload", TICKS, "time", f"the host does not only launch, {where}",
                     f"Correct and race-free, but {busy} {cost}In one stream, a copy and the product behind it are in "
                     "order without the host.", run.trace, goal)
    if run.done_us > goal.done_us * SLACK + CALLS_US:
        raise refuse("serial_onload", TICKS, "time", f"{run.done_us:.0f} µs, {where}",
                     f"Correct, but {run.done_us:.0f} µs instead of {goal.done_us:.0f}: {_extra_work(run, goal)}",
                     run.trace, goal)


def _extra_work(run: Run, goal: Run) -> str:
    """What the GPU does beyond one copy and one product for each layer."""
    for kind, what in (("h2d", "copies to the GPU"), ("d2d", "copies on the GPU"), ("d2h", "copies to the host"),
                       ("kernel", "kernels")):
        mine, target = (sum(seen == kind for seen in one.trace.columns["kind"]) - EARLIER.get(kind, 0)
                        for one in (run, goal))
        if mine > target:
            return f"{mine} {what} instead of {target}. One copy and one product for each layer are enough."
    return "compare the two timelines: which operation takes longer, or starts later, than in the target?"


def _judge_memory(run: Run, goal: Run, layers: int, filled: bool) -> None:
    target = max(ACTIVATIONS, goal.peak_bytes / WEIGHT_BYTES)
    blocks = run.peak_bytes / WEIGHT_BYTES
    if blocks <= target + SPARE_BLOCKS:
        return
    says = (f"Correct, but at the peak your function had {blocks:.3g} blocks of the size of a layer beside the tensors "
            f"that it was given, instead of {target:g} for activations. ")
    if not filled:
        says += (".to() and .cuda() make a new tensor for the weights, while `buffer` lies unused. Copy into it: "
                 "buffer.copy_(weight, non_blocking=True).")
    elif run.done_us < goal.done_us / SLACK:
        says += ("With that it is faster than the target. Lesson 04 does so with a second buffer; here there is one, "
                 "and activations are all that may be added.")
    else:
        says += "Which tensors of that size are alive at the same time: weights beyond `buffer`, or old activations?"
    raise refuse("serial_onload", TICKS, "memory", f"{blocks:.3g} blocks instead of {target:g}, {words(layers)}",
                 says, run.trace, goal)


def _advice(answer: Answer, run: Run, goal: Run) -> list[str]:
    """What could be simpler, for an answer with nothing wrong."""
    spans, advice = run.trace.columns, []
    used = {stream for stream, kind in zip(spans["stream"], spans["kind"], strict=True) if kind in ("h2d", "kernel")}
    if len(used) > 1 and run.done_us > goal.done_us / SLACK:
        advice.append("one stream is enough: its order is the order that a copy and a product need here")
    return advice + pin_advice(answer)
