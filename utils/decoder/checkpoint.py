"""A checkpoint folder in Hugging Face's layout (config.json, *.safetensors) as a SlotDecoder: Llama, Qwen2 and Qwen3.

Everything is checked before any memory is taken: what the configuration asks for, and the names, shapes and types of
all tensors in all files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from .config import Config, Stretch
from .model import SlotDecoder
from .weights import Weights, empty

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
STORED = {"F64", "F32", "F16", "BF16"}      # safetensors' names of what can be converted as it is


class CheckpointError(ValueError):
    """A checkpoint that cannot be loaded; the message names the file, and the setting or tensor."""


def load(
    folder: str | Path, slots: int, cells: int, dtype: torch.dtype = torch.bfloat16,
    device: torch.device | str = "cuda",
) -> SlotDecoder:
    """The checkpoint of ``folder``, its weights as ``dtype`` on ``device``; CheckpointError when it is not understood.

    Needs the safetensors package (ImportError says so).
    """
    folder = Path(folder)
    config, files = read_config(folder), _files(folder)
    _check_tensors(config, files)
    with torch.inference_mode(False), torch.no_grad():
        weights = empty(config, dtype, device)
        targets = parts(weights, config)
        for path in files:
            with _open(path) as file:
                for name in targets.keys() & set(file.keys()):
                    targets[name].copy_(file.get_tensor(name).view(targets[name].shape))
    return SlotDecoder(config, slots, cells, dtype, device, weights=weights)


def parts(weights: Weights, config: Config) -> dict[str, torch.Tensor]:
    """The names that Hugging Face gives to the matrices, each with its part of ``weights``: views, nothing is copied.

    Query heads are in another order here, so what has them comes as (…, kv_heads, group, dim, …): ``whole`` makes it
    a matrix again.
    """
    found = {"model.embed_tokens.weight": weights.embed, "model.norm.weight": weights.norm}
    if not config.tied:
        found["lm_head.weight"] = weights.head
    for number, layer in enumerate(weights.layers):
        gate, up = layer.gate_up.chunk(2)
        named = {"input_layernorm.weight": layer.attention_norm, "post_attention_layernorm.weight": layer.mlp_norm,
                 "mlp.gate_proj.weight": gate, "mlp.up_proj.weight": up, "mlp.down_proj.weight": layer.down,
                 "self_attn.o_proj.weight": _heads(layer.out, 1, config)}
        for kind, tensor in (("weight", layer.qkv), ("bias", layer.qkv_bias)):
            if tensor is not None:
                sizes = [heads * config.dim for heads in (config.heads, config.kv_heads, config.kv_heads)]
                q, k, v = tensor.split(sizes)
                named |= {f"self_attn.q_proj.{kind}": _heads(q, 0, config),
                          f"self_attn.k_proj.{kind}": k, f"self_attn.v_proj.{kind}": v}
        if layer.q_norm is not None:
            named |= {"self_attn.q_norm.weight": layer.q_norm, "self_attn.k_norm.weight": layer.k_norm}
        found |= {f"model.layers.{number}.{name}": part for name, part in named.items()}
    return found


def whole(parts: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same as matrices and vectors, as they are in a checkpoint: those with query heads are copied."""
    return {name: part.flatten(0, 2) if "q_proj" in name else part.flatten(1) if "o_proj" in name else part
            for name, part in parts.items()}


def _heads(tensor: torch.Tensor, axis: int, config: Config) -> torch.Tensor:
    """A view whose query heads are in the order of checkpoints: (…, kv_heads, group, dim, …)."""
    return tensor.unflatten(axis, (config.group, config.kv_heads, config.dim)).transpose(axis, axis + 1)


# ---- config.json


def read_config(folder: str | Path) -> Config:
    """Sizes that the folder's config.json asks for; CheckpointError for what this decoder does not do."""
    path = Path(folder) / "config.json"
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from None
    if not isinstance(given, dict) or given.get("model_type") not in ARCHITECTURES:
        kind = given.get("model_type") if isinstance(given, dict) else given
        raise CheckpointError(f"{path}: model_type {kind!r} is not known; known are {', '.join(ARCHITECTURES)}")
    _refuse_unknown(path, given)
    try:
        return _config(path, given)
    except CheckpointError:
        raise
    except KeyError as missing:
        raise CheckpointError(f"{path}: {missing} is missing") from None
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from None


def _refuse_unknown(path: Path, given: dict[str, Any]) -> None:
    """Whatever would make other numbers than this decoder's."""
    known, kind = ARCHITECTURES[given["model_type"]], given["model_type"]
    if (named := given.get("architectures")) and known not in named:
        raise CheckpointError(f"{path}: architectures {named!r}: only {known} is known for model_type {kind!r}")
    if given.get("quantization_config"):
        method = given["quantization_config"].get("quant_method", "unknown")
        raise CheckpointError(f"{path}: a quantised checkpoint (quantization_config, {method}); it has to be in float")
    if given.get("hidden_act", "silu") != "silu":
        raise CheckpointError(f"{path}: hidden_act {given['hidden_act']!r}: only 'silu' is known")
    for name in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if given.get(name):
            raise CheckpointError(f"{path}: {name} {given[name]!r} is not supported, only false")
    if any(kind != "full_attention" for kind in given.get("layer_types") or ()):
        raise CheckpointError(f"{path}: layer_types {sorted(set(given['layer_types']))}: only full_attention is known")


def _config(path: Path, given: dict[str, Any]) -> Config:
    kind, heads, width = given["model_type"], given["num_attention_heads"], given["hidden_size"]
    rope = (given.get("rope_parameters") or {}) | (given.get("rope_scaling") or {})
    theta = rope.get("rope_theta", given.get("rope_theta", 10_000.0))       # Llama 2's files leave it out
    if not given.get("head_dim") and width % heads:
        raise ValueError(f"hidden_size {width} is not a multiple of num_attention_heads {heads}")
    return Config(
        words=given["vocab_size"], width=width, layers=given["num_hidden_layers"], heads=heads,
        kv_heads=given.get("num_key_value_heads") or heads, dim=given.get("head_dim") or width // heads,
        hidden=given["intermediate_size"], rope_theta=float(theta), stretch=_stretch(path, rope),
        eps=given["rms_norm_eps"], tied=bool(given.get("tie_word_embeddings", False)),
        qkv_bias=kind == "qwen2", qk_norm=kind == "qwen3",
    )


def _stretch(path: Path, rope: dict[str, Any]) -> Stretch | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise CheckpointError(f"{path}: rope_type {kind!r} is not supported, only 'default' and 'llama3'")
    return Stretch(rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"],
                   rope["original_max_position_embeddings"])


# ---- *.safetensors


def _files(folder: Path) -> list[Path]:
    """Those of the index, or the only one."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if not index.is_file():
        if not single.is_file():
            raise CheckpointError(f"{folder} has neither {single.name} nor {index.name}")
        return [single]
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{index} has no weight_map: {type(error).__name__}: {error}") from None
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise CheckpointError(f"{index} names {name!r}, which is not a file of {folder}")
    return [folder / name for name in names]


def _open(path: Path) -> Any:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise ImportError("reading a checkpoint needs safetensors: pip install safetensors") from None
    try:
        return safe_open(str(path), framework="pt", device="cpu")
    except SafetensorError as error:
        raise CheckpointError(f"{path} is not a complete safetensors file: {error}") from None


def _check_tensors(config: Config, files: list[Path]) -> None:
    """All that the model has, once each, in the right shape, and no other."""
    named = whole(parts(empty(config, torch.bfloat16, "meta"), config))
    wanted = {name: list(part.shape) for name, part in named.items()}
    found: dict[str, Path] = {}
    for path in files:
        with _open(path) as file:
            for name in sorted(file.keys()):
                if name in found:
                    raise CheckpointError(f"{path}: {name} is in {found[name].name}, too")
                found[name] = path
                _check_tensor(path, name, file.get_slice(name), wanted.get(name), config.tied)
    if missing := [name for name in wanted if name not in found]:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        where = files[0] if len(files) == 1 else f"{files[0].parent}, {len(files)} files"
        raise CheckpointError(f"{where}: {missing[0]} is missing{more}")


def _check_tensor(path: Path, name: str, stored: Any, shape: list[int] | None, tied: bool) -> None:
    if name.endswith("rotary_emb.inv_freq") or (tied and name == "lm_head.weight"):
        return                  # written by old versions: it follows from the settings; and a copy of the embedding
    if shape is None:
        raise CheckpointError(f"{path}: {name} is no tensor of this model; nothing is loaded without knowing what for")
    if stored.get_dtype() not in STORED:
        raise CheckpointError(f"{path}: {name} is stored as {stored.get_dtype()}; a quantised checkpoint is not known")
    if stored.get_shape() != shape:
        raise CheckpointError(f"{path}: {name} has the shape {stored.get_shape()}, and not {shape}")
