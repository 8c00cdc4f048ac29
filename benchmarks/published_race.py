"""The published double-buffer schedule, five calls in a row: the error of each call and the time, beside its repairs.

    python benchmarks/published_race.py benchmarks/results/published_race_h200.json

Relative error of a call: the norm of its difference from the resident model's output over the norm of that output.
Every call has an input of its own. Times are per call, ten in a row after a synchronisation; programs take turns, and
the smaller of two is kept.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.machine import describe_machine
from utils.lessons import import_lesson

WIDTH, CALLS, TIMED_CALLS, ROUNDS = 8192, 5, 10, 2
CASES = ((23, 8192), (24, 8192), (23, 16384), (24, 16384))


def errors(model: Callable[[torch.Tensor], torch.Tensor], xs: list[torch.Tensor],
           wanted: list[torch.Tensor]) -> list[float]:
    """Relative error of each of the calls, issued back to back."""
    model(xs[0])
    torch.cuda.synchronize()
    outputs = [model(x) for x in xs]
    torch.cuda.synchronize()
    return [round(float((y.float() - right.float()).norm() / right.float().norm()), 4)
            for y, right in zip(outputs, wanted, strict=True)]


@torch.inference_mode()
def main(output: Path) -> None:
    """Run every model of lesson 04 on every case."""
    lesson, ms_per_call = import_lesson("04_double_buffered_onload"), import_lesson("03_serial_mlp").ms_per_call
    models = {name: getattr(lesson, name) for name in
              ("PublishedMLP", "HalfFixedMLP", "WaitStreamMLP", "OwnBufferMLP", "CarriedMLP")}
    models["RingMLP"] = lambda weights: lesson.RingMLP(weights, prefetch=False)
    models["RingMLP with prefetch"] = lesson.RingMLP
    torch.manual_seed(0)
    weights = [(torch.randn(WIDTH, WIDTH, device="cuda") / WIDTH**0.5).to(torch.bfloat16).cpu().pin_memory()
               for _ in range(24)]
    found: dict[str, Any] = {"machine": describe_machine(), "width": WIDTH, "cases": []}
    for layers, batch in CASES:
        resident = import_lesson("03_serial_mlp").ResidentMLP(weights[:layers])
        xs = [torch.randn(batch, WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(CALLS)]
        wanted = [resident(x) for x in xs]
        torch.cuda.synchronize()   # or the next model's first copies go into this one's memory while it is still read
        del resident
        made = {name: make(weights[:layers]) for name, make in models.items()}
        case = {"layers": layers, "batch": batch,
                "errors": {name: errors(model, xs, wanted) for name, model in made.items()}}
        rounds = [{name: ms_per_call(partial(model, xs[0]), TIMED_CALLS) for name, model in made.items()}
                  for _ in range(ROUNDS)]
        case["ms"] = {name: round(min(found[name] for found in rounds), 3) for name in made}
        found["cases"].append(case)
        print(case, file=sys.stderr)
    output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
