"""Run a learner's CUDA program on the simulated device under several speeds, and say what is wrong with it.

A puzzle of a device lab is a *setting*: it makes fresh tensors with distinct values, calls the learner's function and
reads the result. It is run with slow and with fast copies; the same function, the same data, other delays. A race is
shown by the first of these runs whose numbers are wrong, or, where timing saves them all, by the run in which every
unordered access goes wrong ("adversarial").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .afterwards import NEXT, take_freed_memory
from .check import Answer, Refused, call
from .defaults import usual_defaults
from .memory import Taken, mark, taken_since
from .values import shown, text_of
from .verdict import Tick, Verdict
from .watching import Calls, watching
from .work import CALLS_US as CALLS_US
from .work import busy_host as busy_host
from .work import skipped_work as skipped_work

if TYPE_CHECKING:
    from ..simgpu import Hazard, Note, Profile
    from ..simgpu.device import SimDevice
    from ..trace import Trace

RATIOS = (0.1, 0.5, 1.0, 2.0, 10.0)   # copy time over compute time
SLACK = 1.02                           # of the target time: launches may come in another order
WIDTH = 256                            # of the square matrices in device labs, which stand for
SCALE = 1 / 8                          # of 2048-wide ones: times are those of the larger (simgpu's Profile.scaled)
GEMM_FLOPS = 2 * WIDTH**3
WEIGHT_BYTES = 4 * WIDTH**2
ELSEWHERE = ("(In this run another stream than the default one is current. The caller's stream is what "
             "torch.cuda.current_stream() says in the call.)")
TICKS = ("correct", "race-free", "time", "memory")


@dataclass
class Run:
    """One run: the function's result as plain Python values, what was reported, and what it took.

    ``hazards``: found while the function ran; ``later``: found when the caller went on and read the result.
    ``returned_us``: when the learner's function returned, on the host's clock from its call. ``blocked_us``: host time
    spent waiting in it. ``done_us``: when the last device work ended. ``taken``: device memory. ``calls``: what the
    function called that the trace does not tell.
    """

    ratio: float
    value: Any
    hazards: list[Hazard]
    later: list[Hazard]
    notes: list[Note]
    returned_us: float
    blocked_us: float
    done_us: float
    trace: Trace
    streams: dict[str, int]      # ids of the streams that the function was given
    taken: Taken
    calls: Calls

    @property
    def peak_bytes(self) -> int:
        """Most device memory in use beyond what was there before."""
        return self.taken.peak_bytes

    @property
    def allocations(self) -> int:
        """Pieces of device memory that it took."""
        return self.taken.pieces


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
    streams: Callable[[tuple[Any, ...]], dict[str, Any]] = lambda arguments: {}   # the given streams, by name
    flops: float = GEMM_FLOPS                      # of the product that a copy of WEIGHT_BYTES is compared with
    side: bool = False                             # whether another stream than the default one is current
    reuse: bool = True                             # whether given-back memory is written before the result is read


def at_ratio(profile: Profile, ratio: float, scale: float, flops: float = GEMM_FLOPS) -> Profile:
    """The profile with a link on which one weight matrix takes ``ratio`` times as long as one product."""
    return profile.scaled(scale).with_ratio(ratio, WEIGHT_BYTES, flops, dtype="float32")


def run_once(setting: Setting, answer: Answer, ratio: float, numerics: str = "exact") -> Run:
    """Run the learner's function once. Raises Refused with its own error, Unsolved for a stub."""
    import torch

    from .. import simgpu

    profile = at_ratio(setting.profile, ratio, setting.scale, setting.flops)
    with one_thread(), usual_defaults(), simgpu.session(profile, numerics=numerics) as gpu:
        arguments, state = setting.prepare()
        torch.cuda.synchronize()
        if setting.side:
            torch.cuda.set_stream(simgpu.name(torch.cuda.Stream(), "current stream"))
        before, begin = mark(gpu), simgpu.clock()
        if setting.start is not None:
            setting.start(state)
        with watching(gpu) as calls:
            result = _call(setting, answer, arguments, ratio, gpu)
        returned = simgpu.clock()
        taken = taken_since(gpu, before)
        trace = window(gpu.trace(), begin)   # before the result is read, which is none of the learner's time
        found = len(gpu.hazards)
        streams = {name: stream.stream_id for name, stream in setting.streams(arguments).items()}
        if setting.reuse:
            take_freed_memory(gpu)
        value = _read(setting, result, state)
        del result, arguments
        host_us = returned - begin
        return Run(ratio, value, gpu.hazards[:found], gpu.hazards[found:], list(gpu.notes), host_us,
                   _blocked(trace, host_us), _done(trace), trace, streams, taken, calls)


def _call(setting: Setting, answer: Answer, arguments: tuple[Any, ...], ratio: float, gpu: SimDevice) -> Any:
    """Call the learner's function; Refused, with what is likely to help, when it raises or leaves another stream."""
    import torch

    here = torch.cuda.current_stream()
    try:
        with usual_defaults():
            result = call(setting.puzzle, answer, *arguments, on=f"copy/compute {ratio:g}", empty=True)
    except Refused as refused:
        if any(words in refused.verdict.says for words in FOREIGN):
            refused.verdict.says += f"\n{OWN_DEVICE}"
        if gpu.hazards:   # an error that a race may well have caused
            refused.verdict.says += f"\nAnd there is a race:\n{gpu.hazards[0]}"
        raise
    if torch.cuda.current_stream() != here:
        raise Refused(Verdict(setting.puzzle, [Tick("correct", False, "another stream is current afterwards")],
                              says="Leave the current stream as it was: `with torch.cuda.stream(...):` does."))
    return result


def _read(setting: Setting, result: Any, state: Any) -> Any:
    try:
        return setting.read(result, state)
    except RuntimeError as error:
        if not any(words in str(error) for words in FOREIGN):
            raise
        raise Refused(Verdict(setting.puzzle, [Tick("correct", False, "the result is that of an earlier run")],
                              says=f"{text_of(error)}\n{OWN_DEVICE}")) from None


FOREIGN = ("that is active now", "of the simulated device, not", "driver")   # in errors about another device's things
OWN_DEVICE = ("Every run has a device of its own, and what belongs to another one cannot be used there: make streams "
              "and events inside the function, as torch.cuda.Stream() and torch.cuda.Event(), and keep no tensor, "
              "stream or event from one run to the next (in a global, a default argument, a cache).")


@contextmanager
def one_thread() -> Iterator[None]:
    """Small matrices: more threads only wait for each other, most of all on a busy machine."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


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
    """A refusal at one tick: those before it hold (with a race, none does), those after it are not judged."""
    from ..timeline import timeline

    at = ticks.index(failed)
    before = None if failed == "race-free" else True
    rows = [Tick(name, before if place < at else False if place == at else None, why if place == at else "")
            for place, name in enumerate(ticks)]
    verdict = Verdict(puzzle, rows, says=says)
    if trace is not None:
        verdict.picture = timeline({"yours": trace, "target": target.trace} if target else trace, title=title)
    return Refused(verdict)


def refute_race(setting: Setting, answer: Answer, runs: list[Run], wanted: Any, ticks: tuple[str, ...],
                same: Callable[[Any, Any], bool], hint: str | Callable[[Run, Hazard], str] = "",
                report: Callable[[Run, Hazard], str] = lambda run, hazard: str(hazard)) -> None:
    """Raise Refused when any run has a hazard, with a run whose numbers are wrong as the witness.

    ``hint``: what to say behind the report, where its own suggestion is not the best one for this puzzle; it may be a
    function of the run and of the hazard that is reported. ``report``: that hazard in words.
    """
    racing = [run for run in runs if run.hazards or run.later]
    if not racing:
        if all(same(run.value, wanted) for run in runs):
            _refute_hidden(setting, answer, wanted, ticks, same)
        return
    witness, how = next((run for run in racing if not same(run.value, wanted)), None), ""
    if witness is None:
        witness = run_once(setting, answer, racing[0].ratio, numerics="adversarial")
        how = " and the operations ordered by nothing but your waits"
    hazards = _in_turn(witness) or _in_turn(racing[0])
    seen = witness if _in_turn(witness) else racing[0]
    hint = hint if isinstance(hint, str) else hint(seen, hazards[0])
    says = report(seen, hazards[0])
    if not witness.hazards and not racing[0].hazards:
        what = (": memory that it gave back is still in use, and whoever takes it next gets"
                if NEXT in says else " to use on the current stream, where the caller goes on:")
        says = f"Your function returned, but what it leaves behind is not safe{what}\n{says}"
    if not same(witness.value, wanted):
        result = f"the result is {shown(witness.value)}, not {shown(wanted)}."
        says += f"\nWith copy/compute {witness.ratio:g}{how}, {result}"
    else:
        says += "\nAt these speeds the numbers came out right, which proves nothing: no order is promised."
    if len(hazards) > 1:
        says += f" ({len(hazards)} hazards; this is the first.)"
    raise refuse(setting.puzzle, ticks, "race-free", f"{hazards[0].kind}, copy/compute {witness.ratio:g}",
                 f"{says}\n{hint}".rstrip(), witness.trace)


def _in_turn(run: Run) -> list[Hazard]:
    """The hazards of a run; those in what the function returned come before those in memory that it gave back."""
    return run.hazards + sorted(run.later, key=lambda hazard: NEXT in str(hazard))


def _refute_hidden(setting: Setting, answer: Answer, wanted: Any, ticks: tuple[str, ...],
                   same: Callable[[Any, Any], bool]) -> None:
    """A race that leaves no report, such as a read through numpy, still shows when nothing saves its timing.

    For answers that are right at other speeds.
    """
    late = run_once(setting, answer, 1.0, numerics="adversarial")
    if not same(late.value, wanted):
        raise refuse(setting.puzzle, ticks, "race-free", "right only by its timing",
                     f"With the operations ordered by nothing but your waits, the result is {shown(late.value)}, not "
                     f"{shown(wanted)}. No report names the access: the host may have read through numpy, which the "
                     "race detector cannot see. Wait for the copy before you read.", late.trace)


def refute_streams(puzzle: str, ticks: tuple[str, ...], run: Run, kind: str, names: tuple[str, ...]) -> None:
    """Raise Refused unless copies of this kind ran on each of the named streams."""
    spans = run.trace.columns
    used = {stream for stream, what in zip(spans["stream"], spans["kind"], strict=True) if what == kind}
    missing = [name for name in names if run.streams[name] not in used]
    if missing:
        where = "nothing was copied" if not used else "no copy ran there"
        raise refuse(puzzle, ticks, "correct", f"no copy on {' or '.join(missing)}",
                     f"The text asks for a copy on {missing[0]}, but {where}. Launches go into the stream that is "
                     f"current: put them inside `with torch.cuda.stream({missing[0]}):`.", run.trace)


def passed(puzzle: str, ticks: tuple[str, ...], whys: tuple[str, ...], run: Run, target: Run | None = None,
           advice: list[str] | None = None, tried: str = "") -> Verdict:
    """The verdict on an answer with nothing wrong: its timeline beside the target's."""
    from ..timeline import timeline

    picture = timeline({"yours": run.trace, "target": target.trace} if target else run.trace)
    return Verdict(puzzle, [Tick(name, True, why) for name, why in zip(ticks, whys, strict=True)],
                   advice=advice or [], tried=tried, picture=picture)
