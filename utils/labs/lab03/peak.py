"""Judge of the puzzle about peak memory: what a model needs, measured alone, at full size and without computing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..check import Answer, Refused, call
from ..device import one_thread
from ..values import number, shown
from ..verdict import Tick, Verdict
from .watch import watch_figures

WIDTH = ROWS = 8192
BLOCK_MIB = 128            # of a layer's weights and of an activation: 8192 × 8192 × 2 bytes
WORKSPACE_MIB = 8.125      # of the matrix library, made at the first product (simgpu's profile has the source)
FOREIGN_MIB = 300          # in use by somebody else when the learner's function is called
EARLIER_MIB = 5000         # in use before that, and freed
SCRATCH_MIB = 1024
TOLERANCE_MIB = 1.0
READS_PEAK = {"max_memory_allocated", "memory_stats"}
RESETS = {"reset_peak_memory_stats", "reset_max_memory_allocated"}
MIB = 2**20


class Case(NamedTuple):
    """A model, its peak in MiB, and what is on the GPU at the peak."""

    name: str
    make: Callable[[], Callable[[Any], Any]]
    peak_mib: float
    parts: str


def cases() -> list[Case]:
    """What is measured: 24 layers with all weights resident, two buffers or one, and peaks outside of the last call."""
    running = "x 128, the first call's output 128, 2 activations 256, workspace 8.1"
    return [
        Case("24 layers, resident", lambda: Layers(24, 24), 3592.125, f"weights 24 × 128 = 3072, {running}"),
        Case("24 layers through two buffers", lambda: Layers(24, 2), 776.125, f"2 buffers 256, {running}"),
        Case("24 layers through one buffer", lambda: Layers(24, 1), 648.125, f"1 buffer 128, {running}"),
        Case("12 layers, made as float32 and converted on the GPU", lambda: Layers(12, 12, converted=True), 4608,
             "while the model is built: 12 × 256 in float32 and 12 × 128 converted"),
        Case("one buffer, 1 GiB of scratch in its first call", lambda: Layers(24, 1, SCRATCH_MIB), 1280,
             "at the start of the first call: 1 buffer 128, x 128, scratch 1024"),
    ]


class Layers:
    """Layers whose weights take turns in ``slots`` blocks of memory; only memory matters here, so nothing is copied."""

    def __init__(self, layers: int, slots: int, scratch_mib: int = 0, converted: bool = False) -> None:
        self.layers, self.scratch_mib = layers, scratch_mib
        if converted:
            import torch

            wide = [empty(2 * BLOCK_MIB, torch.float32) for _ in range(slots)]
            self.slots = [weight.to(torch.bfloat16) for weight in wide]
        else:
            self.slots = [empty(BLOCK_MIB) for _ in range(slots)]

    def __call__(self, x: Any) -> Any:
        scratch, self.scratch_mib = (empty(self.scratch_mib) if self.scratch_mib else None), 0
        del scratch
        for i in range(self.layers):
            x = x @ self.slots[i % len(self.slots)]
        return x


def empty(mib: float, dtype: Any = None) -> Any:
    """A tensor on the GPU of that many MiB, (rows, WIDTH), bfloat16 unless said otherwise."""
    import torch

    dtype = dtype or torch.bfloat16
    return torch.empty(int(mib * MIB) // (WIDTH * dtype.itemsize), WIDTH, dtype=dtype, device="cuda")


@dataclass
class Journal:
    """What a learner's function did, step by step: (what, MiB in use after it, what a figure said)."""

    steps: list[tuple[str, float, Any]] = field(default_factory=list)
    held_at_calls: list[float] = field(default_factory=list)   # MiB in use at the start of each call of the model
    in_use: Callable[[], int] = lambda: 0

    def log(self, what: str, result: Any = None) -> None:
        self.steps.append((what, self.in_use() / MIB, result))

    def watched_model(self, make: Callable[[], Any]) -> Callable[[], Any]:
        """The learner's ``make_model``: what it makes notes its calls."""
        def make_model() -> Any:
            model = make()
            self.log("make_model")

            def watched(x: Any) -> Any:
                self.held_at_calls.append(self.in_use() / MIB)
                y = model(x)
                self.log("model")
                return y
            return watched
        return make_model

    def make_x(self) -> Any:
        """The learner's ``make_x``."""
        x = empty(BLOCK_MIB)
        self.log("make_x")
        return x

    def place(self, *names: str) -> int | None:
        """The step at which one of the names came first; None if none did."""
        return next((at for at, (what, _, _) in enumerate(self.steps) if what in names), None)

    def said(self, *names: str) -> bool:
        return self.place(*names) is not None

    def read_at_the_end(self, *names: str) -> bool:
        """Whether one of the figures was asked for after the last call of the model."""
        steps = [what for what, _, _ in self.steps]
        return any(name in steps[-1 - steps[::-1].index("model"):] for name in names)

    def text(self) -> str:
        """The steps in a line, with the MiB in use after each that changes it and what each figure said."""
        words = []
        for what, mib, result in self.steps:
            seen = f" = {result / MIB:.1f}" if isinstance(result, int) else ""
            now = f" → {mib:.1f}" if what in ("make_model", "make_x", "model") else ""
            words.append(f"{what}{'(x)' if what == 'model' else '()'}{now or seen}")
        if len(words) > 12:
            words = [*words[:8], "…", *words[-3:]]
        return "; ".join(words) or "nothing with either of them"


class Measured(NamedTuple):
    """What one call of the learner's function gave, and what it left allocated, in MiB beyond what was there."""

    case: Case
    value: Any
    journal: Journal
    left_mib: float


def judge_peak_mib(answer: Answer) -> Verdict:
    """The peak over building a model and calling it twice, in MiB, alone."""
    for case in cases():
        _judge_alone(measure(answer, [case])[0])
    first, second = measure(answer, [cases()[0], cases()[1]])
    value = number(second.value)
    if value is None or min(abs(value - second.case.peak_mib + there) for there in (0, WORKSPACE_MIB)) > TOLERANCE_MIB:
        raise _refuse(second, "The first of two models measured in one program came out right, the second not: "
                              f"{shown(second.value)}. What does your function keep from one call to the next?")
    if says := _missing_step(first.journal) or _missing_step(second.journal):
        raise _refuse(second, f"When two models are measured in one program: {says[0].lower()}{says[1:]}")
    says = "; ".join(f"{case.name}: {case.peak_mib:.0f} MiB" for case in cases())
    resident, buffers = first.case.peak_mib, second.case.peak_mib
    tick = Tick("correct", True, f"{resident:.0f} MiB resident, {buffers:.0f} with two buffers: "
                                 f"{1 - buffers / resident:.1%} less")
    return Verdict("peak_mib", [tick], tried=f"{says}; the first two also one after the other in one program")


def measure(answer: Answer, models: list[Case]) -> list[Measured]:
    """Call the function for each model in one program, where somebody else has memory and somebody had more before."""
    import torch

    from ... import simgpu

    found = []
    with one_thread(), simgpu.session(simgpu.RTX_5060_LAPTOP, numerics="shapes"):
        foreign = empty(FOREIGN_MIB)
        earlier = empty(EARLIER_MIB)
        del earlier
        in_use = torch.cuda.memory_allocated
        for case in models:
            journal, before = Journal(in_use=in_use), in_use()
            with watch_figures(journal.log):
                value = call("peak_mib", answer, journal.watched_model(case.make), journal.make_x, on=case.name)
            found.append(Measured(case, value, journal, (in_use() - before) / MIB))
        del foreign
    return found


def _judge_alone(seen: Measured) -> None:
    given, wanted = number(seen.value), seen.case.peak_mib
    if given is None:
        raise _refuse(seen, "Return one number, in MiB.")
    if abs(given - wanted) > TOLERANCE_MIB:
        raise _refuse(seen, _explain(given, wanted, seen.journal))
    if says := _missing_step(seen.journal):
        raise _refuse(seen, f"The figure is right, but {says[0].lower()}{says[1:]}")
    if seen.left_mib > WORKSPACE_MIB + TOLERANCE_MIB:
        raise _refuse(seen, f"The figure is right, but {seen.left_mib:.0f} MiB are still in use after your function "
                            "returned: something (a global, a cache, a default argument) keeps the model or its output "
                            "alive, and every measurement after this one is not alone.")


def _explain(given: float, wanted: float, journal: Journal) -> str:
    """Why a figure is wrong, in words: first what was not done, then what was done in the wrong place."""
    if says := _missing_step(journal):
        return says
    for factor, unit in ((MIB, "bytes"), (1024, "KiB"), (1 / 1024, "GiB"), (MIB / 1e6, "MB, of 10^6 bytes,"),
                         (MIB / 1e9, "GB, of 10^9 bytes,")):
        if abs(given - wanted * factor) <= TOLERANCE_MIB * factor:
            return f"{shown(given)} is the peak in {unit} but it is asked for in MiB, of 2^20 bytes: {wanted:.1f}."
    return _wrong_figure(journal) or _wrong_place(given, wanted, journal)


def _missing_step(journal: Journal) -> str:
    made, called = journal.said("make_model"), len(journal.held_at_calls)
    if not made or not called:
        return f"The model was never {'called' if made else 'made'}: its peak cannot have been measured."
    if sum(what == "make_model" for what, _, _ in journal.steps) > 1:
        return ("make_model() was called more than once: two models are on the GPU at the same time, or the second is "
                "another one than the first. Build one, and call it twice.")
    if called == 1:
        return ("The model was called once. A program that calls it again still holds the output of the call before: "
                "call it twice.")
    return ""


def _wrong_figure(journal: Journal) -> str:
    if journal.read_at_the_end(*READS_PEAK):
        return ""
    if journal.read_at_the_end("max_memory_reserved", "memory_reserved"):
        return ("*Reserved* is what the allocator has taken from the device, with what it keeps for later: here also "
                f"the {EARLIER_MIB} MiB of a program that ran before. What tensors need is *allocated*.")
    if journal.read_at_the_end("mem_get_info"):
        return ("mem_get_info() sees what the allocator has *reserved*, now. What tensors needed at the peak is "
                "max_memory_allocated().")
    if journal.read_at_the_end("memory_allocated"):
        return ("memory_allocated() is what is in use *now*. Between two lines of your function, inside of the call, "
                "there was more: max_memory_allocated() remembers the most.")
    return "No peak was read after the calls. Which function of torch.cuda remembers the most that was allocated?"


def _wrong_place(given: float, wanted: float, journal: Journal) -> str:
    steps = [what for what, _, _ in journal.steps]
    made, first_call = journal.place("make_model"), journal.place("model")
    resets = [at for at, what in enumerate(steps) if what in RESETS]
    if not resets:
        return (f"The peak was never reset: it is still that of what ran before, when {EARLIER_MIB} MiB more were in "
                "use. empty_cache() does not reset it.")
    foreign = (f"{FOREIGN_MIB} MiB too much: they were in use before your function was called, by somebody else. Look "
               "at memory_allocated() first, and count from there.")
    foreign = foreign if abs(given - wanted - FOREIGN_MIB) < TOLERANCE_MIB else ""
    if resets[-1] > made:
        when = "the first call" if resets[-1] > first_call else "the model was built"
        return (f"{foreign} {'And the' if foreign else 'The'} peak was reset after {when}, so what was in use until "
                "then is forgotten. A model needs room while it is built and in its first call, too: reset before all "
                "of that.").lstrip()
    if journal.held_at_calls[1] - journal.held_at_calls[0] < BLOCK_MIB:
        return ("While the second call ran, the output of the first was no longer held: its block was used again. Keep "
                "it, as a caller does who writes y = model(x) in a loop.")
    if len(journal.held_at_calls) > 2 and given > wanted:
        return ("The model was called more often than twice, with all outputs kept. One output of an earlier call is "
                "what counts.")
    if foreign:
        return foreign
    looked = journal.place("memory_allocated", "memory_stats", "max_memory_allocated")
    for step, what in (("make_model", "the model"), ("make_x", "x")):
        if looked is not None and looked > journal.place(step, "model"):
            return f"What was there before was looked at too late: {what} was on the GPU already, and is not counted."
    if steps.index("make_x") < made:
        return ("x was made before the model. The text asks for the other order, in which x is not there yet while the "
                "model is built.")
    return "What is counted: everything that your function puts on the GPU, from before the model is built to its end."


def _refuse(seen: Measured, says: str) -> Refused:
    case = seen.case
    witness = (f"\nAt the peak, in MiB: {case.parts}; together {case.peak_mib:.1f}."
               f"\nYour function did (MiB in use, {FOREIGN_MIB} of them somebody else's): {seen.journal.text()}.")
    why = f"{shown(seen.value)} instead of {case.peak_mib:.1f} MiB, {case.name}"
    return Refused(Verdict("peak_mib", [Tick("correct", False, why)], says=says + witness))
