"""Lab 08, answers that only look right: bound to a moment, a stream or a size, writing what is others', doing less."""

import numpy as np
import pytest
import torch
from lab08_answers import SOLUTION, passes, refused
from test_lab08_again import selected


def graphed(static=None, put=None, give=None, after=None):
    """The worked answer with another static input, another way in or out, or something behind the capture."""
    def answer(step, example):
        x_in = static(example) if static else example.clone()
        step(x_in)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = step(x_in)
        state = after(x_in, output) if after else None

        def run(x):
            put(x_in, x) if put else x_in.copy_(x)
            graph.replay()
            return give(output, state, x) if give else output.clone()
        return run
    return answer


def ring(size):
    """As many results as the ring has places."""
    return graphed(after=lambda x_in, output: [torch.empty_like(output) for _ in range(size)],
                   give=lambda output, places, x: places.append(places.pop(0).copy_(output)) or places[-1])


def gives_back(step, example):
    """Computes in the example, and puts back what was there."""
    step(example)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = step(example)

    def run(x):
        kept = example.clone()
        example.copy_(x)
        graph.replay()
        example.copy_(kept)
        return output.clone()
    return run


def first_stream(step, example):
    """Launches on the stream that was current at the start."""
    here, run = torch.cuda.current_stream(), SOLUTION.graphed(step, example)

    def launch(x):
        with torch.cuda.stream(here):
            return run(x)
    return launch


def clears_aside(x_in, output):
    with torch.cuda.stream(torch.cuda.Stream()):
        x_in.zero_()


def asks(output, state, x):
    result, event = output.clone(), torch.cuda.Event()
    event.record()
    while not event.query():
        pass
    return result


class FirstStream(SOLUTION.Bucketed):
    def __init__(self, *arguments):
        self.stream = torch.cuda.current_stream()
        super().__init__(*arguments)

    def __call__(self, *rows):
        with torch.cuda.stream(self.stream):
            return super().__call__(*rows)


class FewProducts(SOLUTION.Bucketed):
    def __init__(self, model, sizes, spare):
        model.products = 1
        super().__init__(model, sizes, spare)


class WithoutFour(SOLUTION.Bucketed):
    """Nearly as fast in a workload in which steps of four rows are few."""

    def __init__(self, model, sizes, spare):
        super().__init__(model, [size for size in sizes if size != 4 or size == max(sizes)], spare)


class FreeSlot(SOLUTION.Bucketed):
    """Padding in a slot that no row of the step has."""

    def __init__(self, model, sizes, spare):
        super().__init__(model, sizes, spare)
        self.all = range(spare + 1)

    def __call__(self, *rows):
        self.padding[1] = min(set(self.all) - set(rows[1].tolist()))
        return super().__call__(*rows)


class OneBehind(SOLUTION.Bucketed):
    """Padding in the row behind those of the step, and in no other."""

    def __call__(self, *rows):
        count = len(rows[0])
        kept = self.padding.clone()
        self.padding[:, count + 1:] = self.rows[:, count + 1:]
        found = super().__call__(*rows)
        self.padding.copy_(kept)
        return found


class OwnCells(SOLUTION.Bucketed):
    def __init__(self, model, sizes, spare):
        model.cells = model.cells.clone()
        super().__init__(model, sizes, spare)


class Misspelt(SOLUTION.Bucketed):
    def __call__(self, *rows):
        return self.graph


class ClearsAside(SOLUTION.Bucketed):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        with torch.cuda.stream(torch.cuda.Stream()):
            self.rows.copy_(self.padding)


class EagerMany(SOLUTION.Bucketed):
    """Steps whose products take longer than their launches go without a graph."""

    def __init__(self, model, sizes, spare):
        super().__init__(model, sizes, spare)
        self.model = model

    def __call__(self, *rows):
        return self.model(*rows) if len(rows[0]) > 4 else super().__call__(*rows)


class Two(SOLUTION.TwoGraphs):
    """The worked answer in parts."""

    def __init__(self, step, inputs):
        self.step, self.inputs, self.here = step, inputs, torch.cuda.current_stream()
        self.outputs, pool = self.make_outputs(), torch.cuda.graph_pool_handle()
        self.graphs = [torch.cuda.CUDAGraph() for _ in inputs]
        for n in sorted(range(2), key=lambda n: -len(inputs[n])):
            with torch.cuda.graph(self.graphs[n], pool=pool, stream=self.stream()):
                self.capture(n)

    def make_outputs(self):
        return [torch.empty_like(x) for x in self.inputs]

    def stream(self):
        return None

    def capture(self, n):
        self.outputs[n].copy_(self.step(self.inputs[n]))


class IntoInputs(Two):
    def make_outputs(self):
        return self.inputs


class Clears(Two):
    def capture(self, n):
        super().capture(n)
        self.inputs[n].zero_()


class OfItsOwnStream(Two):
    def stream(self):
        return torch.cuda.Stream()


class Formula(Two):
    def capture(self, n):
        torch.mul(self.inputs[n], 12, out=self.outputs[n])


class TwoLaunches(Two):
    def replay(self, n):
        return super().replay(n).mul_(1)


class OnFirstStream(Two):
    def replay(self, n):
        with torch.cuda.stream(self.here):
            return super().replay(n)


def puts_back(tokens, sources, before, ids):
    kept = tokens.clone()
    tokens.copy_(selected(tokens, sources, before))
    ids.copy_(tokens)
    tokens.copy_(kept)


def on_default(tokens, sources, before, ids):
    with torch.cuda.stream(torch.cuda.default_stream()):
        ids.copy_(selected(tokens, sources, before))


def falls_back(tokens, sources, before, ids):
    try:
        ids[sources >= 0] = before[sources[sources >= 0]]
        ids[sources < 0] = tokens[sources < 0]
    except RuntimeError:
        ids.copy_(selected(tokens, sources, before))


def unjoined(tokens, sources, before, ids):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        ids.copy_(selected(tokens, sources, before))
    if not torch.cuda.is_current_stream_capturing():
        torch.cuda.current_stream().wait_stream(side)


def late_fork(tokens, sources, before, ids):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        other = torch.zeros(1, device="cuda")
    torch.cuda.current_stream().wait_stream(side)
    ids.copy_(selected(tokens, sources, before) + other.long())


def keeping():
    known = {}

    def answer(tokens, sources, before, ids):
        rows = known.setdefault(len(ids), torch.arange(len(ids), device="cuda"))
        ids.copy_(torch.cat([tokens, before])[torch.where(sources < 0, rows, sources + len(ids))])
    return answer


WRONG = [
    (ring(8), "that is what a later one gives", "graphed"),
    (graphed(put=lambda x_in, x: (x_in.copy_(x), x.fill_(3))), "x of call 0 changed", "graphed"),
    (graphed(static=lambda example: example.to(torch.int64, copy=True),
             give=lambda output, _, x: output.to(x.dtype) + 0),
     "wrong result of call 0", "graphed"),
    (graphed(after=clears_aside), "while zero_", "graphed"),
    (graphed(give=asks), "ask again and again whether", "graphed"),
    (gives_back, "So never write into it, not even for a while", "graphed"),
    (first_stream, "from call 3 on another stream current than before", "graphed"),
    (FirstStream, "another stream current while serving than before", "Bucketed"),
    (FewProducts, "products are left out", "Bucketed"),
    (WithoutFour, "4 rows and computes 8, where size 4 holds it", "Bucketed"),
    (FreeSlot, "may hold a prefix for whoever comes next", "Bucketed"),
    (OneBehind, "wrong tokens", "Bucketed"),
    (OwnCells, "no row was written to the model's cells", "Bucketed"),
    (Misspelt, "of its cell: return self.graph", "Bucketed"),
    (ClearsAside, "What runs on another stream has to wait for that one", "Bucketed"),
    (IntoInputs, "Behind the replays of 0, inputs[0] does not hold", "TwoGraphs"),
    (Clears, "inputs[0] changed", "TwoGraphs"),
    (OfItsOwnStream, "Capture both on the same stream", "TwoGraphs"),
    (Formula, "step was never called", "TwoGraphs"),
    (TwoLaunches, "2 launches in a replay", "TwoGraphs"),
    (OnFirstStream, "another stream current in the replays than before", "TwoGraphs"),
    (puts_back, "others read them at the same time", "carry_over"),
    (on_default, "launched nothing on the captured stream", "carry_over"),
    (falls_back, "The capture failed at its end", "carry_over"),
    (unjoined, "has to be waited for in turn before the capture ends", "carry_over"),
    (late_fork, "A stream joins a capture when it waits for the captured one", "carry_over"),
    (keeping(), "Every run has a device of its own", "carry_over"),
    (lambda: {name: np.array([place]) for name, place in SOLUTION.inside_or_outside().items()},
     'Say "inside" or "outside".', "inside_or_outside"),
]


@pytest.mark.parametrize("at", range(len(WRONG)))
def test_wrong_answers_are_refused(at):
    refused(*WRONG[at])


def test_a_step_without_a_graph_that_costs_nothing_is_advice():
    assert "The model runs in Python" in passes(EagerMany, "Bucketed").advice[0]
