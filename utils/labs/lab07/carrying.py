"""Judge of ``CarryOver``: where a row's token comes from, and a selection on the device that may run twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..check import Answer, Refused, Unsolved, call
from ..lab06.data import Workload
from ..values import number, shown, text_of
from ..verdict import Verdict
from .judge import FULL, MANY, USUAL, Judge
from .serving import SLOW_NS, Case, Served, given, lesson, ready, serve

if TYPE_CHECKING:
    from ...simgpu import Hazard

SKIPS = Workload(4, 16, ((3, 12, 0.0), (4, 9, 0.0), (2, 12, 0.0), (5, 8, 0.0), (6, 7, 3.0), (3, 9, 3.0)))
CHUNKS = Workload(4, 6, ((3, 12, 0.0), (20, 6, 0.0), (17, 5, 0.0), (4, 9, 0.0), (19, 4, 6.0)))
EVERY = 3                 # every third time a request's turn comes, it is left out of a step
NONE = -1
TRIED = ((NONE, NONE, 5, 0), (2, 0, NONE, NONE), (31, 32, 33, 34), (33, 31, 5, 0))   # tokens, sources, before, right


class Asked(NamedTuple):
    """What the learner gave for a row, and what is right: tokens and sources."""

    step: int
    name: str
    given: tuple[int, int]
    right: tuple[int, int]
    newest: str
    why: str


class Carrying(Judge):
    puzzle = "CarryOver"
    whys = ("every token is the expected one, run once or twice", "before is only read", "no wait of the host")
    slack = 1.1                # a few more small kernels are none of the puzzle
    cases = (Case(USUAL), Case(CHUNKS, also="tokens 0 in prompts"), Case(SKIPS, also="requests left out of steps"),
             Case(MANY, host_us=300, also="all of one name"), Case(USUAL, copy_ns=SLOW_NS),
             Case(FULL, adversarial=True))

    def serve(self, answer: Answer, case: Case) -> Served:
        asked: list[Asked] = []
        parts = call(self.puzzle, answer, on=str(case))

        def change(requests: list[Any]) -> None:
            for request in requests:
                request.name = "user" if "name" in case.also else request.name
                request.prompt[1::3] = [0] * len(request.prompt[1::3]) if "0" in case.also else request.prompt[1::3]
        run = serve(case, lambda model, rows: _pipeline(self, parts, model, rows),
                    lambda slots, budget: _scheduler(self, parts, asked, slots, budget, case), change=change)
        placeholders = [one.given[0] for one in asked if one.given[1] >= 0]
        run.facts = next((one for one in asked if one.why), None), (placeholders or [NONE])[0]
        return run

    def race_words(self, run: Served, hazard: Hazard) -> str:
        if "outputs" in hazard.buffer:
            return ("`before` holds the last step's tokens, which are being copied to the host, in another stream, "
                    "while carry runs: only read it.")
        return ""

    def wrong_words(self, answer: Answer, run: Served) -> str:
        one, placeholder = run.facts
        if one:
            return (f"Step {one.step}: for {one.name} row gives token {one.given[0]}, source {one.given[1]}. {one.why} "
                    f"Right: token {one.right[0]}, source {one.right[1]}. The newest step has: {one.newest}.")
        return _tried(self, answer, placeholder)

    def slow_words(self, run: Served, goal: Served) -> str:
        if run.waits > goal.waits:
            return (f"The host waits {run.waits - goal.waits} times more than the loop itself does. .item(), "
                    ".tolist(), `if` on a tensor, and an index that is a mask (its length has to be known) wait for "
                    "the device: the selection has to stay there. torch.where does.")
        return "carry makes more kernels than needed: where, an index and a clamp are enough."


def _part(judge: Carrying, given_by: Any, name: str) -> Any:
    if not callable(getattr(given_by, name, None)):
        raise judge.refuse("correct", f"there is no {name}", f"Write {name}(self, ...), too.")
    return getattr(given_by, name)


def _pipeline(judge: Carrying, given_by: Any, model: Any, rows: int) -> Any:
    """The lesson's pipeline, in which the learner's carry runs twice on the same buffer."""
    import torch

    made = ready(lesson().Streams(model, rows))

    def twice(tokens: Any, sources: Any, before: Any) -> Any:
        for _ in range(2):
            found = call(judge.puzzle, _part(judge, given_by, "carry"), tokens, sources, before,
                         on="carry(tokens, sources, before)")
            if not isinstance(found, torch.Tensor) or not found.is_cuda or found.shape != tokens.shape or \
                    found.is_floating_point():
                raise judge.refuse("correct", f"carry returned {given(found)}"[:70], f"carry returned {given(found)}. "
                                   f"Return the tokens, int64 on the GPU, of shape {tuple(tokens.shape)}.")
            if found is not tokens:
                tokens.copy_(found)
        return tokens
    made.carry = twice
    return made


def _scheduler(judge: Carrying, given_by: Any, asked: list[Asked], slots: int, budget: int, case: Case) -> Any:
    """The lesson's scheduler, in which the learner's ``row`` makes each request's first row of a step."""
    base = lesson().AsyncBatching

    class Asking(base):
        turn = steps = 0

        def step(self, at_ms: float) -> list[Any]:
            rows = super().step(at_ms)
            self.steps += bool(rows)
            return rows

        def left(self, request: Any, coming: bool) -> int:
            left = super().left(request, coming)
            decodes = request.done >= len(request.prompt)
            self.turn += decodes
            return 0 if "left out" in case.also and decodes and self.turn % EVERY == 0 else left

        def rows(self, request: Any, chunk: int, last: bool, source: int) -> list[Any]:
            found = _row(judge, given_by, list(self.newest), request) if chunk else None
            rows = super().rows(request, chunk, last, source)
            if rows:
                right = (rows[0].token, rows[0].source)
                rows[0].token, rows[0].source = found
                why = _why(found, right, self.newest, request)
                asked.append(Asked(self.steps, request.name, found, right, _words(self.newest), why))
            return rows
    return Asking(slots, budget)


def _row(judge: Carrying, given_by: Any, newest: list[Any], request: Any) -> tuple[int, int]:
    found = call(judge.puzzle, _part(judge, given_by, "row"), newest, request, on="row(newest, request)")
    try:
        token, source = (number(one) for one in found)
    except (TypeError, ValueError):
        token = source = None
    if token is None or source is None:
        raise judge.refuse("correct", f"row returned {shown(found)}", "Return two whole numbers: token, source.")
    return int(token), int(source)


def _why(mine: tuple[int, int], right: tuple[int, int], newest: list[Any], request: Any) -> str:
    """What is wrong with a row's token and source, "" where nothing is that a right carry would not put right."""
    source = mine[1]
    if (source if source >= 0 else NONE) == right[1] and (right[1] >= 0 or mine[0] == right[0]):
        return ""
    own = [row for n, row in enumerate(newest) if n == source and row.request is request]
    if right[1] < 0 <= source and own and not own[0].last:
        return PART
    if right[1] < 0 <= source:
        return ("Its token is known: the newest step gives it none, and nothing is carried over." +
                " It is not in that step." * all(row.request is not request for row in newest) +
                f" Row {source} there is another request's." * (not own and source < len(newest)))
    if source >= 0:
        return PART if own else "That row of the newest step is another request's. Rows move when requests come and go."
    if right[1] >= 0:
        return "The newest step gives its token, which the host does not know yet."
    return "Its token is known, and it is another one."


PART = "That row is not its last one: what follows a part of the prompt is no token of the answer."


def _words(newest: list[Any]) -> str:
    rows = [f"{n} {row.request.name}{' (last)' * row.last}" for n, row in enumerate(newest)]
    return ", ".join(rows[:10]) + ", ..." * (len(rows) > 10) if rows else "nothing"


def _tried(judge: Carrying, answer: Answer, placeholder: int) -> str:
    """What the learner's carry makes of a small case, once and again."""
    import torch

    from ... import simgpu

    tokens, sources, before, right = (list(one) for one in TRIED)
    tokens[:2] = [placeholder] * 2
    with simgpu.session(simgpu.H200):
        try:
            carry = answer().carry
            on = [torch.tensor(one).to("cuda") for one in (tokens, sources, before)]
            once = call(judge.puzzle, carry, *on, on="carry").tolist()
            kept = [one.tolist() for one in on[1:]]
            again = call(judge.puzzle, carry, torch.tensor(once).to("cuda"), *on[1:], on="carry").tolist()
        except (Refused, Unsolved, RuntimeError, AttributeError) as error:
            return f"carry on a small case: {text_of(error)}"
    asked = f"carry({tokens}, {sources}, {before})"
    if once != right:
        return f"{asked} gives {once}, and not {right}: of each source the token of *that* row."
    if kept[1] != before:
        return f"{asked} changes before into {kept[1]}: only read it."
    if kept[0] != sources:
        return (f"{asked} changes sources into {kept[0]}. The loop runs carry twice on the same buffers, as the "
                "warm-up of a CUDA graph does.")
    if again != right:
        return (f"{asked} gives {once}, which is right, and on its own result {again}. The loop runs carry twice on "
                "the same buffers, as the warm-up of a CUDA graph does: select, do not add.")
    return ("Is a token of its own, such as 0, taken for the placeholder? Every number from 0 on may be a token, and "
            "0 is one here, EOS, also in prompts.")


def judge_CarryOver(answer: Answer) -> Verdict:
    """Right tokens with rows that move, join, leave and are left out; no race; no wait of the host."""
    return Carrying().run(answer)
