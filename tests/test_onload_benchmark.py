"""benchmarks/onload.py and csan.py on the simulated device, and what is written about their recorded results."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.cuda import _sanitizer

from benchmarks import after_wait, csan, onload, onload_mlp, onload_predict, onload_tables, onload_targets
from benchmarks.onload_programs import (
    COPIES,
    PLAIN,
    PUBLISHED,
    RESIDENT,
    RING,
    RING_3,
    SERIAL,
    STREAMED,
    copies_alone,
    copy_of,
    mlp_makers,
    random_weights,
    ring_mlp,
)
from benchmarks.onload_windows import BACK_TO_BACK, READ, SYNCHRONIZE, compare, measure, ratio
from utils import simgpu

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
LAYERS, CALLS, COPY_BOUND, COMPUTE_BOUND = 5, 4, 32, 128


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    output, threads = tmp_path_factory.mktemp("onload") / "onload.json", torch.get_num_threads()
    torch.set_num_threads(1)                # these products are too small to share
    onload.main(["--simulate", "--output", str(output), "--parts", "memory", "equality", "mlp", "--width", "64",
                 "--layers", str(LAYERS), "--batches", str(COPY_BOUND), str(COMPUTE_BOUND), "--calls", str(CALLS),
                 "--repeats", "2", "--full", "1", "--equal-width", "32", "--equal-batches", "64", "--equal-calls", "3",
                 "--equal-layers", "1", "2", "3"])
    torch.set_num_threads(threads)
    return json.loads(output.read_text())


def times(result, batch, program, way=BACK_TO_BACK):
    return next(row for row in result["mlp"] if row["batch"] == batch)["programs"][program][way]["ms"]["median"]


def test_times_are_those_of_the_schedules(result):
    for batch in (COPY_BOUND, COMPUTE_BOUND):
        copy, compute = times(result, batch, "copies alone"), times(result, batch, RESIDENT)
        uncovered = min(copy, compute) / LAYERS           # the first copy, or the last product
        assert times(result, batch, SERIAL) == pytest.approx(copy + compute, rel=0.01)
        assert times(result, batch, PLAIN, SYNCHRONIZE) == pytest.approx(max(copy, compute) + uncovered, rel=0.01)
        for way in (BACK_TO_BACK, SYNCHRONIZE):
            assert times(result, batch, RING, way) == pytest.approx(max(copy, compute) + uncovered / CALLS, rel=0.01)


def test_ours_are_right_and_the_published_schedule_is_not(result):
    assert {row["layers"] for row in result["equality"]} == {1, 2, 3}
    for row in result["equality"]:
        wrong = 2 if row["program"] == PUBLISHED and row["layers"] != 2 else 0      # all calls but the last
        assert row["wrong_calls"] == wrong, row
    programs = next(row for row in result["mlp"] if row["batch"] == COMPUTE_BOUND)["programs"]
    assert programs[PUBLISHED][BACK_TO_BACK]["wrong_calls"] != [0]
    assert {sum(row["wrong_calls"]) for name in (SERIAL, PLAIN, RING, RING_3) for row in programs[name].values()} == {0}


def test_every_window_has_its_copies(result):
    for row in result["mlp"]:
        plain = row["programs"][PLAIN][BACK_TO_BACK]
        assert plain["copies_in_window"] == [LAYERS * plain["calls"]]
        assert row["programs"][PUBLISHED][BACK_TO_BACK]["calls"] == CALLS     # it overlaps its calls: as many as ours
        assert min(row["programs"][RING][BACK_TO_BACK]["copies_in_window"]) >= LAYERS * CALLS


def test_memory_is_the_slots(result):
    layers = {name: row["peak_beyond_activations_layers"] for name, row in result["memory"]["programs"].items()}
    assert layers[RESIDENT] == LAYERS and layers[SERIAL] == 1 and layers[RING] == layers[STREAMED] == 2
    assert layers[RING_3] == 3
    judged = [found["state"] for found in result["targets"]
              if "on the GPU" in found["target"] or "alloc" in found["target"]]
    assert judged == ["met"] * 6


def test_a_window_that_began_loaded_is_refused(gpu):
    weights = [torch.ones(8, 8, dtype=torch.bfloat16).pin_memory() for _ in range(3)]
    program, x = ring_mlp(RING, weights, 2, True), torch.ones(4, 8, dtype=torch.bfloat16, device="cuda")
    assert measure(program, [x] * 2, BACK_TO_BACK).copies >= 6
    program.ring.restart = lambda: None
    with pytest.raises(RuntimeError, match="loaded before the clock starts: 1"):
        measure(program, [x] * 2, BACK_TO_BACK)
    with pytest.raises(RuntimeError, match="0 copies for 2 calls of 3 layers"):
        ring_mlp(PLAIN, weights, 2, False).check_copies(2)


def test_the_median_call_has_no_cold_start(result):
    for row in result["mlp"]:
        copy, compute = (row["programs"][name][BACK_TO_BACK]["median_call"]["ms"]["median"]
                         for name in (COPIES, RESIDENT))
        for way in (BACK_TO_BACK, SYNCHRONIZE):
            ring = row["programs"][RING][way]["median_call"]
            assert ring["ms"]["median"] == pytest.approx(max(copy, compute), rel=0.005)
            assert ring["over_bound"]["mean"] < row["programs"][RING][way]["over_bound"]["mean"]


@pytest.mark.parametrize("batch", [COPY_BOUND, COMPUTE_BOUND])
def test_what_takes_longer_is_launched_first_and_no_window_of_products_follows_the_copies(batch, monkeypatch):
    with simgpu.session(simgpu.H200.scaled(64 / 8192), keep="none"), torch.no_grad():
        weights = random_weights(3, 64)
        programs = {name: make() for name, make in mlp_makers(weights).items()}
        programs[COPIES] = copies_alone([copy_of(weight) for weight in weights],
                                        [torch.empty_like(weights[0], device="cuda") for _ in range(2)])
        x = torch.randn(batch, 64, dtype=torch.bfloat16, device="cuda")
        timing, seen = onload_mlp.Timing(weights, programs, [x] * 4), []
        monkeypatch.setattr(timing, "_window", lambda task, warm_up=1: seen.append(task.program))
        for _ in timing.core:
            timing.repeat(everything=False)
    where = [n % (len(seen) // len(timing.core)) for n, name in enumerate(seen) if name == COPIES]
    assert set(where) == ({0} if batch == COMPUTE_BOUND else set(range(len(timing.core))))
    assert timing.copy_first == (batch == COPY_BOUND) == programs[RING].ring.copy_first
    assert timing.result()["copy_first"] == timing.copy_first


def test_rows_of_other_batch_sizes_are_kept():
    before, found = [{"batch": 1, "n": 0}, {"batch": 3, "n": 0}], [{"batch": 2, "n": 1}, {"batch": 3, "n": 1}]
    assert [row["n"] for row in onload.merged(before, found)] == [0, 1, 1]


@pytest.mark.parametrize(("batch", "bound"), [(COPY_BOUND, "link"), (COMPUTE_BOUND, "compute")])
def test_a_wait_costs_less_where_the_longer_one_is_launched_first(batch, bound):
    """On a host that needs 100 us for a launch."""
    profile = replace(simgpu.H200.scaled(64 / 8192), launch_ns=100_000)
    with simgpu.session(profile, keep="none"), torch.no_grad():
        first, second = after_wait.rows(random_weights(4, 64), (batch,), calls=3, rounds=1)
    assert (first["copy_first"], second["copy_first"], first["waits"]) == (True, False, 2)
    lost = [row[f"{bound}_lost_us"]["median"] for row in (first, second)]
    assert (lost[0] < lost[1] - 90) if bound == "link" else (lost[1] < lost[0] - 90)
    assert all(row["later_layers_us"]["median"] > 0 for row in (first, second))


def test_comparison_counts_each_wrong_call(gpu):
    right = [torch.full((2,), 3.0, device="cuda"), torch.full((2,), 4.0, device="cuda")]
    assert compare(right, right) == (0, 0.0)
    assert compare([right[0], right[1] * 1.5], right) == (1, 0.5)
    assert compare([right[1]], right) == (1, pytest.approx(1 / 3))


def test_intervals():
    found = ratio([2.0, 2.2, 1.8], [1.0, 1.0, 1.0])
    assert found == {"mean": 2.0, "interval": [round(2 - 4.303 * 0.2 / 3**0.5, 5), round(2 + 4.303 * 0.2 / 3**0.5, 5)],
                     "repeats": 3}
    assert ratio([3.0], [2.0])["interval"] is None
    assert onload_mlp.paired({0: 2.0, 1: 9.0, 2: 4.0}, {0: 1.0, 2: 2.0}) == {"mean": 2.0, "interval": [2.0, 2.0],
                                                                           "repeats": 2}


def test_a_target_tells_a_wide_interval_from_a_miss():
    def state(mean, upper):
        return onload_targets.at_most("x", 1.005, {"mean": mean, "interval": [mean, upper]})["state"]
    assert [state(1.0, 1.004), state(1.004, 1.02), state(1.006, 1.02)] == ["met", "not shown", "missed"]
    assert onload_targets.bound_limit(58.2, 58.0) == 1.02 and onload_targets.bound_limit(58.2, 80.0) == 1.005


@pytest.fixture
def loop():
    """Times by repeat of a program that waits, beside copies and products that do and do not."""
    def times(*values):
        return {"ms": {"all": list(values)}}
    return {COPIES: {BACK_TO_BACK: times(58.0, 59.0)}, RING: {SYNCHRONIZE: times(80.8, 82.42)},
            RESIDENT: {BACK_TO_BACK: times(80.0, 81.0), SYNCHRONIZE: times(80.4, 81.6)}}


def test_called_alike_the_bound_waits_too(loop):
    assert onload_targets.over_bound_alike(loop) == ratio([80.8, 82.42], [80.4, 81.6])
    loop[COPIES][BACK_TO_BACK]["ms"]["all"] = [80.6, 90.0]              # the larger one of each repeat
    assert onload_targets.over_bound_alike(loop) == ratio([80.8, 82.42], [80.6, 90.0])


@pytest.mark.parametrize("program", [COPIES, RESIDENT])
def test_called_alike_needs_the_same_repeats(loop, program):
    for way in loop[program].values():
        del way["ms"]["all"][0]
    assert onload_targets.over_bound_alike(loop) is None


def test_called_alike_needs_a_resident_model_that_waits(loop):
    del loop[RESIDENT][SYNCHRONIZE]
    assert onload_targets.over_bound_alike(loop) is None


def test_called_alike_is_a_limit_beside_the_stated_one(result):
    cells = []
    for row in result["mlp"]:
        found = {target["target"]: target["found"] for target in onload_targets.of_batch(row)}
        assert {SYNCHRONIZE in name for name in found if "called alike" in name} == {True}
        stated, alike = (found[f"batch {row['batch']}, {SYNCHRONIZE}: time over max(copy, compute{word}) at most 1.005"]
                         for word in ("", " called alike"))
        assert stated == row["programs"][RING][SYNCHRONIZE]["over_bound"]
        assert alike == onload_targets.over_bound_alike(row["programs"])
        cells.append(onload_tables.interval(alike))
    line = f"| over max(copy, compute called alike) | {' | '.join(cells)} |"
    assert [line in table for table in onload_tables.tables(result) if table.startswith(f"| {RING}, ")] == [
        False, True, False]


def test_unrelated_copies_and_products_do_not_delay_each_other_here(result):
    for row in result["mlp"]:
        beside = {name: found["median"] for name, found in row["beside_each_other"].items()}
        assert beside["copy_ms"] == pytest.approx(times(result, row["batch"], "copies alone"), rel=0.01)
        assert beside["compute_ms"] == pytest.approx(times(result, row["batch"], RESIDENT), rel=0.01)


# ---- what is recorded

def recorded(name):
    return json.loads((BENCHMARKS / "results" / name).read_text())


def test_the_page_has_the_recorded_tables():
    page = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    for table in [*onload_tables.tables(recorded("onload_h200.json")), csan.table(recorded("csan_h200.json")["rows"]),
                  after_wait.table(recorded("after_wait_h200.json")["rows"])]:
        assert table in page, table


def test_the_page_has_the_tables_of_the_second_run():
    page, result = (BENCHMARKS / "README.md").read_text(encoding="utf-8"), recorded("onload_h200_2.json")
    tables = [table for table in onload_tables.tables(result | {"memory": recorded("onload_h200.json")["memory"]})
              if not table.startswith("| weights")]
    assert len(tables) == 6 and all(table in page for table in tables)
    assert result["targets"] == [target for row in result["mlp"] for target in onload_targets.of_batch(row)]


def test_a_batch_size_recorded_before_is_kept_and_quoted():
    page, earlier = (BENCHMARKS / "README.md").read_text(encoding="utf-8"), recorded("onload_h200_2.json")["earlier"]
    (row,) = earlier["mlp"]
    assert row["batch"] == 2048
    for way in (BACK_TO_BACK, READ):
        assert onload_tables.interval(row["programs"][RING][way]["over_bound"]) in page


def test_predictions_are_within_3_percent_and_on_the_page():
    errors = onload_predict.errors_percent()
    assert len(errors) == 6 and all(abs(error) <= 3 for found in errors.values() for error in found.values())
    assert onload_predict.table(errors) in (BENCHMARKS / "README.md").read_text(encoding="utf-8")


def test_recorded_targets_follow_from_the_recorded_times():
    result = recorded("onload_h200.json")
    assert result["machine"]["gpu"] == "NVIDIA H200" and len(result["mlp"]) == 7
    assert result["targets"] == onload_targets.targets(result)


@pytest.mark.parametrize("name", csan.PROGRAMS)
def test_simulated_device_finds_what_is_recorded(name):
    row = next(row for row in recorded("csan_h200.json")["rows"] if row["program"] == name)
    does, races, _ = csan.PROGRAMS[name]
    assert (row["does"], row["races"]) == (does, races)
    found = csan.simulated(name)["steps"]
    assert found == row["simulated"]["steps"]
    assert bool(found) == races or name == "numpy_reads_early"


def test_reports_lose_addresses_and_places():
    handler = _sanitizer.EventHandler()
    handler._handle_stream_creation(94646435460352)
    handler._handle_memory_allocation(139719969079296)
    arguments = {139719969079296}, {139719969079296: ["self"]}
    handler._handle_kernel_launch(0, arguments[0], set(), set(), "aten::mm", arguments[1])
    errors = handler._handle_kernel_launch(94646435460352, set(), arguments[0], set(), "aten::copy_", arguments[1])
    text = csan.tidy(str(errors[0]))
    assert "data pointer A" in text and "by stream A during" in text and "by stream B during" in text
    assert "aten::copy_" in text and not any(word in text for word in ("1397", "9464", "site-packages", "/"))
