"""The decode step's own kernels on the CPU, by Triton's interpreter.

test_decoder_fused.py runs this with TRITON_INTERPRET=1.
"""

from dataclasses import replace

import pytest
import torch
from decoder_fused import CELLS, POSITIONS, both, exactly, filled, rows, scores

from utils.decoder import Config, fused

SIZES = Config(words=64, width=128, layers=2, heads=8, kv_heads=2, dim=32, hidden=256)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    for name, value in {"COLUMNS": 64, "DEPTH": 32, "SPLITS": 4, "CELLS": 16}.items():
        monkeypatch.setattr(fused, name, value)


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("changes", [{}, {"kv_heads": 8}, {"kv_heads": 1, "dim": 16}, {"tied": True, "eps": 0.1}])
def test_the_same_as_the_operators(positions, changes):
    model, live = filled(replace(SIZES, **changes), torch.float32, "cpu"), torch.tensor(positions) >= 0
    (plain, *caches), (found, *own) = both(model, positions)
    torch.testing.assert_close(found[live], plain[live], atol=1e-5, rtol=0)
    for theirs, ours in zip(caches, own, strict=True):
        torch.testing.assert_close(ours[:, :, :, :CELLS], theirs[:, :, :, :CELLS], atol=1e-5, rtol=0)


def test_half_precision_is_as_near():
    """To float32, as the operators are."""
    model = filled(SIZES, torch.float16, "cpu")
    truth = exactly(model, POSITIONS[1])
    (plain, *_), (found, *_) = both(model, POSITIONS[1])
    assert (found - truth).abs().max() < 1.5 * (plain - truth).abs().max() < 0.02


def test_only_cells_before_a_row_are_read_and_padding_changes_nothing():
    model = filled(SIZES, torch.float32, "cpu")
    positions = [20, -1, 0, -1, 33]
    expected = both(model, positions)[1][0]
    for part in (model.cache.keys, model.cache.values):
        for slot, position in enumerate(positions):
            part[:, slot, :, max(position, 0):] = torch.nan
    before = [part.clone() for part in (model.cache.keys, model.cache.values)]
    found = scores(model, *rows(positions, "cpu"))
    live = torch.tensor(positions) >= 0
    assert torch.equal(found[live], expected[live])
    for part, kept in zip((model.cache.keys, model.cache.values), before, strict=True):
        changed = (part.nan_to_num(7e7) != kept.nan_to_num(7e7)).any(-1).nonzero()[:, [1, 3]].unique(dim=0).tolist()
        assert changed == [[0, 20], [2, 0], [4, 33]]


def test_a_gated_product_is_gate_and_up():
    x, weight = torch.randn(5, 256), torch.randn(256, 256) / 16
    gate, up = (x @ weight.t()).chunk(2, -1)
    torch.testing.assert_close(fused.gated(x, weight), torch.nn.functional.silu(gate) * up, atol=1e-5, rtol=0)


def test_a_split_product_is_the_whole_product():
    x, weight = torch.randn(5, 256), torch.randn(128, 256)
    parts = fused.product(x, weight)
    assert parts.shape == (4, 5, 128) and parts.dtype == torch.float32
    torch.testing.assert_close(parts[1], x[:, 64:128] @ weight[:, 64:128].t(), atol=1e-4, rtol=0)
    torch.testing.assert_close(parts.sum(0), x @ weight.t(), atol=1e-4, rtol=0)
