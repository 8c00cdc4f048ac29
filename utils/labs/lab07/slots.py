"""Judge of ``two_slots``: two full sets of buffers, on the host and on the device, that share no byte."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

from ..check import Answer
from ..lab06.data import Workload
from ..memory import mark, taken_since
from ..values import shown
from ..verdict import Verdict
from .calling import run_part
from .judge import FULL, MANY, USUAL, Judge
from .serving import PARTS, SLOW_NS, Case, Served, given, lesson, pinned_bytes, ready, serve

if TYPE_CHECKING:
    from ...simgpu import Hazard

LARGE = 2**16                  # rows of buffers, of which a step needs few; where rounding counts for nothing
FIELDS = 5                     # numbers for each row of a slot: four in, one out
SPARE_SETS = 0.25
FEW = Workload(2, 8, ((3, 6, 0.0), (5, 8, 0.0), (4, 5, 0.0)))


ENOUGH = ("when the host fills a slot for step n, step n - 2 has been waited for, and nothing uses its buffers any "
          "more.")


class Facts(NamedTuple):
    """Of a learner's slots: device memory (of LARGE ones) and pinned memory that was taken, in sets; what is shared;
    what is not pinned."""

    sets: tuple[float, float]
    shared: list[str]
    pageable: list[str]


class TwoSlots(Judge):
    puzzle = "two_slots"
    whys = ("every token is the expected one", "the slots share no byte", "no copy holds the host",
            "two sets, on the host and on the device")
    cases = (Case(USUAL), Case(FULL, host_us=50, gpu_us=300), Case(USUAL, copy_ns=SLOW_NS),
             Case(FEW, host_us=750, rows=LARGE), Case(MANY, host_us=300), Case(FULL, gpu_us=300, adversarial=True))

    def serve(self, answer: Answer, case: Case) -> Served:
        facts: list[Facts] = []

        def pipeline(model: Any, rows: int) -> Any:
            made = lesson().Streams(model, rows)
            made.slots = self._slots(answer, rows, facts)
            return ready(made)
        run = serve(case, pipeline)
        run.facts = facts[0]
        return run

    def report(self, hazard: Hazard) -> str:
        return str(replace(hazard, fix="no wait, but memory of its own for each slot"))

    def race_words(self, run: Served, hazard: Hazard) -> str:
        return self.wrong_words(None, run)

    def wrong_words(self, answer: Answer | None, run: Served) -> str:
        shared = run.facts.shared
        if not shared:
            return ""
        return (f"These share memory: {'; '.join(shared[:3])}{'; ...' * (len(shared) > 3)}. Two steps are under way at "
                "once, and each needs all four for itself.")

    def slow_words(self, run: Served, goal: Served) -> str:
        if run.facts.pageable:
            verb = "are" if len(run.facts.pageable) > 1 else "is"
            return (f"{' and '.join(run.facts.pageable)} {verb} pageable memory: a copy from or to it makes the host "
                    "wait until it is done, so the next step is prepared after this one. Pin it.")
        return "A copy between tensors that do not lie in one piece is not asynchronous. Are all of them contiguous?"

    def memory_words(self, run: Served, goal: Served) -> tuple[str, str] | None:
        for where, sets in zip(("device", "pinned"), run.facts.sets, strict=True):
            if sets > 2 + SPARE_SETS:
                return (f"{sets:.2g} sets of {where} memory",
                        f"your function takes {where} memory for {sets:.2g} sets of buffers, where two are enough: "
                        f"{ENOUGH}")
        return None

    # --- the learner's slots

    def _slots(self, answer: Answer, rows: int, facts: list[Facts]) -> list[Any]:
        """The lesson's slots, with the learner's buffers, cleared."""
        import torch

        from ... import simgpu

        gpu = simgpu.active()
        before, pinned = mark(gpu), pinned_bytes(gpu)
        made = run_part(self.puzzle, answer, rows, on=f"{rows} rows")
        device = taken_since(gpu, before)
        size = FIELDS * 8 * rows
        sets = device.peak_bytes / size if rows == LARGE else 0.0, (pinned_bytes(gpu) - pinned) / size
        slots = self._read(made, rows)
        if rows != LARGE:
            self._refute_kept(slots, self._read(run_part(self.puzzle, answer, rows, on=f"{rows} rows, again"), rows))
        torch.cuda.synchronize()       # what they held at first does not matter
        pageable = [part for part in PARTS[:2] if not all(getattr(slot, part).is_pinned() for slot in slots)]
        facts.append(Facts(sets, shared_words(slots), pageable))
        for slot in slots:
            for part in PARTS:
                getattr(slot, part).zero_()
        return slots

    def _refute_kept(self, slots: list[Any], others: list[Any]) -> None:
        """A second loop needs slots of its own."""
        for part in PARTS:
            if any(_common(getattr(one, part), getattr(other, part)) for one in slots for other in others):
                raise self.refuse("correct", "called again, the same memory", f"Called twice, two_slots gives the same "
                                  f"{part} twice: a second loop would write into the first one's. Is something kept "
                                  "from call to call, in a global, a default argument, a cache?")

    def _read(self, made: Any, rows: int) -> list[Any]:
        if not isinstance(made, (list, tuple)):
            raise self.refuse("correct", f"returned {shown(made)}", "Return a list of two slots.")
        if len(made) < 2:
            raise self.refuse("correct", f"slots returned: {len(made)}", "Two steps are under way at once, and need a "
                              "slot each: return two.")
        if len(made) > 2:
            raise self.refuse("memory", f"slots returned: {len(made)}", f"{len(made)} slots take memory for "
                              f"{len(made)} sets, where two are enough: {ENOUGH}")
        return [self._slot(one, rows, number) for number, one in enumerate(made)]

    def _slot(self, one: Any, rows: int, number: int) -> Any:
        import torch

        for part in PARTS:
            tensor = getattr(one, part, None)
            shape, kind = ((4, rows) if part.endswith("in") or part == "inputs" else (rows,),
                           "cpu" if part.startswith("host") else "cuda")
            if not isinstance(tensor, torch.Tensor) or tensor.device.type != kind or tensor.dtype != torch.int64 or \
                    tuple(tensor.shape) != shape:
                what = given(tensor) if hasattr(one, part) else "missing"
                raise self.refuse("correct", f"slot {number}: {part} is {what}"[:70],
                                  f"{part} of slot {number} is {what}. A step may have {rows} rows: it has to be an "
                                  f"int64 tensor of shape {shape} on {'the host' if kind == 'cpu' else 'the GPU'}.")
            if getattr(one, part).data_ptr() != tensor.data_ptr():
                raise self.refuse("correct", f"slot {number}: {part} changes", f"Each time that {part} of slot "
                                  f"{number} is asked for, it is other memory. The loop asks often: make them once.")
        slot = object.__new__(lesson().Slot)
        for part in PARTS:
            setattr(slot, part, getattr(one, part))
        slot.copied_in, slot.computed, slot.copied_out = (torch.cuda.Event() for _ in range(3))
        return slot


def shared_words(slots: list[Any]) -> list[str]:
    """Which buffers overlap, in words, over all that there are."""
    places = [(f"slot {number} {part}", getattr(slot, part)) for number, slot in enumerate(slots) for part in PARTS]
    return [f"{one} and {other} ({count} bytes)" for (one, first), (other, second) in combinations(places, 2)
            if (count := _common(first, second))]


def _common(one: Any, other: Any) -> int:
    """Bytes that two tensors on one device have in common; between their first and last ones where they have gaps."""
    if one.device.type != other.device.type:
        return 0
    (low, high), (begin, end) = _extent(one), _extent(other)
    return max(0, min(high, end) - max(low, begin))


def _extent(tensor: Any) -> tuple[int, int]:
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def judge_two_slots(answer: Answer) -> Verdict:
    """Right tokens, no race, no wait more, memory for two."""
    return TwoSlots().run(answer)
