"""A Llama-style decoder that serves requests by slot: ordinary PyTorch, for CUDA, the CPU and the simulated device.

>>> model = SlotDecoder(TINY, slots=4, cells=64)                  # random weights, by seed
>>> model = load("path/of/a/checkpoint", slots=32, cells=2048)    # Llama, Qwen2 or Qwen3, in Hugging Face's layout
>>> following = model(tokens, slots, positions)                   # three int64 (rows,) -> int64 (rows,), greedy

A step takes any mix of rows: pieces of prompts and decodes, of any slots. Where every row is of another slot,
``model.decode`` gives the same tokens and reads the cache in place, which is as fast as the memory is.
"""

from __future__ import annotations

from .checkpoint import CheckpointError, load, parts, read_config, whole
from .config import LLAMA_3_8B, TINY, Config, Stretch
from .model import SlotDecoder
from .weights import Weights

__all__ = [
    "LLAMA_3_8B",
    "TINY",
    "CheckpointError",
    "Config",
    "SlotDecoder",
    "Stretch",
    "Weights",
    "load",
    "parts",
    "read_config",
    "whole",
]
