"""A plain decoder in float64 over a whole sequence, without a cache, written from the models' papers."""

import math
from dataclasses import replace

import torch

from utils.decoder import TINY, Stretch, parts, whole

VARIANTS = {
    "grouped": TINY,
    "each its own key": replace(TINY, kv_heads=4),
    "one key for all": replace(TINY, kv_heads=1, heads=3, dim=10, tied=True),
    "biases": replace(TINY, qkv_bias=True, rope_theta=1e6),
    "norms of heads": replace(TINY, qk_norm=True, dim=24, eps=1e-6),
    "stretched": replace(TINY, stretch=Stretch(8.0, 1.0, 4.0, 16)),
}


def normed(x, weight, eps):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def angle_of(config, position, pair):
    """Radians."""
    turn = config.rope_theta ** (-2 * pair / config.dim)
    if (stretch := config.stretch) is not None:
        wave = 2 * math.pi / turn
        short, long = stretch.original / stretch.high, stretch.original / stretch.low
        if wave > long:
            turn /= stretch.factor
        elif wave >= short:
            smooth = (stretch.original / wave - stretch.low) / (stretch.high - stretch.low)
            turn = (1 - smooth) * turn / stretch.factor + smooth * turn
    return position * turn


def turned(x, config):
    """x (tokens, heads, dim), each pair (i, i + dim / 2) as a complex number."""
    half = config.dim // 2
    angles = torch.tensor([[angle_of(config, n, i) for i in range(half)] for n in range(len(x))], dtype=torch.float64)
    pairs = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat([pairs.real, pairs.imag], -1)


def reference(model, tokens):
    """Scores after each token of one request, float64 (tokens, words)."""
    config = model.config
    named = {name: part.double() for name, part in whole(parts(model.weights, config)).items()}
    x = named["model.embed_tokens.weight"][tokens]
    for number in range(config.layers):
        one = {name.removeprefix(f"model.layers.{number}."): part for name, part in named.items()}
        x = x + attended(normed(x, one["input_layernorm.weight"], config.eps), one, config)
        h = normed(x, one["post_attention_layernorm.weight"], config.eps)
        gate = h @ one["mlp.gate_proj.weight"].T
        x = x + (gate * torch.sigmoid(gate) * (h @ one["mlp.up_proj.weight"].T)) @ one["mlp.down_proj.weight"].T
    head = named.get("lm_head.weight", named["model.embed_tokens.weight"])
    return normed(x, named["model.norm.weight"], config.eps) @ head.T


def attended(h, one, config):
    def project(letter):
        found = h @ one[f"self_attn.{letter}_proj.weight"].T + one.get(f"self_attn.{letter}_proj.bias", 0)
        found = found.view(len(h), -1, config.dim)
        if letter in "qk" and config.qk_norm:
            found = normed(found, one[f"self_attn.{letter}_norm.weight"], config.eps)
        return turned(found, config) if letter in "qk" else found

    q, k, v = map(project, "qkv")
    out = []
    for head in range(config.heads):
        shared = head // config.group
        scores = q[:, head] @ k[:, shared].T / math.sqrt(config.dim)
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -math.inf)
        out.append(scores.softmax(-1) @ v[:, shared])
    return torch.stack(out, 1).flatten(1) @ one["self_attn.o_proj.weight"].T


def greedy(model, prompt, count):
    """The tokens that follow a prompt."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(reference(model, torch.tensor(tokens))[-1].argmax()))
    return tokens[len(prompt):]
