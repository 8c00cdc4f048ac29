"""Judge of the third puzzle: load a second model into the memory of the first, behind its last round."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..check import Answer
from ..defaults import usual_defaults
from ..device import RATIOS, Run, Setting
from ..layers import FLOPS, ROWS, batch, digest_of, expected, layer
from ..memory import SPARE
from ..spans import products, spans_of
from ..verdict import Verdict
from .data import WEIGHT_BYTES, Outcome, digest_on_host, part_of, two_engines
from .judge import Judge, stream_names
from .lanes import Key, Late, Shape, Steps, who

if TYPE_CHECKING:
    from ...simgpu import Hazard

PUZZLE = "swap"
FEW = (0.5, 2.0)
SECOND = 40        # of the layers: the first of the second model


@dataclass(frozen=True)
class Case:
    """A first model of ``layers``, ``free`` slots beside it, a second model of ``second`` layers, and the rounds of
    each; ``side``: the call comes from another stream than the default one."""

    layers: int
    free: int
    second: int
    rounds: tuple[int, int] = (2, 2)
    side: bool = False

    def __str__(self) -> str:
        count = f"{self.layers} layer{'' if self.layers == 1 else 's'}"
        says = f"{count} and {self.free} free for {self.second} (rounds {self.rounds[0]} and {self.rounds[1]})"
        return f"{says} on another stream" if self.side else says

    def slot(self, number: int) -> str:
        """A slot by its number, in words; those of ``free`` come first."""
        return f"free[{number}]" if number < self.free else f"first[{number - self.free}]"


@dataclass
class Kept:
    """What a run leaves to be looked at."""

    case: Case
    x: Any
    second: list[Any]
    slots: list[Any]   # weak references: who gives the matrices back gives them back


@dataclass(frozen=True)
class Swapped(Outcome):
    """What a run leaves, and in which slot each layer of the second model is, where it is in one."""

    slots: tuple[int | None, ...] = ()

    __repr__ = Outcome.__repr__


@lru_cache(maxsize=64)
@usual_defaults()
def right_value(layers: int, second: int, rounds: tuple[int, int]) -> Any:
    """The digest of the result."""
    x = batch(1, ROWS)
    for number in (*list(range(layers)) * rounds[0], *list(range(SECOND, SECOND + second)) * rounds[1]):
        x = x @ layer(number)
    return digest_on_host(x)


class Swap(Judge):
    """Products on the current stream, loads on ``copying``, slots that change their owner."""

    puzzle = PUZZLE
    cases = ((Case(5, 1, 5), RATIOS), (Case(8, 2, 8, (1, 1)), RATIOS), (Case(4, 2, 6, (3, 1)), FEW),
             (Case(6, 1, 4, (2, 3)), FEW), (Case(3, 2, 2, (1, 2)), FEW), (Case(1, 1, 2, (2, 2)), FEW),
             (Case(2, 1, 3, (1, 2)), (1.0,)), (Case(24, 3, 24, (2, 1)), (0.5,)), (Case(5, 1, 6, side=True), FEW))
    picture = (Case(5, 1, 5), 1.0)
    in_memory = "nothing beside first, free and two outputs of layers at a time"
    in_time = "the loads lie under the first model's products, and the host only launches"
    buffers = 0
    reused = ("(second lies in memory of its own beside first: copy it into the matrices of free and first, which "
              "stay, and nothing is given back.)")
    given = "the matrices that you were given"
    instead = ("The second model goes into free and, layer by layer, into first; an output is read by the next product "
               "alone.")

    def setting(self, case: Case) -> Setting:
        return Setting(PUZZLE, lambda: self._arguments(case), _read, two_engines(),
                       start=lambda kept: kept.x.mul_(1.0), flops=FLOPS, side=case.side,
                       streams=stream_names("copying", first=5))

    def _arguments(self, case: Case) -> tuple[tuple[Any, ...], Kept]:
        import torch

        from ... import simgpu

        x = simgpu.name(batch(1, ROWS).to("cuda"), "x")
        first = [simgpu.name(layer(i).to("cuda"), f"first[{i}]") for i in range(case.layers)]
        free = [simgpu.name(layer(80 + i).to("cuda"), f"free[{i}]") for i in range(case.free)]   # old contents
        second = [simgpu.name(layer(SECOND + j).clone().pin_memory(), f"second[{j}]") for j in range(case.second)]
        copying = simgpu.name(torch.cuda.Stream(), "copying")
        kept = Kept(case, x, second, [weakref.ref(matrix) for matrix in (*free, *first)])
        return (x, first, free, list(second), case.rounds, copying), kept

    def shape(self, case: Case) -> Shape:
        first = case.layers * case.rounds[0]

        def words(key: Key) -> str:
            if key.kind == "load":
                return f"the load of second[{key.number}]"
            if key.number < first:
                return f"product {key.number % case.layers} in round {key.number // case.layers + 1} of the first model"
            turn, number = divmod(key.number - first, case.second)
            return f"product {number} in round {turn + 1} of the second model"
        return Shape({"load": case.second, "layer": first + case.second * case.rounds[1]}, words)

    def needs(self, case: Case, key: Key) -> Iterable[Key]:
        first, before = case.layers * case.rounds[0], Key(key.kind, key.number - 1)
        if key.kind == "load":
            left = key.number - case.free
            return (before,) if left < 0 else (before, Key("layer", first - case.layers + left))
        later = key.number - first
        return (before, Key("load", later)) if 0 <= later < case.second else (before,)

    def hint(self, run: Run, hazard: Hazard, case: Case) -> str:
        if "was freed" in hazard.remark:   # other memory
            return ""
        if hazard.kind == "WAR" or "of the first model" in who(run.trace, hazard, self.shape(case)):
            return ("(A slot of the first model is free when its product in the *last* round has ended: not before, "
                    "and not when another slot's has.)")
        return ""

    def wrong_value(self, run: Run, case: Case) -> str:
        return ("Which layer is in which slot when it is multiplied? Every layer of the first model is needed in every "
                "round, and the second model's come in their own order.")

    def time_words(self, run: Run, case: Case) -> str:
        return f"{self.in_time}; in the run that is drawn, {exposed_us(run, case):.0f} µs are exposed"

    def why_late(self, run: Run, case: Case) -> str:
        return (f"From the first product to the last there are {exposed_us(run, case):.0f} µs without a product, the "
                f"exposed time of the swap. {super().why_late(run, case)}")

    def because(self, late: Late, steps: Steps, run: Run, case: Case) -> str:
        """The load's slot, where it is one that becomes free later than another."""
        if late.key.kind == "load":
            slot = run.value.slots[late.key.number]
            if slot is not None and slot > late.key.number:   # slots are numbered as they become free
                return (f" It goes into {case.slot(slot)}, and {case.slot(late.key.number)} is free before that: load "
                        "into the slots in the order in which they become free.")
            if late.key.number < case.free:
                return (f" It could go into {case.slot(late.key.number)} at once: queue what goes into free before the "
                        "first product.")
        return super().because(late, steps, run, case)

    def extra_copies(self, run: Run, goal: Run, case: Case) -> str:
        if _bytes(run, "d2h") >= WEIGHT_BYTES:
            return ("The GPU copies to the host. The first model's layers do not change, and the host has them "
                    "already: a slot is given up by overwriting it.")
        loaded = _bytes(run, "h2d")
        if loaded >= (case.second + SPARE) * WEIGHT_BYTES:
            return (f"{loaded / WEIGHT_BYTES:.3g} layers are loaded, where the second model has {case.second}. Each is "
                    "loaded once and stays in its slot for all rounds.")
        return ""


def _bytes(run: Run, kind: str) -> int:
    return sum(span.bytes for span in spans_of(run.trace, kind))


def exposed_us(run: Run, case: Case) -> float:
    """Time in which no product ran, from the first one on: what the swap costs."""
    work = products(run.trace)
    return max(0.0, work[-1].end - work[0].start - sum(span.end - span.start for span in work)) if work else 0.0


def _read(result: Any, kept: Kept) -> Outcome:
    """Read on the current stream, as a caller does."""
    import torch

    case = kept.case
    parts = (part_of("the result", result, right_value(case.layers, case.second, case.rounds), ROWS),)
    torch.cuda.synchronize()
    touched = "x" if digest_of(kept.x) != expected(1, ROWS, 0) else ""
    if any(not bool((given == layer(SECOND + j)).all()) for j, given in enumerate(kept.second)):
        touched = "second"
    return Swapped(parts, touched, slots=_slots(kept))


def _slots(kept: Kept) -> tuple[int | None, ...]:
    """Where each layer of the second model is; the first rows are enough to tell layers from each other."""
    rows = {at: slot()[0].cpu() for at, slot in enumerate(kept.slots) if slot() is not None}
    found = [[at for at, row in rows.items() if bool((row == layer(SECOND + j)[0]).all())]
             for j in range(kept.case.second)]
    return tuple(at[0] if len(at) == 1 else None for at in found)


def judge_swap(answer: Answer) -> Verdict:
    """Two models in turn, race-free, one memory, no more exposed than the worked answer."""
    return Swap().run(answer)
