"""Lab 02: every check refuses the stub, passes the solution and other right answers, refuses wrong ones in words."""

from itertools import pairwise

import pytest
import torch
from answers import HERE, judge_as

from utils import simgpu
from utils.labs import device
from utils.labs.lab02 import check, gaps, memory
from utils.lessons import import_lesson

SOLUTION = import_lesson("solutions/02_streams_and_events")
PUZZLES = list(check.puzzles)
cuda = torch.cuda


def judged(puzzle, answer):
    return judge_as(check, puzzle, answer)


@pytest.mark.parametrize("puzzle", PUZZLES)
def test_stub_is_not_done_yet(puzzle):
    def stub(*_):
        raise NotImplementedError()
    assert judged(puzzle, stub).pending
    assert simgpu.active() is None


@pytest.mark.parametrize("puzzle", PUZZLES)
def test_solution_passes(puzzle):
    verdict = check.judge(getattr(SOLUTION, puzzle))
    assert verdict.passed and not verdict.advice and verdict.tried, str(verdict)


# --- 1: one wait ---------------------------------------------------------------------------------------------------

def load(before=lambda c, s: None, inside=lambda c: None, after=lambda c, s: None, early=lambda c, s: None):
    """The worked answer of puzzle 1 with something else in the places where waits and records go."""
    def answer(x, ready, weight, host_weight, copy_stream):
        copied = cuda.Event()
        early(copied, copy_stream)
        with cuda.stream(copy_stream):
            before(copied, copy_stream)
            weight.copy_(host_weight, non_blocking=True)
            inside(copied)
        y = x @ ready
        after(copied, copy_stream)
        return y @ weight
    return answer


def record(event):
    event.record()


def wait(event, _=None):
    HERE().wait_event(event)


def everything_here(x, ready, weight, host_weight, copy_stream):
    weight.copy_(host_weight, non_blocking=True)
    return (x @ ready) @ weight


def copy_after_the_product(x, ready, weight, host_weight, copy_stream):
    y = x @ ready
    copy_stream.wait_stream(HERE())
    with cuda.stream(copy_stream):
        weight.copy_(host_weight, non_blocking=True)
    HERE().wait_stream(copy_stream)
    return y @ weight


def blocking_copy(x, ready, weight, host_weight, copy_stream):
    with cuda.stream(copy_stream):
        weight.copy_(host_weight)
    return (x @ ready) @ weight


def second_product_in_the_copy_stream(x, ready, weight, host_weight, copy_stream):
    y = x @ ready
    with cuda.stream(copy_stream):
        weight.copy_(host_weight, non_blocking=True)
        z = y @ weight
    HERE().wait_stream(copy_stream)
    return z


def not_joined(x, ready, weight, host_weight, copy_stream):
    y = x @ ready
    copy_stream.wait_stream(HERE())
    with cuda.stream(copy_stream):
        weight.copy_(host_weight, non_blocking=True)
        return y @ weight


def wrong_weight(x, ready, weight, host_weight, copy_stream):
    SOLUTION.load_while_computing(x, ready, weight, host_weight, copy_stream)
    return (x @ ready) @ ready


def other_order(x, ready, weight, host_weight, copy_stream):
    return x @ (ready @ fill(weight, host_weight, copy_stream))


def own_copy_polled(x, ready, weight, host_weight, copy_stream):
    with cuda.stream(copy_stream):
        weight.copy_(host_weight, non_blocking=True)
    y = x @ ready
    while not copy_stream.query():
        pass
    return y @ weight


def copy_stream_left_current(x, ready, weight, host_weight, copy_stream):
    y = x @ ready
    copy_stream.wait_stream(HERE())
    cuda.set_stream(copy_stream)
    weight.copy_(host_weight, non_blocking=True)
    return y @ weight


def fill(weight, host, stream):
    with cuda.stream(stream):
        weight.copy_(host, non_blocking=True)
    HERE().wait_stream(stream)
    return weight


def replaces_data(x, ready, weight, host_weight, copy_stream):
    with cuda.stream(copy_stream):
        weight.data = host_weight.to("cuda", non_blocking=True)
    y = x @ ready
    HERE().wait_stream(copy_stream)
    weight.record_stream(HERE())
    return y @ weight


def own_copy(x, ready, weight, host_weight, copy_stream):
    with cuda.stream(copy_stream):
        mine = host_weight.to("cuda", non_blocking=True)
    y = x @ ready
    HERE().wait_stream(copy_stream)
    mine.record_stream(HERE())
    return y @ mine


def third_stream(x, ready, weight, host_weight, copy_stream):
    computing = cuda.Stream()
    computing.wait_stream(HERE())
    with cuda.stream(copy_stream):
        weight.copy_(host_weight, non_blocking=True)
    with cuda.stream(computing):
        y = x @ ready
        computing.wait_stream(copy_stream)
        z = y @ weight
    HERE().wait_stream(computing)
    return z


# --- 2: two waits --------------------------------------------------------------------------------------------------

def add(wait_a=True, wait_b=True, result=lambda a, b: a + b, host=lambda sa, sb: None, early=False):
    def answer(a, b, host_a, host_b, stream_a, stream_b):
        if early:
            HERE().wait_stream(stream_a)
            HERE().wait_stream(stream_b)
        for tensor, source, stream in ((a, host_a, stream_a), (b, host_b, stream_b)):
            with cuda.stream(stream):
                tensor.copy_(source, non_blocking=True)
        if wait_a:
            HERE().wait_stream(stream_a)
        if wait_b:
            HERE().wait_stream(stream_b)
        host(stream_a, stream_b)
        return result(a, b)
    return answer


def shared_event(a, b, host_a, host_b, stream_a, stream_b):
    copied = cuda.Event()
    for tensor, source, stream in ((a, host_a, stream_a), (b, host_b, stream_b)):
        with cuda.stream(stream):
            tensor.copy_(source, non_blocking=True)
            copied.record()
    HERE().wait_event(copied)
    HERE().wait_event(copied)
    return a + b


def producers_wait(a, b, host_a, host_b, stream_a, stream_b):
    with cuda.stream(stream_a):
        a.copy_(host_a, non_blocking=True)
    stream_b.wait_stream(stream_a)
    with cuda.stream(stream_b):
        b.copy_(host_b, non_blocking=True)
    return a + b


def all_on_the_current_stream(a, b, host_a, host_b, stream_a, stream_b):
    a.copy_(host_a, non_blocking=True)
    b.copy_(host_b, non_blocking=True)
    return a + b


def all_on_stream_a(a, b, host_a, host_b, stream_a, stream_b):
    with cuda.stream(stream_a):
        a.copy_(host_a, non_blocking=True)
        b.copy_(host_b, non_blocking=True)
    HERE().wait_stream(stream_a)
    return a + b


def blocking_copies(a, b, host_a, host_b, stream_a, stream_b):
    with cuda.stream(stream_a):
        a.copy_(host_a)
    with cuda.stream(stream_b):
        b.copy_(host_b)
    return a + b


def own_tensors(a, b, host_a, host_b, stream_a, stream_b):
    with cuda.stream(stream_a):
        a = host_a.to("cuda", non_blocking=True)
    with cuda.stream(stream_b):
        b = host_b.to("cuda", non_blocking=True)
    HERE().wait_stream(stream_a)
    HERE().wait_stream(stream_b)
    return a + b


def chained(a, b, host_a, host_b, stream_a, stream_b):   # b after a, and then one wait is enough
    with cuda.stream(stream_a):
        a.copy_(host_a, non_blocking=True)
    stream_b.wait_stream(stream_a)
    with cuda.stream(stream_b):
        b.copy_(host_b, non_blocking=True)
    HERE().wait_stream(stream_b)
    return a + b


def sum_on_b(a, b, host_a, host_b, stream_a, stream_b):
    with cuda.stream(stream_a):
        a.copy_(host_a, non_blocking=True)
    with cuda.stream(stream_b):
        b.copy_(host_b, non_blocking=True)
        total = a + b
    HERE().wait_stream(stream_b)
    return total


def records_swapped_too_early(a, b, host_a, host_b, stream_a, stream_b):
    events = [cuda.Event(), cuda.Event()]
    for event, tensor, source, stream in zip(events, (a, b), (host_a, host_b), (stream_a, stream_b), strict=True):
        with cuda.stream(stream):
            event.record()
            tensor.copy_(source, non_blocking=True)
        HERE().wait_event(event)
    return a + b


# --- 3: running ahead ----------------------------------------------------------------------------------------------

def sums(each, end=lambda collected: collected):
    def answer(x, weight, steps):
        collected = []
        for _ in range(steps):
            x = x @ weight
            collected.append(each(x))
        return end(collected)
    return answer


def into_pinned(x, weight, steps, wait=lambda: None):
    out = torch.empty(steps).pin_memory()
    for i in range(steps):
        x = x @ weight
        out[i].copy_(x.sum(), non_blocking=True)
    wait()
    return out.tolist()


def before_the_product(x, weight, steps):
    collected = []
    for _ in range(steps):
        collected.append(x.sum())
        x = x @ weight
    return torch.stack(collected).tolist()


def flushed_in_parts(x, weight, steps):
    found, pending = [], []
    for i in range(steps):
        x = x @ weight
        pending.append(x.sum())
        if i % 7 == 6 or i == steps - 1:
            found += torch.stack(pending).tolist()
            pending = []
    return found


def in_place(x, weight, steps):
    found = []
    for _ in range(steps):
        x.copy_(x @ weight)
        found.append(x.sum())
    return torch.stack(found).tolist()


def on_the_cpu(x, weight, steps):
    x, weight, found = x.cpu(), weight.cpu(), []
    for _ in range(steps):
        x = x @ weight
        found.append(x.sum().item())
    return found


def from_the_start_each_time(x, weight, steps):
    found = []
    for i in range(steps):
        y = x
        for _ in range(i + 1):
            y = y @ weight
        found.append(y.sum())
    return torch.stack(found).tolist()


def into_a_device_buffer(x, weight, steps):
    out = torch.empty(steps, device="cuda")
    for i in range(steps):
        x = x @ weight
        out[i] = x.sum()
    return out.tolist()


def synchronizing(x):
    total = x.sum()
    cuda.synchronize()
    return total


# --- 4: wait for one thing -----------------------------------------------------------------------------------------

def fetching(stream_waits=True, record_at="after", host=lambda event, stream: event.synchronize(), result=None):
    def answer(x, weight, out, stream):
        y, arrived = x @ weight, cuda.Event()
        if stream_waits:
            stream.wait_stream(HERE())
        with cuda.stream(stream):
            if record_at == "before":
                arrived.record()
            out.copy_(y, non_blocking=True)
            if record_at == "after":
                arrived.record()
        if record_at == "here":
            arrived.record()
        host(arrived, stream)
        return result(y, out) if result else out.sum().item()
    return answer


def poll(event, _):
    while not event.query():
        pass


def blocking_fetch(x, weight, out, stream):
    y = x @ weight
    stream.wait_stream(HERE())
    with cuda.stream(stream):
        out.copy_(y)
    return out.sum().item()


def through_numpy(x, weight, out, stream):
    answer = fetching(host=lambda event, stream: None, result=lambda y, out: float(out.numpy().sum()))
    return answer(x, weight, out, stream)


def through_numpy_after_the_product(x, weight, out, stream):
    def host(event, stream):
        (x @ weight)[0, 0].item()   # waits for the current stream, not for the copy
        cuda._sleep(1)
        while not stream.query():
            pass
    y = x @ weight
    stream.wait_stream(HERE())
    with cuda.stream(stream):
        out.copy_(y, non_blocking=True)
    for _ in range(400):
        y[0, 0].item()   # long enough for the copy to be over, but ordered after nothing of it
    return float(out.numpy().sum())


def summed_on_the_gpu(x, weight, out, stream):
    y = x @ weight
    stream.wait_stream(HERE())
    with cuda.stream(stream):
        out.copy_(y, non_blocking=True)
    return y.sum().item()


def all_on_the_copy_stream(x, weight, out, stream):
    with cuda.stream(stream):
        out.copy_(x @ weight, non_blocking=True)
    stream.synchronize()
    return out.sum().item()


def through_numpy_and_wait_later(x, weight, out, stream):
    total = through_numpy_after_the_product(x, weight, out, stream)
    stream.synchronize()
    return total


def two_lines(x, weight, out, stream):
    out.copy_(x @ weight)
    return out.sum().item()


def never_copied(x, weight, out, stream):
    return (x @ weight).sum().item()


def copies_the_input(x, weight, out, stream):
    x @ weight
    stream.wait_stream(HERE())
    with cuda.stream(stream):
        out.copy_(x + 1, non_blocking=True)
    stream.synchronize()
    return out.sum().item()


# --- 5: memory -----------------------------------------------------------------------------------------------------

def saving(before=lambda i, seen: None, after=lambda y, stream, seen: None, stream_waits=True, shift=0, out_of=None):
    def answer(inputs, weight, outs, stream):
        seen = []
        for i, x in enumerate(inputs):
            before(i, seen)
            y, copied = x @ weight, cuda.Event()
            if stream_waits:
                stream.wait_stream(HERE())
            with cuda.stream(stream):
                outs[(i + shift) % len(outs)].copy_(y, non_blocking=True)
                copied.record()
            seen.append((y, copied))
            after(y, stream, seen)
            del y
        for _, copied in seen:
            HERE().wait_event(copied)
        seen.clear()
    return answer


def keep_nothing(y, stream, seen):
    seen.clear()


def keep(count, late=False):
    """Wait for and drop the product ``count`` rounds back, before the next one is made."""
    def before(i, seen):
        if len(seen) == count:
            _, copied = seen.pop(0)
            if not late:
                HERE().wait_event(copied)
    return before


def drop_events_only(i, seen):
    if len(seen) >= 2:
        HERE().wait_event(seen[-2][1])   # waits rightly, but keeps every product


def two_buffers(inputs, weight, outs, stream, count=None):
    slots = [torch.empty_like(inputs[0]) for _ in range(count or min(2, len(inputs)))]
    done = [None, None]
    for i, (x, out) in enumerate(zip(inputs, outs, strict=True)):
        slot = i % 2
        if done[slot]:
            HERE().wait_event(done[slot])
        torch.mm(x, weight, out=slots[slot])
        stream.wait_stream(HERE())
        with cuda.stream(stream):
            out.copy_(slots[slot], non_blocking=True)
            done[slot] = cuda.Event()
            done[slot].record()
    HERE().wait_stream(stream)


def one_buffer(inputs, weight, outs, stream):
    slot = torch.empty_like(inputs[0])
    for x, out in zip(inputs, outs, strict=True):
        torch.mm(x, weight, out=slot)
        stream.wait_stream(HERE())
        with cuda.stream(stream):
            out.copy_(slot, non_blocking=True)


def blocking_saves(inputs, weight, outs, stream):
    for x, out in zip(inputs, outs, strict=True):
        y = x @ weight
        stream.wait_stream(HERE())
        with cuda.stream(stream):
            out.copy_(y)


def last_two_unprotected(inputs, weight, outs, stream):
    seen = []
    for i, (x, out) in enumerate(zip(inputs, outs, strict=True)):
        keep(2)(i, seen)
        y, copied = x @ weight, cuda.Event()
        stream.wait_stream(HERE())
        with cuda.stream(stream):
            out.copy_(y, non_blocking=True)
            copied.record()
        seen.append((y, copied))
        del y


def overwrites_inputs(inputs, weight, outs, stream):
    y = torch.empty_like(inputs[0])
    for x, out in zip(inputs, outs, strict=True):
        torch.mm(x, weight, out=y)
        x.copy_(y)
        stream.wait_stream(HERE())
        with cuda.stream(stream):
            out.copy_(x, non_blocking=True)
    HERE().wait_stream(stream)


def keeps_them_in_place_of_inputs(inputs, weight, outs, stream):
    products = []
    for out in outs:
        products.append(inputs.pop(0) @ weight)
        stream.wait_stream(HERE())
        with cuda.stream(stream):
            out.copy_(products[-1], non_blocking=True)
    HERE().wait_stream(stream)


def replaces_outs(inputs, weight, outs, stream):
    for i, x in enumerate(inputs):
        y = x @ weight
        outs[i] = y.to("cpu", non_blocking=True)


def last_one_forgotten(inputs, weight, outs, stream):
    SOLUTION.save_all(inputs[:-1] or inputs, weight, outs, stream)


# --- 6: gaps -------------------------------------------------------------------------------------------------------

def kernels(trace):
    return trace.spans[trace.spans.kind == "kernel"].sort_values("start_us")


def launches(trace):
    return {row.correlation: row.start_us for row in trace.spans.itertuples() if row.kind == "host"}


def neighbours(trace):   # compares with the kernel before, not with the latest end
    rows, launched = list(kernels(trace).itertuples()), launches(trace)
    return [(b.start_us - a.start_us - a.duration_us, "host" if launched[b.correlation] > a.start_us else "device")
            for a, b in pairwise(rows) if b.start_us != a.start_us + a.duration_us]


def from_zero(trace):
    first = kernels(trace).start_us.iloc[0]
    return [(first, "host"), *SOLUTION.explain_gaps(trace)]


def always(cause):
    return lambda trace: [(length, cause) for length, _ in SOLUTION.explain_gaps(trace)]


def by_copies(trace):   # "device" only when a copy runs
    found, end = [], None
    for row in kernels(trace).itertuples():
        if end is not None and row.start_us > end:
            copying = trace.busy_us("h2d", start=end, stop=row.start_us)
            found.append((row.start_us - end, "device" if copying else "host"))
        end = max(end or 0, row.start_us + row.duration_us)
    return found


def by_stream(trace):
    found = []
    for _, rows in kernels(trace).groupby("stream"):
        end = None
        for row in rows.itertuples():
            if end is not None and row.start_us > end:
                found.append((row.start_us - end, "device"))
            end = row.start_us + row.duration_us
    return found


def summed(trace):   # time minus the sum of spans
    rows = kernels(trace)
    whole = (rows.start_us + rows.duration_us).max() - rows.start_us.min()
    idle = whole - rows.duration_us.sum()
    return [(idle, "device")] if idle else []


WRONG = {
    "load_while_computing": [
        (load(inside=record), "RAW: mm"),
        (load(inside=record, early=wait), "waited on an event before its first record"),
        (load(inside=record, after=lambda c, s: s.wait_event(c)), "RAW: mm"),
        (load(early=lambda c, s: c.record(), after=wait), "RAW: mm"),
        (load(before=lambda c, s: c.record(), after=wait), "RAW: mm"),
        (load(after=lambda c, s: (c.record(), wait(c))), "RAW: mm"),
        (load(after=lambda c, s: HERE().synchronize()), "RAW: mm"),
        (load(after=lambda c, s: cuda.synchronize()), "the host stands still"),
        (load(inside=record, after=lambda c, s: c.synchronize()), "the host stands still"),
        (load(after=lambda c, s: s.synchronize()), "the host stands still"),
        (everything_here, "The text asks for a copy on copy_stream"),
        (copy_after_the_product, "which operation starts later than in the target"),
        (blocking_copy, "the host stands still"),
        (second_product_in_the_copy_stream, "RAW: mm"),
        (not_joined, "RAW:"),
        (wrong_weight, "Is the right tensor copied"),
        (other_order, "which operation starts later"),
        (own_copy_polled, "the host is busy for"),
        (copy_stream_left_current, "Leave the current stream as it was"),
        (lambda x, ready, weight, *_: torch.empty_like(x), "read before written"),
        (lambda *a: (_ for _ in ()).throw(SystemExit(3)), "it raised SystemExit"),
        (replaces_data, "`weight` does not hold the data of host_weight"),
        (own_copy, "`weight` does not hold the data of host_weight"),
        (lambda *_: 3, "Return the resulting tensor"),
        (lambda x, *_: x @ None, "it raised TypeError"),
    ],
    "add_two": [
        (add(wait_a=False, wait_b=False), "RAW: add"),
        (add(wait_b=False), "RAW: add"),
        (add(wait_a=False), "RAW: add"),
        (shared_event, "RAW: add"),
        (add(wait_a=False, wait_b=False, early=True), "RAW: add"),
        (producers_wait, "RAW: add"),
        (sum_on_b, "RAW: add"),
        (records_swapped_too_early, "RAW: add"),
        (add(host=lambda a, b: cuda.synchronize()), "the host stands still"),
        (add(False, False, host=lambda a, b: (a.synchronize(), b.synchronize())), "the host stands still"),
        (add(result=lambda a, b: a + a), "Is the right tensor copied"),
        (all_on_the_current_stream, "The text asks for a copy on stream_a"),
        (all_on_stream_a, "The text asks for a copy on stream_b"),
        (own_tensors, "`a` does not hold the data of host_a"),
        (add(result=lambda a, b: (a + b).view(-1)), "tensor of shape (65536,)"),
        (blocking_copies, "A copy without non_blocking=True"),
        (add(result=lambda a, b: None), "Return the resulting tensor"),
        (lambda a, b, host_a, host_b, *_: host_a + host_b, "returned a tensor on the CPU"),
        (lambda a, b, *_: a - b, "add_two: not yet right"),
    ],
    "sums_per_step": [
        (sums(lambda x: x.sum().item()), "the host waits before it has launched everything"),
        (sums(lambda x: x.sum().tolist()), "the host waits before it has launched everything"),
        (sums(lambda x: float(x.sum())), "the host waits before it has launched everything"),
        (sums(lambda x: x.sum().cpu(), lambda found: [v.item() for v in found]), "the host waits before it has"),
        (sums(lambda x: x.cpu().sum().item()), "he host waits"),
        (sums(lambda x: x.sum(), lambda found: [v.item() for v in found]), "The products ran back to back, but then"),
        (sums(synchronizing, lambda found: torch.stack(found).tolist()), "the host waits before"),
        (into_pinned, "RAW: host"),
        (sums(lambda x: x.sum().to("cpu", non_blocking=True), lambda found: [v.item() for v in found]), "RAW: host"),
        (sums(lambda x: x.sum()), "one float for every step"),
        (sums(lambda x: x.sum(), lambda found: torch.stack(found).tolist()[:1]), "one float for every step"),
        (before_the_product, "one float for every step"),
        (lambda *_: 3, "one float for every step"),
        (on_the_cpu, "did not run on the GPU"),
        (in_place, "belong to the caller"),
        (sums(lambda x: x.sum(), lambda found: torch.stack(found).to("cpu", non_blocking=True).numpy().tolist()),
         "read before written"),
        (flushed_in_parts, "the host waits before it has launched everything"),
        (from_the_start_each_time, "launches more than it has to"),
        (sums(lambda x: float("nan")), "read before written"),
    ],
    "fetch": [
        (fetching(host=lambda event, stream: None), "RAW: host"),
        (fetching(stream_waits=False), "RAW: copy_"),
        (fetching(record_at="before"), "RAW: host"),
        (fetching(record_at="here"), "RAW: host"),
        (fetching(record_at="never"), "RAW: host"),
        (fetching(host=lambda event, stream: HERE().wait_event(event)), "RAW: host"),
        (fetching(host=lambda event, stream: event.query()), "RAW: host"),
        (fetching(host=lambda event, stream: HERE().synchronize()), "RAW: host"),
        (fetching(host=lambda event, stream: cuda.synchronize()), "the host waits for it too"),
        (never_copied, "`out` does not hold the product"),
        (two_lines, "The text asks for a copy on stream"),
        (summed_on_the_gpu, "what it leaves behind is not safe"),
        (all_on_the_copy_stream, "RAW: mm"),
        (through_numpy, "what it leaves behind is not safe"),
        (through_numpy_after_the_product, "what it leaves behind is not safe"),
        (through_numpy_and_wait_later, "right only by its timing"),
        (lambda x, weight, out, stream: 1 / 0, "ZeroDivisionError"),
        (fetching(host=lambda event, stream: HERE().synchronize(), result=lambda y, out: int(out.sum().item())),
         "And there is a race"),
        (fetching(result=lambda y, out: (y.cpu(), out.sum().item())[1]), "more is copied, computed or waited for"),
        (copies_the_input, "which tensor was copied"),
        (fetching(result=lambda y, out: out.sum()), "passes"),
        (fetching(result=lambda y, out: None), "Return the sum"),
    ],
    "save_all": [
        (saving(after=keep_nothing), "WAR:"),
        (saving(), "blocks at the peak"),
        (saving(before=drop_events_only), "blocks at the peak"),
        (saving(after=lambda y, stream, seen: (y.record_stream(stream), seen.clear())), "record_stream"),
        (saving(after=lambda y, stream, seen: (y.record_stream(HERE()), seen.clear())), "WAR:"),
        (saving(after=lambda y, stream, seen: (HERE().wait_stream(stream), seen.clear())), "block it does not need"),
        (saving(before=keep(1)), "whose block it does not need"),
        (saving(before=keep(3)), "3 products were in device memory"),
        (saving(before=keep(2, late=True)), "WAR:"),
        (saving(before=keep(2), stream_waits=False), "RAW:"),
        (saving(after=lambda y, stream, seen: (stream.synchronize(), seen.clear())), "the host stands still"),
        (saving(before=keep(2), shift=1), "the out of the same number"),
        (one_buffer, "WAR:"),
        (lambda inputs, weight, outs, stream: SOLUTION.save_all(inputs, weight, outs, cuda.Stream()), "copy on stream"),
        (last_two_unprotected, "Your function returned, but what it leaves behind is not safe"),
        (blocking_saves, "the host stands still"),
        (last_one_forgotten, "outs["),
        (overwrites_inputs, "not yours to overwrite"),
        (keeps_them_in_place_of_inputs, "products were in device memory"),
        (replaces_outs, "into the tensor that was given"),
    ],
    "explain_gaps": [
        (neighbours, "never negative"),
        (from_zero, "before the first kernel there is none"),
        (always("host"), "had been launched before the gap began"),
        (always("device"), "was not launched yet"),
        (by_copies, "had been launched before the gap began"),
        (by_stream, "explain_gaps: not yet right"),
        (summed, "explain_gaps: not yet right"),
        (lambda trace: [length for length, _ in SOLUTION.explain_gaps(trace)], "a list of pairs"),
        (lambda trace: SOLUTION.explain_gaps(trace)[::-1], "explain_gaps: not yet right"),
        (lambda trace: trace.idle_share("kernel"), "a list of pairs"),
        (lambda trace: None, "returned None"),
    ],
}
CASES = [(puzzle, answer, says) for puzzle, rows in WRONG.items() for answer, says in rows if says != "passes"]


@pytest.mark.parametrize(("puzzle", "answer", "says"), CASES, ids=[f"{case[0]}-{i}" for i, case in enumerate(CASES)])
def test_wrong_answer_is_refused_for_the_right_reason(puzzle, answer, says):
    verdict = judged(puzzle, answer)
    text = " ".join(str(verdict).split())
    assert not verdict.passed and not verdict.pending, text
    assert says in text, str(verdict)
    assert max(map(len, str(verdict).splitlines())) <= 80
    assert "could not read" not in text
    assert simgpu.active() is None


def test_every_puzzle_has_enough_wrong_answers():
    assert all(sum(case[0] == puzzle for case in CASES) >= 8 for puzzle in PUZZLES)


RIGHT = [
    ("load_while_computing", load(inside=record, after=wait)),
    ("load_while_computing", load(after=lambda c, s: HERE().wait_stream(s))),
    ("load_while_computing", load(inside=record, after=lambda c, s: c.wait())),
    ("load_while_computing", third_stream),
    ("add_two", chained),
    ("add_two", add(result=lambda a, b: b + a)),
    ("add_two", add(result=lambda a, b: a.add_(b))),
    ("sums_per_step", into_a_device_buffer),
    ("sums_per_step", lambda x, weight, steps: into_pinned(x, weight, steps, cuda.synchronize)),
    ("sums_per_step", sums(lambda x: x.sum(), lambda found: torch.stack(found).cpu().tolist())),
    ("fetch", fetching(host=lambda event, stream: stream.synchronize())),
    ("fetch", fetching(host=poll)),
    ("fetch", fetching(result=lambda y, out: float(out.double().sum()))),
    ("fetch", blocking_fetch),
    ("save_all", two_buffers),
    ("save_all", lambda inputs, weight, outs, stream: two_buffers(inputs, weight, outs, stream, 2)),
    ("save_all", saving(before=keep(2))),
]


@pytest.mark.parametrize(("puzzle", "answer"), RIGHT, ids=[f"{case[0]}-{i}" for i, case in enumerate(RIGHT)])
def test_right_answer_written_otherwise_passes(puzzle, answer):
    verdict = judged(puzzle, answer)
    assert verdict.passed, str(verdict)


def test_the_target_of_save_all_is_two_blocks():
    weight, inputs = memory.permutation(1), [memory.counting(i) for i in range(8)]
    setting = device.Setting("save_all", lambda: memory._arguments(inputs, weight),
                             lambda _, kept: memory._digests(*kept), simgpu.RTX_4090)
    for ratio in device.RATIOS:
        run = device.run_once(setting, SOLUTION.save_all, ratio)
        assert run.peak_bytes == 2 * memory.BLOCK_BYTES and not run.hazards


def test_the_gaps_of_the_cases_are_what_the_trace_says():
    for trace, wanted in gaps.cases().values():
        rows = trace.spans[trace.spans.kind == "kernel"]
        whole = (rows.start_us + rows.duration_us).max() - rows.start_us.min()
        assert sum(length for length, _ in wanted) == pytest.approx(whole - trace.busy_us("kernel"))


def test_checks_run_inside_a_notebook_whose_device_is_already_simulated():
    simgpu.install(simgpu.RTX_5060_LAPTOP)
    try:
        outer = torch.ones(3, device="cuda")
        assert check.judge(SOLUTION.add_two).passed
        assert outer.sum().item() == 3
    finally:
        simgpu.uninstall()
