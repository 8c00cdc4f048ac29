"""benchmarks/kv_offload.py on the simulated device: what it measures, and how it is judged."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import kv_offload, kv_offload_cases, kv_offload_checks, kv_offload_peers, kv_offload_tables
from benchmarks.kv_offload_cases import Case
from benchmarks.kv_offload_link import Directions
from benchmarks.kv_offload_steps import (
    DECODE,
    PREFILL,
    RESIDENT,
    SERIAL,
    STREAMED,
    Played,
    Shape,
    differences,
    plan,
    steady,
)
from utils import simgpu
from utils.trace import Trace

TASKS = kv_offload.SMALL_TASKS
SHORT = [task.shape.name for task in TASKS if task.extras]
SMALL = Shape("small", 3, 32, 2, 2, 48)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kv")


@pytest.fixture(scope="module")
def result(folder):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)                # these products are too small to share
    kv_offload.main(["--small", "--output", str(folder / "kv.json")])
    torch.set_num_threads(threads)
    return json.loads((folder / "kv.json").read_text())


@pytest.fixture
def gpu():
    """A simulated H200 on which 32 wide takes as long as 4096."""
    with simgpu.session(simgpu.H200.scaled(1 / 128)) as device:
        yield device


@pytest.fixture
def case(gpu):
    """Three chunks of 8 and two tokens."""
    with torch.no_grad():
        yield Case(SMALL, SMALL.decoder(26), torch.arange(24).to("cuda"), 8, 2)


def test_every_shape_and_chunk_is_measured(result):
    assert [(case["shape"], case["chunk"]) for case in result["cases"]] == [
        (task.shape.name, chunk) for task in TASKS for chunk in task.chunks]
    for case in result["cases"]:
        assert case["repeats"] == len(case["link"]) == 2
        assert len(case["steps"]) == case["tokens"] // case["chunk"] + kv_offload.SMALL["decode"]
        assert len(case["wrong"][STREAMED]) == 2 and len(case["wrong"][SERIAL]) == 1


def test_one_model_alone(tmp_path, capsys):
    with pytest.raises(SystemExit):
        kv_offload.main(["--small", "--only", "GPT"])
    assert "no model is called GPT: there are Llama 2 7B, Llama 3 8B, Llama 3 8B, long" in capsys.readouterr().err
    options = kv_offload.parse(["--small", "--only", "Llama 3 8B"])
    assert [(task.shape.name, task.tokens) for task in options.tasks] == [("Llama 3 8B", 384)]


def test_scores_and_tokens_are_those_of_the_resident_run(result):
    assert {each[what] for case in result["cases"] for repeats in case["wrong"].values() for each in repeats
            for what in ("scores", "tokens")} == {0}
    assert [row["wrong"] for row in result["failures"]] == [{"scores": 0, "tokens": 0}] * 2
    assert [len(row["failed_steps"]) for row in result["failures"]] == [2, 2]


def test_times_are_those_of_the_schedules(result):
    for case in result["cases"]:
        for kind in (PREFILL, DECODE):
            ms = {name: found["median"] for name, found in case[kind]["ms_per_step"].items()}
            assert ms["bound"] >= max(ms[RESIDENT], ms["transfer"]) - 1e-9
            # rates are those of pieces of 64 KiB: a layer's copy is longer, so that latencies count for less
            assert 0.998 * ms["bound"] <= ms[STREAMED] < 1.05 * ms["bound"] < ms[SERIAL]
            assert case[kind]["over_bound"]["mean"] == pytest.approx(ms[STREAMED] / ms["bound"], rel=1e-3)
    wide, llama = (next(case for case in result["cases"] if case["shape"] == shape)
                   for shape in SHORT)
    computes = [step["bound_ms"] == step["resident_ms"] for step in wide["steps"]]
    assert computes == 4 * [True] + 5 * [False]             # the more rows there are, the longer they take to come
    assert all(step["bound_ms"] == step["resident_ms"] for step in llama["steps"] if step["kind"] == PREFILL)


def test_the_link_is_the_profile_s(result):
    profile = simgpu.H200.scaled(kv_offload.SMALL_SCALE)
    for case in result["cases"]:
        for link in case["link"]:
            assert link["share"] == pytest.approx(profile.duplex_share, abs=0.005)
            assert link["in_rate"] * 1e9 == pytest.approx(profile.h2d_bytes_per_s, rel=0.02)
            assert link["out_rate"] * 1e9 == pytest.approx(profile.d2h_bytes_per_s, rel=0.02)


def test_memory_is_the_budget(result):
    for case in result["cases"]:
        assert case["cache_bytes"] == case["peak_bytes"] == case["budget_bytes"] < case["resident_bytes"]


def test_one_chunk_is_a_trace_and_a_text(result, folder):
    for row, name in zip(result["pictures"], ("llama_2_7b", "llama_3_8b"), strict=True):
        assert row["trace_peak_bytes"] == row["allocator_peak_bytes"] <= row["budget_bytes"]
        trace, text = Trace.load(folder / f"kv_chunk_{name}.json.gz"), (folder / f"kv_chunk_{name}.txt").read_text()
        assert len(trace) == row["spans"] and trace.peak_bytes() == row["trace_peak_bytes"]
        assert all(word in text for word in ("H2D", "D2H", "compute", "budget")) and text.strip() == row["text"].strip()


def test_a_prefix_is_computed_again_or_copied(result):
    assert list(result["prefixes"]) == SHORT
    for rows in result["prefixes"].values():
        short, long = rows
        assert long["copy_ms"]["median"] == pytest.approx(3 * short["copy_ms"]["median"], rel=0.03)
        assert long["recompute_ms"]["median"] > 3 * short["recompute_ms"]["median"]     # attention grows with the rows


def test_bytes_of_a_step():
    steps, row = plan(24, 8, 2), SMALL.layers * SMALL.row_bytes
    assert [step.bytes(SMALL)["in_bytes"] // row for step in steps] == [0, 0, 8, 16, 17]
    assert [step.bytes(SMALL)["out_bytes"] // row for step in steps] == [8, 8, 8, 1, 1]
    assert [step.bytes(SMALL)["device_bytes"] // row for step in steps] == [8, 16, 16, 9, 9]
    assert steady(steps, PREFILL) == [2] and steady(steps, DECODE) == []
    with pytest.raises(ValueError, match="24 tokens are no whole number of chunks of 7"):
        plan(24, 7, 2)


def test_bytes_are_what_is_copied(case, gpu):
    """Of one step at a time, in the trace."""
    case.play(STREAMED)
    copied = {way: sum(gpu.trace().columns["bytes"][row] for row, kind in enumerate(gpu.trace().columns["kind"])
                       if kind == way) for way in ("h2d", "d2h")}
    moved = [step.bytes(SMALL) for step in case.steps]
    ahead = (24 + 2 - 8) * SMALL.row_bytes                  # layer 0 for a step that does not come
    assert copied["h2d"] == sum(each["in_bytes"] for each in moved) + ahead + case.ids.nbytes
    assert copied["d2h"] == sum(each["out_bytes"] for each in moved)


def test_other_scores_and_tokens_are_counted(gpu):
    steps, right = plan(16, 8, 2), [torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0])]
    expected = Played([], [], [right[0], right[0], right[1], right[1]], 0)
    assert differences(expected, expected, steps) == {"scores": 0, "tokens": 0}
    other = Played([], [], [right[1], right[1], right[1], 2 * right[1]], 0)     # the last one: the same token
    assert differences(other, expected, steps) == {"scores": 3, "tokens": 1}


def test_a_store_that_comes_too_early_is_seen(case):
    case.cache.storing.wait_event = lambda event: None
    case.record(STREAMED, case.play(STREAMED))
    assert case.wrong[STREAMED][0]["scores"] > 0


def test_one_stream_is_left_again(case):
    before = case.cache.storing, case.cache.ring.copying
    assert differences(case.play(SERIAL), case.expected, case.steps)["scores"] == 0
    assert (case.cache.storing, case.cache.ring.copying) == before


def test_a_layer_fails_only_once(case):
    found = kv_offload_checks.after_failures(case)
    assert found["failed_steps"] == [2, 4] and found["wrong"] == {"scores": 0, "tokens": 0}


def test_shares_of_both_directions(gpu):
    link = Directions(1 << 20).measure(6)
    both = link.share_in * link.in_rate + link.share_out * link.out_rate
    assert both == pytest.approx(link.share * (link.in_rate + link.out_rate))
    assert link.transfer_ms(link.in_rate, 0) == pytest.approx(1)
    assert link.transfer_ms(link.in_rate, link.out_rate) == pytest.approx(1 / link.share)


def test_the_cache_is_passed_under_the_name_that_the_model_has():
    class Older(torch.nn.Module):
        def forward(self, input_ids, past_key_values=None): ...

    class Newer(torch.nn.Module):
        def forward(self, input_ids, cache=None): ...

    assert [kv_offload_peers.cache_argument(model()) for model in (Older, Newer)] == ["past_key_values", "cache"]


# ---- limits, on made-up results

def case_with(upper=1.01, scores=0, peak=90):
    ratio = {"mean": 1.0, "interval": [0.99, upper], "repeats": 4}
    return {"shape": "A", "chunk": 8, PREFILL: {"over_bound": ratio}, DECODE: {}, "budget_bytes": 100,
            "cache_bytes": 80, "peak_bytes": peak, "wrong": {STREAMED: [{"scores": scores, "tokens": 0}]}}


@pytest.mark.parametrize("changes, states", [
    ({}, ["met"] * 4), ({"upper": 1.03}, ["not shown", "met", "met", "met"]),
    ({"scores": 1}, ["met", "missed", "met", "met"]), ({"peak": 101}, ["met", "met", "met", "missed"])])
def test_limits(changes, states):
    assert [found["state"] for found in kv_offload_tables.of_case(case_with(**changes))] == states


def test_limits_of_failures_and_pictures():
    row = {"shape": "A", "failed_steps": [2, 4], "wrong": {"scores": 0, "tokens": 0}}
    failures = [row, row | {"failed_steps": [2]}, row | {"wrong": {"scores": 1, "tokens": 0}}]
    picture = {"shape": "A", "trace_peak_bytes": 1005, "allocator_peak_bytes": 1000, "requested_peak_bytes": 1000,
               "budget_bytes": 1000}
    pictures = [picture, picture | {"trace_peak_bytes": 1020}, picture | {"budget_bytes": 999},
                {"shape": "A", "error": "x"}]
    found = kv_offload_tables.targets({"cases": [], "failures": failures, "pictures": pictures})
    assert [each["state"] for each in found] == [
        "met", "missed", "missed", "met", "met", "missed", "met", "met", "missed", "missed"]


def test_tables_have_a_row_for_every_case(result):
    tables = list(kv_offload_tables.tables(result))
    assert len(tables) == 9 + (result["transformers"] is not None)
    for case in result["cases"]:
        assert f"| {case['shape']}, {case['chunk']} | {case[PREFILL]['steps']} |" in tables[1]
        assert f"{case[PREFILL]['over_bound']['mean']:.4f}" in tables[1]
    assert all(len({line.count("|") for line in table.splitlines()}) == 1 for table in tables)


@pytest.mark.parametrize("values, expected", [([1, 2, 3, 4], [3, 7]), ([1, 2], [1, 2]), (5 * [1], 5 * [1])])
def test_repeats_are_judged_in_pairs(values, expected):
    assert kv_offload_cases.in_pairs(values) == expected


# ---- what is recorded

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
RECORDED = ("kv_offload_h200.json", "kv_offload_h200_first.json", "kv_offload_h200_2.json")


def recorded(name):
    return json.loads((BENCHMARKS / "results" / name).read_text())


def test_the_page_has_the_recorded_tables():
    page = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    first, second = (list(kv_offload_tables.tables(recorded(name))) for name in RECORDED[1:])
    for table in [*kv_offload_tables.tables(recorded(RECORDED[0])), first[1], first[2], first[-1], *second[:5]]:
        assert table in page, table


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_limits_follow_from_the_recorded_times(name):
    result = recorded(name)
    assert result["machine"]["gpu"] == "NVIDIA H200"
    assert result["targets"] == kv_offload_tables.targets(result)
