"""What the host waited for in lesson 07's loop, from a simulated trace."""

from __future__ import annotations

from utils.trace import Trace


def wrong_waits(trace: Trace, steps: int, nbytes: int, sync_ns: int, since_us: float) -> list[str]:
    """What is wrong: one wait for each step, never for the newest while another is in flight, and three at the end.

    ``nbytes``: of a step's copy out, which tells it from other copies; ``sync_ns``: what a wait costs beside waiting.
    """
    columns = trace.columns
    rows = list(zip(*(columns[name] for name in ("name", "kind", "start_us", "duration_us", "bytes", "correlation")),
                    strict=True))
    out = sorted((number, start + duration) for _, kind, start, duration, size, number in rows
                 if kind == "d2h" and size == nbytes and start >= since_us)
    numbers = {number for number, _ in out}
    launches = sorted(start for _, kind, start, _, _, number in rows if kind == "host" and number in numbers)
    waits = sorted((start, start + duration, name) for name, kind, start, duration, *_ in rows
                   if kind == "sync" and start >= since_us)
    if [name for *_, name in waits] != ["event synchronize"] * steps + ["stream synchronize"] * 3 or len(out) != steps:
        return [f"{len(waits)} waits of the host in {steps} steps with {len(out)} copies out"]
    wrong = []
    for n, (start, stop, _) in enumerate(waits[:steps]):
        queued = sum(launch < start for launch in launches)
        if queued not in (n + 1, n + 2):
            wrong.append(f"wait {n} of the host comes after {queued} launched steps")
        if abs(stop - max(start, out[n][1]) - sync_ns / 1000) > 0.002:
            wrong.append(f"wait {n} of the host, with {queued} launched steps, is not for the end of step {n}")
    return wrong
