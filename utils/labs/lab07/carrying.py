"""Judge of ``CarryOver``: where a row's token comes from, and a selection on the device that may run twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..check import Answer, Refused, Unsolved, call
from ..device import one_thread
from ..lab06.data import Workload
from ..values import number, shown, text_of
from ..verdict import Verdict
from .calling import run_part
from .judge import FULL, MANY, USUAL, Judge
from .serving import SLOW_NS, STREAMS, Case, Served, given, lesson, ready, serve

if TYPE_CHECKING:
    from ...simgpu import Hazard

SKIPS = Workload(4, 16, ((3, 12, 0.0), (4, 9, 0.0), (2, 12, 0.0), (5, 8, 0.0), (6, 7, 3.0), (3, 9, 3.0)))
CHUNKS = Workload(4, 6, ((3, 12, 0.0), (20, 6, 0.0), (17, 5, 0.0), (4, 9, 0.0), (19, 4, 6.0)))
LONG = Workload(2, 3, ((2, 14, 0.0), (3, 12, 0.0), (4, 9, 0.0)))
EVERY = 3                 # every third time a request's turn comes, it is left out of a step
NONE = -1
LARGE = 151_643, 2**40 + 1      # tokens
TRIED = (                       # tokens, where NONE stands for the placeholder; sources; before; right; why
    ((NONE, NONE, 5, 0), (2, 0, NONE, NONE), (31, 32, 33, 34), (33, 31, 5, 0),
     "of each source the token of *that* row"),
    ((NONE, 7), (4, NONE), (11, 12, 13, 14, 0, 16), (0, 7),
     "the step before may have more rows, and 0 is a token"),
    ((LARGE[0], NONE, LARGE[1]), (NONE, 1, NONE), (1, 70_001, 300, 0), (LARGE[0], 70_001, LARGE[1]),
     "a token may be any number from 0 on"),
    ((3, 4), (NONE, NONE), (8, 9, 10), (3, 4), "nothing is carried over"),
)
PREEMPTED = (8, 9, 22, 30, 31)   # before these steps a request has to make room


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
             Case(LONG, also="preempted"), Case(FULL, adversarial=True))

    def serve(self, answer: Answer, case: Case) -> Served:
        asked: list[Asked] = []
        parts: list[Any] = []

        def change(requests: list[Any]) -> None:
            for request in requests:
                request.name = "user" if "name" in case.also else request.name
                request.prompt[1::3] = [0] * len(request.prompt[1::3]) if "0" in case.also else request.prompt[1::3]

        def pipeline(model: Any, rows: int) -> Any:
            parts.append(call(self.puzzle, answer, on=str(case)))
            return _pipeline(self, parts[0], model, rows)
        run = serve(case, pipeline,
                    lambda slots, budget: _scheduler(self, parts, asked, slots, budget, case), change=change)
        placeholders = [one.given[0] for one in asked if one.given[1] >= 0]
        self.placeholder = (placeholders or [NONE])[0]
        run.facts = next((one for one in asked if one.why), None), self.placeholder
        return run

    def race_words(self, run: Served, hazard: Hazard) -> str:
        used = {hazard.first.stream, hazard.second.stream}
        if used - {*STREAMS, "host"}:
            return "carry runs in the stream that computes, which is current: leave it so."
        if "outputs" in hazard.buffer:
            return ("`before` holds the last step's tokens, which are being copied to the host, in another stream, "
                    "while carry runs: only read it.")
        return ""

    def run(self, answer: Answer) -> Verdict:
        verdict = super().run(answer)
        if says := _tried(self, answer, self.placeholder):
            raise self.refuse("correct", "carry on a small case", says)
        verdict.tried += "; carry alone, with tokens up to 2**40"
        return verdict

    def wrong_words(self, answer: Answer, run: Served) -> str:
        one, placeholder = run.facts
        if one:
            return (f"Step {one.step}: for {one.name} row gives token {one.given[0]}, source {one.given[1]}. {one.why} "
                    f"Right: token {one.right[0]}, source {one.right[1]}. The newest step has: {one.newest}.")
        return _tried(self, answer, placeholder) or (
            "Is a token of its own, such as 0, taken for the placeholder? Every number from 0 on may be a token, and 0 "
            "is one here, EOS, also in prompts.")

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
            found = run_part(judge.puzzle, _part(judge, given_by, "carry"), tokens, sources, before,
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


def _scheduler(judge: Carrying, given_by: list[Any], asked: list[Asked], slots: int, budget: int, case: Case) -> Any:
    """The lesson's scheduler, in which the learner's ``row`` makes each request's first row of a step."""
    base = lesson().AsyncBatching

    class Asking(base):
        turn = steps = made = 0

        def step(self, at_ms: float) -> list[Any]:
            if "preempted" in case.also and self.steps in PREEMPTED[self.made:] and self.running:
                self.made += 1
                self.preempt(self.running[self.made % len(self.running)])
            rows = super().step(at_ms)
            self.steps += bool(rows)
            return rows

        def left(self, request: Any, coming: bool) -> int:
            left = super().left(request, coming)
            decodes = request.done >= len(request.prompt)
            self.turn += decodes
            return 0 if "left out" in case.also and decodes and self.turn % EVERY == 0 else left

        def rows(self, request: Any, chunk: int, last: bool, source: int) -> list[Any]:
            found = _row(judge, given_by[0], list(self.newest), request) if chunk else None
            rows = super().rows(request, chunk, last, source)
            if rows:
                right = (rows[0].token, rows[0].source)
                rows[0].token, rows[0].source = found
                why = _why(found, right, self.newest, request)
                asked.append(Asked(self.steps, request.name, found, right, _words(self.newest), why))
            return rows
    return Asking(slots, budget)


def _row(judge: Carrying, given_by: Any, newest: list[Any], request: Any) -> tuple[int, int]:
    state = _state(newest, request)
    found = call(judge.puzzle, _part(judge, given_by, "row"), newest, request, on="row(newest, request)")
    if changed := [name for name, was, now in zip(SEEN, state, _state(newest, request), strict=True) if was != now]:
        what = " and ".join(changed)
        raise judge.refuse("correct", f"row changes {what}", f"row changes {what}. It is only asked where a token "
                           "comes from: the scheduler counts for itself.")
    try:
        token, source = (number(one.item() if hasattr(one, "item") else one) for one in found)
    except (TypeError, ValueError):
        token = source = None
    if token is None or source is None or token % 1 or source % 1:
        raise judge.refuse("correct", f"row returned {shown(found)}", "Return two whole numbers: token, source.")
    return int(token), int(source)


SEEN = ("the list newest", "rows of it", "the request")


def _state(newest: list[Any], request: Any) -> tuple[Any, ...]:
    """All that row can see and has to leave as it is."""
    return (list(map(id, newest)), [(id(row.request), row.last, row.token, row.slot, row.position) for row in newest],
            (request.done, request.limit, request.slot, list(request.prompt), list(request.tokens)))


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
    """What the learner's carry makes of small cases, once, and again on its own result; "" where that is right."""
    from ... import simgpu

    with one_thread(), simgpu.session(simgpu.H200):
        try:
            carry = answer().carry
            says = (_tried_once(judge, carry, [placeholder if one == NONE else one for one in tokens], *rest)
                    for tokens, *rest in TRIED)
            return next(filter(None, says), "")
        except (Refused, Unsolved, RuntimeError, IndexError, AttributeError) as error:
            return f"carry on a small case: {text_of(error)}"


def _tried_once(judge: Carrying, carry: Any, tokens: list[int], sources: tuple[int, ...], before: tuple[int, ...],
                right: tuple[int, ...], why: str) -> str:
    import torch

    buffers = [torch.tensor(one).to("cuda") for one in (tokens, sources, before)]
    on = f"carry({tokens}, {list(sources)}, {list(before)})"
    times = []
    for _ in range(3):
        try:
            found = call(judge.puzzle, carry, *buffers, on="carry").to(torch.int64)
        except Refused as refused:
            return f"{on}: {refused.verdict.says or refused.verdict.ticks[0].why}"
        buffers[0] = torch.tensor(found.tolist()).to("cuda")
        times.append(found.tolist())
        kept = [one.tolist() for one in buffers[1:]]
        if times[0] == list(right) and kept[1] != list(before):
            return f"{on} changes before into {kept[1]}: only read it."
        if times[0] == list(right) and kept[0] != list(sources):
            return (f"{on} changes sources into {kept[0]}. The loop runs carry twice on the same buffers, as the "
                    "warm-up of a CUDA graph does.")
    if times[0] != list(right):
        return f"{on} gives {times[0]}, and not {list(right)}: {why}."
    if later := [found for found in times if found != list(right)]:
        return (f"{on} gives {times[0]}, which is right, and on its own result {later[0]}. The loop runs carry twice "
                "on the same buffers, as the warm-up of a CUDA graph does: select, do not add.")
    return ""


def judge_CarryOver(answer: Answer) -> Verdict:
    """Right tokens with rows that move, join, leave and are left out; no race; no wait of the host."""
    return Carrying().run(answer)
