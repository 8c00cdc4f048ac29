"""Lab 05, puzzle 3: every wrong answer is refused in words, and right ones pass, however written."""

import functools

import pytest
import torch
from answers import HERE, judge_as

from utils.labs.lab05 import check
from utils.labs.lab05 import swap as swap_judge
from utils.lessons import import_lesson

SOLUTION = import_lesson("solutions/05_offload_and_swap")
cuda = torch.cuda


def judged(answer):
    return judge_as(check, "swap", answer)


def said(verdict):
    return " ".join(str(verdict).split())


def copied(target, source):
    target.copy_(source, non_blocking=True)


def swaps(order=lambda first, free: [*free, *first], at_round=lambda a: a - 1, reader=lambda i, last: i, waits=True,
          loaded=lambda j: j, load=copied, ahead=True, product=torch.matmul, main=HERE, where=lambda copying: copying,
          finish=lambda x: x, second_order=lambda second: second, turns=lambda b: b,
          again=False):
    """The worked answer with an event for every product, and something else in one place.

    ``reader(i, last)``: the product, of round ``at_round(a)``, that a load into first[i] waits for; ``loaded(j)``: the
    load that the second model's product j waits for; ``ahead``: whether loads into free matrices come first.
    """
    def answer(x, first, free, second, rounds, copying):
        a, b = rounds
        stream, slots, count = where(copying), order(first, free)[: len(second)], len(second)
        ends, done = {}, [cuda.Event() for _ in second]

        def bring(j, wait=None):
            with cuda.stream(stream):
                if wait is not None and waits:
                    stream.wait_event(wait)
                load(slots[j], second_order(second)[j])
                done[j].record()

        place = {id(matrix): i for i, matrix in enumerate(first)}
        for turn in range(a):
            if turn == (0 if ahead else a - 1):
                for j in range(count):
                    if id(slots[j]) not in place:
                        bring(j)
            for i, weight in enumerate(first):
                x = product(x, weight)
                ends[turn, i] = main().record_event()
            if turn == at_round(a):
                for j in range(count):
                    if id(slots[j]) in place:
                        bring(j, ends[turn, min(reader(place[id(slots[j])], len(first) - 1), len(first) - 1)])
        for turn in range(turns(b)):
            for j, weight in enumerate(slots):
                if turn and again:
                    stream.wait_stream(main())
                    bring(j)
                if (turn == 0 or again) and loaded(j) is not None:
                    main().wait_event(done[min(loaded(j), count - 1)])
                x = product(x, weight)
        return finish(x)
    return answer


def serially(x, first, free, second, rounds, copying):
    """Loads begin when the first model has finished."""
    for weight in first * rounds[0]:
        x = x @ weight
    copying.wait_stream(HERE())
    slots = [*free, *first][: len(second)]
    with cuda.stream(copying):
        for slot, weight in zip(slots, second, strict=True):
            slot.copy_(weight, non_blocking=True)
    HERE().wait_stream(copying)
    for weight in slots * rounds[1]:
        x = x @ weight
    return x


def all_loads_waited_for(x, first, free, second, rounds, copying):
    slots = [*free, *first][: len(second)]

    def load(j):
        with cuda.stream(copying):
            slots[j].copy_(second[j], non_blocking=True)
    for j in range(min(len(free), len(second))):
        load(j)
    for turn in range(rounds[0]):
        for i, weight in enumerate(first):
            x = x @ weight
            if turn == rounds[0] - 1 and len(free) + i < len(second):
                copying.wait_stream(HERE())
                load(len(free) + i)
    HERE().wait_stream(copying)
    for weight in slots * rounds[1]:
        x = x @ weight
    return x


def beside_the_first(x, first, free, second, rounds, copying):
    with cuda.stream(copying):
        weights = [weight.to("cuda", non_blocking=True) for weight in second]
    for weight in first * rounds[0]:
        x = x @ weight
    HERE().wait_stream(copying)
    for weight in weights * rounds[1]:
        x = x @ weight
    copying.wait_stream(HERE())
    return x


def drops_what_lies_beside(x, first, free, second, rounds, copying):
    with cuda.stream(copying):
        weights = [weight.to("cuda", non_blocking=True) for weight in second]
    for weight in first * rounds[0]:
        x = x @ weight
    HERE().wait_stream(copying)
    for weight in weights * rounds[1]:
        x = x @ weight
    return x


def gives_the_first_model_back(x, first, free, second, rounds, copying):
    y = SOLUTION.swap(x, first, free, second, rounds, copying)
    first.clear()
    free.clear()
    return y


def shares_outputs(x, first, free, second, rounds, copying):
    def product(x, weight):
        y = x @ weight
        y.record_stream(copying)
        return y
    return swaps(product=product)(x, first, free, second, rounds, copying)


def reads_a_value(x, first, free, second, rounds, copying):
    y = SOLUTION.swap(x, first, free, second, rounds, copying)
    assert bool(y.isfinite().all())
    return y


def saved_first(x, first, free, second, rounds, copying):
    """The first model's layers go back to the host."""
    kept = [torch.empty(weight.shape, pin_memory=True) for weight in first]
    with cuda.stream(copying):
        for host, weight in zip(kept, first, strict=True):
            host.copy_(weight, non_blocking=True)
    return SOLUTION.swap(x, first, free, second, rounds, copying)


def host_waits(x, first, free, second, rounds, copying):
    for weight in first * rounds[0]:
        x = x @ weight
    HERE().synchronize()
    slots = [*free, *first][: len(second)]
    with cuda.stream(copying):
        for slot, weight in zip(slots, second, strict=True):
            slot.copy_(weight, non_blocking=True)
    copying.synchronize()
    for weight in slots * rounds[1]:
        x = x @ weight
    return x


def one_matrix(x, first, free, second, rounds, copying):
    """The second model is multiplied out on the host."""
    product = functools.reduce(torch.matmul, second * rounds[1]).pin_memory()
    with cuda.stream(copying):
        copied(free[0], product)
    for weight in first * rounds[0]:
        x = x @ weight
    HERE().wait_stream(copying)
    return x @ free[0]


def polls(x, first, free, second, rounds, copying):
    def product(x, weight):
        end = HERE().record_event()
        while not end.query():
            pass
        return x @ weight
    return swaps(product=product)(x, first, free, second, rounds, copying)


def into_x(x, weight):
    return x.copy_(x @ weight)


def doubles_second(x, first, free, second, rounds, copying):
    y = SOLUTION.swap(x, first, free, second, rounds, copying)
    cuda.synchronize()
    second[0].mul_(2)
    return y


def in_half_precision(x, weight):
    return (x.half() @ weight.half()).float()


def rows(target, source):
    for one, other in zip(target.split(1), source.split(1), strict=True):
        one.copy_(other, non_blocking=True)


def own_stream(x, first, free, second, rounds, copying):
    with cuda.stream(cuda.Stream()):
        return SOLUTION.swap(x, first, free, second, rounds, copying)


def streamed_through_one(x, first, free, second, rounds, copying):
    """The second model never becomes resident: every layer of every round goes through a free matrix."""
    for weight in first * rounds[0]:
        x = x @ weight
    for weight in second * rounds[1]:
        copying.wait_stream(HERE())
        with cuda.stream(copying):
            copied(free[0], weight)
        HERE().wait_stream(copying)
        x = x @ free[0]
    return x


def keeps_all(x, first, free, second, rounds, copying):
    outputs = []

    def product(x, weight):
        outputs.append(x @ weight)
        return outputs[-1]
    return swaps(product=product)(x, first, free, second, rounds, copying)


WRONG = [
    (serially, "It could go into free[0] at once: queue what goes into free before the first product."),
    (swaps(load=lambda slot, weight: copied(slot, weight.to("cuda", non_blocking=True))),
     "5 more copies, from GPU memory to GPU memory"),
    (shares_outputs, "record_stream keeps their memory"),
    (reads_a_value, "or one that gives a value to the host, makes the host wait"),
    (swaps(at_round=lambda a: 0), "A slot of the first model is free when its product in the *last* round has ended"),
    (swaps(waits=False), "A slot of the first model is free when its product in the *last* round has ended"),
    (swaps(reader=lambda i, last: max(0, i - 1)), "#15 is product 1 in round 2 of the first model, #20 is the load of"),
    (swaps(reader=lambda i, last: 0), "WAR: copy_"),
    (swaps(reader=lambda i, last: i + 1), "The load of second[1] starts only after product 1 in round 2"),
    (swaps(reader=lambda i, last: last), "The load of second[1] starts only after product 4 in round 2"),
    (swaps(loaded=lambda j: None), "is the load of second[0]"),
    (swaps(loaded=lambda j: j - 1 if j else None), "RAW: mm"),
    (swaps(loaded=lambda j: j + 1), "Product 3 in round 1 of the second model starts only after the load of second[4]"),
    (swaps(order=lambda first, free: [*first, *free]), "The load of second["),
    (swaps(order=lambda first, free: [*free, *first[::-1]]), "It goes into first[4], and first[0] is free before that"),
    (all_loads_waited_for, "Product 0 in round 1 of the second model starts only after the load of second["),
    (gives_the_first_model_back, "memory that was given back"),
    (drops_what_lies_beside, "second lies in memory of its own beside first"),
    (beside_the_first, "beside the matrices that you were given there was device memory for"),
    (saved_first, "The first model's layers do not change, and the host has them already"),
    (swaps(again=True), "Each is loaded once and stays"),
    (streamed_through_one, "Each is loaded once and stays"),
    (host_waits, "the host stands still until the GPU is done"),
    (swaps(load=lambda slot, weight: slot.copy_(weight)), "A copy without non_blocking=True"),
    (swaps(load=lambda slot, weight: slot.copy_(weight.clone(), non_blocking=True)), "is never asynchronous"),
    (polls, "Asking again and again whether something is done"),
    (one_matrix, "of 5 loads that are asked for 1 can be seen"),
    (swaps(where=lambda copying: HERE()), "Every load belongs on copying. 0 of 5"),
    (swaps(where=lambda copying: cuda.Stream()), "Every load belongs on copying. 0 of 5"),
    (swaps(second_order=lambda second: second[::-1]), "Which layer is in which slot"),
    (swaps(turns=lambda b: 1), "Which layer is in which slot"),
    (doubles_second, "The caller's own second changed"),
    (swaps(product=into_x), "The caller's own x changed"),
    (swaps(product=in_half_precision), "Which layer is in which slot"),
    (swaps(load=rows), "Every launch takes host time"),
    (keeps_all, "beside the matrices that you were given there was device memory for"),
    (own_stream, "The caller is still making x, on the current stream"),
    (swaps(main=lambda: cuda.default_stream()), "In this run another stream than the default one is current."),
    (swaps(finish=lambda x: x.sum()), "the result is a torch.float32 tensor of shape ()"),
    (swaps(finish=lambda x: None), "the result is a NoneType"),
    (lambda x, first, free, second, rounds, copying: x @ first[99], "it raised IndexError"),
]


@pytest.mark.parametrize("place", range(len(WRONG)))
def test_wrong_answers_are_refused(place):
    answer, phrase = WRONG[place]
    verdict = judged(answer)
    assert not verdict.passed and not verdict.pending
    assert phrase in said(verdict), str(verdict)


def two_activations(x, first, free, second, rounds, copying):
    """Products write into two activations in turn."""
    outputs, count = [torch.empty_like(x), torch.empty_like(x)], [0]

    def product(x, weight):
        count[0] += 1
        return torch.mm(x, weight, out=outputs[count[0] % 2])
    return swaps(product=product)(x, first, free, second, rounds, copying)


def on_another_compute_stream(x, first, free, second, rounds, copying):
    here, own = HERE(), cuda.Stream()
    own.wait_stream(here)
    with cuda.stream(own):
        x = SOLUTION.swap(x, first, free, second, rounds, copying)
    here.wait_stream(own)
    x.record_stream(here)
    return x


def halves(target, source):
    for one, other in zip(target.chunk(2), source.chunk(2), strict=True):
        one.copy_(other, non_blocking=True)


def test_new_memory_beside_the_first_model_has_no_slots():
    verdict = said(judged(drops_what_lies_beside))
    assert "A slot of the first model" not in verdict and "memory that was given back" in verdict


RIGHT = [swaps(), swaps(ahead=False), two_activations, on_another_compute_stream, swaps(load=halves),
         swaps(product=torch.mm), swaps(order=lambda first, free: [*free[::-1], *first])]


@pytest.mark.parametrize("place", range(len(RIGHT)))
def test_right_answers_of_other_shapes_pass(place):
    verdict = judged(RIGHT[place])
    assert verdict.passed, str(verdict)


def test_nothing_is_exposed_where_a_product_is_at_least_as_long_as_a_copy():
    judge = swap_judge.Swap()
    for case, ratios in judge.cases:
        for ratio in ratios:
            exposed, copy_us = swap_judge.exposed_us(judge.goal(case, ratio), case), ratio * 317
            assert ratio > 1 or exposed <= copy_us, (str(case), ratio, exposed)
