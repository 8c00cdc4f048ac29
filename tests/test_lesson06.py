"""Lesson 06's loop: tokens, rows, slots and cells are right for any requests and cancellations."""

from __future__ import annotations

import random
from functools import cache

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from utils import simgpu
from utils.labs.lab06.data import Cells
from utils.lessons import import_lesson

lesson = import_lesson("06_continuous_batching")
Request = lesson.Request
CARD = simgpu.H200.with_op_time(mm=40_000)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Operations this small gain nothing from threads, which a busy machine makes wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# random workloads

@cache
def prompt(length, seed, eos):
    """Tokens; where there are some, such that EOS is the answer's token number `eos`."""
    rng = random.Random(1000 * length + seed)
    for _ in range(150):                                                # some lengths have no such prompt
        tokens = [rng.randrange(lesson.WORDS) for _ in range(length)]
        if eos is None or lesson.expected(Request("", tokens, eos + 2))[eos:] == [lesson.EOS]:
            break
    return tokens


LENGTHS = st.one_of(st.just(1), st.integers(1, 4), st.integers(1, 14))
GAPS = st.sampled_from((0, 0, 0, 0.1, 0.7, 9))                          # bursts, about a step, long gaps
REQUESTS = st.lists(st.tuples(LENGTHS, st.integers(0, 3), st.integers(1, 7), st.none() | st.integers(0, 4), GAPS),
                    min_size=1, max_size=8)
# after how many steps, which one, how many times, whether one of the same content comes instead, and whether that is
# while the step is under way
CANCELLATIONS = st.lists(st.tuples(st.integers(0, 14), st.integers(0, 9), st.integers(1, 2), st.booleans(),
                                   st.booleans()), max_size=5)
SLOTS, EXTRA = st.integers(1, 4), st.one_of(st.just(0), st.integers(0, 9), st.just(60))


def requests_of(drawn):
    made, at_ms = [], 0.0
    for length, seed, limit, eos, gap_ms in drawn:
        at_ms += gap_ms
        made.append(Request("same name", list(prompt(length, seed, eos)), limit, at_ms))
    return made


class Watch:
    """Goes before a scheduler: cancels as drawn, and judges each step's rows and slots."""

    def start(self, requests, cancellations=()):
        self.known, self.cancelled, self.to_cancel = list(requests), [], list(cancellations)
        self.slots, self.all_rows, self.last_ms = len(self.free), [], 0.0
        self.add(*random.Random(len(requests)).sample(requests, len(requests)))
        return self

    def cancel_now(self, at_ms, under_way=False):
        for each in [each for each in self.to_cancel if each[0] <= len(self.all_rows) and each[4] == under_way]:
            self.to_cancel.remove(each)
            request = self.known[each[1] % len(self.known)]
            was, others = request.finished, [id(one) for one in (*self.waiting, *self.running) if one is not request]
            for _ in range(each[2]):
                self.cancel(request)
            assert [id(one) for one in (*self.waiting, *self.running)] == others and request.slot is None
            if not was and request not in self.cancelled:
                self.cancelled.append(request)
                if each[3]:
                    self.known.append(Request(request.name, list(request.prompt), request.limit, at_ms))
                    self.add(self.known[-1])

    def check_slots(self):
        held = [request.slot for request in self.running]
        assert sorted([*self.free, *held]) == list(range(self.slots)) and len(self.running) == len(set(self.running))
        assert not set(self.running) & set(self.waiting)

    def step(self, at_ms):
        assert at_ms >= self.last_ms
        self.last_ms = at_ms
        self.cancel_now(at_ms)
        self.check_slots()
        done = {request: (request.done, len(request.tokens)) for request in self.known}
        rows = super().step(at_ms)
        self.check_slots()
        self.check_rows(rows, done, at_ms)
        if rows:
            self.all_rows.append([(row.request, row.slot, row.token, row.position) for row in rows])
        return rows

    def check_rows(self, rows, done, at_ms):
        """In order and each once: decode first, one row each; nobody who could have more, while the budget lasts."""
        assert len(rows) <= self.budget and bool(rows) == bool(self.running)
        at = {request: prompt and prompt + max(0, tokens - 1) for request, (prompt, tokens) in done.items()}
        for row in rows:
            words = [*row.request.prompt, *row.request.tokens]
            assert row.request in self.running and row.request.arrival_ms <= at_ms and not row.request.finished
            assert (row.position, row.token) == (at[row.request], words[row.position])
            assert row.last == (row.position == len(words) - 1) and row.slot == row.request.slot
            at[row.request] += 1
        mine = {request: sum(row.request is request for row in rows) for request in self.running}
        decode = [request for request in self.running if done[request][1]]
        assert all(mine[request] == 1 for request in decode)
        short = [request for request in self.running if request.done < len(request.prompt)]
        assert not short or len(rows) == self.budget

    def check_end(self):
        assert not self.waiting and not self.running and sorted(self.free) == list(range(self.slots))
        for request in self.known:
            wanted = lesson.expected(request)
            assert request.slot is None and len(request.times_ms) == len(request.tokens)
            if request in self.cancelled:
                assert request.tokens == wanted[:len(request.tokens)] and len(request.tokens) < len(wanted)
            else:
                assert request.tokens == wanted
            assert sorted(request.times_ms) == request.times_ms
            assert all(time_ms > request.arrival_ms for time_ms in request.times_ms)


class Continuous(Watch, lesson.Batching):
    def step(self, at_ms):
        rows = super().step(at_ms)
        assert not (self.free and self.waiting) or self.waiting[0].arrival_ms > at_ms
        return rows


class Static(Watch, lesson.Static):
    pass


class Snapshots(lesson.IntegerModel):
    """Keeps its cells after each step, without a wait; then cancels what is to be cancelled under way."""

    def __call__(self, *rows):
        result = super().__call__(*rows)
        self.__dict__.setdefault("kept", [torch.zeros_like(self.cells)]).append(self.cells.clone())
        self.scheduler.cancel_now(self.scheduler.last_ms, under_way=True)
        return result

    def check(self, all_rows):
        """Each step wrote its rows' cells in both layers, and no others."""
        kept, python = [cells.cpu() for cells in getattr(self, "kept", [self.cells])], Cells()
        for before, after, rows in zip(kept[:-1], kept[1:], all_rows, strict=True):
            python.step((token, slot, position, False) for _, slot, token, position in rows)
            for layer, cells in enumerate(python.layers):
                for _, slot, _, position in rows:
                    before[layer, slot, position] = cells[slot, position]
            assert torch.equal(before, after)


@settings(max_examples=22)
@given(REQUESTS, CANCELLATIONS, SLOTS, EXTRA, st.sampled_from((Continuous, Static)), st.sampled_from((0, 100, 2000)),
       st.sampled_from(("exact", "adversarial")))
@example([(14, n, 7 - n % 3, None, 0) for n in range(6)], [(3, 0, 2, True, True), (6, 1, 2, True, False)], 3, 0,
         Continuous, 0, "adversarial")
@example([(1, n, 1, 0, 0) for n in range(4)] * 2, [(n, 1, 1, True, n % 2 == 0) for n in range(5)], 2, 0, Continuous,
         100, "exact")
@example([(9, 0, 1, None, 9)] * 4, [(0, 2, 2, False, False)], 2, 60, Static, 2000, "adversarial")
def test_any_requests_get_their_tokens(drawn, cancellations, slots, extra, kind, host_us, numerics):
    requests = requests_of(drawn)
    cells = max(len(request.prompt) + request.limit - 1 for request in requests)
    with simgpu.session(CARD, numerics=numerics) as gpu:
        model = Snapshots(slots, cells, products=1)
        scheduler = kind(slots, slots + extra).start(requests, cancellations)
        model.scheduler = scheduler
        torch.cuda.synchronize()
        assert lesson.synchronous(model, scheduler, host_us) == len(scheduler.all_rows)
        scheduler.check_end()
        model.check(scheduler.all_rows)
        assert gpu.hazards == []


def in_python(scheduler):
    """The loop without a device: 1 ms for a step; the number of steps, and of slots that somebody had in them."""
    cells, at_ms, steps, held = Cells(), 0.0, 0, 0
    while scheduler.waiting or scheduler.running:
        rows, held = scheduler.step(at_ms), held + len(scheduler.running)
        tokens = cells.step((row.token, row.slot, row.position, row.last) for row in rows)
        scheduler.cancel_now(at_ms, under_way=True)
        at_ms += 1 if rows else 0.1
        steps += bool(rows)
        lesson.take(scheduler, rows, tokens, at_ms)
    return steps, held


@settings(max_examples=200)
@given(REQUESTS, CANCELLATIONS, SLOTS, EXTRA)
def test_rows_and_slots_of_any_requests(drawn, cancellations, slots, extra):
    scheduler = Continuous(slots, slots + extra).start(requests_of(drawn), cancellations)
    in_python(scheduler)
    scheduler.check_end()


@settings(max_examples=150)
@given(REQUESTS, SLOTS, EXTRA)
def test_static_batches_take_no_fewer_steps(drawn, slots, extra):
    watched = [kind(slots, slots + extra).start(requests_of(drawn)) for kind in (Continuous, Static)]
    (continuous, _), (static, _) = map(in_python, watched)
    assert continuous <= static and [one.tokens for one in watched[0].known] == [one.tokens for one in watched[1].known]


# the model

@settings(max_examples=15)
@given(st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(-60, 10**9), min_size=1, max_size=6)), min_size=1,
                max_size=8), st.sampled_from(("exact", "adversarial")))
def test_the_model_and_plain_python(chunks, numerics):
    """Rows of all slots in one step, in any order, several steps; a slot that is full starts again."""
    with simgpu.session(CARD, numerics=numerics) as gpu:
        model, words = lesson.IntegerModel(3, 12, products=1), [[], [], []]
        for n in range(0, len(chunks), 2):
            rows = []
            for slot, tokens in chunks[n:n + 2]:
                if len(words[slot]) + len(tokens) > 12:
                    if any(row[1] == slot for row in rows):
                        continue
                    words[slot] = []
                rows += [(token, slot, len(words[slot]) + i) for i, token in enumerate(tokens)]
                words[slot] += tokens
            random.Random(n).shuffle(rows)
            got = model(*torch.tensor(rows).t().contiguous().cuda()).tolist()
            assert got == [lesson.next_token(words[slot][:position + 1]) for _, slot, position in rows]
        assert gpu.hazards == []


# what the text says

def shares(kind, slots, limit):
    """Slots that nobody has, as a share, with limits of 1 to `limit` and everybody there from the start."""
    rng = random.Random(slots)
    requests = [Request("", [1 + n % 49], rng.randint(1, limit)) for n in range(60 * slots)]
    scheduler, steps = kind(slots, 8 * slots), 0
    scheduler.add(*requests)
    held = 0
    while scheduler.waiting or scheduler.running:
        rows, steps = scheduler.step(0), steps + 1
        held += len(scheduler.running)
        lesson.take(scheduler, rows, [1] * len(rows), 0)                # nobody ends early
    return 1 - held / steps / slots


@pytest.mark.parametrize("slots", [2, 4, 16])
def test_empty_slots_of_static_batches(slots):
    """Lengths spread evenly: (slots - 1) / (2 · slots), a half only with very many slots."""
    assert shares(lesson.Static, slots, 40) == pytest.approx((slots - 1) / (2 * slots), abs=0.04)
    assert shares(lesson.Batching, slots, 40) < 0.05


def test_static_batches_of_the_lesson():
    """94 steps for the longest answers of six batches of four, 61 for all tokens; the steps printed are above these."""
    rng = random.Random(6)
    requests = [Request("", [rng.randrange(1, lesson.WORDS) for _ in range(rng.randint(1, 20))], rng.randint(1, 24))
                for _ in range(24)]
    lengths = [len(lesson.expected(request)) for request in requests]
    assert sum(lengths) == 244 and sum(max(lengths[n:n + 4]) for n in range(0, 24, 4)) == 94


@pytest.mark.parametrize("host_us", [0, 300, 1500])
def test_the_idle_share(host_us):
    """h / (h + g), with h from one run of other host work."""
    found = []
    for work_us in (600, host_us):
        with simgpu.session(CARD) as gpu:
            model, scheduler = lesson.IntegerModel(4, 32), lesson.Batching(4, 12)
            scheduler.add(*[Request("", prompt(1 + n % 6, 1, None), 9) for n in range(8)])
            torch.cuda.synchronize()
            begin, busy = lesson.now_ms(), gpu.trace().busy_us("kernel")
            steps = lesson.synchronous(model, scheduler, work_us)
            found.append(((lesson.now_ms() - begin) / steps, (gpu.trace().busy_us("kernel") - busy) / 1e3 / steps))
    (wall, g), (measured, busy) = found
    h = wall - g - 0.6 + host_us / 1e3
    assert h / (h + g) == pytest.approx(1 - busy / measured, abs=0.003) and h + g == pytest.approx(measured, rel=0.003)


@pytest.mark.parametrize("host_us, host_bound", [(0, False), (300, False), (900, True), (2000, True)])
def test_the_limit_of_an_overlap(host_us, host_bound):
    """max(H, g): H is what the serial loop's host does without its waits; without waits a step takes that long."""
    requests = [Request("", prompt(1, 1, None), 30) for _ in range(4)]
    with simgpu.session(CARD) as gpu:
        model, scheduler = lesson.IntegerModel(4, 32), lesson.Batching(4, 4)
        scheduler.add(*requests)
        torch.cuda.synchronize()
        begin, before = lesson.now_ms(), gpu.trace()
        steps = lesson.synchronous(model, scheduler, host_us)
        wall, trace = lesson.now_ms() - begin, gpu.trace()
        g, waits = ((trace.busy_us(kind) - before.busy_us(kind)) / 1e3 / steps for kind in ("kernel", "sync"))
        H = wall / steps - waits
        buffers = [lesson.Buffers(4) for _ in range(20)]
        torch.cuda.synchronize()
        begin = lesson.now_ms()
        for one in buffers:                                             # the same, and nobody reads the tokens
            simgpu.host_work(host_us, "schedule")
            one.inputs.copy_(one.host_in, non_blocking=True)
            one.outputs[:4] = model(*one.inputs[:, :4])
            one.host_out.copy_(one.outputs, non_blocking=True)
        torch.cuda.synchronize()
        overlapped = (lesson.now_ms() - begin) / len(buffers)
    assert (g < H) == host_bound and overlapped == pytest.approx(max(H, g), rel=0.06)
    assert overlapped >= 0.999 * max(H, g)
