"""Operators of the simulated device that once answered wrongly, were refused, or failed too late, kind by kind."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from utils import simgpu
from utils.simgpu import Unsupported

CUDA = {"device": "cuda"}


# indices that stand for one integer make views

ONES = {
    "numpy integer": lambda: np.int64(1),
    "numpy scalar array": lambda: np.array(1),
    "cpu tensor": lambda: torch.tensor(1),
    "device tensor": lambda: torch.tensor(1, **CUDA),
}


@pytest.mark.parametrize("name", ONES)
def test_an_index_object_makes_a_view(gpu, name):
    slots, one = torch.zeros(3, 2, **CUDA), ONES[name]()
    slots[one].fill_(5)
    slots[0, one].fill_(7)
    slots[one :, 0].add_(1)
    assert slots.tolist() == [[0, 7], [6, 5], [1, 0]]
    slots[one] = torch.full((2,), 9.0, **CUDA)
    assert slots[1].tolist() == [9, 9]


def test_an_index_on_the_device_waits_for_it(gpu):
    slots, one = torch.zeros(3, **CUDA), torch.tensor(1, **CUDA)
    torch.cuda._sleep(10**7)
    assert slots[one].data_ptr() == slots.data_ptr() + 4 and gpu.elapsed_ms > 10


@pytest.mark.parametrize("flag", [True, False, torch.tensor(True), torch.tensor(False)], ids=repr)
def test_a_truth_value_is_a_dimension(gpu, flag):
    values = torch.arange(4.0).view(2, 2)
    x = values.to("cuda")
    with torch._C.DisableTorchFunction():
        expected = [values[flag], values[None, flag], values[0, flag], values[..., flag]]
    for found, right in zip([x[flag], x[None, flag], x[0, flag], x[..., flag]], expected, strict=True):
        assert found.shape == right.shape and found.tolist() == right.tolist()


# numbers on the device where the host needs one

def test_factories_read_numbers_on_the_device(gpu):
    three, half = torch.tensor(3, **CUDA), torch.tensor(0.5, **CUDA)
    assert torch.full((2,), half, **CUDA).tolist() == [0.5, 0.5]
    assert torch.full((2,), half).tolist() == [0.5, 0.5]
    assert torch.arange(0, three, **CUDA).tolist() == torch.arange(three, **CUDA).tolist() == [0, 1, 2]
    assert torch.zeros((three, 2), **CUDA).shape == (3, 2) and torch.ones(three, 2, **CUDA).shape == (3, 2)
    assert set(torch.randint(0, three, (50,), **CUDA).tolist()) == {0, 1, 2}
    assert torch.full_like(half, three).item() == 3 and half.new_full((2,), half).tolist() == [0.5, 0.5]
    assert torch.linspace(0, three, 4, **CUDA).tolist() == [0, 1, 2, 3]


def test_factories_wait_for_the_number(gpu):
    half = torch.tensor(0.5, **CUDA)
    torch.cuda._sleep(10**7)
    torch.full((2,), half, **CUDA)
    assert gpu.elapsed_ms > 10


def test_lists_of_device_numbers(gpu):
    x = torch.tensor([1.0, 2.0], **CUDA)
    made = torch.tensor([x[0], x[1]])
    assert made.tolist() == [1, 2] and made.device.type == "cpu" and made.dtype is torch.float32
    there = torch.tensor([[x[0], 4.0], [x[1], 3.0]], **CUDA)
    assert there.tolist() == [[1, 4], [2, 3]] and there.is_cuda
    assert torch.tensor([x[0].half()], **CUDA).dtype is torch.float16
    with pytest.raises(ValueError, match="one element"):
        torch.tensor([x])


def test_asarray(gpu):
    for data in ([1.0, 2.0], np.array([1.0, 2.0]), torch.tensor([1.0, 2.0])):
        assert torch.asarray(data, **CUDA).is_cuda and torch.asarray(data, **CUDA).tolist() == [1, 2]
        assert not torch.asarray(data).is_cuda
    x = torch.ones(2, **CUDA)
    assert torch.asarray(x) is x and torch.asarray(x, copy=True).data_ptr() != x.data_ptr()


def test_factories_with_out(gpu):
    x = torch.empty(3, **CUDA)
    assert torch.randn(3, out=x) is x and torch.zeros(3, out=x).tolist() == [0, 0, 0]
    assert torch.arange(3, out=x).tolist() == [0, 1, 2] and gpu.notes == []
    with pytest.raises(Unsupported, match="resize"):
        torch.zeros(4, out=x)
    p, side = torch.zeros(1 << 20).pin_memory(), torch.cuda.Stream()
    y = torch.ones(1 << 20, **CUDA)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        y.copy_(p, non_blocking=True)
    torch.zeros(1 << 20, out=p)
    assert [h.kind for h in gpu.hazards] == ["WAR"] and gpu.hazards[0].host


# ordinary inference code: same values as on the CPU

ORDINARY = {
    "softmax dtype": lambda x, w: F.softmax(x.bfloat16(), -1, dtype=torch.float32),
    "log_softmax dtype": lambda x, w: F.log_softmax(x.bfloat16(), -1, dtype=torch.float32),
    "softmax of integers": lambda x, w: F.softmax(x.long(), -1, dtype=torch.float32),
    "where 0.": lambda x, w: torch.where(x > 0, x, 0.0),
    "where 0.1 double": lambda x, w: torch.where(x > 0, x.double(), 0.1),
    "where 0.5 long": lambda x, w: torch.where(x > 0, x.long(), 0.5),
    "where 1 half": lambda x, w: torch.where(x > 0, 1, x.half()),
    "where numbers": lambda x, w: torch.where(x > 0, -1, 5),
    "where keywords": lambda x, w: torch.where(condition=x > 0, input=x, other=2),
    "Tensor.where": lambda x, w: x.where(x > 0, 0),
    "where tensors": lambda x, w: x.where(x > 0, -x),
    "sdpa keywords": lambda x, w: F.scaled_dot_product_attention(query=x[None], key=x[None], value=x[None]),
    "sdpa mask": lambda x, w: F.scaled_dot_product_attention(x[None], x[None], attn_mask=x @ x.t() > 0, value=x[None]),
    "sdpa causal": lambda x, w: F.scaled_dot_product_attention(x[None], key=x[None], value=x[None], is_causal=True),
    "sdpa batch": lambda x, w: F.scaled_dot_product_attention(
        x[None, None], x.expand(2, 1, *x.shape), x.expand(1, 2, *x.shape)
    ),
    "linear keywords": lambda x, w: F.linear(input=x, weight=w),
    "linear bias": lambda x, w: F.linear(x, bias=w[:, 0], weight=w),
    "linear 1-D weight": lambda x, w: F.linear(x, w[0]),
    "1-D @ 2-D": lambda x, w: x[0] @ w.t(),
    "2-D @ 1-D": lambda x, w: w @ x[0],
    "1-D @ 3-D": lambda x, w: torch.matmul(x[0], w.t().expand(2, *w.t().shape)),
    "mv": lambda x, w: torch.mv(w, x[0]),
    "dot": lambda x, w: torch.dot(x[0], x[1]),
    "cosine_similarity": lambda x, w: F.cosine_similarity(x, w, dim=-1),
    "cosine_similarity keywords": lambda x, w: F.cosine_similarity(x1=x, x2=w, dim=0),
    "one_hot": lambda x, w: F.one_hot((x > 0).long(), num_classes=3),
    "new": lambda x, w: x.new([1.0, 2.0]),
    "type": lambda x, w: x.type(torch.float64),
}


@pytest.mark.parametrize("grad", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_code_agrees_with_the_cpu(gpu, name, grad):
    x, w = torch.linspace(-2, 3, 15).view(3, 5), torch.linspace(1, -1, 15).view(3, 5)
    with grad():
        right = ORDINARY[name](x, w)
        found = ORDINARY[name](x.to("cuda"), w.to("cuda"))
        assert found.is_cuda and found.dtype is right.dtype
        torch.testing.assert_close(found.cpu(), right)
    assert gpu.notes == []


def test_foreach_copy_is_one_copy_each(gpu):
    targets = [torch.empty(3, **CUDA), torch.empty(2, **CUDA)]
    torch._foreach_copy_(targets, [torch.ones(3).pin_memory(), torch.zeros(2).pin_memory()], non_blocking=True)
    assert [t.tolist() for t in targets] == [[1, 1, 1], [0, 0]] and gpu.notes == []


def test_a_shallow_copy_shares_its_memory(gpu):
    x = torch.nn.Parameter(torch.ones(2, **CUDA), requires_grad=False)
    twin = copy.copy(x)
    assert twin.data_ptr() == x.data_ptr() and type(twin) is type(x)


def test_splitting_reads_nothing(gpu):
    x, side = torch.empty(1 << 20, **CUDA), torch.cuda.Stream()
    with torch.cuda.stream(side):
        x.fill_(1)
    for parts in (x.unsafe_chunk(2), x.unsafe_split(1 << 19), x.unsafe_split_with_sizes([1 << 20]), x.chunk(2)):
        assert parts[0].data_ptr() == x.data_ptr() and gpu.hazards == []
    assert x.is_set_to(x.view(-1)) and not x.is_set_to(x[1:])


def test_types(gpu):
    x = torch.ones(2, **CUDA)
    assert x.type() == "torch.cuda.FloatTensor" and x.bfloat16().type() == "torch.cuda.BFloat16Tensor"
    assert x.type("torch.cuda.HalfTensor").dtype is torch.float16 and not x.type("torch.DoubleTensor").is_cuda
    assert x.new(3).shape == (3,) and x.new(2, 4).is_cuda and x.new(2).dtype is torch.float32
    with pytest.raises(ValueError, match="invalid type"):
        x.type("torch.cuda.Tensor")


# what is refused, at the call

REFUSED = {
    "quantile": (lambda x, i: torch.quantile(x, 0.5), Unsupported, "quantile"),
    "Tensor.quantile": (lambda x, i: x.quantile(0.5), Unsupported, "quantile"),
    "cov": (lambda x, i: torch.cov(x), Unsupported, "cov"),
    "vander": (lambda x, i: torch.vander(x[0]), Unsupported, "vander"),
    "combinations": (lambda x, i: torch.combinations(x[0]), Unsupported, "combinations"),
    "frexp": (lambda x, i: torch.frexp(x), Unsupported, "frexp"),
    "LSTM": (lambda x, i: torch.nn.LSTM(4, 4).to("cuda")(x), Unsupported, "LSTM"),
    "GRU": (lambda x, i: torch.nn.GRU(4, 4).to("cuda")(x), Unsupported, "GRU"),
    "EmbeddingBag": (lambda x, i: torch.nn.EmbeddingBag(4, 4).to("cuda")(i), Unsupported, "embedding_bag"),
    "conj": (lambda x, i: torch.tensor([1 + 2j], **CUDA).conj(), Unsupported, "conjugate"),
    "adjoint": (lambda x, i: torch.ones(2, 2, dtype=torch.complex64, **CUDA).mH, Unsupported, "conjugate"),
    "t_": (lambda x, i: x.t_(), Unsupported, r"t_ .*x\.t\("),
    "transpose_": (lambda x, i: x.transpose_(0, 1), Unsupported, "transpose_"),
    "unsqueeze_": (lambda x, i: x.unsqueeze_(0), Unsupported, "unsqueeze_"),
    "squeeze_": (lambda x, i: x.squeeze_(), Unsupported, "squeeze_"),
    "swapaxes_": (lambda x, i: x.swapaxes_(0, 1), Unsupported, "_ is not modelled"),
    "autograd.backward": (lambda x, i: torch.autograd.backward(x.sum()), Unsupported, "autograd.backward"),
    "autograd.grad": (lambda x, i: torch.autograd.grad(x.sum(), x), Unsupported, "autograd.grad"),
    "long @ long": (lambda x, i: i @ i, RuntimeError, "\"addmm_cuda\" not implemented for 'Long'"),
    "long mv": (lambda x, i: torch.mv(i, i[0]), RuntimeError, "not implemented for 'Long'"),
    "long dot": (lambda x, i: torch.dot(i[0], i[0]), RuntimeError, "not implemented for 'Long'"),
    "long bmm": (lambda x, i: torch.bmm(i[None], i[None]), RuntimeError, "not implemented for 'Long'"),
    "int linear": (lambda x, i: F.linear(i.int(), i.int()), RuntimeError, "\"addmm_cuda\" not implemented for 'Int'"),
    "long softmax": (lambda x, i: F.softmax(i, -1), RuntimeError, "softmax\" not implemented for 'Long'"),
    "long gelu": (lambda x, i: F.gelu(i), RuntimeError, "not implemented for 'Long'"),
    "as_strided": (lambda x, i: x.as_strided((5, 4), (4, 1)), RuntimeError, "out of bounds for storage of size 64"),
    "as_strided offset": (lambda x, i: x.as_strided((4,), (1,), 13), RuntimeError, "out of bounds"),
    "linear bias": (lambda x, i: F.linear(x, x, x[0, :3]), RuntimeError, "bias"),
    "sdpa mask": (
        lambda x, i: F.scaled_dot_product_attention(x[None], x[None], x[None], attn_mask=torch.ones(3, 3, **CUDA)),
        RuntimeError, "attn_mask",
    ),
    "sdpa heads": (
        lambda x, i: F.scaled_dot_product_attention(
            x.expand(1, 4, 4, 4), x.expand(1, 2, 4, 4), x.expand(1, 2, 4, 4)
        ), RuntimeError, "do not fit",
    ),
    "overlapping copy": (lambda x, i: x[1:].copy_(x[:-1]), RuntimeError, "single memory location"),
    "overlapping add_": (lambda x, i: x[1:].add_(x[:-1]), RuntimeError, "single memory location"),
    "overlapping out": (lambda x, i: torch.add(x[1:], 1, out=x[:-1]), RuntimeError, "single memory location"),
    "overlapping index_put_": (lambda x, i: x.index_put_((i[0],), x[:4]), RuntimeError, "single memory location"),
    "expanded add_": (lambda x, i: x[0, :1].expand(4).add_(1), RuntimeError, "single memory location"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_at_the_call(gpu, name):
    call, error, text = REFUSED[name]
    x = torch.ones(4, 4, **CUDA, requires_grad=name.startswith("autograd"))
    with pytest.raises(error, match=text):
        call(x, torch.ones(4, 4, dtype=torch.int64, **CUDA))
    torch.cuda.synchronize()


def test_what_only_looks_like_an_overlap_is_allowed(gpu):
    x = torch.arange(8.0, **CUDA).view(4, 2)
    x[:, 0].copy_(x[:, 1])
    x.add_(x)
    torch.add(x, x, out=x)
    x[:2].copy_(x[2:])
    assert x.tolist() == [[20, 20], [28, 28], [20, 20], [28, 28]]


def test_gradients_on_the_cpu_are_as_ever(gpu):
    w = torch.ones(2, requires_grad=True)
    torch.autograd.backward((w * w).sum())
    assert w.grad.tolist() == [2, 2] and torch.autograd.grad((w * 3).sum(), w)[0].tolist() == [3, 3]


def test_streams_and_tensors_of_another_session_are_refused(gpu):
    x, stream = torch.ones(2, **CUDA), torch.cuda.Stream()
    with simgpu.session(simgpu.T4):
        y = torch.zeros(2, **CUDA)
        with pytest.raises(RuntimeError, match="another simulated"):
            y.record_stream(stream)
        with pytest.raises(RuntimeError, match="was used on"):
            y.data = x
        assert y.tolist() == [0, 0]
