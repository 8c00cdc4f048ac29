"""Programs on CUDA and simulated: the caching allocator."""

from __future__ import annotations

from typing import Any

import torch

from simgpu_programs.measure import BUSY_MS, busy, host_ms, outcome, program


@program
def memory() -> dict[str, Any]:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    found: dict[str, Any] = {}
    for count in (1, 513, 1 << 20, (1 << 20) + 1, 9 << 20, 11 << 20):
        before, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        x = torch.empty(count, dtype=torch.uint8, device="cuda")
        found[f"allocated by {count}"] = torch.cuda.memory_allocated() - before
        found[f"reserved by {count}"] = torch.cuda.memory_reserved() - reserved
        address = x.data_ptr()
        del x
        again = torch.empty(count, dtype=torch.uint8, device="cuda")
        found[f"reused after {count}"] = again.data_ptr() == address
        with torch.cuda.stream(torch.cuda.Stream()):
            found[f"other stream after {count}"] = (
                torch.empty(count, dtype=torch.uint8, device="cuda").data_ptr() == address
            )
        del again
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    side, x = torch.cuda.Stream(), torch.ones(64, 64, device="cuda")
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    with torch.cuda.stream(side):
        y = x @ x
    found["first GEMM of a stream allocates"] = torch.cuda.memory_allocated() - before - 64 * 64 * 4
    del x, y
    busy()
    found["empty_cache with something cached waits"] = host_ms(torch.cuda.empty_cache) > BUSY_MS / 2
    found["too much"] = outcome(lambda: torch.empty(1 << 50, dtype=torch.uint8, device="cuda"))
    return found
