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
    """There the ring costs what its slower half does, one copy or product at the start, and what a wait costs."""
    few, many = result["rows"]
    assert (few["batch"], few["pace"], many["batch"], many["pace"]) == (32, "copies", 128, "products")
    for row in (few, many):
        assert row[BESIDE]["over alone"]["mean"] == pytest.approx(1, abs=1e-3)
        assert row[RING_WAITS]["over alone, waits"]["repeats"] == row["rounds"] == 2
        assert 1 < row[RING]["over alone"]["mean"] < 1 + 1.05 / (row["calls"] * 4)
        assert row[RING]["over alone"]["mean"] <= row[RING_WAITS]["over alone"]["mean"] < 1.1
        assert 1 < row[ALONE_WAITS]["over alone"]["mean"] < 1.02


def test_as_many_copies_as_layers_go_beside_each_call():
    with simgpu.session(simgpu.H200.scaled(1 / 128), keep="all") as gpu, torch.no_grad():
        side = Side(random_weights(3, 64))
        x = torch.randn(256, 64, dtype=torch.bfloat16).to("cuda")
        before = len(gpu.trace())
        ring = range(3 + 4 * 3, 3 + 4 * 3 + 4)          # to warm up, and four calls, and what is loaded ahead
        for program, copies in ((ALONE, [0]), (BESIDE, [12]), (RING, ring), (RING_WAITS, ring)):
            side.window(program, x, 4, copy_bound=False)
            kinds = list(gpu.trace().columns["kind"])[before:]
            assert kinds.count("h2d") in copies and kinds.count("kernel") == 5 * 3
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


def test_the_page_has_the_recorded_tables():
    found, page = json.loads(RECORDED.read_text()), (RECORDED.parents[1] / "README.md").read_text(encoding="utf-8")
    assert found["machine"]["gpu"] == "NVIDIA H200"
    tables = beside_copies.tables(found["rows"])
    assert len(tables) == 2 and all(table in page for table in tables)
