"""What the simulated device does equals what was recorded on a real one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from simgpu_programs import copies, errors, graphs, memory, reads, streams
from simgpu_programs.measure import PROGRAMS, calibrate

from utils import simgpu

RECORDED = Path(__file__).resolve().parents[1] / "benchmarks" / "results" / "simgpu_vs_gpu_h200.json"
MODULES = (copies, reads, streams, memory, graphs, errors)
ONLY_TIMES = {"overlap"}    # it moves gigabytes and looks at none of them


def test_every_program_was_recorded():
    recorded = json.loads(RECORDED.read_text())
    assert set(recorded["results"]) == set(PROGRAMS) and recorded["device"] == "NVIDIA H200"


@pytest.mark.parametrize("name", PROGRAMS)
def test_simulated_equals_recorded(name):
    recorded = json.loads(RECORDED.read_text())["results"][name]
    with simgpu.session(simgpu.H200, numerics="shapes" if name in ONLY_TIMES else "exact"):
        calibrate()
        found = json.loads(json.dumps(PROGRAMS[name]()))
        torch.cuda.synchronize()
    assert found == recorded
