"""Values, taint and costs of the simulated device that once went wrong, kind by kind."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

CUDA = {"device": "cuda"}


def partly(*shape, dtype=torch.int64):
    """A device tensor whose first two rows are 1 and whose others nobody wrote."""
    made = torch.empty(*shape, dtype=dtype, **CUDA)
    made[:2] = 1
    return made


def index(*values):
    return torch.tensor(values, **CUDA)


def loud(value):
    """What a tainted element looks like."""
    return math.isnan(value) if isinstance(value, float) else value < -(10**6)


# partly written tensors: what is moved keeps its taint, element by element

MOVES = {
    "clone": (lambda k: k.clone()[:, 0], "1100"),
    "index": (lambda k: k[index(3, 0, 1)][:, 0], "011"),
    "index_select": (lambda k: k.index_select(0, index(3, 0, 1))[:, 0], "011"),
    "embedding": (lambda k: F.embedding(index(3, 0, 1), k)[:, 0], "011"),
    "flip": (lambda k: k.flip(0)[:, 0], "0011"),
    "roll": (lambda k: k.roll(1, 0)[:, 0], "0110"),
    "repeat": (lambda k: k.repeat(2, 1)[:, 0], "11001100"),
    "pad": (lambda k: F.pad(k, (1, 0), value=1)[:, 1], "1100"),
    "pad, the padding": (lambda k: F.pad(k, (1, 0), value=1)[:, 0], "1111"),
    "tril": (lambda k: k.tril()[:, 0], "1100"),
    "repeat_interleave": (lambda k: k.repeat_interleave(2, 0)[:, 0], "11110000"),
    "transpose": (lambda k: k.t().contiguous()[0], "1100"),
    "gather": (lambda k: k.gather(1, torch.zeros(4, 1, dtype=torch.int64, **CUDA))[:, 0], "1100"),
    "mask": (lambda k: k[torch.tensor([True, False, False, True], **CUDA)][:, 0], "10"),
    "mask of elements": (lambda k: k[torch.tensor([[True, False, False]] * 4, **CUDA)], "1100"),
    "masked_select": (lambda k: k.masked_select(torch.tensor([[True, False, False]], **CUDA)), "1100"),
    "cat": (lambda k: torch.cat([k, torch.ones_like(k)])[:, 0], "11001111"),
    "index_put": (lambda k: k.index_put((index(2),), index(1).to(k.dtype))[:, 0], "1110"),
    "scatter": (lambda k: k.scatter(0, torch.tensor([[3, 3, 3]], **CUDA), 1)[:, 0], "1101"),
    "index_copy_": (lambda k: k.index_copy_(0, index(2), torch.ones(1, 3, dtype=k.dtype, **CUDA))[:, 0], "1110"),
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32], ids=str)
@pytest.mark.parametrize("name", MOVES)
def test_moving_keeps_taint_by_element(gpu, name, dtype):
    move, clean = MOVES[name]
    values = move(partly(4, 3, dtype=dtype)).tolist()
    assert [value == 1 for value in values] == [flag == "1" for flag in clean]
    assert all(value == 1 or loud(value) for value in values)


def test_an_index_that_nobody_wrote_taints_what_it_fetches(gpu):
    ids, table = partly(4), torch.arange(12.0, **CUDA).reshape(4, 3)
    rows = [table[ids], table.index_select(0, ids), F.embedding(ids, table), table.gather(0, ids.unsqueeze(1))]
    for fetched in (*rows, table[:, partly(3)].t(), table[ids, partly(4)].unsqueeze(1)):
        assert fetched[:2].isnan().sum().item() == 0 and fetched[2:].isnan().all().item()


def test_a_mask_that_nobody_wrote_picks_nothing_that_is_known(gpu):
    mask = partly(4, dtype=torch.bool)
    assert all(map(loud, torch.ones(4, **CUDA)[mask].tolist()))


ROWS = {
    "argmax": lambda x: x.argmax(-1),
    "max": lambda x: x.max(-1).indices,
    "max values": lambda x: x.max(-1).values,
    "amax": lambda x: x.amax(-1),
    "sum": lambda x: x.sum(-1),
    "sum keepdim": lambda x: x.sum(-1, keepdim=True)[:, 0],
    "cumsum": lambda x: x.cumsum(-1)[:, -1],
    "topk": lambda x: x.topk(2).indices[:, 0],
    "topk values": lambda x: x.topk(2).values[:, 0],
    "sort": lambda x: x.sort(-1).values[:, 0],
    "argsort": lambda x: x.argsort(-1)[:, 0],
    "any": lambda x: x.any(-1).to(torch.int64),
    "floor_divide": lambda x: (x // x)[:, 0],
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32], ids=str)
@pytest.mark.parametrize("name", ROWS)
def test_rows_stay_apart(gpu, name, dtype):
    values = ROWS[name](partly(4, 3, dtype=dtype)).tolist()
    assert not any(map(loud, values[:2])) and all(map(loud, values[2:]))


def test_multinomial_keeps_rows_apart(gpu):
    drawn = partly(4, 3, dtype=torch.float32).multinomial(1)[:, 0].tolist()
    assert all(value in (0, 1, 2) for value in drawn[:2]) and all(map(loud, drawn[2:]))


def test_cumulative_sums_are_clean_up_to_the_taint(gpu):
    assert [loud(v) for v in partly(4).cumsum(0).tolist()] == [False, False, True, True]


# what operators read and write

LIKES = {
    "zeros_like": torch.zeros_like,
    "ones_like": torch.ones_like,
    "full_like": lambda x: torch.full_like(x, 3),
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "randint_like": lambda x: torch.randint_like(x, 5),
    "new_zeros": lambda x: x.new_zeros(4),
    "new_ones": lambda x: x.new_ones(4),
    "new_full": lambda x: x.new_full((4,), 3),
}


@pytest.mark.parametrize("name", LIKES)
def test_a_tensor_like_another_does_not_read_it(gpu, name):
    x, side = torch.empty(1 << 20, **CUDA), torch.cuda.Stream()
    with torch.cuda.stream(side):
        x.fill_(1)
    made = LIKES[name](x)
    assert not made[:4].isnan().any().item()
    assert gpu.hazards == [] and gpu.notes == []


OVERWRITES = {
    "exponential_": lambda x: x.exponential_(),
    "log_normal_": lambda x: x.log_normal_(),
    "cauchy_": lambda x: x.cauchy_(),
    "geometric_": lambda x: x.geometric_(0.5),
    "uniform_": lambda x: x.uniform_(),
}


@pytest.mark.parametrize("name", OVERWRITES)
def test_random_fills_read_nothing_and_leave_the_cpu_generator(gpu, name):
    state = torch.random.get_rng_state()
    drawn = OVERWRITES[name](torch.empty(64, **CUDA)).tolist()
    assert len(set(drawn)) > 3 and gpu.notes == []
    assert torch.equal(state, torch.random.get_rng_state())


def kernel_us(gpu, call):
    torch.cuda.synchronize()
    done = len(gpu.trace().columns["name"])
    call()
    torch.cuda.synchronize()
    columns = gpu.trace().columns
    return [
        float(us)
        for kind, us in list(zip(columns["kind"], columns["duration_us"], strict=True))[done:]
        if kind == "kernel"
    ]


def test_out_costs_a_write_only(gpu):
    a, b, c = (torch.ones(1 << 22, **CUDA) for _ in range(3))
    plain = kernel_us(gpu, lambda: a + b)
    assert kernel_us(gpu, lambda: torch.add(a, b, out=c)) == plain
    assert kernel_us(gpu, lambda: torch.mul(a, b, out=c)) == plain


# copies

def test_converting_to_the_cpu_asynchronously_is_pinned_and_right(gpu):
    y = torch.arange(4.0, **CUDA).to("cpu", torch.float64, non_blocking=True)
    torch.cuda.synchronize()
    assert y.tolist() == [0, 1, 2, 3] and y.is_pinned() and y.dtype is torch.float64
    assert gpu.hazards == [] and gpu.notes == []


def test_a_transposed_tensor_keeps_its_strides_on_the_way_to_the_cpu(gpu):
    """Of another dtype, too; but then PyTorch copies into a contiguous block first, which is not pinned, and waits."""
    x = torch.arange(6.0, **CUDA).view(2, 3).t()
    for dtype, notes in ((torch.float32, 0), (torch.float64, 1)):
        for y in (x.to("cpu", dtype), x.to("cpu", dtype, non_blocking=True)):
            torch.cuda.synchronize()
            assert y.stride() == (1, 3) and y.tolist() == [[0, 3], [1, 4], [2, 5]]
        assert gpu.hazards == [] and len(gpu.notes) == notes


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 1, 0), (0, 2, 1)])
def test_sides_transposed_alike_are_one_plain_copy(gpu, order):
    host = torch.arange(24.0).view(2, 3, 4).pin_memory()
    spare = torch.empty(2, 3, 4, **CUDA)
    busy_until = gpu.elapsed_ms
    torch.cuda._sleep(10**7)
    assert spare.permute(order).copy_(host.permute(order), non_blocking=True).shape == host.permute(order).shape
    back = torch.empty(2, 3, 4).pin_memory()
    back.permute(order).copy_(spare.permute(order), non_blocking=True)
    assert gpu.elapsed_ms - busy_until < 1 and gpu.notes == []
    torch.cuda.synchronize()
    assert torch.equal(back, host) and torch.equal(spare.cpu(), host)
    assert [k for k in gpu.trace().columns["kind"] if k in ("h2d", "d2h", "d2d")] == ["h2d", "d2h", "d2h"]


def test_half_an_element_is_not_an_element(gpu):
    b = torch.empty(2, dtype=torch.int64, **CUDA)
    b.view(torch.int32)[::2] = 1
    assert all(map(loud, (b + 0).tolist())) and [n.kind for n in gpu.notes] == ["read before written"]
    b.view(torch.int32)[1::2] = 0
    assert (b + 0).tolist() == [1, 1]


def test_filling_costs_a_write_only(gpu):
    x = torch.ones(1 << 22, **CUDA)
    plain = kernel_us(gpu, lambda: torch.ones(1 << 22, **CUDA))
    for fill in (x.zero_, lambda: x.fill_(2), x.normal_, x.uniform_, lambda: torch.zeros_like(x)):
        assert kernel_us(gpu, fill) == plain


@pytest.mark.parametrize("length", [4, 64])
def test_attention_keeps_queries_and_heads_apart(gpu, length):
    clean = torch.ones(2, 4, length, 8, **CUDA)
    query, cache = torch.empty(2, 4, length, 8, **CUDA), torch.empty(2, 2, length, 8, **CUDA)
    query[:, :, :2] = 1
    cache[:, 0] = 1     # the first key head serves the first two query heads
    rows = F.scaled_dot_product_attention(query, clean, clean)
    assert rows[:, :, :2].eq(1).all().item() and rows[:, :, 2:].isnan().all().item()
    heads = F.scaled_dot_product_attention(clean, cache, cache, enable_gqa=True)
    assert heads[:, :2].eq(1).all().item() and heads[:, 2:].isnan().all().item()
