"""utils.decoder on a CUDA device, simulated or real: races, waits, graphs, and lesson 06's loop."""

import random
from contextlib import nullcontext

import pytest
import torch
from decoder_reference import greedy
from decoder_rows import CELLS, SLOTS, columns, decoder, fill, mixes, sequences

from utils import simgpu
from utils.decoder import TINY, SlotDecoder
from utils.lessons import import_lesson


@pytest.fixture(params=["simulated", "real"])
def device(request):
    if request.param == "real" and not torch.cuda.is_available():
        pytest.skip("this machine has no CUDA device")
    with simgpu.session(simgpu.H200) if request.param == "simulated" else nullcontext() as found:
        yield found


@pytest.fixture
def models(device):
    """On the CPU and on the device, with the same weights."""
    host = decoder(dtype=torch.float32)
    model = SlotDecoder(TINY, SLOTS, CELLS, dtype=torch.float32)
    for here, there in zip(model.weights.tensors(), host.weights.tensors(), strict=True):
        here.copy_(there)
    return host, model


def on_device(rows):
    return [column.to("cuda") for column in columns(rows)]


def hazards(device):
    return [] if device is None else [str(hazard) for hazard in device.hazards]


def test_the_same_tokens_as_on_the_cpu(device, models):
    host, model = models
    for rows in mixes(random.Random(1), sequences(1)):
        kept = torch.tensor([position >= 0 for _, _, position in rows])
        torch.testing.assert_close(model.logits(*on_device(rows)).cpu()[kept], host.logits(*columns(rows))[kept],
                                   atol=1e-4, rtol=0)
        used = [slot for _, slot, position in rows if position >= 0]
        if len(set(used)) == len(used):
            assert torch.equal(model.decode(*on_device(rows[:SLOTS])).cpu()[kept[:SLOTS]],
                               host(*columns(rows))[:SLOTS][kept[:SLOTS]])
    assert not hazards(device)


@pytest.mark.parametrize("one_each", [False, True])
def test_a_step_waits_for_nothing(models, one_each):
    """The host is through while the device has not begun."""
    _, model = models
    rows = on_device([(1, 0, 0), (2, 1, 0)])
    step = model.decode if one_each else model
    step(*rows)
    torch.cuda.synchronize()
    torch.cuda._sleep(100_000_000)
    begun = torch.cuda.Event()
    begun.record()
    tokens = step(*rows)
    assert not begun.query(), "the step has waited for what was queued before it"
    assert len(tokens.tolist()) == 2


@pytest.mark.parametrize("one_each", [False, True])
def test_a_graph_gives_the_same_tokens(device, models, one_each):
    """Captured once, replayed for other rows of other slots."""
    host, model = models
    requests = sequences(2, longest=20)
    fill(host, requests)
    model(*on_device([(token, slot, n) for slot, tokens in enumerate(requests) for n, token in enumerate(tokens)]))
    inputs = on_device([(0, 0, -1)] * 3)
    step = model.decode if one_each else model
    step(*inputs), torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = step(*inputs)
    for order in ([0, 3, 1], [4, 2, 0]):
        rows = columns([(requests[slot][-1], slot, len(requests[slot]) - 1) for slot in order])
        for static, column in zip(inputs, rows, strict=True):
            static.copy_(column)
        graph.replay()
        assert torch.equal(outputs.cpu(), host(*rows))
    assert not hazards(device)


def test_the_synchronous_loop_of_lesson_06_serves_it(device, models):
    """Prompts in chunks beside decodes, more requests than slots: each gets what it would get alone."""
    host, model = models
    lesson = import_lesson("06_continuous_batching")
    rng = random.Random(3)
    requests = [lesson.Request(f"r{n}", [rng.randrange(1, TINY.words) for _ in range(rng.randint(1, 30))],
                               rng.randint(1, 12), n * 0.1) for n in range(9)]
    scheduler = lesson.Batching(SLOTS, budget=12)
    scheduler.add(*requests)
    lesson.synchronous(model, scheduler)
    for request in requests:
        expected = greedy(host, request.prompt, len(request.tokens))
        assert request.tokens == expected and (len(expected) == request.limit or expected[-1] == lesson.EOS)
    assert sorted(scheduler.free) == list(range(SLOTS)) and not hazards(device)
