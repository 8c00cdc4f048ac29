"""Operators that inference uses: models on the simulated device equal the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from utils import simgpu

CONTEXTS = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}


@pytest.fixture(params=CONTEXTS)
def gpu(request):
    torch.manual_seed(0)
    with simgpu.session(simgpu.H200) as device, CONTEXTS[request.param]():
        yield device


def rope(t, cos, sin):
    a, b = t.chunk(2, -1)
    return t * cos + torch.cat((-b, a), -1) * sin


class DecoderBlock(nn.Module):
    """Llama's: RMS norms, rotary positions, grouped-query attention over a KV cache, gated MLP."""

    def __init__(self, width=32, heads=4, kv_heads=2, hidden=48, length=16):
        super().__init__()
        self.heads, self.kv_heads, self.head = heads, kv_heads, width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, kv_heads * self.head, bias=False) for _ in range(2))
        self.o = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)
        angle = torch.arange(length)[:, None] * 0.1 ** torch.arange(self.head // 2)[None]
        self.register_buffer("cos", torch.cat((angle.cos(), angle.cos()), -1))
        self.register_buffer("sin", torch.cat((angle.sin(), angle.sin()), -1))

    def forward(self, x, cache, position):
        rows, steps, width = x.shape
        end = position + steps
        y = self.norm1(x)
        q = self.q(y).view(rows, steps, self.heads, self.head).transpose(1, 2)
        k, v = (f(y).view(rows, steps, self.kv_heads, self.head).transpose(1, 2) for f in (self.k, self.v))
        q, k = (rope(t, self.cos[position:end], self.sin[position:end]) for t in (q, k))
        cache[0, :, :, position:end] = k
        cache[1, :, :, position:end] = v
        y = F.scaled_dot_product_attention(
            q, cache[0, :, :, :end], cache[1, :, :, :end], is_causal=steps > 1, enable_gqa=True
        )
        x = x + self.o(y.transpose(1, 2).reshape(rows, steps, width))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def decode(block, x, device):
    cache = torch.empty(2, x.shape[0], 2, 16, 8, device=device)  # only what was written is read
    outs = [block(x[:, :4], cache, 0)]
    for position in range(4, x.shape[1]):
        outs.append(block(x[:, position : position + 1], cache, position))
    return torch.cat(outs, 1)


def test_decoder_block_with_kv_cache(gpu):
    block, x = DecoderBlock().eval(), torch.randn(3, 8, 32)
    wanted = decode(block, x, "cpu")
    found = decode(block.to("cuda"), x.to("cuda"), "cuda")
    assert torch.allclose(found.cpu(), wanted, atol=1e-5) and gpu.hazards == [] and gpu.notes == []


def test_transformer_encoder_layer(gpu):
    layer, x = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval(), torch.randn(2, 5, 32)
    wanted = layer(x)
    assert torch.allclose(layer.to("cuda")(x.to("cuda")).cpu(), wanted, atol=1e-5)


def test_convolutional_network(gpu):
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    ).eval()
    x = torch.randn(2, 3, 16, 16)
    wanted = net(x)
    assert torch.allclose(net.cuda()(x.cuda()).cpu(), wanted, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_layer(gpu, dtype):
    layer, x = nn.Linear(64, 32).to(dtype), torch.randn(8, 64).to(dtype)
    wanted = (x.float() @ layer.weight.float().t() + layer.bias.float()).to(dtype)
    found = layer.to("cuda")(x.to("cuda"))
    assert found.dtype is dtype and torch.allclose(found.cpu().float(), wanted.float(), rtol=2e-2, atol=2e-2)


I = torch.tensor([[2, 0], [1, 3]])  # noqa: E741
OPERATORS = {
    "matmul batched": lambda x: x.view(2, 2, 4) @ x.view(2, 4, 2),
    "matmul mixed": lambda x: x.view(2, 2, 4) @ x.view(4, 4),
    "bmm": lambda x: torch.bmm(x.view(2, 2, 4), x.view(2, 4, 2)),
    "addmm": lambda x: torch.addmm(x, x, x),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: F.log_softmax(x, 0),
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "rms_norm": lambda x: F.rms_norm(x, (4,)),
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "exp": torch.exp,
    "rsqrt": lambda x: x.abs().rsqrt(),
    "pow": lambda x: x.pow(2),
    "clamp": lambda x: x.clamp(-1, 1),
    "where": lambda x: torch.where(x > 0, x, -x),
    "masked_fill": lambda x: x.masked_fill(x > 0, -9.0),
    "sum": lambda x: x.sum(0),
    "mean": lambda x: x.mean(-1, keepdim=True),
    "max": lambda x: x.max(),
    "max dim": lambda x: x.max(1).values,
    "amax": lambda x: x.amax(0),
    "argmax": lambda x: x.argmax(-1),
    "var": lambda x: x.var(1),
    "cumsum": lambda x: x.cumsum(0),
    "norm": lambda x: x.norm(),
    "prod": lambda x: x.prod(),
    "topk": lambda x: torch.cat([t.float() for t in x.topk(2)]),
    "sort": lambda x: x.sort(-1, descending=True).values,
    "cat": lambda x: torch.cat([x, x * 2], 1),
    "stack": lambda x: torch.stack([x, x + 1]),
    "chunk": lambda x: x.chunk(2, 1)[1] * 2,
    "split": lambda x: x.split([1, 3])[1],
    "unbind": lambda x: x.unbind(1)[2],
    "tril": lambda x: x.tril(),
    "roll": lambda x: x.roll(1, 0),
    "repeat": lambda x: x.repeat(2, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 0),
    "flip": lambda x: x.flip(0),
    "pad": lambda x: F.pad(x, (1, 1)),
    "expand": lambda x: x[:1].expand(3, 4) + 0,
    "permute": lambda x: x.permute(1, 0).contiguous(),
    "reshape": lambda x: x.t().reshape(2, 8),
    "unfold": lambda x: x.unfold(0, 2, 1) + 0,
    "diagonal": lambda x: x.diagonal() + 0,
    "embedding": lambda x: F.embedding(I.to(x.device), x),
    "gather": lambda x: x.gather(1, I.to(x.device)),
    "index": lambda x: x[I.to(x.device)[0]],
    "index 2d": lambda x: x[[0, 1], [2, 3]],
    "index mixed": lambda x: x[1:, I.to(x.device)[0]],
    "mask index": lambda x: x[x > 0],
    "index_select": lambda x: x.index_select(0, I.to(x.device)[1]),
    "nonzero": lambda x: (x > 0).nonzero(),
    "scatter": lambda x: torch.zeros_like(x).scatter_(1, I.to(x.device), 5.0),
    "one_hot": lambda x: F.one_hot(I.to(x.device), 4),
    "index_put": lambda x: x.clone().index_put_((I.to(x.device)[0],), x[:2]),
    "setitem": lambda x: _set(x.clone()),
    "index_copy": lambda x: x.clone().index_copy_(0, I.to(x.device)[0], x[2:]),
    "index_add": lambda x: x.clone().index_add_(0, I.to(x.device)[0], x[2:]),
    "in place": lambda x: x.clone().add_(1).mul_(2).relu_(),
    "out": lambda x: torch.mul(x, x, out=torch.empty_like(x)),
    "to int": lambda x: (x * 10).to(torch.int32),
    "to bf16 and back": lambda x: x.bfloat16().float(),
    "remainder": lambda x: (x * 10).long() % 3,
    "arange": lambda x: torch.arange(2, 10, device=x.device),
    "eye": lambda x: torch.eye(3, device=x.device),
    "full": lambda x: torch.full((2,), 3.5, device=x.device),
    "full_like": lambda x: torch.full_like(x, 2),
    "new_zeros": lambda x: x.new_zeros(2, 3),
    "tensor": lambda x: torch.tensor([1, 2], device=x.device),
    "sdpa": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True),
    "sdpa mask": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], attn_mask=x > -1),
    "conv1d": lambda x: F.conv1d(x[None], x[:2, :, None]),
    "avg_pool": lambda x: F.avg_pool2d(x[None], 2),
    "interpolate": lambda x: F.interpolate(x[None], 8),
    "all": lambda x: (x < 9).all(),
    "any": lambda x: (x > 9).any(),
    "isnan": lambda x: x.isnan(),
    "scalar tensor": lambda x: x * torch.tensor(2.0),
    "rsub": lambda x: 1 - x,
    "floor_divide": lambda x: (x * 10).long() // 3,
    "bitwise": lambda x: (x * 10).long() & 3,
    "lerp": lambda x: x.lerp(x * 2, 0.5),
    "logsumexp": lambda x: x.logsumexp(0),
    "triu mask": lambda x: torch.ones(3, 3, device=x.device, dtype=torch.bool).triu(1),
    "outer": lambda x: torch.outer(x[0], x[1]),
    "cumprod": lambda x: x.cumprod(0),
    "argsort": lambda x: x.argsort(0),
    "cdist": lambda x: (x[:, None] - x[None]).square().sum(-1).sqrt(),
    "unique": lambda x: (x * 3).long().unique(),
    "bincount": lambda x: I.to(x.device).flatten().bincount(),
    "searchsorted": lambda x: torch.searchsorted(x[0].sort().values, x[1]),
    "meshgrid": lambda x: torch.meshgrid(x[0], x[1], indexing="ij")[0] + 0,
    "group_norm": lambda x: F.group_norm(x, 2),
    "glu": lambda x: F.glu(x),
    "baddbmm": lambda x: torch.baddbmm(x[None], x[None], x[None]),
    "normalize": lambda x: F.normalize(x),
    "bool index set": lambda x: _mask_set(x.clone()),
}


def test_running_statistics_are_updated(gpu):
    x = torch.randn(8, 3)
    norms = [nn.BatchNorm1d(3), nn.BatchNorm1d(3).to("cuda")]
    found = [norm(x.to(norm.weight.device)).cpu() for norm in norms]
    assert torch.allclose(*found, atol=1e-6) and torch.allclose(norms[0].running_mean, norms[1].running_mean.cpu())


def test_an_output_may_be_an_input_too(gpu):
    x, side = torch.ones(4, device="cuda"), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        x.add_(1)
    torch.add(x, 1, out=x)
    assert [h.kind for h in gpu.hazards] == ["RAW"]


def _set(x):
    x[0] = 5
    x[1:, 2] = x[0, :3]
    x[..., -1] += 1
    return x


def _mask_set(x):
    x[x > 0] = -1.0
    return x


@pytest.mark.parametrize("name", OPERATORS)
def test_operator(gpu, name):
    x = torch.randn(4, 4)
    wanted = OPERATORS[name](x)
    found = OPERATORS[name](x.to("cuda"))
    assert (
        found.is_cuda
        and found.device == torch.device("cuda", 0)
        and found.shape == wanted.shape
        and found.dtype is wanted.dtype
    )
    assert torch.allclose(found.cpu().double(), wanted.double(), atol=1e-5) and gpu.hazards == [] and gpu.notes == []
