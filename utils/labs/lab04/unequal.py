"""Judge of the puzzle about layers of unequal size: two slots, each large enough for every layer it gets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ..answercode import pin_advice
from ..check import Answer, Refused
from ..device import (
    RATIOS,
    SLACK,
    WEIGHT_BYTES,
    Run,
    Setting,
    busy_host,
    passed,
    refuse,
    refute_race,
    run_once,
    skipped_work,
)
from ..exact import digest, kind_of
from ..layers import FLOPS, ROWS
from ..values import shown
from ..verdict import Verdict
from .delays import from_pageable, lost_time, reference, reuse_hint, uploaded

if TYPE_CHECKING:
    from ...simgpu import Hazard

PUZZLE = "unequal"
TICKS = ("correct", "race-free", "memory", "time")
SLOTS = 2
SLACK_US = 40.0                       # of the target time, whose copies are shorter than those of other puzzles
SPARE_BYTES = 0.55 * WEIGHT_BYTES     # not judged: two more activations
MOST = 60_000            # in x: more digits than half precision or TF32 has, and no more than the first can hold
HINT = "Sizes differ: do two slots, or the parts of one, share bytes? And which product read them last?"


@dataclass(frozen=True)
class Case:
    """Layers that take ``widths[i]`` columns to ``widths[i + 1]``; ``side``: whether another stream than the default
    one is current."""

    widths: tuple[int, ...]
    side: bool = False

    def __str__(self) -> str:
        return "-".join(map(str, self.widths)) + (" on another stream than the default one" if self.side else "")

    @property
    def ratios(self) -> tuple[float, ...]:
        return (0.5, 2.0) if self.side else RATIOS

    @property
    def shapes(self) -> list[tuple[int, int]]:
        return list(pairwise(self.widths))

    @property
    def sizes(self) -> list[int]:
        return [4 * rows * columns for rows, columns in self.shapes]

    @property
    def budget(self) -> int:
        """Two of the largest layer, and the two largest activations that live at the same time."""
        activations = [4 * ROWS * width for width in (*self.widths[1:], 0)]
        return SLOTS * max(self.sizes) + max(map(sum, pairwise(activations)))

    @cached_property
    def weights(self) -> list[Any]:
        return [_selection(rows, columns, 300 + i) for i, (rows, columns) in enumerate(self.shapes)]

    @cached_property
    def x(self) -> Any:
        import torch

        draw = torch.Generator().manual_seed(400 + self.widths[0])
        return torch.randint(1, MOST, (ROWS, self.widths[0]), generator=draw).float()

    @cached_property
    def wanted(self) -> Any:
        result = self.x
        for weight in self.weights:
            result = result @ weight
        return digest(result)

    def setting(self, values: bool = True) -> Setting:
        from ... import simgpu

        return Setting(PUZZLE, self._prepare, lambda result, given: self._read(result, *given) if values else None,
                       simgpu.RTX_5060_LAPTOP, self._use_memory, flops=FLOPS, side=self.side)

    def _prepare(self) -> tuple[tuple[Any, ...], Any]:
        import torch

        from ... import simgpu

        host = [simgpu.name(weight.clone().pin_memory(), f"host_weights[{i}]") for i, weight in enumerate(self.weights)]
        x = simgpu.name(self.x.to("cuda"), "x")
        x @ torch.ones(self.widths[0], 8, device="cuda")   # the library's workspace is there before memory is counted
        return (x, list(host)), (x, host)

    def _use_memory(self, _: Any) -> None:
        """Work in memory that is given back at once: whoever gets it next must not write before this is done."""
        import torch

        scratch = [torch.empty(max(self.sizes) // 4, device="cuda") for _ in range(SLOTS)]
        for block in scratch:
            block[:256].fill_(-1)

    def _read(self, result: Any, x: Any, host: list[Any]) -> Any:
        import torch

        torch.cuda.synchronize()
        if isinstance(result, torch.Tensor) and not result.is_cuda:
            return "a tensor on the CPU"
        if not isinstance(result, torch.Tensor):
            return kind_of(result)
        if result.shape != (ROWS, self.widths[-1]):
            return f"a tensor of shape {tuple(result.shape)}"
        if result.dtype != torch.float32:
            return f"a {result.dtype} tensor"
        if any(not torch.equal(given, weight) for given, weight in zip(host, self.weights, strict=True)):
            return CHANGED
        return "a changed x" if digest(x) != digest(self.x) else digest(result)


CASES = (Case((256, 256, 512, 128, 256)), Case((512, 512, 128, 64, 256)), Case((64, 128, 256, 512)),
         Case((128, 512, 128, 512, 128, 512)), Case((256, 128)), Case((128, 512, 64)),
         Case((128, 256, 64, 128), side=True), Case((256, 64, 512, 512, 64, 256, 512, 256, 64, 128, 256)))
CHANGED = "changed host_weights"


def _selection(rows: int, columns: int, seed: int) -> Any:
    """A (rows, columns) float32 matrix with a single 1 in each column: products with it only pick columns."""
    import torch

    draw = torch.Generator().manual_seed(seed)
    picked = torch.cat([torch.randperm(rows, generator=draw) for _ in range(-(-columns // rows))])[:columns]
    return torch.eye(rows)[:, picked].contiguous()


def judge_unequal(answer: Answer) -> Verdict:
    """``x`` times layers of unequal shape, through two slots of the largest layer."""
    drawn, most = None, 0
    for case in CASES:
        runs = [_run(case, answer, ratio) for ratio in case.ratios]
        refute_race(case.setting(), answer, runs, case.wanted, TICKS, lambda given, right: given == right,
                    lambda run, hazard, case=case: _hint(case, hazard))
        _refute_values(case, runs)
        goals = [_goal(case, ratio) for ratio in case.ratios]
        for run in runs:
            _judge_memory(case, run)
        for run, goal in zip(runs, goals, strict=True):
            _judge_work(case, run, goal)
            _judge_time(case, run, goal)
        drawn = drawn or (runs[2], goals[2])
        most = max(most, runs[0].allocations - goals[0].allocations - 2)
    whys = ("the result, bit for bit", "every order is stated", "two of the largest layer, and the activations",
            "every copy as soon as the link and a slot are free")
    advice = ["device memory is taken for each layer anew, which costs host time: keep two slots"] if most > 0 else []
    tried = "widths " + "; ".join(
        f"{case} ({', '.join(f'{ratio:g}' for ratio in case.ratios)})" if case.side else str(case) for case in CASES)
    tried += f"; each other with copy/compute {', '.join(f'{ratio:g}' for ratio in RATIOS)}"
    return passed(PUZZLE, TICKS, whys, *drawn, tried=tried, advice=advice + pin_advice(answer))


def _hint(case: Case, hazard: Hazard) -> str:
    says = reuse_hint(hazard)
    if case.side:
        says += " (Is the current stream asked for, torch.cuda.current_stream(), wherever it is meant?)"
    return f"{says} (Widths {case}.)".lstrip() if says else f"(Widths {case}. {HINT})"


@lru_cache(maxsize=64)
def _goal(case: Case, ratio: float) -> Run:
    return run_once(case.setting(values=False), reference(PUZZLE), ratio, "shapes")


def _run(case: Case, answer: Answer, ratio: float) -> Run:
    """One run; an error of the learner's gets the sizes of the layers, which are the likely cause."""
    try:
        return run_once(case.setting(), answer, ratio)
    except Refused as refused:
        rows = ", ".join(f"{rows} x {columns}" for rows, columns in case.shapes)
        refused.verdict.says += (f"\nThe layers of this run: {rows}. A slot must have room for the largest layer; a "
                                 "view of its beginning has the shape of the layer that is in it.")
        raise


def _refute_values(case: Case, runs: list[Run]) -> None:
    for run in runs:
        if run.value == case.wanted:
            continue
        says = (f"Every order is stated, but the result has checksum {shown(run.value)} instead of "
                f"{shown(case.wanted)}. Is each layer read as it was written: from the same place, with the same "
                "shape, and before the next one is put there?")
        if run.value == "nan":
            says = ("The result holds memory that nothing has written. Is every layer copied, whole, to where it is "
                    "read?")
        elif isinstance(run.value, str):
            says = (f"That is {run.value}. Return the product with all layers, in float32 and on the GPU, and leave x "
                    "and host_weights as they were.")
        raise refuse(PUZZLE, TICKS, "correct", f"widths {case}, copy/compute {run.ratio:g}", says, run.trace)


def _judge_memory(case: Case, run: Run) -> None:
    if run.peak_bytes <= case.budget + SPARE_BYTES:
        return
    more = (run.peak_bytes - case.budget) / max(case.sizes)
    layer = max(case.shapes, key=lambda shape: shape[0] * shape[1])
    raise refuse(PUZZLE, TICKS, "memory", f"{run.peak_bytes >> 10} KiB at the peak, widths {case}",
                 f"Correct, but {run.peak_bytes >> 10} KiB instead of {case.budget >> 10}: {more:.1f} times the "
                 f"largest layer ({layer[0]} x {layer[1]}, {max(case.sizes) >> 10} KiB) more than two slots of its "
                 "size and two activations. A slot has as many elements as the largest layer, not the most rows times "
                 "the most columns; and memory that is taken per layer comes back only when the host sees that it is "
                 "free."
                 + (STAGED if _is_staged(run) else ""), run.trace)


STAGED = (" Here a copy also goes through a block of its own, because its target is not contiguous: slot[:rows, "
          ":columns] is not, slot[:rows * columns].view(rows, columns) is.")


def _is_staged(run: Run) -> bool:
    """Whether something on the device moves what has arrived to where it belongs."""
    spans = zip(run.trace.columns["name"], run.trace.columns["lane"], strict=True)
    return any(lane == "compute" and name.startswith("copy_") for name, lane in spans)


def _judge_work(case: Case, run: Run, goal: Run) -> None:
    if says := skipped_work(run, goal, uploaded(run, max(case.sizes)), sum(case.sizes)):
        raise refuse(PUZZLE, TICKS, "correct", f"not one copy and product per layer, widths {case}",
                     f"The numbers are right, but {says} Copy each layer and multiply by it: with real weights, a "
                     "product of all layers is neither exact nor the same model.", run.trace, goal)


def _judge_time(case: Case, run: Run, goal: Run) -> None:
    if busy := busy_host(run, goal):
        raise refuse(PUZZLE, TICKS, "time", f"the host does not only launch, widths {case}",
                     f"Correct, but {busy}{from_pageable(run)}", run.trace, goal)
    if run.done_us <= goal.done_us * SLACK + SLACK_US:
        return
    why = lost_time(run, len(case.sizes), SLOTS, case.sizes)
    raise refuse(PUZZLE, TICKS, "time", f"{run.done_us:.0f} µs, widths {case}, copy/compute {run.ratio:g}",
                 f"Correct, but {run.done_us:.0f} µs instead of {goal.done_us:.0f}. {why}", run.trace, goal)
