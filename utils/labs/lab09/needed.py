"""Judge of ``as_many_as_needed``: micro-batches for a share of bubbles, and groups of requests for decode."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import networkx as nx

from ... import dag
from ...timeline import timeline
from ..check import Answer, Refused, call
from ..values import shown
from ..verdict import Picture, Tick, Verdict
from .reading import listing, pair, plain, whole

PUZZLE = "as_many_as_needed"
TICKS = ("batches", "groups")
SHAPE = "Return a pair of whole numbers: micro-batches, and groups."
DRAWN_STAGES, DRAWN_GROUPS, TOKENS = 4, 8, 3      # most that a picture shows; tokens of each group in it
EPSILON = 1e-12          # relative: rounding in a time


@dataclass(frozen=True)
class Pipeline:
    """So many stages; the share of bubbles that is allowed; ms of a stage in decode and of a transfer."""

    stages: int
    share: float
    stage_ms: float
    transfer_ms: float

    def __str__(self) -> str:
        return (f"{self.stages} stage{'s' * (self.stages > 1)}, bubbles at most {self.share:g}, {self.stage_ms:g} ms a "
                f"stage, {self.transfer_ms:g} ms a transfer")

    def bubbles(self, micro_batches: int) -> float:
        """The share in which stages rest."""
        return (self.stages - 1) / (micro_batches + self.stages - 1)

    @property
    def micro_batches(self) -> int:
        """The fewest within the share."""
        count = max(1, math.floor((self.stages - 1) * (1 - self.share) / self.share) - 1)
        while self.bubbles(count) > self.share:
            count += 1
        return count

    @property
    def round_ms(self) -> float:
        """From a group's start on stage 0 to the next one."""
        return self.stages * (self.stage_ms + self.transfer_ms)

    @property
    def groups(self) -> int:
        """The fewest that keep all stages busy."""
        return math.ceil(self.round_ms / self.stage_ms * (1 - EPSILON))


PIPELINES = (                                     # shares that are met exactly are powers of 1/2, exact as floats
    Pipeline(5, 0.25, 8, 0),
    Pipeline(4, 0.22, 7.5, 0.5),
    Pipeline(8, 0.125, 2, 0.5),
    Pipeline(2, 0.5, 3, 3),
    Pipeline(3, 0.75, 10, 1),
    Pipeline(6, 0.15, 20, 0.25),
    Pipeline(16, 0.0625, 4, 1),
    Pipeline(1, 0.25, 5, 0),
)


def judge_as_many_as_needed(answer: Answer) -> Verdict:
    """Both numbers exactly, also where the share or the round is met exactly."""
    for case in PIPELINES:
        arguments = case.stages, case.share, case.stage_ms, case.transfer_ms
        given = call(PUZZLE, listing(answer, 2), *arguments, on=str(case))
        two = pair(given)
        if two is None:
            raise _refused("batches", f"returned {shown(given)}", SHAPE)
        _judge_batches(two[0], case)
        _judge_groups(two[1], case)
    first = PIPELINES[1]
    whys = f"{first.micro_batches} and {first.groups} for the second", "all stages busy, and none too many"
    return Verdict(PUZZLE, [Tick(name, True, why) for name, why in zip(TICKS, whys, strict=True)],
                   tried="; ".join(map(str, PIPELINES)), picture=_picture(first, first.groups))


def _count(given: Any, tick: str, what: str, case: Pipeline) -> int:
    count, value = whole(given), plain(given)
    if value is None:
        raise _refused(tick, f"{shown(given)} {what}", SHAPE)
    if count is None:
        raise _refused(tick, f"{shown(given)} {what}", f"{case}.\nThere are whole ones only: round up.")
    if count < 1:
        raise _refused(tick, f"{shown(given)} {what}", f"{case}.\nThere is at least one.")
    return count


def _judge_batches(given: Any, case: Pipeline) -> None:
    count, right = _count(given, "batches", "micro-batches", case), case.micro_batches
    if count == right:
        return
    p, share = case.stages, case.share
    says = f"With {count} the bubbles are {case.bubbles(count):.4g} of the stages' time, and {share:g} are allowed."
    if count > right:
        says = f"{right} are enough: with them the bubbles are {case.bubbles(right):.4g}, and {share:g} are allowed."
    if count == math.ceil((p - 1) / share) and p > 1:
        says += (" (p - 1)/m compares the bubbles with the work alone. The share is of the whole time, work and "
                 "bubbles: (p - 1)/(m + p - 1).")
    elif count == right + 1 and math.isclose(case.bubbles(right), share):
        says += " *At most* a share: at exact equality it is met."
    elif count == right - 1:
        says += " Rounded down? One more is needed."
    elif count == math.ceil(p * (1 - share) / share) or count == math.ceil(p / share):
        says += " Of p stages p - 1 lie before the last."
    raise _refused("batches", f"{count} instead of {right}", f"{case}.\n{says}")


def _judge_groups(given: Any, case: Pipeline) -> None:
    count, right = _count(given, "groups", "groups", case), case.groups
    if count == right:
        return
    p, f, t = case.stages, case.stage_ms, case.transfer_ms
    says = (f"A group's way round takes {p} · ({f:g} + {t:g}) = {case.round_ms:g} ms, and a stage works {f:g} of them "
            f"for each group. ")
    if count < right:
        says += f"With {count} it works {count * f:g} and rests {case.round_ms - count * f:g} in every round."
        if count == p:
            says += " p groups are enough only where transfers take no time: the links have groups on them, too."
        elif count == math.ceil((p * f + (p - 1) * t) / f):
            says += " Is the transfer back to stage 0 counted?"
        elif count == math.ceil(p + t / f):
            says += " Is one transfer counted? There are p of them on the way round."
        elif count == right - 1:
            says += " Rounded down? One more is needed."
    else:
        says += f"{right} groups keep it busy for {right * f:g}: more only wait for each other."
        if count == right + 1 and math.isclose(right * f, case.round_ms):
            says += " At exact equality no stage rests."
        elif count == math.ceil(case.round_ms):
            says += " Divide by the time of a stage."
    raise _refused("groups", f"{count} instead of {right}", f"{case}.\n{says}", _picture(case, count))


def _picture(case: Pipeline, groups: int) -> Picture | None:
    """A few tokens of each group, beside as many groups as needed; None where that is too much to see."""
    if not 1 < case.stages <= DRAWN_STAGES or max(groups, case.groups) > DRAWN_GROUPS:
        return None
    runs = {f"{count} groups": _decode(case, count) for count in dict.fromkeys((groups, case.groups))}
    bounds = {f"{count} groups": TOKENS * count * case.stage_ms for count in (groups, case.groups)}
    return timeline(runs, critical=False, bound=bounds, bound_kind="steady",
                    title=f"{TOKENS} tokens for each group, the stages alone")


def _decode(case: Pipeline, groups: int) -> dag.Schedule:
    """The groups take turns; a transfer is a task of its own on a link, which is left out of the picture."""
    graph, p = nx.DiGraph(), case.stages
    for token in range(TOKENS):
        for group in range(groups):
            for stage in range(p):
                graph.add_node((token, group, stage), duration=case.stage_ms, resource=f"stage {stage}",
                               kind="forward", label=str(group))
                before = (token, group, stage - 1) if stage else (token - 1, group, p - 1)
                if before in graph and case.transfer_ms:
                    graph.add_node(("send", token, group, stage), duration=case.transfer_ms, kind="send",
                                   resource=f"to {stage}")
                    nx.add_path(graph, [before, ("send", token, group, stage), (token, group, stage)])
                elif before in graph:
                    graph.add_edge(before, (token, group, stage))
    names = sorted({resource for _, resource in graph.nodes(data="resource")})
    plan = dag.schedule(graph, dict.fromkeys(names, 1), fifo=True)
    runs = {task: run for task, run in plan.runs.items() if run.resource.startswith("stage")}
    return dag.Schedule(graph, runs, plan.makespan, {name: 1 for name in names if name.startswith("stage")})


def _refused(tick: str, why: str, says: str, picture: Picture | None = None) -> Refused:
    at = TICKS.index(tick)
    ticks = [Tick(name, True if place < at else False if place == at else None, why if place == at else "")
             for place, name in enumerate(TICKS)]
    return Refused(Verdict(PUZZLE, ticks, says=says, picture=picture))
