"""Lab 09, attacked: answers that are nearly right, right ones in odd forms, and what the checks say to both."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest
from answers import trial

from utils.labs.lab09 import check, fitting, gathering
from utils.labs.lab09.link import products
from utils.labs.lab09.ordering import SIZES, TIMES
from utils.labs.lab09.stages import Size
from utils.lessons import import_lesson

SOLUTION, LESSON = import_lesson("solutions/09_hide_the_network"), import_lesson("09_hide_the_network")
judged, refused, passes = trial(check)


# --- 1: a gather ---------------------------------------------------------------------------------------------------

def gathers(unit=1.0, share=lambda n: (n - 1) / n, latency_ms=lambda layer: (layer.gpus - 1) * layer.step_us / 1e3):
    def answer(layer):
        ms = share(layer.gpus) * layer.nbytes / (layer.bytes_per_s * unit) * 1e3 + latency_ms(layer)
        return ms, ms / layer.token_ms
    return answer


GATHERS = {
    "binary prefixes": (gathers(unit=1.024**3), "a GB is 10^9 bytes"),
    "an all-reduce": (gathers(share=lambda n: 2 * (n - 1) / n), "in an all-gather each shard comes once"),
    "a tree's latencies": (gathers(latency_ms=lambda layer: math.log2(layer.gpus) * layer.step_us / 1e3),
                           "counted log2(N) times"),
    "latencies in ms": (gathers(latency_ms=lambda layer: (layer.gpus - 1) * layer.step_us), "step_us is in micro"),
    "latencies in ns": (gathers(latency_ms=lambda layer: (layer.gpus - 1) * layer.step_us / 1e6),
                        "step_us is in micro"),
    "tokens first": (lambda layer: SOLUTION.gather_and_tokens(layer)[::-1], "Milliseconds come first"),
    "no end on one GPU": (lambda layer: (0, math.inf) if layer.gpus == 1 else SOLUTION.gather_and_tokens(layer),
                          "returned (0, inf)"),
    "a division by N - 1": (lambda layer: gathers(share=lambda n: 1 / (n / (n - 1)))(layer), "ZeroDivisionError"),
    "the first result again": (lambda layer: SOLUTION.gather_and_tokens(gathering.LAYERS[0]), "64 GPUs, 400 Gb/s"),
    "its arguments changed": (lambda layer: setattr(layer, "rate", 1), "FrozenInstanceError"),
}


@pytest.mark.parametrize("name", GATHERS)
def test_wrong_gathers_are_refused(name):
    refused(*GATHERS[name], "gather_and_tokens")


def by_the_lesson(layer):
    """The lesson's functions may be used: to find what they are given is the puzzle."""
    gb_per_s = layer.bytes_per_s / 1e9
    return (LESSON.gather_ms(layer.nbytes, layer.gpus, gb_per_s, layer.step_us),
            LESSON.break_even_tokens(layer.gpus, gb_per_s, layer.flops_per_s / 1e12, layer.parameters, layer.step_us,
                                     layer.weight_bytes))


@pytest.mark.parametrize("answer", [
    by_the_lesson, lambda layer: np.float32(SOLUTION.gather_and_tokens(layer)),
    lambda layer: tuple(map(Fraction, SOLUTION.gather_and_tokens(layer)))])
def test_right_gathers_pass(answer):
    passes(answer, "gather_and_tokens")


# --- 2: what fits --------------------------------------------------------------------------------------------------

def fits(least=lambda right, job: right, sizes=lambda job: job.sizes, stage=lambda job: job.stage):
    def answer(job):
        return fitting.stored(job, sizes(job), stage(job), job.gpus), least(SOLUTION.what_fits(job)[1], job)
    return answer


def trained(job, **others):
    return dict(zip(fitting.PARTS, (job.optimizer_bytes, job.gradient_bytes, job.weight_bytes), strict=True)) | others


FITS = {
    "none beyond job.gpus": (fits(lambda right, job: right if right and right <= job.gpus else None),
                             "It may be more than the 4 of job.gpus."),
    "none where the budget is filled": (
        fits(lambda right, job: None if job.budget_bytes <= job.on_each(10**12) else right),
        "It fills the budget, and that is allowed."),
    "two at least where parts are shared": (
        fits(lambda right, job: max(2, right) if right and job.stage > 2 else right), "1 is enough"),
    "a node of eight": (fits(lambda right, job: right and -(-right // 8) * 8), "37 are enough"),
    "a power of two": (fits(lambda right, job: right and 2**math.ceil(math.log2(right))), "37 are enough"),
    "inference with gradients": (fits(sizes=lambda job: job.sizes | {"gradients": job.gradient_bytes}),
                                 "Inference stores no gradients."),
    "inference shares no weights": (fits(stage=lambda job: job.stage if job.training else 0), "That is stage 0."),
    "an optimizer of 12 bytes": (fits(sizes=lambda job: trained(job, optimizer=12) if job.training else job.sizes),
                                 "The optimizer takes 8 bytes for each parameter here, and not 12."),
    "gradients of 2 bytes": (fits(sizes=lambda job: trained(job, gradients=2) if job.training else job.sizes),
                             "A gradient takes 4 bytes here, and not 2."),
    "weights of 2 bytes": (fits(sizes=lambda job: job.sizes | {"weights": 2}),
                           "The weights take 1 byte for each parameter here, and not 2."),
    "16 bytes in all": (lambda job: (16 * job.parameters / job.gpus if job.training and job.stage == 3 else
                                     job.on_each(job.gpus), job.least), "instead of 2.34e+11"),
    "a word for none": (fits(lambda right, job: right or "None"), "Give a whole number, at least 1, or None."),
    "no room for a share": (fits(lambda right, job: right or (10**6 if job.stage == 2 else None)),
                            "which leaves no room for a share of the rest"),
}


@pytest.mark.parametrize("name", FITS)
def test_wrong_fits_are_refused(name):
    refused(*FITS[name], "what_fits")


def test_every_kind_of_answer_is_asked_for():
    least = [(job.least, job) for job in fitting.JOBS]
    assert any(count and count > job.gpus for count, job in least)
    assert any(count == 1 and job.stage == 3 for count, job in least)
    assert any(count == 1 and job.on_each(1) == job.budget_bytes == job.on_each(2) for count, job in least)
    assert any(count is None and job.on_each(10**12) == pytest.approx(job.budget_bytes) for count, job in least)


# --- 3: the queue of the link --------------------------------------------------------------------------------------

def with_waits(form):
    """The worked answer, its waits in another form."""
    return lambda layers: [(what, task, form(after)) for what, task, after in SOLUTION.link_queue(layers)]


@pytest.mark.parametrize("form", [
    lambda after: (one for one in [after] if one), lambda after: map(tuple, [after] if after else []),
    lambda after: [after], lambda after: frozenset([after] if after else []),
    lambda after: dict.fromkeys([after] if after else []).keys(), lambda after: after or (),
    lambda after: [after, after] if after else None, lambda after: after and list(after)])
def test_waits_may_be_given_in_any_form(form):
    passes(with_waits(form), "link_queue")


def from_the_lesson(layers):
    """The lesson's order, with the waits of its task graph."""
    uses = products(layers)
    return [(what, uses[k], uses[k] if what == "scatter" else uses[k - 2] if k > 1 else None)
            for what, k in LESSON.launches(layers) if what != "use"]


def kept_at_the_turn(layers):
    return [item for item in SOLUTION.link_queue(layers) if item[:2] != ("gather", ("B", layers - 2))]


def test_a_layer_that_is_kept_at_the_turn_is_praised_and_one_that_is_not_is_mentioned():
    fewer, usual = (" ".join(str(passes(answer, "link_queue")).split())
                    for answer in (kept_at_the_turn, from_the_lesson))
    assert "6 gathers, 4 layers: layer 2 is still in its slot when B 2 needs it, and you gather it once only" in fewer
    assert "7 gathers, 4 layers (layer 2 is still in its slot when B 2 needs it: one fewer would do)" in usual


QUEUES = {
    "a wait for a collective": (with_waits(lambda after: after and ("gather", after)), "the product to wait for"),
    "only layers 1 to 5": (lambda layers: SOLUTION.link_queue(min(layers, 5)), "no gather for F 5, 24 layers"),
    "one layer gathered twice": (lambda layers: SOLUTION.link_queue(layers) if layers > 1 else [
        ("gather", ("F", 0), None), ("gather", ("B", 0), None), ("scatter", ("B", 0), ("B", 0))],
        "gather B 0 is not needed"),
    "the other gather at the turn": (lambda layers: [
        ("gather", ("B", layers - 1), after) if (what, task) == ("gather", ("B", layers - 2)) else (what, task, after)
        for what, task, after in SOLUTION.link_queue(layers)], "gather B 3 is not needed: its layer is"),
    "a layer more kept": (lambda layers: [item for item in SOLUTION.link_queue(layers) if item[:2] != (
        "gather", ("B", layers - 3))], "There is no gather for B 1"),
}


@pytest.mark.parametrize("name", QUEUES)
def test_wrong_queues_are_refused(name):
    refused(*QUEUES[name], "link_queue")


# --- 4: one forward, one backward ----------------------------------------------------------------------------------

def late_swap(stage, stages, micro_batches):
    """Slower only where a backward takes several times as long as a forward."""
    order = SOLUTION.stage_order(stage, stages, micro_batches)
    other = {1: 2, 2: 1} if (stage, micro_batches) == (0, 5) and stages > 3 else {}
    return [(what, other.get(n, n) if what == "B" else n) for what, n in order]


def from_call_to_call():
    tasks = []

    def answer(stage, stages, micro_batches):
        tasks.extend(SOLUTION.stage_order(stage, stages, micro_batches))
        return tasks
    return answer


def counted_backwards(stage, stages, micro_batches):
    return SOLUTION.stage_order(stages - 1 - stage, stages, micro_batches)


def one_more_on_the_last(stage, stages, micro_batches):
    return SOLUTION.stage_order(stage - (0 < stage == stages - 1), stages, micro_batches)


def test_wrong_orders_are_refused():
    refused(counted_backwards, "Stage 1 begins with 2 forwards, and stage 0 sends 1", "stage_order")
    refused(one_more_on_the_last, "1 is enough to be busy until then", "stage_order")
    refused(lambda stage, stages, m: SOLUTION.stage_order(stage, 4, 8), "There is micro-batch 0 only", "stage_order")
    refused(late_swap, "With forward 1 and backward 50", "stage_order")
    refused(from_call_to_call(), "Does every call begin with a new list?", "stage_order")
    refused(lambda stage, stages, m: LESSON.one_f_one_b(stages, m)[stage], "('F', 0, 0) is no task", "stage_order")


def test_the_times_tried_prove_the_bubbles_for_all_times():
    """A way through the graph with a forwards and b backwards is too long for some f and b if a or b is over m + p - 1;
    then it is at f : b = K : 1 or 1 : K, if K is over m + p - 1."""
    longest = max(size.micro_batches + size.stages - 1 for size in SIZES)
    ratios = [Fraction(forward, backward) for forward, backward in TIMES]
    assert max(ratios) > longest and min(ratios) < Fraction(1, longest)


def shuffled(stage, stages, micro_batches):
    places = random.Random(micro_batches).sample(range(micro_batches), micro_batches)
    return [(what, places[n]) for what, n in SOLUTION.stage_order(stage, stages, micro_batches)]


@pytest.mark.parametrize("answer", [
    shuffled, lambda stage, stages, m: [(what, n) for what, n, _ in LESSON.one_f_one_b(stages, m)[stage]],
    lambda stage, stages, m: dict.fromkeys(SOLUTION.stage_order(stage, stages, m)).keys(),
    lambda stage, stages, m: map(list, SOLUTION.stage_order(stage, stages, m))])
def test_right_orders_pass(answer):
    passes(answer, "stage_order")


# --- 5: as many as needed ------------------------------------------------------------------------------------------

def test_one_transfer_in_a_round_is_too_few():
    def answer(p, s, f, t):
        return SOLUTION.as_many_as_needed(p, s, f, t)[0], p + math.ceil(t / f)
    refused(answer, "There are p of them on the way round.", "as_many_as_needed")


@pytest.mark.parametrize("answer", [
    lambda p, s, f, t: (SOLUTION.as_many_as_needed(p, s, f, t)[0], p + math.ceil(p * t / f)),
    lambda p, s, f, t: (max(1, -int(-(p - 1) * (1 - s) // s)), -int(-p * (f + t) // f)),
    lambda p, s, f, t: (next(m for m in range(1, 999) if LESSON.bubble_formula(p, m) <= s),
                        SOLUTION.as_many_as_needed(p, s, f, t)[1])])
def test_right_counts_pass(answer):
    passes(answer, "as_many_as_needed")


def test_sizes_are_said_in_the_singular():
    assert str(Size(1, 1)) == "1 stage, 1 micro-batch"
    assert "stage 3, 1 GPU, budget" in " ".join(map(str, fitting.JOBS))
