"""benchmarks/all_gather.py with two processes, gloo and simulated devices: what it measures, and what it keeps."""

from __future__ import annotations

import json

import pytest

from benchmarks import all_gather, all_gather_tables
from benchmarks.all_gather_models import (
    COPIES,
    FIRST_IN,
    FSDP,
    FSDP_EXPLICIT,
    GATHERS,
    RESIDENT,
    RING,
    RING_3,
    SERIAL,
)
from utils.trace import Trace

SIZES = all_gather.SMALL
GATHERED = {SERIAL: 1, RING: 2, RING_3: 3, FIRST_IN: 2, COPIES: 2}           # slots


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Its result, and the folder with its traces."""
    folder = tmp_path_factory.mktemp("gather")
    all_gather.main(["--small", "--output", str(folder / "gather.json"), "--traces", str(folder / "traces")])
    return json.loads((folder / "gather.json").read_text()), folder / "traces"


def test_rates_by_size(run):
    for part in ("rates", "copies"):
        rows = run[0][part]["rows"]
        assert [row["mib"] * 2**20 for row in rows] == SIZES["nbytes"]
        assert all(row["ms"] > 0 for row in rows)
        assert ["product_beside_ms" in row for row in rows] == [n >= SIZES["beside_from"] for n in SIZES["nbytes"]]


def test_the_ring_gives_what_the_resident_model_gives(run):
    for row in run[0]["mlp"]["rows"]:
        assert set(row["ways"]) == {RESIDENT, *GATHERED, GATHERS, FSDP, FSDP_EXPLICIT}
        assert {row["ways"][name]["wrong_calls"] for name in (RESIDENT, *GATHERED, GATHERS)} == {0}
        assert row["calls"] == SIZES["calls"] * SIZES["repeats"]
    for row in run[0]["llama"].get("rows", []):            # with transformers
        assert row["ways"][RESIDENT]["wrong_calls"] == row["ways"][RING]["wrong_calls"] == 0


def test_the_ring_hides_gathers(run):
    """Simulated times are exact: one slot takes the sum, the ring the larger of the two and one of the other."""
    layers = SIZES["layers"]
    for row in run[0]["mlp"]["rows"]:
        ms = {name: way["ms"]["median"] for name, way in row["ways"].items()}
        assert ms[SERIAL] == pytest.approx(ms[GATHERS] + ms[RESIDENT], rel=0.01)
        small, large = sorted((ms[GATHERS], ms[RESIDENT]))
        assert large <= ms[RING] <= large + small / layers + 0.01
        assert ms[RING_3] <= ms[RING] + 0.01
        assert row["ways"][RING]["over_bound"]["mean"] == pytest.approx(ms[RING] / large, rel=0.001)


def test_memory_is_half_the_layers_and_the_slots(run):
    result = run[0]
    layer, layers = result["mlp"]["shape"]["layer_bytes"], result["mlp"]["shape"]["layers"]
    memory = result["mlp"]["memory"]
    held = {name: row["held_bytes"] / layer for name, row in memory.items()}
    assert held == {RESIDENT: layers, FSDP: layers / 2, FSDP_EXPLICIT: layers / 2} | {
        name: layers / 2 + slots for name, slots in GATHERED.items()}
    assert all(row["peak_bytes"] == row["held_bytes"] for name, row in memory.items() if name[0] != "F")


def test_traces_open_and_hold_every_layer(run):
    result, folder = run
    names = [found["file"] for found in result["mlp"]["traces"]]
    assert names == [f"h200x2_{way}_b{SIZES['traced'][0]}.json.gz" for way in ("ring", "copies", "fsdp2")]
    spans = Trace.load(folder / names[0]).spans
    assert (spans.kind == "h2d").sum() >= 2 * SIZES["layers"] and (spans.name == "mm").sum() == 2 * SIZES["layers"]


def test_two_stages(run):
    for row, m in zip(run[0]["pipeline"]["rows"], SIZES["micro"], strict=True):
        assert row["micro_batches"] == m and row["formula"] == pytest.approx(1 / (m + 1), abs=1e-4)
        assert set(row["wrong"].values()) == {0}
        assert all(len(found["all"]) == SIZES["stage_repeats"] for found in row["bubble_share"].values())


def test_its_tables_have_a_row_for_every_program(run):
    made = list(all_gather_tables.tables(run[0]))
    by_corner = {all_gather_tables.corner(table).strip(): table for table in made}
    assert len(by_corner) == len(made) == (10 if "rows" in run[0]["llama"] else 6)      # with transformers, or without
    for part in ("mlp", "llama") if "rows" in run[0]["llama"] else ("mlp",):
        ways = run[0][part]["rows"][0]["ways"]
        assert all(f"\n| {way} | {found['ms']['median']:.2f}" in by_corner[f"{part}, ms per call"]
                   for way, found in ways.items())
    assert by_corner["micro-batches"].count("\n| ") == len(SIZES["micro"])


def test_what_it_ran_on(run):
    machine = run[0]["machine"]
    assert machine["gpus"] == 2 and machine["gpu"] is None and machine["nccl"] is None


def test_without_two_gpus_it_says_so(capsys):
    with pytest.raises(SystemExit):
        all_gather.main([])
    error = capsys.readouterr().err
    assert "needs 2 CUDA devices" in error and "--small" in error


def test_a_part_that_fails_is_named_and_the_others_are_kept(tmp_path, capsys):
    output = tmp_path / "gather.json"
    output.write_text(json.dumps({"mlp": {"rows": [1]}}))
    with pytest.raises(SystemExit, match=r"failed: rates; what was measured is in gather\.json"):
        all_gather.main(["--small", "--update", "--only", "rates", "--seconds", "0", "--output", str(output)])
    result = json.loads(output.read_text())
    assert result["mlp"] == {"rows": [1]} and "longer than 0 s" in result["rates"]["failed"]
