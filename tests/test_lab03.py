"""Lab 03: every check refuses the stub, passes the solution and other right answers, refuses wrong ones in words."""

import functools
import statistics
import time

import pytest
import torch
from answers import HERE, judge_as

from utils import simgpu
from utils.labs import device
from utils.labs.lab03 import check, onload, peak, rows, timing
from utils.lessons import import_lesson
from utils.trace import record as record_trace

SOLUTION = import_lesson("solutions/03_serial_mlp")
PUZZLES = list(check.puzzles)
MIB = 2**20
cuda = torch.cuda


def judged(puzzle, answer):
    return judge_as(check, puzzle, answer)


@pytest.mark.parametrize("puzzle", PUZZLES)
def test_stub_is_not_done_yet(puzzle):
    def stub(*_):
        raise NotImplementedError()
    verdict = judged(puzzle, stub)
    assert verdict.pending and "not done yet" in str(verdict)
    assert simgpu.active() is None


@pytest.mark.parametrize("puzzle", PUZZLES)
def test_solution_passes(puzzle):
    verdict = check.judge(getattr(SOLUTION, puzzle))
    assert verdict.passed and not verdict.advice and verdict.tried, str(verdict)
    assert max(map(len, str(verdict).splitlines())) <= 80


# --- 1: measuring --------------------------------------------------------------------------------------------------

def timed(warm_up=3, calls=10, first=lambda event: event.record(), last=lambda event: event.record(),
          wait=lambda event: event.synchronize(), result=lambda ms, calls: ms / calls, early=False, timing=True,
          inside=lambda: None):
    """The worked answer of puzzle 1 with something else in the places where events, waits and the division go."""
    def answer(model, x):
        start, stop = (cuda.Event(enable_timing=timing) for _ in range(2))
        if early:
            first(start)
        for _ in range(warm_up):
            model(x)
        if not early:
            first(start)
        for _ in range(calls):
            model(x)
        inside()
        last(stop)
        wait(stop)
        return result(start.elapsed_time(stop), calls)
    return answer


def pairs(over, calls=10):
    """A pair of events around every call, and a figure over the times of all."""
    def answer(model, x):
        times = []
        for _ in range(calls):
            start, stop = (cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            model(x)
            stop.record()
            stop.synchronize()
            times.append(start.elapsed_time(stop))
        return over(times)
    return answer


def by_clock(clock, before=lambda: None, after=lambda: None):
    """A clock of the host around ten warm calls."""
    def answer(model, x):
        for _ in range(3):
            model(x)
        before()
        begin = clock()
        for _ in range(10):
            model(x)
        after()
        return (clock() - begin) / 10
    return answer


def by_perf_counter(model, x):
    for _ in range(3):
        model(x)
    cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(10):
        model(x)
    cuda.synchronize()
    return (time.perf_counter() - begin) * 1000 / 10


def launches_only(model, x):
    begin = time.time()
    model(x)
    return (time.time() - begin) * 1000


def kernels_summed(model, x):
    for _ in range(3):
        model(x)
    spans = record_trace(lambda: model(x)).spans
    return float(spans[spans.kind.isin(["kernel", "h2d"])].duration_us.sum()) / 1000


def span_of_a_trace(model, x):
    for _ in range(3):
        model(x)
    spans = record_trace(lambda: model(x)).spans
    spans = spans[spans.kind.isin(["kernel", "h2d"])]
    return float((spans.start_us + spans.duration_us).max() - spans.start_us.min()) / 1000


def traced_cold(model, x):   # record() calls it twice, which is enough for one call of set-up only
    spans = record_trace(lambda: model(x)).spans
    spans = spans[spans.kind.isin(["kernel", "h2d"])]
    return float((spans.start_us + spans.duration_us).max() - spans.start_us.min()) / 1000


def by_difference(model, x):
    for _ in range(3):
        model(x)
    long, short = (timed(0, calls, result=lambda ms, _: ms)(model, x) for calls in (10, 2))
    return (long - short) / 8


def on_a_stream_of_its_own(joined):
    def answer(model, x):
        stream = cuda.Stream()
        if joined:
            stream.wait_stream(HERE())
        with cuda.stream(stream):
            ms = SOLUTION.measure_ms(model, x)
        HERE().wait_stream(stream)
        return ms
    return answer


def leaves_a_stream_current(model, x):
    stream = cuda.Stream()
    stream.wait_stream(HERE())
    cuda.set_stream(stream)
    return SOLUTION.measure_ms(model, x)


def until_it_stays_the_same(model, x):
    times = []
    while len(times) < 3 or max(times[-3:]) > 1.001 * min(times[-3:]):
        times.append(pairs(min, calls=1)(model, x))
    return times[-1]


def polled(stop):
    while not stop.query():
        pass


# --- 2: peak memory ------------------------------------------------------------------------------------------------

def peaked(reset=cuda.reset_peak_memory_stats, result=lambda before: (cuda.max_memory_allocated() - before) / MIB,
           calls=2, held=True, after_build=lambda: None, after_call=lambda: None, begin=lambda: None):
    """The worked answer of puzzle 2 with something else in the places where figures are reset and read."""
    def answer(make_model, make_x):
        begin()
        ask(reset)
        before = cuda.memory_allocated()
        model, x = make_model(), make_x()
        after_build()
        y = None
        for _ in range(calls):
            if not held:
                y = None
            y = model(x)   # noqa: F841
            after_call()
        return result(before)
    return answer


def ask(figure):
    """Call a function of torch.cuda by its name, so that the session's own is found."""
    return getattr(torch.cuda, figure.__name__)() if figure else None


def x_is_there_before(make_model, make_x):
    x = make_x()
    cuda.reset_peak_memory_stats()
    before = cuda.memory_allocated()
    model = make_model()
    for _ in range(2):
        y = model(x)   # noqa: F841
    return (cuda.max_memory_allocated() - before) / MIB


def x_first(make_model, make_x):
    cuda.reset_peak_memory_stats()
    before, x = cuda.memory_allocated(), make_x()
    model = make_model()
    for _ in range(2):
        y = model(x)   # noqa: F841
    return (cuda.max_memory_allocated() - before) / MIB


def model_is_there_before(make_model, make_x):
    cuda.reset_peak_memory_stats()
    model = make_model()
    before = cuda.memory_allocated()
    x = make_x()
    for _ in range(2):
        y = model(x)   # noqa: F841
    return (cuda.max_memory_allocated() - before) / MIB


ALIVE = []


def keeps_the_model(make_model, make_x):
    ALIVE.clear()

    def make():
        ALIVE.append(make_model())
        return ALIVE[-1]
    return SOLUTION.peak_mib(make, make_x)


KEPT = {}


def keeps_its_figure(make_model, make_x):
    if "figure" in KEPT and KEPT["device"] is simgpu.active():
        return KEPT["figure"]
    KEPT.update(figure=SOLUTION.peak_mib(make_model, make_x), device=simgpu.active())
    return KEPT["figure"]


def built_for_each_call(make_model, make_x):
    cuda.reset_peak_memory_stats()
    before = cuda.memory_allocated()
    x = make_x()
    for _ in range(2):
        y = make_model()(x)   # noqa: F841
    return (cuda.max_memory_allocated() - before) / MIB


def every_output_kept(make_model, make_x):
    cuda.reset_peak_memory_stats()
    before = cuda.memory_allocated()
    model, x = make_model(), make_x()
    kept = [model(x) for _ in range(5)]   # noqa: F841
    return (cuda.max_memory_allocated() - before) / MIB


def by_memory_stats(make_model, make_x):
    cuda.empty_cache()
    cuda.reset_peak_memory_stats()
    before = cuda.memory_stats()["allocated_bytes.all.current"]
    model, x = make_model(), make_x()
    first = model(x)
    second = model(x)
    found = cuda.memory_stats()["allocated_bytes.all.peak"]
    del model, x, first, second
    return (found - before) / 2**20


def reset_by_its_old_name(make_model, make_x):
    cuda.reset_max_memory_allocated()
    before, model = cuda.max_memory_allocated(), make_model()
    x = make_x()
    with torch.inference_mode():
        for _ in range(2):
            y = model(x)   # noqa: F841
            cuda.synchronize()
    return (cuda.max_memory_allocated() - before) / MIB


def free_memory(make_model, make_x):
    before, _ = cuda.mem_get_info()
    model, x = make_model(), make_x()
    for _ in range(2):
        y = model(x)   # noqa: F841
    return (before - cuda.mem_get_info()[0]) / MIB


def typed(values):
    """Figures that are right, in turn, and were never measured."""
    left = iter(values)
    return lambda *_: next(left)


def by_formula_after_one_call(make_model, make_x):
    cuda.reset_peak_memory_stats()
    before, model = cuda.memory_allocated(), make_model()
    built, weights = cuda.max_memory_allocated() - before, cuda.memory_allocated() - before
    y = model(make_x())   # noqa: F841
    return max(built, cuda.max_memory_allocated() - before, weights + 4 * 128 * MIB + 8.125 * MIB) / MIB


def of_the_lesson(make_model, make_x):   # which measures a model that is there
    model, x = make_model(), make_x()
    cuda.reset_peak_memory_stats()
    for _ in range(2):
        y = model(x)   # noqa: F841
    return cuda.max_memory_allocated() / MIB


def by_other_names(module, late=False):
    def answer(make_model, make_x):
        where = getattr(torch, module) if module == "accelerator" else torch.cuda.memory
        where.reset_peak_memory_stats()
        before = where.memory_allocated()
        model = make_model()
        if late:
            where.reset_peak_memory_stats()
        x = make_x()
        for _ in range(2):
            y = model(x)   # noqa: F841
        return (where.max_memory_allocated() - before) / MIB
    return answer


# --- 3: break-even -------------------------------------------------------------------------------------------------

def factor(by):
    return lambda f, bw, s=2: f * s / (2 * bw) * by


def with_the_width(f, bw, s=2):
    return f * s * 8192 / (2 * bw)


def with_the_activations(f, bw, s=2):   # x and y go over the link, too
    return s / bw / (2 / f - 2 * s / (bw * 8192))


def both_squares(f, bw, s=2):
    n = 8192
    return f * s * n * n / (2 * bw * n)


def by_bisection(f, bw, s=2):
    low, high, n = 0.0, 1e9, 4096
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if 2 * middle * n * n / f < s * n * n / bw else (low, middle)
    return low


# --- 4: serial onload ----------------------------------------------------------------------------------------------

def onloaded(copy=lambda buffer, weight: buffer.copy_(weight, non_blocking=True), product=lambda x, buffer: x @ buffer,
             behind=lambda: None, order=lambda weights: weights, end=lambda y, x, buffer: y):
    """The worked answer of puzzle 4 with something else in its places."""
    def answer(x, host_weights, buffer):
        y = x
        for weight in order(host_weights):
            copy(buffer, weight)
            y = product(y, buffer)
            behind()
        return end(y, x, buffer)
    return answer


def aside(copied=True, used=True, early=True):
    """Copies on another stream, with the waits that are asked for."""
    def answer(x, host_weights, buffer):
        stream, first = cuda.Stream(), True
        for weight in host_weights:
            if early if first else used:
                stream.wait_stream(HERE())
            first = False
            with cuda.stream(stream):
                buffer.copy_(weight, non_blocking=True)
            if copied:
                HERE().wait_stream(stream)
            x = x @ buffer
        return x
    return answer


def a_tensor_for_each_layer(x, host_weights, buffer):
    for weight in host_weights:
        x = x @ weight.to("cuda", non_blocking=True)
    return x


def all_resident(x, host_weights, buffer):
    weights = [weight.to("cuda", non_blocking=True) for weight in host_weights]
    for weight in weights:
        x = x @ weight
    return x


def through_data(x, host_weights, buffer):
    for weight in host_weights:
        buffer.data = weight.to("cuda", non_blocking=True)
        x = x @ buffer
    return x


def double_buffer(x, host_weights, buffer):
    copying = cuda.Stream()
    buffers = [torch.empty_like(buffer), buffer]
    buffers = buffers if len(host_weights) % 2 == 0 else buffers[::-1]
    copying.wait_stream(HERE())
    used = [cuda.Event(), cuda.Event()]
    for i, weight in enumerate(host_weights):
        with cuda.stream(copying):
            if i > 1:
                copying.wait_event(used[i % 2])
            buffers[i % 2].copy_(weight, non_blocking=True)
            copied = copying.record_event()
        HERE().wait_event(copied)
        x = x @ buffers[i % 2]
        used[i % 2].record()
    return x


def all_activations(x, host_weights, buffer):
    seen = [x]
    for weight in host_weights:
        buffer.copy_(weight, non_blocking=True)
        seen.append(seen[-1] @ buffer)
    return seen[-1]


def into_x(x, host_weights, buffer):
    y = torch.empty_like(x)
    for weight in host_weights:
        buffer.copy_(weight, non_blocking=True)
        torch.mm(x, buffer, out=y)
        x.copy_(y)
    return y


def weights_used_up(x, host_weights, buffer):
    for weight in host_weights:
        buffer.copy_(weight, non_blocking=True)
        x = x @ buffer
    cuda.synchronize()
    host_weights[0].zero_()
    return x


def through_a_staging_tensor(x, host_weights, buffer):
    staging = torch.empty_like(buffer)
    for weight in host_weights:
        staging.copy_(weight, non_blocking=True)
        buffer.copy_(staging)
        x = x @ buffer
    return x


def copied_twice(buffer, weight):
    buffer.copy_(weight, non_blocking=True)
    buffer.copy_(weight, non_blocking=True)


def halves(buffer, weight):
    middle = len(weight) // 2
    buffer[:middle].copy_(weight[:middle], non_blocking=True)
    buffer[middle:].copy_(weight[middle:], non_blocking=True)


def one_half_while_the_other_is_used(x, host_weights, buffer):   # faster, with the same memory
    copying, middle = cuda.Stream(), len(buffer) // 2
    free = cuda.Event(), cuda.Event()
    parts = slice(None, middle), slice(middle, None)
    for event in free:
        event.record()
    for weight in host_weights:
        y = None
        for part, event in zip(parts, free, strict=True):
            copying.wait_event(event)
            with cuda.stream(copying):
                buffer[part].copy_(weight[part], non_blocking=True)
                copied = copying.record_event()
            HERE().wait_event(copied)
            y = y.addmm_(x[:, part], buffer[part]) if part is parts[1] else x[:, part] @ buffer[part]
            event.record()
        x = y
    return x


def copy_behind_the_product(x, host_weights, buffer):
    buffer.copy_(host_weights[0], non_blocking=True)
    for weight in host_weights[1:]:
        x = x @ buffer
        buffer.copy_(weight, non_blocking=True)
    return x @ buffer


def two_activations(x, host_weights, buffer):
    outs = torch.empty_like(x), torch.empty_like(x)
    for i, weight in enumerate(host_weights):
        buffer.copy_(weight, True)
        x = torch.mm(x, buffer, out=outs[i % 2])
    return x


def all_aside(x, host_weights, buffer):
    stream = cuda.Stream()
    stream.wait_stream(HERE())
    x.record_stream(stream)
    with cuda.stream(stream):
        y = SOLUTION.serial_onload(x, host_weights, buffer)
    HERE().wait_stream(stream)
    return y


def not_joined(x, host_weights, buffer):
    stream = cuda.Stream()
    stream.wait_stream(HERE())
    with cuda.stream(stream):
        return SOLUTION.serial_onload(x, host_weights, buffer)


def events_for_everything(x, host_weights, buffer):
    stream, free = cuda.Stream(), cuda.Event()
    free.record()
    for weight in host_weights:
        stream.wait_event(free)
        with cuda.stream(stream):
            buffer.copy_(weight, non_blocking=True)
            copied = stream.record_event()
        copied.wait()
        x = x @ buffer
        free.record()
    return x


def event_recorded_too_early(x, host_weights, buffer):
    stream, free = cuda.Stream(), cuda.Event()
    for weight in host_weights:
        free.record()
        stream.wait_event(free)
        with cuda.stream(stream):
            copied = stream.record_event()
            buffer.copy_(weight, non_blocking=True)
        copied.wait()
        x = x @ buffer
    return x


def on_the_cpu(x, host_weights, buffer):
    y = x.cpu()
    for weight in host_weights:
        y = y @ weight
    return y


def polls(stream=HERE):
    while not stream().query():
        pass


def left_current(x, host_weights, buffer):
    stream = cuda.Stream()
    stream.wait_stream(HERE())
    cuda.set_stream(stream)
    return SOLUTION.serial_onload(x, host_weights, buffer)


def product_of(weights):
    return functools.reduce(torch.matmul, weights).pin_memory()


def one_matrix(x, host_weights, buffer):   # the layers are multiplied on the host, whose time is not counted
    buffer.copy_(product_of(host_weights), non_blocking=True)
    y = x @ buffer
    if len(host_weights) > 1:
        buffer.copy_(host_weights[-1], non_blocking=True)
    return y


def one_matrix_and_every_copy(x, host_weights, buffer):
    buffer.copy_(product_of(host_weights), non_blocking=True)
    y = x @ buffer
    for weight in host_weights:
        buffer.copy_(weight, non_blocking=True)
    return y


def on_the_default_stream(x, host_weights, buffer):
    with cuda.stream(cuda.default_stream()):
        return SOLUTION.serial_onload(x, host_weights, buffer)


def in_half_precision(x, host_weights, buffer):
    y, half = x.half(), buffer.view(-1).view(torch.float16)[:buffer.numel()].view(buffer.shape)
    for weight in host_weights:
        half.copy_(weight.half().pin_memory(), non_blocking=True)
        y = y @ half
    buffer.copy_(host_weights[-1], non_blocking=True)
    return y.float()


def on_two_streams(joined):
    """Products alternate on two streams, each of which has a workspace of the matrix library."""
    def answer(x, host_weights, buffer):
        streams, before = [cuda.Stream() for _ in range(2)], HERE().record_event()
        for i, weight in enumerate(host_weights):
            with cuda.stream(streams[i % 2]):
                before.wait()
                buffer.copy_(weight, non_blocking=True)
                x = x @ buffer
                before = HERE().record_event()
        for stream in (HERE(), *(streams if joined else ())):
            stream.wait_event(before)
        return x
    return answer


def waits_for_nothing(x, host_weights, buffer):   # of what the current stream has queued
    stream, own = cuda.Stream(), torch.empty_like(x)
    with cuda.stream(stream):
        own.copy_(x)
    HERE().wait_stream(stream)
    return SOLUTION.serial_onload(own, host_weights, buffer)


FIRST = {}


def kept_from_the_first_run(x, host_weights, buffer):
    return FIRST.setdefault(len(host_weights), SOLUTION.serial_onload(x, host_weights, buffer))


def in_pieces(count):
    def copy(buffer, weight):
        for target, source in zip(buffer.chunk(count), weight.chunk(count), strict=True):
            target.copy_(source, non_blocking=True)
    return copy


WRONG = {
    "measure_ms": [
        (typed([9.0, 3.0, 11.921896, 4.5, 0.5001]), "without calling the model once"),
        (timed(calls=1000), "the model was called 100 times, and ten calls are enough"),
        (timed(warm_up=0), "still did set-up"),
        (timed(warm_up=0, calls=1), "your events enclose call 1,"),
        (timed(warm_up=1), "Calls 1 to 3 of this model still did set-up"),
        (timed(early=True), "still did set-up"),
        (timed(early=True, result=lambda ms, calls: ms / (calls + 3)), "still did set-up"),
        (timed(wait=lambda event: None), "The host runs ahead: when it asked"),
        (timed(timing=False), "enable_timing=True"),
        (timed(last=lambda event: None, wait=lambda event: cuda.synchronize()), "Both events need a record()"),
        (timed(first=lambda event: event.record(cuda.Stream())), "the first event was recorded on another stream"),
        (timed(last=lambda event: event.record(cuda.Stream()),
               wait=lambda event: cuda.synchronize()), "the second event was recorded on another stream"),
        (timed(first=lambda event: event.record(cuda.default_stream()),
               last=lambda event: event.record(cuda.default_stream())), "called on another stream: the first"),
        (timed(result=lambda ms, calls: ms), "as if that were 1 times a call"),
        (timed(result=lambda ms, calls: ms / (calls + 3)), "as if that were 13 times a call"),
        (timed(result=lambda ms, calls: ms / calls / 1000), "is in milliseconds already"),
        (timed(result=lambda ms, calls: ms / calls * 1000), "not microseconds"),
        (timed(result=lambda ms, calls: 0), "but you returned 0"),
        (timed(inside=lambda: simgpu.host_work(50_000)), "there is more between them than calls"),
        (timed(calls=0, result=lambda ms, calls: ms), "your events enclose no call"),
        (pairs(statistics.mean), "still did set-up"),
        (pairs(max), "still did set-up"),
        (pairs(lambda times: times[0]), "still did set-up"),
        (pairs(sum), "still did set-up"),
        (by_perf_counter, "is what perf_counter says: real time"),
        (launches_only, "is what time says: real time"),
        (by_clock(lambda: simgpu.clock() / 1000), "No elapsed_time() of two events was read"),
        (kernels_summed, "100 small kernels"),
        (traced_cold, "calls 1 to 3 of this one still did set-up: warm up first"),
        (timed(first=lambda event: (cuda._sleep(5_000_000), event.record())), "without the gaps that a call has"),
        (lambda model, x: torch.tensor(SOLUTION.measure_ms(model, x)), "Return one number"),
        (on_a_stream_of_its_own(joined=False), "Call it on the current stream"),
        (leaves_a_stream_current, "Leave the current stream as it was"),
        (lambda model, x: 3.0, "without calling the model once"),
        (lambda model, x: model(x), "Return one number"),
        (lambda model, x: None, "Return one number"),
        (lambda model, x: model(), "it raised TypeError"),
        (lambda model: 3, "but takes (model)"),
    ],
    "peak_mib": [
        (peaked(reset=None), "The peak was never reset"),
        (peaked(reset=cuda.empty_cache), "empty_cache() does not reset it"),
        (peaked(after_build=lambda: ask(cuda.reset_peak_memory_stats)), "reset after the model was built"),
        (peaked(after_call=lambda: ask(cuda.reset_peak_memory_stats)), "reset after the first call"),
        (peaked(result=lambda before: cuda.max_memory_reserved() / MIB), "*Reserved* is what the allocator has taken"),
        (peaked(result=lambda before: (cuda.memory_reserved() - before) / MIB), "*Reserved* is what the allocator has"),
        (peaked(result=lambda before: (cuda.memory_allocated() - before) / MIB), "is what is in use *now*"),
        (free_memory, "mem_get_info() sees"),
        (peaked(result=lambda before: (cuda.max_memory_allocated() - before) / 1e6), "in MB, of 10^6 bytes"),
        (peaked(result=lambda before: (cuda.max_memory_allocated() - before) / 2**30), "in GiB but"),
        (peaked(result=lambda before: cuda.max_memory_allocated() - before), "in bytes but"),
        (peaked(result=lambda before: cuda.max_memory_allocated() / MIB), "300 MiB too much"),
        (peaked(calls=1), "The model was called once"),
        (peaked(calls=0), "never called"),
        (peaked(held=False), "no longer held"),
        (every_output_kept, "more often than twice"),
        (x_is_there_before, "x was on the GPU already"),
        (model_is_there_before, "looked at too late"),
        (x_first, "x was made before the model"),
        (keeps_the_model, "are still in use after your function returned"),
        (keeps_its_figure, "the second not"),
        (built_for_each_call, "make_model() was called more than once"),
        (lambda make_model, make_x: 3592.125, "never made"),
        (typed([3592.125, 776.125, 648.125, 4608, 1280, 3592.125, 776.125]),
         "The figure is right, but the model was never made"),
        (by_formula_after_one_call, "The figure is right, but the model was called once"),
        (of_the_lesson, "300 MiB too much: they were in use before your function was called, by somebody else. Look at "
                        "memory_allocated() first, and count from there. And the peak was reset after the model"),
        (by_other_names("cuda.memory", late=True), "reset after the model was built"),
        (by_other_names("accelerator", late=True), "reset after the model was built"),
        (peaked(result=lambda before: "3592 MiB"), "Return one number"),
        (peaked(result=lambda before: None), "returned None"),
        (peaked(result=lambda before: 24 * 128), "No peak was read after the calls. Which function of torch.cuda"),
        (lambda make_model, make_x: make_model().nothing, "it raised AttributeError"),
    ],
    "break_even_rows": [
        (factor(2), "2 operations, not 1"),
        (factor(0.5), "2 operations, not 4"),
        (lambda f, bw, s=2: f / bw, "bytes_per_weight is not used"),
        (lambda f, bw, s=2: f / (2 * bw), "2 operations, not 4"),
        (lambda f, bw, s=2: f / (2 * bw * s), "is on the wrong side"),
        (factor(8), "none of it in bits"),
        (factor(1 / 8), "none of it in bits"),
        (factor(1e9 / 2**30), "2^30 is a GiB"),
        (factor(2**30 / 1e9), "2^30 is a GiB"),
        (factor(1e3), "in FLOP/s and bytes/s already"),
        (factor(1e-9), "in FLOP/s and bytes/s already"),
        (with_the_width, "The width cancels"),
        (both_squares, "The width cancels"),
        (with_the_activations, "The width cancels"),
        (lambda f, bw, s=2: bw * s / (2 * f), "Set equal"),
        (lambda f, bw, s=2: f * s / (2 * bw) + 8192, "The width cancels"),
        (lambda f, bw: f / bw, "but takes (f, bw)"),
        (lambda f, bw, s=2: 1218, "683 TFLOP/s"),
        (lambda f, bw, s=2: "1218 rows", "Return one number"),
        (lambda f, bw, s=2: None, "returned None"),
        (lambda f, bw, s=2: float("nan"), "Return one number"),
        (lambda f, bw, s=2: 0, "Set equal"),
        (lambda f, bw, s=2: 10**308, "a product would never end"),
        (lambda f, bw, s=2: 10**400, "Return one number"),
    ],
    "serial_onload": [
        (a_tensor_for_each_layer, ".to() and .cuda() make a new tensor"),
        (all_resident, ".to() and .cuda() make a new tensor"),
        (through_data, ".to() and .cuda() make a new tensor"),
        (double_buffer, "Lesson 04 does so with a second buffer"),
        (all_activations, "or old activations?"),
        (through_a_staging_tensor, "5 copies on the GPU instead of 0"),
        (aside(copied=False), "RAW: mm"),
        (aside(used=False), "WAR: copy_"),
        (aside(copied=False, used=False), "RAW: mm"),
        (aside(early=False), "wrong for an earlier reader of buffer"),
        (aside(early=False, used=False, copied=False), "WAR: copy_"),
        (event_recorded_too_early, "RAW: mm"),
        (not_joined, "what it leaves behind is not safe"),
        (one_matrix, "The numbers are right, but 512 KiB were copied to the GPU"),
        (one_matrix_and_every_copy, "the GPU computed for"),
        (on_the_default_stream, "another stream than the default one is current: ask for torch.cuda.current_stream()"),
        (in_half_precision, "the result is another"),
        (on_two_streams(joined=False), "memory that it gave back is still in use, and whoever takes it next"),
        (kept_from_the_first_run, "keep no tensor, stream or event from one run to the next"),
        (aside(early=False, used=False), "is the caller, who still reads `buffer`"),
        (waits_for_nothing, "(#3 is the caller, making `x`.)"),
        (lambda x, host_weights, buffer: float("nan"), "returned a float"),
        (lambda x, host_weights, buffer: x @ torch.empty(2**34, device="cuda"), "CUDA out of memory"),
        (onloaded(copy=in_pieces(64)), "It launches 327 copies and kernels where 12 do"),
        (onloaded(copy=lambda buffer, weight: buffer.copy_(weight)), "A copy without non_blocking=True"),
        (onloaded(behind=lambda: cuda.synchronize()), "It waits 5 times, and the GPU is done"),
        (onloaded(behind=lambda: HERE().synchronize()), "Correct and race-free, but the host stands still"),
        (onloaded(behind=lambda: HERE().record_event().synchronize()), "Correct and race-free, but the host stands"),
        (onloaded(behind=polls), "the host is busy for"),
        (onloaded(end=lambda y, x, buffer: (cuda.synchronize(), y)[1]), "It waits 1 time, and the GPU is done 0"),
        (onloaded(copy=lambda buffer, weight: buffer.copy_(weight.clone(), non_blocking=True)), "pageable memory"),
        (onloaded(copy=lambda buffer, weight: buffer.copy_(weight.double(), non_blocking=True)), "pageable memory"),
        (onloaded(order=lambda weights: weights[::-1]), "in order"),
        (onloaded(order=lambda weights: weights[:-1] or weights), "There are 5 layers, and 4 copies"),
        (onloaded(order=lambda weights: weights[1:] or weights), "There are 5 layers, and 4 copies"),
        (onloaded(product=lambda x, buffer: buffer @ x), "from the right"),
        (onloaded(product=lambda x, buffer: x @ buffer.T), "from the right"),
        (onloaded(copy=lambda buffer, weight: None), "0 copies were made"),
        (into_x, "x belongs to the caller"),
        (weights_used_up, "host_weights[0] belongs to the caller"),
        (onloaded(copy=copied_twice), "10 copies to the GPU instead of 5"),
        (onloaded(product=lambda x, buffer: (x @ buffer, x @ buffer)[1]), "10 kernels instead of 5"),
        (onloaded(end=lambda y, x, buffer: buffer.copy_(y)), "a tensor of its own"),
        (onloaded(end=lambda y, x, buffer: (buffer.zero_(), y)[1]), "does not hold the weights of the last layer"),
        (onloaded(end=lambda y, x, buffer: y.cpu()), "returned a tensor on the CPU"),
        (onloaded(end=lambda y, x, buffer: y.double()), "returned a torch.float64 tensor"),
        (onloaded(end=lambda y, x, buffer: None), "Return the resulting tensor"),
        (onloaded(end=lambda y, x, buffer: torch.empty_like(y)), "read before written"),
        (on_the_cpu, "returned a tensor on the CPU"),
        (left_current, "Leave the current stream as it was"),
        (onloaded(product=lambda x, buffer: x @ None), "it raised TypeError"),
    ],
}
CASES = [(puzzle, answer, says) for puzzle, group in WRONG.items() for answer, says in group]


@pytest.mark.parametrize(("puzzle", "answer", "says"), CASES, ids=[f"{case[0]}-{i}" for i, case in enumerate(CASES)])
def test_wrong_answer_is_refused_for_the_right_reason(puzzle, answer, says):
    verdict = judged(puzzle, answer)
    text = " ".join(str(verdict).split())
    assert not verdict.passed and not verdict.pending, text
    assert says in text, str(verdict)
    assert max(map(len, str(verdict).splitlines())) <= 80
    assert "the check itself stopped" not in text
    assert ("make streams and events inside" in text) == (answer is kept_from_the_first_run)
    assert simgpu.active() is None


@pytest.fixture(autouse=True)
def nothing_is_kept():
    yield
    ALIVE.clear()
    KEPT.clear()
    FIRST.clear()


def test_every_puzzle_has_enough_wrong_answers():
    assert all(sum(case[0] == puzzle for case in CASES) >= 10 for puzzle in PUZZLES)


RIGHT = [
    ("measure_ms", timed(calls=1)),
    ("measure_ms", timed(warm_up=5, calls=4, wait=lambda event: cuda.synchronize())),
    ("measure_ms", timed(first=lambda event: (cuda.synchronize(), event.record()))),
    ("measure_ms", timed(first=lambda event: HERE().record_event(event), wait=polled)),
    ("measure_ms", pairs(statistics.median)),
    ("measure_ms", pairs(min)),
    ("measure_ms", pairs(lambda times: statistics.mean(times[3:]))),
    ("measure_ms", by_clock(lambda: simgpu.clock() / 1000, cuda_wait := lambda: torch.cuda.synchronize(), cuda_wait)),
    ("measure_ms", span_of_a_trace),
    ("measure_ms", by_difference),
    ("measure_ms", timed(inside=lambda: torch.cuda.synchronize())),
    ("measure_ms", on_a_stream_of_its_own(joined=True)),
    ("measure_ms", until_it_stays_the_same),
    ("measure_ms", timed(calls=90)),
    ("peak_mib", by_other_names("cuda.memory")),
    ("peak_mib", by_other_names("accelerator")),
    ("peak_mib", by_memory_stats),
    ("peak_mib", reset_by_its_old_name),
    ("peak_mib", peaked(calls=7)),
    ("peak_mib", peaked(begin=lambda: torch.cuda.empty_cache())),
    ("peak_mib", peaked(result=lambda before: round((cuda.max_memory_allocated() - before) / MIB))),
    ("break_even_rows", lambda f, bw, s=2: round(f * s / (2 * bw))),
    ("break_even_rows", lambda f, bw, s=2: int(f * s / (2 * bw)) + 1),
    ("break_even_rows", lambda f, bw, s=2: torch.tensor(f * s / (2 * bw), dtype=torch.float64).item()),
    ("break_even_rows", by_bisection),
    ("serial_onload", aside()),
    ("serial_onload", events_for_everything),
    ("serial_onload", all_aside),
    ("serial_onload", two_activations),
    ("serial_onload", onloaded(copy=halves)),
    ("serial_onload", onloaded(copy=in_pieces(4))),
    ("serial_onload", on_two_streams(joined=True)),
    ("serial_onload", one_half_while_the_other_is_used),
    ("serial_onload", copy_behind_the_product),
    ("serial_onload", onloaded(product=lambda x, buffer: torch.nn.functional.linear(x, buffer.T))),
    ("serial_onload", torch.inference_mode()(SOLUTION.serial_onload)),
]


@pytest.mark.parametrize(("puzzle", "answer"), RIGHT, ids=[f"{case[0]}-{i}" for i, case in enumerate(RIGHT)])
def test_right_answer_written_otherwise_passes(puzzle, answer):
    verdict = judged(puzzle, answer)
    assert verdict.passed, str(verdict)


def test_more_streams_than_needed_are_advice():
    assert any("one stream is enough" in line for line in judged("serial_onload", aside()).advice)
    assert not judged("serial_onload", one_half_while_the_other_is_used).advice


def test_pinning_again_is_advice():
    answer = onloaded(copy=lambda buffer, weight: buffer.copy_(weight, non_blocking=True))

    def pins(x, host_weights, buffer):
        return answer(x, [weight.pin_memory() for weight in host_weights], buffer)
    verdict = judged("serial_onload", pins)
    assert verdict.passed and "pinned already" in verdict.advice[0]


def test_the_target_of_serial_onload_is_every_copy_and_every_product():
    weights = [onload.permutation(i) for i in range(7)]
    for ratio in device.RATIOS:
        run = device.run_once(onload._setting(onload.counting(1), weights), SOLUTION.serial_onload, ratio)
        spans = run.trace.spans
        copy, product = (spans[spans.name == name].duration_us.iloc[-1] for name in ("copy_", "mm"))
        before = spans[spans.kind == "h2d"].start_us.min()
        assert run.done_us - before == pytest.approx(7 * (copy + product), rel=1e-3)
        assert copy / product == pytest.approx(ratio, rel=1e-3) and not run.hazards
        assert run.peak_bytes == 2 * device.WEIGHT_BYTES


def test_the_right_times_are_those_of_the_model():
    for case, wanted in zip(timing.cases(), (6 * 1.5, 2 * 1.5, None, 3 * 1.5, 100 * 0.005), strict=True):
        given, *_ = timing.measure(SOLUTION.measure_ms, case)
        if wanted is not None:
            assert given == pytest.approx(wanted, rel=2e-3), case.name


def test_the_right_peaks_are_the_sums_of_their_parts():
    for case in peak.cases():
        assert peak.measure(SOLUTION.peak_mib, [case])[0].value == pytest.approx(case.peak_mib, abs=0.01), case.name
    resident, buffers = (case.peak_mib for case in peak.cases()[:2])
    assert (resident, buffers) == (3592.125, 776.125)
    assert resident == 24 * 128 + 4 * 128 + 8.125 and buffers == 2 * 128 + 4 * 128 + 8.125


def test_the_break_even_is_where_both_times_meet():
    for flops, rate, size in rows.CASES:
        copy, product = rows._times_ms(flops, rate, size or 2, rows.wanted_rows(flops, rate, size or 2))
        assert copy == pytest.approx(product)
    assert round(rows.wanted_rows(24e12, 19.7e9, 2)) == 1218


@pytest.mark.parametrize("setting", [{"device": "cuda"}, {"device": "meta"}, {"dtype": torch.float64}])
def test_defaults_of_a_notebook_change_nothing(setting):
    simgpu.install(simgpu.RTX_5060_LAPTOP)
    try:
        if "device" in setting:
            torch.set_default_device(setting["device"])
        torch.set_default_dtype(setting.get("dtype", torch.float32))
        assert all(check.judge(getattr(SOLUTION, puzzle)).passed for puzzle in PUZZLES)
        assert torch.empty(1).device.type == setting.get("device", "cpu")
        assert torch.get_default_dtype() == setting.get("dtype", torch.float32)
        wrong = judged("serial_onload", onloaded(order=lambda weights: weights[::-1]))
        assert f"has set the default {next(iter(setting))}" in wrong.says
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
        simgpu.uninstall()


def sets_defaults(x, host_weights, buffer):
    torch.set_default_device("cuda")
    torch.set_default_dtype(torch.float64)
    return SOLUTION.serial_onload(x, host_weights, buffer)


def test_defaults_that_an_answer_sets_are_not_left_behind():
    assert judged("serial_onload", sets_defaults).passed
    assert torch.empty(1).device.type == "cpu" and torch.get_default_dtype() == torch.float32
    assert check.judge(SOLUTION.serial_onload).passed


@pytest.mark.skipif(torch.__version__.startswith("2.9."), reason="its set_default_device() pops any mode on top")
def test_defaults_that_an_answer_sets_are_not_left_behind_inside_of_a_device_context():
    with torch.device("meta"):
        assert judged("serial_onload", sets_defaults).passed and torch.empty(1).is_meta
    assert torch.empty(1).device.type == "cpu" and check.judge(SOLUTION.serial_onload).passed


def test_watching_leaves_no_trace():
    from utils.labs.lab03.watch import FIGURES, watch_events, watch_figures
    from utils.simgpu.streams import Event
    with simgpu.session(simgpu.RTX_5060_LAPTOP):
        before = [Event.record, Event.elapsed_time, *(getattr(cuda, name) for name in FIGURES)]
        with pytest.raises(ZeroDivisionError), watch_events(), watch_figures(lambda *_: None):
            assert Event.record is not before[0] and cuda.memory_allocated is not before[2]
            raise ZeroDivisionError
        assert before == [Event.record, Event.elapsed_time, *(getattr(cuda, name) for name in FIGURES)]


def test_checks_run_inside_a_notebook_whose_device_is_already_simulated():
    simgpu.install(simgpu.RTX_5060_LAPTOP)
    try:
        outer = torch.ones(3, device="cuda")
        assert all(check.judge(getattr(SOLUTION, puzzle)).passed for puzzle in PUZZLES)
        assert outer.sum().item() == 3
    finally:
        simgpu.uninstall()
