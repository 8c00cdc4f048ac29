"""What utils.decoder makes of a checkpoint's config.json, and where a checkpoint's parts go; needs no other package."""

import json

import pytest
import torch
from decoder_reference import VARIANTS
from decoder_rows import decoder

from utils.decoder import CheckpointError, Config, Stretch, load, parts, read_config

LLAMA_31 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32}
SETTINGS = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 96, "hidden_size": 48,
    "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8,
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "attention_bias": False, "mlp_bias": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "tie_word_embeddings": False,
}


def write(folder, **changes):
    """A config.json with changes; those to ... leave a setting out."""
    given = {name: value for name, value in (SETTINGS | changes).items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(given))


def test_settings_become_sizes(tmp_path):
    sizes = Config(words=96, width=48, layers=3, heads=6, kv_heads=2, dim=8, hidden=80, rope_theta=1e4, eps=1e-6)
    write(tmp_path)
    assert read_config(tmp_path) == sizes
    write(tmp_path, model_type="qwen2", architectures=["Qwen2ForCausalLM"], tie_word_embeddings=True)
    assert read_config(tmp_path) == Config(**(vars(sizes) | {"qkv_bias": True, "tied": True}))
    write(tmp_path, model_type="qwen3", architectures=None, layer_types=["full_attention"] * 3)
    assert read_config(tmp_path) == Config(**(vars(sizes) | {"qk_norm": True}))


def test_settings_of_older_versions_mean_the_same(tmp_path):
    """Before version 5 of transformers rope_theta stood alone, and rope_scaling beside it."""
    write(tmp_path, rope_parameters=..., rope_theta=500_000.0, rope_scaling=LLAMA_31)
    config = read_config(tmp_path)
    assert (config.rope_theta, config.stretch) == (500_000.0, Stretch(8.0, 1.0, 4.0, 32))
    write(tmp_path, rope_parameters=..., rope_scaling=None, head_dim=..., num_key_value_heads=...)
    config = read_config(tmp_path)
    assert (config.rope_theta, config.stretch, config.dim, config.kv_heads) == (10_000.0, None, 8, 6)


@pytest.mark.parametrize("settings, said", [
    ({"model_type": "mistral"}, "model_type 'mistral' is not known; known are llama, qwen2, qwen3"),
    ({"architectures": ["LlamaForSequenceClassification"]}, "only LlamaForCausalLM is known"),
    ({"quantization_config": {"quant_method": "gptq"}}, r"a quantised checkpoint \(quantization_config, gptq\)"),
    ({"hidden_act": "gelu"}, "hidden_act 'gelu': only 'silu'"),
    ({"attention_bias": True}, "attention_bias True is not supported"),
    ({"mlp_bias": True}, "mlp_bias True is not supported"),
    ({"use_sliding_window": True}, "use_sliding_window True is not supported"),
    ({"layer_types": ["full_attention", "sliding_attention"]}, "only full_attention is known"),
    ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_type 'yarn' is not supported"),
    ({"rope_parameters": ..., "rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 1e4},
     "rope_type 'linear' is not supported"),
    ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "'factor' is missing"),
    ({"vocab_size": ...}, "'vocab_size' is missing"),
    ({"num_key_value_heads": 4}, "6 heads cannot share 4 kv_heads"),
    ({"num_hidden_layers": "three"}, "layers must be a whole number from 1 up, not 'three'"),
    ({"head_dim": None, "hidden_size": 50}, "hidden_size 50 is not a multiple of num_attention_heads 6"),
])
def test_settings_that_are_refused(tmp_path, settings, said):
    write(tmp_path, **settings)
    with pytest.raises(CheckpointError, match=rf"config\.json: .*{said}"):
        load(tmp_path, slots=3, cells=80, device="cpu")


def test_no_settings(tmp_path):
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read: No such file"):
        read_config(tmp_path)
    for content, said in (("{", "is not JSON"), ("[]", r"model_type \[\] is not known")):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(CheckpointError, match=rf"config\.json:? {said}"):
            read_config(tmp_path)


@pytest.mark.parametrize("name", VARIANTS)
def test_parts_are_all_of_the_weights(name):
    """Every number in exactly one of them, and writing to one changes the model."""
    model = decoder(VARIANTS[name], torch.float32)
    for part in parts(model.weights, model.config).values():
        part.copy_(part + 1000)
    assert all((tensor > 900).all() and (tensor < 1100).all() for tensor in model.weights.tensors())
