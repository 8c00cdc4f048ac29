"""Tensors made in inference mode: on the simulated device they are what they are on the CPU."""

from __future__ import annotations

import copy
import operator
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import busy
from torch import nn
from torch.nn import functional as F

from utils import simgpu

MODES = {"normal": nullcontext, "no_grad": torch.no_grad, "inference": torch.inference_mode}
SIZE = 4


def inference(make, *args, **kwargs):
    """What ``make`` makes in inference mode."""
    with torch.inference_mode():
        return make(*args, **kwargs)


def outcome(call):
    """What a call gives, or what it complains about."""
    try:
        return call()
    except RuntimeError as error:
        text = str(error)
        known = ("Inplace update to inference tensor", "Inference tensors cannot be saved", "do not track version",
                 "requires_grad=True on inference tensor")
        found = [words for words in known if words in text]
        if not found:
            raise
        return found[0]


def on_both(program):
    """What a program gives on the CPU and on the simulated device."""
    with simgpu.session(simgpu.RTX_5060_LAPTOP):
        return program("cpu"), program("cuda")


# programs of a few steps

STEPS = {       # what a step makes of two tensors of SIZE elements
    "new": lambda x, y: torch.ones(SIZE, device=x.device),
    "like": lambda x, y: torch.zeros_like(x),
    "sum": operator.add,
    "clone": lambda x, y: x.clone(),
    "product": lambda x, y: (x.view(2, 2) @ y.view(2, 2)).flatten(),
    "norm": lambda x, y: F.rms_norm(x, (SIZE,)),
    "copy": lambda x, y: copy.deepcopy(x),
    "view": lambda x, y: x.view(2, 2).t().t().view(-1),
    "slice": lambda x, y: x[:],
    "parts": lambda x, y: x.unsqueeze(0).split(1)[0].unbind()[0],
    "detach": lambda x, y: x.detach(),
    "data": lambda x, y: x.data,
    "part of data": lambda x, y: x.data[:],
    "change data": lambda x, y: x.data.add_(1).new_ones(SIZE),
    "change part of data": lambda x, y: x.data[1:].add_(1).new_ones(SIZE),
    "type": lambda x, y: x.view(torch.int32).view(torch.float32),
    "contiguous": lambda x, y: x.contiguous().to(y.device).reshape(SIZE),
    "add_": lambda x, y: x.add_(1),
    "copy_": lambda x, y: x.copy_(y),
    "part_": lambda x, y: x[1:3].mul_(2).new_ones(SIZE),
    "set": lambda x, y: operator.setitem(x, 2, 7.0),
    "set all": lambda x, y: operator.setitem(x, slice(1, None), (y + 1)[:-1]),
    "put": lambda x, y: operator.setitem(x, torch.tensor([0, 1], device=x.device), 5.0),
    "out": lambda x, y: torch.add(y, 1, out=x),
    "ones": lambda x, y: torch.ones(SIZE, out=x),
    "foreach": lambda x, y: operator.getitem(torch._foreach_add_([x], 1), 0),
    "foreach copy": lambda x, y: operator.getitem(torch._foreach_copy_([x], [y]), 0),
}


def run(steps, device):
    """What each step of a program gave, the changes that its first tensors count, and the tensors that it leaves.

    Changes through ``data``, and through views as another dtype, are counted for the memory here, not on the CPU.
    """
    made, seen = [torch.arange(float(SIZE), device=device), inference(torch.ones, SIZE, device=device)], []
    for mode, word, one, other in steps:
        x, y = made[one % len(made)], made[other % len(made)]
        with MODES[mode]():
            result = outcome(lambda: STEPS[word](x, y))     # noqa: B023
        if isinstance(result, torch.Tensor):
            made.append(result)
            result = result.is_inference()
        seen.append((word, result))
    own = any(word == "type" or "data" in word for _, word, *_ in steps)
    return seen, [] if own else [outcome(lambda: made[0]._version), outcome(lambda: made[1]._version)], [
        (t.is_inference(), torch.is_inference(t), t.tolist()) for t in made
    ]


@settings(max_examples=150)
@given(st.lists(st.tuples(st.sampled_from(list(MODES)), st.sampled_from(list(STEPS)), st.integers(0, 20),
                          st.integers(0, 20)), max_size=8))
def test_programs_behave_as_on_the_cpu(steps):
    cpu, cuda = on_both(lambda device: run(steps, device))
    assert cuda == cpu


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("word", STEPS)
@pytest.mark.parametrize("which", [0, 1], ids=["normal", "inference"])
def test_every_step_behaves_as_on_the_cpu(which, word, mode):
    cpu, cuda = on_both(lambda device: run([(mode, word, which, 1 - which)], device))
    assert cuda == cpu


def test_the_oracle_sees_each_kind_of_outcome():
    found = {run([(mode, word, which, which)], "cpu")[0][0][1]
             for mode in MODES for word in STEPS for which in (0, 1)}
    assert {True, False, "Inplace update to inference tensor"} <= found


# what the programs leave out

def test_a_view_as_another_dtype_is_made_anew(gpu):
    def found(device):
        result = []
        for x in (torch.ones(SIZE, device=device), inference(torch.ones, SIZE, device=device)):
            for mode in MODES:
                with MODES[mode]():
                    result.append((mode, x.view(torch.int32).is_inference(), x.view(torch.float32).is_inference()))
        return result

    assert found("cuda") == found("cpu") and ("inference", True, True) in found("cpu")


@pytest.mark.parametrize("mode", MODES)
def test_data_that_is_put_into_another_kind_of_tensor(mode):
    def found(device):
        result = []
        for make in (nullcontext(), torch.inference_mode()), (torch.inference_mode(), nullcontext()):
            with make[0]:
                old = nn.Parameter(torch.ones(SIZE, device=device), requires_grad=False)
            with make[1]:
                new = torch.full((SIZE,), 3.0, device=device)
            with MODES[mode]():
                old.data = new
            result += [isinstance(old, nn.Parameter), old.is_inference(), old.requires_grad, old.tolist(),
                       old.data_ptr() == new.data_ptr(), outcome(lambda: old.add_(1).tolist())]     # noqa: B023
        return result

    cpu, cuda = on_both(found)
    assert cuda == cpu and True in cpu and False in cpu


@pytest.mark.parametrize("mode", MODES)
def test_copies_of_the_python_object(mode):
    def found(device):
        normal, other = torch.ones(SIZE, device=device), inference(torch.ones, SIZE, device=device)
        with MODES[mode]():
            tensors = normal, other, nn.Parameter(normal), nn.Parameter(other, False)
            return [copy.copy(t).is_inference() for t in tensors]

    cpu, cuda = on_both(found)
    assert cuda == cpu


CALLS = {
    "mul": lambda w, x: w * x,
    "add": lambda w, x: w + x,
    "linear": lambda w, x: F.linear(x.view(1, SIZE), w.view(1, SIZE)),
    "bias": lambda w, x: F.linear(x.view(1, SIZE), torch.ones_like(x).view(1, SIZE), w[:1]),
    "mm": lambda w, x: x.view(1, SIZE) @ w.view(SIZE, 1),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CALLS)
def test_what_autograd_would_keep(name, mode):
    def found(device):
        weight = torch.ones(SIZE, device=device, requires_grad=True)
        x = inference(torch.ones, SIZE, device=device)
        with MODES[mode]():
            result = outcome(lambda: CALLS[name](weight, x))
        return result if isinstance(result, str) else result.is_inference()

    cpu, cuda = on_both(found)
    assert cuda == cpu
    if mode == "normal":
        assert isinstance(cpu, str) is (name not in ("add", "bias"))


def test_a_fused_norm_keeps_no_inference_tensor(gpu):
    weight = torch.ones(SIZE, device="cuda", requires_grad=True)
    x = inference(torch.ones, SIZE, device="cuda")
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward: rms_norm"):
        torch.rms_norm(x, (SIZE,), weight)
    assert inference(torch.rms_norm, x, (SIZE,), weight).is_inference()


def test_attention_keeps_no_inference_tensor(gpu):
    q = torch.ones(1, 1, 2, 8, device="cuda", requires_grad=True)
    k = inference(torch.ones, 1, 1, 2, 8, device="cuda")
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward: scaled_dot_product"):
        F.scaled_dot_product_attention(q, k, k)
    with torch.no_grad():
        assert F.scaled_dot_product_attention(q, k, k).sum().item() == 16


def test_no_gradients_for_inference_tensors():
    cpu, cuda = on_both(lambda device: outcome(lambda: inference(torch.ones, SIZE, device=device).requires_grad_(True)))
    assert cuda == cpu == "requires_grad=True on inference tensor"


def test_a_module_that_was_moved_in_inference_mode(gpu):
    layer = inference(lambda: nn.Linear(2, 2).to("cuda"))
    moved = nn.Linear(2, 2)
    with torch.inference_mode():
        moved.to("cuda")
    for module in (layer, moved):
        assert all(p.is_inference() for p in module.parameters())
        with torch.no_grad(), pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
            module.weight.zero_()
        with torch.no_grad():
            assert not module(torch.ones(1, 2, device="cuda")).is_inference()


def test_the_change_is_made_before_the_error(gpu):
    x = inference(torch.zeros, SIZE, device="cuda")
    with pytest.raises(RuntimeError, match="InferenceMode: add_ changed a tensor"):
        x.add_(1)
    assert x.tolist() == [1] * SIZE


def test_where_the_mode_is_off_tensors_are_ordinary(gpu):
    with torch.inference_mode():
        make = torch.inference_mode(False)(lambda: (torch.ones(SIZE, device="cuda"), torch.ones(SIZE).pin_memory()))
        x, host = make()
        x[1:].add_(1)
    x.add_(1)
    host.add_(1)
    assert not x.is_inference() and not host.is_inference() and x._version == 2 and x.tolist() == [2, 3, 3, 3]


# pinned memory, and what comes back to the host

PINNED = {
    "empty": lambda: torch.empty(SIZE, pin_memory=True),
    "ones": lambda: torch.ones(SIZE, pin_memory=True),
    "like": lambda: torch.zeros_like(torch.ones(SIZE), pin_memory=True),
    "tensor": lambda: torch.tensor([1.0] * SIZE, pin_memory=True),
    "pin_memory": lambda: torch.ones(SIZE, dtype=torch.bfloat16).pin_memory(),
    "to": lambda: torch.ones(SIZE, device="cuda").to("cpu", non_blocking=True),
    "no elements": lambda: torch.empty(0, pin_memory=True),
}


@pytest.mark.parametrize("name", PINNED)
def test_pinned_tensors(gpu, name):
    host = inference(PINNED[name])
    torch.cuda.synchronize()
    assert host.is_pinned() and host.is_inference() and host[:].is_inference()
    for change in (lambda: host.fill_(2), lambda: host.copy_(torch.ones(host.shape, device="cuda"))):
        with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
            change()
    with torch.inference_mode():
        host.fill_(2)
    assert set(host.tolist()) <= {2}
    host = PINNED[name]()
    torch.cuda.synchronize()
    assert host.is_pinned() and not host.is_inference() and host.fill_(3) is host


@pytest.mark.parametrize("read", [lambda x: x.cpu(), lambda x: x.to("cpu"), lambda x: x.to("cpu", torch.float64)])
def test_what_comes_back_to_the_host(gpu, read):
    x = torch.ones(SIZE, device="cuda")
    assert inference(read, x).is_inference() and not read(x).is_inference()
    assert not read(inference(torch.ones, SIZE, device="cuda")).is_inference()


def test_pinned_memory_stays_what_it_is_when_pinned_again(gpu):
    host = torch.ones(SIZE).pin_memory()
    assert inference(host.pin_memory) is host and not host.is_inference()


@pytest.mark.parametrize("later", MODES)
def test_copies_both_ways_may_end_in_any_mode(gpu, later):
    with torch.inference_mode():
        host, x = torch.ones(SIZE).pin_memory(), torch.zeros(SIZE, device="cuda")
        busy()
        x.copy_(host, non_blocking=True)
        x.add_(1)
        host.copy_(x, non_blocking=True)
    with MODES[later]():
        torch.cuda.synchronize()
        assert host.tolist() == x.tolist() == [2] * SIZE and gpu.hazards == []


def test_a_race_on_a_pinned_inference_tensor_is_found(gpu):
    with torch.inference_mode():
        host = torch.zeros(SIZE).pin_memory()
        host.copy_(torch.ones(SIZE, device="cuda"), non_blocking=True)
        assert all(value != value for value in host.tolist())
    torch.cuda.synchronize()
    assert host.tolist() == [1] * SIZE and {h.kind for h in gpu.hazards} == {"RAW"}


# graphs

def test_a_graph_of_inference_tensors_replays(gpu):
    with torch.inference_mode():
        x = torch.ones(SIZE, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 2
        x.fill_(3)
    graph.replay()
    assert y.is_inference() and y.tolist() == [6] * SIZE
