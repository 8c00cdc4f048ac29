"""Attention on the simulated device: one kernel for every causal mask, priced by what the mask leaves, right values."""

from __future__ import annotations

import subprocess
import sys
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn.attention.bias import CausalBias, CausalVariant, causal_lower_right, causal_upper_left

from utils import simgpu

CUDA = {"device": "cuda"}
NAME = "scaled_dot_product_attention"
GRADS = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode, "grad": torch.enable_grad}
TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}
# Only products, or only bytes, take time: 1 FLOP or 1 byte is 1 µs.
FLOPS_ONLY = replace(simgpu.H200, flops={"default": 1e6}, gemm_efficiency=1.0, memory_bytes_per_s=1e18,
                     kernel_latency_ns=0)
BYTES_ONLY = replace(simgpu.H200, flops={"default": 1e18}, memory_bytes_per_s=1e6, memory_efficiency=1.0,
                     kernel_latency_ns=0)


@pytest.fixture(params=["exact", "adversarial"])
def gpu(request):
    torch.manual_seed(0)
    with simgpu.session(simgpu.H200, numerics=request.param) as device, torch.no_grad():
        yield device


def bias_of(alignment: str, queries: int, keys: int) -> CausalBias:
    with warnings.catch_warnings():     # of torch, when there are more queries than keys
        warnings.simplefilter("ignore")
        return {"lower right": causal_lower_right, "upper left": causal_upper_left}[alignment](queries, keys)


def mask_of(alignment: str, queries: int, keys: int) -> torch.Tensor:
    """Row i sees the keys up to i, counted from the corner."""
    last = torch.arange(queries)[:, None] + (keys - queries if alignment == "lower right" else 0)
    return torch.arange(keys)[None] <= last


def oracle(q, k, v, mask, scale=None):
    """Attention by its definition, in double precision; a query that sees nothing gets zeros."""
    q, k, v = (t.double() for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    scores = (q @ k.mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
    return scores.masked_fill(~mask, float("-inf")).softmax(-1).nan_to_num() @ v


def kernels(gpu, call):
    """The kernels of ``call`` and its result."""
    torch.cuda.synchronize()
    done = len(gpu.trace().columns["name"])
    result = call()
    torch.cuda.synchronize()
    columns = {word: list(values)[done:] for word, values in gpu.trace().columns.items()}
    rows = [SimpleNamespace(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]
    return [row for row in rows if row.kind == "kernel"], result


calls = st.fixed_dictionaries({
    "alignment": st.sampled_from(["lower right", "upper left"]), "queries": st.integers(1, 9),
    "keys": st.integers(1, 9), "kv_heads": st.integers(1, 3), "group": st.integers(1, 3),
    "dtype": st.sampled_from(list(TOLERANCE)), "grad": st.sampled_from(list(GRADS)),
    "numerics": st.sampled_from(["exact", "adversarial"]), "by": st.sampled_from(["place", "keyword", "keywords"]),
    "scale": st.sampled_from([None, 0.7]), "rows": st.integers(1, 2),
})


@settings(max_examples=60, deadline=None, derandomize=True)
@given(calls)
def test_a_causal_bias_is_one_kernel_with_the_values_of_the_mask(call):
    c = SimpleNamespace(**call)
    torch.manual_seed(c.queries * 10 + c.keys)
    q = torch.randn(c.rows, c.kv_heads * c.group, c.queries, 8).to(c.dtype)
    k = torch.randn(c.rows, c.kv_heads, c.keys, 8).to(c.dtype)
    v = torch.randn(c.rows, c.kv_heads, c.keys, 6).to(c.dtype)
    bias, mask = bias_of(c.alignment, c.queries, c.keys), mask_of(c.alignment, c.queries, c.keys)
    more = {"scale": c.scale, "enable_gqa": c.group > 1}
    with simgpu.session(simgpu.H200, numerics=c.numerics) as gpu, GRADS[c.grad]():
        a, b, d = (t.to("cuda") for t in (q, k, v))
        attend = {
            "place": lambda mask: F.scaled_dot_product_attention(a, b, d, mask, **more),
            "keyword": lambda mask: F.scaled_dot_product_attention(a, b, d, attn_mask=mask, **more),
            "keywords": lambda mask: F.scaled_dot_product_attention(attn_mask=mask, value=d, key=b, query=a, **more),
        }[c.by]
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        ran, found = kernels(gpu, lambda: attend(bias))
        assert [row.name for row in ran] == [NAME]
        block = -(-found.numel() * found.element_size() // 512) * 512
        assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated() == before + block
        assert found.dtype is c.dtype and found.shape == (c.rows, c.kv_heads * c.group, c.queries, 6)
        assert torch.equal(found.cpu(), attend(mask.to("cuda")).cpu())
        assert gpu.hazards == [] and gpu.notes == []
    assert torch.allclose(found.cpu().double(), oracle(q, k, v, mask, c.scale), atol=TOLERANCE[c.dtype], rtol=0)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(queries=st.integers(1, 40), keys=st.integers(1, 40), group=st.integers(1, 3),
       how=st.sampled_from(["lower right", "upper left", "is_causal", "all"]))
@example(queries=4, keys=4, group=2, how="all")     # enable_gqa=True is no mask
def test_only_what_the_mask_leaves_costs_products(queries, keys, group, how):
    with simgpu.session(FLOPS_ONLY, numerics="shapes") as gpu, torch.inference_mode():
        q, k, v = torch.empty(2, 2 * group, queries, 8, **CUDA), *torch.empty(2, 2, 2, keys, 8, **CUDA)
        mask = {"is_causal": {"is_causal": True}, "all": {}}.get(how) or {}
        if how in ("lower right", "upper left"):
            mask = {"attn_mask": bias_of(how, queries, keys)}
        (kernel,), out = kernels(gpu, lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=group > 1, **mask))
        seen = queries * keys if how == "all" else int(mask_of(how, queries, keys).sum())
        assert kernel.name == NAME and out.shape == (2, 2 * group, queries, 8)
        assert kernel.duration_us == pytest.approx(2 * 2 * group * seen * 2 * (8 + 8))


def test_a_broadcast_query_costs_what_its_copies_do():
    with simgpu.session(FLOPS_ONLY, numerics="shapes") as gpu:
        q, k = torch.empty(1, 2, 3, 8, **CUDA), torch.empty(4, 2, 3, 8, **CUDA)
        (one,), _ = kernels(gpu, lambda: F.scaled_dot_product_attention(q, k, k))
        (other,), _ = kernels(gpu, lambda: F.scaled_dot_product_attention(q.expand_as(k), k, k))
        assert one.duration_us == other.duration_us == 4 * 2 * 9 * 2 * 16


def test_views_are_priced_by_the_bytes_that_they_hold():
    with simgpu.session(BYTES_ONLY, numerics="shapes") as gpu, torch.inference_mode():
        cache = torch.empty(100, 3, 4, 8, **CUDA)      # (positions, q k v, heads, head size)
        q, k, v = cache[10:42].permute(1, 2, 0, 3)     # (heads, positions, head size), rows of 32 apart by 96
        bias = causal_lower_right(5, 32)
        (view,), _ = kernels(gpu, lambda: F.scaled_dot_product_attention(q[:, -5:], k, v, bias))
        dense = [t.contiguous() for t in (q[:, -5:], k, v)]
        (plain,), _ = kernels(gpu, lambda: F.scaled_dot_product_attention(*dense, bias))
        assert view.duration_us == plain.duration_us == 4 * 4 * 8 * (5 + 32 + 32 + 5)
        one = [t[:1].expand(4, -1, -1) for t in (k, v)]     # one head for all, read once
        (shared,), _ = kernels(gpu, lambda: F.scaled_dot_product_attention(q[:, -5:], *one, bias))
        assert shared.duration_us == 4 * 8 * (4 * 5 + 32 + 32 + 4 * 5)


def test_permuted_views_have_the_values_of_their_copies(gpu):
    cache = torch.randn(20, 3, 4, 8)
    q, k, v = cache[3:14].permute(1, 2, 0, 3)
    a, b, c = cache.to("cuda")[3:14].permute(1, 2, 0, 3)
    found = F.scaled_dot_product_attention(a[:, -3:], b, c, causal_lower_right(3, 11))
    assert torch.allclose(found.cpu().double(), oracle(q[:, -3:], k, v, mask_of("lower right", 3, 11)), atol=1e-6)
    assert gpu.hazards == [] and gpu.notes == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_rounded_once_whatever_tells_the_mask(gpu, dtype):
    q, k, v = torch.randn(1, 8, 96, 64, **CUDA).to(dtype), *torch.randn(2, 1, 2, 200, 64, **CUDA).to(dtype)
    masks = causal_lower_right(96, 200), mask_of("lower right", 96, 200).to("cuda")
    by_bias, by_mask = (F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True).cpu() for mask in masks)
    assert torch.equal(by_bias, by_mask)


# taint and hazards


@pytest.mark.parametrize("queries", [2, 6])
def test_taint_stays_in_its_row_and_head(gpu, queries):
    """As with a mask in memory: a bad query spoils its row; a bad key or value, seen or not, its head."""
    q, k, v = torch.ones(1, 4, queries, 8, **CUDA), torch.ones(1, 2, 6, 8, **CUDA), torch.ones(1, 2, 6, 8, **CUDA)
    bad = torch.empty(1, 4, queries, 8, **CUDA)
    bad[:, :, 0] = 1
    rows = F.scaled_dot_product_attention(bad, k, v, causal_lower_right(queries, 6), enable_gqa=True).cpu()
    assert rows[:, :, 0].eq(1).all() and rows[:, :, 1:].isnan().all()
    for place in range(2):
        half = torch.empty(1, 2, 6, 8, **CUDA)
        half[:, 0] = 1
        half[:, 1, :5] = 1
        inputs = [q, half, v] if place == 0 else [q, k, half]
        heads = F.scaled_dot_product_attention(*inputs, causal_lower_right(queries, 6), enable_gqa=True).cpu()
        assert heads[:, :2].eq(1).all() and heads[:, 2:].isnan().all()
    assert {note.kind for note in gpu.notes} == {"read before written"}


def test_a_race_on_the_keys_is_found(gpu):
    q, source = torch.ones(1, 2, 3, 8, **CUDA), torch.ones(1, 2, 5, 8).pin_memory()
    k, v, side = torch.zeros(1, 2, 5, 8, **CUDA), torch.ones(1, 2, 5, 8, **CUDA), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        k.copy_(source, non_blocking=True)
    out = F.scaled_dot_product_attention(q, k, v, causal_lower_right(3, 5))
    assert [(h.kind, h.second.name) for h in gpu.hazards] == [("RAW", NAME)]
    if gpu.machine.numerics == "adversarial":
        assert out.isnan().all().item()


def test_a_captured_call_reads_its_inputs_at_replay(gpu):
    k, v, q = torch.randn(1, 2, 7, 8), torch.randn(1, 2, 7, 8), torch.zeros(1, 4, 3, 8, **CUDA)
    keys, values, graph = k.to("cuda"), v.to("cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = F.scaled_dot_product_attention(q, keys, values, causal_lower_right(3, 7), enable_gqa=True)
    for _ in range(2):
        fresh = torch.randn(1, 4, 3, 8)
        q.copy_(fresh)
        ran, _ = kernels(gpu, graph.replay)
        assert [row.name.split("node ")[1] for row in ran] == [NAME]
        assert torch.allclose(out.cpu().double(), oracle(fresh, k, v, mask_of("lower right", 3, 7)), atol=1e-6)
    assert gpu.hazards == []


# what torch refuses, and lengths that are not the tensors'


def qkv(queries: int, keys: int) -> list[torch.Tensor]:
    return [torch.randn(1, 2, length, 8) for length in (queries, keys, keys)]


@pytest.mark.parametrize("bias", [causal_lower_right(3, 5), causal_upper_left(3, 5)])
def test_is_causal_beside_a_bias_is_the_error_of_torch(gpu, bias):
    tensors = qkv(3, 5)
    for inputs in (tensors, [t.to("cuda") for t in tensors]):
        with pytest.raises(ValueError, match="CausalBias should not be used with causal=True"):
            F.scaled_dot_product_attention(*inputs, bias, 0.0, True)
        with pytest.raises(ValueError, match="CausalBias should not be used with causal=True"):
            F.scaled_dot_product_attention(*inputs, attn_mask=bias, is_causal=True)


REFUSED = {
    "dtypes": (lambda q, k, v: (q, k.half(), v), "dtype"),
    "devices": (lambda q, k, v: (q, k.cpu(), v), "one device"),
    "dimensions": (lambda q, k, v: (q[0, 0, 0], k, v), "dimensions"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_inputs_that_do_not_go_together_are_the_error_of_torch(gpu, case):
    change, text = REFUSED[case]
    q, k, v = (t.to("cuda") for t in qkv(3, 5))
    with pytest.raises(ValueError, match=text):
        F.scaled_dot_product_attention(*change(q, k, v), causal_lower_right(3, 5))
    with pytest.raises(RuntimeError, match="do not fit"):
        F.scaled_dot_product_attention(q, k, v[:, :, :4], causal_lower_right(3, 5))


def test_an_altered_variant_is_the_error_of_torch(gpu):
    bias = causal_lower_right(3, 5)
    bias.variant = 7
    for move in (lambda t: t, lambda t: t.to("cuda")):
        with pytest.raises(ValueError, match=r"CausalBias\.variant must be a CausalVariant"):
            F.scaled_dot_product_attention(*map(move, qkv(3, 5)), bias)


@pytest.mark.parametrize(("made", "used", "acts_as"), [
    ((3, 7), (3, 5), "lower right"),    # fused kernels go by the tensors
    ((3, 7), (5, 5), "upper left"),
    ((5, 5), (3, 5), "upper left"),     # a square bias means is_causal=True, whatever it is used with
])
def test_lengths_of_a_bias_decide_as_in_torch_and_are_noted(gpu, made, used, acts_as):
    tensors = qkv(*used)
    found = F.scaled_dot_product_attention(*(t.to("cuda") for t in tensors), causal_lower_right(*made))
    assert torch.allclose(found.cpu().double(), oracle(*tensors, mask_of(acts_as, *used)), atol=1e-6)
    (note,) = gpu.notes
    assert note.kind == "attention bias" and f"causal_lower_right({used[0]}, {used[1]})" in note.text
    assert (made[0] == made[1]) == ("is_causal=True" in note.text)


def test_an_upper_left_bias_of_other_lengths_is_no_matter(gpu):
    tensors = qkv(3, 5)
    found = F.scaled_dot_product_attention(*(t.to("cuda") for t in tensors), causal_upper_left(9, 9))
    assert torch.allclose(found.cpu().double(), oracle(*tensors, mask_of("upper left", 3, 5)), atol=1e-6)
    assert gpu.notes == []


def test_torch_still_warns_of_queries_without_keys(gpu):
    with pytest.warns(UserWarning, match="seq_len_q > seq_len_kv"):
        causal_lower_right(5, 3)


# biases and the CPU


def test_a_bias_on_the_cpu_is_as_ever(gpu):
    q, k, v = qkv(3, 5)
    bias, mask = causal_lower_right(3, 5), mask_of("lower right", 3, 5)
    right = F.scaled_dot_product_attention(q, k, v, mask)
    assert torch.equal(F.scaled_dot_product_attention(q, k, v, bias), right)
    pinned = k.pin_memory()
    assert torch.equal(F.scaled_dot_product_attention(q, pinned, v, attn_mask=bias), right)
    with pytest.raises(RuntimeError, match="must match"):
        F.scaled_dot_product_attention(q, k, v, causal_lower_right(3, 6))
    assert torch.equal(bias._materialize(), mask) and gpu.notes == [] and gpu.hazards == []


def test_a_bias_is_made_under_a_default_device_and_stays_what_it_is(gpu):
    with torch.device("cuda"):
        bias = causal_lower_right(3, 5)
    assert isinstance(bias, CausalBias) and bias.variant == CausalVariant.LOWER_RIGHT
    for move in (lambda: bias.to("cuda"), lambda: bias.cuda(), lambda: bias.to(torch.ones(1, **CUDA))):
        with pytest.raises(simgpu.Unsupported, match="CausalBias has no elements"):
            move()


def test_attention_without_a_bias_does_not_import_the_module_of_biases():
    program = (
        "import sys, torch\nfrom utils import simgpu\n"
        "with simgpu.session():\n"
        "    x = torch.ones(1, 1, 2, 8, device='cuda')\n"
        "    torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)\n"
        "print('torch.nn.attention.bias' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
