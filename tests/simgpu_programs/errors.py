"""Programs on CUDA and simulated: errors, and numbers that can be compared exactly."""

from __future__ import annotations

from typing import Any

import torch

from simgpu_programs.measure import ones, outcome, program


@program
def errors() -> dict[str, str]:
    x = ones(4)
    return {
        "numpy": outcome(x.numpy),
        "add cpu": outcome(lambda: x + torch.ones(4)),
        "add cpu scalar": outcome(lambda: x + torch.ones(())),
        "pin a device tensor": outcome(x.pin_memory),
        "cuda:7": outcome(lambda: torch.empty(1, device="cuda:7")),
        "item of many": outcome(x.item),
        "bad size": outcome(lambda: x + ones(3)),
        "bad index": outcome(lambda: x[9]),
        "bool of many": outcome(lambda: bool(x)),
        "copy of another shape": outcome(lambda: x.copy_(ones(3))),
        "view": outcome(lambda: x.view(3)),
        "mm dtypes": outcome(
            lambda: torch.mm(torch.ones(2, 2, device="cuda"), torch.ones(2, 2, device="cuda", dtype=torch.float16))
        ),
        "pinned empty on cuda": outcome(lambda: torch.empty(2, device="cuda", pin_memory=True)),
        "inference tensor": outcome(lambda: torch.inference_mode()(lambda: ones(2) * 2)()),
    }


@program
def numbers() -> dict[str, Any]:
    """Integer results, so that they can be compared exactly."""
    x = torch.arange(24, device="cuda").reshape(4, 6)
    return {
        "strides": [
            list(t.stride()) for t in (x.t(), x[1:, ::2], x.t().contiguous(), x.t().float(), x.t() + 1, x.t().clone())
        ],
        "sum": x.sum().item(),
        "gather": x.gather(1, x[:, :1] % 6).flatten().tolist(),
        "sort": (x * 7 % 5).sort(dim=-1, stable=True).values.tolist(),
        "topk": (x * 7 % 23).flatten().topk(3).indices.tolist(),
        "cumsum": x.cumsum(0)[-1].tolist(),
        "where": torch.where(x > 5, x, -x)[1].tolist(),
        "dtypes": [
            str(t.dtype)
            for t in (
                x / 2,
                x > 1,
                x.float() * 2,
                x.mean(dtype=torch.float32),
                x.argmax(),
                x.bfloat16() + 1,
                x.half() @ x.t().half(),
            )
        ],
    }
