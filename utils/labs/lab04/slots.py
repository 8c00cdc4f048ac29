"""Judge of ``slots_needed``: how many slots a list of copy times can use, decided by scheduling the ring's graph."""

from __future__ import annotations

import random

import networkx as nx

from ... import dag
from ...timeline import timeline
from ..check import Answer, Refused, call
from ..values import number, shown
from ..verdict import Tick, Verdict

PUZZLE = "slots_needed"
ENGINES = {"h2d": 1, "compute": 1}
RANDOM_CASES = 40
DRAWN_LAYERS = 12
Case = tuple[list[int], int]

DRAWN_UP: dict[str, Case] = {
    "one slow copy": ([10, 10, 10, 50, 10, 10, 10, 10], 20),
    "all alike, copies shorter": ([10] * 6, 20),
    "all alike, copies longer": ([30] * 6, 20),
    "a slow first copy": ([90, 10, 10, 10, 10], 20),
    "a slow last copy": ([10, 10, 10, 10, 70], 20),
    "two slow copies in a row": ([5, 5, 5, 5, 45, 45, 5, 5, 5, 5], 20),
    "two slow copies apart": ([5, 5, 45, 5, 5, 5, 45, 5, 5, 5], 20),
    "a copy too slow for any number": ([10, 10, 500, 10, 10, 10], 20),
    "one layer": ([30], 20),
    "two layers": ([30, 30], 20),
}


def every_case() -> dict[str, Case]:
    """The lists that were drawn up and the random ones, the same in every run; times in µs."""
    return DRAWN_UP | {f"random list {seed}": _random_case(seed) for seed in range(1, RANDOM_CASES + 1)}


def _random_case(seed: int) -> Case:
    """Short copies with slow ones among them."""
    rng = random.Random(seed)
    layers, product = rng.randint(1, 14), rng.randint(10, 40)
    short = rng.randint(1, 2 * product)
    copies = [rng.randint(1, short) for _ in range(layers)]
    for _ in range(rng.randint(0, 3)):
        copies[rng.randrange(layers)] = rng.randint(product, 6 * product)
    return copies, product


def ring_graph(copy_us: list[int], product_us: int, slots: int) -> nx.DiGraph:
    """One cold call: copy i waits for product i - slots, product i for copy i; times in µs."""
    graph = nx.DiGraph()
    for i, took in enumerate(copy_us):
        graph.add_node(f"copy {i}", duration=took, resource="h2d", kind="h2d")
        graph.add_node(f"product {i}", duration=product_us, resource="compute", kind="kernel")
        graph.add_edge(f"copy {i}", f"product {i}")
        if i >= slots:
            graph.add_edge(f"product {i - slots}", f"copy {i}")
    return graph


def plan(case: Case, slots: int) -> dag.Schedule:
    """The schedule of the ring: copies in order on the link, products in order on the GPU."""
    return dag.schedule(ring_graph(*case, slots), ENGINES, fifo=True)


def fewest(case: Case) -> int:
    """The smallest number of slots with which the call takes no longer than with one for each layer."""
    layers = len(case[0])
    best = plan(case, layers).makespan
    return next(slots for slots in range(1, layers + 1) if plan(case, slots).makespan == best)


def judge_slots_needed(answer: Answer) -> Verdict:
    """The smallest N for which more slots do not shorten the call."""
    judged = every_case()
    for on, (copy_us, product_us) in judged.items():
        given = call(PUZZLE, answer, list(copy_us), product_us, on=f"{on}: slots_needed({copy_us}, {product_us})")
        _judge(given, on, (copy_us, product_us))
    case = judged["one slow copy"]
    picture = timeline({f"{slots} slots": plan(case, slots) for slots in (2, fewest(case))}, unit="us", critical=False)
    return Verdict(PUZZLE, [Tick("correct", True, f"{len(judged)} lists of copy times")],
                   tried="; ".join(DRAWN_UP) + f"; {RANDOM_CASES} random lists of up to 14 copies", picture=picture)


def _judge(given: object, on: str, case: Case) -> None:
    slots, right, layers = number(given), fewest(case), len(case[0])
    if slots == right:
        return
    text = f"slots_needed({case[0]}, {case[1]})"
    if slots is None or slots != int(slots):
        raise Refused(_wrong(f"returned {shown(given)}", on, f"{text} is a whole number: {right}."))
    seen = f"{shown(slots)} instead of {right}"
    if slots < 1:
        raise Refused(_wrong(seen, on, f"{text} is {right}: without a slot nothing runs."))
    verdict = _wrong(seen, on, f"{text} is {right}. " + _why(case, int(slots), right, layers))
    if layers <= DRAWN_LAYERS and slots <= layers:
        runs = {f"yours, {_slots(slots)}": plan(case, int(slots)), f"right, {_slots(right)}": plan(case, right)}
        verdict.picture = timeline(runs, unit="us", critical=False)
    raise Refused(verdict)


def _why(case: Case, slots: int, right: int, layers: int) -> str:
    if slots > layers:
        return f"There are only {layers} layers, so that {shown(slots)} slots cannot all be used."
    mine, best = plan(case, slots), plan(case, right)
    if slots > right:
        says = f"With {_slots(right)} the call takes {best.makespan} µs, and with {slots} it takes just as long."
        return says + (" One slot for each layer is always enough, but then all weights are on the GPU."
                       if slots == layers else "")
    late = next(i for i in range(layers)
                if mine.runs[f"copy {i}"].start > best.runs[f"copy {i}"].start)
    return (f"With {_slots(slots)} the call takes {mine.makespan} µs, with {right} only {best.makespan}: copy {late} "
            f"waits until product {late - slots} has left its slot at {mine.runs[f'copy {late}'].start} µs, and with "
            f"{right} it starts at {best.runs[f'copy {late}'].start}.")


def _slots(count: float) -> str:
    return f"{count:g} slot{'' if count == 1 else 's'}"


def _wrong(seen: str, on: str, says: str) -> Verdict:
    return Verdict(PUZZLE, [Tick("correct", False, f"{seen}, {on}")], says=says)
