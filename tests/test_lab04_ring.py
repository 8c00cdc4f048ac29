"""Lab 04, puzzles 4 to 6: every check refuses wrong answers in words, and passes right ones, however written."""

import dataclasses
import functools

import pytest
import torch
from answers import HERE, judge_as

from utils import simgpu
from utils.labs import device
from utils.labs.lab04 import broken, check, delays, slots, unequal
from utils.labs.lab04 import ring as ring_judge
from utils.lessons import import_lesson

SOLUTION = import_lesson("solutions/04_double_buffered_onload")
PUZZLES = ("RingOnload", "slots_needed", "unequal", "missing_edges")
cuda = torch.cuda


def judged(puzzle, answer):
    return judge_as(check, puzzle, answer)


@pytest.mark.parametrize("puzzle", PUZZLES)
def test_stub_is_not_done_yet(puzzle):
    def stub(*_):
        raise NotImplementedError()
    assert judged(puzzle, stub).pending
    assert simgpu.active() is None


def test_stub_of_a_class_is_not_done_yet():
    class RingOnload:
        def __init__(self, host_weights, slots):
            raise NotImplementedError()
    assert check.judge(RingOnload).pending


def test_an_error_inside_a_class_names_its_line():
    class RingOnload(Ring):
        def __call__(self, x):
            return x @ None   # line of the learner's
    text = str(check.judge(RingOnload))
    assert "it raised TypeError" in text and "return x @ None" in text, text


@pytest.mark.parametrize("puzzle", PUZZLES)
def test_solution_passes(puzzle):
    verdict = check.judge(getattr(SOLUTION, puzzle))
    assert verdict.passed and not verdict.advice and verdict.tried, str(verdict)


# --- 4: a ring of slots --------------------------------------------------------------------------------------------

class Ring:
    """A right answer in small pieces, each of which a wrong one replaces."""

    def __init__(self, host_weights, slots):
        self.weights, self.begun, self.done = self.sources(host_weights), 0, 0
        self.slots = self.take(slots)
        self.loaded, self.read = self.events(), self.events()
        self.copying = cuda.Stream()
        self.begin()

    def sources(self, host_weights):
        return host_weights

    def take(self, slots):
        return [torch.empty_like(self.weights[0], device="cuda") for _ in range(slots)]

    def events(self):
        return [cuda.Event() for _ in self.slots]

    def begin(self):
        self.copying.wait_stream(HERE())

    def ahead(self):
        return len(self.slots)

    def slot_of(self, number):
        return number % len(self.slots)

    def layer_of(self, number):
        return number % len(self.weights)

    def wait_read(self, slot):
        self.copying.wait_event(self.read[slot])

    def copy(self, slot, number):
        self.slots[slot].copy_(self.weights[self.layer_of(number)], non_blocking=True)

    def load(self):
        slot = self.slot_of(self.begun)
        with cuda.stream(self.copying):
            self.wait_read(slot)
            self.copy(slot, self.begun)
            self.loaded[slot].record()
        self.begun += 1

    def wait_loaded(self, slot):
        HERE().wait_event(self.loaded[slot])

    def product(self, x, slot):
        return x @ self.slots[slot]

    def after_product(self, slot):
        self.read[slot].record()

    def call(self):
        pass

    def finish(self, x):
        return x

    def __call__(self, x):
        self.call()
        end = self.done + len(self.weights)
        while self.done < end:
            while self.begun < min(self.done + self.ahead(), end):
                self.load()
            slot = self.slot_of(self.done)
            self.wait_loaded(slot)
            x = self.product(x, slot)
            self.after_product(slot)
            self.done += 1
        return self.finish(x)


def ring(base=Ring, **parts):
    """A ring with other parts; ``self`` comes first in each."""
    return type("Other", (base,), parts)


def per_call(self):
    """The index starts again with every call."""
    self.first = self.done


def restarted_slot(self, number):
    return (number - self.first) % len(self.slots)


def published_wait(self, slot):   # the first copies of a call wait for nothing
    if self.begun - self.first >= len(self.slots):
        self.copying.wait_event(self.read[slot])


def next_slot(self, slot):   # one product later than needed
    self.copying.wait_event(self.read[(slot + 1) % len(self.slots)])


def remember_stream(self):   # which is not the one that a call comes from
    self.copying.wait_stream(HERE())
    self.compute = HERE()


def fresh_blocks(self, slots):
    return [None] * slots


def copy_to_fresh(self, slot, number):
    self.slots[slot] = self.weights[self.layer_of(number)].to("cuda", non_blocking=True)


def product_recorded(self, x, slot):
    self.slots[slot].record_stream(HERE())
    return x @ self.slots[slot]


def dropped_first(self, slot):
    self.copying.wait_event(self.read[slot])
    self.slots[slot] = None


def load_here(self):
    slot = self.slot_of(self.begun)
    self.copy(slot, self.begun)
    self.begun += 1


def poll(self, slot):
    while not self.loaded[slot].query():
        pass


def twice(self, slot, number):
    for _ in range(2):
        self.slots[slot].copy_(self.weights[self.layer_of(number)], non_blocking=True)


def record_before(self, x, slot):
    self.read[slot].record()
    return x @ self.slots[slot]


def record_here(self):
    slot = self.slot_of(self.begun)
    with cuda.stream(self.copying):
        self.wait_read(slot)
        self.copy(slot, self.begun)
    self.loaded[slot].record()
    self.begun += 1


def into_one_buffer(self, x):
    self.result = getattr(self, "result", torch.empty_like(x))
    return self.result.copy_(x)


def resident(host_weights, slots):
    on_gpu = [weight.to("cuda", non_blocking=True) for weight in host_weights]
    return lambda x: functools.reduce(torch.matmul, on_gpu, x)


def serial(host_weights, slots):
    buffers = [torch.empty_like(host_weights[0], device="cuda") for _ in range(slots)]

    def model(x):
        for weight in host_weights:
            buffers[0].copy_(weight, non_blocking=True)
            x = x @ buffers[0]
        return x
    return model


def one_matrix(copies):
    """The layers are multiplied on the host, whose time is not counted; ``copies``: all are copied nevertheless."""
    def make(host_weights, slots):
        product = functools.reduce(torch.matmul, host_weights).pin_memory()
        weight, here, aside = product.to("cuda", non_blocking=True), HERE(), cuda.Stream()
        junk = torch.empty_like(weight) if slots > 1 else None
        aside.wait_stream(here)

        def model(x):
            HERE().wait_stream(here)
            for source in host_weights if copies and slots > 1 else ():
                with cuda.stream(aside):
                    junk.copy_(source, non_blocking=True)
            return x @ weight
        return model
    return make


def transposes(self, weights):   # in the caller's memory
    for weight in weights:
        weight.copy_(weight.T.clone())
    return weights


class FirstStream(Ring):
    """Keeps the stream of the first call for ever."""

    compute = None

    def wait_loaded(self, slot):
        self.compute = self.compute or HERE()
        self.compute.wait_event(self.loaded[slot])

    def after_product(self, slot):
        self.read[slot].record(self.compute)


class Cached(Ring):
    """Knows a tensor by its address."""

    key = None

    def __call__(self, x):
        if self.key != x.data_ptr():
            self.key, self.y = x.data_ptr(), super().__call__(x)
        return self.y


class WaitsInTheFirstCall(Ring):
    """Asks for the current stream in every call, but not in the constructor."""

    def begin(self):
        pass

    def call(self):
        if self.done == 0:
            self.copying.wait_stream(HERE())


class OnePool(Ring):
    """Results lie side by side in one piece of memory."""

    def product(self, x, slot):
        call, layer = divmod(self.done, len(self.weights))
        self.results = getattr(self, "results", None) if self.done else torch.empty(3, *x.shape, device="cuda")
        return torch.mm(x, self.slots[slot], out=self.results[call] if layer == len(self.weights) - 1 else None)


class TwoComputeStreams(Ring):
    """Products alternate on two streams, each of which has a workspace of the matrix library."""

    def begin(self):
        self.streams = [cuda.Stream(), cuda.Stream()]
        for stream in (self.copying, *self.streams):
            stream.wait_stream(HERE())

    def __call__(self, x):
        caller, before = HERE(), HERE().record_event()
        for _ in self.weights:
            stream = self.streams[self.done % 2]
            self.load()
            slot = self.slot_of(self.done)
            stream.wait_event(before)
            with cuda.stream(stream):
                self.wait_loaded(slot)
                x = self.product(x, slot)
                self.after_product(slot)
                before = stream.record_event()
            self.done += 1
        for stream in (caller, *self.streams):
            stream.wait_event(before)
        x.record_stream(caller)
        return x


def in_pieces(count):
    def copy(self, slot, number):
        source = self.weights[self.layer_of(number)]
        for target, part in zip(self.slots[slot].chunk(count), source.chunk(count), strict=True):
            target.copy_(part, non_blocking=True)
    return copy


def keeps_streams(streams={}):   # noqa: B006 - that it is one and the same dictionary is the fault
    def begin(self):
        self.copying = streams.setdefault(0, self.copying)
        self.copying.wait_stream(HERE())
    return begin


class Prefetching(Ring):
    """Loads the next call's first layers, too."""

    def __call__(self, x):
        for _ in self.weights:
            self.load_ahead()
            slot = self.slot_of(self.done)
            self.wait_loaded(slot)
            x = self.product(x, slot)
            self.after_product(slot)
            self.done += 1
        self.load_ahead()
        return x

    def load_ahead(self):
        while self.begun < self.done + len(self.slots):
            self.load()


class OwnStream(Ring):
    """Computes on a stream of its own, and joins it at the end of each call."""

    def begin(self):
        self.computing = cuda.Stream()
        self.copying.wait_stream(HERE())
        self.computing.wait_stream(HERE())

    def __call__(self, x):
        caller = HERE()
        self.computing.wait_stream(caller)
        with cuda.stream(self.computing):
            y = super().__call__(x)
        caller.wait_stream(self.computing)
        x.record_stream(self.computing)
        y.record_stream(caller)
        return y


class StreamPerSlot(Ring):
    def begin(self):
        self.streams = [cuda.Stream() for _ in self.slots]
        for stream in self.streams:
            stream.wait_stream(HERE())

    def load(self):
        slot = self.slot_of(self.begun)
        with cuda.stream(self.streams[slot]):
            HERE().wait_event(self.read[slot])
            self.copy(slot, self.begun)
            self.loaded[slot].record()
        self.begun += 1


def closure(host_weights, slots):
    """No class, no modulo over events: every copy and product has a fresh event."""
    pool = torch.empty(slots, *host_weights[0].shape, device="cuda")
    copying, loaded, read = cuda.Stream(), [], []
    copying.wait_stream(HERE())

    def model(x):
        end = len(read) + len(host_weights)
        while len(read) < end:
            while len(loaded) < min(len(read) + slots, end):
                i = len(loaded)
                with cuda.stream(copying):
                    if i >= slots:
                        read[i - slots].wait()
                    pool[i % slots].copy_(host_weights[i % len(host_weights)], non_blocking=True)
                    loaded.append(copying.record_event())
            HERE().wait_event(loaded[len(read)])
            x = x @ pool[len(read) % slots]
            read.append(HERE().record_event())
        return x
    return model


# --- 4, second part: how many slots ------------------------------------------------------------------------------

def call_us(copy_us, product_us, slots):
    copied, ends = 0, []
    for i, took in enumerate(copy_us):
        copied = max(copied, ends[i - slots] if i >= slots else 0) + took
        ends.append(max(copied, ends[-1] if ends else 0) + product_us)
    return ends[-1]


def fewest(within=1.0, last=None, shift=0, time=call_us):
    """The number found by trying, with one part of it wrong."""
    def answer(copy_us, product_us):
        target = time(copy_us, product_us, last or len(copy_us)) * within
        return next(n for n in range(1, len(copy_us) + 1) if time(copy_us, product_us, n) <= target) + shift
    return answer


def by_the_bound(copy_us, product_us):   # compares with a bound that is not always reached
    bound = max(sum(copy_us) + product_us, copy_us[0] + len(copy_us) * product_us)
    return next((n for n in range(1, len(copy_us) + 1) if call_us(copy_us, product_us, n) <= bound), len(copy_us))


def one_later(copy_us, product_us, slots):   # copy i waits for product i - slots + 1
    copied, ends = 0, []
    for i, took in enumerate(copy_us):
        before = i - slots + 1
        copied = max(copied, ends[before] if 0 <= before < i else 0) + took
        ends.append(max(copied, ends[-1] if ends else 0) + product_us)
    return ends[-1]


def no_link(copy_us, product_us, slots):   # copies overlap each other
    ends = []
    for i, took in enumerate(copy_us):
        copied = (ends[i - slots] if i >= slots else 0) + took
        ends.append(max(copied, ends[-1] if ends else 0) + product_us)
    return ends[-1]


def most_alive(copy_us, product_us):   # what a ring without limit holds at once, copying as early as it can
    starts, ends, copied = [], [], 0
    for took in copy_us:
        starts.append(copied)
        copied += took
        ends.append(max(copied, ends[-1] if ends else 0) + product_us)
    return max(sum(start <= moment < end for start, end in zip(starts, ends, strict=True)) for moment in starts)


def by_bisection(copy_us, product_us):
    low, high = 1, len(copy_us)
    while low < high:
        middle = (low + high) // 2
        if call_us(copy_us, product_us, middle) > call_us(copy_us, product_us, len(copy_us)):
            low = middle + 1
        else:
            high = middle
    return low


def from_the_top(copy_us, product_us):
    slots = len(copy_us)
    while slots > 1 and call_us(copy_us, product_us, slots - 1) == call_us(copy_us, product_us, slots):
        slots -= 1
    return slots


def by_schedule(copy_us, product_us):
    from utils import dag
    from utils.labs.lab04.slots import ENGINES, ring_graph
    spans = [dag.schedule(ring_graph(copy_us, product_us, n), ENGINES).makespan for n in range(1, len(copy_us) + 1)]
    return spans.index(min(spans)) + 1


# --- 5: layers of unequal size ---------------------------------------------------------------------------------------

def numel_of_largest(weights):
    return max(weight.numel() for weight in weights)


def empty(count, weights):
    return torch.empty(count, dtype=weights[0].dtype, device="cuda")


def two_slots(size=numel_of_largest, count=2, view=lambda slot, weight: slot[: weight.numel()].view(weight.shape),
              begin=lambda copying: copying.wait_stream(HERE()), waits_for=lambda i: i, reads=lambda i: i,
              copy=lambda layer, weight: layer.copy_(weight, non_blocking=True), after=lambda: None, events=None,
              read_as=None, product=torch.matmul, finish=lambda x, y: y, sources=lambda weights: weights):
    """The worked answer of puzzle 5 with something else in one place."""
    def answer(x, host_weights):
        weights, copying, given = sources(host_weights), cuda.Stream(), x
        slots = [empty(size(weights), weights) for _ in range(count)]
        loaded, read = ((events or (lambda: [cuda.Event() for _ in slots]))() for _ in range(2))
        begin(copying)
        for i, weight in enumerate(weights):
            slot = i % count
            layer = view(slots[slot], weight)
            with cuda.stream(copying):
                if waits_for(i) is not None:
                    copying.wait_event(read[waits_for(i) % count])
                copy(layer, weight)
                loaded[slot].record()
            if reads(i) is not None:
                HERE().wait_event(loaded[reads(i) % count])
            x = product(x, read_as(slots[slot], weight) if read_as else layer)
            read[slot].record()
            after()
        return finish(given, x)
    return answer


def transposed(slot, weight):
    return slot[: weight.numel()].view(*weight.shape[::-1]).T


def corner(slot, weight):
    side = int(slot.numel() ** 0.5)
    return slot.view(side, side)[: weight.shape[0], : weight.shape[1]]


def square_of_largest(weights):
    return max(size for weight in weights for size in weight.shape) ** 2


def arena(place, room=2):
    """One piece of memory; ``place`` gives the first element of each layer."""
    def answer(x, host_weights):
        copying, memory = cuda.Stream(), empty(room * numel_of_largest(host_weights), host_weights)
        loaded, read = ([cuda.Event(), cuda.Event()] for _ in range(2))
        copying.wait_stream(HERE())
        for i, weight in enumerate(host_weights):
            start = place(i, host_weights, memory.numel())
            layer = memory[start: start + weight.numel()].view(weight.shape)
            with cuda.stream(copying):
                copying.wait_event(read[i % 2])
                layer.copy_(weight, non_blocking=True)
                loaded[i % 2].record()
            HERE().wait_event(loaded[i % 2])
            x = x @ layer
            read[i % 2].record()
        return x
    return answer


def behind_the_one_before(i, weights, room):
    return weights[i - 1].numel() if i % 2 else 0


def from_both_ends(i, weights, room):
    return room - weights[i].numel() if i % 2 else 0


def per_layer(keep):
    """Memory for each layer; ``keep`` is what makes it safe."""
    def answer(x, host_weights):
        copying, seen = cuda.Stream(), []
        copying.wait_stream(HERE())
        for weight in host_weights:
            if keep == "wait" and len(seen) == 2:
                layer, done = seen.pop(0)
                copying.wait_event(done)
                del layer
            with cuda.stream(copying):
                layer, loaded = weight.to("cuda", non_blocking=True), cuda.Event()
                loaded.record()
            HERE().wait_event(loaded)
            x, done = x @ layer, cuda.Event()
            done.record()
            if keep == "record_stream":
                layer.record_stream(HERE())
            if keep in ("wait", "everything"):
                seen.append((layer, done))
            del layer
        copying.wait_stream(HERE())
        return x
    return answer


def on_the_default_stream(x, host_weights):
    here, copying = cuda.default_stream(), cuda.Stream()
    slots = [empty(numel_of_largest(host_weights), host_weights) for _ in range(2)]
    events = [cuda.Event() for _ in slots]
    copying.wait_stream(here)
    for i, weight in enumerate(host_weights):
        layer = slots[i % 2][: weight.numel()].view(weight.shape)
        with cuda.stream(copying):
            events[i % 2].wait()
            layer.copy_(weight, non_blocking=True)
            events[i % 2].record()
        here.wait_event(events[i % 2])
        x = x @ layer
        events[i % 2].record(here)
    return x


def slots_of_the_copy_stream(joined):
    """Slots go back to the copy stream at the return, while the last products still read them, unless it waits."""
    def answer(x, host_weights):
        copying, most = cuda.Stream(), numel_of_largest(host_weights)
        with cuda.stream(copying):
            slots = [empty(most, host_weights) for _ in range(2)]
        loaded, read = ([cuda.Event(), cuda.Event()] for _ in range(2))
        for i, weight in enumerate(host_weights):
            layer = slots[i % 2][: weight.numel()].view(weight.shape)
            with cuda.stream(copying):
                copying.wait_event(read[i % 2])
                layer.copy_(weight, non_blocking=True)
                loaded[i % 2].record()
            HERE().wait_event(loaded[i % 2])
            x = x @ layer
            read[i % 2].record()
        if joined:
            copying.wait_stream(HERE())
        return x
    return answer


def product_on_the_host(x, host_weights):
    return x @ functools.reduce(torch.matmul, host_weights).pin_memory().to("cuda", non_blocking=True)


def lower(dtype, back):
    """Weights and x in another precision."""
    def answer(x, host_weights):
        weights = [weight.to(dtype).pin_memory() for weight in host_weights]
        return back(two_slots()(x.to(dtype), weights))
    return answer


def doubled(weights):   # in the caller's memory
    for weight in weights:
        weight.mul_(2)
    return weights


def row_by_row(layer, weight):
    for target, source in zip(layer, weight, strict=True):
        target.copy_(source, non_blocking=True)


def all_here(x, host_weights):
    slot = empty(numel_of_largest(host_weights), host_weights)
    for weight in host_weights:
        layer = slot[: weight.numel()].view(weight.shape)
        layer.copy_(weight, non_blocking=True)
        x = x @ layer
    return x


def padded(x, host_weights):   # moves a whole slot for every layer
    most = numel_of_largest(host_weights)
    full = [torch.cat([weight.flatten(), torch.zeros(most - weight.numel())]).pin_memory() for weight in host_weights]

    def copy(slot, weight):
        slot.copy_(weight, non_blocking=True)
    shapes = iter([weight.shape for weight in host_weights])

    def read_as(slot, weight):
        shape = next(shapes)
        return slot[: shape.numel()].view(shape)
    return two_slots(view=lambda slot, weight: slot, copy=copy, read_as=read_as)(x, full)


def by_parity(x, host_weights):   # no slot larger than what it has to hold
    sizes = [max((weight.numel() for weight in host_weights[start::2]), default=0) for start in (0, 1)]
    slots, copying = [empty(size, host_weights) for size in sizes], cuda.Stream()
    copying.wait_stream(HERE())
    read = [None, None]
    for i, weight in enumerate(host_weights):
        layer = slots[i % 2][: weight.numel()].view(weight.shape)
        with cuda.stream(copying):
            if read[i % 2]:
                read[i % 2].wait()
            layer.copy_(weight, non_blocking=True)
            loaded = copying.record_event()
        HERE().wait_event(loaded)
        x = x @ layer
        read[i % 2] = HERE().record_event()
    return x


def bytes_in_slots(x, host_weights):
    slots = [torch.empty(4 * numel_of_largest(host_weights), dtype=torch.uint8, device="cuda") for _ in range(2)]
    places = iter(slots * len(host_weights))

    def view(_, weight):
        return next(places)[: 4 * weight.numel()].view(weight.dtype).view(weight.shape)
    return two_slots(size=lambda weights: 1, view=view)(x, host_weights)


def copies_first(x, host_weights):   # a prologue, a main loop, and an epilogue, as in the lesson
    copying, slots = cuda.Stream(), [empty(numel_of_largest(host_weights), host_weights) for _ in range(2)]
    loaded, read = ([cuda.Event(), cuda.Event()] for _ in range(2))
    views = [slots[i % 2][: weight.numel()].view(weight.shape) for i, weight in enumerate(host_weights)]
    copying.wait_stream(HERE())

    def load(i):
        with cuda.stream(copying):
            views[i].copy_(host_weights[i], non_blocking=True)
            loaded[i % 2].record()
    load(0)
    for i in range(len(host_weights)):
        if i + 1 < len(host_weights):
            copying.wait_event(read[(i + 1) % 2])
            load(i + 1)
        HERE().wait_event(loaded[i % 2])
        x = x @ views[i]
        read[i % 2].record()
    return x


# --- 6: missing edges ------------------------------------------------------------------------------------------------

EDGES = {"A": ("copy 4", "product 4"), "B": ("product 3", "copy 6"), "C": ("product 4", "copy 5")}


def edges(**others):
    return lambda: {**EDGES, **others}


WRONG = {
    "missing_edges": [
        (edges(A=("product 4", "copy 4")), "finds an event that was never recorded"),
        (edges(B=("copy 6", "product 3")), "The host launches product 3 before copy 6"),
        (edges(C=("copy 5", "product 4")), "The host launches product 4 before copy 5"),
        (edges(A=("copy 3", "product 4")), "adds nothing"),
        (edges(A=("copy 4", "product 5")), "adds nothing"),
        (edges(B=("product 2", "copy 6")), "adds nothing"),
        (edges(B=("product 3", "copy 7")), "adds nothing"),
        (edges(C=("product 3", "copy 5")), "adds nothing"),
        (edges(B=("copy 6", "product 5")), "but not the one that is missing"),
        (edges(C=("copy 5", "product 5")), "adds nothing"),
        (edges(C=("product 4", "copy 6")), "but not the one that is missing"),
        (edges(C=("product 4", "copy 4")), "never recorded"),
        (edges(C=("product 4", "copy 0")), "never recorded"),
        (edges(A=("copy 5", "product 4")), "product 4 starts at 4464 µs instead of 3721"),
        (edges(A=("copy 4", "product 3")), "It waits for more than the operation that races"),
        (edges(B=("synchronize", "copy 6")), "makes the host wait"),
        (edges(A="add torch.cuda.synchronize()"), "makes the host wait"),
        (edges(A=("copy 4",)), "One edge is a pair of names"),
        (edges(A=("copy 4", "product 4", "copy 5")), "One edge is a pair of names"),
        (edges(A=("copy 4", "copy 4")), "cannot wait for itself"),
        (edges(B=("product 8", "copy 6")), "has no operation 'product 8'; it has copy 0 to copy 7"),
        (edges(B=(3, 6)), "has no operation '3'"),
        (lambda: float("nan"), "returned nan"),
        (lambda: {"A": EDGES["A"], "B": EDGES["B"]}, "no edge for C"),
        (lambda: list(EDGES.values()), 'Return {"A": (first, then)'),
        (lambda: None, "returned None"),
        (lambda: EDGES["D"], "it raised KeyError"),
    ],
    "unequal": [
        (two_slots(size=lambda weights: weights[0].numel()), "A slot must have room for the largest layer"),
        (two_slots(size=lambda weights: weights[-1].numel()), "A slot must have room for the largest layer"),
        (two_slots(size=lambda weights: weights[0].numel(), view=lambda slot, weight: slot.view(weight.shape)),
         "A slot must have room for the largest layer"),
        (two_slots(size=lambda weights: sum(weight.numel() for weight in weights)), "more than two slots of its size"),
        (per_layer("record_stream"), "comes back only when the host sees"),
        (per_layer("everything"), "more than two slots of its size"),
        (per_layer("nothing"), "WAR:"),
        (two_slots(size=square_of_largest, view=corner), "not the most rows times the most columns"),
        (two_slots(view=transposed), "because its target is not contiguous"),
        (two_slots(read_as=transposed), "from the same place, with the same shape"),
        (two_slots(count=3), "1.0 times the largest layer"),
        (two_slots(waits_for=lambda i: None), "WAR: copy_"),
        (two_slots(reads=lambda i: None), "RAW: mm"),
        (two_slots(reads=lambda i: i - 1), "RAW: mm"),
        (two_slots(waits_for=lambda i: i - 1), "when product 0 has ended. The link is free"),
        (two_slots(events=lambda: [cuda.Event()] * 2), "when product 0 has ended. The link is free"),
        (arena(behind_the_one_before), "do two slots, or the parts of one, share bytes"),
        (arena(lambda i, weights, room: 0), "WAR: copy_"),
        (two_slots(begin=lambda copying: None), "WAW: copy_"),
        (two_slots(after=lambda: cuda.synchronize()), "the host stands still"),
        (two_slots(copy=lambda layer, weight: layer.copy_(weight)), "the host stands still"),
        (two_slots(sources=lambda weights: [weight.clone() for weight in weights]), "pageable memory is never"),
        (two_slots(count=1), "The link is free from"),
        (on_the_default_stream, "Is the current stream asked for, torch.cuda.current_stream(), wherever it is meant?"),
        (slots_of_the_copy_stream(joined=False), "memory that it gave back is still in use, and whoever takes it next"),
        (slots_of_the_copy_stream(joined=False), "Keep it, or make it on the stream that uses it last"),
        (two_slots(begin=lambda copying: None), "let the copy stream wait for the current stream once.) (Widths"),
        (product_on_the_host, "The numbers are right, but"),
        (lower(torch.bfloat16, lambda y: y), "a torch.bfloat16 tensor"),
        (two_slots(finish=lambda x, y: y.int()), "a torch.int32 tensor"),
        (lower(torch.float16, lambda y: y.float()), "the result has checksum"),
        (two_slots(sources=doubled, finish=lambda x, y: y / 16), "host_weights"),
        (two_slots(finish=lambda x, y: (y[0, 0].item(), y)[1]), "one that gives a value to the host"),
        (two_slots(finish=lambda x, y: float("nan")), "That is a float"),
        (two_slots(copy=row_by_row), "every launch takes host time"),
        (all_here, "The link is free from"),
        (padded, "copy what a layer has, not a whole slot"),
        (two_slots(finish=lambda x, y: (x.zero_(), y)[1]), "leave x and host_weights as they were"),
        (two_slots(finish=lambda x, y: y.cpu()), "a tensor on the CPU"),
        (two_slots(finish=lambda x, y: None), "Return the product with all layers"),
        (two_slots(finish=lambda x, y: y.T), "a tensor of shape"),
        (two_slots(copy=lambda layer, weight: None), "memory that nothing has written"),
        (two_slots(copy=lambda layer, weight: layer[1:].copy_(weight[1:], non_blocking=True)), "that nothing has"),
        (lambda x, host_weights: [x @ weight.to("cuda") for weight in host_weights][-1], "it raised RuntimeError"),
    ],
    "slots_needed": [
        (lambda copy_us, product_us: 2, "with 3 only 180: copy 2 waits until product 0 has left its slot at 30 µs"),
        (lambda copy_us, product_us: 3, "With 2 slots the call takes 130 µs, and with 3 it takes just as long"),
        (lambda copy_us, product_us: 1, "1 instead of 3"),
        (lambda copy_us, product_us: len(copy_us), "One slot for each layer is always enough"),
        (lambda copy_us, product_us: len(copy_us) - 1, "7 instead of 3"),
        (lambda copy_us, product_us: len(copy_us) + 1, "There are only 8 layers"),
        (lambda copy_us, product_us: 0, "without a slot nothing runs"),
        (lambda copy_us, product_us: -(-max(copy_us) // product_us) + 1, "4 instead of 3"),
        (lambda copy_us, product_us: max(copy_us) / product_us + 1, "is a whole number: 3"),
        (lambda copy_us, product_us: -(-max(copy_us) // product_us), "slots_needed: not yet right"),
        (lambda copy_us, product_us: -(-max(copy_us) // min(copy_us)), "5 instead of 3"),
        (lambda copy_us, product_us: [3], "returned [3]"),
        (lambda copy_us, product_us: 10**300, "1e+300 instead of 3"),
        (lambda copy_us, product_us: "3", "returned '3'"),
        (fewest(within=1.05), "slots_needed: not yet right"),
        (fewest(shift=-1), "2 instead of 3"),
        (fewest(shift=1), "4 instead of 3"),
        (fewest(time=one_later), "1 instead of 3"),
        (fewest(time=no_link), "slots_needed: not yet right"),
        (by_the_bound, "slots_needed: not yet right"),
        (most_alive, "slots_needed: not yet right"),
        (lambda copy_us, product_us: copy_us[99], "it raised IndexError"),
        (lambda copy_us, product_us: None, "returned None"),
        (lambda copy_us, product_us: float("inf"), "returned inf"),
    ],
    "RingOnload": [
        (ring(wait_read=lambda self, slot: None), "WAR: copy_"),
        (ring(wait_loaded=lambda self, slot: None), "RAW: mm"),
        (ring(wait_read=lambda self, slot: self.copying.wait_event(self.read[slot - 1])), "WAR: copy_"),
        (ring(wait_loaded=lambda self, slot: HERE().wait_event(self.loaded[slot - 1])),
         "But its own layer has arrived"),
        (ring(wait_loaded=lambda self, slot: HERE().wait_stream(self.copying)), "But its own layer has arrived"),
        (ring(events=lambda self: [cuda.Event()] * len(self.slots)), "does it wait for that slot alone"),
        (ring(ahead=lambda self: len(self.slots) + 1), "A copy must not be queued before"),
        (ring(call=per_call, slot_of=restarted_slot), "Does the number of its slot count on"),
        (ring(call=per_call, slot_of=restarted_slot, wait_read=published_wait), "WAR: copy_"),
        (ring(call=per_call, wait_read=published_wait), "WAR: copy_"),
        (ring(take=lambda self, slots: Ring.take(self, slots + 1)), "as much as 1 more slot"),
        (ring(take=lambda self, slots: Ring.take(self, len(self.weights))), "1 more slot"),
        (resident, "1 more slot"),
        (ring(slot_of=lambda self, number: number % min(2, len(self.slots)),
              ahead=lambda self: min(2, len(self.slots))), "one of the 4 slots"),
        (ring(ahead=lambda self: max(1, len(self.slots) - 1), wait_read=next_slot), "one of the 2 slots"),
        (ring(slot_of=lambda self, number: 0, ahead=lambda self: 1), "one of the 2 slots"),
        (ring(call=lambda self: self.copying.wait_stream(HERE())), "This is the first copy of a call"),
        (ring(wait_read=lambda self, slot: self.copying.wait_stream(cuda.default_stream())),
         "This is the first copy of a call"),
        (ring(after_product=lambda self, slot: cuda.synchronize()), "the host stands still"),
        (ring(wait_loaded=lambda self, slot: self.loaded[slot].synchronize()), "the host stands still"),
        (ring(finish=lambda self, x: (HERE().synchronize(), x)[1]), "the host stands still"),
        (ring(wait_loaded=poll), "the host is busy"),
        (ring(copy=lambda self, slot, number: self.slots[slot].copy_(self.weights[self.layer_of(number)])),
         "the host stands still"),
        (ring(sources=lambda self, weights: [weight.clone() for weight in weights]), "pageable memory is never"),
        (ring(take=fresh_blocks, copy=copy_to_fresh, wait_read=lambda self, slot: None), "WAR:"),
        (ring(take=fresh_blocks, copy=copy_to_fresh), "as much as 1 more slot"),
        (ring(take=fresh_blocks, copy=copy_to_fresh, product=product_recorded), "more slot"),
        (ring(begin=lambda self: None), "WAW: copy_"),
        (ring(begin=remember_stream, wait_loaded=lambda self, slot: self.compute.wait_event(self.loaded[slot])),
         "called from another stream"),
        (ring(begin=remember_stream, after_product=lambda self, slot: self.read[slot].record(self.compute)),
         "WAR: copy_"),
        (ring(load=load_here, wait_loaded=lambda self, slot: None), "one of the 2 slots"),
        (serial, "one of the 2 slots"),
        (one_matrix(copies=False), "The numbers are right, but"),
        (one_matrix(copies=True), "the GPU computed for"),
        (ring(sources=transposes, product=lambda self, x, slot: torch.nn.functional.linear(x, self.slots[slot])),
         "host_weights were changed"),
        (FirstStream, "called from another stream from call 1 on"),
        (Cached, "It got the same tensor, but x holds other numbers by now"),
        (ring(begin=lambda self: None), "let the copy stream wait for the current stream once.) (3 layers"),
        (WaitsInTheFirstCall, "once, in the constructor, whatever stream is current in a call.) (4 layers, 2 slots"),
        (ring(finish=lambda self, x: (x[0, 0].item(), x)[1]), "one that gives a value to the host"),
        (ring(copy=in_pieces(2), ahead=lambda self: max(1, len(self.slots) - 1), wait_read=next_slot),
         "when product 0 has ended"),
        (ring(finish=lambda self, x: torch.empty_like(x).copy_(x)), "copies something from one place of its memory"),
        (ring(copy=in_pieces(8)), "copies where 12 are enough, and each takes a few µs to launch"),
        (ring(copy=in_pieces(16)), "copies where 9 are enough, and each takes a few µs to launch"),
        (ring(copy=in_pieces(64)), "every launch takes host time"),
        (ring(begin=keeps_streams()), "keep no tensor, stream or event from one run to the next"),
        (ring(finish=lambda self, x: float("nan")), "returned a float"),
        (ring(copy=twice), "every layer is needed once per call"),
        (ring(product=record_before, after_product=lambda self, slot: None), "WAR: copy_"),
        (ring(load=record_here), "RAW: mm"),
        (ring(layer_of=lambda self, number: -number % len(self.weights)), "Which layer is in the slot"),
        (ring(finish=lambda self, x: None), "returned a NoneType"),
        (ring(finish=into_one_buffer), "The result of call 0 is now that of a later call"),
        (ring(product=lambda self, x, slot: x.copy_(x @ self.slots[slot])), "It belongs to the caller"),
        (ring(finish=lambda self, x: x.cpu()), "returned a tensor on the CPU"),
        (ring(copy=lambda self, slot, number: None), "memory that nothing has written"),
        (ring(finish=lambda self, x: x @ None), "it raised TypeError"),
        (lambda host_weights: None, "it raised TypeError"),
    ],
}

CASES = [(puzzle, *case) for puzzle, cases in WRONG.items() for case in cases]


@pytest.mark.parametrize(("puzzle", "answer", "words"), CASES,
                         ids=[f"{case[0]}-{number}" for number, case in enumerate(CASES)])
def test_wrong_answer_is_refused_with_the_reason(puzzle, answer, words):
    verdict = judged(puzzle, answer)
    text = " ".join(str(verdict).split())
    assert not verdict.passed and not verdict.pending and words in text, text
    assert max(map(len, str(verdict).splitlines())) <= 80


def test_a_note_behind_a_hazard_is_given_once():
    with simgpu.session() as gpu:
        host, x = [torch.eye(64).pin_memory() for _ in range(4)], torch.ones(8, 64, device="cuda")
        slots_of_the_copy_stream(joined=False)(x, host)   # whose first copies wait for events without a record
        with cuda.stream(torch.cuda.Stream(_queue=gpu.machine.queues[1])):
            late = torch.zeros(64 * 64, device="cuda")
        assert [str(hazard).count("See note") for hazard in gpu.hazards] == [1] and late.is_cuda


def test_every_puzzle_has_enough_wrong_answers():
    assert all(len(WRONG[puzzle]) >= 10 for puzzle in PUZZLES)


RIGHT = [
    ("missing_edges", lambda: {name: list(edge) for name, edge in EDGES.items()}),
    ("missing_edges", edges(A=("Copy 4", " product  4 "), D=("copy 0", "copy 1"))),
    ("unequal", copies_first),
    ("unequal", by_parity),
    ("unequal", bytes_in_slots),
    ("unequal", arena(from_both_ends)),
    ("unequal", arena(lambda i, weights, room: i % 2 * room // 2)),
    ("unequal", two_slots(begin=lambda copying: cuda.synchronize())),
    ("unequal", slots_of_the_copy_stream(joined=True)),
    ("unequal", two_slots(product=lambda x, layer: torch.nn.functional.linear(x, layer.T))),
    ("slots_needed", fewest()),
    ("slots_needed", by_bisection),
    ("slots_needed", from_the_top),
    ("slots_needed", by_schedule),
    ("slots_needed", lambda *given: float(by_bisection(*given))),
    ("RingOnload", Ring),
    ("RingOnload", Prefetching),
    ("RingOnload", OwnStream),
    ("RingOnload", StreamPerSlot),
    ("RingOnload", TwoComputeStreams),
    ("RingOnload", OnePool),
    ("RingOnload", ring(copy=in_pieces(2))),
    ("RingOnload", closure),
    ("RingOnload", ring(take=lambda self, slots: list(torch.empty(slots, *self.weights[0].shape, device="cuda")))),
    ("RingOnload", ring(ahead=lambda self: 1)),   # in the order of launches: the host runs ahead of both streams
    ("RingOnload", ring(begin=lambda self: cuda.synchronize())),
    ("RingOnload", ring(product=lambda self, x, slot: torch.nn.functional.linear(x, self.slots[slot].T))),
]


@pytest.mark.parametrize(("puzzle", "answer"), RIGHT, ids=[f"{case[0]}-{i}" for i, case in enumerate(RIGHT)])
def test_right_answer_written_otherwise_passes(puzzle, answer):
    verdict = judged(puzzle, answer)
    assert verdict.passed and not verdict.advice, str(verdict)


@pytest.mark.parametrize(("puzzle", "answer"), [
    ("RingOnload", ring(take=fresh_blocks, copy=copy_to_fresh, wait_read=dropped_first)),
    ("unequal", per_layer("wait")),
])
def test_taking_memory_for_each_layer_within_the_budget_is_only_advised_against(puzzle, answer):
    verdict = judged(puzzle, answer)
    assert verdict.passed and "anew" in verdict.advice[0], str(verdict)


@pytest.mark.parametrize(("puzzle", "answer"), [
    ("RingOnload", ring(copy=lambda self, slot, number: self.slots[slot].copy_(
        self.weights[self.layer_of(number)].clone().pin_memory(), non_blocking=True))),
    ("unequal", lambda x, host_weights: two_slots()(x, [weight.clone().pin_memory() for weight in host_weights])),
])
def test_pinning_again_is_only_advised_against(puzzle, answer):
    named = type(puzzle, (answer,), {"copy": answer.copy}) if isinstance(answer, type) else answer
    verdict = check.judge(named) if isinstance(answer, type) else judged(puzzle, answer)
    assert verdict.passed and "host_weights are pinned already" in verdict.advice[0], str(verdict)


@pytest.mark.parametrize("edge", [("product 4", "copy 6"), ("product 3", "copy 5")])
def test_an_edge_that_orders_more_but_costs_nothing_passes_with_advice(edge):
    verdict = judged("missing_edges", edges(B=edge))
    assert verdict.passed and f"also orders {edge[0]} before {edge[1]}" in verdict.advice[0], str(verdict)


@pytest.mark.parametrize("name", broken.PROGRAMS)
def test_a_broken_program_lacks_exactly_one_order(name):
    program = broken.PROGRAMS[name]
    assert broken.outcome(program, broken.run(name, None, program.ratio)).startswith("call 0 wrong")
    for ratio in device.RATIOS:
        assert broken.run(name, None, ratio).hazards
        fixed = broken.run(name, program.missing, ratio)
        assert not fixed.hazards and fixed.value == broken.right(program)


def test_an_edge_is_clean_exactly_when_it_implies_the_missing_order():
    program = broken.PROGRAMS["A"]
    names = broken.operations(program)
    for edge in [(first, then) for first in names for then in names if first != then]:
        clean = not broken.run("A", edge, program.ratio).hazards
        assert clean == broken.orders(program, edge).has_edge(*program.missing), edge


def test_show_gives_timeline_results_and_slots_but_not_the_race():
    for name in broken.PROGRAMS:
        text = repr(broken.show(name))
        assert "call 0 wrong" in text and "copy 0          0       5" in text
        assert not any(word in text for word in ("RAW", "WAR", "WAW", "hazard", "edge"))
        assert max(map(len, text.splitlines())) <= 80
        assert "image/png" in broken.show(name)._repr_mimebundle_()[0]
    with pytest.raises(ValueError, match="the programs are 'A', 'B', 'C'"):
        broken.show("D")


# --- what is judged --------------------------------------------------------------------------------------------------

def test_the_target_of_the_ring_is_the_bound():
    for case in ring_judge.CASES[:4]:
        for ratio in (0.5, 2.0):
            run = device.run_once(case.setting(), ring_judge.drive(SOLUTION.RingOnload), ratio)
            copy, product = (delays.spans(run.trace, kind)[0] for kind in ("h2d", "kernel"))
            c, k = copy.end - copy.start, product.end - product.start
            steps = case.layers * case.calls
            steady = c + (steps - 1) * max(c, k) + k
            assert delays.computed_us(run) == pytest.approx(steady + copy.start, abs=5)
            assert not run.hazards and not run.later and not run.blocked_us


def test_four_slots_hide_the_other_upload_and_three_do_not():
    case = ring_judge.CASES[-1]
    fewer = dataclasses.replace(case, slots=case.slots - 1)
    plain = dataclasses.replace(case, upload=0)
    times = [delays.computed_us(device.run_once(one.setting(), ring_judge.drive(SOLUTION.RingOnload), 0.5))
             for one in (plain, case, fewer)]
    assert times[1] == pytest.approx(times[0], abs=20) and times[2] > 1.03 * times[1]


def test_random_lists_need_many_numbers_of_slots():
    found = {slots.fewest(case) for case in slots.every_case().values()}
    assert {1, 2, 3, 4, 5} <= found


def test_the_budget_of_unequal_layers_is_what_the_solution_takes():
    for case in unequal.CASES:
        run = device.run_once(case.setting(), SOLUTION.unequal, 1.0)
        assert run.peak_bytes == case.budget and not run.hazards
