"""Lab 08, static inputs: every way to have old or lost numbers, a race or launches in a call is refused."""

import pytest
import torch
from lab08_answers import SOLUTION, judged, passes, refused

PUZZLE = "graphed"


def graphed(warm=True, own_input=True, rebind=False, copy=True, clone="outside", sync=False, twice=False, late=False,
            before_copy=False, through_host=False):
    """The worked answer with something else in one place."""
    def answer(step, example):
        static = example.clone() if own_input else example

        def made():
            graph = torch.cuda.CUDAGraph()
            if warm:
                step(static)
            with torch.cuda.graph(graph):
                output = step(static)
                if twice:
                    output = step(static)
                if clone == "inside":
                    output = output.clone()
            return graph, output
        kept = [] if late else [made()]

        def run(x):
            nonlocal static
            if not kept:
                kept.append(made())
            graph, output = kept[0]
            if before_copy:
                graph.replay()
            if rebind:
                static = x
            elif through_host:
                static.copy_(x.cpu())
            elif copy:
                static.copy_(x)
            if not before_copy:
                graph.replay()
            if sync:
                torch.cuda.synchronize()
            return output.clone() if clone == "outside" else output
        return run
    return answer


def per_call(step, example):
    step(example)

    def run(x):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = step(x)
        graph.replay()
        return output.clone()
    return run


def warm_up_aside(step, example):
    static, side = torch.empty_like(example), torch.cuda.Stream()
    with torch.cuda.stream(side):
        static.copy_(example)
        step(static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = step(static)

    def run(x):
        static.copy_(x)
        graph.replay()
        return output.clone()
    return run


def aside(forth=True, back=True):
    """Replays on a stream of its own."""
    def answer(step, example):
        static, side = example.clone(), torch.cuda.Stream()
        step(static)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            output = step(static)

        def run(x):
            current = torch.cuda.current_stream()
            if forth:
                side.wait_stream(current)
            with torch.cuda.stream(side):
                static.copy_(x)
                graph.replay()
            if back:
                current.wait_stream(side)
            return output.clone()
        return run
    return answer


def on_current(step, example):
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    step(example)
    graph.capture_end()


def never_ended(step, example):
    static, graph = example.clone(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin()
        output = step(static)
    return lambda x: output


def leaves_stream(step, example):
    torch.cuda.set_stream(torch.cuda.Stream())
    return step


def remembers(step, example):
    known = []

    def run(x):
        known.append(step(x))
        return known[0]
    return run


WRONG = [
    (graphed(rebind=True), "That is the result for the tensor that was captured."),
    (graphed(copy=False), "another input gives step(example)"),
    (graphed(own_input=False), "example changed"),
    (graphed(clone="none"), "It was overwritten: that is what call 5 gives."),
    (graphed(clone="inside"), "return a copy that no later call writes"),
    (graphed(warm=False), "What a step does only in its first call"),
    (graphed(sync=True), "The host waits"),
    (graphed(through_host=True), "The host waits"),
    (graphed(twice=True), "kernels, where"),
    (graphed(late=True), "A graph is captured in one of these calls"),
    (graphed(before_copy=True), "the replay comes before the copy of its input"),
    (per_call, "6 graphs are captured in these calls"),
    (lambda step, example: step, "its launches are the bound"),
    (remembers, "wrong result of call 1"),
    (warm_up_aside, "The caller is still making example"),
    (aside(forth=False), "RAW"),
    (aside(back=False), "What runs on another stream waits for that one first"),
    (on_current, "captured on a non-default stream"),
    (never_ended, "a capture is still in progress"),
    (leaves_stream, "another stream is current afterwards"),
    (lambda step, example: step(example), "Return a function"),
    (lambda step, example: (lambda x: step(x).cpu()), "call 0 returned a tensor on the CPU"),
    (lambda step, example: (lambda x: None), "returned None"),
]


@pytest.mark.parametrize("at", range(len(WRONG)))
def test_wrong_answers_are_refused(at):
    refused(*WRONG[at], PUZZLE)


def by_hand(step, example):
    """capture_begin and capture_end, three warm-ups, an output of its own."""
    side, static = torch.cuda.Stream(), torch.empty_like(example)
    static.copy_(example)
    side.wait_stream(torch.cuda.current_stream())
    graph, output = torch.cuda.CUDAGraph(), torch.empty_like(example)
    with torch.cuda.stream(side):
        for _ in range(3):
            step(static)
        side.synchronize()
        graph.capture_begin()
        output.copy_(step(static))
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(side)

    def run(x):
        static.copy_(x, non_blocking=True)
        graph.replay()
        return torch.empty_like(output).copy_(output)
    return run


class Runner:
    def __init__(self, step, example):
        self.static = torch.zeros_like(example)
        step(self.static)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.output = step(self.static)

    def __call__(self, x):
        self.static[...] = x
        self.graph.replay()
        return self.output + 0


def input_in_pool(step, example):
    """The static input lies in the graph's pool, and is copied there behind the capture."""
    warm = step(example)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static = torch.empty_like(warm)
        output = step(static)

    def run(x):
        static.copy_(x)
        graph.replay()
        return output.clone()
    return run


def as_documented(step, example):
    """Warm-ups on a side stream that waits, and is waited for."""
    static, side = torch.empty_like(example), torch.cuda.Stream()
    static.copy_(example)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = step(static)

    def run(x):
        static.copy_(x)
        graph.replay()
        return torch.clone(output)
    return run


RIGHT = [by_hand, as_documented, Runner, lambda step, example: Runner(step, example).__call__, aside(), input_in_pool]


@pytest.mark.parametrize("at", range(len(RIGHT)))
def test_right_answers_pass(at):
    answer = RIGHT[at]
    passes((lambda step, example: answer(step, example)) if isinstance(answer, type) else answer, PUZZLE)


def test_stub_and_solution():
    def stub(*_):
        raise NotImplementedError()
    assert judged(stub, PUZZLE).pending
    verdict = passes(SOLUTION.graphed, PUZZLE)
    assert not verdict.advice and verdict.tried
