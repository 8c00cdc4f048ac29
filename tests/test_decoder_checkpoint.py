"""utils.decoder reads what transformers writes, and refuses what it does not understand before it takes memory."""

import builtins
import json

import pytest
import torch
from decoder_rows import columns

from utils.decoder import CheckpointError, Config, load, parts, whole

reason = "it comes with the benchmarks extra"
transformers = pytest.importorskip("transformers", reason=reason)
safetensors_torch = pytest.importorskip("safetensors.torch", reason=reason)

SIZES = {"vocab_size": 96, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6,
         "num_key_value_heads": 2, "max_position_embeddings": 256}
LLAMA_31 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32}
KINDS = {
    "Llama": ("Llama", {}),
    "Llama, head_dim of its own": ("Llama", {"head_dim": 20, "num_key_value_heads": 6}),
    "Llama, tied": ("Llama", {"tie_word_embeddings": True, "rms_norm_eps": 1e-3}),
    "Llama 3.1": ("Llama", {"rope_parameters": {"rope_theta": 500_000.0} | LLAMA_31}),
    "Qwen2": ("Qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "Qwen3": ("Qwen3", {"head_dim": 24}),
}


def other(kind):
    """transformers' model, float32; norms and biases are drawn, too, which it makes ones and zeros."""
    name, changes = KINDS[kind]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES | changes)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for tensor in model.parameters():
            if tensor.dim() == 1:
                tensor.add_(torch.randn_like(tensor) / 5)
            else:
                tensor.mul_(3)                          # so that positions and biases make a difference
    return model


@pytest.fixture
def saved(tmp_path):
    other("Llama").save_pretrained(tmp_path)
    return tmp_path


def rewrite(folder, edit):
    path = folder / "model.safetensors"
    tensors = safetensors_torch.load_file(path)
    edit(tensors)
    safetensors_torch.save_file(tensors, path)


def opened(folder):
    return load(folder, slots=3, cells=80, dtype=torch.float32, device="cpu")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sharded", [False, True], ids=["one file", "sharded"])
def test_transformers_own_logits(kind, sharded, tmp_path):
    theirs = other(kind)
    theirs.save_pretrained(tmp_path, max_shard_size="40KB" if sharded else "1GB")
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == sharded
    model, ids = opened(tmp_path), torch.randint(96, (2, 70))
    with torch.inference_mode():
        expected = theirs(ids).logits
    for slot, (tokens, scores) in enumerate(zip(ids.tolist(), expected, strict=True)):
        rows = [(token, slot, n) for n, token in enumerate(tokens)]
        found = torch.cat([model.logits(*columns(piece)) for piece in (rows[:33], rows[33:34], rows[34:])])
        torch.testing.assert_close(found, scores, atol=2e-4, rtol=0)
        assert scores.std() > 0.3


def test_weights_come_out_as_they_went_in(saved):
    before = safetensors_torch.load_file(saved / "model.safetensors")
    model = opened(saved)
    after = whole(parts(model.weights, model.config))
    assert before.keys() == after.keys() and all(torch.equal(after[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize("edit, said", [
    (lambda tensors: tensors.pop("model.norm.weight"), "model.norm.weight is missing"),
    (lambda tensors: [tensors.pop(name) for name in list(tensors) if ".1." in name], "is missing and 8 more"),
    (lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(48)}),
     "model.layers.0.self_attn.q_proj.bias is no tensor of this model"),
    (lambda tensors: tensors.update({"model.layers.3.input_layernorm.weight": torch.zeros(48)}),
     "model.layers.3.input_layernorm.weight is no tensor of this model"),
    (lambda tensors: tensors.update({"model.norm.weight": torch.zeros(47)}),
     r"model.norm.weight has the shape \[47\], and not \[48\]"),
    (lambda tensors: tensors.update({"model.layers.2.self_attn.o_proj.weight": torch.zeros(48, 40)}),
     r"o_proj.weight has the shape \[48, 40\], and not \[48, 48\]"),
    (lambda tensors: tensors.update({"lm_head.weight": torch.zeros(96, 48, dtype=torch.int8)}),
     "lm_head.weight is stored as I8; a quantised"),
    (lambda tensors: tensors.update({"lm_head.weight": torch.zeros(96, 48).to(torch.float8_e4m3fn)}),
     "lm_head.weight is stored as F8_E4M3; a quantised"),
])
def test_tensors_that_are_refused(saved, edit, said):
    rewrite(saved, edit)
    with pytest.raises(CheckpointError, match=rf"model\.safetensors: .*{said}"):
        opened(saved)


def test_tensors_that_follow_from_others_are_passed_over(saved):
    rewrite(saved, lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}))
    assert opened(saved).config.layers == 3
    path = saved / "config.json"                                # its lm_head.weight is a copy then:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": True}))
    model = opened(saved)
    assert model.weights.head is model.weights.embed


def test_files_that_are_not_there_or_not_whole(saved, tmp_path):
    path, index = saved / "model.safetensors", saved / "model.safetensors.index.json"
    data = path.read_bytes()
    path.write_bytes(data[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not a complete safetensors file"):
        opened(saved)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"has neither model\.safetensors nor model\.safetensors\.index\.json"):
        opened(saved)
    for content, said in (("{}", "has no weight_map: KeyError"), ("[", "has no weight_map: JSONDecodeError"),
                          ('{"weight_map": {"a": "b.safetensors"}}', r"names 'b\.safetensors', which is not a file"),
                          ('{"weight_map": {"a": "../b"}}', r"names '\.\./b', which is not a file of")):
        index.write_text(content)
        with pytest.raises(CheckpointError, match=rf"index\.json {said}"):
            opened(saved)


def test_a_tensor_in_two_files(tmp_path):
    other("Llama").save_pretrained(tmp_path, max_shard_size="40KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    one, two, *_ = sorted(set(index["weight_map"].values()))
    tensors = safetensors_torch.load_file(tmp_path / one)
    name, tensor = next(iter(tensors.items()))
    safetensors_torch.save_file(safetensors_torch.load_file(tmp_path / two) | {name: tensor}, tmp_path / two)
    with pytest.raises(CheckpointError, match=rf"{two}: {name} is in {one}, too"):
        opened(tmp_path)


def test_without_safetensors_the_error_says_what_to_install(saved, monkeypatch):
    imported = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "safetensors":
            raise ImportError(name)
        return imported(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match="pip install safetensors"):
        opened(saved)


def test_refused_checkpoints_take_no_memory(saved, gpu):
    rewrite(saved, lambda tensors: tensors.pop("model.norm.weight"))
    with pytest.raises(CheckpointError):
        load(saved, slots=3, cells=80)
    assert torch.cuda.max_memory_allocated() == 0


def test_a_checkpoint_on_the_device_gives_the_tokens_of_the_cpu(saved, gpu):
    model, host = load(saved, 3, 80, torch.float32), opened(saved)
    rows = columns([(5, 0, 0), (6, 0, 1), (9, 2, 0)])
    assert torch.equal(model(*(column.to("cuda") for column in rows)).cpu(), host(*rows)) and not gpu.hazards
    assert isinstance(model.config, Config)
