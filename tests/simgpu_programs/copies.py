"""Programs on CUDA and simulated: copies and moves, and what they wait for."""

from __future__ import annotations

from typing import Any

import torch

from simgpu_programs.measure import LARGE, SMALL, ones, program, waits


@program
def copies_wait_for_their_stream() -> dict[str, bool]:
    found = {}
    for size_name, size in (("small", SMALL), ("large", LARGE)):
        for pinned in (True, False):
            for non_blocking in (True, False):
                host = torch.ones(size).pin_memory() if pinned else torch.ones(size)
                device = ones(size)
                label = f"{size_name} {'pinned' if pinned else 'pageable'} non_blocking={non_blocking}"
                found[f"h2d {label}"] = waits(lambda d=device, h=host, n=non_blocking: d.copy_(h, non_blocking=n))
                found[f"d2h {label}"] = waits(lambda d=device, h=host, n=non_blocking: h.copy_(d, non_blocking=n))
    return found


@program
def converting_copies_wait() -> dict[str, bool]:
    side = 2048
    found = {}
    for name, make in {
        "other dtype": lambda: torch.ones(side, side, dtype=torch.float64).pin_memory(),
        "transposed": lambda: torch.ones(side, side).pin_memory().t(),
        "matching": lambda: torch.ones(side, side).pin_memory(),
    }.items():
        host, device = make(), torch.ones(side, side, device="cuda")
        found[f"h2d {name}"] = waits(lambda d=device, h=host: d.copy_(h, non_blocking=True))
        found[f"d2h {name}"] = waits(lambda d=device, h=host: h.copy_(d, non_blocking=True))
    strided = torch.ones(side, side, device="cuda").t()
    host = torch.ones(side, side).pin_memory()
    found["h2d into transposed"] = waits(lambda: strided.copy_(host, non_blocking=True))
    found["d2h from transposed"] = waits(lambda: host.copy_(strided, non_blocking=True))
    return found


@program
def copies_do_not_wait_for_other_streams() -> dict[str, bool]:
    side, host, device = torch.cuda.Stream(), torch.ones(SMALL), ones(SMALL)
    large, large_host = ones(LARGE), torch.ones(LARGE)
    return {
        "blocking h2d": waits(lambda: device.copy_(host), side),
        "blocking d2h": waits(lambda: host.copy_(device), side),
        "blocking large h2d": waits(lambda: large.copy_(large_host), side),
        "item": waits(lambda: device[0].item(), side),
        "to cuda": waits(lambda: host.to("cuda"), side),
        "cpu": waits(lambda: device.cpu(), side),
    }


@program
def moves_wait() -> dict[str, Any]:
    pinned, pageable, device = torch.ones(SMALL).pin_memory(), torch.ones(SMALL), ones(SMALL)
    return {
        "pinned.to non_blocking": waits(lambda: pinned.to("cuda", non_blocking=True)),
        "pinned.to": waits(lambda: pinned.to("cuda")),
        "pageable.cuda": waits(lambda: pageable.cuda()),
        "device.to cpu non_blocking": waits(lambda: device.to("cpu", non_blocking=True)),
        "device.cpu": waits(lambda: device.cpu()),
        "device.to dtype": waits(lambda: device.to(torch.bfloat16)),
        "tensor(list)": waits(lambda: torch.tensor([1, 2], device="cuda")),
        "as_tensor(list)": waits(lambda: torch.as_tensor([1.0], device="cuda")),
        "to cpu non_blocking is pinned": device.to("cpu", non_blocking=True).is_pinned(),
        "cpu is pinned": device.cpu().is_pinned(),
        "pin_memory is pinned": pinned.is_pinned(),
        "view of pinned is pinned": pinned[3:].is_pinned(),
    }
