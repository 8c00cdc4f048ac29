"""Lesson 04's streamed modules: any layers, as they are, bit-equal to resident ones, called in any way."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from simgpu_programs.onload import RATIOS, profile
from small_layers import MAKERS, MODES, W, agree, batch, build, call, resident, transformer
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


# any layers


@settings(max_examples=20)
@given(st.lists(st.sampled_from((*MAKERS, "again", "tied")), max_size=5), st.integers(1, 4), st.booleans(),
       st.sampled_from(RATIOS), st.sampled_from(("exact", "adversarial")), st.lists(st.tuples(st.integers(1, 3),
       st.integers(0, 1), st.booleans(), st.sampled_from(MODES)), min_size=1, max_size=3))
@example(["mixed", "again", "tied", "none", "within"], 2, True, 1, "exact", [(2, 0, False, torch.no_grad)] * 3)
@example(["transformer", "large", "transposed", "again", "bn", "tied"], 3, False, 0.1, "adversarial",
         [(1, 0, False, torch.no_grad), (3, 1, False, torch.inference_mode), (2, 0, False, torch.no_grad)])
def test_any_layers_are_bit_equal_to_resident_ones(kinds, slots, prefetch, ratio, numerics, calls):
    with simgpu.session(profile(ratio), numerics=numerics) as gpu:
        layers = build(kinds)
        there = resident(layers)
        model = lesson.StreamedLayers(layers, slots, prefetch)
        streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
        xs = [batch(rows, seed) for seed, (rows, *_) in enumerate(calls)]
        torch.cuda.synchronize()
        found = []
        for x, (_, stream, sync, mode) in zip(xs, calls, strict=True):
            if sync:
                torch.cuda.synchronize()
            with torch.cuda.stream(streams[stream]), mode():
                found.append(model(x))
        torch.cuda.synchronize()
        assert gpu.hazards == []
        for x, y, (_, _, _, mode) in zip(xs, found, calls, strict=True):
            with mode():
                assert torch.equal(y, call(there, x))
        assert gpu.hazards == []


def test_memory_is_slots_of_the_largest_layer_and_a_copy_per_block(gpu):
    layers = build(["large", "tied", "small", "none"])
    before = torch.cuda.memory_allocated()
    model = lesson.StreamedLayers(layers, 3)
    (large,) = (sum(t.numel() * 4 for t in layers[1].parameters()),)
    size = model.ring.buffers[0].numel()
    assert len(model.ring.buffers) == 3 and large <= size < large + 4 * lesson.ALIGN
    assert torch.cuda.memory_allocated() - before == 3 * -(-size // 512) * 512      # the allocator's steps
    x = batch()
    addresses = [buffer.data_ptr() for buffer in model.ring.buffers]
    with torch.no_grad():
        used = []
        for _ in range(3):
            y = model(x)
            del y
            used.append(torch.cuda.memory_allocated())
    assert len(set(used)) == 1 and [buffer.data_ptr() for buffer in model.ring.buffers] == addresses
    # 4 layers with weights; the first and the third bring a bias of their own beside the weight that they share
    copies = [kind for kind, nbytes in zip(gpu.trace().columns["kind"], gpu.trace().columns["bytes"], strict=True)
              if kind == "h2d" and nbytes != x.nbytes]
    assert len(copies) == 6 * 3 + (2 + 1)     # and two layers of the next call


def test_weights_become_views_of_pinned_memory_and_stay_themselves(gpu):
    layers = build(["within", "tied", "transposed"])
    before = {name: (id(t), t.stride(), t.requires_grad, t.clone()) for name, t in
              nn.ModuleList(layers).state_dict(keep_vars=True).items()}
    lesson.StreamedLayers(layers)
    after = nn.ModuleList(layers).state_dict(keep_vars=True)
    assert before.keys() == after.keys() and all(t.is_pinned() and t.is_leaf for t in after.values())
    for name, t in after.items():
        assert before[name][:3] == (id(t), t.stride(), t.requires_grad) and torch.equal(t, before[name][3])
    assert layers[0].weight is layers[2].weight and layers[1].a.weight is layers[1].b.weight
    assert {t.storage_offset() * t.element_size() % lesson.ALIGN for t in after.values()} == {0}


def test_channels_last_weights_stay_so(gpu):
    layers = [nn.Conv2d(8, 8, 3, padding=1).to(memory_format=torch.channels_last) for _ in range(3)]
    there, x = resident(layers), torch.randn(2, 8, 4, 4).to(memory_format=torch.channels_last).cuda()
    model = lesson.StreamedLayers(layers)
    assert agree(model, there, x) and layers[0].weight.is_contiguous(memory_format=torch.channels_last)
    for views in model.views[1].values():
        assert views["layer.weight"].stride() == layers[1].weight.stride()


def test_pack_and_place_share_one_block_per_set_of_users(gpu):
    layers = build(["tied", "none", "tied"])
    layers[1].register_buffer("empty", torch.empty(0, 3))
    blocks = lesson.pack(layers)
    assert [len(group) for group in blocks] == [2, 2, 0, 2] and blocks[0][0] is blocks[1][0] is blocks[3][0]
    memory = torch.zeros(sum(block.bytes for block in blocks[1]), dtype=torch.uint8)
    for block, piece in lesson.pieces(blocks[1], memory):
        piece.copy_(block.host)
    placed = lesson.place(layers[1], blocks[1], memory)
    assert placed.keys() == lesson.tensors_of(layers[1]).keys() and placed["empty"].shape == (0, 3)
    assert all(torch.equal(placed[name], t) for name, t in lesson.tensors_of(layers[1]).items())


def test_shapes_only(gpu):
    with simgpu.session(simgpu.H200, numerics="shapes") as shapes:
        model = lesson.StreamedLayers(build(["transformer", "mixed", "none"]))
        with torch.inference_mode():
            assert [model(batch(rows)).shape[0] for rows in (2, 3, 1)] == [2, 3, 1]
        assert shapes.hazards == []


# called by a model's own loop


def test_a_sequential_and_an_encoder_call_their_layers_themselves(gpu):
    models = [nn.Sequential(nn.Linear(W, W), nn.GELU(), nn.LayerNorm(W)),
              nn.TransformerEncoder(transformer(), 3, enable_nested_tensor=False).eval()]
    for model, layers in zip(models, (models[0], models[1].layers), strict=True):
        there = copy.deepcopy(model).requires_grad_(False).cuda()
        lesson.StreamedLayers(layers)
        assert agree(model, [there], batch())


def test_a_loop_that_passes_more_and_gets_tuples(gpu):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up, self.down = nn.RMSNorm(W), nn.Linear(W, 40, bias=False), nn.Linear(40, W, bias=False)

        def forward(self, x, cos=None, *, layer=0, self_only=False):
            return (x + self.down(torch.nn.functional.silu(self.up(self.norm(x) * cos))) + layer, self_only)

    layers, cos = [Block() for _ in range(3)], batch(1, seed=9)
    there = resident(layers)
    lesson.StreamedLayers(layers)
    for _ in range(2):
        x = y = batch()
        with torch.inference_mode():
            for i in range(3):
                x, _ = layers[i](x, cos, layer=i)
                y, _ = there[i](y, cos, layer=i)
        assert torch.equal(x, y)
    assert gpu.hazards == []


def test_hooks_run_once_and_other_layers_are_left_alone(three):
    model, layers, there = three
    seen = []
    layers[1].register_forward_hook(lambda module, args, y: seen.append(type(module)))
    assert agree(model, there, batch(), times=2) and seen == [nn.Sequential] * 2


def test_a_loop_that_stops_early_skips_or_repeats(three):
    _, layers, there = three
    x = batch()
    with torch.no_grad():
        for order in ([0, 1], [0, 2], [2, 2, 0], [1], [0, 1, 2], [0, 1, 2]):
            assert torch.equal(call([layers[i] for i in order], x), call([there[i] for i in order], x))
    assert simgpu.active().hazards == []
