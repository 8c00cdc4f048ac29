"""More cases of known faults, where other tests left one out: each was wrong once, or would be easy to get wrong."""

from __future__ import annotations

import random
from contextlib import nullcontext

import pytest
import torch
from answers import judge_as
from simulated import busy
from trace_files import copy, kernel, text, write

from benchmarks import async_workloads_made as made
from utils import simgpu
from utils.labs import lab08
from utils.lessons import import_lesson
from utils.trace import Trace, TraceError, TraceWarning

lab08_solution = import_lesson("solutions/08_cuda_graphs")
NUMERICS = pytest.mark.parametrize("numerics", ["exact", "adversarial"])

# --- a race is no equal result, however it is compared

SAYS_EQUAL = {
    "equal": torch.equal,
    "all": lambda y, x: (y == x).all(),
    "no difference": lambda y, x: not (y != x).any(),
    "how many": lambda y, x: (y == x).sum() == y.numel(),
    "none below": lambda y, x: not (y < x).any() and not (y > x).any() and (y >= x).all() and (y <= x).all(),
    "within": lambda y, x: ((y - x).abs() < 1).all() if y.dtype is not torch.bool else torch.equal(y, x),
    "isclose": lambda y, x: torch.isclose(y, x).all(),
    "both ways": lambda y, x: ((y <= x) & (x <= y)).all(),
    "to the host": lambda y, x: (y == x).cpu().all(),
}


@NUMERICS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool], ids=str)
def test_s1_what_a_race_spoiled_equals_nothing(numerics, dtype):
    with simgpu.session(simgpu.H200, numerics=numerics) as gpu:
        host = torch.arange(64).remainder(2).to(dtype).pin_memory()
        for wait in (True, False):
            wanted, slot = host.to("cuda"), torch.empty_like(host, device="cuda")
            torch.cuda.synchronize()
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                busy()
                slot.copy_(host, non_blocking=True)
            if wait:
                torch.cuda.current_stream().wait_stream(stream)
            y = slot.clone()
            torch.cuda.synchronize()
            assert {how: bool(says(y, wanted)) for how, says in SAYS_EQUAL.items()} == dict.fromkeys(SAYS_EQUAL, wait)
        assert [hazard.kind for hazard in gpu.hazards] == ["RAW"]


# --- S12, S21: numpy writes into a source, after the right wait and before it


@NUMERICS
@pytest.mark.parametrize("how", ["stream", "event", "query", "device", "none", "in time"])
def test_s12_numpy_writes_after_a_wait(numerics, how):
    with simgpu.session(simgpu.H200, numerics=numerics) as gpu:
        slots, hosts = [[make(64) for _ in range(3)] for make in (lambda n: torch.zeros(n, device="cuda"), pinned)]
        torch.cuda.synchronize()
        stream, event = torch.cuda.Stream(), torch.cuda.Event()
        with torch.cuda.stream(stream):
            busy()
            for slot, host in zip(slots, hosts, strict=True):
                slot.copy_(host, non_blocking=True)
            event.record()
        if how == "query":
            while not event.query():
                pass
        elif how == "in time":
            simgpu.host_work(1e6, "long enough")
        elif how != "none":
            {"stream": stream, "event": event, "device": torch.cuda}[how].synchronize()
        hosts[1].numpy()[:] = 7
        torch.cuda.synchronize()
        values = [slot[0].item() for slot in slots]
        assert [hazard.kind for hazard in gpu.hazards] == (["WAR"] if how in ("none", "in time") else [])
        assert values == [1, 1, 1] or how in ("none", "in time")


def pinned(count):
    return torch.ones(count).pin_memory()


# --- S1 to S21, by chance: an order of their own says which two accesses nothing orders

CELLS = 64


class Program:
    """A random program over device and pinned memory, and all that comes before each of its operations."""

    def __init__(self, seed: int, gpu):
        self.rng, self.gpu = random.Random(seed), gpu
        self.device = [torch.full((CELLS,), float(n), device="cuda") for n in range(2)]
        self.host = [torch.full((CELLS,), 10.0 + n).pin_memory() for n in range(2)]
        torch.cuda.synchronize()
        self.first = gpu.machine.count
        self.wanted = {(where, n): [start + n] * CELLS for where, start in (("d", 0.0), ("h", 10.0)) for n in range(2)}
        self.streams = [torch.cuda.current_stream(), *(torch.cuda.Stream() for _ in range(self.rng.randint(1, 3)))]
        self.before = [frozenset()] * len(self.streams)
        self.events = [[torch.cuda.Event(), frozenset()] for _ in range(3)]
        self.of_host, self.seen, self.races, self.number, self.right = frozenset(), [], set(), {}, True

    def touch(self, before, *accesses):
        """A new operation; returns what comes before whatever it comes before."""
        me = len(self.seen)
        mine = [(me, *access) for access in accesses]
        self.races |= {(old[0], me) for operation in self.seen for old in operation for new in mine
                       if old[0] not in before and old[1] == new[1] and (old[3] or new[3])
                       and set(old[2]) & set(new[2])}
        self.seen.append(mine)
        return before | {me}

    def launch(self, s, *accesses):
        self.number[self.gpu.machine.count - self.first] = len(self.seen)
        self.before[s] = self.touch(self.before[s] | self.of_host, *accesses)

    def step(self):
        rng = self.rng
        s, d, h, e = (rng.randrange(n) for n in (len(self.streams), 2, 2, 3))
        low = rng.randrange(0, CELLS, 16)
        at = range(low, rng.randrange(low, CELLS, 16) + 16)
        part, mine, home = slice(at.start, at.stop), self.wanted["d", d], self.wanted["h", h]
        what = rng.choice(("multiply", "up", "up", "down", "down", "record", "record", "wait", "wait", "wait for all",
                           "host waits", "stream waits", "read", "write", "work", "pageable"))
        with torch.cuda.stream(self.streams[s]):
            if what == "multiply":
                self.launch(s, (("d", d), at, True))
                self.device[d][part].mul_(2)
                mine[part] = [2 * value for value in mine[part]]
            elif what == "up":
                self.launch(s, (("h", h), at, False), (("d", d), at, True))
                self.device[d][part].copy_(self.host[h][part], non_blocking=True)
                mine[part] = home[part]
            elif what == "down":
                self.launch(s, (("d", d), at, False), (("h", h), at, True))
                self.host[h][part].copy_(self.device[d][part], non_blocking=True)
                home[part] = mine[part]
            elif what == "pageable":
                self.launch(s, (("d", d), at, True))
                self.device[d][part].copy_(torch.full((len(at),), 5.0), non_blocking=True)
                mine[part] = [5.0] * len(at)
            elif what == "record":
                self.events[e][0].record()
                self.events[e][1] = self.before[s] | self.of_host
            elif what == "wait":
                self.streams[s].wait_event(self.events[e][0])
                self.before[s] |= self.events[e][1]
            elif what == "wait for all":
                self.streams[s].wait_stream(self.streams[e % len(self.streams)])
                self.before[s] |= self.before[e % len(self.streams)] | self.of_host
            elif what == "host waits":
                self.events[e][0].synchronize()
                self.of_host |= self.events[e][1]
            elif what == "stream waits":
                self.streams[s].synchronize()
                self.of_host |= self.before[s]
            elif what == "read":
                self.of_host = self.touch(self.of_host, (("h", h), at, False))
                self.right &= self.host[h][part].tolist() == home[part]
            elif what == "write":
                self.of_host = self.touch(self.of_host, (("h", h), at, True))
                self.host[h][part].fill_(20.0)
                home[part] = [20.0] * len(at)
            else:
                simgpu.host_work(50, "work")

    def finish(self):
        torch.cuda.synchronize()
        found = {("d", n): x for n, x in enumerate(self.device)} | {("h", n): x for n, x in enumerate(self.host)}
        return self.right and all(found[name].tolist() == wanted for name, wanted in self.wanted.items())


@NUMERICS
def test_what_nothing_orders_is_found_and_nothing_else_on_the_device_and_on_the_host(numerics):
    clean = 0
    for seed in range(150):
        with simgpu.session(simgpu.H200.scaled(1 / 128), numerics=numerics) as gpu:
            program = Program(seed, gpu)
            for _ in range(6 + seed % 20):
                program.step()
            right, races, number = program.finish(), program.races, program.number
            assert bool(gpu.hazards) == bool(races), seed
            assert right or races, seed
            for hazard in gpu.hazards:
                first, second = (number.get(side.index - program.first) for side in (hazard.first, hazard.second))
                host = hazard.second.stream == "host"
                assert any(a == first and (host or b == second) for a, b in races), (seed, str(hazard))
                assert not host or "numpy" not in hazard.second.name, (seed, str(hazard))
            clean += not races
    assert 20 < clean < 130


# --- A4 to A12, A17, served by graphs: who leaves, is left out or comes again while steps are replayed


def test_any_workload_gets_its_tokens_from_graphs(monkeypatch):
    lesson = import_lesson("08_cuda_graphs")

    class Spare(lesson.Spare):
        scheduler = None

    class Graphs(lesson.Replaying):
        def compute(self, slot, before, rows):
            super().compute(slot, before, rows)
            self.model.scheduler.disturb(under_way=True)

    monkeypatch.setattr(made, "Told", Spare)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for n in range(12):
        workload = made.draw(random.Random(f"graphs/{n}"))
        assert made.run(workload, pipeline=Graphs, waits=False).wrong == [], workload
    torch.set_num_threads(threads)


# --- answers of labs


def carries_an_index_too_far(tokens, sources, before, ids):
    ids.copy_(torch.where(sources >= 0, before[sources.abs()], tokens))       # of one row, the -1 is row 1


def knows_the_tensor(step, example):
    """What a replay gave is given again for the same tensor, whatever is in it."""
    run, kept = lab08_solution.graphed(step, example), {}

    def again(x):
        if kept.get("x") != x.data_ptr():
            kept.update(x=x.data_ptr(), y=run(x))
        return kept["y"].clone()
    return again


class SkipsTheSame(lab08_solution.TwoGraphs):
    last = None

    def replay(self, n):
        if n != self.last:
            super().replay(n)
        self.last = n
        return self.outputs[n]


@pytest.mark.parametrize("puzzle, answer, words", [
    ("TwoGraphs", SkipsTheSame, "graph 1 was not replayed"),
    ("carry_over", carries_an_index_too_far, "an operation on the GPU failed IndexError: index 1 is out of bounds"),
    ("graphed", knows_the_tensor, "the same tensor again, with other numbers")])
def test_answers_are_refused_for_the_right_reason(puzzle, answer, words):
    verdict = judge_as(lab08.check, puzzle, answer)
    assert not verdict.passed and words in " ".join(str(verdict).split()), str(verdict)


# --- T5: text that is mended inside a name, but not where it says what a row is


@pytest.mark.parametrize("old, new", [
    (b'"ph": "X"', b'"p\x01": "X"'), (b'"ph": "X"', b'"ph": "\t"'), (b'"cat": "kernel"', b'"cat": "ker\x00el"'),
    (b'"cat"', b'"c\xfft"'), (b'"cat": "kernel"', b'"cat": "kern\\l"')])
def test_t5_what_a_row_is_cannot_be_guessed(tmp_path, old, new):
    """Mended, that row would be none: half a trace."""
    data = text([copy("1.0"), kernel("2.0"), kernel("3.0")]).encode()
    at = data.index(b"kernel") - 30
    broken = data[:at] + data[at:].replace(old, new, 1)
    with pytest.raises(TraceError, match=r"t.json: byte 2\d\d: the text '.*' of this event is damaged"):
        Trace.load(write(tmp_path, broken))
    with pytest.warns(TraceWarning, match="mended 1 piece"):       # in a name it is
        assert len(Trace.load(write(tmp_path, data.replace(b'"gemm"', b'"ge\x01mm"', 1)))) == 3


# --- T3, T6


def test_t3_spans_of_no_category_or_of_markers_are_no_work(tmp_path):
    """As "Record Window End" comes in some files; also with words for process and thread, and beside real work."""
    place = '"pid": "Spans", "tid": "stream 7", "ts": 0.5, "dur": 900'
    odd = [f'{{"ph": "X", "name": "Record Window End", {category}{place}}}'
           for category in ("", '"cat": "", ', '"cat": null, ', '"cat": "Trace", ', '"cat": "overhead", ')]
    trace = Trace.load(write(tmp_path, text([*odd, kernel("2.0", "3.0"), copy("4.0")])))
    assert trace.columns["name"].tolist() == ["gemm", "Memcpy HtoD (Pinned -> Device)"]
    assert trace.busy_us("kernel") == 3 and trace.columns["start_us"].tolist() == [0, 2]
    assert sum(trace.skipped.values()) == len(odd)


def test_t6_the_progress_bar_gets_to_the_end(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr("utils.trace.kineto.progress_bar", lambda total, *_: nullcontext(told.append))
    data = text([kernel(f"{n}.5") for n in range(2000)])
    Trace.load(write(tmp_path, data))
    assert len(told) > 1 and min(told) > 0 and 0.99 * len(data) < sum(told) <= len(data)
