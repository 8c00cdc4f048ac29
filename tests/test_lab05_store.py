"""Lab 05, puzzle 1: every wrong answer is refused in words, and right ones pass, however written."""

import time

import pytest
import torch
from answers import HERE, judge_as

from utils.labs.lab05 import check, show, store
from utils.lessons import import_lesson

SOLUTION = import_lesson("solutions/05_offload_and_swap")
cuda = torch.cuda


def judged(answer):
    return judge_as(check, "store_each", answer)


def said(verdict):
    return " ".join(str(verdict).split())


def fresh(*_):
    return cuda.Event()


def stores(written=lambda i: i, stored=lambda i: i - 2, slot=lambda i: i % 2, from_slot=None, product=None, copy=None,
           shared=False, before=False, late=False, each=lambda out: out, main=HERE, where=lambda storing: storing,
           finish=lambda x: x):
    """The worked answer with an event for every layer, and something else in one place.

    ``written(i)``: the layer whose product store i waits for; ``stored(i)``: the layer whose store product i waits for.
    """
    def answer(x, weights, staging, host, storing):
        store_stream = where(storing)
        one = cuda.Event()
        events = [{}, {}]

        def event(which, i):
            return one if shared else events[which].setdefault(i, cuda.Event())

        for i, weight in enumerate(weights):
            if stored(i) is not None and stored(i) >= 0:
                main().wait_event(event(1, stored(i)))
            if before:
                event(0, i).record(main())
            out = (product or (lambda x, weight, out: torch.mm(x, weight, out=out)))(x, weight, staging[slot(i)])
            if not before:
                event(0, i).record(main())
            source = out if from_slot is None else staging[from_slot(i)]
            with cuda.stream(store_stream):
                if written(i) is not None and not late:
                    store_stream.wait_event(event(0, written(i)))
                (copy or (lambda host, source: host.copy_(source, non_blocking=True)))(host[i], source)
                if late:
                    store_stream.wait_event(event(0, written(i)))
                event(1, i).record()
            x = each(out)
        return finish(x)
    return answer


def outputs_kept_by_the_allocator(x, weights, staging, host, storing):
    for i, weight in enumerate(weights):
        x = x @ weight
        storing.wait_stream(HERE())
        x.record_stream(storing)
        with cuda.stream(storing):
            host[i].copy_(x, non_blocking=True)
    return x


def third_buffer(x, weights, staging, host, storing):
    buffers = [*staging, torch.empty_like(x)]
    x = stores(slot=lambda i: i % 3, stored=lambda i: i - 3)(x, weights, buffers, host, storing)
    buffers[2].record_stream(storing)
    return x


def a_buffer_for_each_and_the_peak_reset(x, weights, staging, host, storing):
    buffers = [torch.empty_like(x) for _ in weights]
    for i, weight in enumerate(weights):
        x = torch.mm(x, weight, out=buffers[i])
        storing.wait_stream(HERE())
        with cuda.stream(storing):
            host[i].copy_(x, non_blocking=True)
    HERE().wait_stream(storing)
    result = staging[0].copy_(x)
    del buffers, x
    cuda.reset_peak_memory_stats()
    return result


def a_third_buffer_before_the_first_product(x, weights, staging, host, storing):
    torch.empty_like(x).copy_(x)
    return SOLUTION.store_each(x, weights, staging, host, storing)


def all_here(x, weights, staging, host, storing):
    for i, weight in enumerate(weights):
        x = torch.mm(x, weight, out=staging[i % 2])
        host[i].copy_(x, non_blocking=True)
    return x


def all_there(x, weights, staging, host, storing):
    storing.wait_stream(HERE())
    with cuda.stream(storing):
        x = all_here(x, weights, staging, host, storing)
    HERE().wait_stream(storing)
    return x


def synchronized(x, weights, staging, host, storing):
    for i, weight in enumerate(weights):
        x = torch.mm(x, weight, out=staging[i % 2])
        HERE().synchronize()
        storing.synchronize()
        with cuda.stream(storing):
            host[i].copy_(x, non_blocking=True)
    return x


def wait_streams(x, weights, staging, host, storing):
    for i, weight in enumerate(weights):
        HERE().wait_stream(storing)
        x = torch.mm(x, weight, out=staging[i % 2])
        storing.wait_stream(HERE())
        with cuda.stream(storing):
            host[i].copy_(x, non_blocking=True)
    return x


def polls(x, weights, staging, host, storing):
    stored = [cuda.Event(), cuda.Event()]
    for i, weight in enumerate(weights):
        while not stored[i % 2].query():
            pass
        x = torch.mm(x, weight, out=staging[i % 2])
        storing.wait_stream(HERE())
        with cuda.stream(storing):
            host[i].copy_(x, non_blocking=True)
            stored[i % 2].record()
    return x


def polls_and_sleeps(x, weights, staging, host, storing):
    for i, weight in enumerate(weights):
        x = torch.mm(x, weight, out=staging[i % 2])
        storing.wait_stream(HERE())
        with cuda.stream(storing):
            host[i].copy_(x, non_blocking=True)
        while not storing.query():
            time.sleep(0.001)
    return x


def one_event_and_a_harmless_wait_stream(x, weights, staging, host, storing):
    stored = cuda.Event()
    for i, weight in enumerate(weights):
        stored.wait()
        x = torch.mm(x, weight, out=staging[i % 2])
        storing.wait_stream(HERE())
        with cuda.stream(storing):
            host[i].copy_(x, non_blocking=True)
            stored.record()
    return x


def columns(host, source):
    for target, part in zip(host.chunk(2, 1), source.chunk(2, 1), strict=True):
        target.copy_(part, non_blocking=True)


def a_long_kernel_elsewhere(x, weights, staging, host, storing):
    with cuda.stream(cuda.Stream()):
        cuda._sleep(10**8)
    return SOLUTION.store_each(x, weights, staging, host, storing)


def thousands_of_events(x, weights, staging, host, storing):
    for _ in range(3000):
        cuda.Event().record()
    return SOLUTION.store_each(x, weights, staging, host, storing)


def one_buffer(x, weights, staging, host, storing):
    for i, weight in enumerate(weights):
        x = torch.mm(x, weight, out=staging[i % 2])
        storing.wait_stream(HERE())
        with cuda.stream(storing):
            host[i].copy_(staging[0], non_blocking=True)
    return x


def staged(x, weight, out):
    return out.copy_(x @ weight)


def computed_on_the_host(x, weights, staging, host, storing):
    first, on_host = x, [weight.cpu() for weight in weights]
    y = x.cpu()
    for i, weight in enumerate(on_host):
        y = y @ weight
        host[i].copy_(y)
        x = torch.mm(x, weights[i], out=staging[i % 2])
    return x if weights else first


def only_the_last(x, weights, staging, host, storing):
    for i, weight in enumerate(weights):
        x = torch.mm(x, weight, out=staging[i % 2])
    storing.wait_stream(HERE())
    with cuda.stream(storing):
        host[-1].copy_(x, non_blocking=True)
    return x


def overwrites_x(x, weights, staging, host, storing):
    y = SOLUTION.store_each(x, weights, staging, host, storing)
    x.copy_(y)
    return x


def overwrites_weights(x, weights, staging, host, storing):
    y = SOLUTION.store_each(x, weights, staging, host, storing)
    weights[0].zero_()
    return y


def in_half_precision(x, weight, out):
    return out.copy_((x.half() @ weight.half()).float())


def rows(host, source):
    for target, row in zip(host.split(1), source.split(1), strict=True):
        target.copy_(row, non_blocking=True)


def on_its_own_stream(x, weights, staging, host, storing):
    own = cuda.Stream()
    with cuda.stream(own):
        return SOLUTION.store_each(x, weights, staging, host, storing)


def raises(x, weights, staging, host, storing):
    return torch.mm(x, weights[0], out=staging[2])   # line of the learner's


WRONG = [
    (stores(written=lambda i: None), "#9 is the product of layer 0, #10 is the store of layer 0."),
    (stores(stored=lambda i: None), "is the product of layer 2"),
    (stores(written=lambda i: i - 1 if i else None), "is the store of layer 0"),
    (stores(stored=lambda i: i - 3), "WAR: mm"),
    (stores(before=True), "RAW: copy_"),
    (stores(late=True), "RAW: copy_"),
    (stores(written=lambda i: None, stored=lambda i: None), "hazards; this is the first."),
    (stores(shared=True, stored=lambda i: i - 1), "The product of layer 1 starts only after the store of layer 0, "),
    (stores(stored=lambda i: i - 1), "It needs the product of layer 0, no more. Whose event does it wait for?"),
    (one_event_and_a_harmless_wait_stream, "It needs the product of layer 0, no more. Whose event does it wait for?"),
    (wait_streams, "It needs the product of layer 0, no more. wait_stream waits for everything that was queued"),
    (stores(each=lambda out: (out.sum().item(), out)[1]), "or one that gives a value to the host, makes the host wait"),
    (stores(copy=columns), "is not asynchronous even with non_blocking=True: copy rows."),
    (a_long_kernel_elsewhere, "All steps are over at"),
    (stores(each=lambda out: (time.sleep(0.01), out)[1]), "of these it sleeps: no need to give the GPU time."),
    (thousands_of_events, "Events are recorded and waited for"),
    (stores(stored=lambda i: i), "that wait did nothing"),
    (one_buffer, "is it the right buffer that is written, and the right one that is stored?"),
    (synchronized, "the host stands still until the GPU is done"),
    (stores(copy=lambda host, source: host.copy_(source)), "A copy without non_blocking=True"),
    (stores(copy=lambda host, source: host.copy_(source.cpu())), "is never asynchronous"),
    (polls, "Asking again and again whether something is done"),
    (polls_and_sleeps, "Asking again and again whether something is done"),
    (all_here, "Every store belongs on storing. 0 of 5 were made there."),
    (all_there, "The product of layer 1 starts only after the store of layer 0 (both are in one stream)"),
    (third_buffer, "beside the two staging buffers there was device memory for 1 matrix"),
    (a_buffer_for_each_and_the_peak_reset, "beside the two staging buffers there was device memory for 5 matrices"),
    (a_third_buffer_before_the_first_product, "beside the two staging buffers there was device memory for 1 matrix"),
    (outputs_kept_by_the_allocator, "beside the two staging buffers there was device memory"),
    (stores(product=staged), "beside the two staging buffers there was device memory"),
    (computed_on_the_host, "Every store belongs on storing. 0 of 5"),
    (only_the_last, "host[0] holds what it held before the call: it was never written."),
    (stores(from_slot=lambda i: 1 - i % 2),
     "is it the right buffer that is written, and the right one that is stored?"),
    (lambda x, weights, staging, host, storing: SOLUTION.store_each(x, weights, staging, host[::-1], storing),
     "host[0] holds the output of layer 4."),
    (overwrites_weights, "The caller's own weights changed"),
    (overwrites_x, "The caller's own x changed"),
    (stores(product=in_half_precision), "Every order is stated, but the result has checksum"),
    (stores(copy=rows), "Every launch takes host time"),
    (stores(main=lambda: cuda.default_stream()), "In this run another stream than the default one is current."),
    (on_its_own_stream, "RAW: mm"),
    (stores(where=lambda storing: cuda.Stream()), "The caller waits for the current stream and for storing"),
    (stores(finish=lambda x: None), "the result is a NoneType"),
    (stores(finish=lambda x: x.cpu()), "the result is a tensor on the CPU"),
    (raises, "x, weights[0], out=staging[2]) # line of the learner's"),
]


@pytest.mark.parametrize("place", range(len(WRONG)))
def test_wrong_answers_are_refused(place):
    answer, phrase = WRONG[place]
    verdict = judged(answer)
    assert not verdict.passed and not verdict.pending
    assert phrase in said(verdict), str(verdict)


def as_launched_a_layer_later(x, weights, staging, host, storing):
    """The store of a layer is launched behind the next product."""
    written, stored = ([cuda.Event() for _ in range(2)] for _ in range(2))

    def store(i):
        with cuda.stream(storing):
            written[i % 2].wait()
            host[i].copy_(staging[i % 2], non_blocking=True)
            stored[i % 2].record()
    for i, weight in enumerate(weights):
        stored[i % 2].wait()
        x = torch.mm(x, weight, out=staging[i % 2])
        written[i % 2].record()
        if i:
            store(i - 1)
    store(len(weights) - 1)
    return x


def two_compute_streams(x, weights, staging, host, storing):
    computing, before = [cuda.Stream(), cuda.Stream()], HERE().record_event()
    stored = [cuda.Event(), cuda.Event()]
    for i, weight in enumerate(weights):
        with cuda.stream(computing[i % 2]):
            before.wait()
            stored[i % 2].wait()
            x = torch.mm(x, weight, out=staging[i % 2])
            before = HERE().record_event()
        with cuda.stream(storing):
            before.wait()
            host[i].copy_(x, non_blocking=True)
            stored[i % 2].record()
    HERE().wait_event(before)
    return x


def halves(host, source):
    for target, part in zip(host.chunk(2), source.chunk(2), strict=True):
        target.copy_(part, non_blocking=True)


def with_wait_stream(x, weights, staging, host, storing):
    """wait_stream right behind a product waits for that product alone."""
    stored = [None, None]
    for i, weight in enumerate(weights):
        if stored[i % 2]:
            stored[i % 2].wait()
        torch.matmul(x, weight, out=staging[i % 2])
        x = staging[i % 2]
        storing.wait_stream(HERE())
        with cuda.stream(storing):
            host[i].copy_(x, non_blocking=True)
        stored[i % 2] = storing.record_event()
    return x


def silent_about_waits_that_are_right(answer):
    return "that wait did nothing" not in said(judged(answer))


def test_the_first_waits_for_each_buffer_are_right():
    assert silent_about_waits_that_are_right(stores(written=lambda i: None))
    assert silent_about_waits_that_are_right(stores(from_slot=lambda i: 1 - i % 2))
    assert not silent_about_waits_that_are_right(stores(stored=lambda i: i))


def test_values_for_the_host_are_not_called_pageable():
    for answer in (stores(each=lambda out: (out.sum().item(), out)[1]), stores(finish=lambda x: (repr(x), x)[1])):
        assert "pageable" not in said(judged(answer))


RIGHT = [stores(), as_launched_a_layer_later, two_compute_streams, stores(copy=halves), with_wait_stream,
         stores(finish=lambda x: x.view_as(x)), stores(each=lambda x: x[:])]


@pytest.mark.parametrize("place", range(len(RIGHT)))
def test_right_answers_of_other_shapes_pass(place):
    verdict = judged(RIGHT[place])
    assert verdict.passed, str(verdict)


def test_target_time_is_that_of_the_text():
    for layers in (1, 5, 8):
        run = store.StoreEach().goal(store.Case(layers), 2.0)
        product, copy = 1260.6, 2 * 1260.6
        assert run.done_us == pytest.approx(product + (layers - 1) * copy + copy, rel=0.02)
        assert run.peak_bytes == 0


def test_pinning_is_advised_against():
    def pins(x, weights, staging, host, storing):
        torch.empty(1).pin_memory()
        return SOLUTION.store_each(x, weights, staging, host, storing)
    verdict = judged(pins)
    assert verdict.passed and "pinned already" in said(verdict), str(verdict)


def test_show_names_both_races_of_the_draft():
    import nbformat
    from conftest import ROOT

    cells = nbformat.read(ROOT / "solutions/05_offload_and_swap.ipynb", as_version=4).cells
    source = next(cell.source for cell in cells if cell.id == "draft").replace("show(draft)", "")
    names = {"torch": torch}
    exec(source, names)
    shown = show(names["draft"])
    text = repr(shown)
    assert "RAW: copy_" in text and "WAR: mm" in text and "Results: wrong in host[" in text, text
    assert max(map(len, text.split("\n"))) <= 80
    assert shown._repr_mimebundle_()[0]["image/png"]


def test_show_says_that_a_stub_is_no_program():
    def stub(*_):
        raise NotImplementedError()
    with pytest.raises(RuntimeError, match="not written yet"):
        show(stub)


def test_show_names_an_error():
    with pytest.raises(RuntimeError, match="IndexError"):
        show(raises)
