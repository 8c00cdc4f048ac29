"""transformers' continuous batching on the same weights, requests and rows per step, for async_batching.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from typing import Any

import torch

from benchmarks.async_loops import compared
from benchmarks.async_served import Work
from benchmarks.two_models_windows import give_back
from utils.decoder import SlotDecoder, parts, whole
from utils.trace import record

PAGE = 32               # tokens: the requests' pages are then all of the cache, and no padding
FINE = 2048             # keys to pad to, in tokens: the default, 16,384, is more than these requests have at their end
MODES = {               # ahead, graphs, padding unless the default; the fastest ones first, as time may be up
    "async, graphs": (True, True), "sync, graphs": (False, True),
    "async, graphs, keys padded finely": (True, True, FINE), "async": (True, False), "sync": (False, False)}


def llama(decoder: SlotDecoder, device: str) -> torch.nn.Module:
    """LlamaForCausalLM on the decoder's own matrices; what has query heads is copied, as their order differs."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = decoder.config
    config = LlamaConfig(
        vocab_size=sizes.words, hidden_size=sizes.width, intermediate_size=sizes.hidden, head_dim=sizes.dim,
        num_hidden_layers=sizes.layers, num_attention_heads=sizes.heads, num_key_value_heads=sizes.kv_heads,
        rms_norm_eps=sizes.eps, tie_word_embeddings=False, max_position_embeddings=8192, attn_implementation="sdpa",
        rope_parameters={"rope_type": "default", "rope_theta": sizes.rope_theta}, eos_token_id=None, pad_token_id=None)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.load_state_dict(whole(parts(decoder.weights, sizes)), assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(config=config).to(device)
    return model.eval()


def settings(work: Work, ahead: bool, graphs: bool, keys: int = 0) -> Any:
    """Pages for exactly these requests, and no more rows than them; ``keys``: to which multiple, 0 for the default."""
    from transformers import ContinuousBatchingConfig

    pages = work.requests * -(-(work.prompt + work.tokens) // PAGE)
    size = "page_size" if "page_size" in {field.name for field in fields(ContinuousBatchingConfig)} else "block_size"
    return ContinuousBatchingConfig(
        **{size: PAGE}, num_blocks=pages + 2, max_batch_tokens=work.budget, allow_block_sharing=False,
        use_async_batching=ahead, use_cuda_graph=graphs, q_padding_interval_size=work.requests,
        kv_padding_interval_size=keys)


class Peer:
    """One mode: a manager that is kept between calls, as a server would."""

    def __init__(self, model: torch.nn.Module, work: Work, *mode: Any):
        from transformers import GenerationConfig

        self.model, self.work, self.settings = model, work, settings(work, *mode)
        self.generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0,
                                           max_new_tokens=work.tokens)

    def run(self, tokens: int) -> dict[str, Any]:
        """Serve the requests once: ms from the call to the last token, steps, tokens."""
        prompts = [request.prompt for request in self.work.make()]
        begin = time.perf_counter()
        outputs = self.model.generate_batch(
            prompts, generation_config=self.generation, continuous_batching_config=self.settings,
            persistent_manager=True, record_timestamps=True, max_new_tokens=tokens)
        done = list(outputs.values())
        if len(done) != len(prompts) or any(len(each.generated_tokens) != tokens for each in done):
            raise RuntimeError(f"{len(done)} of {len(prompts)} requests: {[each.error for each in done][:1]}")
        last = max(each.timestamps[-1] for each in done)
        steps = self.model._cached_continuous_batching_manager.current_batch
        return {"wall_ms": (last - begin) * 1000, "steps": steps, "tokens": [each.generated_tokens for each in done]}


@contextmanager
def opened(model: torch.nn.Module, work: Work, *mode: Any) -> Any:
    try:
        yield Peer(model, work, *mode)
    finally:
        with suppress(Exception):
            model.destroy_cached_continuous_batching_manager()
        if next(model.parameters()).is_cuda:
            give_back()


def transformers_modes(decoder: SlotDecoder, work: Work, ours: list[list[int]], on_gpu: bool,
                       late: Callable[[], bool], after: Callable[[str, Any], object]) -> None:
    """All modes (on a CPU the only one that it has there); ``after`` gets each as soon as it is done, or its error."""
    model = llama(decoder, "cuda" if on_gpu else "cpu")
    for name, mode in MODES.items():
        if late() or (any(mode) and not on_gpu):
            continue
        try:
            with opened(model, work, *mode) as peer:
                found = of_mode(peer, decoder, work, ours, on_gpu)
        except Exception as error:      # another's program: no reason to lose the other modes
            found = {"error": f"{type(error).__name__}: {error}"}
        after(name, found)


def of_mode(peer: Peer, decoder: SlotDecoder, work: Work, ours: list[list[int]], on_gpu: bool) -> dict[str, Any]:
    short = min(work.tokens, 8)
    graphs = peer.settings.use_cuda_graph and peer.settings.kv_padding_interval_size
    peer.run(work.tokens if graphs else short)                      # kernels, and every graph that will be needed
    found = peer.run(work.tokens)
    tokens, count = found.pop("tokens"), work.requests * work.tokens
    found |= {"wall_ms": round(found["wall_ms"], 2), "tokens_per_s": round(count / found["wall_ms"] * 1000, 2),
              "ms_per_step": round(found["wall_ms"] / found["steps"], 3)}
    if on_gpu:
        found["tokens"] = compared(decoder, [request.prompt for request in work.make()], ours, tokens)
        with suppress(Exception):       # the profiler beside another's thread: no reason to lose the times
            trace = record(lambda: peer.run(short), warmup=0)
            found["gpu_active"] = round(1 - trace.idle_share("kernel"), 5)
    return found


def small(work: Work) -> Work:
    """For a CPU."""
    return replace(work, requests=2, tokens=min(work.tokens, 6))
