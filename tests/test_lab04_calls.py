"""Lab 04, puzzles 1 to 3: the checks refuse stubs, pass right answers of many kinds, refuse wrong ones in words."""

import functools

import pytest
import torch
from answers import HERE, judge_as

from utils import simgpu
from utils.labs.lab04 import check
from utils.lessons import import_lesson

SOLUTION = import_lesson("solutions/04_double_buffered_onload")
PUZZLES = ["double_buffer", "BackToBack", "Prefetching"]
cuda = torch.cuda


def judged(puzzle, answer):
    return judge_as(check, puzzle, answer)


def nothing(*_):
    return None


# --- 1: one cold call ----------------------------------------------------------------------------------------------

def double(read=lambda slot: slot, copied=lambda slot: slot, record=True, each=nothing, pick=lambda i: i, shared=False,
           source=lambda weight: weight, blocking=False, stream=lambda given: given, layers=lambda weights: weights):
    """The worked answer of puzzle 1 with something else in the places where waits, records and copies go.

    ``read`` and ``copied`` give the slot whose event is waited for, None for no wait."""
    def answer(x, host_weights, buffers, copy_stream):
        loaded, computed = ([cuda.Event() for _ in range(2)] for _ in range(2))
        if shared:
            loaded, computed = [loaded[0]] * 2, [computed[0]] * 2
        weights, copying = layers(host_weights), stream(copy_stream)

        def load(i):
            slot = pick(i) % 2
            with cuda.stream(copying):
                if read(slot) is not None:
                    copying.wait_event(computed[read(slot)])
                buffers[slot].copy_(source(weights[i]), non_blocking=not blocking)
                loaded[slot].record()

        load(0)
        for i in range(len(weights)):
            if i + 1 < len(weights):
                load(i + 1)
            slot = pick(i) % 2
            if copied(slot) is not None:
                HERE().wait_event(loaded[copied(slot)])
            x = x @ buffers[slot]
            if record:
                computed[slot].record()
            each(copying, x)
        return x
    return answer


def serial(x, host_weights, buffers, copy_stream):
    for weight in host_weights:
        copy_stream.wait_stream(HERE())
        with cuda.stream(copy_stream):
            buffers[0].copy_(weight, non_blocking=True)
        HERE().wait_stream(copy_stream)
        x = x @ buffers[0]
    return x


def everything_here(x, host_weights, buffers, copy_stream):
    for i, weight in enumerate(host_weights):
        buffers[i % 2].copy_(weight, non_blocking=True)
        x = x @ buffers[i % 2]
    return x


def wait_streams(x, host_weights, buffers, copy_stream, before=True):
    """Whole streams wait; ``before``: the copy stream after the product whose buffer is free, not after the next."""
    with cuda.stream(copy_stream):
        buffers[0].copy_(host_weights[0], non_blocking=True)
    for i in range(len(host_weights)):
        HERE().wait_stream(copy_stream)
        if before and i + 1 < len(host_weights):
            copy_stream.wait_stream(HERE())
            with cuda.stream(copy_stream):
                buffers[(i + 1) % 2].copy_(host_weights[i + 1], non_blocking=True)
        x = x @ buffers[i % 2]
        if not before and i + 1 < len(host_weights):
            copy_stream.wait_stream(HERE())
            with cuda.stream(copy_stream):
                buffers[(i + 1) % 2].copy_(host_weights[i + 1], non_blocking=True)
    return x


def all_resident(x, host_weights, buffers, copy_stream):
    with cuda.stream(copy_stream):
        weights = [weight.to("cuda", non_blocking=True) for weight in host_weights]
        events = [cuda.Event() for _ in weights]
        for event in events:
            event.record()
    for weight, event in zip(weights, events, strict=True):
        HERE().wait_event(event)
        x = x @ weight
    HERE().synchronize()
    return x


def third_buffer(x, host_weights, buffers, copy_stream):
    buffers = [*buffers, torch.empty_like(buffers[0])]
    copy_stream.wait_stream(HERE())
    return ring(x, host_weights, buffers, copy_stream)


def own_buffers(x, host_weights, buffers, copy_stream):
    return ring(x, host_weights, [torch.empty_like(buffer) for buffer in buffers], copy_stream)


def ring(x, host_weights, buffers, copy_stream):
    loaded, computed = [], []
    for i, weight in enumerate(host_weights):
        with cuda.stream(copy_stream):
            if i >= len(buffers):
                copy_stream.wait_event(computed[i - len(buffers)])
            buffers[i % len(buffers)].copy_(weight, non_blocking=True)
            loaded.append(copy_stream.record_event())
        HERE().wait_event(loaded[i])
        x = x @ buffers[i % len(buffers)]
        computed.append(HERE().record_event())
    return x


def allocates(x, host_weights, buffers, copy_stream):   # right and in time, but a new piece of memory per layer
    kept = []
    copy_stream.wait_stream(HERE())
    for weight in host_weights:
        with cuda.stream(copy_stream):
            if len(kept) == 2:
                copy_stream.wait_event(kept.pop(0)[1])
            buffer = torch.empty_like(buffers[0])
            buffer.copy_(weight, non_blocking=True)
            loaded = copy_stream.record_event()
        HERE().wait_event(loaded)
        x = x @ buffer
        kept.append((buffer, HERE().record_event()))
        del buffer
    HERE().synchronize()
    return x


def to_the_gpu_each(x, host_weights, buffers, copy_stream):   # .to(): freed and used again while a product reads it
    for weight in host_weights:
        with cuda.stream(copy_stream):
            moved = weight.to("cuda", non_blocking=True)
        HERE().wait_stream(copy_stream)
        x = x @ moved
        del moved
    return x


def in_place(x, host_weights, buffers, copy_stream):
    x.copy_(SOLUTION.double_buffer(x, host_weights, buffers, copy_stream))
    return x


def own_compute_stream(x, host_weights, buffers, copy_stream, join=True, follow=True):
    computing, here = cuda.Stream(), HERE()
    if follow:
        computing.wait_stream(here)
    with cuda.stream(computing):
        y = SOLUTION.double_buffer(x, host_weights, buffers, copy_stream)
    if join:
        here.wait_stream(computing)
    return y


def last_layer_forgotten(x, host_weights, buffers, copy_stream):
    return SOLUTION.double_buffer(x, host_weights[:-1] or host_weights, buffers, copy_stream)


def halves(x, host_weights, buffers, copy_stream):   # each layer in two copies
    computed = [cuda.Event(), cuda.Event()]
    for i, weight in enumerate(host_weights):
        copy_stream.wait_event(computed[i % 2])
        with cuda.stream(copy_stream):
            for part in (slice(0, 128), slice(128, 256)):
                buffers[i % 2][part].copy_(weight[part], non_blocking=True)
        HERE().wait_stream(copy_stream)
        x = torch.mm(x, buffers[i % 2])
        computed[i % 2].record()
    return x


def copies_first(x, host_weights, buffers, copy_stream):
    """Queue the copy of layer i + 2 behind product i: three lines, other order, same edges."""
    loaded = [cuda.Event(), cuda.Event()]

    def load(i):
        if i < len(host_weights):
            with cuda.stream(copy_stream):
                buffers[i % 2].copy_(host_weights[i], non_blocking=True)
                loaded[i % 2].record()
    load(0)
    load(1)
    for i in range(len(host_weights)):
        loaded[i % 2].wait()
        x = x @ buffers[i % 2]
        copy_stream.wait_stream(HERE())
        load(i + 2)
    return x


def reads_on_the_host(x, host_weights, buffers, copy_stream):
    x = x.cpu()
    for weight in host_weights:
        x = x @ weight
    return x


# --- 2 and 3: models that are called again and again ---------------------------------------------------------------

def model(prefetch=False, slots=2, place=lambda self, n: n, read=lambda slot: slot, copied=lambda slot: slot,
          shared=False, captured=False, here=False, each=nothing, start=nothing, made=nothing, keep=lambda w: w,
          source=lambda weight: weight, end=nothing, wait_own=False):
    """The worked answers with something else in the places where waits, records and copies go.

    ``place``: which slot the n-th layer of all takes. ``read``, ``copied``: the slot whose event is waited for, None
    for no wait. ``here``: copies into the current stream. ``made``: at the end of the constructor; ``start``, ``each``,
    ``end``: of a call."""
    class Answer:
        def __init__(self, host_weights):
            self.weights = keep(host_weights)
            self.buffers = [torch.empty_like(host_weights[0], device="cuda") for _ in range(slots)]
            self.loaded, self.computed = ([cuda.Event() for _ in range(slots)] for _ in range(2))
            if shared:
                self.loaded, self.computed = self.loaded[:1] * slots, self.computed[:1] * slots
            self.copying, self.computing = cuda.Stream(), HERE()
            self.begun = self.done = 0
            made(self)

        def load(self):
            slot = place(self, self.begun) % slots
            stream = HERE() if here else self.copying
            with cuda.stream(stream):
                if read(slot) is not None:
                    stream.wait_event(self.computed[read(slot)])
                self.buffers[slot].copy_(source(self.weights[self.begun % len(self.weights)]), non_blocking=True)
                self.loaded[slot].record()
            self.begun += 1

        def __call__(self, x):
            start(self)
            last = self.done + len(self.weights)
            while self.done < last:
                ahead = self.done + slots
                while self.begun < (ahead if prefetch else min(ahead, last)):
                    self.load()
                slot = place(self, self.done) % slots
                if copied(slot) is not None:
                    (self.computing if captured else HERE()).wait_event(self.loaded[copied(slot)])
                x = x @ self.buffers[slot]
                self.computed[slot].record()
                self.done += 1
                each(self)
            end(self)
            return x
    return Answer


def restart(self, number):
    return number % len(self.weights)


def published(start=nothing, prefetch=False):
    """A schedule whose prologue waits for nothing, and whose loop waits from its second round on."""
    class Answer:
        def __init__(self, host_weights):
            self.weights = host_weights
            self.buffers = [torch.empty_like(host_weights[0], device="cuda") for _ in range(2)]
            self.copying = cuda.Stream()
            self.loaded, self.computed = ([cuda.Event() for _ in range(2)] for _ in range(2))

        def load(self, i):
            with cuda.stream(self.copying):
                self.buffers[i % 2].copy_(self.weights[i], non_blocking=True)
                self.loaded[i % 2].record()

        def __call__(self, x):
            start(self)
            self.load(0)
            for i in range(len(self.weights)):
                if i + 1 < len(self.weights):
                    if i >= 1:
                        self.copying.wait_event(self.computed[(i + 1) % 2])
                    self.load(i + 1)
                HERE().wait_event(self.loaded[i % 2])
                x = x @ self.buffers[i % 2]
                self.computed[i % 2].record()
            return x
    return Answer


def wait_for_all(self):
    self.copying.wait_stream(HERE())


def wait_for(*slots):
    def start(self):
        for slot in slots:
            self.copying.wait_event(self.computed[slot])
    return start


def wait_for_the_last(self):
    """The copy stream waits for the last product of the call before."""
    self.copying.wait_event(self.computed[(len(self.weights) - 1) % 2])


class Resident:
    def __init__(self, host_weights):
        self.weights = [weight.to("cuda", non_blocking=True) for weight in host_weights]

    def __call__(self, x):
        for weight in self.weights:
            x = x @ weight
        return x


class ResidentLater(Resident):   # loads all in its first call
    def __init__(self, host_weights):
        self.host_weights = host_weights

    def __call__(self, x):
        if not hasattr(self, "weights"):
            super().__init__(self.host_weights)
        return super().__call__(x)


class Serial:
    def __init__(self, host_weights):
        self.weights = host_weights
        self.buffer = torch.empty_like(host_weights[0], device="cuda")

    def __call__(self, x):
        for weight in self.weights:
            self.buffer.copy_(weight, non_blocking=True)
            x = x @ self.buffer
        return x


class MovesEach:   # .to() in the loop, safe by record_stream
    def __init__(self, host_weights):
        self.weights, self.copying = host_weights, cuda.Stream()

    def __call__(self, x):
        for weight in self.weights:
            with cuda.stream(self.copying):
                moved = weight.to("cuda", non_blocking=True)
            HERE().wait_stream(self.copying)
            moved.record_stream(HERE())
            x = x @ moved
        return x


class NewBuffers:   # in every call
    def __init__(self, host_weights):
        self.weights, self.copying = host_weights, cuda.Stream()

    def __call__(self, x):
        kept = []
        self.copying.wait_stream(HERE())
        for weight in self.weights:
            with cuda.stream(self.copying):
                if len(kept) == 2:
                    self.copying.wait_event(kept.pop(0)[1])
                buffer = torch.empty_like(weight, device="cuda")
                buffer.copy_(weight, non_blocking=True)
                loaded = self.copying.record_event()
            HERE().wait_event(loaded)
            x = x @ buffer
            kept.append((buffer, HERE().record_event()))
        self.copying.wait_stream(HERE())
        return x


def same_output(prefetch):
    class Answer(model(prefetch)):
        def __call__(self, x):
            y = super().__call__(x)
            if getattr(self, "out", None) is None or self.out.shape != y.shape:
                self.out = torch.empty_like(y)
            return self.out.copy_(y)
    return Answer


def fixed_batch(prefetch):
    """Keeps memory for the batch of its first call."""
    class Answer(model(prefetch)):
        def __call__(self, x):
            if not hasattr(self, "x"):
                self.x = torch.empty_like(x)
            self.x.copy_(x)
            return super().__call__(self.x)
    return Answer


def per_layer_events(prefetch):
    """An event for every copy and every product of a call; a copy waits for the product two before it."""
    class Answer:
        def __init__(self, host_weights):
            self.weights = host_weights
            self.buffers = torch.empty(2, *host_weights[0].shape, device="cuda")   # one tensor, two slices
            self.copying, self.loaded, self.computed = cuda.Stream(), [], []

        def load(self):
            number = len(self.loaded)
            with cuda.stream(self.copying):
                if number >= 2:
                    self.copying.wait_event(self.computed[number - 2])
                self.buffers[number % 2].copy_(self.weights[number % len(self.weights)], non_blocking=True)
            self.loaded.append(self.copying.record_event())

        def __call__(self, x):
            last = len(self.computed) + len(self.weights)
            while len(self.computed) < last:
                number = len(self.computed)
                while len(self.loaded) < (number + 2 if prefetch else min(number + 2, last)):
                    self.load()
                HERE().wait_event(self.loaded[number])
                x = torch.mm(x, self.buffers[number % 2])
                self.computed.append(HERE().record_event())
            return x
    return Answer


def third_stream(prefetch, follow=True, join=True):
    """Products on a stream of the model's own."""
    class Answer(model(prefetch)):
        def __init__(self, host_weights):
            super().__init__(host_weights)
            self.own = cuda.Stream()

        def __call__(self, x):
            here = HERE()
            if follow:
                self.own.wait_stream(here)
            with cuda.stream(self.own):
                y = super().__call__(x)
            if join:
                here.wait_stream(self.own)
            return y
    return Answer


def two_copy_streams(prefetch):
    class Answer(model(prefetch)):
        def __init__(self, host_weights):
            super().__init__(host_weights)
            self.streams = [cuda.Stream(), cuda.Stream()]

        def load(self):
            self.copying = self.streams[self.begun % 2]
            if self.begun:
                self.copying.wait_stream(self.streams[(self.begun - 1) % 2])
            super().load()
    return Answer


class OneAhead(model()):
    """Prefetches layer 0 behind the loop, and the rest as BackToBack does."""

    def __call__(self, x):
        y = super().__call__(x)
        self.load()
        return y


class TwoAhead(model(prefetch=True)):
    def __call__(self, x):
        y = super().__call__(x)
        while self.begun < self.done + 2:
            self.load()
        return y


class PrefetchOnce(model()):
    def __call__(self, x):
        y = super().__call__(x)
        if self.done == len(self.weights):
            self.load()
        return y


class PrefetchForgotten(model()):   # copies ahead, and copies again in the next call, into the next slot
    def __call__(self, x):
        y = super().__call__(x)
        self.load()
        self.begun -= 1
        return y


class LiveSlot(published()):
    """Prefetches layer 0 into buffer 0 without asking who still reads it."""

    def __call__(self, x):
        if not hasattr(self, "ready"):
            self.load(0)
            self.ready = True
        for i in range(len(self.weights)):
            if i + 1 < len(self.weights):
                self.copying.wait_event(self.computed[(i + 1) % 2])
                self.load(i + 1)
            HERE().wait_event(self.loaded[i % 2])
            x = x @ self.buffers[i % 2]
            self.computed[i % 2].record()
        self.prefetch()
        return x

    def prefetch(self):
        self.load(0)


class AlwaysBufferZero(LiveSlot):   # waits for it, which with an odd number of layers is the last product
    def prefetch(self):
        self.copying.wait_event(self.computed[0])
        self.load(0)


class StagedPageable(model()):
    """Every layer goes through one block of ordinary host memory first."""

    def __init__(self, host_weights):
        super().__init__(host_weights)
        self.stage = torch.empty(host_weights[0].shape)

    def load(self):
        weights = self.weights
        self.stage.copy_(weights[self.begun % len(weights)])
        self.weights = [self.stage] * len(weights)
        super().load()
        self.weights = weights


class StagedPinned(StagedPageable):
    """Through one pinned block, which the host overwrites while a copy may still be reading it."""

    def __init__(self, host_weights):
        super().__init__(host_weights)
        self.stage = self.stage.pin_memory()


class NoCall:
    def __init__(self, host_weights):
        pass


class ReturnsList(model()):
    def __call__(self, x):
        return [super().__call__(x)]


class OverwritesX(model(True)):
    def __call__(self, x):
        x.copy_(super().__call__(x))
        return x.clone()


class OneMatrix:
    def __init__(self, host_weights):
        product = host_weights[0]
        for weight in host_weights[1:]:
            product = product @ weight
        self.weight, self.buffer = product.pin_memory(), torch.empty_like(product, device="cuda")

    def __call__(self, x):
        self.buffer.copy_(self.weight, non_blocking=True)
        return x @ self.buffer


class OneSlot(model(slots=1)):
    pass


def synchronize(self):
    cuda.synchronize()


def poll(self):
    while not HERE().query():
        pass


def unpinned(weights):
    return [weight.clone() for weight in weights]


def make_zeros(self):
    for buffer in self.buffers:
        buffer.zero_()


def load_ahead(self):
    self.load()
    self.load()


def joins_all(self):
    HERE().wait_stream(self.copying)


def both(puzzle):
    """Faults that puzzles 2 and 3 have in common."""
    prefetch = puzzle == "Prefetching"
    return [
        (model(prefetch, read=nothing), "WAR: copy_"),
        (model(prefetch, copied=nothing), "RAW: mm"),
        (model(prefetch, read=lambda slot: 1 - slot), "WAR: copy_"),
        (model(prefetch, copied=lambda slot: 1 - slot), "has each buffer an event" if prefetch else "RAW: mm"),
        (model(prefetch, shared=True), "has each buffer an event of its own?"),
        (model(prefetch, captured=True), "what it was in the constructor says nothing about a call"),
        (model(prefetch, here=True), "both are in one stream"),
        (model(prefetch, each=poll), "the host is busy"),
        (model(prefetch, keep=unpinned), "A copy from pageable memory cannot be asynchronous"),
        (model(prefetch, slots=3), "layers' worth at the peak"),
        (model(prefetch, made=make_zeros), "Missing edge: zero_"),
        (model(prefetch, place=restart),
         "Which layer is in which buffer" if prefetch else "Let the calls go on in turn"),
        (Resident, "layers' worth at the peak"),
        (same_output(prefetch), "returned the same memory"),
        (fixed_batch(prefetch), "another batch in every call"),
        (third_stream(prefetch, join=False), "what it leaves behind is not safe"),
        (OverwritesX, "belongs to the caller"),
        (NoCall, "needs a method __call__"),
        (model(prefetch, keep=lambda weights: weights[::-1]), "but the result is wrong in calls 1, 2, 3"),
        (published(), "belong to different calls"),
        (published(wait_for_the_last),
         "The call before can queue" if prefetch else "of call 2 starts only after the product of layer 7 of call 1"),
    ]


WRONG = {
    "double_buffer": [
        (double(read=nothing), "WAR: copy_"),
        (double(copied=nothing), "RAW: mm"),
        (double(read=nothing, copied=nothing), "Missing edge"),
        (double(read=lambda slot: 1 - slot), "WAR: copy_"),
        (double(copied=lambda slot: 1 - slot), "RAW: mm"),
        (double(shared=True), "has each buffer an event of its own?"),
        (double(record=False), "waited on an event before its first record"),
        (double(pick=lambda i: 0), "out of the buffer that it was copied to"),
        (double(each=lambda s, x: cuda.synchronize()), "the host stands still"),
        (double(each=lambda s, x: s.synchronize()), "the host stands still"),
        (double(blocking=True), "the host stands still"),
        (double(source=lambda weight: weight.clone()), "A copy from pageable memory cannot be asynchronous"),
        (double(layers=lambda weights: [w.clone() for w in weights]), "A copy from pageable memory cannot be"),
        (double(stream=lambda given: cuda.Stream()), "The text asks for a copy on copy_stream"),
        (double(stream=lambda given: HERE()), "The text asks for a copy on copy_stream"),
        (double(layers=lambda weights: weights[::-1]), "Is every layer used once, in order"),
        (serial, "a buffer was free"),
        (everything_here, "The text asks for a copy on copy_stream"),
        (functools.partial(wait_streams, before=False), "starts only after the product of"),
        (all_resident, "layers' worth at the peak"),
        (third_buffer, "1.5 layers' worth at the peak"),
        (own_buffers, "Copy into the given buffers"),
        (allocates, "Copy into the given buffers"),
        (to_the_gpu_each, "WAR: copy_"),
        (in_place, "x belongs to the caller"),
        (functools.partial(own_compute_stream, join=False), "what it leaves behind is not safe"),
        (functools.partial(own_compute_stream, follow=False), "RAW: mm"),
        (last_layer_forgotten, "Is every layer used once, in order"),
        (reads_on_the_host, "returned a tensor on the CPU"),
        (lambda x, *_: torch.empty_like(x), "read before written"),
        (lambda x, *_: None, "Return the output of the last layer"),
        (lambda x, *_: x @ None, "it raised TypeError"),
    ],
    "BackToBack": [
        *both("BackToBack"),
        (model(read=nothing, copied=nothing), "Missing edge: copy_"),
        (model(each=lambda self: self.copying.synchronize()), "the host stands still"),
        (StagedPageable, "A copy from pageable memory cannot be asynchronous"),
        (Serial, "both are in one stream"),
        (MovesEach, "layers' worth at the peak"),
        (model(slots=1), "starts only after the product of"),
        (StagedPinned, "host memory) while copy_"),
        (ResidentLater, "layers' worth at the peak"),
        (NewBuffers, "the loop allocates"),
        (third_stream(False, follow=False), "RAW: mm"),
        (OneMatrix, "layers were copied, where 5 calls"),
        (ReturnsList, "returned a list"),
        (lambda host_weights: None, "needs a method __call__"),
        (model(keep=lambda weights: weights[:-1] or weights), "instead of"),
        (model(start=lambda self: 1 / 0), "ZeroDivisionError"),
        (published(wait_for(0)), "belong to different calls"),
        (published(wait_for(1)), "belong to different calls"),
        (published(wait_for_all), "The copy of layer 0 of call 2 starts only after the product of"),
        (published(wait_for(0, 1)), "The copy of layer 0 of call 2 starts only after the product of layer 7 of call 1"),
        (model(place=restart, read=nothing), "WAR: copy_"),
        (model(made=load_ahead), "Copies queued by the constructor: 2"),
    ],
    "Prefetching": [
        *both("Prefetching"),
        (SOLUTION.BackToBack, "The call before can queue that copy"),
        (PrefetchOnce, "The call before can queue that copy"),
        (PrefetchForgotten, "Is one copied again that is there already?"),
        (LiveSlot, "WAR: copy_"),
        (AlwaysBufferZero, "Let the calls go on in turn"),
        (model(True, made=lambda self: setattr(self, "begun", 1)), "read before written"),
        (model(True, made=lambda self: self.load()), "Copies queued by the constructor: 1"),
    ],
}
CASES = [(puzzle, answer, says) for puzzle, rows in WRONG.items() for answer, says in rows]


@pytest.mark.parametrize(("puzzle", "answer", "says"), CASES, ids=[f"{case[0]}-{i}" for i, case in enumerate(CASES)])
def test_wrong_answer_is_refused_for_the_right_reason(puzzle, answer, says):
    verdict = judged(puzzle, answer)
    text = " ".join(str(verdict).split())
    assert not verdict.passed and not verdict.pending, text
    assert says in text, str(verdict)
    assert max(map(len, str(verdict).splitlines())) <= 80
    assert simgpu.active() is None


def test_every_puzzle_has_enough_wrong_answers():
    assert all(sum(case[0] == puzzle for case in CASES) >= 25 for puzzle in PUZZLES)


@pytest.mark.parametrize("prefetch", [False, True])
def test_a_wait_of_the_host_earns_what_it_earned(prefetch):
    verdict = judged("Prefetching" if prefetch else "BackToBack", model(prefetch, each=synchronize))
    assert [tick.holds for tick in verdict.ticks] == [True, True, True, False]
    assert "the host stands still" in str(verdict)


class PingPong(model(prefetch=True)):
    """Activations in two blocks of its own; only the last output of a call is new."""

    spare = ()

    def __call__(self, x):
        if not self.spare or self.spare[0].shape != x.shape:
            self.spare = [torch.empty_like(x) for _ in range(2)]
        for i in range(len(self.weights)):
            while self.begun < self.done + 2:
                self.load()
            slot = self.done % 2
            HERE().wait_event(self.loaded[slot])
            out = None if i == len(self.weights) - 1 else self.spare[i % 2]
            x = torch.mm(x, self.buffers[slot], out=out) if out is not None else x @ self.buffers[slot]
            self.computed[slot].record()
            self.done += 1
        return x


class AsModule(torch.nn.Module):
    def __init__(self, host_weights):
        super().__init__()
        self.inner = SOLUTION.Prefetching(host_weights)

    @torch.inference_mode()
    def forward(self, x):
        return self.inner(x)


CALLED = [
    *(make(prefetch) for make in (model, per_layer_events, third_stream, two_copy_streams)
      for prefetch in (False, True)),
    SOLUTION.BackToBack, model(end=joins_all), model(True, end=joins_all), model(True, start=wait_for_all),
    SOLUTION.Prefetching, OneAhead, TwoAhead, PingPong, AsModule,
    model(True, made=lambda self: (make_zeros(self), wait_for_all(self))),
]
AHEAD = [*CALLED[1:8:2], *CALLED[10:]]   # those that prefetch
RIGHT = [
    *(("double_buffer", answer) for answer in (
        double(), ring, wait_streams, own_compute_stream, halves, copies_first,
        double(each=lambda s, x: HERE().wait_stream(s)), double(each=lambda s, x: s.wait_stream(HERE())))),
    *(("BackToBack", answer) for answer in (*CALLED[:9:2], CALLED[9], OneAhead, TwoAhead, PingPong)),
    *(("Prefetching", answer) for answer in AHEAD),
]


@pytest.mark.parametrize(("puzzle", "answer"), RIGHT, ids=[f"{case[0]}-{i}" for i, case in enumerate(RIGHT)])
def test_right_answer_written_otherwise_passes(puzzle, answer):
    verdict = judged(puzzle, answer)
    assert verdict.passed, str(verdict)


@pytest.mark.parametrize("puzzle", PUZZLES)
def test_stub_is_not_done_yet(puzzle):
    class Stub:
        def __init__(self, host_weights):
            raise NotImplementedError()

    def stub(*_):
        raise NotImplementedError()
    assert judged(puzzle, stub if puzzle == "double_buffer" else Stub).pending
    assert simgpu.active() is None


@pytest.mark.parametrize("puzzle", PUZZLES)
def test_solution_passes(puzzle):
    verdict = check.judge(getattr(SOLUTION, puzzle))
    assert verdict.passed and not verdict.advice and verdict.tried, str(verdict)
    assert max(map(len, str(verdict).splitlines())) <= 80
