"""Lesson 05's streamed cache: bit-equal to a resident one and race-free in any order of steps, within its budget."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from interrupts import Broken, Interrupts
from small_caches import Reader, caches, profile, same_rows, tokens

from utils import simgpu
from utils.lessons import import_lesson

lesson = import_lesson("05_offload_and_swap")
SLOW = (0.02, 1, 50)        # a link that is so many times slower
MODES = (nullcontext, torch.no_grad, torch.inference_mode)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Operations this small gain nothing from threads, which a busy machine makes wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# values: any sequence of steps

ACTIONS = st.lists(st.one_of(
    st.tuples(st.just("step"), st.integers(1, 9), st.integers(0, 2),
              st.none() | st.tuples(st.integers(0, 5), st.booleans())),
    st.tuples(st.just("rewind"), st.floats(0, 1)), st.tuples(st.just("sync"))), min_size=3, max_size=12)


def play(actions, layers, rows, keep, mode):
    """Both caches through the same steps: x and two results of each. Only the streamed one is used on other streams."""
    model, (resident, streamed) = Reader(layers, rows), caches(layers, rows, keep)
    streams, found = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()], []
    for n, (kind, *how) in enumerate(actions):
        if kind == "sync":
            torch.cuda.synchronize()
        elif kind == "rewind" or resident.at == rows:
            at = int(resident.at * (how[0] if kind == "rewind" else 0.5))
            resident.rewind(at)
            streamed.rewind(at)
        else:
            count, stream, fails = min(how[0], keep, rows - resident.at), streams[how[1]], how[2]
            x, fails = tokens(count, n), fails and (fails[0] % layers, fails[1])
            stream.wait_stream(torch.cuda.current_stream())             # for x alone
            with mode():
                if fails:
                    with torch.cuda.stream(stream), pytest.raises(Broken):
                        model(x, streamed, fails)
                    found.append((x, x, x))                             # stays until the end, as it is in use
                    if n % 2:
                        continue                                        # half of the time it is tried again at once
                with torch.cuda.stream(stream):
                    y = model(x, streamed)
                found.append((x, y, model(x, resident)))
    torch.cuda.synchronize()
    return resident, streamed, found


@settings(max_examples=100)
@given(st.integers(2, 6), st.integers(1, 20), st.floats(0, 1), ACTIONS, st.sampled_from(SLOW), st.sampled_from(SLOW),
       st.sampled_from((0, 5_000)), st.sampled_from(("exact", "adversarial")), st.sampled_from(MODES))
@example(2, 12, 0.2, [("step", 9, n % 3, (1, True)) for n in range(8)], 50, 50, 0, "adversarial", torch.inference_mode)
@example(3, 16, 0, [("step", 1, 0, None)] * 9 + [("rewind", 0.6)] + [("step", 1, 1, None)] * 3, 1, 50, 0, "exact",
         nullcontext)
@example(5, 20, 1, [("step", 9, 0, None), ("step", 9, 1, (4, False)), ("rewind", 0.3), ("step", 9, 2, (4, True)),
                    ("step", 5, 0, None)], 50, 0.02, 5_000, "adversarial", torch.no_grad)
def test_any_steps_are_bit_equal_to_resident_ones(layers, rows, part, actions, back, out, launch_ns, numerics, mode):
    keep = max(1, round(part * rows))
    with simgpu.session(profile(back, out, launch_ns=launch_ns), numerics=numerics) as gpu:
        resident, streamed, found = play(actions, layers, rows, keep, mode)
        assert gpu.hazards == []
        assert all(torch.equal(y, wanted) for _, y, wanted in found) and same_rows(resident, streamed)


@settings(max_examples=5)
@given(st.integers(2, 4), st.integers(1, 24), st.lists(st.integers(1, 9), min_size=3, max_size=4), st.integers(1, 2),
       st.sampled_from(("exact", "adversarial")))
@example(6, 3, [3, 3, 3, 1, 1], 2, "exact")
def test_the_scores_of_a_decoder(layers, keep, steps, kv_heads, numerics):
    with simgpu.session(profile(back=3), numerics=numerics) as gpu:
        torch.manual_seed(0)
        model = lesson.Decoder(layers, 32, 2, kv_heads, 32, 20, 24).to("cuda", torch.bfloat16)
        shape, ids = (24, 2, kv_heads, 16), torch.randint(20, (24,)).cuda()
        streamed = lesson.StreamedKV(layers, shape, 64 * kv_heads * (48 + layers * keep))
        resident = lesson.ResidentKV(layers, shape)
        for count in steps:
            part = ids[resident.at:min(24, resident.at + min(count, keep))]
            if len(part):
                assert torch.equal(model(part, streamed), model(part, resident))
        assert streamed.keep == keep and streamed.at == resident.at and gpu.hazards == []


def test_two_conversations_in_turn(gpu):
    model, pairs = Reader(3, 12), [caches(3, 12, keep) for keep in (2, 5)]
    for n in range(8):
        resident, streamed = pairs[n % 2]
        assert torch.equal(model(tokens(2, n), streamed), model(tokens(2, n), resident))
    assert gpu.hazards == [] and all(same_rows(*pair) for pair in pairs)


def test_a_model_of_fewer_layers_than_the_cache(gpu):
    model, (resident, streamed) = Reader(3, 12), caches(5, 12, 2)
    for n in range(5):
        assert torch.equal(model(tokens(2, n), streamed), model(tokens(2, n), resident))
    assert gpu.hazards == []


def test_usable_after_an_error_anywhere_in_a_step(gpu):
    """(Where it hits the store, rows may be under way to the host that are written again: a true report, no harm.)"""
    model, good = Reader(2, 16), []
    for n in range(100):
        resident, streamed = caches(2, 16, 5)                           # rows 12 to 16 have places 2, 3, 4 and 0
        for seed in range(3):
            model(tokens(4, seed), streamed)
            model(tokens(4, seed), resident)
        x = tokens(4, 3)
        try:
            with Interrupts(n):
                model(x, streamed)
            break
        except Broken:
            good.append(streamed.at == 12 and torch.equal(model(tokens(4, 4), streamed), model(tokens(4, 4), resident)))
    assert 30 < len(good) < 100 and all(good)


# each wait is needed

def dropped(streamed, wait):
    """The stream and the events of one of the waits."""
    return {"store for its layer": (streamed.storing, streamed.written),
            "load for the store": (streamed.ring.copying, streamed.stored + streamed.written),
            "load for the slot's reader": (streamed.ring.copying, streamed.ring.read),
            "layer for its load": (None, streamed.ring.loaded)}[wait]


@pytest.mark.parametrize("slow", [profile(), profile(50, 1), profile(1, 50), profile(0.02, 0.02, launch_ns=0)],
                         ids=["even", "slow in", "slow out", "fast"])
@pytest.mark.parametrize(("wait", "kind"), [("store for its layer", "RAW"), ("load for the store", "RAW"),
                                            ("load for the slot's reader", "WAR"), ("layer for its load", "RAW")])
def test_a_wait_that_is_left_out_is_a_hazard(monkeypatch, wait, kind, slow):
    with simgpu.session(slow) as gpu:
        model, (_, streamed) = Reader(3, 16), caches(3, 16, 2)
        stream, events = dropped(streamed, wait)
        waits = torch.cuda.Stream.wait_event

        def wait_event(self, event):
            if not (any(event is each for each in events) and stream in (None, self)):
                waits(self, event)

        torch.cuda.synchronize()
        monkeypatch.setattr(torch.cuda.Stream, "wait_event", wait_event)
        for n in range(6):
            model(tokens(2, n), streamed)
        monkeypatch.undo()
        assert kind in {hazard.kind for hazard in gpu.hazards}
