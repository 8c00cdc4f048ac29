"""A training step on the stages of a pipeline: what waits for what, and what each stage keeps."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import networkx as nx

from ... import dag

Task = tuple[str, int]               # "F" or "B" of a micro-batch, on a stage that is known
Placed = tuple[str, int, int]        # the same with its stage
KINDS = {"F": "forward", "B": "backward"}


class Size(NamedTuple):
    """So many stages and micro-batches."""

    stages: int
    micro_batches: int

    def __str__(self) -> str:
        return (f"{self.stages} stage{'s' * (self.stages > 1)}, {self.micro_batches} "
                f"micro-batch{'es' * (self.micro_batches > 1)}")

    def most(self, stage: int) -> int:
        """Micro-batches whose activations a stage may keep."""
        return min(self.stages - stage, self.micro_batches)


@dataclass(frozen=True)
class Orders:
    """For each stage its tasks, one after the other; each task once."""

    size: Size
    of: tuple[tuple[Task, ...], ...]

    def needs(self, task: Placed) -> list[Placed]:
        """What a task waits for besides its own stage."""
        what, n, stage = task
        if what == "F":
            return [("F", n, stage - 1)] if stage else []
        own = [("F", n, stage)]
        return own if stage == self.size.stages - 1 else [*own, ("B", n, stage + 1)]

    def reached(self) -> list[int]:
        """How many of its tasks each stage can run before nothing goes on any more."""
        at, done, going = [0] * self.size.stages, set(), True
        while going:
            going = False
            for stage, tasks in enumerate(self.of):
                while at[stage] < len(tasks) and done.issuperset(self.needs((*tasks[at[stage]], stage))):
                    done.add((*tasks[at[stage]], stage))
                    at[stage], going = at[stage] + 1, True
        return at

    def kept(self, stage: int) -> list[int]:
        """The micro-batches that a stage keeps, after each of its tasks."""
        return list(accumulate(1 if what == "F" else -1 for what, _ in self.of[stage]))

    def first_forwards(self, stage: int) -> int:
        """With how many forwards a stage begins."""
        tasks = self.of[stage]
        return next((at for at, (what, _) in enumerate(tasks) if what == "B"), len(tasks))

    def plan(self, forward: float, backward: float) -> dag.Schedule:
        """Every stage is a queue, and sending takes no time. Only what can run does."""
        graph, reached = nx.DiGraph(), self.reached()
        for stage, tasks in enumerate(self.of):
            for what, n in tasks[:reached[stage]]:
                graph.add_node((what, n, stage), duration=forward if what == "F" else backward, kind=KINDS[what],
                               resource=f"stage {stage}", label=f"{n}")
            graph.add_edges_from(pairwise((*task, stage) for task in tasks[:reached[stage]]))
        graph.add_edges_from((before, task) for task in list(graph) for before in self.needs(task))
        return dag.schedule(graph, {f"stage {stage}": 1 for stage in range(self.size.stages)}, fifo=True)


def one_f_one_b(size: Size) -> Orders:
    """As many forwards as a stage may keep, then one backward and one forward in turn, then what is left."""
    found = []
    for stage in range(size.stages):
        first = size.most(stage)
        turns = [task for n in range(size.micro_batches) for task in (("B", n), ("F", n + first))]
        found.append((*(("F", n) for n in range(first)), *(task for task in turns if task[1] < size.micro_batches)))
    return Orders(size, tuple(found))
