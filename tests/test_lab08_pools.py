"""Lab 08, two graphs: memory for two, outputs that the other one overwrites, both at the same time: all are refused."""

import pytest
import torch
from lab08_answers import SOLUTION, judged, passes, refused

PUZZLE = "TwoGraphs"
Good = SOLUTION.TwoGraphs


class Made:
    """The worked answer with something else in one place."""
    shared, outside, largest_first, warm, swapped = True, True, True, True, False
    extra, one_output, holds = 0, False, False

    def __init__(self, step, inputs):
        self.step, self.inputs = step, inputs
        self.outputs = [torch.empty_like(x) for x in inputs] if self.outside else [None, None]
        self.extras = [torch.empty_like(inputs[0]) for _ in range(self.extra)]
        if self.one_output:
            largest = max(self.outputs, key=len)
            self.outputs = [largest[:len(x)] for x in inputs]
        self.graphs, pool = [torch.cuda.CUDAGraph() for _ in inputs], torch.cuda.graph_pool_handle()
        self.alive = []
        for n in sorted(range(2), key=lambda n: len(inputs[n]), reverse=self.largest_first):
            x = inputs[1 - n] if self.swapped else inputs[n]
            if self.warm:
                step(x)
            with torch.cuda.graph(self.graphs[n], pool=pool if self.shared else None):
                found = step(x)
                if self.outside:
                    self.outputs[n].copy_(found)
                else:
                    self.outputs[n] = found
            if not self.holds:
                del found

    def replay(self, n):
        self.graphs[n].replay()
        return self.outputs[n]


def made(base=Made, **parts):
    return type("Variant", (base,), parts)


class Cloning(Made):
    """The output stays in the pool, and is cloned behind each replay."""
    outside = False

    def replay(self, n):
        return super().replay(n).clone()


class KeepsAll(Made):
    def replay(self, n):
        self.alive.append(super().replay(n).clone())
        return self.alive[-1]


class Eager(Made):
    def replay(self, n):
        return self.step(self.inputs[n])


class EagerInPlace(Made):
    def replay(self, n):
        return self.outputs[n].copy_(self.step(self.inputs[n]))


class Late(Made):
    def __init__(self, step, inputs):
        self.made, self.arguments = None, (step, inputs)

    def replay(self, n):
        self.made = self.made or Good(*self.arguments)
        return self.made.replay(n)


class Waiting(Made):
    def replay(self, n):
        found = super().replay(n)
        torch.cuda.synchronize()
        return found


class OnTwoStreams(Made):
    """Each graph on a stream of its own, ordered with the caller's at one end only."""
    forth, back = True, False

    def __init__(self, step, inputs):
        super().__init__(step, inputs)
        self.streams = [torch.cuda.Stream() for _ in range(2)]

    def replay(self, n):
        if self.forth:
            self.streams[n].wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.streams[n]):
            self.graphs[n].replay()
        if self.back:
            torch.cuda.current_stream().wait_stream(self.streams[n])
        return self.outputs[n]


class OtherOutput(Made):
    def replay(self, n):
        super().replay(n)
        return self.outputs[1 - n]


class OnlyFirst(Made):
    def replay(self, n):
        self.graphs[0].replay()
        return self.outputs[n]


class NoReplay:
    def __init__(self, *_):
        pass


WRONG = [
    (made(shared=False), "Each graph has a pool of its own."),
    (made(outside=False), "In one pool, what lies in the memory that the other graph uses"),
    (made(shared=False, outside=False), "Each graph has a pool of its own."),
    (made(largest_first=False), "Capture the larger one first."),
    (made(one_output=True), "is it one that graph"),
    (made(extra=2), "tensors of the size of an output"),
    (made(holds=True), "A tensor that a variable still holds"),
    (Cloning, "Is one allocated in each replay"),
    (KeepsAll, "KiB are reserved"),
    (Eager, "step runs in Python"),
    (EagerInPlace, "step runs in Python"),
    (Late, "graphs are captured when one is to be replayed"),
    (Waiting, "the caller reads the output on the same stream"),
    (OnTwoStreams, "Graphs that share a pool write the same memory"),
    (made(OnTwoStreams, forth=False), "Graphs that share a pool write the same memory"),
    (OtherOutput, "graph 0 gives wrong numbers"),
    (OnlyFirst, "Does replay(1) replay graph 0?"),
    (made(swapped=True), "does the graph read that tensor"),
    (NoReplay, "Write replay(self, n), too."),
]


@pytest.mark.parametrize("at", range(len(WRONG)))
def test_wrong_answers_are_refused(at):
    refused(*WRONG[at], PUZZLE)


class ByHand(Made):
    """One after the other on a stream of its own, in the pool of the first."""

    def __init__(self, step, inputs):
        self.graphs, self.outputs, side = {}, [x.clone() for x in inputs], torch.cuda.Stream()
        torch.cuda.synchronize()
        for n in (0, 1) if len(inputs[0]) >= len(inputs[1]) else (1, 0):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.stream(side):
                graph.capture_begin(*(made.pool() for made in self.graphs.values()))
                torch.add(step(inputs[n]), 0, out=self.outputs[n])
                graph.capture_end()
            self.graphs[n] = graph


class OneBuffer(Made):
    """Both outputs in one tensor outside of the pool."""

    def __init__(self, step, inputs):
        super().__init__(step, inputs)
        whole = torch.cat(self.outputs)
        self.parts = [whole[:len(inputs[0])], whole[len(inputs[0]):]]
        del self.outputs, self.graphs
        pool = torch.cuda.graph_pool_handle()
        self.graphs = [torch.cuda.CUDAGraph() for _ in inputs]
        for n in sorted(range(2), key=lambda n: -len(inputs[n])):
            with torch.cuda.graph(self.graphs[n], pool):
                self.parts[n].copy_(step(inputs[n]))

    def replay(self, n):
        self.graphs[n].replay()
        return self.parts[n]


RIGHT = [made(warm=False), made(OnTwoStreams, back=True), ByHand, OneBuffer]


@pytest.mark.parametrize("at", range(len(RIGHT)))
def test_right_answers_pass(at):
    passes(RIGHT[at], PUZZLE)


def test_stub_and_solution():
    class Stub:
        def __init__(self, *_):
            raise NotImplementedError()
    assert judged(Stub, PUZZLE).pending
    verdict = passes(Good, PUZZLE)
    assert not verdict.advice and verdict.tried
