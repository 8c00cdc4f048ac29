"""Lab 09, puzzles 1, 2 and 5: wrong numbers are refused in words, and right ones pass, however computed."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from answers import trial

from utils.labs import timelimit
from utils.labs.lab09 import check, fitting, gathering, needed, target
from utils.lessons import import_lesson

SOLUTION = import_lesson("solutions/09_hide_the_network")
PUZZLES = ("gather_and_tokens", "what_fits", "as_many_as_needed")
judged, refused, passes = trial(check)


@pytest.mark.parametrize("puzzle", PUZZLES)
def test_stub_is_not_done_yet(puzzle):
    def stub(*_):
        raise NotImplementedError()
    assert judged(stub, puzzle).pending


@pytest.mark.parametrize("puzzle", PUZZLES)
def test_solution_passes(puzzle):
    verdict = check.judge(getattr(SOLUTION, puzzle))
    assert verdict.passed and not verdict.advice and verdict.tried, str(verdict)


NO_PAIRS = [None, 5, "ab", [1], (1, 2, 3), {1: 2, 3: 4}, {1, 2}, np.float64(1), torch.tensor(1.0), (None, 1), ("a", 2),
            (math.nan, 1), (math.inf, math.inf), ([1], [2]), (True, False), (10**400, 1), object()]


@pytest.mark.parametrize("puzzle", PUZZLES)
@pytest.mark.parametrize("given", NO_PAIRS, ids=lambda value: type(value).__name__)
def test_what_is_no_answer_is_refused_in_words(puzzle, given):
    verdict = judged(lambda *_: given, puzzle)
    assert not verdict.passed and not verdict.pending
    assert "the check itself" not in str(verdict), str(verdict)


def endless(*_):
    while True:
        yield 1.0


@pytest.mark.parametrize("puzzle", PUZZLES)
def test_answers_that_raise_or_never_end_are_refused(puzzle, monkeypatch):
    def loops(*_):
        while True:
            pass

    def waits(*_):
        loops()
        yield 1
    refused(lambda *_: 1 / 0, "it raised ZeroDivisionError", puzzle)
    refused(lambda: 1, "Keep the parameters of the stub", puzzle)
    refused(endless, "Return a pair", puzzle)
    monkeypatch.setattr(timelimit, "LIMIT_S", 0.3)
    refused(loops, "is there a loop that never ends?", puzzle)
    refused(waits, "is there a loop that never ends?", puzzle)


# --- 1: a gather ---------------------------------------------------------------------------------------------------

def gathers(share=lambda n: (n - 1) / n, bits=True, both=True, steps=lambda n: n - 1, size=True, ms_unit=1.0,
            flops=2, tokens=lambda tokens, layer: tokens, counted=lambda layer: layer.parameters):
    """The worked answer with something else in one place."""
    def answer(layer):
        rate = layer.rate * 1e9 / (8 if bits and layer.unit == "Gb/s" else 1) / (2 if both and layer.both_ways else 1)
        nbytes = layer.parameters * (layer.weight_bytes if size else 1)
        ms = share(layer.gpus) * nbytes / rate * 1e3 + steps(layer.gpus) * layer.step_us / 1e3
        return ms * ms_unit, tokens(ms / (flops * counted(layer) / layer.flops_per_s * 1e3), layer)
    return answer


def bits_always(layer):
    ms, tokens = SOLUTION.gather_and_tokens(layer)
    return (ms, tokens) if layer.unit == "Gb/s" else (ms * 8, tokens * 8)


def halved_always(layer):
    return SOLUTION.gather_and_tokens(layer if layer.both_ways else gathering.Layer(
        layer.parameters, layer.weight_bytes, layer.gpus, layer.rate, layer.unit, True, layer.step_us,
        layer.flops_per_s))


def not_on_one(layer):
    return SOLUTION.gather_and_tokens(layer) if layer.gpus > 1 else (layer.nbytes / layer.bytes_per_s * 1e3, 100.0)


GATHERS = [
    (gathers(share=lambda n: 1.0), "(N - 1)/N of the layer come over its link"),
    (gathers(share=lambda n: 1 / n), "That is the time of one shard"),
    (gathers(share=lambda n: n - 1.0), "a whole layer come in each of N - 1 steps"),
    (gathers(bits=False), "moves bits, and 8 of them are a byte"),
    (bits_always, "one in GB/s moves bytes"),
    (gathers(both=False), "what counts is the rate of one"),
    (halved_always, "what counts is the rate of one"),
    (gathers(steps=lambda n: 1), "The latency is counted once."),
    (gathers(steps=lambda n: n), "The latency is counted N times."),
    (gathers(steps=lambda n: 0), "The latencies are missing"),
    (gathers(size=False), "weight_bytes is missing"),
    (gathers(ms_unit=1e-3), "That is in seconds"),
    (gathers(ms_unit=1e3), "That is in microseconds"),
    (gathers(share=lambda n: 1.0, steps=lambda n: 1), "(N - 1)/N of the layer come over its link"),
    (gathers(share=lambda n: 1.0, both=False), "what counts is the rate of one"),
    (gathers(share=lambda n: 0.33), "How many bytes come over one GPU's link"),
    (gathers(share=lambda n: -1.0), "How many bytes come over one GPU's link"),
    (gathers(flops=1), "2 FLOP, not 1"),
    (gathers(flops=4), "2 FLOP, not 4"),
    (gathers(tokens=lambda tokens, layer: tokens * layer.gpus), "Those are the tokens of all GPUs together"),
    (gathers(tokens=lambda tokens, layer: tokens / layer.gpus), "Each GPU multiplies its own tokens"),
    (gathers(counted=lambda layer: layer.nbytes), "not for bytes"),
    (gathers(tokens=lambda tokens, layer: tokens * layer.gpus / (layer.gpus - 1)), "tokens for the time of the whole"),
    (gathers(tokens=lambda tokens, layer: tokens / 1e3), "Off by 10^-3"),
    (gathers(tokens=lambda tokens, layer: -tokens), "Set equal"),
    (gathers(tokens=lambda tokens, layer: tokens * 1.02), "Set equal"),
    (gathers(tokens=lambda tokens, layer: gathers(steps=lambda n: 0)(layer)[1]), "have to be hidden, too"),
    (not_on_one, "One GPU has the whole layer"),
    (lambda layer: gathers()(layer)[0], "Return a pair"),
    (lambda layer: layer.bytes, "it raised AttributeError"),
]


@pytest.mark.parametrize("at", range(len(GATHERS)))
def test_wrong_gathers_are_refused(at):
    refused(*GATHERS[at], "gather_and_tokens")


def in_a_ring(layer):
    """Step by step, in whole microseconds of a fraction."""
    rate = Fraction(layer.rate) * 10**9 / (8 if layer.unit == "Gb/s" else 1) / (1 + layer.both_ways)
    took = Fraction(0)
    for _ in range(layer.gpus - 1):
        took += Fraction(layer.step_us) / 10**6 + Fraction(layer.parameters * layer.weight_bytes, layer.gpus) / rate
    return took * 1000, math.ceil(took * Fraction(layer.flops_per_s) / (2 * layer.parameters))


def mixed(layer):
    ms, tokens = SOLUTION.gather_and_tokens(layer)
    return [Decimal(ms), np.int64(math.ceil(tokens))]


@pytest.mark.parametrize("answer", [
    in_a_ring, mixed, lambda layer: np.array(SOLUTION.gather_and_tokens(layer)),
    lambda layer: torch.tensor(SOLUTION.gather_and_tokens(layer)),
    lambda layer: (x for x in SOLUTION.gather_and_tokens(layer)),
    lambda layer: (SOLUTION.gather_and_tokens(layer)[0] * 1.009, int(SOLUTION.gather_and_tokens(layer)[1]))])
def test_right_gathers_pass(answer):
    passes(answer, "gather_and_tokens")


def test_a_gather_is_drawn_beside_the_product_of_the_given_tokens():
    picture = judged(gathers(flops=1), "gather_and_tokens").picture
    assert "a product with 1137 tokens" in picture.text and "shard 2" in picture.text


# --- 2: what fits --------------------------------------------------------------------------------------------------

def sizes_of(job, gradients=None, optimizer=True, trained=False):
    training = job.training or trained
    return [job.optimizer_bytes if training and optimizer else 0, (gradients or job.gradient_bytes) if training else 0,
            job.weight_bytes]


def fits(sizes=sizes_of, stage=lambda job: job.stage, ceil=math.ceil, gpus=lambda gpus, job: gpus,
         nbytes=lambda nbytes, job: nbytes, nothing=None):
    """The worked answer with something else in one place."""
    def answer(job):
        parts = sizes(job)
        shared, fixed = (job.parameters * sum(part) for part in (parts[:stage(job)], parts[stage(job):]))
        room = job.budget_bytes - fixed
        least = nothing if room < 0 or (room == 0 and shared) else max(1, ceil(shared / room)) if shared else 1
        return nbytes(fixed + shared / job.gpus, job), gpus(least, job)
    return answer


def weights_first(job):
    parts = sizes_of(job)[::-1]
    return job.parameters * (sum(parts[:job.stage]) / job.gpus + sum(parts[job.stage:])), job.least


def all_shared(gpus, job):
    return math.ceil(job.parameters * sum(sizes_of(job)) / job.budget_bytes)


FITS = [
    (fits(sizes=lambda job: sizes_of(job, optimizer=False)), "The optimizer's part is missing"),
    (fits(sizes=lambda job: sizes_of(job, gradients=4)), "A gradient takes 2 bytes here, and not 4."),
    (fits(sizes=lambda job: sizes_of(job, gradients=2)), "A gradient takes 4 bytes here, and not 2."),
    (fits(stage=lambda job: max(0, job.stage - 1)), "That is stage 0."),
    (fits(stage=lambda job: min(3, job.stage + 1)), "That is stage 2."),
    (fits(stage=lambda job: 3), "That is stage 3."),
    (fits(stage=lambda job: 0), "That is stage 0."),
    (fits(sizes=lambda job: sizes_of(job, trained=True)), "Inference stores weights only"),
    (weights_first, "That shares the weights first."),
    (fits(nbytes=lambda nbytes, job: nbytes * job.gpus), "the bytes of all GPUs together"),
    (fits(nbytes=lambda nbytes, job: nbytes / 1e9), "That is in GB"),
    (fits(nbytes=lambda nbytes, job: nbytes / 2**30), "That is in GiB"),
    (fits(nbytes=lambda nbytes, job: nbytes / job.parameters), "the bytes of one parameter"),
    (fits(nbytes=lambda nbytes, job: 1.03 * nbytes), "is on every GPU in full"),
    (fits(ceil=math.floor), "Rounded down?"),
    (fits(ceil=round), "Rounded down?"),
    (fits(ceil=lambda x: x), "There are whole GPUs only"),
    (fits(ceil=lambda x: math.floor(x) + 1), "fill the budget exactly"),
    (fits(gpus=lambda gpus, job: gpus and gpus + 1), "are enough."),
    (fits(gpus=all_shared), "not all of it is shared"),
    (fits(gpus=lambda gpus, job: gpus or 10**6), "no number of GPUs is enough, None."),
    (fits(nothing=math.inf), "or None. What stage 0 does not share takes 120 GB"),
    (fits(nothing=0), "or None. What stage 0 does not share takes 120 GB"),
    (fits(gpus=lambda gpus, job: None), "It does fit"),
    (fits(gpus=lambda gpus, job: job.gpus), "instead of"),
    (fits(gpus=lambda gpus, job: f"{gpus}"), "Give a whole number"),
    (lambda job: fits()(job)[0], "Return a pair"),
    (lambda job: (job.least, job.on_each(job.gpus)), "8 instead of 3.141e+10"),
    (lambda job: None, "returned None"),
]


@pytest.mark.parametrize("at", range(len(FITS)))
def test_wrong_fits_are_refused(at):
    refused(*FITS[at], "what_fits")


def by_trying(job):
    """Looks for the number, and gives up where the budget is below what is not shared."""
    def on_each(gpus):
        return job.parameters * sum(size / gpus if n < job.stage else size for n, size in enumerate(sizes_of(job)))
    gpus = 1
    while on_each(gpus) > job.budget_bytes and gpus < 10_000:
        gpus += 1
    return on_each(job.gpus), gpus if on_each(gpus) <= job.budget_bytes else None


@pytest.mark.parametrize("answer", [
    fits(), by_trying, fits(ceil=lambda x: float(math.ceil(x))), fits(ceil=lambda x: np.int64(np.ceil(x))),
    fits(gpus=lambda gpus, job: gpus and Fraction(gpus)), lambda job: iter(fits()(job)),
    lambda job: [np.float64(job.on_each(job.gpus)), job.least]])
def test_right_fits_pass(answer):
    passes(answer, "what_fits")


def test_the_least_number_of_gpus_is_the_least():
    """By trying, in whole numbers."""
    for job in fitting.JOBS:
        parts, least = sizes_of(job), None
        for gpus in range(1, 1000):
            shared, fixed = sum(parts[:job.stage]), sum(parts[job.stage:])
            if job.parameters * (shared + fixed * gpus) <= job.budget_bytes * gpus:
                least = gpus
                break
        assert job.least == least, str(job)


def test_a_table_shows_what_is_stored():
    text = str(judged(fits(ceil=math.floor), "what_fits"))
    assert "GB on each GPU" in text and "7 GPUs" in text and "8 GPUs" in text, text


# --- 5: as many as needed ------------------------------------------------------------------------------------------

def batches(p, s):
    return max(1, math.ceil((p - 1) / s) - (p - 1))


def groups(p, f, t):
    return math.ceil(p * (f + t) / f)


NEEDED = [
    (lambda p, s, f, t: (max(1, math.ceil((p - 1) / s)), groups(p, f, t)), "(p - 1)/m compares the bubbles with"),
    (lambda p, s, f, t: (max(1, math.floor((p - 1) / s) - p + 2), groups(p, f, t)), "at exact equality it is met"),
    (lambda p, s, f, t: (max(1, int((p - 1) * (1 - s) / s)), groups(p, f, t)), "Rounded down?"),
    (lambda p, s, f, t: ((p - 1) * (1 - s) / s, groups(p, f, t)), "round up"),
    (lambda p, s, f, t: (math.ceil((p - 1) * (1 - s) / s), groups(p, f, t)), "There is at least one."),
    (lambda p, s, f, t: (math.ceil(p * (1 - s) / s), groups(p, f, t)), "Of p stages p - 1 lie before the last."),
    (lambda p, s, f, t: (100, groups(p, f, t)), "12 are enough"),
    (lambda p, s, f, t: (batches(p, s), p), "p groups are enough only where transfers take no time"),
    (lambda p, s, f, t: (batches(p, s), p * (f + t) / f), "round up"),
    (lambda p, s, f, t: (batches(p, s), int(p * (f + t) / f)), "p groups are enough only where transfers take no"),
    (lambda p, s, f, t: (batches(p, s), round(p * (f + t) / f)), "p groups are enough only where transfers take no"),
    (lambda p, s, f, t: (batches(p, s), math.floor(p * (f + t) / f) + 1), "At exact equality no stage rests."),
    (lambda p, s, f, t: (batches(p, s), p + 1), "more only wait for each other"),
    (lambda p, s, f, t: (batches(p, s), math.ceil((p * f + (p - 1) * t) / f)), "Is the transfer back to stage 0"),
    (lambda p, s, f, t: (batches(p, s), math.ceil(p * (f + t))), "Divide by the time of a stage."),
    (lambda p, s, f, t: (batches(p, s), math.ceil(p * (f + 2 * t) / f)), "more only wait for each other"),
    (lambda p, s, f, t: (batches(p, s), 0), "There is at least one."),
    (lambda p, s, f, t: (groups(p, f, t), batches(p, s)), "5 the bubbles are 0.4444"),
    (lambda p, s, f, t: (-1, 4), "There is at least one."),
    (lambda p, s, f, t: batches(p, s), "Return a pair"),
    (lambda p, s, f, t: (str(batches(p, s)), 4), "Return a pair"),
]


@pytest.mark.parametrize("at", range(len(NEEDED)))
def test_wrong_counts_are_refused(at):
    refused(*NEEDED[at], "as_many_as_needed")


def by_counting(p, s, f, t):
    m = next(m for m in range(1, 1000) if Fraction(p - 1, m + p - 1) <= Fraction(s))
    return m, next(g for g in range(1, 1000) if g * f >= p * (f + t))


@pytest.mark.parametrize("answer", [
    by_counting, lambda p, s, f, t: (batches(p, s), groups(p, f, t)),
    lambda p, s, f, t: np.array([batches(p, s), groups(p, f, t)]),
    lambda p, s, f, t: torch.tensor([batches(p, s), groups(p, f, t)]),
    lambda p, s, f, t: [max(1.0, np.ceil((p - 1) * (1 - s) / s)), Decimal(groups(p, f, t))],
    lambda p, s, f, t: iter((Fraction(batches(p, s)), math.ceil(p * (1 + t / f))))])
def test_right_counts_pass(answer):
    passes(answer, "as_many_as_needed")


@pytest.mark.parametrize("at", range(len(needed.PIPELINES)))
def test_the_least_numbers_are_what_the_pipelines_run(at):
    """With so many groups no stage rests once all are under way, and with one fewer it does."""
    case = needed.PIPELINES[at]
    assert case.bubbles(case.micro_batches) <= case.share
    assert case.micro_batches == 1 or case.bubbles(case.micro_batches - 1) > case.share
    if case.stages > 8:
        return
    for count, rests in ((case.groups, False), (case.groups - 1, True)):
        if count:
            starts = stage_starts(case, count)
            gaps = [b - a - case.stage_ms for a, b in zip(starts[2 * count:], starts[2 * count + 1:], strict=False)]
            assert (max(gaps) > 1e-9) == rests, (count, gaps)


def stage_starts(case, count, tokens=6):
    """When stage 0 starts its tasks: a stage and a link serve first what comes first."""
    ready = {group: 0.0 for group in range(count)}
    free, starts = [0.0] * case.stages, []
    for _ in range(tokens):
        for group in range(count):
            at = ready[group]
            for stage in range(case.stages):
                at = max(at, free[stage])
                starts += [at] if stage == 0 else []
                free[stage] = at = at + case.stage_ms
                at += case.transfer_ms
            ready[group] = at
    return starts


def test_groups_are_drawn_beside_as_many_as_needed():
    text = judged(lambda p, s, f, t: (batches(p, s), p), "as_many_as_needed").picture.text
    assert "4 groups" in text and "5 groups" in text, text


def test_target_is_drawn_for_the_puzzles_that_have_one():
    for puzzle in ("link_queue", "stage_order"):
        assert "target" in target(puzzle).text
    with pytest.raises(ValueError, match="there is one of link_queue, stage_order"):
        target("what_fits")
