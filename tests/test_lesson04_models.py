"""Lesson 04's ring of buffers: right in every call and race-free, as fast as its task graph, in exactly its slots."""

from __future__ import annotations

import gc
from dataclasses import replace
from itertools import pairwise

import networkx as nx
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from simgpu_programs.onload import RATIOS, WEIGHT_BYTES, D, profile, weights

from utils import dag, simgpu
from utils.lessons import import_lesson

lesson = import_lesson("04_double_buffered_onload")
LAYERS = (1, 2, 3, 5, 23, 24)
MODES = (torch.no_grad, torch.inference_mode)
CALLS = st.lists(
    st.tuples(st.sampled_from((1, 7, D)), st.integers(0, 2), st.booleans()), min_size=1, max_size=5
)   # rows, which stream, synchronise before


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Products this small gain nothing from threads, which a busy machine makes wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def resident(x, ws):
    for w in ws:
        x = x @ w.to("cuda")
    return x


def inputs(count, rows=D):
    """Distinct (rows, D) inputs on the device."""
    return [torch.randn(rows, D, generator=torch.Generator().manual_seed(seed)).cuda() for seed in range(count)]


def run_calls(model, calls, xs):
    """Every call on its stream; the results are on the device."""
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    torch.cuda.synchronize()
    found = []
    for (_, stream, sync), x in zip(calls, xs, strict=True):
        if sync:
            torch.cuda.synchronize()
        with torch.cuda.stream(streams[stream]):
            found.append(model(x))
    torch.cuda.synchronize()
    return found


# values


@settings(max_examples=40)
@given(st.sampled_from(LAYERS), st.integers(1, 6), st.booleans(), st.booleans(), st.sampled_from(RATIOS), CALLS,
       st.sampled_from(("exact", "adversarial")), st.sampled_from(MODES))
@example(23, 2, False, True, 0.1, [(D, 0, False)] * 5, "exact", torch.no_grad)
@example(23, 2, True, False, 0.1, [(D, 0, False)] * 5, "adversarial", torch.no_grad)
@example(24, 5, True, True, 0.5, [(D, 0, False), (1, 1, False), (7, 2, False), (D, 0, False)], "adversarial",
         torch.no_grad)
def test_every_call_is_bit_equal_to_resident_and_clean(layers, slots, prefetch, copy_first, ratio, calls, numerics,
                                                       mode):
    with simgpu.session(profile(ratio), numerics=numerics) as gpu, mode():
        ws = weights(layers)
        model = lesson.RingMLP(ws, slots, prefetch)
        model.ring.copy_first = copy_first
        xs = [inputs(1, rows)[0] + i for i, (rows, _, _) in enumerate(calls)]
        found = run_calls(model, calls, xs)
        assert gpu.hazards == []
        assert all(torch.equal(y, resident(x, ws)) for x, y in zip(xs, found, strict=True))
        assert gpu.hazards == []


@settings(max_examples=12)
@given(st.integers(1, 6), st.integers(1, 5), st.booleans(), st.booleans(), st.sampled_from(RATIOS), st.data())
def test_layers_in_any_order(layers, slots, prefetch, copy_first, ratio, data):
    """A call that stops on its way, a layer that is skipped or asked for twice: copied again where needed."""
    order = data.draw(st.lists(st.integers(0, layers - 1), max_size=12))
    with simgpu.session(profile(ratio)) as gpu, torch.no_grad():
        ws = weights(layers)
        ring = lesson.RingMLP(ws, slots, prefetch).ring
        ring.copy_first = copy_first
        (x,) = inputs(1)
        y = x
        for i in order:
            with ring.layer(i) as weight:
                y = y @ weight
        assert torch.equal(y, resident(x, [ws[i] for i in order])) and gpu.hazards == []


@pytest.mark.parametrize("prefetch", [True, False])
@pytest.mark.parametrize("copy_first", [True, False])
@pytest.mark.parametrize("stop", [0, 1, 2])
def test_usable_after_an_error_in_a_layer(gpu, prefetch, copy_first, stop):
    ws = weights(3)
    model = lesson.RingMLP(ws, 2, prefetch)
    model.ring.copy_first = copy_first
    (x,) = inputs(1)
    with pytest.raises(ZeroDivisionError):
        for i in range(3):
            with model.ring.layer(i) as weight:
                x @ weight
                if i == stop:
                    raise ZeroDivisionError
    assert all(torch.equal(model(x), resident(x, ws)) for _ in range(3)) and gpu.hazards == []


# time


def free_host(ratio):
    """Launches cost nothing, so that the device alone decides."""
    return replace(profile(ratio), launch_ns=0, event_ns=0, sync_ns=0)


def run_ns(gpu):
    """Starts and ends of copies, and of products."""
    spans = gpu.trace().columns
    starts, lengths = ([round(us * 1000) for us in spans[key]] for key in ("start_us", "duration_us"))
    rows = list(zip(spans["kind"], starts, lengths, strict=True))
    return [[(start, start + length) for kind, start, length in rows if kind == wanted] for wanted in ("h2d", "kernel")]


def graph_of(products, slots, c, k, there=0):
    """The ring: copy n -> product n -> copy n + slots; the first ``there`` layers are loaded already."""
    graph = nx.DiGraph()
    for n in range(products):
        graph.add_node(("copy", n), duration=0 if n < there else c, resource="h2d")
        graph.add_node(("product", n), duration=k, resource="compute")
    for n in range(products):
        graph.add_edge(("copy", n), ("product", n))
        if n + slots < products:
            graph.add_edge(("product", n), ("copy", n + slots))
    return graph


def planned(products, slots, c, k, there=0):
    runs = dag.schedule(graph_of(products, slots, c, k, there), {"h2d": 1, "compute": 1}, fifo=True).runs
    return [(runs[kind, n].start, runs[kind, n].end) for kind in ("copy", "product") for n in range(products)]


@settings(max_examples=20)
@given(st.sampled_from(LAYERS), st.integers(1, 6), st.booleans(), st.booleans(), st.sampled_from(RATIOS),
       st.integers(1, 4))
@example(24, 2, True, True, 0.5, 4)
@example(23, 2, True, False, 0.5, 4)
@example(23, 2, True, True, 2, 4)
def test_time_is_that_of_the_task_graph(layers, slots, prefetch, copy_first, ratio, calls):
    with simgpu.session(free_host(ratio), numerics="shapes") as gpu:
        model = lesson.RingMLP(weights(layers), slots, prefetch)
        model.ring.copy_first = copy_first
        x = torch.empty(D, D, device="cuda")
        for _ in range(calls):
            model(x)
        copies, products = run_ns(gpu)
    c, k = copies[0][1] - copies[0][0], products[0][1] - products[0][0]
    count, begin = layers * calls, copies[0][0]
    assert len(products) == count and len(copies) == count + (slots - 1 if prefetch else 0)
    seen = [(start - begin, end - begin) for start, end in copies[:count] + products]
    assert seen == planned(count, slots, c, k)
    if slots >= 2:
        ends = [products[(call + 1) * layers - 1][1] - begin for call in range(calls)]
        assert ends[0] == c + (layers - 1) * max(c, k) + k                                      # cold
        assert {b - a for a, b in pairwise(ends)} <= {layers * max(c, k)}    # steady
    else:
        assert products[-1][1] - begin == count * (c + k)


@settings(max_examples=15)
@given(st.sampled_from(LAYERS), st.integers(1, 6), st.booleans(), st.booleans(), st.sampled_from(RATIOS))
def test_a_call_after_a_synchronise_finds_its_first_layers_loaded(layers, slots, prefetch, copy_first, ratio):
    with simgpu.session(free_host(ratio), numerics="shapes") as gpu:
        model = lesson.RingMLP(weights(layers), slots, prefetch)
        model.ring.copy_first = copy_first
        x = torch.empty(D, D, device="cuda")
        ends = []
        for _ in range(3):
            torch.cuda.synchronize()
            begin = round(simgpu.clock() * 1000)
            model(x)
            copies, products = run_ns(gpu)
            ends.append(products[-1][1] - begin)
        c, k = copies[0][1] - copies[0][0], products[0][1] - products[0][0]
    there = slots - 1 if prefetch else 0       # the last layer's buffer is loaded when the next call begins
    cold, warm = (max(end for _, end in planned(layers, slots, c, k, n)[layers:]) for n in (0, there))
    assert ends == [cold, warm, warm]
    assert not prefetch or slots < 2 or warm <= layers * max(c, k)


@pytest.mark.parametrize("copy_first", [True, False])
@pytest.mark.parametrize("ratio", [0.5, 2])
def test_what_is_launched_first_starts_first_after_a_wait(ratio, copy_first):
    """Both engines rest after a synchronise, and a launch takes the host 100 us: which of them goes on without it?"""
    with simgpu.session(replace(profile(ratio), launch_ns=100_000, event_ns=0, sync_ns=0), numerics="shapes") as gpu:
        model = lesson.RingMLP(weights(3))
        model.ring.copy_first = copy_first
        x = torch.empty(D, D, device="cuda")
        model(x)
        torch.cuda.synchronize()
        model(x)
        copies, products = run_ns(gpu)
    copy, product = copies[4][0], products[3][0]           # copy 0 of the second call was made by the first
    assert copy - product == (-100_000 if copy_first else 100_000)


# memory


@pytest.mark.parametrize("prefetch", [True, False])
@pytest.mark.parametrize("slots", [1, 2, 5])
def test_memory_is_the_slots_and_the_activations(gpu, slots, prefetch):
    """While a layer runs, its input and its output are there, and nothing else beside the slots."""
    ws = weights(6)
    (x,) = inputs(1)
    warm = x @ x                                        # the library's workspace
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    model = lesson.RingMLP(ws, slots, prefetch)
    assert torch.cuda.memory_allocated() - before == slots * WEIGHT_BYTES
    addresses = [buffer.data_ptr() for buffer in model.ring.buffers]
    for _ in range(4):
        torch.cuda.reset_peak_memory_stats()
        y = model(x)
        assert torch.cuda.max_memory_allocated() - before == slots * WEIGHT_BYTES + 2 * x.nbytes
        del y
        assert torch.cuda.memory_allocated() - before == slots * WEIGHT_BYTES
    assert [buffer.data_ptr() for buffer in model.ring.buffers] == addresses and warm.is_cuda


@pytest.mark.parametrize("prefetch", [True, False])
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_given_up_while_its_last_call_is_under_way(gpu, slots, prefetch):
    """The call is on a stream that did not make the buffers; their memory is used again at once."""
    model = lesson.RingMLP(weights(3), slots, prefetch)
    (x,) = inputs(1)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = model(x)
    del model
    gc.collect()
    others = [torch.full((D, D), float(i), device="cuda") for i in range(2 * slots)]
    torch.cuda.synchronize()
    assert gpu.hazards == [] and torch.equal(y, resident(x, weights(3)))
    assert [float(other[0, 0]) for other in others] == [float(i) for i in range(2 * slots)]


def test_buffers_whose_memory_is_still_in_use_on_the_stream_that_made_the_ring(gpu):
    ws, (x,) = weights(2), inputs(1)
    torch.cuda._sleep(10_000_000)
    old = x.clone()
    z = old + 1
    address = old.data_ptr()
    del old
    model = lesson.RingMLP(ws, 1)
    assert model.ring.buffers[0].data_ptr() == address
    y = model(x)
    assert torch.equal(z, x + 1) and torch.equal(y, resident(x, ws)) and gpu.hazards == []


# weights that change between calls


@pytest.mark.parametrize("restart", [True, False])
def test_weights_edited_between_calls(gpu, restart):
    ws, (x,) = weights(4), inputs(1)
    model = lesson.RingMLP(ws)
    old = resident(x, ws)
    model(x)
    torch.cuda.synchronize()
    ws[0].mul_(2)
    if restart:
        model.ring.restart()
    y = model(x)
    assert torch.equal(y, resident(x, ws) if restart else old) and gpu.hazards == []
    assert torch.equal(model(x), resident(x, ws))


def test_weights_edited_under_a_copy_that_was_loaded_ahead_are_a_hazard(gpu):
    ws, (x,) = weights(4), inputs(1)
    lesson.RingMLP(ws)(x)
    ws[0].mul_(2)
    assert [(h.kind, h.first.name, h.host) for h in gpu.hazards] == [("WAR", "copy_", True)]


# what is refused, or taken as it comes


@pytest.mark.parametrize("slots", [0, -1])
def test_a_ring_needs_slots(gpu, slots):
    with pytest.raises(ValueError, match="a ring of 2 layers and 0 buffers"):
        lesson.RingMLP(weights(2), slots)


def test_a_ring_needs_layers(gpu):
    with pytest.raises(ValueError, match="nothing to stream"):
        lesson.RingMLP([])
    with pytest.raises(ValueError, match="a ring of 0 layers and 1 buffers"):
        lesson.Ring(0, [torch.empty(4, device="cuda")], print)
    with pytest.raises(TypeError, match="float"):
        lesson.RingMLP(weights(2), 1.5)


@pytest.mark.parametrize("i", [-1, 3, 7])
def test_a_layer_that_is_not_there(gpu, i):
    ws, (x,) = weights(3), inputs(1)
    model = lesson.RingMLP(ws)
    with pytest.raises(IndexError, match=f"no layer {i}"), model.ring.layer(i):
        pass
    assert torch.equal(model(x), resident(x, ws)) and gpu.hazards == []


@pytest.mark.parametrize("inner", [0, 1, 2])
def test_one_layer_at_a_time(gpu, inner):
    """A second one could take the buffer of the first, which is not known to be read yet."""
    ws, (x,) = weights(3), inputs(1)
    model = lesson.RingMLP(ws)
    with pytest.raises(RuntimeError, match=f"layer {inner} was called inside of another"), model.ring.layer(1), \
            model.ring.layer(inner):
        pass
    assert torch.equal(model(x), resident(x, ws)) and gpu.hazards == []


@pytest.mark.parametrize("make", [lambda w: w, lambda w: w.t(), lambda w: w.clone()], ids=["pinned", "t", "pageable"])
def test_weights_as_they_come(gpu, make):
    ws, (x,) = [make(w) for w in weights(3)], inputs(1)
    model = lesson.RingMLP(ws)
    assert all(torch.equal(model(x), resident(x, ws)) for _ in range(3)) and gpu.hazards == []


def test_a_ring_that_was_made_in_inference_mode_is_of_use_outside(gpu):
    with torch.inference_mode():
        model = lesson.RingMLP(weights(2))
    assert not any(buffer.is_inference() for buffer in model.ring.buffers)
