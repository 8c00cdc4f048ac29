"""Judge of ``carry_over``: token ids that come out the same however often it runs, and when a graph is replayed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ..check import Answer, Refused
from ..values import text_of
from ..verdict import Picture, Verdict
from .judge import CAPTURE_HINT, CAPTURING, Judge, Ran, Wrong, ended, h200

if TYPE_CHECKING:
    from ...simgpu import Hazard, Profile
    from ...simgpu.device import SimDevice

PUZZLE = "carry_over"
NONE = -1
READ = ("tokens", "sources", "before")
READER = "reader"
LARGE = 2**40 + 1            # a token that float32 cannot hold, nor float64 times itself


class Step(NamedTuple):
    """The rows of a step: what the host knows, where the rest comes from, and what the step before gave."""

    tokens: tuple[int, ...]
    sources: tuple[int, ...]
    before: tuple[int, ...]

    @property
    def ids(self) -> list[int]:
        """What is right."""
        return [token if source == NONE else self.before[source]
                for token, source in zip(self.tokens, self.sources, strict=True)]


STEPS = (
    Step((NONE, NONE, 5, 0, 9), (2, 0, NONE, NONE, NONE), (31, 32, 33, 34, 35)),
    Step((NONE, NONE, NONE, NONE, NONE), (4, 3, 2, 1, 0), (41, 0, 43, 44, 0)),
    Step((7, 0, 3, 0, 0), (NONE,) * 5, (51, 52, 53, 54, 55)),
    Step((NONE, 8, NONE, 6, NONE), (0, NONE, 1, NONE, 4), (LARGE, 62, 63, 64, 65)),
    Step((2, NONE, NONE, 1, NONE), (NONE, 0, 0, NONE, 3), (71, 72, 73, 74, 75)),
)
SINGLE = (Step((NONE,), (0,), (11,)), Step((4,), (NONE,), (12,)), Step((NONE,), (0,), (13,)))


@dataclass(frozen=True)
class Case:
    """A sequence of steps on the same buffers; ``replays``: of each step."""

    steps: tuple[Step, ...]
    replays: int = 1
    side: bool = False
    adversarial: bool = False

    def __str__(self) -> str:
        parts = [f"{len(self.steps)} steps of {len(self.steps[0].tokens)} row{'s' * (len(self.steps[0].tokens) > 1)}",
                 f"each replayed {self.replays} time{'s' * (self.replays > 1)}"]
        return ", ".join(parts + ["another stream current"] * self.side
                         + ["a reader on a stream of its own", "adversarial timing"] * self.adversarial)

    @property
    def profile(self) -> Profile:
        """An H200."""
        return h200()


class Buffers:
    """The four tensors on the GPU; what is given to them is kept, for comparison."""

    def __init__(self, rows: int) -> None:
        import torch

        from ... import simgpu

        self.all = {name: simgpu.name(torch.full((rows,), -9, device="cuda"), name)
                    for name in ("tokens", "sources", "before", "ids")}
        self.memory = {name: tensor.view(-1) for name, tensor in self.all.items()}   # whatever becomes of the tensors
        self.given: dict[str, list[int]] = {}

    def put(self, **parts: tuple[int, ...]) -> None:
        """New values, on the current stream."""
        import torch

        for name, values in parts.items():
            self.given[name] = list(values)
            self.memory[name].copy_(torch.tensor(values))

    def wrong(self, when: str) -> Wrong | None:
        """What is not as it should be, in words."""
        seen = {name: tensor.tolist() for name, tensor in self.memory.items()}
        changed = next((name for name, values in self.given.items() if seen[name] != values), "")
        step = Step(*(tuple(self.given[name]) for name in ("tokens", "sources", "before")))
        if changed:
            return Wrong(f"{changed} changed", f"{when}, {changed} is {seen[changed]}, and was {self.given[changed]}. "
                                               "A second run starts from that: read tokens, sources and before only.")
        if seen["ids"] == step.ids:
            return None
        given = ", ".join(f"{name} {self.given[name]}" for name in ("tokens", "sources", "before"))
        return Wrong("wrong ids", f"{when}, ids is {seen['ids']}, not {step.ids}: {given}. {_why(seen['ids'], step)}")


@contextmanager
def read_beside(buffers: Buffers, there: bool) -> Iterator[None]:
    """The slots of the pipeline, on a stream of their own: they read what is only read."""
    import torch

    from ... import simgpu

    reader, here = simgpu.name(torch.cuda.Stream(), READER), torch.cuda.current_stream()
    if there:
        reader.wait_stream(here)
        with torch.cuda.stream(reader):
            for name in READ:
                buffers.memory[name].clone()
    yield
    if there:
        here.wait_stream(reader)


class Again(Judge):
    puzzle = PUZZLE
    ticks = ("correct", "race-free", "captured", "again")
    whys = ("every id, in each step", "every order is stated", "no wait, no shape that depends on values",
            "run once, twice or three times")
    cases = (Case(STEPS), Case(STEPS, replays=2, side=True), Case(SINGLE, replays=3),
             Case(STEPS[::-1], replays=2, side=True, adversarial=True))

    def play(self, answer: Answer, case: Case, gpu: SimDevice) -> Ran:
        import torch

        from ... import simgpu

        torch.cuda.synchronize()
        begin = simgpu.clock()
        for n, step in enumerate(case.steps):
            if wrong := self._once(answer, step, n, case.adversarial):
                return ended(gpu, case, begin, wrong)
        wrong = None if gpu.hazards else self._replayed(answer, case)
        found = ended(gpu, case, begin, None)
        found.facts["again"] = wrong
        if wrong and not found.hazards:
            raise self.refuse("again", wrong.why, f"{wrong.says}\nRun once, without a graph, it was right.", found)
        return found

    def _once(self, answer: Answer, step: Step, number: int, adversarial: bool) -> Wrong | None:
        """A run without a graph, on buffers of its own."""
        buffers = Buffers(len(step.tokens))
        buffers.put(**step._asdict())
        with read_beside(buffers, adversarial):
            self.called(answer, *buffers.all.values(), on="tokens, sources, before and ids", empty=True)
        return buffers.wrong(f"After one run, step {number}")

    def _replayed(self, answer: Answer, case: Case) -> Wrong | None:
        """A warm-up while before still has old tokens, a capture, and replays with new contents."""
        import torch

        buffers = Buffers(len(case.steps[0].tokens))
        run = partial(self.called, answer, *buffers.all.values(), empty=True)
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        for n, step in enumerate(case.steps):
            buffers.put(tokens=step.tokens, sources=step.sources)
            if not n:
                run(on="a warm-up")
                torch.cuda.synchronize()
                self._capture(graph, stream, run)
            buffers.put(before=step.before)
            for turn in range(case.replays):
                graph.replay()
                when = f"After replay {turn + 1} in step {n}" + ", behind the warm-up" * (not n)
                if wrong := buffers.wrong(when):
                    return wrong
        return None

    def _capture(self, graph: Any, stream: Any, run: Any) -> None:
        import torch

        try:
            with torch.cuda.graph(graph, stream=stream):
                run(on="a capture")
                kept = simgpu_nodes()
        except RuntimeError as error:
            raise self.refuse("captured", "it cannot be captured",
                              f"The capture failed at its end: {text_of(error)}") from None
        if not kept:
            raise self.refuse("captured", "nothing was captured",
                              "The function launched nothing on the captured stream, which is the current one in the "
                              "call: a replay of this graph does nothing.")

    def _played(self, answer: Answer, case: Any) -> Ran:
        try:
            return super()._played(answer, case)
        except Refused as refused:
            if CAPTURING in refused.verdict.says:
                says = refused.verdict.says.replace(CAPTURE_HINT, WAITS)
                raise self.refuse("captured", "it cannot be captured", says) from None
            raise

    def race_words(self, run: Ran, hazard: Hazard) -> str:
        if hazard.buffer not in ("tokens", "sources", "before", "ids"):
            return ""
        if READER in str(hazard):
            return ("tokens, sources and before are only read: others read them at the same time. So never write into "
                    "them, not even for a while.")
        return ("The caller writes the four tensors, and reads ids, on the current stream. Launch there, or wait for "
                "it, and let it wait.")

    def picture(self, run: Ran, goal: Ran | None = None) -> Picture | None:
        """Only of a race: the times say nothing here."""
        return super().picture(run, goal) if run.hazards else None

    def judge_cost(self, run: Ran, goal: Ran) -> None:
        """Launches are few, and nothing is counted."""


WAITS = ("The host would have to wait for a value: to read one (.item(), int(), `if`, a loop over a tensor), or to "
         "learn how many there are, as x[mask] and nonzero do; nor can it ask a stream. A select works on all rows: "
         "torch.where.")


def simgpu_nodes() -> int:
    """How many operations the capture in progress has."""
    from ... import simgpu

    return len(simgpu.active().graphs.nodes)


def _why(seen: list[int], step: Step) -> str:
    pairs = list(zip(step.tokens, step.sources, step.ids, seen, strict=True))
    carried = [(right, one) for _, source, right, one in pairs if source != NONE]
    kept = [(right, one) for _, source, right, one in pairs if source == NONE]
    if any(one == NONE for _, one in carried):
        return "A placeholder is left."
    rows = [before if source != NONE else token for before, token, source in
            zip(step.before, step.tokens, step.sources, strict=True)]
    if seen == rows:
        return "That takes the same row of the step before: a request may have had another one. Its row is in sources."
    if any(right != one for right, one in kept) and all(right == one for right, one in carried):
        return "Where the source is -1 the token stays what it is; only those rows are wrong."
    if LARGE - 1 in seen:
        return "Token ids are whole numbers, int64: a float holds not every one of them."
    if all(one in (right + NONE, right + 1, 2 * right, right - 2) for right, one in (*carried, *kept)
           if one != right):
        return "That is what adding gives; a second run adds again. Select."
    return "A row with a source gets before[source]; all others keep their token."


def judge_carry_over(answer: Answer) -> Verdict:
    """The same ids, however often it runs."""
    return Again().run(answer)
