"""A training step of a model in shards: its products, the queue of its link, and what is in the two slots."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise
from typing import Any, NamedTuple

import networkx as nx

from ... import dag
from .reading import is_row, pair, whole

SLOTS = 2
MANY = 10_000       # of waits that a generator makes, the most that are read
RESOURCES = {"link": 1, "compute": 1}
Task = tuple[str, int]              # a product: ("F", layer) or ("B", layer)
KINDS = {"F": "forward", "B": "backward"}


class Times(NamedTuple):
    """How long each kind of task takes, in any unit."""

    forward: float
    backward: float
    gather: float
    scatter: float

    def __str__(self) -> str:
        return ":".join(f"{time:g}" for time in self)


class Entry(NamedTuple):
    """One collective: "gather" or "scatter", for which product, and the products that it waits for."""

    what: str
    task: Task
    after: tuple[Task, ...]

    def __str__(self) -> str:
        return f"{self.what} {say(self.task)}"


def say(task: Task) -> str:
    """A product in words."""
    return f"{task[0]} {task[1]}"


def products(layers: int) -> list[Task]:
    """The products of a step in their order."""
    return [("F", i) for i in range(layers)] + [("B", i) for i in reversed(range(layers))]


def task_of(value: Any) -> Task | None:
    """What may be meant as a product, whatever holds it; None for anything else."""
    two = pair(value)
    layer = whole(two[1]) if two else None
    return (two[0], layer) if two and isinstance(two[0], str) and layer is not None else None


def entry_of(value: Any) -> Entry | None:
    """An item of an answer; None where it is no collective."""
    items = list(islice(value, 4)) if is_row(value) else []
    if len(items) not in (2, 3) or not isinstance(items[0], str) or items[0] not in ("gather", "scatter"):
        return None
    task, after = task_of(items[1]), items[2] if len(items) == 3 else None
    after = list(islice(after, MANY)) if isinstance(after, Iterator) else after
    if task is None or after is None or task_of(after):
        return Entry(items[0], task, (task_of(after),) if after is not None else ()) if task else None
    several = isinstance(after, (set, frozenset)) or is_row(after)
    tasks = [task_of(one) for one in after if one is not None] if several else [None]
    return None if None in tasks else Entry(items[0], task, tuple(tasks))


@dataclass(frozen=True)
class Queue:
    """The link's queue of one step. It is made of known products, each collective once."""

    layers: int
    entries: tuple[Entry, ...]

    @cached_property
    def products(self) -> list[Task]:
        """In their order."""
        return products(self.layers)

    @cached_property
    def place(self) -> dict[Task, int]:
        """Of every product in that order."""
        return {task: place for place, task in enumerate(self.products)}

    @cached_property
    def at(self) -> dict[tuple[str, Task], int]:
        """The place of every collective in the queue."""
        return {(entry.what, entry.task): at for at, entry in enumerate(self.entries)}

    def source(self, task: Task) -> tuple[str, Task]:
        """The gather whose layer a product reads: its own; for a backward one without, that of its forward one."""
        return ("gather", task if ("gather", task) in self.at else ("F", task[1]))

    @cached_property
    def readers(self) -> dict[int, int]:
        """For the place of every gather: that of the last product that reads it, -1 for none."""
        last = {at: -1 for (what, _), at in self.at.items() if what == "gather"}
        for place, task in enumerate(self.products):
            if self.source(task) in self.at:
                last[self.at[self.source(task)]] = place
        return last

    @cached_property
    def settled(self) -> list[int]:
        """For each place in the queue: the last product that has surely ended when it starts, -1 for none."""
        found, latest = [], -1
        for entry in self.entries:   # what those before it wait for has ended, too
            latest = max([latest, *(self.place[task] for task in entry.after)])
            found.append(latest)
        return found

    def held(self, at: int) -> list[int]:
        """The gathers up to this place whose layers may still be needed when it starts, with itself."""
        return [h for h, last in self.readers.items() if h <= at and (last > self.settled[at] or h == at)]

    def least_wait(self, at: int) -> Task | None:
        """The product after which this gather has a free slot; None where there is one from the start."""
        others = sorted(last for h, last in self.readers.items() if h < at)
        return self.products[others[-SLOTS]] if len(others) >= SLOTS and others[-SLOTS] >= 0 else None

    def stuck(self) -> tuple[int, int] | None:
        """The places in the queue and among the products at which nothing goes on; None where all of it runs."""
        at = place = 0
        while True:
            if at < len(self.entries) and all(self.place[task] < place for task in self.entries[at].after):
                at += 1
            elif place < len(self.products) and self.at[self.source(self.products[place])] < at:
                place += 1
            else:
                return None if (at, place) == (len(self.entries), len(self.products)) else (at, place)

    def graph(self, times: Times, labels: bool = True) -> nx.DiGraph:
        """The step as a task graph, to be run with ``run``."""
        graph = nx.DiGraph()
        for entry in self.entries:
            graph.add_node(entry[:2], duration=times.gather if entry.what == "gather" else times.scatter,
                           kind=entry.what, resource="link", label=f"{entry.task[1]}" if labels else "")
        for task in self.products:
            graph.add_node(task, duration=times.forward if task[0] == "F" else times.backward, kind=KINDS[task[0]],
                           resource="compute", label=f"{task[1]}")
        graph.add_edges_from(pairwise(self.products))
        graph.add_edges_from((self.source(task), task) for task in self.products)
        graph.add_edges_from((task, entry[:2]) for entry in self.entries for task in entry.after)
        return graph


def run(graph: nx.DiGraph) -> dag.Schedule:
    """One link and one GPU, both queues."""
    return dag.schedule(graph, RESOURCES, fifo=True)
