"""Lab 05, puzzle 2: every wrong answer is refused in words, and right ones pass, however written."""

import pytest
import torch
from answers import HERE, judge_as

from utils import simgpu
from utils.labs.lab05 import check, three
from utils.lessons import import_lesson

SOLUTION = import_lesson("solutions/05_offload_and_swap")
cuda = torch.cuda


def judged(answer):
    return judge_as(check, "three_lanes", answer)


def said(verdict):
    return " ".join(str(verdict).split())


def enter(loading, storing):
    loading.wait_stream(storing)


def copied(target, source):
    target.copy_(source, non_blocking=True)


def lanes(loaded=lambda i: i, updated=lambda i: i, stored=lambda i: i - 3, slot=lambda i: i % 3, begin=enter,
          early=False, too_late=False, load=copied, store=copied, compute=lambda layer, x, slot: layer(x, slot),
          after=lambda: None, streams=lambda loading, storing: (loading, storing), main=HERE, more=0, shared=(),
          finish=lambda x: x, store_from=None):
    """The worked answer with an event for every layer, and something else in one place.

    ``loaded(i)``, ``updated(i)``, ``stored(i)``: whose load layer i, whose update store i, whose store load i needs.
    ``shared``: the kinds of events of which there is only one, recorded again for every layer.
    """
    def answer(x, layers, kv_host, slots, loading, storing):
        loading, storing = streams(loading, storing)
        begin(loading, storing)
        slots = [*slots, *(torch.empty_like(slots[0]) for _ in range(more))]
        events = {}

        def event(kind, i):
            return events.setdefault((kind, 0 if kind in shared else i), cuda.Event())

        def wait(stream, kind, i):
            if i is not None and i >= 0:
                stream.wait_event(event(kind, i))

        for i, layer in enumerate(layers):
            at = slots[slot(i)]
            with cuda.stream(loading):
                wait(loading, "stored", stored(i))
                load(at, kv_host[i])
                event("loaded", i).record()
            wait(main(), "loaded", loaded(i))
            if early:
                event("updated", i).record()
            x = compute(layer, x, at)
            if not early:
                event("updated", i).record(main())
            with cuda.stream(storing):
                if not too_late:
                    wait(storing, "updated", updated(i))
                store(kv_host[i], at if store_from is None else slots[store_from(i)])
                if too_late:
                    wait(storing, "updated", updated(i))
                event("stored", i).record()
            after()
        return finish(x)
    return answer


def of_the_layer(x, layers, kv_host, slots, loading, storing):
    """A load waits for the layer that used the slot, not for its store: the classic."""
    updated, loaded = ([cuda.Event() for _ in slots] for _ in range(2))
    loading.wait_stream(storing)
    for i, layer in enumerate(layers):
        slot = i % 3
        with cuda.stream(loading):
            loading.wait_event(updated[slot])
            slots[slot].copy_(kv_host[i], non_blocking=True)
            loaded[slot].record()
        HERE().wait_event(loaded[slot])
        x = layer(x, slots[slot])
        updated[slot].record()
        storing.wait_stream(HERE())
        with cuda.stream(storing):
            kv_host[i].copy_(slots[slot], non_blocking=True)
    return x


def two_of_three(x, layers, kv_host, slots, loading, storing):
    return SOLUTION.three_lanes(x, layers, kv_host, slots[:2], loading, storing)


def another_slot(x, layers, kv_host, slots, loading, storing):
    slots = [*slots, torch.empty_like(slots[0])]
    loading.wait_stream(HERE())
    x = SOLUTION.three_lanes(x, layers, kv_host, slots, loading, storing)
    HERE().wait_stream(storing)
    return x


def serial(x, layers, kv_host, slots, loading, storing):
    for i, layer in enumerate(layers):
        loading.wait_stream(storing)
        with cuda.stream(loading):
            slots[0].copy_(kv_host[i], non_blocking=True)
        HERE().wait_stream(loading)
        x = layer(x, slots[0])
        storing.wait_stream(HERE())
        with cuda.stream(storing):
            kv_host[i].copy_(slots[0], non_blocking=True)
    return x


def all_here(x, layers, kv_host, slots, loading, storing):
    for i, layer in enumerate(layers):
        slots[0].copy_(kv_host[i], non_blocking=True)
        x = layer(x, slots[0])
        kv_host[i].copy_(slots[0], non_blocking=True)
    return x


def resident(x, layers, kv_host, slots, loading, storing):
    """Everything is loaded first, and stored last."""
    loading.wait_stream(storing)
    with cuda.stream(loading):
        kv = [host.to("cuda", non_blocking=True) for host in kv_host]
    HERE().wait_stream(loading)
    for layer, own in zip(layers, kv, strict=True):
        x = layer(x, own)
    storing.wait_stream(HERE())
    with cuda.stream(storing):
        for host, own in zip(kv_host, kv, strict=True):
            host.copy_(own, non_blocking=True)
    loading.wait_stream(storing)
    return x


def waits_in_the_loop(x, layers, kv_host, slots, loading, storing):
    return lanes(begin=lambda loading, storing: None, load=lambda slot, host: copied(slot, host),
                 after=lambda: loading.wait_stream(storing))(x, layers, kv_host, slots, loading, storing)


def joined_at_the_end(x, layers, kv_host, slots, loading, storing):
    x = SOLUTION.three_lanes(x, layers, kv_host, slots, loading, storing)
    HERE().wait_stream(storing)
    cuda.synchronize()
    return x


def joined(answer):
    """The streams wait for each other at the end."""
    def joins(x, layers, kv_host, slots, loading, storing):
        x = answer(x, layers, kv_host, slots, loading, storing)
        storing.wait_stream(loading)
        return x
    return joins


def no_store(host, slot):
    pass


def changes_x(layer, x, slot):
    y = layer(x, slot)
    x.zero_()
    return y


def twice(layer, x, slot):
    layer(x, slot.clone())
    return layer(x, slot)


def keeps_outputs(x, layers, kv_host, slots, loading, storing):
    outputs = []

    def compute(layer, x, slot):
        outputs.append(layer(x, slot))
        return outputs[-1]
    return lanes(compute=compute)(x, layers, kv_host, slots, loading, storing)


def load_elsewhere(slot, host):
    slot.data = host.to("cuda", non_blocking=True)
    slot.record_stream(HERE())


def shares_outputs(x, layers, kv_host, slots, loading, storing):
    def compute(layer, x, slot):
        y = layer(x, slot)
        y.record_stream(storing)
        return y
    return lanes(compute=compute)(x, layers, kv_host, slots, loading, storing)


class Resident:
    """The KV of a call's only layer stays in its slot."""

    loaded = None


def loads_once(x, layers, kv_host, slots, loading, storing):
    def load(slot, host):
        if len(layers) > 1 or Resident.loaded is not simgpu.active():
            copied(slot, host)
            Resident.loaded = simgpu.active()
    return lanes(load=load)(x, layers, kv_host, slots, loading, storing)


def skips_one(x, layers, kv_host, slots, loading, storing):
    return SOLUTION.three_lanes(x, layers[:-1] or layers, kv_host, slots, loading, storing)


def rows(target, source):
    for one, other in zip(target.split(1), source.split(1), strict=True):
        one.copy_(other, non_blocking=True)


def lazily(x, layers, kv_host, slots, loading, storing):
    """The load of the next layer is launched when this layer's store has been launched."""
    loaded, updated, stored = ([cuda.Event() for _ in slots] for _ in range(3))
    loading.wait_stream(storing)
    for i, layer in enumerate(layers):
        slot = i % 3
        HERE().synchronize()
        with cuda.stream(loading):
            stored[slot].wait()
            slots[slot].copy_(kv_host[i], non_blocking=True)
            loaded[slot].record()
        loaded[slot].wait()
        x = layer(x, slots[slot])
        updated[slot].record()
        with cuda.stream(storing):
            updated[slot].wait()
            kv_host[i].copy_(slots[slot], non_blocking=True)
            stored[slot].record()
    return x


WRONG = [
    (of_the_layer, "A slot is free when its KV is stored, not when its layer is done."),
    (lanes(stored=lambda i: None), "A slot is free when its KV is stored"),
    (lanes(stored=lambda i: i - 4), "A slot is free when its KV is stored"),
    (lanes(loaded=lambda i: None), "is the load of layer 0"),
    (lanes(loaded=lambda i: i - 1 if i else 0), "is the load of layer 1"),
    (lanes(updated=lambda i: None), "is the store of layer 0"),
    (lanes(updated=lambda i: i - 1 if i else 0), "is the store of layer 1"),
    (lanes(early=True), "is the store of layer 0"),
    (lanes(too_late=True), "is the store of layer 0"),
    (lanes(begin=lambda *_: None), "A call begins while the call before is still storing"),
    (lanes(slot=lambda i: i % 2), "WA"),
    (lanes(slot=lambda i: i % 2, stored=lambda i: i - 2), "The load of layer 2 starts only after the store of layer 0"),
    (two_of_three, "2 of the 3 slots are used, so that no layer can be loaded"),
    (lanes(stored=lambda i: i - 2), "It needs the load of layer 1, no more. Whose event does it wait for?"),
    (lanes(shared=("stored",), stored=lambda i: i - 1), "The load of layer 1 starts only after the store of layer 0"),
    (serial, "The load of layer 1 starts only after the store of layer 0"),
    (waits_in_the_loop, "The load of layer 1 starts only after the store of layer 0"),
    (all_here, "Every load belongs on loading. 0 of 5 were made there."),
    (lanes(streams=lambda loading, storing: (loading, loading)), "The caller waits for the current stream and for st"),
    (lanes(streams=lambda loading, storing: (storing, loading)), "The caller waits for the current stream and for st"),
    (joined(lanes(streams=lambda loading, storing: (loading, loading))), "Every store belongs on storing. 0 of 5"),
    (joined(lanes(streams=lambda loading, storing: (storing, loading))), "Every load belongs on loading. 0 of 5"),
    (another_slot, "beside the three slots there was device memory for"),
    (resident, "beside the three slots there was device memory for"),
    (lazily, "the host stands still until the GPU is done"),
    (lanes(after=lambda: cuda.synchronize()), "the host stands still until the GPU is done"),
    (joined_at_the_end, "the host stands still until the GPU is done"),
    (lanes(load=lambda slot, host: slot.copy_(host)), "A copy without non_blocking=True"),
    (lanes(load=lambda slot, host: slot.copy_(host.clone(), non_blocking=True)), "RAW: host clone"),
    (lanes(store=lambda host, slot: host.copy_(slot.cpu())), "is never asynchronous"),
    (lanes(store=no_store), "kv_host[0] is as it was before the call"),
    (lanes(store_from=lambda i: (i + 1) % 3), "the store of layer"),
    (lanes(compute=changes_x), "The caller's own x changed"),
    (lanes(compute=twice), "beside the three slots there was device memory for"),
    (keeps_outputs, "are old outputs kept? Each is read only by the next product. Everything goes through the slots"),
    (lanes(load=lambda slot, host: copied(slot, host.to("cuda", non_blocking=True))),
     "10 pieces of device memory were allocated, one after the other, as large as 10 matrices in all"),
    (lanes(load=load_elsewhere), "where memory for 5 matrices is enough: the loop allocates."),
    (shares_outputs, "3 matrices lay in tensors that were dropped: record_stream keeps their memory"),
    (lanes(slot=lambda i: 0, stored=lambda i: i - 1), "1 of the 3 slots is used"),
    (loads_once, "of 2 loads that are asked for 1 can be seen"),
    (skips_one, "kv_host[4] is as it was before the call"),
    (lanes(load=rows), "Every launch takes host time"),
    (lanes(main=lambda: cuda.default_stream()), "In this run another stream than the default one is current."),
    (lanes(finish=lambda x: None), "the result is a NoneType"),
    (lambda x, layers, kv_host, slots, loading, storing: layers[9](x, slots[0]), "it raised IndexError"),
]


@pytest.mark.parametrize("place", range(len(WRONG)))
def test_wrong_answers_are_refused(place):
    answer, phrase = WRONG[place]
    verdict = judged(answer)
    assert not verdict.passed and not verdict.pending
    assert phrase in said(verdict), str(verdict)


def one_layer_ahead(x, layers, kv_host, slots, loading, storing):
    """Prologue, main loop, epilogue: the next layer is loaded before this one is computed."""
    loaded, stored = [None] * len(layers), {}
    loading.wait_stream(storing)

    def load(i):
        with cuda.stream(loading):
            if i >= 3:
                stored[i - 3].wait()
            slots[i % 3].copy_(kv_host[i], non_blocking=True)
            loaded[i] = loading.record_event()
    load(0)
    for i, layer in enumerate(layers):
        if i + 1 < len(layers):
            load(i + 1)
        loaded[i].wait()
        x = layer(x, slots[i % 3])
        storing.wait_stream(HERE())
        with cuda.stream(storing):
            kv_host[i].copy_(slots[i % 3], non_blocking=True)
            stored[i] = storing.record_event()
    return x


STATE = {}


def per_layer(x, layers, kv_host, slots, loading, storing):
    """A load waits for the last store of its KV and for that of its slot, in whatever call they were."""
    if STATE.get("device") is not simgpu.active():   # another run
        STATE.clear()
        STATE.update(device=simgpu.active(), count=0)
    for i, layer in enumerate(layers):
        slot = STATE["count"] % 3
        STATE["count"] += 1
        with cuda.stream(loading):
            for what in (("kv", i), ("slot", slot)):
                if what in STATE:
                    loading.wait_event(STATE[what])
            slots[slot].copy_(kv_host[i], non_blocking=True)
            loaded = loading.record_event()
        HERE().wait_event(loaded)
        x = layer(x, slots[slot])
        storing.wait_stream(HERE())
        with cuda.stream(storing):
            kv_host[i].copy_(slots[slot], non_blocking=True)
            STATE["kv", i] = STATE["slot", slot] = storing.record_event()
    return x


def three_ahead(x, layers, kv_host, slots, loading, storing):
    """Three loads in front, and then one behind each store."""
    stored, loaded = [], []
    loading.wait_stream(storing)

    def load(i):
        with cuda.stream(loading):
            if i >= 3:
                stored[i - 3].wait()
            slots[i % 3].copy_(kv_host[i], non_blocking=True)
            loaded.append(loading.record_event())
    for i in range(min(3, len(layers))):
        load(i)
    for i, layer in enumerate(layers):
        loaded[i].wait()
        x = layer(x, slots[i % 3])
        storing.wait_stream(HERE())
        with cuda.stream(storing):
            kv_host[i].copy_(slots[i % 3], non_blocking=True)
            stored.append(storing.record_event())
        if i + 3 < len(layers):
            load(i + 3)
    return x


def halves(target, source):
    for one, other in zip(target.chunk(2), source.chunk(2), strict=True):
        one.copy_(other, non_blocking=True)


def on_another_compute_stream(x, layers, kv_host, slots, loading, storing):
    here, own = HERE(), cuda.Stream()
    own.wait_stream(here)
    with cuda.stream(own):
        x = SOLUTION.three_lanes(x, layers, kv_host, slots, loading, storing)
    here.wait_stream(own)
    x.record_stream(here)
    return x


RIGHT = [lanes(), lanes(finish=lambda x: x.clone()), one_layer_ahead, per_layer, three_ahead,
         lanes(load=halves, store=halves), on_another_compute_stream,
         lanes(slot=lambda i: 2 - i % 3),
         lanes(begin=lambda loading, storing: (loading.wait_stream(storing), storing.wait_stream(loading)))]


@pytest.mark.parametrize("place", range(len(RIGHT)))
def test_right_answers_of_other_shapes_pass(place):
    verdict = judged(RIGHT[place])
    assert verdict.passed, str(verdict)


def test_three_lanes_are_busy_at_once():
    trace = three.ThreeLanes().goal(three.Case(8), 1.0).trace
    assert trace.overlap_us("h2d", "d2h") > 0.6 * trace.busy_us("h2d")
    assert trace.overlap_us("d2h", "kernel") > 0.6 * trace.busy_us("kernel")


def test_one_copy_engine_takes_as_long_as_both_directions_together():
    run = three.ThreeLanes().goal(three.Case(7, engines=1), 2.0)
    assert run.done_us > 14 * 2 * 1260
