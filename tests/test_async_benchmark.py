"""benchmarks/async_batching.py on the simulated device: what it measures, and how it is judged."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import async_batching, async_tables
from benchmarks.async_loops import compared, of_pair, scores_after
from benchmarks.async_served import (
    ASYNC,
    ASYNC_GRAPHS,
    SYNC,
    SYNC_GRAPHS,
    WAYS,
    Graphed,
    Played,
    Served,
    Ways,
    Work,
    lesson_07,
    played,
)
from benchmarks.async_step import graphs_reserve, nbytes_of
from benchmarks.async_tables import targets
from utils import simgpu
from utils.decoder import TINY, SlotDecoder

WORK = Work(4, 8, 12, 16, TINY.words)


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    path, threads = tmp_path_factory.mktemp("async") / "async.json", torch.get_num_threads()
    torch.set_num_threads(1)                # these products are too small to share
    async_batching.main(["--simulate", "--output", str(path), "--only", "step", "memory", "loops", "profile", "sweep"])
    torch.set_num_threads(threads)
    return path


@pytest.fixture(scope="module")
def result(output):
    return json.loads(output.read_text())


@pytest.fixture
def device():
    """A simulated H200 on which 64 wide takes as long as 4096; nothing races."""
    with simgpu.session(simgpu.H200.scaled(1 / 64)) as gpu, torch.no_grad():
        yield gpu
        torch.cuda.synchronize()
        assert not gpu.hazards


@pytest.fixture
def ways(device):
    return Ways(SlotDecoder(TINY, 4, 48, torch.float32), 16)


# ---- what is measured

def test_all_ways_give_the_same_tokens(result):
    assert [row["way"] for row in result["loops"]["tokens"]] == list(WAYS[1:])
    assert all(row["equal"] == row["requests"] == WORK.requests for row in result["loops"]["tokens"])


def test_each_way_gives_what_a_request_gets_alone(ways):
    """Other requests, other limits: some end before others, so steps have rows of padding."""
    prompts = [request.prompt for request in WORK.make()]
    alone = [[*prompt] for prompt in prompts]
    for tokens in alone:
        while len(tokens) < WORK.prompt + WORK.tokens:
            tokens.append(scores_after(ways.decoder, tokens).argmax().item())
    limits = [12, 3, 7, 1]

    class Uneven(Work):
        def make(self):
            requests = super().make()
            for request, limit in zip(requests, limits, strict=True):
                request.limit = limit
            return requests

    for name in WAYS:
        found = ways.run(name, Uneven(*vars(WORK).values()))
        assert found.tokens == [tokens[8:8 + limit] for tokens, limit in zip(alone, limits, strict=True)], name


def test_a_run_is_taken_apart(ways):
    sync, ahead = (ways.run(name, WORK, busy_us=400) for name in (SYNC_GRAPHS, ASYNC_GRAPHS))
    assert sync.steps == len(sync.forward) == len(sync.between) + 1
    assert sync.host > 0.4 and sync.host + sync.gpu == pytest.approx(sync.wall / sync.steps)
    assert all(ms > 0.4 for ms in sync.between) and sync.idle_between > ahead.idle_between
    assert ahead.wall < sync.wall - 0.3 * ahead.steps


def test_asynchronous_is_as_fast_as_its_bound(result):
    for pair in result["loops"]["pairs"]:
        assert pair["saving"]["median"] > 0
        assert 1 <= pair["wall_over_synchronous_gpu"]["mean"] < 1.02
    rows = result["sweep"]
    assert [row["busy_ms"] for row in rows] == [0, 0.5, 2] and rows[0]["host_share"]["median"] < 0.15
    assert all(row["over_predicted"]["mean"] == pytest.approx(1, abs=0.03) for row in rows)
    assert rows[2]["saved_of_predicted"]["mean"] > 0.95


def test_graphs_launch_less(result):
    launches = {name: row["launches"] for name, row in result["profile"].items()}
    assert set(launches) == set(WAYS) and launches[ASYNC_GRAPHS] <= launches[ASYNC]
    assert all(0 < row["gpu_active"] <= 1 for row in result["profile"].values())
    idle = {name: 1 - result["profile"][name]["gpu_active"] for name in WAYS}
    assert idle[ASYNC] < idle[SYNC] and idle[ASYNC_GRAPHS] < idle[SYNC_GRAPHS]


def test_a_decode_step_beside_its_floor(result):
    short, whole = result["step"]
    per_cell = 4 * TINY.row_numbers * 4
    assert whole["nbytes"] - short["nbytes"] == 32 * per_cell and whole["cells"] == 48
    assert whole["floor_ms"] == pytest.approx(whole["nbytes"] / result["copy_gb_per_s"]["median"] / 1e6, abs=1e-4)
    for row in (short, whole):
        assert row["ms"]["graph"]["median"] == pytest.approx(row["over_floor"]["graph"] * row["floor_ms"], rel=0.05)
        assert row["ms"]["products"]["median"] + row["ms"]["attention"]["median"] < row["ms"]["graph"]["median"]
        assert row["ms"]["graph"]["median"] <= row["ms"]["eager"]["median"] * 1.001


def test_memory_of_slots_and_graphs(result, device):
    memory = result["memory"]
    assert memory["slot_bytes"] == [{"pinned": 5 * 16 * 8, "device": 5 * 16 * 8}] * 2
    assert memory["synchronous_bytes"] == {"pinned": 4 * 16 * 8, "device": 4 * 16 * 8}
    assert memory["kv_cache_bytes"] == 4 * 64 * TINY.row_numbers * 4
    decoder = SlotDecoder(TINY, 4, 48, torch.float32)
    one, shared, unshared = (graphs_reserve(decoder, 16, *each) for each in ((True, 1), (True, 2), (False, 2)))
    assert one == shared and unshared >= 1.5 * one > 0


def test_steps_that_can_be_replayed(ways):
    """Only those whose rows are all of other slots; a graph for each slot of the pipeline, none made later."""
    pipeline, graphs = ways.graphed, dict(ways.graphed.graphs)
    replays = []
    for slot, graph in graphs.items():
        pipeline.graphs[slot] = type("Counted", (), {"replay": lambda self, graph=graph: (replays.append(1),
                                                                                          graph.replay())})()
    found = ways.run(ASYNC_GRAPHS, WORK)
    assert len(graphs) == 2 and len(replays) == found.steps - 3     # 32 rows of prompts, up to 16, 14 and 13 a step


def test_rows_that_a_step_has_not_are_padding(device):
    slot = Graphed(Served(SlotDecoder(TINY, 4, 48, torch.float32)), 6).slots[0]
    request = WORK.make()[0]
    request.slot = 3
    row = lesson_07.Ahead(request, 9, 5, True, 2)
    slot.fill([row] * 2)
    assert slot.host_in.t().tolist() == [[9, 3, 5, 2]] * 2 + [[0, 0, -1, -1]] * 4
    assert nbytes_of(slot) == {"pinned": 5 * 6 * 8, "device": 5 * 6 * 8}


def test_a_run_that_is_not_whole_is_no_result():
    request = WORK.make()[0]
    with pytest.raises(RuntimeError, match="0 steps on the device, 3 of the loop; 0 of 1 requests are finished"):
        played(1.0, 3, SimpleNamespace(spans=[], launches=[]), [request])


def test_the_first_difference_and_how_near_it_was(device):
    decoder = SlotDecoder(TINY, 4, 48, torch.float32)
    prompts = [[1, 2, 3], [4, 5]]
    one = [[7, 8, 9], [10, 11, 12]]
    assert compared(decoder, prompts, one, one) == {"requests": 2, "equal": 2}
    found = compared(decoder, prompts, one, [[7, 8, 20], [10, 21, 12]])
    scores = scores_after(decoder, [4, 5, 10])
    assert (found["equal"], found["first"]["request"], found["first"]["token"]) == (0, 1, 1)
    assert found["first"]["logit_gap"] == pytest.approx(abs(scores[11] - scores[21]).item(), abs=1e-3)
    assert found["first"]["below_best"] >= found["first"]["logit_gap"]
    assert 2**7 <= scores.max() / found["first"]["bfloat16_step"] < 2**8


# ---- the script

def test_parts_are_kept_or_run_again(output, result, tmp_path):
    path = tmp_path / "again.json"
    path.write_text(json.dumps(result | {"memory": result["memory"] | {"weights_bytes": 1}}))
    async_batching.main(["--simulate", "--output", str(path), "--only", "memory", "--update"])
    again = json.loads(path.read_text())
    assert again["memory"] == result["memory"] and again["loops"] == result["loops"] and again["step"] == result["step"]
    async_batching.main(["--simulate", "--output", str(path), "--only", "memory"])
    assert "loops" not in json.loads(path.read_text())


def test_nothing_is_begun_when_time_is_up(tmp_path):
    path = tmp_path / "late.json"
    async_batching.main(["--simulate", "--output", str(path), "--seconds", "0"])
    late = json.loads(path.read_text())
    assert late["targets"] == [] and not {"step", "loops", "sweep", "transformers"} & set(late)


@pytest.mark.filterwarnings("default")
def test_transformers_gets_the_same_weights_requests_and_tokens():
    pytest.importorskip("transformers", reason="it comes with the benchmarks extra")
    from benchmarks import async_peers

    decoder, work = SlotDecoder(TINY, 2, 48, torch.float32, device="cpu"), Work(2, 8, 12, 16, TINY.words)
    model = async_peers.llama(decoder, "cpu")
    assert sum(tensor.numel() for tensor in model.parameters()) * 4 == decoder.weights.nbytes
    with async_peers.opened(model, work, False, False) as peer:
        found = peer.run(12)
    for request, tokens in zip(work.make(), found["tokens"], strict=True):
        rows = [*request.prompt]
        for token in tokens:
            columns = [torch.tensor(column) for column in (rows, [0] * len(rows), range(len(rows)))]
            assert decoder(*columns)[-1] == token
            rows.append(token)
    assert found["steps"] >= 12 and found["wall_ms"] > 0
    assert async_peers.settings(work, True, True).use_async_batching


def test_a_mode_that_fails_is_said_and_the_others_run(monkeypatch):
    from benchmarks import async_peers

    monkeypatch.setattr(async_peers, "llama", lambda decoder, device: None)
    monkeypatch.setattr(async_peers, "opened", lambda *_: (_ for _ in ()).throw(OSError("no such kernel")))
    found = {}
    async_peers.transformers_modes(None, WORK, [], True, lambda: False, found.__setitem__)
    assert found == {name: {"error": "OSError: no such kernel"} for name in async_peers.MODES}


# ---- limits, on made-up results

def one(value):
    return {"mean": value, "interval": [value, value], "repeats": 2}


def median(value):
    return {"median": value, "all": [value]}


def made_up(**changes):
    way = {"idle_between": [0.001], "tokens_per_s": median(900.0)}
    pair = {"synchronous": SYNC, "asynchronous": ASYNC, "host_share": median(0.2), "saved_of_predicted": one(0.97),
            "wall_over_synchronous_gpu": one(1.01)}
    swept = pair | {"busy_ms": 2, "over_predicted": one(1.01)}
    parts = {"step": [{"cells": 8, "over_floor": {"graph": 1.2}}], "sweep": [swept],
             "loops": {"ways": {SYNC: way, ASYNC: way}, "pairs": [pair]},
             "memory": {"slot_bytes": [1, 1], "graph_reserved_bytes": {"one": 100, "two, shared": 105,
                                                                       "two, unshared": 200}},
             "transformers": {"sync": {"tokens_per_s": 800.0}, "async": {"error": "none"}}}
    for path, value in changes.items():
        part, *rest = path.split("__")
        at = parts[part]
        for key in rest[:-1]:
            at = at[int(key) if key.isdigit() else key]
        at[rest[-1]] = value
    return parts


def test_all_limits_can_be_met():
    states = [found["state"] for found in targets(made_up())]
    assert states == ["met"] * 10, targets(made_up())


@pytest.mark.parametrize("change, value, state, said", [
    ("step__0__over_floor", {"graph": 1.31}, "missed", "decode step"),
    ("memory__slot_bytes", [1, 2], "missed", "two slots"),
    ("memory__graph_reserved_bytes", {"one": 100, "two, shared": 106, "two, unshared": 200}, "missed", "in one pool"),
    ("memory__graph_reserved_bytes", {"one": 100, "two, shared": 100, "two, unshared": 120}, "missed", "of their own"),
    ("loops__ways__asynchronous", {"idle_between": [0.007], "tokens_per_s": median(900.0)}, "missed", "idle between"),
    ("loops__ways__asynchronous", {"idle_between": [0.001, 0.008], "tokens_per_s": median(900.0)}, "not shown", "idle"),
    ("loops__pairs__0__wall_over_synchronous_gpu", one(1.03), "missed", "time on the GPU"),
    ("loops__pairs__0__wall_over_synchronous_gpu", {"mean": 1.01, "interval": [0.9, 1.1], "repeats": 2}, "not shown",
     "time on the GPU"),
    ("loops__pairs__0__saved_of_predicted", one(0.94), "missed", "asynchronous: share of the predicted"),
    ("sweep__0__over_predicted", one(1.04), "missed", "busy 2 ms: wall"),
    ("sweep__0__over_predicted", one(0.96), "missed", "busy 2 ms: wall"),
    ("sweep__0__saved_of_predicted", one(0.9), "missed", "busy 2 ms: share"),
    ("transformers__sync", {"tokens_per_s": 1000.0}, "missed", "above transformers"),
])
def test_limits(change, value, state, said):
    found = [row for row in targets(made_up(**{change: value})) if row["state"] != "met"]
    assert len(found) == 1 and found[0]["state"] == state and said in found[0]["target"]


def test_a_small_host_share_is_not_judged():
    found = targets(made_up(loops__pairs__0__host_share=median(0.1), sweep__0__host_share=median(0.14)))
    assert len(found) == 8 and not any("predicted saving" in row["target"] for row in found)


def test_savings_of_a_pair():
    """h = 1, g = 3, of which 0.5 is launching: two steps and one h more, 7 of 8; 0.9 of what that saves was saved."""
    sync = Played(wall=8.0, steps=2, forward=[3.0, 3.0], launches=[0.5, 0.5], between=[1.0], tokens=[])
    ahead = Played(8.0 * (1 - 0.9 / 8), 2, forward=[3.0, 3.0], launches=[0.5, 0.5], between=[0.1], tokens=[])
    found = of_pair({SYNC: [sync], ASYNC: [ahead]}, SYNC, ASYNC)
    assert found["host_share"]["median"] == 0.25 and found["predicted_saving"]["median"] == 0.125
    assert found["saved_of_predicted"]["mean"] == pytest.approx(0.9)
    assert found["wall_over_synchronous_gpu"]["mean"] == pytest.approx(7.1 / 6, abs=1e-5)
    assert (sync.host, sync.gpu, sync.idle_between) == (1.0, 3.0, 1 / 7)


@pytest.mark.parametrize("launches, wall", [([0.5, 0.5, 0.5], 16), ([0.5, 5.0, 0.5], 17), ([3.0, 3.0, 3.0], 18)])
def test_launches_are_host_work_of_the_asynchronous_loop(launches, wall):
    """h = 2 beside steps of 3, 6 and 5: one that takes long to launch takes h and that."""
    sync = Played(wall=20.0, steps=3, forward=[3.0, 6.0, 5.0], launches=launches, between=[2.0, 2.0], tokens=[])
    assert sync.host == 2 and sync.ahead == wall


def test_a_loop_with_long_launches_takes_what_is_predicted():
    """On a device so fast that the launches of steps with pieces of prompts take as long as they run."""
    work = replace(WORK, prompt=40, tokens=2)
    with simgpu.session(simgpu.H200), torch.no_grad():
        ways = Ways(SlotDecoder(TINY, 4, 48, torch.float32), 16)
        sync, ahead = (ways.run(name, work, busy_us=1000) for name in (SYNC_GRAPHS, ASYNC_GRAPHS))
    without_launches = sum(max(sync.host, g) for g in sync.forward) + sync.host
    assert sync.ahead == pytest.approx(ahead.wall, rel=0.03) and without_launches < 0.8 * ahead.wall


def test_tables_have_all_rows(result):
    peers = {"sync": {"wall_ms": 2000.0, "steps": 10, "ms_per_step": 200.0, "tokens_per_s": 24.0},
             "async": {"error": "RuntimeError: none"}}
    tables = list(async_tables.tables(result | {"transformers": peers}))
    assert len(tables) == 4
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1
    names = [line.split(" | ")[0].strip("| ") for line in tables[1].splitlines()[2:]]
    assert names == [*WAYS, "transformers, sync", "transformers, async"]


# ---- what is recorded

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
RECORDED, FIRST = "async_batching_h200.json", "async_batching_h200_first.json"


def recorded(name):
    return json.loads((BENCHMARKS / "results" / name).read_text())


def page():
    return (BENCHMARKS / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [RECORDED, FIRST])
def test_recorded_limits_follow_from_the_recorded_times(name):
    result = recorded(name)
    assert result["machine"]["gpu"] == "NVIDIA H200"
    assert result["targets"] == json.loads(json.dumps(targets(result)))


def test_the_page_has_the_recorded_tables():
    for table in [*async_tables.tables(recorded(RECORDED)), async_tables.of_ways(recorded(FIRST))]:
        assert table in page(), table


def test_the_page_counts_the_recorded_limits():
    found = recorded(RECORDED)["targets"]
    states = Counter(each["state"] for each in found)
    assert (f"Of {len(found)} limits, {states['met']} are met, {states['not shown']} are not shown (their interval "
            f"reaches beyond), {states['missed']} are missed.") in page()
    missed = [each["target"] for each in found if each["state"] == "missed"]
    assert len(missed) == 2 and all(target.startswith("asynchronous: ") for target in missed)


def test_the_page_quotes_the_recorded_numbers():
    result, first = recorded(RECORDED), recorded(FIRST)
    text = " ".join(page().split())
    ways, over = result["loops"]["ways"], result["loops"]["pairs"][1]["wall_over_synchronous_gpu"]
    graphs, (mode, theirs) = result["memory"]["graph_reserved_bytes"], async_tables.best_peer(first)
    ours = max(way["tokens_per_s"]["median"] for way in first["loops"]["ways"].values())
    assert mode == "async, graphs" and all(row["equal"] == 32 for row in result["loops"]["tokens"])
    for said in (
        f"{ways[ASYNC_GRAPHS]['tokens_per_s']['median']:,.0f} tokens/s. Between",
        f"at most {max(ways[ASYNC_GRAPHS]['idle_between']) * 100:.2f} % of the time",
        f"is {over['mean']:.4f} ± {over['interval'][1] - over['mean']:.4f} of the",
        f"reserve {graphs['two, unshared'] / graphs['one']:.2f} times what one does",
        f"{result['copy_gb_per_s']['median']:.0f} GB/s in this run",
        f"reached {async_tables.best_peer(result)[1]:,.0f} tokens/s with graphs",
        f"That is {theirs:,.0f} tokens/s beside {ours:,.0f} in one run",
    ):
        assert said in text, said
    rows = result["sweep"]
    assert len(rows) == 10 and max(abs(row["over_predicted"]["mean"] - 1) for row in rows) < 0.019
    assert min(row["saved_of_predicted"]["mean"] for row in rows if row["host_share"]["median"] >= 0.15) > 0.969
