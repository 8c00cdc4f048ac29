"""benchmarks/beside_copies.py on the simulated device, where copies cost products nothing."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import beside_copies
from benchmarks.beside_copies import ALONE, ALONE_WAITS, BESIDE, RING, RING_WAITS, Meter, Side
from benchmarks.onload_programs import random_weights
from utils import simgpu

RECORDED = Path(beside_copies.__file__).parent / "results" / "beside_copies_h200.json"


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    output = tmp_path_factory.mktemp("beside") / "found.json"
    beside_copies.main(["--small", "--output", str(output)])
    return json.loads(output.read_text())


def test_engines_of_the_model_do_not_disturb_each_other(result):
    """There the ring costs what the resident model does, but for the launches of copies after each wait."""
    assert [row["batch"] for row in result["rows"]] == [96, 128]
    for row in result["rows"]:
        assert row[BESIDE]["over alone"]["mean"] == pytest.approx(1, abs=1e-3)
        assert row[RING_WAITS]["over alone, waits"]["repeats"] == row["rounds"] == 2
    _, row = result["rows"]                 # products take longer than copies
    assert row[RING]["over alone"]["mean"] == pytest.approx(1, abs=2e-3)
    assert 1 < row[ALONE_WAITS]["over alone"]["mean"] <= row[RING_WAITS]["over alone"]["mean"] < 1.02


def test_as_many_copies_as_layers_go_beside_each_call(monkeypatch):
    with simgpu.session(simgpu.H200.scaled(1 / 128), keep="all") as gpu, torch.no_grad():
        side = Side(random_weights(3, 64))
        x = torch.randn(256, 64, dtype=torch.bfloat16).to("cuda")
        before = len(gpu.trace())
        for program, copies in ((ALONE, 0), (BESIDE, 12), (RING, 5 * 3 + 1), (RING_WAITS, 5 * 3)):
            side.window(program, x, 4)
            kinds = list(gpu.trace().columns["kind"])[before:]
            assert kinds.count("h2d") == copies and kinds.count("kernel") == (5 if "ring" in program else 4) * 3
            before += len(kinds)


def test_readings_are_those_of_the_second_half():
    meter = Meter()
    meter.values = [(100, 1000), (200, 1500), (300, 1700), (500, 1900)]
    assert meter.means() == {"watt": 400, "mhz": 1800}
    meter.values = []
    assert meter.means() == {}


def test_meter_reads_until_it_is_left():
    meter = Meter()
    meter.read = lambda: (1.0, 2.0)
    with meter:
        while len(meter.values) < 3:
            pass
    count = len(meter.values)
    assert count >= 3 and not meter.thread.is_alive() and meter.means() == {"watt": 1, "mhz": 2}
