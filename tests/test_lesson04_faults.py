"""Lesson 04's streamed modules: errors, threads, changed weights; what cannot work is refused and changes nothing."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import time

import pytest
import torch
from small_layers import MODES, W, agree, batch, build, call, mlp, resident
from torch import nn

from utils import simgpu
from utils.lessons import import_lesson

lesson = import_lesson("04_double_buffered_onload")


@pytest.fixture
def three(gpu):
    """A streamed model of three layers, its layers, and the same ones resident."""
    layers = build(["large", "linear"])
    there = resident(layers)
    return lesson.StreamedLayers(layers), layers, there


# errors in the middle of a call, threads


class Breaks(nn.Module):
    broken = False

    def forward(self, x):
        if self.broken:
            raise ZeroDivisionError
        return x


@pytest.mark.parametrize("place", [1, 2, 3])
@pytest.mark.parametrize("kinds", [["linear", "large"], ["linear", "again"], ["again", "again"]])
def test_usable_after_an_error_from_any_thread(gpu, kinds, place):
    layers, breaks, x = build(kinds), Breaks(), batch()
    there = resident(layers)
    model = lesson.StreamedLayers([*layers[:place], breaks, *layers[place:]])
    breaks.broken = True
    with pytest.raises(ZeroDivisionError), torch.no_grad():
        model(x)
    breaks.broken = False
    found = []
    thread = threading.Thread(target=lambda: found.append(agree(model, there, x)))
    torch.cuda.synchronize()
    thread.start()
    thread.join()
    assert found == [True] and agree(model, there, x)


def test_usable_after_an_error_inside_a_layer(three):
    model, _, there = three
    with pytest.raises(RuntimeError), torch.no_grad():
        model(batch()[..., :3])
    assert agree(model, there, batch())


class Rests(nn.Module):
    """Lets other threads go on, and notes who was here."""

    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def forward(self, x):
        self.seen.append(threading.get_ident())
        time.sleep(0.001)
        return x


@pytest.mark.parametrize("own_loop", [False, True])
def test_threads_take_turns(three, own_loop):
    """Call by call through the model; by their own loops layer by layer, each of which is copied again where needed."""
    model, layers, there = three
    seen, xs = [], [batch(seed=seed) for seed in range(3)]
    model.layers[:] = layers = [part for layer in layers for part in (Rests(seen), layer)]
    torch.cuda.synchronize()
    found, start = {}, threading.Barrier(3)

    def work(n):
        start.wait()
        with torch.no_grad():
            found[n] = [call(layers, xs[n]) if own_loop else model(xs[n]) for _ in range(3)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    with torch.no_grad():
        assert all(torch.equal(y, call(there, xs[n])) for n in range(3) for y in found[n])
    assert len(found) == 3 and simgpu.active().hazards == []
    assert own_loop or all(len(set(seen[i:i + 3])) == 1 for i in range(0, len(seen), 3))


# the life of weights and buffers


@pytest.mark.parametrize("prefetch", [True, False])
def test_given_up_while_a_call_on_another_stream_is_under_way(gpu, prefetch):
    layers, x, side = build(["large"]), batch(), torch.cuda.Stream()
    there = resident(layers)
    model = lesson.StreamedLayers(layers, 2, prefetch)
    size = model.ring.buffers[0].numel()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        y = model(x)
    del model, layers
    gc.collect()
    others = [torch.full((size,), i, dtype=torch.uint8, device="cuda") for i in range(4)]
    torch.cuda.synchronize()
    with torch.no_grad():
        assert torch.equal(y, call(there, x)) and gpu.hazards == [] and len(others) == 4


@pytest.mark.parametrize("way", ["edit", "load_state_dict"])
def test_new_values_between_calls(three, way):
    model, layers, there = three
    new, x = build(["large", "linear"]), batch()
    with torch.no_grad():
        for parameter in nn.ModuleList(new).parameters():
            parameter.mul_(0.5)
        wanted = resident(new)
        model(x)
        torch.cuda.synchronize()
        for layer, other in zip(layers, new, strict=True):
            if way == "load_state_dict":
                layer.load_state_dict(other.state_dict())
            else:
                for mine, its in zip(layer.parameters(), other.parameters(), strict=True):
                    mine.copy_(its)
    model.ring.restart()
    assert agree(model, wanted, x) and not agree(model, there, x, times=1)


def test_an_edit_under_a_copy_that_was_loaded_ahead_is_a_hazard(three):
    model, layers, _ = three
    with torch.no_grad():
        model(batch())
        layers[0].weight.zero_()
    assert {(h.kind, h.first.name, h.host) for h in simgpu.active().hazards} == {("WAR", "copy_", True)}


def test_a_layer_that_gives_out_its_weight_is_a_hazard(gpu):
    class Query(nn.Module):
        def __init__(self):
            super().__init__()
            self.query = nn.Parameter(torch.randn(W))

        def forward(self, x):
            return self.query

    with torch.no_grad():
        lesson.StreamedLayers([Query(), nn.Linear(W, W), Query()])(batch()).cpu()
    assert gpu.hazards


@pytest.mark.parametrize("where", ["layers", "model", "both"])
def test_made_in_inference_mode_used_outside(gpu, where):
    with torch.inference_mode(where != "model"):
        layers = build(["norm", "tied"])
    there = resident(layers)
    with torch.inference_mode(where != "layers"):
        model = lesson.StreamedLayers(layers)
    assert agree(model, there, batch()) and not any(buffer.is_inference() for buffer in model.ring.buffers)


def test_with_gradients_on_but_not_asked_for(three):
    model, _, there = three
    x = batch()
    y = model(x)
    assert torch.equal(y, call(there, x)) and not y.requires_grad and simgpu.active().hazards == []


# what is refused


def test_gradients_are_refused(three):
    model, layers, there = three
    x = batch().requires_grad_()
    with pytest.raises(RuntimeError, match=r"no gradients: use torch.inference_mode\(\)"):
        model(x)
    with pytest.raises(RuntimeError, match="no gradients"):
        layers[0](input=x)
    assert agree(model, there, x)


class Counts(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how, self.weight = how, nn.Parameter(torch.randn(W))
        self.register_buffer("calls", torch.zeros(2))

    def forward(self, x):
        if self.how == "assign":
            self.calls = self.calls + 1
        elif self.how == "item":
            self.calls[1] = 3
        elif self.how == "add":
            self.calls.add_(1)
        return x * self.weight


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["assign", "item", "add", "batch norm"])
def test_layers_that_change_their_tensors_are_refused(gpu, how, mode):
    """The change would be gone with the next copy; a batch norm in train mode is the common case."""
    layer = nn.BatchNorm1d(5) if how == "batch norm" else Counts(how)
    model, x = lesson.StreamedLayers([nn.Linear(W, W), layer]), batch()
    for _ in range(2):
        with pytest.raises(RuntimeError, match=f"{type(layer).__name__} changed its own tensors"), mode():
            model(x)
    layer.how = ""
    layer.eval()
    with mode():
        assert torch.equal(model(x), model(x)) and gpu.hazards == []


@pytest.mark.parametrize("device", ["meta", "cuda"])
def test_weights_elsewhere_are_refused_before_anything_is_changed(gpu, device):
    layers = [nn.ReLU(), nn.Linear(W, W), nn.Sequential(nn.Linear(W, W).to(device))]
    with pytest.raises(ValueError, match=rf"^0.weight of layer 2 is on {device}.*host memory"):
        lesson.StreamedLayers(layers)
    assert not layers[1].weight.is_pinned() and "forward" not in vars(layers[1])


@pytest.mark.parametrize("layers", [[], [nn.ReLU()], [nn.ReLU(), nn.Identity()]])
def test_nothing_to_stream(gpu, layers):
    with pytest.raises(ValueError, match="none of the layers has weights"):
        lesson.StreamedLayers(layers)


@pytest.mark.parametrize(("slots", "error"), [(0, ValueError), (-2, ValueError), (1.5, TypeError), ("2", TypeError)])
def test_slots_are_a_whole_number_from_one_up(gpu, slots, error):
    layers = build([])
    with pytest.raises(error, match=r"a ring of 1 layers and 0 buffers|integer"):
        lesson.StreamedLayers(layers, slots)
    assert agree(lesson.StreamedLayers(layers, 1), resident(build([])), batch())


def test_a_layer_belongs_to_one_stream_of_layers(three):
    model, layers, there = three
    with pytest.raises(ValueError, match=r"layer 1 \(Linear\) is no nn.Module, or streamed already"):
        lesson.StreamedLayers([nn.Linear(W, W), layers[0]])
    with pytest.raises(ValueError, match=r"layer 0 .* is no nn.Module"):
        lesson.StreamedLayers([torch.relu, nn.Linear(W, W)])
    assert agree(model, there, batch())


def test_a_layer_inside_of_another_is_refused_when_called(gpu):
    outer = mlp(W)
    model = lesson.StreamedLayers([outer, outer[2]])
    for _ in range(2):
        with pytest.raises(RuntimeError, match="called inside of another"), torch.no_grad():
            model(batch())


@pytest.mark.parametrize("take", [copy.deepcopy, copy.copy, pickle.dumps])
def test_streamed_layers_are_not_copied(three, take):
    model, layers, there = three
    for thing in (model, layers[0]) if take is not copy.copy else (model,):
        with pytest.raises(TypeError, match="copy them before they are streamed"):
            take(thing)
    assert agree(model, there, batch())
