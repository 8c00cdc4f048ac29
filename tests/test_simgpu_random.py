"""Random stream programs: races as PyTorch's sanitizer finds them, schedules as utils.dag makes them, values."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.cuda._sanitizer as sanitizer

from utils import simgpu
from utils.dag import schedule
from utils.simgpu.machine import Machine
from utils.simgpu.ops import DONE
from utils.simgpu.space import Space

PLAIN = replace(simgpu.H200, duplex_share=1.0, small_kernels_overlap=False)
KEY = (0, 1024, None)
ENGINES = ("h2d", "d2h", "compute")


def random_steps(rng: random.Random, streams: int, buffers: int, length: int, care: float = 0.0) -> list[tuple]:
    """Launches, records, waits and host synchronisation, as tuples; with chance ``care`` a launch waits for all."""
    steps, events = [], 100
    for _ in range(length):
        what = rng.random()
        if what < 0.5:
            stream = rng.randrange(streams)
            if rng.random() < care:
                steps += [
                    step for other in range(streams) for step in (("record", other, other), ("wait", stream, other))
                ]
            touched = rng.sample(range(buffers), rng.randint(1, min(3, buffers)))
            writes = rng.randint(0, len(touched))
            steps.append(
                ("launch", stream, touched[writes:], touched[:writes], rng.randint(1, 30), rng.choice(ENGINES))
            )
        elif what < 0.7 or events == 100:
            steps.append(("record", rng.randrange(streams), rng.randint(100, events)))
            events = max(events, steps[-1][2] + 1)
        elif what < 0.9:
            steps.append(("wait", rng.randrange(streams), rng.randrange(100, events)))
        elif what < 0.94:
            steps.append(("sync event", rng.randrange(100, events)))
        elif what < 0.97:
            steps.append(("sync stream", rng.randrange(streams)))
        else:
            steps.append(("sync all",))
    return steps


def play(machine: Machine, steps: list[tuple], streams: int, buffers: int, *, stop_at_hazard: bool = False) -> None:
    queues = [machine.new_queue("default stream" if i == 0 else f"stream {i}") for i in range(streams)]
    spaces = [Space(1024, host=False, base=4096 * i) for i in range(buffers)]
    markers = {}
    for step in steps:
        what, *rest = step
        if what == "launch":
            stream, reads, writes, us, engine = rest
            kind = "kernel" if engine == "compute" else engine
            machine.launch(
                queues[stream],
                "op",
                kind,
                engine,
                us * 1000,
                reads=[(spaces[b], KEY) for b in reads],
                writes=[(spaces[b], KEY) for b in writes],
            )
            if stop_at_hazard and machine.hazards:
                return
        elif what == "record":
            markers[rest[1]] = machine.record(queues[rest[0]])
        elif what == "wait":
            if rest[1] in markers:
                machine.wait(queues[rest[0]], markers[rest[1]])
        elif what == "sync event":
            machine.synchronize(markers[rest[0]])
        elif what == "sync stream":
            machine.synchronize(machine.record(queues[rest[0]]))
        else:
            machine.synchronize_all()


def first_errors(steps: list[tuple], streams: int) -> tuple[int, set[tuple[int, int]]] | None:
    """(index of the first racing launch, {(buffer, index of the earlier launch)}) by PyTorch's sanitizer."""
    handler = sanitizer.EventHandler()
    for stream in range(1, streams):
        handler._handle_stream_creation(stream)
    launches = 0
    for step in steps:
        what, *rest = step
        if what == "launch":
            stream, reads, writes, _, _ = rest
            names = {b: ["t"] for b in (*reads, *writes)}
            errors = handler._handle_kernel_launch(stream, set(reads), set(writes), set(), "op", names)
            if errors:
                return launches, {(e.data_ptr, e.previous_access.seq_num - 1) for e in errors}
            launches += 1
        elif what == "record":
            handler._handle_event_record(rest[1], rest[0])
        elif what == "wait":
            handler._handle_event_wait(rest[1], rest[0])
        elif what == "sync event":
            handler._handle_event_synchronization(rest[0])
        elif what == "sync stream":
            handler._handle_stream_synchronization(rest[0])
        else:
            handler._handle_device_synchronization()
    return None


@pytest.fixture
def quick_sanitizer(monkeypatch):
    """Without the stack trace that it takes at every launch."""
    no_stack = SimpleNamespace(
        StackSummary=SimpleNamespace(extract=lambda *args, **kwargs: []), walk_stack=lambda frame: []
    )
    monkeypatch.setattr(sanitizer, "traceback", no_stack)


@pytest.mark.parametrize("streams", [2, 3, 5])
def test_first_hazard_is_the_sanitizers(quick_sanitizer, streams):
    racing = clean = 0
    for seed in range(1000):
        rng = random.Random(seed * 10 + streams)
        buffers = rng.randint(1, 5)
        steps = random_steps(rng, streams, buffers, rng.randint(4, 30), care=rng.choice((0, 0.7, 0.95)))
        machine = Machine(PLAIN, numerics="shapes", keep="none")
        play(machine, steps, streams, buffers, stop_at_hazard=True)
        wanted = first_errors(steps, streams)
        if wanted is None:
            assert machine.hazards == [], steps
            clean += 1
            continue
        launch, conflicts = wanted
        assert {h.second.index for h in machine.hazards} == {launch}, steps
        assert {h.first.index for h in machine.hazards} <= {first for _, first in conflicts}, steps
        racing += 1
    assert racing > 100 and clean > 100


def test_hazard_names_the_buffer_and_the_kind(quick_sanitizer):
    machine = Machine(PLAIN, numerics="shapes")
    play(
        machine,
        [
            ("launch", 0, [], [0], 1, "compute"),
            ("launch", 1, [0], [], 1, "compute"),
            ("launch", 0, [], [0], 1, "compute"),
        ],
        2,
        1,
    )
    assert [h.kind for h in machine.hazards] == ["RAW", "WAR"]


def schedules(seed: int) -> tuple[Machine, list[tuple]]:
    rng = random.Random(seed)
    steps = random_steps(rng, 4, 4, 40)
    machine = Machine(PLAIN, numerics="shapes")
    play(machine, steps, 4, 4)
    machine.flush()
    return machine, steps


@pytest.mark.parametrize("seed", range(60))
def test_schedule_respects_streams_engines_and_events(seed):
    machine, _ = schedules(seed)
    for op in machine.ops:
        assert op.state == DONE and op.start >= op.launch and op.end - op.start == op.work
        assert all(dep.end <= op.start for dep in op.after)
    for key in ("actor", "engine"):
        groups: dict = {}
        for op in sorted(machine.ops, key=lambda op: op.start):
            groups.setdefault(getattr(op, key), []).append(op)
        for ops in groups.values():
            assert all(a.end <= b.start for a, b in itertools.pairwise(ops))
            if key == "actor":
                assert [op.index for op in ops] == sorted(op.index for op in ops)
    # no engine idles while something could run there
    for op in machine.ops:
        eligible = max([op.launch, *(dep.end for dep in op.after)])
        busy = sum(max(0, min(o.end, op.start) - max(o.start, eligible)) for o in machine.ops if o.engine == op.engine)
        assert busy == op.start - eligible


@pytest.mark.parametrize("seed", range(40))
def test_schedule_equals_the_one_of_its_own_graph(seed):
    from utils.simgpu.record import graph_of

    machine, _ = schedules(seed)
    graph = graph_of(machine, unit="ns")
    made = schedule(graph, dict.fromkeys({task["resource"] for _, task in graph.nodes(data=True)}, 1))
    for op in machine.ops:
        run = made.runs[f"op #{op.index}"]
        assert (run.start, run.end) == (op.start, op.end)
    assert max(run.end for task, run in made.runs.items() if str(task).startswith("host")) == machine.host_ns


def value_program(rng: random.Random, device: str, streams: list, care: float) -> list[torch.Tensor]:
    """Arithmetic between four buffers on several streams; with chance ``care`` an operation waits for all of them."""
    pinned = [torch.full((8,), float(i + 1), pin_memory=device == "cuda") for i in range(3)]
    buffers = [torch.zeros(8, device=device) for _ in range(4)]
    for step in range(25):
        a, b = rng.sample(range(4), 2)
        what, stream, careful = rng.randrange(5), rng.randrange(3), rng.random() < care
        if device == "cuda":
            if careful or step == 0:
                for other in streams:
                    streams[stream].wait_stream(other)
                streams[stream].wait_stream(torch.cuda.default_stream())
            torch.cuda.set_stream(streams[stream])
        if what == 0:
            buffers[a].copy_(pinned[rng.randrange(3)], non_blocking=True)
        elif what == 1:
            buffers[a].add_(buffers[b])
        elif what == 2:
            buffers[a].mul_(0.5).add_(1)
        elif what == 3:
            buffers[a][2:6] = buffers[b][1:5]
        else:
            torch.sub(buffers[a], buffers[b], out=buffers[b])
    if device == "cuda":
        torch.cuda.set_stream(torch.cuda.default_stream())
        torch.cuda.synchronize()
    return [buffer.cpu() for buffer in buffers]


@pytest.mark.parametrize("numerics", ["exact", "adversarial"])
@pytest.mark.parametrize("care", [1.0, 0.9])
def test_programs_without_hazards_equal_program_order(numerics, care):
    clean = 0
    for seed in range(40):
        with simgpu.session(simgpu.H200, numerics=numerics) as gpu:
            streams = [torch.cuda.Stream() for _ in range(3)]
            found = value_program(random.Random(seed), "cuda", streams, care)
            hazards = list(gpu.hazards)
        wanted = value_program(random.Random(seed), "cpu", [], care)
        if not hazards:
            clean += 1
            assert all(torch.equal(f, w) for f, w in zip(found, wanted, strict=True))
            assert gpu.notes == []
        assert not hazards or care < 1
    assert clean >= (40 if care == 1 else 3)


@pytest.mark.parametrize("delay", ["none", "first", "second"])
@pytest.mark.parametrize("kind", ["RAW", "WAR", "WAW", "RAW part", "host RAW", "host WAR"])
def test_adversarial_numerics_spoil_every_unordered_access(kind, delay):
    with simgpu.session(simgpu.H200, numerics="adversarial") as gpu:
        x, source = torch.ones(8, device="cuda"), torch.ones(8).pin_memory()
        home = torch.zeros(8, pin_memory=True)
        torch.cuda.synchronize()
        first, second = torch.cuda.Stream(), torch.cuda.Stream()
        with torch.cuda.stream(first):
            if delay == "first":
                torch.cuda._sleep(1_000_000)
            if kind == "WAR":
                seen = x + 1
            elif kind == "host RAW":
                home.copy_(x, non_blocking=True)
            else:
                x.copy_(source, non_blocking=True)
        with torch.cuda.stream(second):
            if delay == "second":
                torch.cuda._sleep(1_000_000)
                simgpu.host_work(2_000, "long enough for the first")
            if kind in ("WAR", "WAW"):
                x.fill_(3)
            elif kind == "RAW":
                seen = x + 1
            elif kind == "RAW part":
                seen = x[2:4] + 1
            elif kind == "host RAW":
                seen = home.clone()
            else:
                source.fill_(2)
        torch.cuda.synchronize()
        seen = x if kind in ("WAW", "host WAR") else seen
        assert [h.kind for h in gpu.hazards] == [kind.split()[1] if kind.startswith("host") else kind.split()[0]]
        assert seen.isnan().all().item()
