"""Lesson 09: shards and their gathering, the ring that hides it, what ZeRO stores, and a training step's queue."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from hypothesis import example, given, settings
from hypothesis import strategies as st

from utils import dag, simgpu
from utils.lessons import import_lesson

lesson, onload = import_lesson("09_hide_the_network"), import_lesson("04_double_buffered_onload")
serial = onload.lesson
LAYERS, D = (1, 2, 3, 23, 24), 31
RATES = (900, 450, 50)
NETWORK = {"link": 1, "compute": 1}


# ---- shards

@given(st.lists(st.integers(1, 9), min_size=0, max_size=3), st.integers(1, 12),
       st.sampled_from([torch.bfloat16, torch.float32, torch.int64, torch.uint8]))
def test_what_is_gathered_is_what_was_sharded(shape, gpus, dtype):
    whole = torch.randint(0, 255, shape).to(dtype)
    shards = lesson.shard(whole, gpus)
    assert len(shards) == gpus and len({len(shard) for shard in shards}) == 1
    assert 0 <= gpus * len(shards[0]) - whole.numel() < gpus
    again = lesson.gather(shards, whole.shape)
    assert again.dtype == dtype and again.shape == whole.shape and torch.equal(again, whole)
    assert not torch.cat(shards)[whole.numel():].any()


def test_a_transposed_layer_is_sharded_by_its_numbers_not_by_its_memory():
    whole = torch.arange(12).view(3, 4).t()
    assert torch.equal(lesson.gather(lesson.shard(whole, 5), (4, 3)), whole)


def test_the_order_of_ranks_matters():
    whole = torch.arange(10.0)
    assert not torch.equal(lesson.gather(lesson.shard(whole, 3)[::-1], (10,)), whole)


def test_a_gather_takes_what_the_formula_says():
    assert lesson.gather_ms(8e9, 8, 100) == pytest.approx(70)
    assert lesson.gather_ms(8e9, 1, 100, step_us=5) == 0
    assert lesson.gather_ms(0, 8, 100, step_us=2) == pytest.approx(0.014)


@pytest.mark.parametrize("call, says", [
    (lambda: lesson.shard(torch.ones(3), 0), "0 GPUs"), (lambda: lesson.shard(torch.ones(3), -1), "-1 GPUs"),
    (lambda: lesson.gather_ms(1, 0, 1), "0 GPUs"), (lambda: lesson.gather_ms(1, 2, 0), "0 GB/s"),
    (lambda: lesson.gather_ms(-1, 2, 1), "-1 bytes"), (lambda: lesson.gather_ms(1, 2, 1, -5), "-5 µs"),
    (lambda: lesson.break_even_tokens(8, 450, 682, step_us=2), "give its parameters"),
    (lambda: lesson.break_even_tokens(8, 450, 0), "0 TFLOP/s"), (lambda: lesson.break_even_tokens(0, 450, 1), "0 GPUs"),
    (lambda: lesson.break_even_tokens(8, 450, 682, -5), "bytes"),
    (lambda: lesson.zero_bytes(1, 1, 4), "stage 4"), (lambda: lesson.zero_bytes(1, 0, 3), "0 GPUs"),
    (lambda: lesson.with_link(450, 1), "1 GPUs"), (lambda: lesson.with_link(450, 0), "two GPUs at least"),
    (lambda: lesson.with_link(0, 4), "0 GB/s"), (lambda: lesson.with_link(450, 4, -2), "-2 µs"),
    (lambda: lesson.training_step(0), "0 layers"), (lambda: lesson.launches(0), "0 layers"),
    (lambda: lesson.training_step(2, prefetch="early"), "'early'"), (lambda: lesson.launches(2, "early"), "'early'"),
    (lambda: lesson.training_step(2, ahead=0), "0 ahead"), (lambda: lesson.launches(2, ahead=-1), "-1 ahead")])
def test_what_makes_no_sense_is_refused(call, says):
    with pytest.raises(ValueError, match=says):
        call()


@pytest.mark.parametrize("layers", [[], [torch.ones(4, 4), torch.ones(5, 5)], [torch.ones(2, 8), torch.ones(4, 4)],
                                    [torch.ones(4, 4), torch.ones(4, 4).half()]])
def test_layers_that_are_not_alike_are_refused(layers):
    with pytest.raises(ValueError, match=f"{len(layers)} layers of {len(layers)} shapes and types"):
        lesson.SimulatedRanks(layers, 8)
    with pytest.raises(ValueError, match="it takes one layer at least"):
        lesson.Group(layers, device="cpu")


def test_a_layer_without_numbers_has_empty_shards():
    shards = lesson.shard(torch.empty(0, 3), 4)
    assert [shard.numel() for shard in shards] == [0] * 4 and lesson.gather(shards, (0, 3)).shape == (0, 3)


def test_times_below_zero_are_refused_when_a_step_is_planned():
    with pytest.raises(dag.GraphError, match="cannot take less than no time"):
        dag.schedule(lesson.training_step(2, forward=-1), NETWORK, fifo=True)


@given(st.integers(2, 64), st.integers(10, 900), st.integers(50, 2000), st.integers(0, 20),
       st.integers(10**5, 10**9))
def test_break_even_is_the_first_number_of_tokens_that_hides_a_gather(gpus, rate, tflops, step_us, parameters):
    tokens = lesson.break_even_tokens(gpus, rate, tflops, parameters, step_us)
    gather = lesson.gather_ms(2 * parameters, gpus, rate, step_us)
    product = [2 * parameters * n / tflops / 1e9 for n in (tokens - 1, tokens)]
    assert product[0] < gather * (1 + 1e-6) and gather <= product[1] * (1 + 1e-6)


def test_one_gpu_has_nothing_to_gather():
    assert lesson.break_even_tokens(1, 450, 682) == 0


# ---- the ring

def weights(layers, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(layers)
    return [(torch.randn(D, D, generator=generator) / math.sqrt(D)).to(dtype) for _ in range(layers)]


def device(rate=450, gpus=4, **more):
    return replace(lesson.with_link(rate, gpus).scaled(D / 8192), **more)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(LAYERS), st.integers(2, 7), st.sampled_from(RATES), st.integers(1, 4), st.booleans(),
       st.sampled_from(["exact", "adversarial"]))
@example(24, 4, 450, 2, True, "adversarial")
@example(23, 4, 50, 2, True, "exact")
def test_the_gathered_model_is_the_resident_one(layers, gpus, rate, slots, prefetch, numerics):
    with simgpu.session(device(rate, gpus), numerics=numerics) as gpu:
        resident = serial.ResidentMLP(weights(layers))
        model = lesson.GatheredMLP(lesson.SimulatedRanks(weights(layers), gpus), slots, prefetch)
        xs = [torch.randn(D, D, dtype=torch.bfloat16, device="cuda") for _ in range(3)]
        wanted = [resident(x).cpu() for x in xs]
        torch.cuda.synchronize()
        outputs = [model(x) for x in xs]
        torch.cuda.synchronize()
        assert all(torch.equal(y.cpu(), right) for y, right in zip(outputs, wanted, strict=True))
        assert not gpu.hazards, gpu.hazards[0]


def runs_ns(gpu):
    """Starts and ends of gathers, and of products."""
    spans = gpu.trace().columns
    starts, lengths = ([round(us * 1000) for us in spans[key]] for key in ("start_us", "duration_us"))
    rows = list(zip(spans["kind"], starts, lengths, strict=True))
    return [[(start, start + length) for kind, start, length in rows if kind == wanted] for wanted in ("h2d", "kernel")]


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(LAYERS), st.integers(2, 8), st.sampled_from(RATES), st.integers(1, 4), st.integers(1, 3))
@example(24, 8, 450, 2, 3)
@example(23, 8, 50, 2, 3)
def test_time_is_that_of_the_task_graph(layers, gpus, rate, slots, calls):
    free = device(rate, gpus, launch_ns=0, event_ns=0, sync_ns=0)
    with simgpu.session(free, numerics="shapes") as gpu:
        model = lesson.GatheredMLP(lesson.SimulatedRanks(weights(layers), gpus), slots, prefetch=False)
        x = torch.empty(D, D, dtype=torch.bfloat16, device="cuda")
        for _ in range(calls):
            model(x)
        gathers, products = runs_ns(gpu)
    c, k = (spans[0][1] - spans[0][0] for spans in (gathers, products))
    count, begin = layers * calls, gathers[0][0]
    graph = onload.ring_graph([c] * count, [k] * count, slots)
    planned = dag.schedule(graph, onload.engines, fifo=True).runs
    for what, spans in (("copy", gathers), ("product", products)):
        assert [(start - begin, end - begin) for start, end in spans] == [
            (planned[f"{what} {n}"].start, planned[f"{what} {n}"].end) for n in range(count)]


@pytest.mark.parametrize("gpus, rate, step_us", [(2, 450, 0), (8, 450, 2), (8, 50, 5), (3, 55, 0)])
def test_the_simulated_link_takes_what_the_formula_says(gpus, rate, step_us):
    with simgpu.session(lesson.with_link(rate, gpus, step_us), numerics="shapes") as gpu:
        ranks = lesson.SimulatedRanks([torch.empty(960, 960, dtype=torch.bfloat16, pin_memory=True)], gpus)
        ranks.gather(0, ranks.buffer())
        (start, end), = runs_ns(gpu)[0]
    assert end - start == pytest.approx(1e6 * lesson.gather_ms(2 * 960 * 960, gpus, rate, step_us), abs=2)


# ---- wrong variants are seen

class IntoTheLiveBuffer(onload.Ring):
    """A gather waits for nobody who still reads its buffer."""

    def load_ahead(self):
        self.read = [torch.cuda.Event() for _ in self.buffers]
        super().load_ahead()


class ProductDoesNotWait(onload.Ring):
    """A product waits for no gather."""

    def load_ahead(self):
        super().load_ahead()
        self.loaded = [torch.cuda.Event() for _ in self.buffers]


@pytest.mark.parametrize("ring, kind", [(IntoTheLiveBuffer, "WAR"), (ProductDoesNotWait, "RAW")])
@pytest.mark.parametrize("rate", RATES)
def test_a_missing_wait_is_a_hazard(ring, kind, rate):
    with simgpu.session(device(rate)) as gpu:
        model = lesson.GatheredMLP(lesson.SimulatedRanks(weights(6), 4))
        model.ring = ring(6, model.ring.buffers, model.ring.copy_in)
        x = torch.randn(D, D, dtype=torch.bfloat16, device="cuda")
        for _ in range(2):
            model(x)
        torch.cuda.synchronize()
        assert kind in {hazard.kind for hazard in gpu.hazards}


def test_a_rank_out_of_step_gives_wrong_numbers_and_no_hazard():
    """The other rank is a layer ahead, and nobody notices but the result."""
    with simgpu.session(device(gpus=2)) as gpu:
        layers = weights(4)
        mixed = [lesson.gather([lesson.shard(one, 2)[0], lesson.shard(other, 2)[1]], (D, D))
                 for one, other in zip(layers, layers[1:] + layers[:1], strict=True)]
        x = torch.randn(D, D, dtype=torch.bfloat16, device="cuda")
        right = serial.ResidentMLP(layers)(x)
        y = lesson.GatheredMLP(lesson.SimulatedRanks(mixed, 2))(x)
        assert not torch.equal(y, right) and not gpu.hazards


def test_a_process_group_gathers(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        layers = weights(3)
        group = lesson.Group(layers, device="cpu")
        buffer = group.buffer()
        assert len(group) == 3 and buffer.numel() == D * D
        group.gather(1, buffer)
        assert torch.equal(buffer.view(D, D), layers[1])
        assert group.mine[0].data_ptr() != layers[0].data_ptr()          # a shard does not keep the layer in memory
    finally:
        dist.destroy_process_group()


# ---- ZeRO and a training step

def test_zero_is_the_papers_table():
    assert [round(lesson.zero_bytes(7.5e9, 64, stage) / 1e9, 1) for stage in range(4)] == [120, 31.4, 16.6, 1.9]
    assert [lesson.zero_bytes(64, 64, stage, gradients=0, optimizer=0) for stage in range(4)] == [128, 128, 128, 2]


def step(layers, forward, backward, gather, scatter, order, ahead=1):
    graph = lesson.training_step(layers, forward, backward, gather, scatter, order, ahead)
    return dag.schedule(graph, NETWORK, fifo=True)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9),
       st.sampled_from(["pre", "post", None]), st.integers(1, 4))
def test_a_training_step_does_everything_once_and_in_order(layers, forward, backward, gather, scatter, order, ahead):
    plan = step(layers, forward, backward, gather, scatter, order, ahead)
    count = {what: sum(task[0] == what for task in plan.graph) for what in ("gather", "use", "scatter")}
    assert count == {"gather": 2 * layers - 1, "use": 2 * layers, "scatter": layers}
    runs = plan.runs
    for what, k in plan.graph:
        if what == "use":
            assert k == 0 or runs["use", k - 1].end <= runs["use", k].start
            assert k == layers or runs["gather", k].end <= runs["use", k].start
        elif what == "scatter":
            assert runs["use", k].end <= runs["scatter", k].start
    on_the_link = [task for task in plan.graph if task[0] != "use"]
    assert all(runs[one].end <= runs[other].start for one, other in pairwise(on_the_link))
    whole = lesson.held(plan)
    assert whole[0] <= 1 + ahead and whole[1] <= (1 + ahead if order == "pre" else 1) and whole[2] <= layers


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
def test_an_order_that_waits_more_takes_no_less(layers, forward, backward, gather, scatter):
    pre, post, none = (step(layers, forward, backward, gather, scatter, order).makespan
                       for order in ("pre", "post", None))
    assert pre <= post <= none


@given(st.integers(2, 9), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
def test_backward_passes_hide_what_they_can(layers, backward, gather, scatter):
    """From the first backward pass to the last: what is uncovered of gathers and reduce-scatters comes on top."""
    found = {}
    for order in ("pre", "post", None):
        runs = step(layers, 1, backward, gather, scatter, order).runs
        found[order] = runs["use", 2 * layers - 1].end - runs["use", layers].start
    assert found[None] == layers * backward + (layers - 1) * (gather + scatter)
    if scatter <= backward:
        assert found["post"] == layers * backward + (layers - 1) * gather
    if gather + scatter <= backward:
        assert found["pre"] == layers * backward


def test_gathering_further_ahead_takes_memory_and_gains_nothing():
    near, far = (step(24, 2, 4, 1, 1, "pre", ahead) for ahead in (1, 23))
    assert near.makespan == far.makespan and lesson.held(near)[1] == 2 and lesson.held(far)[1] == 24


def test_stage_3_costs_half_as_many_bytes_again():
    """An all-reduce of the gradients is a reduce-scatter and an all-gather: 2; here it is nearly 3."""
    graph = lesson.training_step(24)
    assert Fraction(sum(task[0] != "use" for task in graph), 24) == 3 - Fraction(1, 24)
