"""Judge of ``link_queue``: the order of a training step's collectives on one link, and what each waits for."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import networkx as nx

from ... import dag
from ...timeline import timeline
from ..check import Answer, Refused, call
from ..values import shown
from ..verdict import Picture, Tick, Verdict
from ..worked import worked
from .link import SLOTS, Entry, Queue, Task, Times, entry_of, products, run, say
from .reading import is_row, listing

PUZZLE = "link_queue"
TICKS = ("correct", "race-free", "two slots", "time")
LAYERS = (4, 1, 2, 3, 5, 24)
RATIOS = tuple(Times(*each) for each in ((1, 2, 0.5, 0.5), (1, 2, 0.9, 0.9), (1, 2, 1.5, 1.5), (1, 2, 0.5, 1.4),
                                         (1, 2, 1.4, 0.5), (2, 2, 0.75, 1.25)))
DRAWN_LAYERS = 8          # a picture of more is no help
ROUNDING = 1e-9
SHAPE = ('Return a list of (what, product, after): "gather" or "scatter", a product such as ("F", 0), and the product '
         "to wait for, a list of several, or None.")


@lru_cache(maxsize=16)
def target(layers: int) -> Queue:
    """The worked answer."""
    return Queue(layers, tuple(entry_of(item) for item in worked("09_hide_the_network", PUZZLE)(layers)))


def judge_link_queue(answer: Answer) -> Verdict:
    """Any queue that brings each layer in time for its products, in two slots, and is no slower than the worked one."""
    for layers in LAYERS:
        on = f"{layers} layer{'s' * (layers > 1)}"
        queue = _read(call(PUZZLE, listing(answer, 4 * layers), layers, on=on), layers, on)
        _judge_tasks(queue, on)
        _judge_stuck(queue, on)
        _judge_scatters(queue, on)
        _judge_slots(queue, on)
        for times in RATIOS:
            _judge_time(queue, times, on)
        if layers == LAYERS[0]:
            first = queue
    whys = (f"each product has its layer, each gradient leaves; {_gathers(first)}",
            "no delay sends a gradient too early", "no delay overwrites a layer",
            f"at most the worked answer's, {len(RATIOS)} ratios")
    return Verdict(PUZZLE, [Tick(name, True, why) for name, why in zip(TICKS, whys, strict=True)],
                   tried=f"{', '.join(map(str, LAYERS[:-1]))} and {LAYERS[-1]} layers, forward:backward:gather:scatter "
                         f"{', '.join(map(str, RATIOS))}", picture=drawn(first, RATIOS[1], beside=False))


def _gathers(queue: Queue) -> str:
    """How many, and what is still in its slot at the turn from forward to backward."""
    count, turn = sum(entry.what == "gather" for entry in queue.entries), queue.layers - SLOTS
    kept = f"layer {turn} is still in its slot when B {turn} needs it"
    return (f"{count} gathers, {queue.layers} layers: {kept}, and you gather it once only" if
            ("gather", ("B", turn)) not in queue.at else
            f"{count} gathers, {queue.layers} layers ({kept}: one fewer would do)")


def drawn(queue: Queue | None, times: Times, beside: bool = True) -> Picture | None:
    """The timelines of a queue and of the worked one, whose link has no numbers; None for what is too large to see."""
    layers = queue.layers if queue else LAYERS[0]
    if layers > DRAWN_LAYERS:
        return None
    runs = {"yours": run(queue.graph(times))} if queue else {}
    if beside:
        runs["target"] = run(target(layers).graph(times, labels=False))
    bound = min(run(target(layers).graph(times)).makespan, *(plan.makespan for plan in runs.values()))
    return timeline(runs, critical=False, unit="units", bound=bound, bound_kind="target",
                    title=f"{layers} layer{'s' * (layers > 1)}, {_words(times)}")


def _words(times: Times) -> str:
    return (f"forward {times.forward:g}, backward {times.backward:g}, gather {times.gather:g} and scatter "
            f"{times.scatter:g}")


# --- the collectives -----------------------------------------------------------------------------------------------

def _read(given: Any, layers: int, on: str) -> Queue:
    if not is_row(given):
        raise _refused("correct", f"returned {shown(given)}, {on}", SHAPE)
    entries: list[Entry] = []
    known = set(products(layers))
    for item in given:
        entry = entry_of(item)
        if entry is None:
            raise _refused("correct", f"{shown(item)} is no collective, {on}", SHAPE)
        if odd := [task for task in (entry.task, *entry.after) if task not in known]:
            raise _refused("correct", f"there is no product {shown(odd[0])}, {on}",
                           f'The products are ("F", i) and ("B", i) for i from 0 to {layers - 1}. A collective that '
                           "waits for nothing has None in the last place.")
        if entry[:2] in [one[:2] for one in entries]:
            raise _refused("correct", f"{entry} is in the queue twice, {on}", "Each collective runs once in a step.")
        entries.append(entry)
    return Queue(layers, tuple(entries))


def _judge_tasks(queue: Queue, on: str) -> None:
    for kind, i in queue.products:
        if ("gather", ("F", i)) not in queue.at:
            raise _refused("correct", f"no gather for {kind} {i}, {on}",
                           f"This GPU has a shard of layer {i}, and {kind} {i} needs the whole layer: it would never "
                           "start.")
    for kind, i in queue.products:
        if kind == "F" and ("scatter", ("F", i)) in queue.at:
            raise _refused("correct", f"scatter F {i}, {on}", "A forward pass leaves no gradient: there is nothing to "
                           "sum.")
        if kind == "B" and ("scatter", ("B", i)) not in queue.at:
            last = " It is the last one, behind which no gather stands." if i == 0 and queue.layers > 1 else ""
            raise _refused("correct", f"no scatter for B {i}, {on}",
                           f"The gradient of layer {i} is never summed over the GPUs: each would update its shard with "
                           f"its own tokens' alone.{last}")


def _judge_stuck(queue: Queue, on: str) -> None:
    if (found := queue.stuck()) is None:
        return
    at, place = found
    head, task = queue.entries[at], queue.products[place]   # something is left of both: each gather is in the queue
    waits = next(one for one in head.after if queue.place[one] >= place)
    gather = queue.entries[queue.at[queue.source(task)]]
    behind = "that very gather" if gather == head else f"{gather}, which stands behind it"
    says = (f"At the head of the queue stands {head}, and waits for {say(waits)}. The GPU has come to {say(task)}, "
            f"which needs {behind}. Nothing goes on any more.")
    raise _refused("correct", f"the step stops at {say(task)}, {on}", says, _until(queue, at, place))


def _until(queue: Queue, at: int, place: int) -> Picture | None:
    """What ran before the step stopped."""
    ran = [entry[:2] for entry in queue.entries[:at]] + queue.products[:place]
    if not ran or queue.layers > DRAWN_LAYERS:
        return None
    graph = queue.graph(RATIOS[0]).subgraph(ran)
    ordered = nx.DiGraph()
    ordered.add_nodes_from((task, graph.nodes[task]) for task in ran)
    ordered.add_edges_from(graph.edges)
    return timeline(run(ordered), critical=False, unit="units", title="What ran until the step stopped")


# --- orders that no delay may break --------------------------------------------------------------------------------

def _judge_scatters(queue: Queue, on: str) -> None:
    for at, entry in enumerate(queue.entries):
        if entry.what == "scatter" and queue.settled[at] < queue.place[entry.task]:
            plan = _delayed(queue, entry, entry.task)
            start, end = plan.runs[entry[:2]].start, plan.runs[entry.task].end
            raise _refused("race-free", f"{entry} can start before {say(entry.task)} has ended, {on}",
                           f"Nothing makes {entry} wait for {say(entry.task)}, which makes the gradient. Here it "
                           f"starts at {start:g}, and {say(entry.task)} ends at {end:g}.\n"
                           f"Let it wait: {_with_wait(entry, entry.task)}",
                           _race(queue, plan, [entry[:2], entry.task]))


def _judge_slots(queue: Queue, on: str) -> None:
    for at, entry in enumerate(queue.entries):
        held = queue.held(at) if entry.what == "gather" else []
        if len(held) > SLOTS:
            raise _slots_refused(queue, at, held, on)


def _slots_refused(queue: Queue, at: int, held: list[int], on: str) -> Refused:
    """Show the gather starting while two layers are still needed: the product that nobody waits for takes long."""
    entry, others = queue.entries[at], sorted((h for h in held if h != at), key=queue.readers.__getitem__)
    slow = queue.products[queue.settled[at] + 1]
    plan = _delayed(queue, entry, slow)
    victim, reader = queue.entries[others[0]], queue.products[queue.readers[others[0]]]
    spare, forgotten = entry.task == ("B", queue.layers - 1), _forgotten(queue)
    says = [_needless(queue) if spare else _why_full(queue)]
    says.append(f"When {entry} starts, at {plan.runs[entry[:2]].start:g}, both slots may still be needed: "
                + " and ".join(f"layer {queue.entries[h].task[1]} for {say(queue.products[queue.readers[h]])}"
                               for h in others[:SLOTS])
                + f". It overwrites layer {victim.task[1]}; {say(reader)} ends at {plan.runs[reader].end:g}.")
    if len(others) == SLOTS and not forgotten and not spare:
        says.append(f"\nLet it wait: {_with_wait(entry, reader)}")
    why = f"{len(held)} layers whole at once, {on}" if len(held) > SLOTS + 1 else \
        f"{entry} can overwrite what {say(reader)} reads, {on}"
    return _refused("two slots", why, " ".join(part for part in says if part).replace(" \n", "\n"),
                    _race(queue, plan, [entry[:2], slow]))


def _forgotten(queue: Queue) -> list[Task]:
    """Backward products that would need a gather of their own, and have none."""
    missing = [task for task in queue.products if task[0] == "B" and ("gather", task) not in queue.at]
    return [task for task in missing if task[1] < queue.layers - 1] if queue.layers > SLOTS else []


def _why_full(queue: Queue) -> str:
    gathers = [entry for entry in queue.entries if entry.what == "gather"]
    most = max(len(queue.held(queue.at[entry[:2]])) for entry in gathers)
    if not any(entry.after for entry in gathers) and most > SLOTS + 1:
        return f"Nothing holds the gathers back: up to {most} layers would be whole at once."
    if kept := _forgotten(queue):
        return (f"There is no gather for {' and '.join(map(say, kept[:2]))}{', …' * (len(kept) > 2)}: what F "
                f"{kept[0][1]} was given would have to stay in its slot until {say(kept[0])}.")
    return ""


def _with_wait(entry: Entry, task: Task) -> str:
    """A later product than all that it waits for yet."""
    return f"({entry.what!r}, {entry.task!r}, {task!r})"


def _delayed(queue: Queue, entry: Entry, slow: Task) -> dag.Schedule:
    """A run in which one product takes so long that this collective starts before it has ended."""
    graph = queue.graph(RATIOS[0])
    while True:
        plan = run(graph)
        if plan.runs[entry[:2]].start < plan.runs[slow].end:
            return plan
        graph.nodes[slow]["duration"] *= 2


def _race(queue: Queue, plan: dag.Schedule, tasks: list[Any]) -> Picture | None:
    if queue.layers > DRAWN_LAYERS:
        return None
    return timeline(plan, critical=tasks, unit="units", title="A run that your queue allows")


# --- time ----------------------------------------------------------------------------------------------------------

def _judge_time(queue: Queue, times: Times, on: str) -> None:
    plan, best = run(queue.graph(times)), run(target(queue.layers).graph(times))
    if plan.makespan <= best.makespan * (1 + ROUNDING):
        return
    raise _refused("time", f"{plan.makespan:g} instead of {best.makespan:g}, {on}",
                   f"With {_words(times)}: {_costly(queue, plan, best)}", drawn(queue, times))


def _costly(queue: Queue, plan: dag.Schedule, best: dag.Schedule) -> str:
    """The first product that waits longer than it has to, and why its gather is late."""
    if ("gather", ("B", queue.layers - 1)) in queue.at:
        return _needless(queue)
    for before, task in zip([None, *queue.products], queue.products, strict=False):
        ready, best_ready = (each.runs[before].end if before else 0 for each in (plan, best))
        if plan.runs[task].start - ready > best.runs[task].start - best_ready + ROUNDING:
            return f"{say(task)} waits for its gather from {ready:g} to {plan.runs[task].start:g}. " \
                + _late(queue, plan, queue.at[queue.source(task)])
    left = sum(plan.runs[entry[:2]].end > plan.runs[queue.products[-1]].end for entry in queue.entries)
    return (f"when the last product has ended, the link still has {left} collectives to run, one after the other. It "
            "could have run some of them beside earlier products.")


def _needless(queue: Queue) -> str:
    """Of the second gather of the last layer."""
    last = queue.layers - 1
    return f"gather B {last} is not needed: its layer is whole from F {last} on, which comes just before it."


def _late(queue: Queue, plan: dag.Schedule, at: int) -> str:
    """Why a gather starts so late: what it waits for, or what stands before it in the queue."""
    entry, start = queue.entries[at], plan.runs[queue.entries[at][:2]].start
    free = plan.runs[queue.entries[at - 1][:2]].end if at else 0
    waits = [task for task in entry.after if plan.runs[task].end >= start - ROUNDING]
    if waits and free < start - ROUNDING:
        wanted = queue.least_wait(at)
        since = f"as soon as {say(wanted)} has ended, at {plan.runs[wanted].end:g}" if wanted else "from the start"
        return f"The gather waits for {say(waits[0])}, until {start:g}. It has a free slot {since}."
    before = queue.entries[at - 1] if at else entry
    if before.what == "scatter":
        return (f"The gather stands behind {before} in the queue, until {start:g}. Nobody needs the sums so soon, but "
                "the next product needs its layer: put the gather before it.")
    return (f"The gather starts at {start:g}, behind {before}. Is the queue in the order in which layers are needed, "
            "and does each gather start as soon as it has a slot?")


def _refused(tick: str, why: str, says: str, picture: Picture | None = None) -> Refused:
    at = TICKS.index(tick)
    ticks = [Tick(name, True if place < at else False if place == at else None, why if place == at else "")
             for place, name in enumerate(TICKS)]
    return Refused(Verdict(PUZZLE, ticks, says=says, picture=picture))
