"""Parts of two_models.py that no clock decides: a step that fails in the middle, and a budget that is too small."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.kv_offload_checks import Interrupted
from benchmarks.two_models_ways import AHEAD
from benchmarks.two_models_weights import Host, lesson
from benchmarks.two_models_windows import SCHEDULE, Case, give_back


def after_failure(case: Case) -> dict[str, Any]:
    """The schedule up to the middle of model 0's last step, where a layer raises; then the whole schedule again."""
    give_back()
    way, calls = case.makers[AHEAD](case.working), [0]
    last_step, middle = SCHEDULE.index(1), case.host.sizes.layers // 2

    def interrupt(*_: Any) -> None:
        calls[0] += 1
        if calls[0] == last_step:
            raise Interrupted

    hook = case.host.models[0][middle].register_forward_pre_hook(interrupt)
    try:
        lesson.denoise(way, case.x, case.times, SCHEDULE, way.ahead)
        raised = False
    except Interrupted:
        raised = True
    finally:
        hook.remove()
    torch.cuda.synchronize()
    moved = sum(key is not None and key[0] == 1 for key in way.holds)
    y = lesson.denoise(way, case.x, case.times, SCHEDULE, way.ahead).cpu()
    return {"tokens": case.tokens, "raised": raised, "failed_in_layer": middle, "layers_of_model_1_there": moved,
            "equal": torch.equal(y, case.expected)}


def too_small(host: Host, budget: int, working: int) -> dict[str, Any]:
    """A budget for one layer less than a model has: the error, and whether anything was allocated or moved for it."""
    give_back()
    models = [host.fresh(m) for m in range(2)]
    budget = min(budget, working + host.sizes.layers * host.layer_bytes - 1)
    before = torch.cuda.memory_allocated(), places(models)
    try:
        lesson.Swap(models, budget, working)
        error = None
    except ValueError as raised:
        error = str(raised)
    return {"error": error, "budget_bytes": budget, "allocated_bytes": torch.cuda.memory_allocated() - before[0],
            "moved": sum(a != b for a, b in zip(before[1], places(models), strict=True))}


def places(models: list[list[torch.nn.Module]]) -> list[int]:
    """Where every parameter lies."""
    return [tensor.data_ptr() for model in models for layer in model for tensor in layer.parameters()]
