"""Three programs that each lack one edge, and what happens when they run, as they are or with an edge added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import networkx as nx

from ...timeline import Picture, timeline
from ...trace import Trace
from ..device import Run, Setting, run_once
from ..layers import FLOPS, ROWS, batch, digest_of, expected, layer, pinned

PUZZLE = "missing_edges"
Edge = tuple[str, str]


@dataclass(frozen=True)
class Step:
    """A copy into a slot or a product that reads it; ``waits``: operations whose events it waits for."""

    name: str
    copies: bool
    slot: int
    number: int                # counted over all calls
    waits: tuple[str, ...]


@dataclass(frozen=True)
class Program:
    """A ring whose slot numbers start again with every call, with one wait replaced by a useless one."""

    name: str
    layers: int
    slots: int
    calls: int
    ahead: int                 # copies launched in front of their products
    ratio: float               # at which it is shown
    missing: Edge
    instead: str               # what it waits for in place of the first operation of ``missing``

    def __str__(self) -> str:
        calls = f"{self.calls} call{'s' * (self.calls > 1)}"
        return f"{self.layers} layers, {self.slots} slots, {calls}, copy/compute {self.ratio:g}"

    @property
    def steps(self) -> list[Step]:
        """Its operations in the order in which the host launches them, copies ``ahead`` of products."""
        steps, last, begun, total = [], {}, 0, self.layers * self.calls
        for number in range(total):
            while begun < min(number + self.ahead, (number // self.layers + 1) * self.layers):
                slot = begun % self.layers % self.slots
                waits = (f"product {last[slot]}",) if slot in last else ()
                steps.append(self._step(f"copy {begun}", True, slot, begun, waits))
                last[slot] = begun
                begun += 1
            slot = number % self.layers % self.slots
            steps.append(self._step(f"product {number}", False, slot, number, (f"copy {number}",)))
        return steps

    def _step(self, name: str, copies: bool, slot: int, number: int, waits: tuple[str, ...]) -> Step:
        first, then = self.missing
        if name == then:
            waits = tuple(self.instead if wait == first else wait for wait in waits)
        return Step(name, copies, slot, number, waits)


PROGRAMS = {program.name: program for program in (
    Program("A", 6, 2, 1, 2, 2.0, ("copy 4", "product 4"), "copy 3"),
    Program("B", 8, 3, 1, 2, 0.5, ("product 3", "copy 6"), "product 2"),
    Program("C", 5, 2, 2, 2, 0.5, ("product 4", "copy 5"), "product 3"),
)}


@lru_cache(maxsize=256)
def run(name: str, edge: Edge | None, ratio: float, numerics: str = "exact") -> Run:
    """Run a program, with an edge added; the names of operations are those of the program."""
    program = PROGRAMS[name]
    found = run_once(_setting(program), lambda *given: _execute(program, edge, *given), ratio, numerics)
    found.trace = named(found.trace)
    return found


def _setting(program: Program) -> Setting:
    from ... import simgpu

    return Setting(PUZZLE, lambda: _prepare(program), lambda results, _: [digest_of(y) for y in results],
                   simgpu.RTX_5060_LAPTOP, flops=FLOPS)


def _prepare(program: Program) -> tuple[tuple[Any, ...], None]:
    inputs = [batch(call).to("cuda") for call in range(program.calls)]
    return (pinned(program.layers), inputs, [layer(80 + slot).to("cuda") for slot in range(program.slots)]), None


def _execute(program: Program, edge: Edge | None, host: list[Any], inputs: list[Any], slots: list[Any]) -> list[Any]:
    import torch

    compute, copying = torch.cuda.current_stream(), torch.cuda.Stream()
    done = {step.name: torch.cuda.Event() for step in program.steps}
    results = list(inputs)
    for step in program.steps:
        added = (edge[0],) if edge and edge[1] == step.name else ()
        call, number = divmod(step.number, program.layers)
        with torch.cuda.stream(copying if step.copies else compute):
            for wait in step.waits + added:
                torch.cuda.current_stream().wait_event(done[wait])
            if step.copies:
                slots[step.slot].copy_(host[number], non_blocking=True)
            else:
                results[call] = results[call] @ slots[step.slot]
            done[step.name].record()
    return results


def named(trace: Trace) -> Trace:
    """The trace with "copy 0", "product 0" and so on in place of the operators' names."""
    columns, counts = dict(trace.columns), {"h2d": 0, "kernel": 0}
    words, names = {"h2d": "copy", "kernel": "product"}, list(columns["name"])
    for row in sorted(range(len(names)), key=lambda row: columns["start_us"][row]):
        if (kind := columns["kind"][row]) in counts:
            names[row] = f"{words[kind]} {counts[kind]}"
            counts[kind] += 1
    columns["name"] = names
    return Trace.from_columns(columns)


def numbered(trace: Trace) -> Trace:
    """The trace with "0" in place of "copy 0" and of "product 0": a short bar has room for that."""
    columns = dict(trace.columns)
    columns["name"] = [name.removeprefix("copy ").removeprefix("product ") for name in columns["name"]]
    return Trace.from_columns(columns)


def right(program: Program) -> list[Any]:
    """The results that every call should have."""
    return [expected(call, ROWS, program.layers) for call in range(program.calls)]


def outcome(program: Program, found: Run) -> str:
    """The result of each call in words."""
    given = zip(found.value, right(program), strict=True)
    return ", ".join(f"call {call} {'right' if value == wanted else 'wrong'}"
                     for call, (value, wanted) in enumerate(given))


def orders(program: Program, edge: Edge | None) -> nx.DiGraph:
    """Everything that runs before something else, by its stream or by waits; an edge that comes too late is none."""
    graph, last, seen = nx.DiGraph(), {}, set()
    for step in program.steps:
        graph.add_node(step.name)
        added = (edge[0],) if edge and edge[1] == step.name else ()
        before = [wait for wait in (*step.waits, *added) if wait in seen]
        graph.add_edges_from((wait, step.name) for wait in (*before, *last.get(step.copies, ())))
        last[step.copies] = (step.name,)
        seen.add(step.name)
    return nx.transitive_closure_dag(graph)


class Shown:
    """A program's timeline, the results of its calls, and when each operation ran; what races is not said."""

    def __init__(self, program: Program) -> None:
        self.program, self.run = program, run(program.name, None, program.ratio)
        self.picture: Picture = timeline(numbered(self.run.trace), lanes=("h2d", "compute"),
                                         title=f"program {program.name}, copies and products by their numbers")

    def __repr__(self) -> str:
        head = [f"Program {self.program.name}: {self.program}", f"Results: {outcome(self.program, self.run)}"]
        return "\n".join([*head, "", self.picture.text, "", *self._table()])

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        shown = self.picture._repr_mimebundle_()
        drawn, metadata = shown if isinstance(shown, tuple) else (shown, {})
        bundle = {kind: value for kind, value in drawn.items() if kind == "image/png"}
        return bundle | {"text/plain": repr(self)}, {kind: metadata[kind] for kind in bundle if kind in metadata}

    def _table(self) -> list[str]:
        table = self.run.trace.columns
        times = {name: (start, start + took) for name, start, took in
                 zip(table["name"], table["start_us"], table["duration_us"], strict=True)}
        head = "             slot   start     end"
        rows = [_row(step, *times[step.name]) for step in self.program.steps]
        copies = [row for row, step in zip(rows, self.program.steps, strict=True) if step.copies]
        products = [row for row, step in zip(rows, self.program.steps, strict=True) if not step.copies]
        return [f"{head}     {head}  (µs)",
                *(f"{left}     {other}" for left, other in zip(copies, products, strict=True))]


def _row(step: Step, start: float, end: float) -> str:
    return f"{step.name:<12} {step.slot:>4} {start:>7.0f} {end:>7.0f}"


def show(name: str) -> Shown:
    """Show what program "A", "B" or "C" does: its timeline, its results, and when each operation ran."""
    if name not in PROGRAMS:
        raise ValueError(f"show({name!r}): the programs are {', '.join(map(repr, PROGRAMS))}")
    return Shown(PROGRAMS[name])


def operations(program: Program) -> Sequence[str]:
    """The names of a program's operations."""
    return [step.name for step in program.steps]
