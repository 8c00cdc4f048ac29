"""Judge of ``wall_ms``: how long a run of the asynchronous loop takes, from what host and GPU do in each step."""

from __future__ import annotations

import random
from typing import NamedTuple

import networkx as nx

from ... import dag
from ...timeline import timeline
from ..check import Answer, Refused, call
from ..values import number, shown
from ..verdict import Picture, Tick, Verdict

PUZZLE = "wall_ms"
WITHIN = 0.01        # relative
ENGINES = {"host": 1, "compute": 1}
MOST = 8             # steps in a picture


class Case(NamedTuple):
    """Steps: the host's and the GPU's part of each, in ms."""

    on: str
    host: tuple[float, ...]
    gpu: tuple[float, ...]


def _random(seed: int, count: int) -> Case:
    rng = random.Random(seed)
    draw = [tuple(round(rng.uniform(0.2, 9), 1) for _ in range(count)) for _ in range(2)]
    return Case(f"{count} steps at random", *draw)


CASES = (
    Case("the GPU takes longer", (3.0,) * 6, (5.0,) * 6),
    Case("the host takes longer", (5.0,) * 6, (3.0,) * 6),
    Case("a long prompt in the middle", (1.0, 1.0, 4.0, 1.0, 1.0), (2.0, 2.0, 9.0, 2.0, 2.0)),
    Case("host and GPU are long in turn", (6.0, 1.0, 6.0, 1.0, 6.0, 1.0), (5.0, 2.0, 5.0, 2.0, 5.0, 2.0)),
    Case("one step", (2.0,), (7.0,)),
    Case("two steps", (2.0, 4.0), (3.0, 6.0)),
    _random(1, 12),
    _random(2, 40),
)


def right_wall(host: tuple[float, ...], gpu: tuple[float, ...]) -> float:
    """The host's first part; then each step on the GPU, or the host's part of the next one if it is longer; the last
    step on the GPU."""
    return host[0] + sum(max(one, other) for one, other in zip(host[1:], gpu[:-1], strict=True)) + gpu[-1]


def loop_of(case: Case) -> dag.Schedule:
    """The loop as tasks: the host prepares step n when step n - 2 is through; both work in the order of the steps."""
    graph = nx.DiGraph()
    for n, (host, gpu) in enumerate(zip(case.host, case.gpu, strict=True)):
        graph.add_node(f"host {n}", duration=host, resource="host", kind="host", label=str(n))
        graph.add_node(f"step {n}", duration=gpu, resource="compute", kind="kernel", label=str(n))
        graph.add_edge(f"host {n}", f"step {n}")
        if n >= 1:
            graph.add_edges_from([(f"host {n - 1}", f"host {n}"), (f"step {n - 1}", f"step {n}")])
        if n >= 2:
            graph.add_edge(f"step {n - 2}", f"host {n}")
    return dag.schedule(graph, ENGINES, fifo=True)


def judge_wall_ms(answer: Answer) -> Verdict:
    """Within 1 %, for steps that are alike and steps that are not."""
    found = [(case, _given(answer, case)) for case in CASES]
    for case, wall in found:
        right = right_wall(case.host, case.gpu)
        if abs(wall - right) > WITHIN * right:
            raise _refused(f"{shown(wall)} instead of {right:.4g} ms, {case.on}",
                           f"{_explain(found, case)}\n{_parts(case)}", case)
    return Verdict(PUZZLE, [Tick("correct", True, f"within {WITHIN:.0%}, {len(CASES)} runs")],
                   tried="; ".join(case.on for case in CASES), picture=_picture(CASES[2]))


def _given(answer: Answer, case: Case) -> float:
    given = call(PUZZLE, answer, list(case.host), list(case.gpu), on=case.on)
    wall = number(given.item() if getattr(given, "ndim", None) == 0 else given)
    if wall is None:
        raise _refused(f"returned {shown(given)}", "Return one number: the time of the whole run in ms.", case)
    return float(wall)


def _parts(case: Case) -> str:
    """The first steps in words."""
    host, gpu = case.host, case.gpu
    terms = [f"max({other:g}, {one:g})" for one, other in zip(host[1:], gpu[:-1], strict=True)]
    middle = " + ".join(terms[:4]) + " + ..." * (len(terms) > 4)
    return (f"The host prepares step 0 for {host[0]:g} ms, and nothing else can run. Then "
            + (f"the GPU and the host, a step ahead, run side by side: {middle}. At last " if terms else "")
            + f"the last step is alone on the GPU: {gpu[-1]:g} ms. In all {right_wall(host, gpu):.4g} ms.")


def _explain(found: list[tuple[Case, float]], case: Case) -> str:
    """Which mistake gives these times, in words: the one that most of the cases show, this one among them."""
    fits = {says: [_near(wall, _guesses(other)[says]) for other, wall in found] for says in _guesses(case)}
    at = [other for other, _ in found].index(case)
    likely = [says for says, near in fits.items() if near[at]]
    return max(likely, key=lambda says: sum(fits[says]), default="Which part of the host's work runs beside which step "
               "on the GPU?")


def _near(wall: float, values: list[float]) -> bool:
    return any(abs(wall - value) <= WITHIN * max(value, 0.01) for value in values)


def _guesses(case: Case) -> dict[str, list[float]]:
    """What comes out with a mistake, for each kind of mistake."""
    host, gpu = case.host, case.gpu
    same, shifted = sum(map(max, host, gpu)), sum(map(max, host[1:], gpu[:-1]))
    both = sum(host), sum(gpu)
    return {
        GPU_BOUND: [sum(gpu), host[0] + sum(gpu)],
        HOST_BOUND: [sum(host), sum(host) + gpu[-1]],
        SUM: [sum(host) + sum(gpu)],
        WHOLE: [max(both), host[0] + max(both), max(both) + gpu[-1], max(host[0] + sum(gpu), sum(host) + gpu[-1])],
        NO_ENDS: [shifted, shifted + gpu[-1], shifted + host[0]],
        SAME_STEP: [same, same + host[0], same + min(host[0], gpu[-1]), same + gpu[-1], host[0] + same + gpu[-1]],
        PER_STEP: [right_wall(host, gpu) / len(host)],
        OTHER_WAY: [gpu[0] + sum(map(max, gpu[1:], host[:-1])) + host[-1]],
    }


GPU_BOUND = "That has the GPU as the bound in every step. Where the host takes longer, the GPU waits for it."
HOST_BOUND = "That has the host as the bound in every step. Where the GPU takes longer, the host waits for it."
SUM = "That is the synchronous loop: host and GPU in turns, nothing overlaps."
WHOLE = ("That takes the larger sum. The host is only one step ahead: what the GPU waits in one step it cannot make "
         "good in another.")
NO_ENDS = "The ends are missing: the host's first part, and the last step on the GPU, each have nothing beside them."
SAME_STEP = ("That pairs host and GPU of the same step. While step n runs the host prepares step n + 1: "
             "max(host[n + 1], gpu[n]).")
PER_STEP = "That is the time per step. Return that of the whole run."
OTHER_WAY = "That has the GPU begin, and the host follow. The host prepares a step before it runs."


def _picture(case: Case) -> Picture:
    """The first steps of the run."""
    part = Case(case.on, case.host[:MOST], case.gpu[:MOST])
    return timeline(loop_of(part), unit="ms", critical=False, title=case.on[0].upper() + case.on[1:] +
                    f", the first {MOST} steps" * (len(case.host) > MOST))


def _refused(why: str, says: str, case: Case) -> Refused:
    return Refused(Verdict(PUZZLE, [Tick("correct", False, why)], says=says, picture=_picture(case)))
