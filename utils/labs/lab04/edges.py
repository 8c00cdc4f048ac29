"""Judge of the missing edges: each program runs again with the edge that was named."""

from __future__ import annotations

from typing import Any

from ...timeline import timeline
from ..check import Answer, Refused, call
from ..device import CALLS_US, RATIOS, SLACK, Run
from ..values import shown
from ..verdict import Tick, Verdict
from .broken import PROGRAMS, PUZZLE, Edge, Program, operations, orders, outcome, right, run

TICKS = ("correct", "race-free", "time")
SHAPE = ('Return {"A": (first, then), "B": ..., "C": ...}, with names from the timelines, such as '
         '("copy 0", "product 0").')
ENGINES = ("h2d", "compute")   # shown


def judge_missing_edges(answer: Answer) -> Verdict:
    """For each program, an edge with which it is right and race-free, in the time of the least edge that does it."""
    given = call(PUZZLE, answer, on="no arguments")
    if not isinstance(given, dict):
        raise _refuse("correct", f"returned {shown(given)}", SHAPE)
    advice = []
    for name, program in PROGRAMS.items():
        if name not in given:
            raise _refuse("correct", f"no edge for {name}", SHAPE)
        edge = _read(given[name], program)
        _judge_edge(edge, program)
        _judge_time(edge, program)
        advice += _more_than_needed(edge, program)
    ratio, fixed = PROGRAMS["A"].ratio, _read(given["A"], PROGRAMS["A"])
    pair = {"A, as it was": run("A", None, ratio).trace, "A, with your edge": run("A", fixed, ratio).trace}
    picture = timeline(pair, lanes=ENGINES)
    ticks = [Tick("correct", True, "every call of every program"), Tick("race-free", True, "every order is stated"),
             Tick("time", True, "no later than with the least edge")]
    tried = "; ".join(f"{name}: {program}" for name, program in PROGRAMS.items())
    return Verdict(PUZZLE, ticks, advice=advice, picture=picture,
                   tried=f"{tried}; each also with copy/compute {', '.join(f'{ratio:g}' for ratio in RATIOS)}")


def _plain(name: Any) -> str:
    return " ".join(str(name).lower().split())


def _read(given: Any, program: Program) -> Edge:
    """The two names; refused unless they are two operations of the program."""
    known = operations(program)
    last = program.layers * program.calls - 1
    text = shown(given)
    if "sync" in text.lower():
        raise _refuse("correct", f"{program.name}: {text}",
                      "synchronize() makes the host wait, and the GPU then waits for the host. What is missing is an "
                      "edge: one operation that must end before another one starts.")
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise _refuse("correct", f"{program.name}: {text}", f"One edge is a pair of names. {SHAPE}")
    first, then = (_plain(name) for name in given)
    for name in (first, then):
        if name not in known:
            raise _refuse("correct", f"{program.name}: {text}", f"Program {program.name} has no operation {name!r}; "
                          f"it has copy 0 to copy {last} and product 0 to product {last}.")
    if first == then:
        raise _refuse("correct", f"{program.name}: {text}", "An operation cannot wait for itself.")
    return first, then


def _judge_edge(edge: Edge, program: Program) -> None:
    runs = [run(program.name, edge, ratio) for ratio in dict.fromkeys((program.ratio, *RATIOS))]
    if not any(found.hazards or found.later for found in runs) and all(found.value == right(program) for found in runs):
        return
    witness, how = next((found for found in runs if found.value != right(program)), None), ""
    if witness is None:
        witness = run(program.name, edge, program.ratio, "adversarial")
        how = ", and the operations ordered by nothing but waits"
    says = (f"{_nothing(edge, program)} With it, and copy/compute {witness.ratio:g}{how}: {outcome(program, witness)}. "
            "In the timeline, look for a slot that is written while it is read, or read before its copy has ended.")
    raise _refuse("race-free", f"{program.name}: {edge[0]} → {edge[1]}", says,
                  timeline(witness.trace, title=f"program {program.name} with your edge", lanes=ENGINES))


def _nothing(edge: Edge, program: Program) -> str:
    """What the edge does, given that it does not help."""
    first, then = edge
    names = operations(program)
    if names.index(first) > names.index(then):
        return (f"The host launches {then} before {first}: a wait in front of {then} finds an event that was never "
                "recorded, and does nothing. An edge points from what must end first to what must wait.")
    if orders(program, None).has_edge(first, then):
        return f"{first} → {then} adds nothing: their streams and the waits that are there order them already."
    return f"{first} → {then} is an order that was not there, but not the one that is missing."


def _judge_time(edge: Edge, program: Program) -> None:
    for ratio in dict.fromkeys((program.ratio, *RATIOS)):
        found, goal = run(program.name, edge, ratio), run(program.name, program.missing, ratio)
        if found.done_us <= goal.done_us * SLACK + CALLS_US / 2:
            continue
        mine, best = _starts(found), _starts(goal)
        late = next(name for name in sorted(mine, key=mine.__getitem__) if mine[name] > best[name] + CALLS_US / 2)
        says = (f"Clean, but with copy/compute {ratio:g} it takes {found.done_us:.0f} µs instead of "
                f"{goal.done_us:.0f}: {late} starts at {mine[late]:.0f} µs instead of {best[late]:.0f}. It waits "
                "for more than the operation that races with it.")
        drawn = timeline(found.trace, title=f"program {program.name} with your edge", lanes=ENGINES)
        raise _refuse("time", f"{program.name}: {edge[0]} → {edge[1]}", says, drawn)


def _starts(found: Run) -> dict[str, float]:
    """When each copy and product starts, in µs."""
    table = found.trace.columns
    rows = zip(table["name"], table["start_us"], table["kind"], strict=True)
    return {name: float(start) for name, start, kind in rows if kind in ("h2d", "kernel")}


def _more_than_needed(edge: Edge, program: Program) -> list[str]:
    needed = orders(program, program.missing)
    more = [pair for pair in orders(program, edge).edges if not needed.has_edge(*pair)]
    if not more:
        return []
    (first, then), *_ = more
    return [f"{program.name}: {edge[0]} → {edge[1]} is safe, but also orders {first} before {then}, which nothing "
            "needs. It costs no time here; elsewhere it may."]


def _refuse(failed: str, why: str, says: str, picture: Any = None) -> Refused:
    at = TICKS.index(failed)
    before = None if failed == "race-free" else True
    ticks = [Tick(name, before if place < at else False if place == at else None, why if place == at else "")
             for place, name in enumerate(TICKS)]
    return Refused(Verdict(PUZZLE, ticks, says=says, picture=picture))
