"""Lab 05, puzzles 4 and 5: wrong answers are refused in words, and right ones pass, however written."""

import math

import numpy as np
import pytest
import torch
from answers import judge_as

from utils.labs.lab05 import check, place, reload, steps
from utils.lessons import import_lesson

SOLUTION = import_lesson("solutions/05_offload_and_swap")
PUZZLES = ("place_layers", "reload_up_to")


def judged(answer, puzzle="place_layers"):
    return judge_as(check, puzzle, answer)


def said(verdict):
    return " ".join(str(verdict).split())


@pytest.mark.parametrize("puzzle", PUZZLES)
def test_stub_is_not_done_yet(puzzle):
    def stub(*_):
        raise NotImplementedError()
    assert judged(stub, puzzle).pending


@pytest.mark.parametrize("puzzle", PUZZLES)
def test_solution_passes(puzzle):
    verdict = check.judge(getattr(SOLUTION, puzzle))
    assert verdict.passed and not verdict.advice and verdict.tried, str(verdict)


# --- 4: which layers stay ------------------------------------------------------------------------------------------

def even(job, count):
    streamed = {i * job.layers // count for i in range(count)}
    return [i for i in range(job.layers) if i not in streamed]


def copies(job, count):
    return sorted([count * job.kv_bytes / job.h2d_bytes_per_s * 1e6, count * job.new_bytes / job.d2h_bytes_per_s * 1e6])


def overlapped(short, long, share):
    return long - short + short / share


def places(which=even, copied=overlapped, slots=2, host=True, budget=True, fewer=0, all_fit=True, step=None,
           value=lambda resident, step_us: (resident, step_us)):
    """The worked answer with something else in one place. ``step(job, compute, copies)``: the predicted time."""
    def answer(job):
        room = job.gpu_bytes // job.kv_bytes
        resident = job.layers if room >= job.layers and all_fit else min(max(room - slots - fewer, 0), job.layers)
        count = job.layers - resident
        no_slots, no_host = room - slots < 0 and room < job.layers, count * job.kv_bytes > job.host_bytes
        if (budget and no_slots) or (host and no_host):
            raise ValueError("no room")
        copied_us, compute_us = copied(*copies(job, count), job.duplex_share), job.layers * job.layer_us
        step_us = step(job, compute_us, copied_us) if step else max(compute_us, copied_us)
        return value(which(job, count), step_us)
    return answer


def raises_always(job):
    raise ValueError("no room")


def divides(job):
    return job.gpu_bytes / 0


def needs_three(job):
    if job.gpu_bytes // job.kv_bytes <= 2:
        raise ValueError("no room")
    return places()(job)


def asserts_room(job):
    try:
        return places()(job)
    except ValueError as error:
        raise AssertionError("no room") from error


def without(job, streamed, count):
    streamed = set(list(streamed)[:count])
    return [i for i in range(job.layers) if i not in streamed]


def every_other(job, count, first):
    return without(job, [*range(first, job.layers, 2), *range(1 - first, job.layers, 2)], count)


def loads_longer(job):
    room = job.gpu_bytes // job.kv_bytes
    count = 0 if room >= job.layers else job.layers - room + 2
    load_s, store_s = count * job.kv_bytes / job.h2d_bytes_per_s, count * job.new_bytes / job.d2h_bytes_per_s
    return (load_s - store_s + store_s / job.duplex_share) * 1e6


PLACE = [
    (places(which=lambda job, count: list(range(job.layers - count))), "with two slots, loads are at most two"),
    (places(which=lambda job, count: list(range(count, job.layers))), "with two slots, loads are at most two"),
    (places(which=lambda job, count: [*range((job.layers - count) // 2),
                                      *range((job.layers - count) // 2 + count, job.layers)]), "and the link is idle"),
    (places(which=lambda job, count: every_other(job, count, 0)), "The streamed layers are 0, 2, 4, 6"),
    (places(which=lambda job, count: every_other(job, count, 1)), "The streamed layers are 1, 3, 5, 7"),
    (places(which=lambda job, count: without(job, range(0, job.layers, job.layers // count if count else 1), count)),
     "are 0, 2, 4, 6, 8, 10, 12, 14, 16, 18: with two slots"),
    (places(host=False), "no ValueError where there is no room"),
    (places(budget=False), "Two slots take 192 MiB, and the GPU has 144: nothing can be streamed."),
    (places(slots=0), "Are the two slots counted?"),
    (places(slots=1), "Are the two slots counted?"),
    (places(slots=3), "every one of them saves copies."),
    (places(fewer=1), "every one of them saves copies."),
    (places(which=lambda job, count: []), "every one of them saves copies."),
    (places(which=lambda job, count: list(range(job.layers))), "8 resident layers take 1024 MiB, and the GPU has 768."),
    (places(all_fit=False), "all layers fit on the GPU, and then no slots are needed"),
    (places(copied=lambda short, long, share: long), "if both directions could run at their full rates at once"),
    (places(copied=lambda short, long, share: short + long), "That lets loads and stores take turns."),
    (places(copied=lambda short, long, share: long / share), "That has the copies slowed all the time."),
    (places(copied=lambda short, long, share: (short + long) / share), "That adds the directions and slows both."),
    (places(copied=lambda short, long, share: short), "That is the time of the layers alone."),
    (places(copied=lambda short, long, share: long * share), "A share below 1 makes copies longer, not shorter."),
    (places(step=lambda job, compute, copied: compute + copied), "That adds copies and layers."),
    (places(step=lambda job, compute, copied: copied), "That is the time of the copies alone."),
    (places(step=lambda job, compute, copied: compute), "That is the time of the layers alone."),
    (places(step=lambda job, compute, copied: max(compute, overlapped(*copies(job, job.layers), job.duplex_share))),
     "That has every layer streamed."),
    (places(step=lambda job, compute, copied: max(compute, copied) / 1e3), "That is in ms: give µs."),
    (places(step=lambda job, compute, copied: max(compute, copied) / job.layers), "That is the time of one layer"),
    (places(step=lambda job, compute, copied: max(compute, copied) * 1.07), "A step takes as long as its slowest part"),
    (places(step=lambda job, compute, copied: max(compute, loads_longer(job))),
     "That takes the loads for the longer direction."),
    (places(value=lambda resident, step_us: resident), "Return a pair"),
    (places(value=lambda resident, step_us: (step_us, resident)), "Return a pair"),
    (places(value=lambda resident, step_us: (resident, None)), "Return a pair"),
    (places(value=lambda resident, step_us: ([*resident, 99], step_us)), "The layers are 0 to 7, each at most once."),
    (places(value=lambda resident, step_us: (resident * 2, step_us)), "The layers are 0 to 7, each at most once."),
    (places(value=lambda resident, step_us: ([i + 0.5 for i in resident], step_us)), "The layers are 0 to 7"),
    (raises_always, "There is room: 2 slots and 4 layers fit on the GPU"),
    (needs_three, "There is room: 2 slots and 0 layers fit on the GPU"),
    (asserts_room, "The other 7 need 672 MiB of host memory, and there are 576. Raise ValueError, and nothing else."),
    (places(which=lambda job, count: [] if count > 3 else even(job, count), slots=2), "With no layer resident a step"),
    (divides, "it raised ZeroDivisionError"),
    (lambda job: None, "returned None"),
]


@pytest.mark.parametrize("at", range(len(PLACE)))
def test_wrong_placements_are_refused(at):
    answer, phrase = PLACE[at]
    verdict = judged(answer)
    assert not verdict.passed and not verdict.pending
    assert phrase in said(verdict), str(verdict)


def rotated(job, count):
    """The streamed layers evenly apart, but from layer 1 on."""
    streamed = {(i * job.layers // count + 1) % job.layers for i in range(count)}
    return [i for i in range(job.layers) if i not in streamed]


def by_counting(job, count):
    """A layer is streamed whenever the running share of streamed layers falls behind."""
    streamed = []
    for i in range(job.layers):
        if (i + 1) * count // job.layers > len(streamed):
            streamed.append(i)
    return [i for i in range(job.layers) if i not in streamed]


PLACE_RIGHT = [places(), places(which=rotated), places(which=by_counting),
               places(value=lambda resident, step_us: (np.array(resident, dtype=int), np.float64(step_us))),
               places(value=lambda resident, step_us: [set(resident), round(step_us)]),
               places(value=lambda resident, step_us: (torch.tensor(resident), torch.tensor(step_us))),
               places(value=lambda resident, step_us: (resident[::-1], step_us * 1.01))]


@pytest.mark.parametrize("at", range(len(PLACE_RIGHT)))
def test_right_placements_of_other_shapes_pass(at):
    verdict = judged(PLACE_RIGHT[at])
    assert verdict.passed, str(verdict)


@pytest.mark.parametrize("at", range(len(place.JOBS)))
def test_the_bound_is_reached_and_what_is_simulated(at):
    job = place.JOBS[at]
    count = job.layers - job.most_resident
    best = steps.steady(job, tuple(even(job, count)) if count else tuple(range(job.layers)))
    assert job.possible and best.step_us == pytest.approx(job.bound_us(count), rel=0.003)


def test_neighbours_cost_time_where_copies_could_be_hidden():
    costs = [steps.steady(job, tuple(range(job.most_resident))).step_us / job.bound_us(job.layers - job.most_resident)
             for job in place.JOBS[:4]]
    assert min(costs) > 1.05


def test_jobs_without_room():
    assert not any(job.possible for job in place.TOO_SMALL)


# --- 5: reload or recompute ----------------------------------------------------------------------------------------

def reloads(kv=lambda p: 2 * p.layers * p.kv_heads * p.head_dim * p.value_bytes, bits=8, flops=2,
            hidden=lambda p: (p.layers - 1) / p.layers, limit=True, result=lambda p, load_s, compute_s, tokens: tokens):
    """The worked answer with something else in one place."""
    def answer(prompt):
        load_s = bits * kv(prompt) / prompt.link_bits_per_s
        compute_s = flops * prompt.parameters / prompt.flops_per_s
        if load_s <= compute_s and limit:
            return math.inf
        tokens = hidden(prompt) * prompt.new_tokens * compute_s / (load_s - compute_s)
        return result(prompt, load_s, compute_s, tokens)
    return answer


RELOAD = [
    (reloads(hidden=lambda p: 0), "That leaves out the overlap"),
    (reloads(hidden=lambda p: 1), "the load of the first layer has nothing to hide behind"),
    (reloads(result=lambda p, load, compute, tokens: p.new_tokens * compute / load), "Up to there each load is hidden"),
    (reloads(kv=lambda p: p.layers * p.kv_heads * p.head_dim * p.value_bytes), "Half of the KV is missing"),
    (reloads(bits=1), "Is the link's rate in bits"),
    (reloads(bits=1, limit=False), "That leaves out the overlap"),
    (reloads(bits=64), "8 bits are a byte"),
    (reloads(flops=1), "2 FLOP"),
    (reloads(kv=lambda p: 2 * p.layers * p.kv_heads * p.head_dim), "each number of them takes value_bytes"),
    (reloads(kv=lambda p: 2 * p.kv_heads * p.head_dim * p.value_bytes), "There is a limit here."),
    (reloads(limit=False), "The formula's denominator is below zero here."),
    (reloads(result=lambda p, load, compute, tokens: tokens + p.new_tokens), "The new tokens are computed in both"),
    (reloads(result=lambda p, load, compute, tokens: tokens * 1.05), "Write down both delays."),
    (reloads(result=lambda p, load, compute, tokens: "a thousand"), "Return one number of tokens."),
    (lambda prompt: math.inf, "There is a limit here."),
    (lambda prompt: None, "returned None"),
    (lambda prompt: 1224, "With 1224 tokens, reloading delays by"),
    (lambda prompt: prompt.heads, "it raised AttributeError"),
]


@pytest.mark.parametrize("at", range(len(RELOAD)))
def test_wrong_lengths_are_refused(at):
    answer, phrase = RELOAD[at]
    verdict = judged(answer, "reload_up_to")
    assert not verdict.passed and not verdict.pending
    assert phrase in said(verdict), str(verdict)


def by_trying(prompt):
    """The first length that is recomputed sooner, found by doubling and halving."""
    def wins(tokens):
        load = 16 * prompt.layers * prompt.kv_heads * prompt.head_dim * prompt.value_bytes / prompt.link_bits_per_s
        link, own = tokens * load / prompt.layers, 2 * prompt.parameters / prompt.flops_per_s / prompt.layers
        loaded = done = 0.0
        for _ in range(prompt.layers):
            loaded += link
            done = max(done, loaded) + prompt.new_tokens * own
        return done <= (tokens + prompt.new_tokens) * own * prompt.layers
    low, high = 1, 2
    while wins(high):
        low, high = high, 2 * high
        if high > 1e9:
            return float("inf")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if wins(middle) else (low, middle)
    return low


RELOAD_RIGHT = [reloads(), by_trying, reloads(result=lambda p, load, compute, tokens: math.floor(tokens)),
                reloads(result=lambda p, load, compute, tokens: np.float32(tokens)),
                reloads(result=lambda p, load, compute, tokens: math.ceil(tokens / 16) * 16)]


@pytest.mark.parametrize("at", range(len(RELOAD_RIGHT)))
def test_right_lengths_pass(at):
    verdict = judged(RELOAD_RIGHT[at], "reload_up_to")
    assert verdict.passed, str(verdict)


@pytest.mark.parametrize("at", range(len(reload.PROMPTS) - 1))
def test_both_ways_take_the_same_time_at_the_crossover(at):
    prompt = reload.PROMPTS[at]
    ways = [make(prompt, prompt.crossover).makespan for make in (reload._reloading, reload._recomputing)]
    assert ways[0] == pytest.approx(ways[1], rel=1e-4)
    one, other = prompt.delays_s(prompt.crossover / 2)
    assert one < other, "a shorter prefix is reloaded sooner"
