"""benchmarks/two_models.py on the simulated device: what it measures, and how it is judged."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import two_models, two_models_tables
from benchmarks.two_models_checks import after_failure, too_small
from benchmarks.two_models_tables import targets
from benchmarks.two_models_ways import (
    AHEAD,
    NEEDED,
    NEEDED_WAIT,
    OURS,
    PEERS,
    RESIDENT,
    SERIAL,
    STREAMED,
    TO,
    TO_PAGEABLE,
)
from benchmarks.two_models_weights import Host, Sizes, lesson, streaming
from benchmarks.two_models_windows import Case, average
from utils import simgpu

SIZES = two_models.SMALL["sizes"]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    output, threads = tmp_path_factory.mktemp("swap") / "swap.json", torch.get_num_threads()
    torch.set_num_threads(1)                # these products are too small to share
    two_models.main(["--small", "--output", str(output), "--repeats", "2", "1"])
    torch.set_num_threads(threads)
    return json.loads(output.read_text())


@pytest.fixture
def gpu():
    """A simulated H200 on which 32 wide takes as long as 4096."""
    with simgpu.session(simgpu.H200.scaled(1 / 128)) as device:
        yield device


@pytest.fixture
def host(gpu):
    with torch.no_grad():
        yield Host(Sizes(32, 2, 48, 3))


@pytest.fixture
def case(host):
    """The resident models have run, and the budget is one slot more than a model needs."""
    found = Case(host, 6 * host.layer_bytes, 16)
    found.repeat(0, [RESIDENT])
    assert host.layer_bytes < found.working < 2 * host.layer_bytes
    return found


def exposed(case, name):
    return case["ways"][name]["exposed_ms"]["mean"]


def test_all_ways_give_the_same(result):
    for case in result["cases"]:
        assert {RESIDENT, TO, *OURS} <= set(case["ways"])
        assert {wrong for way in case["ways"].values() for wrong in way["wrong"]} == {0}
    assert TO_PAGEABLE in result["cases"][0]["ways"] and TO_PAGEABLE not in result["cases"][1]["ways"]


def test_the_switch_costs_what_the_schedules_say(result):
    copy_ms, layers = result["copy_ms"]["median"], result["layers"]
    for case in result["cases"]:
        assert exposed(case, SERIAL) == pytest.approx(layers * copy_ms, rel=0.02)
        assert exposed(case, AHEAD) <= exposed(case, NEEDED) + 0.05 < exposed(case, NEEDED_WAIT)
        assert exposed(case, NEEDED_WAIT) < exposed(case, SERIAL) < exposed(case, TO)
        assert exposed(case, STREAMED) > 0
        for name in (SERIAL, NEEDED_WAIT, NEEDED, AHEAD):                # two ways to measure one thing
            assert case["ways"][name]["waited_ms"]["median"] == pytest.approx(exposed(case, name), abs=0.05)
    assert exposed(result["cases"][1], AHEAD) < copy_ms     # here a layer runs about as long as its copy


def test_memory_is_within_the_budget(result):
    weights = result["layers"] * result["layer_bytes"]
    for case in result["cases"]:
        for name in (SERIAL, NEEDED_WAIT, NEEDED, AHEAD):
            way = case["ways"][name]
            assert weights <= way["held_bytes"] <= way["peak_bytes"] <= case["budget_bytes"]
        assert case["ways"][RESIDENT]["held_bytes"] >= 2 * weights - 2 * result["layers"] * 2048
        assert case["ways"][STREAMED]["held_bytes"] == 4 * result["layer_bytes"]


def test_only_modules_are_copied_back(result):
    for case in result["cases"]:
        back = {name: way["bytes_back"] for name, way in case["ways"].items()}
        assert {back[name] for name in (RESIDENT, *OURS)} == {0}
        assert back[TO] == pytest.approx(result["layers"] * result["layer_bytes"], rel=0.02)


def test_failure_and_small_budget(result):
    assert [row["equal"] and row["raised"] for row in result["failures"]] == [True]
    assert result["failures"][0]["layers_of_model_1_there"] > 0
    assert "budget" in result["too_small"]["error"]
    assert result["too_small"]["allocated_bytes"] == result["too_small"]["moved"] == 0


def test_all_use_the_same_host_memory(host):
    """A model is packed once; who packs again while it is lent gets the blocks that there are."""
    packed = host.blocks[host.models[0][0]][0].host
    with host.lending():
        swap = lesson.Swap(host.models, 4 * host.layer_bytes)
        assert swap.blocks[0, 0][0].host is packed
    place = next(iter(host.fresh(0)[0].parameters())).data_ptr()
    assert packed.data_ptr() <= place < packed.data_ptr() + packed.nbytes
    again = [lesson.DiTBlock(32, 2, 48)]
    assert streaming.pack(again)[0][0].host is not packed


def test_a_wrong_result_is_counted(case, host):
    class Other(type(case.makers[AHEAD](0))):
        def step(self, x, *args, **kwargs):
            return super().step(x, *args, **kwargs) * 1.01
    case.makers[AHEAD] = lambda working: Other(host, case.budget, working, ahead=True)
    case.repeat(1, [RESIDENT, AHEAD])
    assert case.wrong == {RESIDENT: [0, 0], AHEAD: [1]}


def test_layers_are_as_before_when_streaming_ends(case, host):
    case.repeat(0, [STREAMED, TO])
    assert case.wrong[STREAMED] == case.wrong[TO] == [0]
    assert all("forward" not in vars(layer) for model in host.models for layer in model)
    assert all(tensor.device.type == "cpu" for model in host.models for layer in model for tensor in layer.parameters())


def test_checks_say_what_they_saw(case, host):
    found = after_failure(case)
    assert found["raised"] and found["equal"] and found["layers_of_model_1_there"] >= 1
    found = too_small(host, 10**9, case.working)
    assert found["error"] and found["moved"] == found["allocated_bytes"] == 0


# ---- limits, on made-up results

def made_up(**changes):
    way = {"wrong": [0, 0], "waited_ms": {"median": 1.0, "all": [0.5, 1.5]}, "peak_bytes": 90,
           "exposed_ms": {"mean": 1.0, "interval": [0.5, 1.5], "repeats": 2}} | changes
    return {"cases": [{"tokens": 8, "budget_bytes": 100, "ways": {AHEAD: way}}], "copy_ms": {"median": 2.0},
            "failures": []}


@pytest.mark.parametrize("changes, states", [
    ({}, ["met"] * 4), ({"wrong": [0, 1]}, ["missed", "met", "met", "met"]),
    ({"waited_ms": {"median": 1.0, "all": [0.5, 2.5]}}, ["met", "missed", "met", "met"]),
    ({"exposed_ms": {"mean": 1.0, "interval": [-1.0, 3.0], "repeats": 2}}, ["met", "met", "not shown", "met"]),
    ({"exposed_ms": {"mean": 3.0, "interval": None, "repeats": 1}}, ["met", "met", "missed", "met"]),
    ({"peak_bytes": 101}, ["met", "met", "met", "missed"])])
def test_limits(changes, states):
    assert [found["state"] for found in targets(made_up(**changes))] == states


def test_limits_of_checks():
    fine = {"error": "too small", "allocated_bytes": 0, "moved": 0}
    for row, state in ((fine, "met"), (fine | {"error": None}, "missed"), (fine | {"moved": 1}, "missed"),
                       (fine | {"allocated_bytes": 512}, "missed")):
        assert targets(made_up() | {"too_small": row})[-1]["state"] == state
    for raised, equal, state in ((True, True, "met"), (False, True, "missed"), (True, False, "missed")):
        assert targets(made_up() | {"failures": [{"raised": raised, "equal": equal}]})[-1]["state"] == state


def test_intervals_of_differences():
    assert average([1.0, 3.0]) == {"mean": 2.0, "interval": [round(2 - 12.706, 4), round(2 + 12.706, 4)], "repeats": 2}
    assert average([1.0])["interval"] is None


def test_tables_have_a_row_for_every_way(result):
    tables = list(two_models_tables.tables(result))
    assert len(tables) == 2
    for table, case in zip(tables, result["cases"], strict=True):
        assert [line.split(" | ")[0].strip("| ") for line in table.splitlines()[2:]] == list(case["ways"])
        assert len({line.count("|") for line in table.splitlines()}) == 1


# ---- what is recorded

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
TABLES = ("two_models_h200.json", "two_models_h200_16384.json")
RECORDED = (*TABLES, "two_models_h200_first.json")


def recorded(name):
    return json.loads((BENCHMARKS / "results" / name).read_text())


def test_the_page_has_the_recorded_tables():
    page = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    for name in TABLES:
        for table in two_models_tables.tables(recorded(name)):
            assert table in page, table


def test_the_page_has_what_ahead_exposed_in_every_recording():
    page = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    for name in RECORDED:
        (case,) = recorded(name)["cases"]
        exposed = two_models_tables.plus_minus(case["ways"][AHEAD]["exposed_ms"]).replace("-", "\u2212")
        assert f"{exposed} ms" in page, exposed


def test_peers_are_recorded_beside_ours():
    (case,) = recorded(TABLES[0])["cases"]
    assert set(case["ways"]) == {RESIDENT, *OURS, *PEERS}


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_limits_follow_from_the_recorded_times(name):
    result = recorded(name)
    assert result["machine"]["gpu"] == "NVIDIA H200"
    assert result["targets"] == two_models_tables.targets(result)
