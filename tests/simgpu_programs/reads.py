"""Programs on CUDA and simulated: which calls wait for the device."""

from __future__ import annotations

import torch

from simgpu_programs.measure import SMALL, ones, program, waits


@program
def reads_wait() -> dict[str, bool]:
    x, y, flags = ones(SMALL), ones(SMALL), torch.ones(SMALL, dtype=torch.bool, device="cuda")
    ids = torch.zeros(4, dtype=torch.int64, device="cuda")
    calls = {
        "item": lambda: x[0].item(),
        "tolist": x.tolist,
        "repr": lambda: repr(x),
        "bool": lambda: bool(x[0]),
        "equal": lambda: torch.equal(x, y),
        "equal to itself": lambda: torch.equal(x, x),
        "allclose": lambda: torch.allclose(x, x),
        "nonzero": flags.nonzero,
        "mask read": lambda: x[flags],
        "mask write": lambda: x.__setitem__(flags, 2.0),
        "masked_fill": lambda: x.masked_fill(flags, 2.0),
        "unique": x.unique,
        "index": lambda: x[ids],
        "list index": lambda: x[[0, 1]],
        "cpu index": lambda: x[torch.tensor([0, 1])],
        "set scalar": lambda: x.__setitem__(0, 5),
        "set empty index": lambda: x[0].__setitem__((), 5),
        "set slice": lambda: x.__setitem__(slice(0, 2), 5.0),
        "topk": lambda: x.topk(2),
        "sort": x.sort,
        "argmax": x.argmax,
        "where": lambda: torch.where(flags, x, x),
        "cat": lambda: torch.cat([x, x]),
        "multinomial": lambda: torch.multinomial(x, 2),
        "randn": lambda: torch.randn(4, device="cuda"),
        "arange": lambda: torch.arange(4, device="cuda"),
        "zeros": lambda: torch.zeros(4, device="cuda"),
        "matmul": lambda: x.view(16, 16) @ x.view(16, 16),
        "empty": lambda: torch.empty(4, device="cuda"),
        "embedding": lambda: torch.nn.functional.embedding(ids, x.view(16, 16)),
        "one_hot": lambda: torch.nn.functional.one_hot(ids, 4),
        "repeat_interleave": lambda: ids.repeat_interleave(ids + 1),
        "scalar tensor": lambda: x * torch.tensor(2.0),
        "index_copy": lambda: x.index_copy_(0, ids, ones(4)),
        "bincount": ids.bincount,
        "sdpa": lambda: torch.nn.functional.scaled_dot_product_attention(
            x.view(1, 16, 16), x.view(1, 16, 16), x.view(1, 16, 16)
        ),
        "cuda synchronize": torch.cuda.synchronize,
        "empty_cache with nothing cached": torch.cuda.empty_cache,
        "memory_allocated": torch.cuda.memory_allocated,
        "pin_memory": lambda: torch.ones(4).pin_memory(),
    }
    return {name: waits(call) for name, call in calls.items()}
