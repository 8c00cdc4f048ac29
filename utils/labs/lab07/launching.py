"""Judge of ``launch``: the edges of a step between three streams and the host, and no wait beside the loop's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..check import Answer
from ..verdict import Verdict
from .calling import run_part
from .judge import USUAL, Judge
from .serving import SLOW_NS, Case, Served, lesson, ready, serve

if TYPE_CHECKING:
    from ...simgpu import Hazard

FORWARDS, HOST = "computing", "host"


class Lanes(NamedTuple):
    """The three streams of a pipeline."""

    copying_in: Any
    computing: Any
    copying_out: Any


class Launch(Judge):
    puzzle = "launch"
    whys = ("every token is the expected one", "every order is stated", "one wait of the host in a step, the loop's",
            "one workspace, one stream that computes")
    cases = (*Judge.cases[:3], Case(USUAL, host_us=900, gpu_us=300, copy_ns=SLOW_NS), *Judge.cases[3:])

    def serve(self, answer: Answer, case: Case) -> Served:
        made: list[Any] = []

        def pipeline(model: Any, rows: int) -> Any:
            made.append(_pipeline(self, answer, model, rows, case))
            return made[0]
        run = serve(case, pipeline)
        run.facts = made[0].forwards
        return run

    def race_words(self, run: Served, hazard: Hazard) -> str:
        first, second = hazard.first.stream, hazard.second.stream
        if (first, second) == (OUT, FORWARDS) and hazard.first.layer == hazard.second.layer:
            return ORDER
        if (first, second) == (FORWARDS, IN) and hazard.first.layer == hazard.second.layer:
            return ORDER_IN
        says = EDGES.get((first, second)) or (STRANGE if {first, second} - {*Lanes._fields, HOST} else "")
        return says.format(first=first, second=second)

    def wrong_words(self, answer: Answer, run: Served) -> str:
        if run.facts < run.steps:
            return f"forward was called {run.facts} times in {run.steps} steps."
        return "What does each part of the step read, and where does it write?"

    def slow_words(self, run: Served, goal: Served) -> str:
        more = run.waits - goal.waits
        if any("not contiguous" in note.text for note in run.notes):
            return (f"The host waits {run.waits} times, {more} more than the loop does itself. A copy of some columns "
                    "does not lie in one piece, and is not asynchronous even with non_blocking=True: copy the whole.")
        if more > 0:
            return (f"The host waits {run.waits} times, {more} more than the loop does itself, and nothing is prepared "
                    "or launched meanwhile. Queue it all and return: between streams, wait_event lets a *stream* wait, "
                    "and the host goes on. The loop waits for copied_out when the next step is queued.")
        if asked := self.asked_words(run, goal):
            return asked
        copies, enough = (sum(kind in ("h2d", "d2h") for kind in one.trace.columns["kind"]) for one in (run, goal))
        if copies > enough:
            return (f"It makes {copies} copies where {enough} do, and each takes {run.case.copy_ns / 1000:g} µs here, "
                    "however short it is.")
        if run.facts > run.steps:
            return f"forward was called {run.facts} times in {run.steps} steps."
        return ("Which operation starts later than in the target? A wait for a whole stream, or copies and compute in "
                "one stream, make a step wait for what it does not need.")

    def memory_words(self, run: Served, goal: Served) -> tuple[str, str] | None:
        if run.workspaces <= goal.workspaces:
            return _taken(run, goal)
        size = run.case.profile.workspace_bytes // 2**20
        return (f"{run.workspaces} workspaces of {size} MiB",
                f"the products ran in {run.workspaces} streams, and the matrix library keeps a workspace of {size} MiB "
                f"for each: {run.workspaces * size} MiB in the place of {goal.workspaces * size}. Use the streams that "
                "are given; a stream is made once, not for each step.")


def _pipeline(judge: Launch, answer: Answer, model: Any, rows: int, case: Case) -> Any:
    """The lesson's pipeline, whose steps the learner's function queues."""
    class Queued(lesson().Streams):
        def __init__(self) -> None:
            super().__init__(model, rows)
            self.forwards = 0
            self.lanes = Lanes(*self.streams)

        def launch(self, rows: list[Any]) -> Any:
            before, slot = (self.slots[n % 2] for n in (self.steps - 1, self.steps))
            slot.fill(rows)
            self.given, self.odd = (slot, before, len(rows)), ""
            run_part(judge.puzzle, answer, *self.given, self.forward, self.lanes, on=f"step {self.steps}", empty=True)
            if self.odd:
                raise judge.refuse("correct", "forward got other arguments", f"Step {self.steps}: {self.odd}")
            self.steps += 1
            return slot

        def forward(self, slot: Any, before: Any, rows: int) -> None:
            """Kernels, on the current stream: what follows each row of slot.inputs, into slot.outputs."""
            self.forwards += 1
            self.odd = self.odd or _odd(self.given, (slot, before, rows))
            tokens, slots, positions, sources = slot.inputs[:, :rows]
            slot.outputs[:rows] = self.model(self.carry(tokens, sources, before.outputs), slots, positions)

    return ready(Queued())


def _odd(given: tuple[Any, Any, int], got: tuple[Any, Any, int]) -> str:
    """Which argument of forward is another one of launch's, in words."""
    for name, mine, other in (("slot", got[0], given[1]), ("before", got[1], given[0])):
        if mine is other:
            return (f"forward gets {'before' if name == 'slot' else 'slot'} as its `{name}`. It reads slot.inputs and "
                    "before.outputs, and writes slot.outputs: forward(slot, before, rows).")
    if got[2] != given[2]:
        return f"forward gets rows={got[2]}, and the step has {given[2]}: what lies behind these is of an older step."
    return ""


def _taken(run: Served, goal: Served) -> tuple[str, str] | None:
    """Memory beyond what the worked answer's run takes, for the tick and in words."""
    for where, mine, enough in (("device", run.device_bytes, goal.device_bytes),
                                ("pinned", run.pinned_bytes, goal.pinned_bytes)):
        if mine > enough:
            return (f"{mine - enough} bytes more of {where} memory",
                    f"launch takes {where} memory, {mine - enough} bytes beside the forward's own at most. None is "
                    "needed: copy into the slot's own buffers, slot.host_in to slot.inputs and slot.outputs to "
                    "slot.host_out, and keep nothing.")
    return None


IN, OUT = "copying_in", "copying_out"
EDGES = {
    (IN, FORWARDS): "The forward reads what the copy in brings: computing has to wait for it.",
    (FORWARDS, IN): "Is copied_out recorded behind everything of its step? The loop's wait for it is what makes a slot "
                    "free.",
    (FORWARDS, OUT): "The copy out reads what the forward writes: copying_out has to wait for it.",
    (OUT, FORWARDS): "Is copied_out recorded behind the copy out? The loop's wait for it is what makes a slot free.",
    (OUT, HOST): "The loop reads host_out when it has waited for slot.copied_out, which has to stand behind the copy "
                 "out, in each step.",
    (HOST, OUT): "The loop reads host_out when it has waited for slot.copied_out: record it in each step.",
    (IN, HOST): "The loop fills host_in again when it has waited for copied_out of two steps before: that has to stand "
                "behind the copy in, too.",
}
EDGES[HOST, IN] = EDGES[IN, HOST]
ORDER = ("Within a step the copy out comes behind the forward: queue the forward first, record computed behind it, and "
         "let copying_out wait for that.")
ORDER_IN = ("Within a step the forward comes behind the copy in: queue the copy first, record copied_in behind it, and "
            "let computing wait for that.")
STRANGE = ("{first} and {second}: operations go into the stream that is current. Is each of them inside `with "
           "torch.cuda.stream(...):` of the stream that is given for it? A step's forward is ordered after the last "
           "one's by nothing but their stream.")


def judge_launch(answer: Answer) -> Verdict:
    """Right tokens, no race, no wait more than the loop's, one workspace."""
    return Launch().run(answer)
