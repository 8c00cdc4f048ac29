"""The decode step's own kernels: by Triton's interpreter on the CPU, and compiled where there is a CUDA device."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from decoder_fused import CELLS, POSITIONS, both, exactly, filled, rows

from utils import simgpu
from utils.decoder import LLAMA_3_8B, Config, SlotDecoder, fused

WIDE = Config(words=512, width=512, layers=3, heads=8, kv_heads=2, dim=64, hidden=1024)


def test_in_the_interpreter():
    """In a process of its own: how kernels run is settled when triton is imported."""
    pytest.importorskip("triton", reason="it comes with PyTorch where that is for CUDA")
    here = Path(__file__).parent
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(here / "decoder_interpreted.py"),
         "-W", "ignore:Conversion of an array:DeprecationWarning"],         # Triton 3.5's own, with NumPy 2
        cwd=here.parent, env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}, text=True,
        capture_output=True)
    if "TypeError('only 0-dimensional arrays can be converted" in found.stdout:
        pytest.skip("the interpreter of Triton 3.6 and older does not work with NumPy 2.5")
    assert found.returncode == 0 and "16 passed" in found.stdout, found.stdout[-4000:] + found.stderr[-1000:]


def test_whom_the_kernels_are_for():
    assert fused.fits(LLAMA_3_8B) and fused.fits(WIDE)
    for changes in ({"qkv_bias": True}, {"qk_norm": True}, {"dim": 48}, {"width": 500}, {"hidden": 1000}, {"dim": 8}):
        assert not fused.fits(replace(WIDE, **changes))
    assert not SlotDecoder(WIDE, 2, 16, device="cpu").fused
    with simgpu.session(simgpu.H200):
        assert not SlotDecoder(WIDE, 2, 16).fused


@pytest.mark.parametrize("words", [4096, 96, 50, 16])
def test_the_greedy_token_by_pieces(words):
    """The first of those that are equal, as with argmax."""
    scores = torch.randn(40, words).bfloat16()
    scores[::2] = scores[::2].round()
    scores[4] = 1.0
    scores[5, 3::7] = torch.inf
    assert torch.equal(fused.greedy(scores), scores.argmax(-1)) and fused.greedy(scores)[4] == 0


def test_where_no_kernel_can_be_made_the_operators_remain(monkeypatch):
    def normed(*_):
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(fused, "normed", normed)
    with simgpu.session(simgpu.H200), pytest.warns(UserWarning, match="Failed to find C compiler.*take longer"):
        assert not fused.can_make.__wrapped__()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("positions", POSITIONS)
def test_compiled_as_near_to_float32_as_the_operators_and_the_same_as_a_graph(dtype, positions):
    model, live = filled(WIDE, dtype, "cuda"), torch.tensor(positions) >= 0
    assert model.fused and not SlotDecoder(WIDE, fused.ROWS + 1, 16).fused
    truth = exactly(model, positions)[live]
    (plain, *caches), (found, *own) = both(model, positions, "cuda")
    assert (found[live] - truth).abs().max() < 1.5 * (plain[live] - truth).abs().max() < 0.2
    for theirs, ours in zip(caches, own, strict=True):
        torch.testing.assert_close(ours[:, :, :, :CELLS], theirs[:, :, :, :CELLS], atol=0.2, rtol=0)
    model.fused, given = True, rows(positions, "cuda")
    expected, tokens = model.logits(*given, one_each=True), model.decode(*given)
    assert torch.equal(tokens, expected.argmax(-1))
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        replayed = model.logits(*given, one_each=True)
    graph.replay()
    assert torch.equal(replayed[live], expected[live])
