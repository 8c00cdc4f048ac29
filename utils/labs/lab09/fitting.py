"""Judge of ``what_fits``: bytes on each GPU at ZeRO's stages, and how many GPUs a budget asks for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..check import Answer, Refused, call
from ..lab06.data import Table
from ..values import shown
from ..verdict import Tick, Verdict
from .reading import listing, pair, plain, whole

PUZZLE = "what_fits"
TICKS = ("bytes", "GPUs")
WITHIN = 0.01            # relative, of the bytes
NEAR = 0.002             # relative: how closely a wrong formula is recognised
SHAPE = ("Return a pair: bytes on each of job.gpus GPUs, and the least number of GPUs for job.budget_bytes, or None in "
         "its place.")
PARTS = ("optimizer", "gradients", "weights")     # in the order in which the stages share them


@dataclass(frozen=True)
class Job:
    """A model on ``gpus`` GPUs at a ZeRO stage; the bytes of weights, gradients and optimizer are per parameter."""

    parameters: int
    stage: int
    training: bool
    gpus: int
    budget_bytes: int
    weight_bytes: int = 2
    gradient_bytes: int = 2
    optimizer_bytes: int = 12

    def __str__(self) -> str:
        each = (f"{self.weight_bytes} + {self.gradient_bytes} + {self.optimizer_bytes} bytes" if self.training else
                f"{self.weight_bytes} byte{'s' * (self.weight_bytes > 1)}")
        return (f"{'training' if self.training else 'inference'}, {self.parameters / 1e9:g}e9 parameters, {each} each, "
                f"stage {self.stage}, {self.gpus} GPU{'s' * (self.gpus > 1)}, budget {self.budget_bytes / 1e9:g} GB")

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes per parameter of every part that is stored."""
        optimizer, gradients = (self.optimizer_bytes, self.gradient_bytes) if self.training else (0, 0)
        return dict(zip(PARTS, (optimizer, gradients, self.weight_bytes), strict=True))

    def on_each(self, gpus: int) -> float:
        """Bytes on each of so many GPUs."""
        return stored(self, self.sizes, self.stage, gpus)

    @property
    def least(self) -> int | None:
        """The fewest GPUs within the budget; None where no number is enough."""
        shared, fixed = (self.parameters * sum(size for n, size in enumerate(self.sizes.values())
                                               if (n < self.stage) == there) for there in (True, False))
        room = self.budget_bytes - fixed
        if room < 0 or (room == 0 and shared):
            return None
        return max(1, -(-shared // room)) if shared else 1


def stored(job: Job, sizes: dict[str, int], stage: int, gpus: int, first: int = 1) -> float:
    """Bytes on each GPU where the parts from number ``first`` up to ``stage`` are shared out."""
    return job.parameters * sum(size / gpus if first <= n <= stage else size
                                for n, size in enumerate(sizes.values(), 1))


JOBS = (
    Job(7_500_000_000, 1, True, 64, 42_000_000_000),
    Job(7_500_000_000, 2, True, 64, 17_900_000_000),
    Job(7_500_000_000, 3, True, 64, 7_500_000_000),             # 16 exactly
    Job(7_500_000_000, 0, True, 8, 80_000_000_000),
    Job(1_300_000_000, 0, True, 4, 141_000_000_000),
    Job(13_000_000_000, 2, True, 32, 26_000_000_000),           # the weights alone fill it
    Job(13_000_000_000, 2, True, 16, 80_000_000_000, 2, 4, 12),
    Job(8_000_000_000, 1, True, 16, 48_000_000_000, 2, 2, 8),   # 4 exactly
    Job(13_000_000_000, 3, True, 1, 240_000_000_000, 2, 4, 12),  # one GPU is enough
    Job(70_000_000_000, 3, False, 4, 24_000_000_000),            # 6, more than there are
    Job(70_000_000_000, 2, False, 8, 80_000_000_000),
    Job(70_000_000_000, 1, False, 8, 140_000_000_000),           # the weights alone fill it, and nothing is shared
    Job(405_000_000_000, 3, False, 16, 65_000_000_000, 1),
)


def judge_what_fits(answer: Answer) -> Verdict:
    """The bytes within 1 %, the number of GPUs exactly."""
    for job in JOBS:
        given = call(PUZZLE, listing(answer, 2), job, on=str(job))
        first, second = pair(given) or (None, None)
        if plain(first) is None:
            raise _refused("bytes", f"returned {shown(given)}", SHAPE, job)
        _judge_bytes(float(plain(first)), job)
        _judge_gpus(second, job)
    why = f"within {WITHIN:.0%}, stages 0 to 3, training and inference", "no more and no fewer than needed"
    return Verdict(PUZZLE, [Tick(name, True, text) for name, text in zip(TICKS, why, strict=True)],
                   tried="; ".join(map(str, JOBS)), picture=_table(JOBS[0], (JOBS[0].gpus, JOBS[0].least)))


def _judge_bytes(nbytes: float, job: Job) -> None:
    right = job.on_each(job.gpus)
    if abs(nbytes - right) > WITHIN * right:
        raise _refused("bytes", f"{nbytes:.4g} instead of {right:.4g}",
                       f"{job}.\n{_explain_bytes(nbytes, job)}", job)


def _explain_bytes(nbytes: float, job: Job) -> str:
    """Which mistake gives this, in words."""
    sizes, stage, gpus = job.sizes, job.stage, job.gpus
    whole_model = job.parameters * sum(sizes.values())
    doubled = sizes | {"gradients": 4 if sizes["gradients"] == 2 else 2}
    trained = dict(zip(PARTS, (job.optimizer_bytes, job.gradient_bytes, job.weight_bytes), strict=True))
    backwards = dict(reversed(sizes.items()))
    guesses = [
        *([] if job.training else [(TRAINED, stored(job, trained, other, gpus)) for other in range(4)]),
        *([] if job.training else [("Inference stores no gradients.",
                                    stored(job, sizes | {"gradients": job.gradient_bytes}, stage, gpus))]),
        *((f"{STAGES} That is stage {n}.", stored(job, sizes, n, gpus)) for n in range(4) if n != stage),
        (FORGOTTEN, stored(job, sizes | {"optimizer": 0}, stage, gpus)),
        (f"A gradient takes {sizes['gradients']} bytes here, and not {doubled['gradients']}.",
         stored(job, doubled, stage, gpus) if job.training else 0),
        *_usual(job),
        (BACKWARDS, stored(job, backwards, stage, gpus)),
        ("At stage n only the n-th part would be shared then. The earlier ones are, too.",
         stored(job, sizes, stage, gpus, first=stage)),
        ("Those are the bytes of all GPUs together: give those of one.", job.on_each(gpus) * gpus),
        ("Gradients are missing. They are stored, too.", stored(job, sizes | {"gradients": 0}, stage, gpus)),
        ("The weights are missing.", stored(job, sizes | {"weights": 0}, stage, gpus)),
        ("That is all of it divided by the GPUs. A stage shares some of the parts.", whole_model / gpus),
        ("That is in GB: give bytes.", job.on_each(gpus) / 1e9),
        ("That is in GiB: give bytes.", job.on_each(gpus) / 2**30),
        ("Those are the bytes of one parameter.", job.on_each(gpus) / job.parameters),
    ]
    near = [says for says, wrong in guesses if wrong and abs(nbytes - wrong) <= NEAR * wrong]
    return near[0] if near else f"{STAGES} What is not shared is on every GPU in full."


def _usual(job: Job) -> list[tuple[str, float]]:
    """A size that is another one here."""
    sizes = job.sizes
    return [(f"The {name} take{'s' * (name == 'optimizer')} {sizes[name]} byte{'s' * (sizes[name] > 1)} for each "
             f"parameter here, and not {size}.", stored(job, sizes | {name: size}, job.stage, job.gpus))
            for name, size in zip(PARTS, (12, 2, 2), strict=True) if sizes[name] not in (0, size)]


STAGES = "Stage 1 shares out the optimizer's part, stage 2 the gradients as well, and stage 3 also the weights."
FORGOTTEN = "The optimizer's part is missing, the largest of all: it is stored in training."
TRAINED = "That is training. Inference stores weights only: no gradients, and no optimizer."
BACKWARDS = "That shares the weights first. " + STAGES


def _judge_gpus(given: Any, job: Job) -> None:
    right, gpus = job.least, whole(given)
    if gpus == right and (gpus is not None or given is None):
        return
    if given is not None and (gpus is None or gpus < 1):
        value, what = plain(given), f"{shown(given)} GPUs"
        if value is not None and value > 0:
            raise _refused("GPUs", what, f"{job}.\nThere are whole GPUs only: which whole number is enough?", job)
        raise _refused("GPUs", what, f"{job}.\nGive a whole number, at least 1, or None. {_why(job)}", job)
    why = f"{'None' if gpus is None else gpus} instead of {right}"
    says = f"{job}.\n{_explain_gpus(gpus, job)} {_why(job)}"
    raise _refused("GPUs", why, says, job, tuple(n for n in (gpus, right) if n))


def _why(job: Job) -> str:
    """The proof of the right number."""
    budget = f"{job.budget_bytes / 1e9:g} GB"
    if job.least is None:
        fixed = job.on_each(10**12)
        full = "which leaves no room for a share of the rest" if round(fixed) == job.budget_bytes else f"over {budget}"
        return (f"What stage {job.stage} does not share takes {fixed / 1e9:.5g} GB on every GPU, {full}: no number of "
                "GPUs is enough, None.")
    fewer = f"; with {job.least - 1} it would be {job.on_each(job.least - 1) / 1e9:.5g}" if job.least > 1 else ""
    return f"With {job.least} each stores {job.on_each(job.least) / 1e9:.5g} GB, at most {budget}{fewer}."


def _explain_gpus(gpus: int | None, job: Job) -> str:
    """Which mistake gives this number, in words."""
    right = job.least
    if gpus is None:
        filled = right is not None and job.on_each(right) == job.budget_bytes
        more = (" It fills the budget, and that is allowed." if filled else
                f" It may be more than the {job.gpus} of job.gpus." if right and right > job.gpus else "")
        return f"It does fit: None is for budgets that no number of GPUs meets.{more}"
    total = job.parameters * sum(job.sizes.values())
    if right is None or gpus < right:
        over = f"With {gpus} GPU{'s' * (gpus > 1)} each would store {job.on_each(gpus) / 1e9:.5g} GB."
        if gpus == math.ceil(total / job.budget_bytes) and job.stage < 3:
            return f"That divides all of it by the budget, but not all of it is shared. {over}"
        if right is not None and gpus == right - 1:
            return "Rounded down? Part of a GPU more means a whole one more."
        return over
    if gpus == right + 1 and job.on_each(right) == job.budget_bytes:
        return f"One too many: {right} fill the budget exactly, and that is enough."
    return f"{right} {'is' if right == 1 else 'are'} enough."


def _table(job: Job, counts: tuple[int | None, ...]) -> Table:
    """What is stored on each of so many GPUs."""
    lines = ["GB on each GPU" + "".join(f"{name:>12}" for name in (*PARTS, "together", "budget"))]
    for gpus in sorted({n for n in counts if n}):
        parts = [job.parameters * size / (gpus if n < job.stage else 1) / 1e9
                 for n, size in enumerate(job.sizes.values())]
        lines.append(f"{gpus:>7} GPU{'s' if gpus > 1 else ' '}   "
                     + "".join(f"{size:12.2f}" for size in (*parts, sum(parts), job.budget_bytes / 1e9)))
    return Table("\n".join(lines))


def _refused(tick: str, why: str, says: str, job: Job, counts: tuple[int | None, ...] = ()) -> Refused:
    at = TICKS.index(tick)
    ticks = [Tick(name, True if place < at else False if place == at else None, why if place == at else "")
             for place, name in enumerate(TICKS)]
    return Refused(Verdict(PUZZLE, ticks, says=says, picture=_table(job, counts or (job.gpus,))))
