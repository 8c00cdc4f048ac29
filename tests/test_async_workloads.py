"""benchmarks/async_workloads.py: what it counts, that a failure is not overlooked, and what is recorded."""

import json
import random
from pathlib import Path

import pytest
import torch
from test_lesson07 import one_thread  # noqa: F401

from benchmarks import async_workloads, async_workloads_made
from benchmarks.async_workloads_made import draw

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def recorded():
    return json.loads((BENCHMARKS / "results" / "async_workloads.json").read_text())


def test_a_few_workloads(tmp_path, capsys):
    async_workloads.main(["--count", "6", "--seed", "3", "--output", str(tmp_path / "few.json")])
    result = json.loads((tmp_path / "few.json").read_text())
    drawn = [draw(random.Random(f"3/{n}")) for n in range(6)]
    counts = result["counts"]
    assert counts["workloads"] == 6 and result["failures"] == result["hazards"] == 0 and result["failed"] == []
    assert counts["requests"] == sum(len(workload.requests) for workload in drawn) + counts["sent_again"]
    assert async_workloads.table(result) in capsys.readouterr().out
    assert result["machine"]["gpu"] is None and result["machine"]["threads"] == torch.get_num_threads() == 1


def test_what_is_wrong_is_counted_and_told(monkeypatch, capsys):
    class Broken(async_workloads_made.lesson_07.Streams):
        carry = staticmethod(lambda tokens, sources, before: tokens)

    run = async_workloads_made.run
    monkeypatch.setattr(async_workloads, "run", lambda workload: run(workload, pipeline=Broken))
    async_workloads.main(["--count", "6"])
    printed = capsys.readouterr().out
    assert "workload 0: " in printed and "| workloads in which anything is wrong | 0 |" not in printed


def test_recorded_workloads(recorded):
    counts = recorded["counts"]
    assert counts["workloads"] >= 10_000 and recorded["failures"] == recorded["hazards"] == 0
    assert min(counts.values()) >= 1000 and set(counts) == set(async_workloads.COUNTED)
    assert counts["requests"] == counts["ended_by_eos"] + counts["ended_by_limit"] + counts["cancelled"]
    assert counts["wasted_rows"] <= counts["ended_by_eos"] + 2 * (counts["cancelled"] + counts["preempted"])


def test_the_page_has_the_recorded_table(recorded):
    page = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    assert async_workloads.table(recorded) in page
    assert f"seed {recorded['seed']}" in page and f"torch {recorded['machine']['torch'].split('+')[0]}" in page
