"""Lesson 05's streamed cache: its budget, what is refused and changes nothing, deletion while copies are under way."""

from __future__ import annotations

import gc

import pytest
import torch
from small_caches import DIM, ROW_BYTES, Reader, caches, profile, same_rows, tokens

from utils import simgpu
from utils.lessons import import_lesson

lesson = import_lesson("05_offload_and_swap")


# memory

@pytest.mark.parametrize("keep", [1, 5, 32])
@pytest.mark.parametrize("layers", [2, 5])
def test_memory_is_the_budget_and_a_step_adds_its_activations(gpu, layers, keep):
    """Rows of 64 floats, 512 bytes: what the allocator rounds to."""
    shape, before = (32, 2, 1, 64), torch.cuda.memory_allocated()
    budget = 512 * (64 + layers * keep)
    streamed = lesson.StreamedKV(layers, shape, budget, torch.float32)
    assert torch.cuda.memory_allocated() - before == budget and streamed.keep == keep
    resident, peaks = lesson.ResidentKV(layers, shape, torch.float32), []
    for cache in (resident, streamed):
        start = torch.cuda.memory_allocated()
        for _ in range(6):
            with cache.step(1):
                for i in range(layers):
                    with cache.layer(i) as kv:
                        torch.cuda.reset_peak_memory_stats()
                        kv[cache.at] = 1.0
                        y = kv[:cache.stop].sum((0, 1, 2))
                        del y
                    peaks.append(torch.cuda.max_memory_allocated() - start)
            assert torch.cuda.memory_allocated() == start
    assert len(set(peaks)) == 1 and gpu.hazards == []


@pytest.mark.parametrize("short", [1, ROW_BYTES * 30])
def test_a_budget_that_is_too_small_is_refused_before_anything_is_made(gpu, short):
    least, before = ROW_BYTES * (2 * 12 + 3), torch.cuda.memory_allocated()
    with pytest.raises(ValueError, match=r"two slots of 12 rows, and one row more for each of 3 layers"):
        lesson.StreamedKV(3, (12, 2, 1, DIM), least - short, torch.float32)
    assert torch.cuda.memory_allocated() == before
    assert lesson.StreamedKV(3, (12, 2, 1, DIM), least, torch.float32).keep == 1


def test_one_layer_is_refused_before_anything_is_made(gpu):
    """The next step's rows would be loaded before this step has them."""
    with pytest.raises(ValueError, match="one layer cannot be loaded while another is computed"):
        lesson.StreamedKV(1, (12, 2, 1, DIM), 10**6)
    assert torch.cuda.memory_allocated() == 0


def test_more_budget_than_rows_keeps_them_all(gpu):
    assert lesson.StreamedKV(3, (12, 2, 1, DIM), 10**6, torch.float32).keep == 12


@pytest.mark.parametrize("part", [0.3, 0.6])
def test_a_card_that_is_too_small(part):
    """For the newest rows of both layers, or for the slots behind them."""
    card = profile()
    rows = int(card.memory_bytes / ROW_BYTES * part)
    with simgpu.session(card) as gpu:
        with pytest.raises(torch.OutOfMemoryError):
            lesson.StreamedKV(2, (rows, 2, 1, DIM), 10**12, torch.float32)
        gc.collect()
        assert torch.cuda.memory_allocated() == 0 and gpu.hazards == []


@pytest.mark.parametrize("done", [(), ("side", "copying"), ("side",)])
@pytest.mark.parametrize("slow", [(1, 1), (1, 50), (50, 1)])
def test_given_up_while_stores_and_loads_are_under_way(slow, done):
    """Their memory is used again, where some streams are done already on the same addresses."""
    with simgpu.session(profile(*slow)) as gpu:
        model, side, (resident, streamed) = Reader(3, 16), torch.cuda.Stream(), caches(3, 16, 2)
        streams, xs = {"side": side, "copying": streamed.ring.copying}, [tokens(2, n) for n in range(5)]
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            ys = [model(x, streamed) for x in xs]
        sizes = [rows.shape for rows in (*streamed.newest, *streamed.ring.buffers)]
        hosts = [rows.shape for rows in streamed.host]
        for name in done:
            streams[name].synchronize()
        del streamed
        gc.collect()
        others = [torch.full(size, 7.0, device="cuda") for size in sizes * 9]
        pinned = [torch.full(size, 7.0, pin_memory=True) for size in hosts]
        torch.cuda.synchronize()
        assert gpu.hazards == [] and all(torch.equal(y, model(x, resident)) for x, y in zip(xs, ys, strict=True))
        assert all(bool((other == 7).all()) for other in (*others, *pinned))


def test_a_cache_that_was_made_in_inference_mode_is_of_use_outside(gpu):
    with torch.inference_mode():
        resident, streamed = caches(2, 8, 3)
    model = Reader(2, 8)
    for n in range(3):
        assert torch.equal(model(tokens(2, n), streamed), model(tokens(2, n), resident))
    assert not any(t.is_inference() for t in (*streamed.newest, *streamed.host, *streamed.ring.buffers))


def test_only_rows_that_have_left_come_back_over_the_link(gpu):
    """Also behind a rewind: the rows that were written since are on the device."""
    model, (_, streamed) = Reader(2, 32), caches(2, 32, 4)
    moved = lambda: sum(n for kind, n in zip(*(gpu.trace().columns[key] for key in ("kind", "bytes")), strict=True)  # noqa: E731
                        if kind == "h2d") // ROW_BYTES
    for at, count, old in ((0, 4, 0), (4, 4, 0), (8, 4, 4), (9, 4, 8), (13, 2, 9), (15, 2, 11), (14, 1, 13), (5, 2, 5),
                           (7, 2, 5), (9, 2, 5), (11, 1, 7)):
        streamed.rewind(at)
        streamed.ring.restart()                     # what was loaded ahead is loaded again
        x = tokens(count, 0)
        before = moved()
        model(x, streamed)
        ahead = streamed.old(0, streamed.at)        # layer 0, for the step after this one
        assert moved() - before == 2 * old + ahead


# what is refused changes nothing

@pytest.mark.parametrize(("call", "message"), [
    (lambda cache: cache.step(4).__enter__(), r"4 tokens in one step, but only the newest 3 rows stay"),
    (lambda cache: cache.step(0).__enter__(), r"0 tokens: the cache has 8 rows, and 6 of them are filled"),
    (lambda cache: cache.step(-1).__enter__(), r"-1 tokens"),
    (lambda cache: cache.step(3).__enter__(), r"3 tokens: the cache has 8 rows, and 6 of them are filled"),
    (lambda cache: cache.rewind(7), r"cannot rewind to token 7: the cache holds 6"),
    (lambda cache: cache.rewind(-1), r"cannot rewind to token -1"),
])
def test_what_is_refused_changes_nothing(gpu, call, message):
    model, (resident, streamed) = Reader(2, 8), caches(2, 8, 3)
    for n in range(3):
        model(tokens(2, n), streamed)
        model(tokens(2, n), resident)
    state = lambda: (streamed.at, streamed.stop, [streamed.old(i, streamed.at) for i in range(2)],  # noqa: E731
                     list(streamed.top), streamed.ring.begun, streamed.ring.done, len(gpu.trace().columns["name"]))
    before = state()
    with pytest.raises(ValueError, match=message):
        call(streamed)
    assert state() == before
    assert torch.equal(model(tokens(2, 9), streamed), model(tokens(2, 9), resident))
    assert same_rows(resident, streamed) and gpu.hazards == []
