"""Part of onload.py about a stack of transformer layers with the shapes of Llama 3 8B."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.onload_mlp import paired
from benchmarks.onload_programs import COPIES, DTYPE, RESIDENT, STREAMED, Stack, copies_alone, onload, peers
from benchmarks.onload_windows import BACK_TO_BACK, Program, compare, measure, summary


def config(small: bool) -> Any:
    """Shapes of Llama 3 8B (its config.json); ``small`` for a device that computes on the CPU."""
    from transformers import LlamaConfig

    shapes = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8}
    if small:
        shapes = {"hidden_size": 64, "intermediate_size": 224, "num_attention_heads": 4, "num_key_value_heads": 1}
    return LlamaConfig(**shapes, rope_theta=500000.0, max_position_embeddings=32768, attn_implementation="sdpa")


def make_layer(settings: Any, tensors: dict[str, torch.Tensor]) -> nn.Module:
    """A decoder layer whose parameters are these tensors, by name."""
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    with torch.device("meta"):
        layer = LlamaDecoderLayer(settings, 0).to(DTYPE).eval()
    for name, tensor in tensors.items():
        owner, _, last = name.rpartition(".")
        setattr(layer.get_submodule(owner), last, nn.Parameter(tensor, requires_grad=False))
    return layer


def shapes_of(settings: Any) -> dict[str, torch.Size]:
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    with torch.device("meta"):
        return {name: tensor.shape for name, tensor in LlamaDecoderLayer(settings, 0).named_parameters()}


def tensors_by_name(layer: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach() for name, tensor in layer.named_parameters()}


class Llama:
    """The layers in pinned memory, packed by StreamedLayers, and the same memory as fresh modules for the others."""

    def __init__(self, layers: int, small: bool):
        self.settings = config(small)
        shapes = shapes_of(self.settings)
        empty = [{name: torch.empty(shape, dtype=DTYPE) for name, shape in shapes.items()} for _ in range(layers)]
        self.packed = [make_layer(self.settings, tensors) for tensors in empty]
        self.model = onload.StreamedLayers(self.packed, slots=2)
        for layer in self.packed:
            for tensor in tensors_by_name(layer).values():
                tensor.copy_(random_like(tensor))
        torch.cuda.synchronize()
        self.weight_bytes = sum(tensor.nbytes for tensor in tensors_by_name(self.packed[0]).values())

    def fresh(self) -> list[nn.Module]:
        return [make_layer(self.settings, tensors_by_name(layer)) for layer in self.packed]

    def resident(self) -> nn.Module:
        return Stack([make_layer(self.settings, {name: tensor.to("cuda") for name, tensor in tensors.items()})
                      for tensors in map(tensors_by_name, self.packed)])

    def positions(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin of the rotary embedding, (1, tokens, head_dim)."""
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        like, order = torch.empty(1, dtype=DTYPE), torch.arange(tokens)[None]
        return tuple(part.to("cuda") for part in LlamaRotaryEmbedding(self.settings)(like, order))


def random_like(tensor: torch.Tensor) -> torch.Tensor:
    """On the GPU: matrices scaled by their input size, vectors (of norms) near one."""
    drawn = torch.randn(tensor.shape, dtype=tensor.dtype, device="cuda")
    return drawn / tensor.shape[1] ** 0.5 if tensor.dim() == 2 else 1 + drawn / 10


def llama(layers: int, lengths: Sequence[int], repeats: int, calls: int, small: bool,
          stop_at_s: float) -> dict[str, Any]:
    """Prefill of one sequence per call, back to back: time, bound, memory and equality, by number of tokens."""
    model = Llama(layers, small)
    makers: dict[str, Callable[[], Program]] = {
        RESIDENT: lambda: Program(RESIDENT, model.resident()),
        STREAMED: lambda: Program(STREAMED, model.model, model.model.ring)}
    makers |= peers(model.fresh, by_block=True)
    programs, held = {}, {}
    for name, make in makers.items():
        before = torch.cuda.memory_allocated()
        programs[name] = make()
        held[name] = torch.cuda.memory_allocated() - before
    slots = model.model.ring.buffers
    held[STREAMED] = sum(slot.nbytes for slot in slots)         # made with the model, before the first program
    buffers = [torch.empty_like(slot) for slot in slots]
    programs[COPIES] = copies_alone([partial(model.model.copy_in, i) for i in range(layers)], buffers)
    rows = [prefill(programs, model.positions(tokens), tokens, repeats, calls, stop_at_s) for tokens in lengths]
    for row in rows:
        for name, extra in row.pop("peak_beyond_resident_bytes").items():
            row["programs"][name]["weights_on_gpu_bytes"] = held[name] + extra
    return {"layers": layers, "layer_bytes": model.weight_bytes, "prefill": rows}


def prefill(programs: dict[str, Program], positions: Any, tokens: int, repeats: int, calls: int,
            stop_at_s: float) -> dict[str, Any]:
    hidden = programs[STREAMED].call.layers[0].hidden_size
    inputs = [torch.randn(1, tokens, hidden, dtype=DTYPE, device="cuda") for _ in range(calls)]
    for name, program in programs.items():
        program.more = {} if name == COPIES else {"position_embeddings": positions}
    expected = [programs[RESIDENT](x) for x in inputs]
    ms: dict[str, dict[int, float]] = {name: {} for name in programs}
    wrong: dict[str, list[int]] = {name: [] for name in programs}
    peaks: dict[str, int] = {}
    for repeat in range(repeats):
        names = list(programs)[repeat:] + list(programs)[:repeat]
        for name in names if repeat == 0 or time.monotonic() < stop_at_s else ():
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            few = inputs if name in (RESIDENT, STREAMED) else inputs[:max(2, calls // 4)]
            found = measure(programs[name], few, BACK_TO_BACK, warm_up=2 if repeat == 0 else 1)
            kept = sum(output.nbytes for output in found.outputs)
            peaks[name] = max(peaks.get(name, 0), torch.cuda.max_memory_allocated() - before - kept)
            ms[name][repeat] = found.ms
            wrong[name].append(compare(found.outputs, inputs if name == COPIES else expected)[0])
            del found
    bound = {n: max(ms[COPIES][n], ms[RESIDENT][n]) for n in ms[COPIES].keys() & ms[RESIDENT].keys()}
    rows = {name: {"ms": summary(list(ms[name].values())), "wrong_calls": wrong[name],
                   "over_bound": paired(ms[name], bound)} for name in programs}
    return {"tokens": tokens, "calls": calls, "programs": rows,
            "peak_beyond_resident_bytes": {name: peaks[name] - peaks[RESIDENT] for name in programs if name != COPIES},
            "ours_over": {name: paired(ms[STREAMED], ms[name]) for name in programs if name not in (STREAMED, COPIES)}}
