"""What the page says of two H200s: its tables and figures are those of the recording and its traces."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import all_gather_spans
from benchmarks import all_gather_tables as made
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
from benchmarks.all_gather_spans import Seen, seen
from utils.trace import Trace

ROOT = Path(__file__).resolve().parents[1]
RESULT = json.loads((ROOT / "benchmarks/results/all_gather_h200x2.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8")
TRACES = [found["file"] for found in RESULT["mlp"]["traces"]]
TEXT = " ".join(PAGE.partition(made.SECTION)[2].split())


@pytest.fixture(scope="module")
def tables():
    return list(made.tables(RESULT, ROOT / "traces"))


@pytest.fixture(scope="module")
def spans():
    """What each trace shows, by program and tokens: spans["ring", 512]."""
    found = {}
    for file in TRACES:
        program, tokens = file.removesuffix(".json.gz").split("_")[1:]
        found[program, int(tokens[1:])] = seen(ROOT / "traces" / file)
    return found


# ---- the page and the recording

def test_the_section_has_these_tables_and_no_others(tables):
    assert made.shown(PAGE) == tables


def test_tables_have_equal_rows_and_their_own_first_cell(tables):
    assert all(len({line.count("|") for line in table.splitlines()}) == 1 for table in tables)
    assert len({made.corner(table) for table in tables}) == len(tables) >= 12


def test_nothing_recorded_was_wrong_or_failed():
    assert not [part for part in RESULT if "failed" in RESULT[part]]
    assert {way["wrong_calls"] for part in ("mlp", "llama") for row in RESULT[part]["rows"]
            for way in row["ways"].values()} == {0}
    assert {sum(row["wrong"].values()) for row in RESULT["pipeline"]["rows"]} == {0}


def test_every_trace_has_its_row():
    rows = (ROOT / "traces/README.md").read_text(encoding="utf-8")
    assert all(f"| `{file}` | `benchmarks/all_gather.py`" in rows for file in TRACES)


FEW, MANY = (256, 512), (1024, 1536, 2048, 4096, 8192)
WITH_COPIES = "mlp with copies alone"
PARTS = RESULT | {WITH_COPIES: made.with_copies(RESULT)}


def ways(part, tokens):
    return next(row["ways"] for row in PARTS[part]["rows"] if row["tokens"] == tokens)


def ms(part, tokens, way):
    return ways(part, tokens)[way]["ms"]["median"]


def shares(way, several):
    """Mean shares hidden in the MLP, in percent."""
    return [round(100 * made.share(ways(WITH_COPIES, tokens), way)["mean"]) for tokens in several]


def overs(way):
    """Mean ratios over the bound in the MLP, by tokens."""
    return {tokens: made.over(ways(WITH_COPIES, tokens), way)["mean"] for tokens in FEW + MANY}


def kept(way):
    """Percent of the resident MLP's speed with 8192 tokens."""
    return round(100 * ms("mlp", 8192, RESIDENT) / ms("mlp", 8192, way))


def middle_and_half(way, tokens):
    found = made.over(ways("mlp", tokens), way)
    return found["mean"], found["interval"][1] - found["mean"]


def test_the_text_has_the_figures_of_the_link():
    gathers, copies = ([row for row in RESULT[part]["rows"] if "product_ms" in row] for part in ("rates", "copies"))
    left = [round(100 * row["beside_products_gb_per_s"] / row["gb_per_s"]) for row in gathers]
    assert f"keeps {min(left)} to {max(left)} % of its rate" in TEXT
    first = gathers[0]
    assert f"comes at {first['beside_products_gb_per_s']:.0f} GB/s in place of {first['gb_per_s']:.0f}" in TEXT
    assert f"{copies[0]['gb_per_s']:.0f} GB/s with 128 MiB" in TEXT
    assert all(0.98 < row["beside_products_gb_per_s"] / row["gb_per_s"] < 1.02 for row in copies)
    alone = [row["product_ms"] for row in gathers + copies]
    assert f"has rested, {min(alone):.2f} to {max(alone):.2f} ms" in TEXT
    for before, rows in (("Beside copies it", copies), ("beside NCCL's gathers it", gathers)):
        beside = [row["product_beside_ms"] for row in rows]
        assert f"{before} takes {min(beside):.2f} to {max(beside):.2f} ms" in TEXT
    assert f"one takes {ms('mlp', 8192, RESIDENT) / 24:.2f} ms with as many tokens" in TEXT


def test_the_text_has_the_figures_of_the_mlp():
    two, three, one = shares(RING, MANY), shares(RING_3, MANY), shares(SERIAL, FEW + MANY)
    assert f"from 1024 on {min(two)} to {max(two)} % of the shorter one is hidden" in TEXT
    assert f"its {min(one)} to {max(one)} % are launches" in TEXT
    assert f"hide {min(three)} to {max(three)} % from 1024 tokens on, and nothing with fewer" in TEXT
    assert max(shares(RING, FEW) + shares(RING_3, FEW)) < 0
    over = overs(RING)
    assert f"{max(over.values()):.2f} of it with {max(over, key=over.get)} tokens" in TEXT
    assert f"{kept(RING_3)} % of the resident model's speed is left, with two slots {kept(RING)} %" in TEXT
    for tokens in FEW + MANY:                                  # gather first: the intervals overlap
        (first, its), (second, other) = (middle_and_half(way, tokens) for way in (FIRST_IN, RING))
        assert abs(first - second) < its + other


def test_the_text_has_the_figures_of_copy_engines():
    few, many = shares(COPIES, FEW + MANY[:3]), shares(COPIES, MANY[3:])
    assert f"hide {min(few)} to {max(few)} % up to 2048 tokens, and {min(many)} to {max(many)} % with more" in TEXT
    assert f"at most {max(overs(COPIES).values()):.2f} times the bound" in TEXT
    assert f"with 8192 {kept(COPIES)} % of the resident model's speed is left" in TEXT
    assert all(ms(WITH_COPIES, tokens, COPIES) < 1.02 * ms(WITH_COPIES, tokens, made.COPIES_ALONE) for tokens in FEW)
    longer = [round(100 * (ms("mlp", tokens, FSDP) / ms("mlp", tokens, COPIES) - 1)) for tokens in (4096, 8192)]
    assert f"and {longer[0]} and {longer[1]} % longer than two slots with copy engines" in TEXT
    lost = [ms("mlp", tokens, COPIES) - max(ms(WITH_COPIES, tokens, way) for way in (RESIDENT, made.COPIES_ALONE))
            for tokens in MANY]
    assert {round(each, 1) for each in lost[:2]} == {1.0} and {round(each, 1) for each in lost[3:]} == {2.5}


def test_the_text_has_the_figures_of_fsdp2():
    few = [ms("mlp", tokens, FSDP) for tokens in (256, 512, 1024, 1536, 2048)]
    assert f"takes {min(few):.0f} to {max(few):.0f} ms up to 2048 tokens" in TEXT
    faster = [round(100 * (1 - ms("mlp", tokens, FSDP) / ms("mlp", tokens, RING))) for tokens in (4096, 8192)]
    slower = [round(100 * (ms("mlp", tokens, FSDP) / ms("mlp", tokens, RING_3) - 1)) for tokens in (4096, 8192)]
    assert f"it is {faster[0]} and {faster[1]} % faster than two slots" in TEXT
    assert f"takes {slower[0]} and {slower[1]} % longer than three slots" in TEXT
    explicit = round(100 * (ms("mlp", 8192, FSDP_EXPLICIT) / ms("mlp", 8192, FSDP) - 1))
    assert f"with 8192 tokens {explicit} % slower" in TEXT


def test_the_text_has_the_figures_of_the_decoder_and_the_pipeline():
    speed = [100 * ms("llama", 8192, RESIDENT) / ms("llama", 8192, way) for way in (RING, FSDP)]
    assert f"keeps {speed[0]:.0f} % of the resident model's speed; FSDP2 keeps {speed[1]:.0f} %" in TEXT
    assert all((ms("llama", tokens, RESIDENT) > ms("llama", tokens, GATHERS)) == (tokens >= 1024)
               for tokens in (512, 1024, 2048, 8192))
    rows = RESULT["pipeline"]["rows"]
    found = {row["micro_batches"]: row["bubble_share"]["in the compute stream"]["all"] for row in rows}
    assert [row["micro_batches"] for row in rows
            if not min(found[row["micro_batches"]]) <= row["formula"] <= max(found[row["micro_batches"]])] == [8]
    more = [100 * (row["bubble_share"]["queued ahead"]["median"] - row["formula"]) for row in rows[1:]]
    assert f"has {min(more):.0f} to {max(more):.0f} points more bubbles" in TEXT


# ---- the page and the traces

def test_the_text_has_the_figures_of_the_ring_s_traces(spans):
    few, many = spans["ring", 512], spans["ring", 4096]
    ends, early = many.before_the_end_us(), few.before_the_end_us()
    assert f"{ends.size} of {many.gathers[0].size} gathers of the ring begin while a product runs" in TEXT
    assert f"all of these {ends.min():.0f} to {ends.max():.0f} µs before its end" in TEXT
    assert f"gathers begin {early.min():.0f} to {early.max():.0f} µs before its end" in TEXT
    (beside, alone), (first, _) = many.beside_gathers(), many.beside_products()
    usual, long = np.sort(first)[:3], np.sort(first)[3:]
    assert f"Of {first.size} such gathers with 4096 tokens 3 take {usual[0]:.0f} to {usual[-1]:.0f} µs" in TEXT
    alone, other = np.median(alone), np.sort(beside)[3:]
    assert f"the product {np.median(np.sort(beside)[:3]):.0f} in place of {alone:.0f}: faster than in turn" in TEXT
    assert f"The other 2 take {long[0]:.0f} and {long[1]:.0f} µs, and so the product {np.median(other):.0f}" in TEXT
    assert f"with 4096 tokens {alone:.0f} µs in place of {1000 * ms('mlp', 4096, RESIDENT) / 24:.0f})" in TEXT
    assert f"An eighth of {alone:.0f} µs is {alone / 8:.0f}" in TEXT and 8 * 132 >= 1024 > 7 * 132


def test_the_text_has_the_figures_of_fsdp2_s_traces(spans):
    few, many = spans["fsdp2", 512], spans["fsdp2", 4096]
    assert f"{100 * few.shares()['nothing']:.0f} % of the time nothing runs" in TEXT
    assert f"{few.window_us / 2000:.0f} ms per call, without it {ms('mlp', 512, FSDP):.0f}" in TEXT
    begun = many.before_the_end_us()
    assert f"{begun.size} of 48 gathers begin while a product runs, {begun.min():.0f} to {begun.max():.0f} µs" in TEXT
    beside, rest = many.beside_gathers()
    assert f"{np.median(beside):.0f} µs (the {rest.size} that have none beside them {np.median(rest):.0f})" in TEXT


def test_the_text_has_the_figures_of_the_copy_engines_traces(spans):
    found, (starts, ends) = spans["copies", 4096], spans["copies", 4096].products
    beside, rest = found.beside_products()
    assert f"takes {np.median(beside):.0f} µs beside it, as it does beside nothing" in TEXT
    assert abs(np.median(rest) - np.median(beside)) < 2
    gap = np.median(starts[1:] - ends[:-1])
    assert f"Between two products lie {gap:.0f} µs" in TEXT and f": {24 * gap / 1000:.1f} ms per call" in TEXT
    columns = Trace.load(ROOT / "traces/h200x2_copies_b4096.json.gz").columns
    within = columns["duration_us"][[name.startswith("Memcpy DtoD") for name in columns["name"]]]
    assert within.size == 48 and f"own half is copied ({np.median(within):.0f} µs)" in TEXT


def test_the_text_has_what_fsdp2_does_for_a_layer():
    columns = Trace.load(ROOT / "traces/h200x2_fsdp2_b4096.json.gz").columns
    starts, ends = kernels(columns, "split_with_sizes_copy")
    assert f"out of its gather's buffer ({np.median(ends - starts):.0f} µs" in TEXT


def test_the_text_has_how_long_launched_gathers_wait():
    waits = {name: since_launch_us(ROOT / f"traces/h200x2_{name}.json.gz")
             for name in ("fsdp2_b512", "ring_b512", "ring_b4096")}
    assert f"every gather begins within {max(waits['fsdp2_b512']):.0f} µs after its launch" in TEXT
    assert all(np.median(waits[name]) > 1000 for name in ("ring_b512", "ring_b4096"))


def kernels(columns, word):
    """Starts and ends of the kernels with this word in their names."""
    chosen = all_gather_spans.named(columns["name"], (word,)) & (columns["kind"] == "kernel")
    return all_gather_spans.spans(columns, chosen)


def since_launch_us(path):
    """Of each gather, from the call that launched it: the profiler's arrows begin there."""
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    launched = {event["id"]: event["ts"] for event in events if event.get("cat") == "ac2g" and event["ph"] == "s"}
    return [event["ts"] - launched[event["args"]["correlation"]] for event in events
            if event.get("cat") == "kernel" and "AllGather" in event["name"]]


# ---- how it is read

def test_spans_of_a_trace(tmp_path):
    rows = [("nvjet_a", "kernel", 7, 0, 100), ("ncclDevKernel_AllGather", "kernel", 25, 90, 60),
            ("nvjet_a", "kernel", 7, 152, 48), ("Memcpy PtoP", "d2d", 30, 160, 20), ("Memcpy DtoD", "d2d", 7, 220, 10),
            ("aten::mm", "host", -1, 0, 9)]
    names = ("name", "kind", "stream", "start_us", "duration_us")
    columns = {name: list(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}
    lanes = ["host" if kind == "host" else "compute" for kind in columns["kind"]]
    Trace.from_columns(columns | {"lane": lanes}).save(tmp_path / "t.json.gz")
    found = seen(tmp_path / "t.json.gz")
    assert found.gathers[0].tolist() == [90, 160] and found.products[0].tolist() == [0, 152]
    assert found.window_us == 230 and found.behind() == pytest.approx(30 / 80)
    assert {name: round(230 * part) for name, part in found.shares().items()} == {
        "a product alone": 118, "a gather alone": 50, "both": 30, "something else": 10, "nothing": 22}
    assert found.before_the_end_us().tolist() == [10, 40]
    assert [each.tolist() for each in found.beside_products()] == [[20], [60]]
    assert [each.tolist() for each in found.beside_gathers()] == [[48], [100]]


def test_a_trace_without_gathers_is_refused(tmp_path):
    columns = {"name": ["nvjet_a"], "kind": ["kernel"], "lane": ["compute"], "stream": [7], "start_us": [0],
               "duration_us": [1]}
    Trace.from_columns(columns).save(tmp_path / "t.json.gz")
    with pytest.raises(ValueError, match=r"t\.json\.gz: 0 gathers and 1 products"):
        seen(tmp_path / "t.json.gz")


def test_a_gather_before_all_products_begins_in_none():
    gathers, products = (np.array([1.0, 3.0]), np.array([2.0, 5.0])), (np.array([2.5]), np.array([4.0]))
    assert Seen(gathers, products, products).before_the_end_us().tolist() == [1]


def test_tables_are_put_into_their_places():
    before, after = f"| a | 0 |\n\n{made.SECTION}\nText.\n\n", "\n\n### More\n\n{}End.\n\n## Next\n\n| a | 2 |\n"
    page, new = before + "| a | 1 |" + after.format("| old | 1 |\n\n"), ["| a | 3 |", "| b | 4 |"]
    assert made.placed(page, new) == before + "| a | 3 |\n\n| b | 4 |" + after.format("")
    last = made.placed(page.partition("\n## Next")[0], new)
    assert last.endswith("End.\n") and made.shown(last) == new and made.placed(last, new) == last
    with pytest.raises(ValueError, match="no section"):
        made.placed("# Another page\n", new)
