"""Lab 09, puzzle 3: queues that race, overwrite a slot, stop or are slow are refused with a witness."""

import random
from itertools import combinations

import numpy as np
import pytest
import torch
from answers import trial

from utils.labs import timelimit
from utils.labs.check import Refused
from utils.labs.lab09 import check, link, queueing
from utils.labs.lab09.link import Queue, Times, entry_of, products, run
from utils.lessons import import_lesson

SOLUTION = import_lesson("solutions/09_hide_the_network")
PUZZLE = "link_queue"
judged, refused, passes = trial(check)


def test_stub_is_not_done_yet():
    def stub(layers):
        raise NotImplementedError()
    assert judged(stub, PUZZLE).pending


def test_solution_passes():
    verdict = check.judge(SOLUTION.link_queue)
    assert verdict.passed and not verdict.advice and verdict.tried, str(verdict)


def queues(ahead=1, wait=lambda k, layers: k - 2, scatter_first=False,
           skip=lambda task, layers: task == ("B", layers - 1), scatter_wait=lambda k: k, scatter=lambda task: True,
           last=lambda queue, layers: queue):
    """The worked answer with something else in one place. ``wait``: for the use whose product a gather waits for."""
    def answer(layers):
        uses, queue = products(layers), []

        def gather(k):
            if k < len(uses) and not skip(uses[k], layers):
                after = wait(k, layers)
                queue.append(("gather", uses[k], None if after is None or after < 0 else uses[after]))

        def send(k):
            if k >= layers and scatter(uses[k]):
                after = scatter_wait(k)
                queue.append(("scatter", uses[k], None if after is None else uses[after]))
        for k in range(ahead):
            gather(k)
        for k in range(len(uses)):
            if scatter_first:
                send(k)
            gather(k + ahead)
            if not scatter_first:
                send(k)
        return last(queue, layers)
    return answer


def everything_first(wait=lambda k, layers: k - 2):
    """All gathers, then all scatters."""
    return queues(ahead=1000, wait=wait)


def post(layers):
    """The gather for the next backward pass waits until this one has ended, and stands before its scatter."""
    return queues(wait=lambda k, layers: k - 1 if k > layers else k - 2)(layers)


def swapped_waits(queue, layers):
    """The scatter of B i waits for B i + 1, which is done sooner."""
    return [(what, task, ("B", task[1] + 1)) if what == "scatter" and task[1] + 1 < layers else (what, task, after)
            for what, task, after in queue]


WRONG = {
    "scatter before the next gather": (queues(scatter_first=True), "put the gather before it"),
    "backward post": (post, "It has a free slot as soon as"),
    "every gather waits for the product before": (queues(wait=lambda k, layers: k - 1), "It has a free slot from the"),
    "gathers and products take turns": (queues(ahead=0, wait=lambda k, layers: k - 1), "waits for its gather"),
    "nothing waits, all first": (everything_first(wait=lambda k, layers: None), "up to 7 layers would be whole"),
    "nothing waits": (queues(wait=lambda k, layers: None), "Nothing holds the gathers back"),
    "three slots": (queues(ahead=2, wait=lambda k, layers: k - 3), "both slots may still be needed"),
    "a wait too early by one": (queues(wait=lambda k, layers: k - 3), "Let it wait: ('gather', ('F', 2), ('F', 0))"),
    "no wait in the backward pass": (queues(wait=lambda k, layers: k - 2 if k < layers else None),
                                     "can overwrite what"),
    "no wait in the forward pass": (queues(wait=lambda k, layers: k - 2 if k >= layers else None),
                                    "can overwrite what F 0 reads, 4 layers"),
    "backward's gathers forgotten": (queues(skip=lambda task, layers: task[0] == "B"), "There is no gather for B"),
    "one of them forgotten": (queues(skip=lambda task, layers: task in (("B", layers - 1), ("B", 0))),
                              "There is no gather for B 0"),
    "forward's gathers forgotten": (queues(skip=lambda task, layers: task[0] == "F"), "no gather for F 0"),
    "last scatter forgotten": (queues(scatter=lambda task: task[1] > 0), "It is the last one"),
    "first scatter forgotten": (queues(last=lambda queue, layers: [item for item in queue if item[:2] != (
        "scatter", ("B", layers - 1))]), "The gradient of layer 3 is never summed"),
    "no scatters": (queues(scatter=lambda task: False), "no scatter for B 3"),
    "all scatters at the end": (everything_first(), "the link still has"),
    "scatters do not wait": (queues(scatter_wait=lambda k: None), "can start before B 3 has ended"),
    "scatters wait for the product before": (queues(scatter_wait=lambda k: k - 1),
                                             "Let it wait: ('scatter', ('B', 3), ('B', 3))"),
    "scatters wait for another layer": (queues(last=swapped_waits), "can start before B 2 has ended"),
    "a gather too many": (queues(skip=lambda task, layers: False), "gather B 3 is not needed"),
    "a gather waits for its own product": (queues(wait=lambda k, layers: k if k == 3 else k - 2),
                                           "The GPU has come to F 3, which needs that very gather"),
    "a gather behind what waits for it": (queues(last=lambda queue, layers: [*queue[1:], queue[0]]),
                                          "which stands behind it"),
    "reversed": (queues(last=lambda queue, layers: queue[::-1]), "Nothing goes on any more"),
    "twice": (queues(last=lambda queue, layers: queue + queue[-1:]), "scatter B 0 is in the queue twice"),
    "forward scatters": (queues(last=lambda queue, layers: [*queue, ("scatter", ("F", 0), None)]),
                         "leaves no gradient"),
    "an unknown product": (queues(last=lambda queue, layers: [*queue, ("gather", ("F", layers), None)]),
                           "there is no product ('F', 4)"),
    "negative waits": (queues(last=lambda queue, layers: [("gather", ("F", 0), ("F", -2)), *queue[1:]]),
                       "A collective that waits for nothing has None"),
    "names": (queues(last=lambda queue, layers: [f"{what} {task}" for what, task, _ in queue]), "is no collective"),
    "numbers for products": (queues(last=lambda queue, layers: [(what, n, n) for n, (what, *_) in enumerate(queue)]),
                             "is no collective"),
    "nothing": (lambda layers: [], "no gather for F 0"),
    "a number": (lambda layers: layers, "Return a list of (what, product, after)"),
    "a mapping": (lambda layers: dict.fromkeys(range(3)), "Return a list of (what, product, after)"),
    "none": (lambda layers: None, "returned None"),
    "raises": (lambda layers: layers[0], "it raised TypeError"),
    "breaks with one layer": (queues(last=lambda queue, layers: [queue[0], queue[1], queue[2], *queue[3:]]),
                              "it raised IndexError on 1 layer"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_queues_are_refused(name):
    refused(*WRONG[name], PUZZLE)


def test_refusals_show_their_witness():
    race = "A run that your queue allows"
    for name, words in {"no wait in the forward pass": race, "backward post": "target:", "nothing waits": race,
                        "scatters do not wait": race,
                        "a gather waits for its own product": "What ran until the step stopped"}.items():
        assert words in judged(WRONG[name][0], PUZZLE).picture.text, name


def test_a_loop_without_end_is_refused(monkeypatch):
    def endless(layers):
        while True:
            yield from SOLUTION.link_queue(layers)
    refused(endless, "is in the queue twice", PUZZLE)
    monkeypatch.setattr(timelimit, "LIMIT_S", 0.3)

    def loops(layers):
        while True:
            pass
    refused(loops, "is there a loop that never ends?", PUZZLE)


def one_gather_less(layers):
    """Layer L - 2 is still in its slot when its backward pass comes."""
    return queues(skip=lambda task, n: task[0] == "B" and task[1] >= n - 2)(layers)


def as_soon_as_it_can(layers):
    """The first gather of the backward pass has a slot one product earlier."""
    return queues(wait=lambda k, n: n - 2 if k == n + 1 else k - 2)(layers)


def next_gather_first(layers):
    """Each scatter stands behind the gather after the next."""
    queue = SOLUTION.link_queue(layers)
    for at in reversed(range(len(queue) - 1)):
        if queue[at][0] == "scatter" and queue[at + 1][0] == "gather":
            queue[at], queue[at + 1] = queue[at + 1], queue[at]
    return queue


def more_waits(layers):
    """Waits that cost nothing: for all products before, as well."""
    uses = products(layers)
    return [(what, task, [] if after is None else uses[:uses.index(after) + 1])
            for what, task, after in SOLUTION.link_queue(layers)]


def implied_waits(layers):
    """What an earlier one in the queue waits for, a later one need not."""
    seen, found = set(), []
    for what, task, after in SOLUTION.link_queue(layers):
        found.append((what, task, None if after in seen else after))
        seen.add(after)
    return found


RIGHT = [queues(), one_gather_less, as_soon_as_it_can, next_gather_first, more_waits, implied_waits,
         lambda layers: iter(SOLUTION.link_queue(layers)), lambda layers: tuple(SOLUTION.link_queue(layers)),
         lambda layers: [[what, [task[0], np.int64(task[1])], after]
                         for what, task, after in SOLUTION.link_queue(layers)],
         lambda layers: [(what, (task[0], torch.tensor(task[1])), {after} if after else set())
                         for what, task, after in SOLUTION.link_queue(layers)],
         lambda layers: [item if item[2] else item[:2] for item in SOLUTION.link_queue(layers)]]


@pytest.mark.parametrize("at", range(len(RIGHT)))
def test_right_queues_pass(at):
    passes(RIGHT[at], PUZZLE)


# --- the judge -----------------------------------------------------------------------------------------------------

def queue_of(answer, layers):
    return Queue(layers, tuple(entry_of(item) for item in answer(layers)))


def interleavings(layers):
    """Every order of gathers and scatters, each of them in the order of the products, with the worked waits."""
    entries = SOLUTION.link_queue(layers)
    gathers, scatters = ([item for item in entries if item[0] == what] for what in ("gather", "scatter"))
    for places in combinations(range(len(entries)), len(scatters)):
        parts = iter(gathers), iter(scatters)
        yield Queue(layers, tuple(entry_of(next(parts[at in places])) for at in range(len(entries))))


@pytest.mark.parametrize("times", (*queueing.RATIOS[:3], Times(1, 2, 3, 3), Times(1, 2, 2, 0.1)), ids=str)
def test_the_target_is_close_to_the_best_order(times):
    """With these waits; no order is shorter by more than one scatter."""
    for layers in (1, 2, 3):
        orders = [order for order in interleavings(layers) if order.stuck() is None]
        best = min(run(order.graph(times)).makespan for order in orders)
        worked = run(queueing.target(layers).graph(times)).makespan
        assert best <= worked <= best + times.scatter + 1e-9
        if times.gather + times.scatter <= times.backward:
            assert worked == pytest.approx(best, rel=1e-12)


def test_the_target_is_the_lessons_training_step():
    lesson = import_lesson("09_hide_the_network")
    for times in queueing.RATIOS:
        for layers in (1, 2, 3, 8):
            step = lesson.training_step(layers, *times)
            made = run(queueing.target(layers).graph(times)).makespan
            assert made == pytest.approx(run(step).makespan, rel=1e-12)


@pytest.mark.parametrize("answer", [one_gather_less, as_soon_as_it_can, next_gather_first])
def test_other_right_queues_are_never_slower(answer):
    for times in (*queueing.RATIOS, Times(1, 2, 5, 0.1), Times(1, 2, 0.1, 5), Times(3, 1, 2, 2), Times(1, 1, 1, 1)):
        for layers in (*range(1, 8), 24):
            worked = run(queueing.target(layers).graph(times)).makespan
            assert run(queue_of(answer, layers).graph(times)).makespan <= worked * (1 + 1e-9), (layers, times)


@pytest.mark.parametrize("name", ["nothing waits", "three slots", "a wait too early by one",
                                  "no wait in the forward pass", "one of them forgotten"])
def test_two_slots_are_judged_as_runs_use_them(name):
    """A queue is refused for its slots exactly if some run, slow in one product, has three layers in use at once."""
    for layers in (1, 2, 3, 4, 5):
        queue = queue_of(WRONG[name][0], layers)
        if queue.stuck() is None:
            over = any(len(queue.held(at)) > link.SLOTS for at in queue.readers)
            assert over == (most_in_use(queue) > link.SLOTS), (name, layers)


def test_what_is_accepted_holds_at_any_speed():
    """Worked answers with entries exchanged and waits changed: whatever passes is right however long products take."""
    rng, passed = random.Random(5), 0
    for _ in range(400):
        layers = rng.choice((2, 3, 4))
        queue = scrambled(rng, layers)
        try:
            for name in ("tasks", "stuck", "scatters", "slots"):
                getattr(queueing, f"_judge_{name}")(queue, "")
        except Refused as refused:
            assert refused.verdict.says
            continue
        passed += 1
        for _ in range(5):
            graph = queue.graph(Times(1, 1, 1, 1))
            for task in graph:
                graph.nodes[task]["duration"] = rng.choice((0.01, 1, 50))
            plan = run(graph)
            assert in_use(queue, plan) <= link.SLOTS
            assert all(plan.runs["scatter", task].start >= plan.runs[task].end for task in products(layers)[layers:])
    assert passed > 20


def scrambled(rng, layers):
    uses, entries = products(layers), SOLUTION.link_queue(layers)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(entries))
        if rng.random() < 0.5:
            other = rng.randrange(len(entries))
            entries[at], entries[other] = entries[other], entries[at]
        else:
            entries[at] = (*entries[at][:2], rng.choice([None, *uses]))
    return Queue(layers, tuple(map(entry_of, entries)))


def in_use(queue, plan):
    """Most layers at once that are being gathered, or will still be read."""
    spans = [(plan.runs[queue.entries[at][:2]].start, plan.runs[queue.products[last]].end)
             for at, last in queue.readers.items()]
    return max(sum(start <= at < end for start, end in spans) for at, _ in spans)


def most_in_use(queue):
    most = 0
    for slow in queue.products:
        graph = queue.graph(Times(1, 1, 0.01, 0.01))
        graph.nodes[slow]["duration"] = 1000
        most = max(most, in_use(queue, run(graph)))
    return most
