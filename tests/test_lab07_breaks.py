"""Lab 07: answers made to break its checks, by what they keep, change or leave behind, and unusual right ones."""

import time
from collections import deque
from types import SimpleNamespace

import pytest
import torch
from lab07_answers import SOLUTION, passes, refused

INT = torch.int64
stream = torch.cuda.stream


# --- two_slots

def pinned(*shape):
    return torch.zeros(*shape, dtype=INT).pin_memory()


def on_gpu(*shape):
    return torch.zeros(*shape, dtype=INT, device="cuda")


def slot_of(rows):
    return SimpleNamespace(host_in=pinned(4, rows), host_out=pinned(rows), inputs=on_gpu(4, rows), outputs=on_gpu(rows))


def made_when_asked(rows):
    """Every access is other memory."""
    class Slot:
        host_in, host_out = property(lambda self: pinned(4, rows)), property(lambda self: pinned(rows))
        inputs, outputs = property(lambda self: on_gpu(4, rows)), property(lambda self: on_gpu(rows))
    return [Slot(), Slot()]


KEPT = {}


def kept_on_the_host(rows):
    """Pinned memory is the process's, so it outlives a device."""
    if rows not in KEPT:
        KEPT[rows] = [(pinned(4, rows), pinned(rows)) for _ in range(2)]
    return [SimpleNamespace(host_in=host_in, host_out=host_out, inputs=on_gpu(4, rows), outputs=on_gpu(rows))
            for host_in, host_out in KEPT[rows]]


def leaves_a_stream(rows):
    torch.cuda.set_stream(torch.cuda.Stream())
    return [slot_of(rows), slot_of(rows)]


def copied_from_the_host(rows):
    """The device's buffers are still being written, in a stream of their own, when it returns."""
    hosts = [(pinned(4, rows), pinned(rows)) for _ in range(2)]
    with stream(torch.cuda.Stream()):
        return [SimpleNamespace(host_in=host_in, host_out=host_out, inputs=host_in.to("cuda", non_blocking=True),
                                outputs=host_out.to("cuda", non_blocking=True)) for host_in, host_out in hosts]


# --- launch

def step(slot, before, rows, forward, streams, then=lambda: None, swapped=False):
    def copy_in():
        with stream(streams.copying_in):
            slot.inputs.copy_(slot.host_in, non_blocking=True)
            slot.copied_in.record()

    def compute():
        with stream(streams.computing):
            streams.computing.wait_event(slot.copied_in)
            forward(slot, before, rows)
            slot.computed.record()
    for part in (compute, copy_in) if swapped else (copy_in, compute):
        part()
    with stream(streams.copying_out):
        streams.copying_out.wait_event(slot.computed)
        slot.host_out.copy_(slot.outputs, non_blocking=True)
        slot.copied_out.record()
    then()


LEAK = []



def keeps_pinned_memory(*arguments):
    step(*arguments, then=lambda: LEAK.append(pinned(8)))


def forward_first(*arguments):
    step(*arguments, swapped=True)


def other_way_round(slot, before, rows, forward, streams):
    step(slot, before, rows, lambda one, other, count: forward(other, one, count), streams)


def all_rows(slot, before, rows, forward, streams):
    step(slot, before, rows, lambda one, other, _: forward(one, other, len(one.outputs)), streams)


def asks_for_long(slot, *others):
    step(slot, *others, then=lambda: [slot.copied_out.query() for _ in range(300)])


def sleeps(*arguments):
    step(*arguments, then=lambda: time.sleep(0.002))


def yields(*arguments):
    step(*arguments)
    yield


async def asynchronous(*arguments):
    step(*arguments)


# --- CarryOver

class InFloat32(SOLUTION.CarryOver):
    def carry(self, tokens, sources, before):
        return super().carry(tokens.float(), sources, before.float()).long()


class Within(SOLUTION.CarryOver):
    """As if no step had more rows than the next one."""
    def carry(self, tokens, sources, before):
        return super().carry(tokens, sources.clamp(max=len(tokens) - 1), before)


class Counts(SOLUTION.CarryOver):
    """Knows that it is called twice."""
    calls = 0

    def carry(self, tokens, sources, before):
        self.calls += 1
        return super().carry(tokens, sources, before) if self.calls % 2 else tokens


class LastToken(SOLUTION.CarryOver):
    """Where its prompt is over, its last token: not so if it was preempted."""
    def row(self, newest, request):
        token, source = super().row(newest, request)
        return (token if source >= 0 or request.done < len(request.prompt) else request.tokens[-1]), source


class Forgets(SOLUTION.CarryOver):
    """Without an answer's end, the loop would have none either."""
    def row(self, newest, request):
        found = super().row(newest, request)
        for row in newest:
            row.last = row.last and row.request is not request
        return found


class Half(SOLUTION.CarryOver):
    def row(self, newest, request):
        token, source = super().row(newest, request)
        return token + 0.5 * (source < 0), source


class Constant(SOLUTION.CarryOver):
    """Its own zero lies on the device; row gives a tensor."""
    def __init__(self):
        self.zero = torch.zeros((), dtype=INT, device="cuda")

    def row(self, newest, request):
        return torch.tensor(super().row(newest, request))

    def carry(self, tokens, sources, before):
        return torch.where(sources >= self.zero, before[torch.maximum(sources, self.zero)], tokens)


# --- serve

def loop_with(give):
    def answer(loop):
        flying = held = None
        while loop.busy or flying or held:
            rows, launched = loop.schedule(), None
            if rows:
                launched = rows, loop.launch(rows)
            elif not flying and not held:
                loop.nobody()
            held = give(loop, flying, held)
            flying = launched
    return answer


def a_round_late(loop, flying, held):
    if held:
        loop.give(*held)
    return (flying[0], loop.tokens(flying[1])) if flying else None


def all_but_one(loop, flying, _):
    if flying:
        loop.give(flying[0], loop.tokens(flying[1])[:-1])


def as_text(loop, flying, _):
    if flying:
        loop.give(flying[0], list(map(str, loop.tokens(flying[1]))))


def device_waited_for(loop, flying, _):
    torch.cuda.synchronize()
    if flying:
        loop.give(flying[0], loop.tokens(flying[1]))


def looks_it_up(loop):
    """Takes the tokens from the lesson, and launches nothing."""
    from utils.lessons import import_lesson
    waiting = loop._scheduler.waiting
    while waiting:
        request = waiting.popleft()
        request.tokens[:] = import_lesson("06_continuous_batching").expected(request)


# --- Stopping

class Sets(SOLUTION.Stopping):
    def release(self, request):
        super().release(request)
        self.free = set(self.free)


class ShorterLimit(SOLUTION.Stopping):
    def has_row(self, request, coming):
        request.limit = min(request.limit, 2)
        return super().has_row(request, coming)


class LongerPrompt(SOLUTION.Stopping):
    """As if a request that starts over had asked for more."""
    def preempt(self, request):
        request.prompt = request.prompt + request.tokens
        super().preempt(request)


class Queues(SOLUTION.Stopping):
    def __init__(self, slots):
        super().__init__(slots)
        self.waiting, self.free = deque(), deque(self.free)


WRONG = [
    ("two_slots", made_when_asked, "it is other memory"),
    ("two_slots", kept_on_the_host, "a second loop would write into the first one's"),
    ("two_slots", leaves_a_stream, "another stream is current afterwards"),
    ("launch", keeps_pinned_memory, "bytes more of pinned memory"),
    ("launch", forward_first, "the forward comes behind the copy in"),
    ("launch", other_way_round, "forward gets before as its `slot`"),
    ("launch", all_rows, "forward gets rows=16, and the step has"),
    ("launch", asks_for_long, "times whether something is done"),
    ("launch", sleeps, "The host sleeps for"),
    ("launch", yields, "With a `yield` in it, a call runs nothing yet of launch"),
    ("serve", asynchronous, "With `async def` in it, a call runs nothing yet of serve"),
    ("CarryOver", InFloat32, "a token may be any number from 0 on"),
    ("CarryOver", Within, "the step before may have more rows"),
    ("CarryOver", Counts, "carry on a small case"),
    ("CarryOver", LastToken, "Its token is known, and it is another one"),
    ("CarryOver", Forgets, "row changes rows of it"),
    ("CarryOver", Half, "Return two whole numbers"),
    ("serve", loop_with(a_round_late), "given only behind the next schedule()"),
    ("serve", loop_with(all_but_one), "each row has one"),
    ("serve", loop_with(as_text), "cannot be interpreted as an integer"),
    ("serve", loop_with(device_waited_for), "loop.tokens(step) waits for one step"),
    ("serve", looks_it_up, "steps launched: 0"),
    ("Stopping", Sets, "Keep it a list"),
    ("Stopping", ShorterLimit, "These are what its user asked for"),
    ("Stopping", LongerPrompt, "These are what its user asked for"),
]


@pytest.mark.parametrize("at", range(len(WRONG)))
def test_these_are_refused(at):
    puzzle, answer, phrase = WRONG[at]
    refused(answer, phrase, puzzle)


@pytest.mark.parametrize("puzzle, answer", [("two_slots", copied_from_the_host), ("CarryOver", Constant),
                                            ("Stopping", Queues)])
def test_these_pass(puzzle, answer):
    passes(answer, puzzle)


def test_kept_device_memory_is_refused():
    def keeps(slot, *others):
        with stream(others[3].computing):
            kept.append(on_gpu(4096))
        step(slot, *others)
    kept = []
    refused(keeps, "bytes more of device memory", "launch")
