"""Lab 04, puzzles 1 to 3: answers that a check once took for others, each with what it must say."""

import pytest
import torch
from test_lab04_calls import HERE, SOLUTION, double, judged, model, restart, wait_streams

from utils.labs.lab04 import calls as calls_judge
from utils.labs.lab04 import check
from utils.labs.lab04 import double as double_judge

cuda = torch.cuda
NAMES = ["BackToBack", "Prefetching"]


def said(verdict):
    return " ".join(str(verdict).split())


def ahead(name):
    return name == "Prefetching"


# --- 1: one cold call ----------------------------------------------------------------------------------------------

def through(load, multiply=lambda x, buffer: x @ buffer, wait=True, keep=None, main=HERE):
    """The worked answer with another copy, another product, other streams; ``keep``: collects outputs."""
    def answer(x, host_weights, buffers, copy_stream):
        loaded, computed = ([cuda.Event() for _ in range(2)] for _ in range(2))
        kept = []
        for i, weight in enumerate(host_weights):
            with cuda.stream(copy_stream):
                if wait:
                    copy_stream.wait_event(computed[i % 2])
                load(buffers[i % 2], weight)
                loaded[i % 2].record()
            main().wait_event(loaded[i % 2])
            x = multiply(x, buffers[i % 2])
            computed[i % 2].record(main())
            if keep:
                kept.append(x)
        return x
    return answer


def pieces(count):
    def load(buffer, weight):
        for target, source in zip(buffer.chunk(count), weight.chunk(count), strict=True):
            target.copy_(source, non_blocking=True)
    return load


def at_once(buffer, weight):
    buffer.copy_(weight, non_blocking=True)


def repinned(x, host_weights, buffers, copy_stream):
    return double()(x, [weight.clone().pin_memory() for weight in host_weights], buffers, copy_stream)


class Pins(model()):
    def load(self):
        weights = self.weights
        self.weights = [weight.clone().pin_memory() for weight in weights]
        super().load()
        self.weights = weights


def zero_beside(x, buffer):   # 4 bytes of device memory for every layer
    return torch.addmm(x.new_zeros(1), x, buffer)


def by_rows(x, buffer):
    return torch.cat([row @ buffer for row in x.split(1)])


def called(prefetch=False, load=at_once, multiply=lambda x, buffer: x @ buffer, after=lambda x: x, skip=False):
    """A model with another copy or another product; ``skip``: no copy of what a buffer holds."""
    class Answer:
        def __init__(self, host_weights):
            self.weights, self.copying, self.begun, self.done = host_weights, cuda.Stream(), 0, 0
            self.buffers = [torch.empty_like(host_weights[0], device="cuda") for _ in range(2)]
            self.loaded, self.computed = ([cuda.Event() for _ in range(2)] for _ in range(2))
            self.holds = [None, None]

        def load(self):
            slot, layer = self.begun % 2, self.begun % len(self.weights)
            self.begun += 1
            if skip and self.holds[slot] == layer:
                return
            with cuda.stream(self.copying):
                self.copying.wait_event(self.computed[slot])
                load(self.buffers[slot], self.weights[layer])
                self.loaded[slot].record()
            self.holds[slot] = layer

        def __call__(self, x):
            last = self.done + len(self.weights)
            while self.done < last:
                while self.begun < (self.done + 2 if prefetch else min(self.done + 2, last)):
                    self.load()
                slot = self.done % 2
                self.loaded[slot].wait()
                x = multiply(x, self.buffers[slot])
                self.computed[slot].record()
                self.done += 1
            return after(x)
    return Answer


def serial_in_halves(x, host_weights, buffers, copy_stream):
    for i, weight in enumerate(host_weights):
        copy_stream.wait_stream(HERE())
        with cuda.stream(copy_stream):
            pieces(2)(buffers[i % 2], weight)
        HERE().wait_stream(copy_stream)
        x = x @ buffers[i % 2]
    return x


def in_half_precision(x, host_weights, buffers, copy_stream):
    halves = [buffer.view(-1).view(torch.float16)[: buffer.numel()].view(buffer.shape) for buffer in buffers]
    weights = [weight.half().pin_memory() for weight in host_weights]
    return through(at_once)(x.half(), weights, halves, copy_stream).float()


def multiplied_on_the_host(x, host_weights, buffers, copy_stream, beside=False):
    product = torch.linalg.multi_dot([*host_weights, torch.eye(len(host_weights[0]))]).pin_memory()
    with cuda.stream(copy_stream):
        for weight in host_weights if beside else ():
            at_once(buffers[1], weight)
        at_once(buffers[0], product)
    HERE().wait_stream(copy_stream)
    return x @ buffers[0]


def first_layer_there_alone(x, host_weights, buffers, copy_stream):
    events, own = [cuda.Event() for _ in range(2)], cuda.Stream()
    for i, weight in enumerate(host_weights):
        own.wait_stream(copy_stream)
        with cuda.stream(own if i else copy_stream):
            events[i % 2].wait()
            at_once(buffers[i % 2], weight)
            events[i % 2].record()
        events[i % 2].wait()
        x = x @ buffers[i % 2]
        events[i % 2].record()
    return x


def two_compute_streams(x, host_weights, buffers, copy_stream):
    computing, before = [cuda.Stream() for _ in range(2)], HERE().record_event()
    read = [cuda.Event(), cuda.Event()]
    for i, weight in enumerate(host_weights):
        with cuda.stream(copy_stream):
            read[i % 2].wait()
            at_once(buffers[i % 2], weight)
            loaded = copy_stream.record_event()
        with cuda.stream(computing[i % 2]):
            before.wait()
            loaded.wait()
            x = x @ buffers[i % 2]
            before = read[i % 2] = HERE().record_event()
    for stream in (HERE(), *computing):   # whose memory the outputs are
        stream.wait_event(before)
    return x


def on_its_own_stream(x, host_weights, buffers, copy_stream):
    own = cuda.Stream()
    with cuda.stream(own):
        return double()(x, host_weights, buffers, copy_stream)


def default_device_left_behind(x, host_weights, buffers, copy_stream):
    torch.set_default_device("cuda")
    torch.set_default_dtype(torch.float64)
    return SOLUTION.double_buffer(x, host_weights, buffers, copy_stream)


def then(follow):
    """The worked answer, and something with the result."""
    def answer(*arguments):
        y = SOLUTION.double_buffer(*arguments)
        return follow(y)
    return answer


def read_a_value(y):
    y[0, 0].item()
    return y


WRONG = [
    (through(at_once, main=lambda: cuda.default_stream()), "another stream than the default one is current"),
    (multiplied_on_the_host, "where every layer, each copied once and whole, makes"),
    (lambda *given: multiplied_on_the_host(*given, beside=True), "multiply x by one after the other"),
    (through(pieces(2), wait=False), "is a piece of the copy of layer 2.)"),
    (serial_in_halves, "The copy of layer 1 starts only after the product of layer 0"),
    (in_half_precision, "Every order is stated, but the result is another"),
    (first_layer_there_alone, "1 of 5 layers were copied there"),
    (through(at_once, keep=True), "are old outputs kept?"),
    (through(pieces(256)), "launches"),
    (through(pieces(16)), "80 copies bring 5 layers"),
    (then(read_a_value), "or one that gives a value to the host"),
    (then(lambda y: float("nan")), "returned a float"),
    (then(lambda y: y.bfloat16()), "returned a torch.bfloat16 tensor"),
    (on_its_own_stream, "is the caller, making `x`"),
    (lambda *given: wait_streams(*given, before=False),
     "With two buffers it has to wait for no product. wait_stream waits for everything queued so far"),
]


@pytest.mark.parametrize(("answer", "says"), WRONG, ids=range(len(WRONG)))
def test_wrong_double_buffer_is_told_the_cause(answer, says):
    verdict = judged("double_buffer", answer)
    assert not verdict.passed and says in said(verdict), str(verdict)
    assert "pageable" not in said(verdict) and "More is copied" not in said(verdict), str(verdict)


@pytest.mark.parametrize(("puzzle", "answer", "where"), [
    ("double_buffer", through(pieces(256)), double_judge), ("Prefetching", called(True, pieces(256)), calls_judge)])
def test_thousands_of_launches_are_run_once(monkeypatch, puzzle, answer, where):
    assert judged(puzzle, SOLUTION.__dict__[puzzle]).passed   # the target times are known
    runs = []
    run_once = where.run_once
    monkeypatch.setattr(where, "run_once", lambda *given, **more: runs.append(given) or run_once(*given, **more))
    assert not judged(puzzle, answer).passed and len(runs) == 1


@pytest.mark.parametrize("answer", [through(pieces(8)), two_compute_streams, through(at_once, zero_beside),
                                    default_device_left_behind])
def test_right_double_buffer_passes(answer):
    verdict = judged("double_buffer", answer)
    assert verdict.passed and not verdict.advice, str(verdict)
    assert torch.get_default_dtype() == torch.float32 and torch.get_default_device().type == "cpu"


@pytest.mark.parametrize(("name", "answer"), [("double_buffer", repinned), ("BackToBack", Pins)])
def test_pinning_again_is_advised_against(name, answer):
    verdict = judged(name, answer)
    assert verdict.passed and "pinned already" in said(verdict), str(verdict)


@pytest.mark.skipif(torch.__version__.startswith("2.9."), reason="its set_default_device() pops any mode on top")
@pytest.mark.parametrize("name", ["double_buffer", "BackToBack"])
def test_defaults_of_the_notebook_change_nothing(name):
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("cuda"):
            assert check.judge(getattr(SOLUTION, name)).passed
    finally:
        torch.set_default_dtype(torch.float32)
    assert check.judge(getattr(SOLUTION, name)).passed


# --- 2 and 3: models that are called again and again ---------------------------------------------------------------

def long_kernel(self):
    with cuda.stream(cuda.Stream()):
        cuda._sleep(200_000_000)


def serial(prefetch):
    """No overlap at all, behind a constructor that keeps the GPU busy."""
    class Answer(model(slots=1, here=True, made=long_kernel)):
        pass
    return Answer


def kept_by(key):
    def make(prefetch):
        class Answer(model(prefetch)):
            seen = None

            def __call__(self, x):
                if self.seen != key(x):
                    self.seen, self.y = key(x), super().__call__(x)
                return self.y.clone()
        return Answer
    return make


def beside_one_matrix(prefetch):
    """The layers are multiplied on the host; each is copied, and none is used."""
    class Answer:
        def __init__(self, host_weights):
            self.weights, self.copying, self.ready = host_weights, cuda.Stream(), None
            self.product = torch.linalg.multi_dot([*host_weights, torch.eye(len(host_weights[0]))]).pin_memory()
            self.buffers = [torch.empty_like(self.product, device="cuda") for _ in range(2)]

        def __call__(self, x):
            with cuda.stream(self.copying):
                if self.ready is None:
                    at_once(self.buffers[0], self.product)
                    self.ready = self.copying.record_event()
                for weight in self.weights:
                    at_once(self.buffers[1], weight)
            HERE().wait_event(self.ready)
            return x @ self.buffers[0]
    return Answer


class BuiltAnew(called(True)):
    """All over again for another batch, while a copy for the next call is pending."""

    rows = None

    def __call__(self, x):
        if self.rows not in (None, len(x)):
            self.__init__(self.weights)
        self.rows = len(x)
        return super().__call__(x)


def pool(prefetch, count=5):
    """Results in one tensor, each in a place of its own, as long as there are places."""
    class Answer(model(prefetch)):
        number = 0

        def __call__(self, x):
            y = super().__call__(x)
            if not self.number:
                self.results = torch.empty(count, *y.shape, device="cuda")
            place = self.results[self.number % count].view(-1)
            self.number += 1
            if y.numel() > place.numel():
                return y
            return place[: y.numel()].view(y.shape).copy_(y)
    return Answer


CALLED = [
    (serial, "both are in one stream"),
    (kept_by(lambda x: x.data_ptr()), "nothing may be kept for an x that was seen before"),
    (beside_one_matrix, "A call multiplies x by every layer in turn"),
    (lambda prefetch: called(prefetch, pieces(256)), "launches"),
    (lambda prefetch: called(prefetch, multiply=by_rows), "launches"),
    (lambda prefetch: called(prefetch, after=read_a_value), "or one that gives a value to the host"),
    (lambda prefetch: called(prefetch, after=lambda y: float("nan")), "returned a float"),
    (lambda prefetch: pool(prefetch, 2), "Calls 1 and 3 returned the same memory"),
    (lambda prefetch: model(prefetch, place=restart, read=lambda slot: None), "is the copy of layer"),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("make", "says"), CALLED, ids=range(len(CALLED)))
def test_wrong_model_is_told_the_cause(name, make, says):
    verdict = judged(name, make(ahead(name)))
    assert not verdict.passed and says in said(verdict), str(verdict)
    assert "pageable" not in said(verdict)


def test_skipped_copies_are_named():
    text = said(judged("Prefetching", called(True, skip=True)))
    assert "A layer is copied anew even if a buffer still holds it" in text


def test_buffers_made_anew_are_not_taken_for_the_next_calls():
    text = said(judged("Prefetching", BuiltAnew))
    assert "gives its memory away" in text and "The first copies of a call" not in text and "is the copy of" not in text


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("make", [lambda prefetch: called(prefetch, pieces(2)),
                                  lambda prefetch: called(prefetch, multiply=zero_beside)])
def test_right_model_passes(name, make):
    verdict = judged(name, make(ahead(name)))
    assert verdict.passed and not verdict.advice, str(verdict)


def test_more_prefetched_copies_than_in_the_target_are_explained():
    class TwoAhead(model(True)):
        def __call__(self, x):
            y = super().__call__(x)
            while self.begun < self.done + 2:
                self.load()
            return y
    assert "for a call that never comes" in said(judged("Prefetching", TwoAhead))
    assert "for a call that never comes" not in said(judged("Prefetching", SOLUTION.Prefetching))
