"""Lab 07, a step's edges: each missing one is refused with its race, each wait of the host with the time it costs."""

import pytest
import torch
from lab07_answers import SOLUTION, passes, refused

PUZZLE = "launch"


def nothing(*_):
    pass


def step(after_copy_in=True, after_forward=True, record=("copied_in", "computed", "copied_out"), early=(), outside=(),
         then=nothing, first=nothing, blocking=(), fresh=(), whole=False):
    """The worked answer with something else in one place. ``early``: recorded before what they stand for."""
    def answer(slot, before, rows, forward, streams):
        first(slot, before, streams)
        if fresh:
            streams = streams._replace(**{name: torch.cuda.Stream() for name in fresh})
        for n, (stream, event, work) in enumerate((
                (streams.copying_in, "copied_in",
                 lambda: slot.inputs.copy_(slot.host_in, non_blocking="in" not in blocking)),
                (streams.computing, "computed", lambda: forward(slot, before, rows)),
                (streams.copying_out, "copied_out",
                 lambda: slot.host_out.copy_(slot.outputs, non_blocking="out" not in blocking)))):
            with torch.cuda.stream(stream):
                if n and (after_copy_in, after_forward)[n - 1]:
                    stream.wait_event((slot.copied_in, slot.computed)[n - 1])
                if "computing" in fresh and n == 1:
                    stream.wait_event(before.computed)
                if event in early and event in record:
                    getattr(slot, event).record()
                work()
                if event in record and event not in early and event not in outside:
                    getattr(slot, event).record()
            if event in outside:
                getattr(slot, event).record()
        then(slot, before, streams)
    return answer


def one_event(slot, before, rows, forward, streams):
    """One event for all three: what is waited for last is the newest record, in the wrong order."""
    with torch.cuda.stream(streams.copying_out):
        streams.copying_out.wait_event(slot.copied_in)
        slot.host_out.copy_(slot.outputs, non_blocking=True)
        slot.copied_out.record()
    with torch.cuda.stream(streams.copying_in):
        slot.inputs.copy_(slot.host_in, non_blocking=True)
        slot.copied_in.record()
    with torch.cuda.stream(streams.computing):
        streams.computing.wait_event(slot.copied_in)
        forward(slot, before, rows)


def of_the_other_slot(slot, before, rows, forward, streams):
    with torch.cuda.stream(streams.copying_in):
        slot.inputs.copy_(slot.host_in, non_blocking=True)
        slot.copied_in.record()
    with torch.cuda.stream(streams.computing):
        streams.computing.wait_event(before.copied_in)
        forward(slot, before, rows)
        slot.computed.record()
    with torch.cuda.stream(streams.copying_out):
        streams.copying_out.wait_event(before.computed)
        slot.host_out.copy_(slot.outputs, non_blocking=True)
        slot.copied_out.record()


def in_current_stream(slot, before, rows, forward, streams):
    slot.inputs.copy_(slot.host_in, non_blocking=True)
    forward(slot, before, rows)
    slot.host_out.copy_(slot.outputs, non_blocking=True)


def in_one_stream(slot, before, rows, forward, streams):
    """No edge is missing, since there is one stream; copies and compute take turns."""
    with torch.cuda.stream(streams.computing):
        in_current_stream(slot, before, rows, forward, streams)
        slot.copied_out.record()


EVENTS = []


def keeps_an_event(slot, before, rows, forward, streams):
    EVENTS.append(torch.cuda.Event())
    SOLUTION.launch(slot, before, rows, forward, streams)
    EVENTS[0].record(streams.computing)


def only_used_columns(slot, before, rows, forward, streams):
    """Less to copy, but not in one piece."""
    with torch.cuda.stream(streams.copying_in):
        slot.inputs[:, :rows].copy_(slot.host_in[:, :rows], non_blocking=True)
        slot.copied_in.record()
    with torch.cuda.stream(streams.computing):
        streams.computing.wait_event(slot.copied_in)
        forward(slot, before, rows)
        slot.computed.record()
    with torch.cuda.stream(streams.copying_out):
        streams.copying_out.wait_event(slot.computed)
        slot.host_out.copy_(slot.outputs, non_blocking=True)
        slot.copied_out.record()


def leaves_stream(slot, before, rows, forward, streams):
    SOLUTION.launch(slot, before, rows, forward, streams)
    torch.cuda.set_stream(streams.computing)


def forward_twice(slot, before, rows, forward, streams):
    SOLUTION.launch(slot, before, rows, lambda *step: (forward(*step), forward(*step)), streams)


def line_by_line(slot, before, rows, forward, streams):
    with torch.cuda.stream(streams.copying_in):
        for line, source in zip(slot.inputs, slot.host_in, strict=True):
            line.copy_(source, non_blocking=True)
    streams.computing.wait_stream(streams.copying_in)
    with torch.cuda.stream(streams.computing):
        forward(slot, before, rows)
        slot.computed.record()
    with torch.cuda.stream(streams.copying_out):
        streams.copying_out.wait_event(slot.computed)
        slot.host_out.copy_(slot.outputs, non_blocking=True)
        slot.copied_out.record()


def behind_last_copy_out(slot, before, streams):
    """The next copy in waits until the last step is over."""
    streams.copying_in.wait_event(before.copied_out)


def waits(event):
    return lambda slot, before, streams: getattr(slot, event).synchronize()


WRONG = [
    (step(after_copy_in=False), "The forward reads what the copy in brings"),
    (step(after_forward=False), "The copy out reads what the forward writes"),
    (step(record=("computed", "copied_out")), "The forward reads what the copy in brings"),
    (step(record=("computed", "copied_out")), "See note"),
    (step(record=("copied_in", "copied_out")), "The copy out reads what the forward writes"),
    (step(record=("copied_in", "computed")), "The loop reads host_out"),
    (step(early=("copied_in",)), "The forward reads what the copy in brings"),
    (step(early=("computed",)), "The copy out reads what the forward writes"),
    (step(early=("copied_out",)), "The loop reads host_out"),
    (step(outside=("copied_in",)), "The forward reads what the copy in brings"),
    (step(outside=("computed",)), "The copy out reads what the forward writes"),
    (step(outside=("copied_out",)), "The loop reads host_out"),
    (one_event, "Within a step the copy out comes behind the forward"),
    (of_the_other_slot, "The forward reads what the copy in brings"),
    (in_current_stream, "operations go into the stream that is current"),
    (in_one_stream, "make a step wait for what it does not need"),
    (keeps_an_event, "keep no tensor, stream or event from one run to the next"),
    (only_used_columns, "is not asynchronous even with non_blocking=True"),
    (leaves_stream, "Leave the current stream as it was"),
    (forward_twice, "forward was called"),
    (step(then=waits("copied_out")), "more than the loop does itself"),
    (step(then=waits("computed")), "more than the loop does itself"),
    (step(first=lambda slot, before, streams: before.copied_out.synchronize()), "more than the loop does itself"),
    (step(then=lambda slot, before, streams: torch.cuda.synchronize()), "more than the loop does itself"),
    (step(first=lambda slot, before, streams: torch.cuda.synchronize()), "more than the loop does itself"),
    (step(blocking=("out",)), "more than the loop does itself"),
    (step(first=behind_last_copy_out), "make a step wait for what it does not need"),
    (line_by_line, "each takes 300 µs here, however short it is"),
    (step(fresh=("computing",)), "the matrix library keeps a workspace of 32 MiB"),
    (lambda slot, before, rows, forward, streams: None, "forward was called 0 times"),
    (lambda slot, before, rows, forward, streams: slot.stream, "it raised AttributeError"),
    (lambda slot, before: None, "it is called with 5 arguments"),
]


@pytest.mark.parametrize("at", range(len(WRONG)))
def test_wrong_edges_are_refused(at):
    refused(*WRONG[at], PUZZLE)


def own_events(slot, before, rows, forward, streams):
    here, there = torch.cuda.Event(), torch.cuda.Event()
    with torch.cuda.stream(streams.copying_in):
        slot.inputs.copy_(slot.host_in, non_blocking=True)
        here.record()
    with torch.cuda.stream(streams.computing):
        streams.computing.wait_event(here)
        forward(slot, before, rows)
        there.record()
    with torch.cuda.stream(streams.copying_out):
        streams.copying_out.wait_event(there)
        slot.host_out.copy_(slot.outputs, non_blocking=True)
    slot.copied_out.record(streams.copying_out)


def by_wait_stream(slot, before, rows, forward, streams):
    """A whole stream is waited for, when it holds nothing more yet."""
    copying_in, computing, copying_out = streams
    with torch.cuda.stream(copying_in):
        slot.inputs.copy_(slot.host_in, non_blocking=True)
    computing.wait_stream(copying_in)
    with torch.cuda.stream(computing):
        forward(slot, before, rows)
    copying_out.wait_stream(computing)
    with torch.cuda.stream(copying_out):
        slot.host_out.copy_(slot.outputs, non_blocking=True)
        slot.copied_out.record()


def copies_tokens_of_this_step(slot, before, rows, forward, streams):
    """And waits with the event's own method."""
    with torch.cuda.stream(streams.copying_in):
        slot.inputs.copy_(slot.host_in, non_blocking=True)
        slot.copied_in.record()
    with torch.cuda.stream(streams.computing):
        slot.copied_in.wait()
        forward(slot, before, rows)
        slot.computed.record()
    with torch.cuda.stream(streams.copying_out):
        slot.computed.wait()
        slot.host_out[:rows].copy_(slot.outputs[:rows], non_blocking=True)
        slot.copied_out.record()


@pytest.mark.parametrize("answer", [own_events, by_wait_stream, step(), copies_tokens_of_this_step,
                                    step(fresh=("copying_in",)),
                                    step(first=lambda slot, before, streams: before.computed.wait(streams.computing))])
def test_right_edges_pass(answer):
    passes(answer, PUZZLE)


def test_a_wait_that_costs_nothing_is_advice():
    verdict = passes(step(first=waits("copied_out")), PUZZLE)     # of two steps before: the loop has waited for it
    assert any("cost nothing here" in line for line in verdict.advice), str(verdict)
