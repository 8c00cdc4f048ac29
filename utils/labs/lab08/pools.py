"""Judge of ``TwoGraphs``: two graphs in the memory of one, whose outputs no replay of the other touches."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING, Any

from ...timeline import timeline
from ..check import Answer
from ..verdict import Picture, Verdict
from .judge import CALLS_US, Judge, Ran, Wrong, captures, ended, h200, kind_words, move_on, values

if TYPE_CHECKING:
    from ...simgpu import Hazard, Profile
    from ...simgpu.device import SimDevice

PUZZLE = "TwoGraphs"
SCALE = 1 / 8           # of all dimensions: sizes are 64 times as large on the GPU that is meant
BLOCKS = 10             # that a step keeps until shortly before its end
COLUMNS = 256
MOST = 1.05             # of one graph's memory
KIB = 1024
SHOWN_US = 200.0        # behind __init__
ROUNDS = ((0,), (1,), (0, 1), (1, 0), (0, 0, 1), (1, 1), (0,), (1, 0, 1))


@dataclass(frozen=True)
class Case:
    """How many rows the two inputs have."""

    rows: tuple[int, int]
    moves: bool = False
    side: bool = False
    adversarial: bool = False

    def __str__(self) -> str:
        parts = [f"inputs of {self.rows[0]} and {self.rows[1]} KiB"] + ["another stream current"] * self.side
        parts += ["another stream current in the replays than before"] * self.moves
        return ", ".join(parts + ["adversarial timing"] * self.adversarial)

    @property
    def profile(self) -> Profile:
        """An H200 for small tensors: its allocator's sizes are smaller, too."""
        return h200(lambda one: one.scaled(SCALE))


class Step:
    """A step that keeps all its blocks until it makes its result, a new tensor. Counts its calls."""

    calls = 0

    def __call__(self, x: Any) -> Any:
        self.calls += 1
        blocks = [x]
        for _ in range(BLOCKS):
            blocks.append(blocks[-1] + x)
        del blocks[1:-1]
        return blocks[-1] + x


class Pools(Judge):
    puzzle = PUZZLE
    ticks = ("correct", "race-free", "time", "memory")
    whys = ("both outputs, in any order of replays", "every order is stated", "one launch in a replay",
            "two graphs, the memory of one")
    each = ("replays of 0, 1, 0 1, 1 0, 0 0 1, 1 1, 0, 1 0 1; behind each, both inputs are written anew, then both "
            "outputs read; ")
    cases = (Case((256, 256)), Case((192, 256)), Case((256, 192), moves=True),
             Case((256, 256), side=True, adversarial=True))

    def play(self, answer: Answer, case: Case, gpu: SimDevice) -> Ran:
        import torch

        from ... import simgpu

        inputs = [simgpu.name(torch.zeros(rows, COLUMNS, device="cuda"), f"inputs[{n}]")
                  for n, rows in enumerate(case.rows)]
        fresh = [[_input(rows, n, turn).pin_memory() for turn in range(len(ROUNDS) + 1)]
                 for n, rows in enumerate(case.rows)]
        torch.cuda.synchronize()
        step, start, first = Step(), _reserved(), simgpu.clock()
        with captures(gpu) as made:
            graphs = self.called(answer, step, list(inputs), on="step and two inputs")
        if not callable(getattr(graphs, "replay", None)):
            raise self.refuse("correct", "there is no replay", "Write replay(self, n), too.")
        if case.moves:
            move_on()
        if not case.adversarial:               # there it goes on at once
            torch.cuda.synchronize()
        begin, before = simgpu.clock(), step.calls
        with captures(gpu) as captured:
            wrong, host_us, launches, reserved = self._replayed(graphs, inputs, fresh)
        if not step.calls:
            raise self.refuse("correct", "step was never called", "The graphs are those of step(inputs[n]): call it in "
                              "each capture.")
        found = ended(gpu, case, begin, wrong, calls=step.calls - before, host_us=host_us, launches=launches,
                      reserved=reserved - start, captures=len(captured), pools=len(gpu.machine.memory.pools_in_use()))
        found.facts["begin"] = begin
        found.facts["first"] = _reserved_at(gpu, made[1]) - start if len(made) == 2 else None
        found.trace, found.begin_us = gpu.trace(), first
        found.stop_us = begin + SHOWN_US
        return found

    def _replayed(self, graphs: Any, inputs: list[Any], fresh: list[list[Any]]) -> tuple[Wrong | None, float, int, int]:
        """The first output that is not right; the host's time in a replay, the most launches in one; bytes reserved."""
        import torch

        from ... import simgpu

        latest: dict[int, tuple[Any, Any, int]] = {}       # output, what it should be, its round
        host_us, launches, spans = [], [], simgpu.active().machine.host_spans
        seen = [torch.zeros(rows, COLUMNS).pin_memory() for rows in map(len, inputs)]
        _write(inputs, fresh, 0)
        for turn, order in enumerate(ROUNDS):
            for n in order:
                begin, before = simgpu.clock(), len(spans)
                output = self.called(graphs.replay, n, on=f"n = {n}")
                host_us.append(simgpu.clock() - begin)
                launches.append(sum(span.kind == "launch" for span in spans[before:]))
                if kind := kind_words(output, inputs[n]):
                    raise self.refuse("correct", f"replay({n}) returned {kind}",
                                      "Return that graph's output, a tensor on the GPU, of the shape of its input.")
                latest[n] = output, _right(inputs[n].shape[0], n, turn), turn
            for host, x in zip(seen, inputs, strict=True):
                host.copy_(x, non_blocking=True)
            _write(inputs, fresh, turn + 1)    # before the outputs are read
            torch.cuda.current_stream().synchronize()
            if changed := [n for n in range(2) if not torch.equal(seen[n], fresh[n][turn])]:
                return _written(changed[0], turn), mean(host_us), max(launches), 0
            for n, (output, right, last) in latest.items():
                if wrong := _wrong_output(n, output.cpu(), right, last, turn):
                    return wrong, mean(host_us), max(launches), 0
        torch.cuda.synchronize()
        return None, mean(host_us), max(launches), _reserved()   # with the latest outputs, which the caller keeps

    def race_words(self, run: Ran, hazard: Hazard) -> str:
        return ("Graphs that share a pool write the same memory: they must not run at the same time. Replay both on "
                "the stream that is current in the call, where the caller writes inputs and reads outputs, too; "
                "another stream has to wait for that one, and that one for it.")

    def picture(self, run: Ran, goal: Ran | None = None) -> Picture:
        if run.hazards:
            return timeline({"yours": run.trace}, start=run.facts["begin"])
        return timeline({"yours": run.trace, "target": goal.trace} if goal else run.trace, start=run.begin_us,
                        stop=run.stop_us, lanes=("host", "compute"), memory=True)

    def judge_cost(self, run: Ran, goal: Ran) -> None:
        on = f"\nIn this run: {run.case}."
        host, enough = run.facts["host_us"], goal.facts["host_us"]
        if host > enough + CALLS_US:
            raise self.refuse("time", f"{host:.0f} µs of the host for a replay",
                              f"Right, but a replay takes the host {host:.0f} µs, where {enough:.0f} are enough. "
                              f"{_slow_words(run)}{on}", run, goal)
        one, reserved = one_graph(run.case), run.facts["reserved"]
        if reserved > MOST * one:
            says = (f"Right, but {reserved / KIB:.0f} KiB are reserved, {reserved / one:.2f} times the "
                    f"{one / KIB:.0f} KiB of the larger graph alone with two outputs. "
                    f"{_parts_words(run)}{_more_words(run, reserved - one)}{on}")
            raise self.refuse("memory", f"{reserved / KIB:.0f} KiB instead of {one / KIB:.0f}", says)
        if run.facts["launches"] > 1:
            raise self.refuse("time", f"{run.facts['launches']} launches in a replay",
                              f"Right, but a replay makes {run.facts['launches']} launches of kernels, copies or "
                              f"graphs, and one is enough. What is beside it belongs into the graph, or is not needed."
                              f"{on}", run, goal)


def _reserved_at(gpu: SimDevice, at_us: float) -> int:
    """Bytes reserved at a time of the host's clock."""
    return [reserved for ns, _, _, reserved in gpu.machine.memory.history if ns <= at_us * 1000][-1]


def _parts_words(run: Ran) -> str:
    first, reserved = run.facts["first"], run.facts["reserved"]
    if first is None or reserved <= first:
        return ""
    return f"{first / KIB:.0f} were there when the second capture began, {(reserved - first) / KIB:.0f} came since. "


def _more_words(run: Ran, more: float) -> str:
    one, two = run.case.rows
    if more < 0.8 * BLOCKS * min(one, two) * KIB:
        return (f"The {more / KIB:.0f} KiB are tensors of the size of an output, which is {one} or {two} KiB. Is one "
                "allocated in each replay, or kept beside the static outputs? A tensor that a variable still holds "
                "when the next graph is captured keeps its block from being shared, too.")
    if one == two:   # judged first: in the other cases the pool is shared
        if run.facts["pools"] == 1:
            return ("The graphs have one pool, but not its blocks: a block belongs to the stream on which it was "
                    "allocated, in a pool, too. Capture both on the same stream.")
        return "Each graph has a pool of its own. They never run at the same time: let them share one, pool=."
    return ("What was captured first left blocks of its size in the pool, too small for what came after it: the pool "
            "holds both. Capture the larger one first.")


def _write(inputs: list[Any], fresh: list[list[Any]], turn: int) -> None:
    """The caller's inputs of a round."""
    for x, rounds in zip(inputs, fresh, strict=True):
        x.copy_(rounds[turn], non_blocking=True)


def _input(rows: int, number: int, turn: int) -> Any:
    import torch

    draw = torch.Generator().manual_seed(100 * number + turn)
    return torch.randint(1, 1000, (rows, COLUMNS), generator=draw).float()


def _right(rows: int, number: int, turn: int) -> Any:
    return _input(rows, number, turn) * (BLOCKS + 2)       # whole numbers: exact


def _wrong_output(n: int, seen: Any, right: Any, last: int, turn: int) -> Wrong | None:
    import torch

    if torch.equal(seen, right):
        return None
    says = f"The output of graph {n} is {values(seen)}, not {values(right)}"
    since = [other for order in ROUNDS[last:turn + 1] for other in order]
    behind = since[len(since) - since[::-1].index(n):]
    if last < turn and torch.equal(seen, _right(seen.shape[0], n, turn)):
        return Wrong(f"graph {n} was replayed, too",
                     f"{says}: that is what graph {n} makes of the inputs written since, and replay({n}) was not "
                     f"called for them. Does replay({1 - n}) replay graph {n}?")
    if any(torch.equal(seen, _right(seen.shape[0], n, earlier)) for earlier in range(last)):
        return Wrong(f"graph {n} was not replayed",
                     f"{says}: that is what it gave for inputs of an earlier round. The caller has written new ones "
                     f"into the same tensor since: replay({n}) replays, each time.")
    if 1 - n in behind:
        return Wrong(f"the output of graph {n} was overwritten",
                     f"{says}: graph {1 - n} was replayed since. {IN_POOL.format(n=n, other=1 - n)}")
    return Wrong(f"graph {n} gives wrong numbers",
                 f"{says}. The caller wrote inputs[{n}] before replay({n}): does the graph read that tensor, and is "
                 "what you return what it writes?")


def _written(n: int, turn: int) -> Wrong:
    return Wrong(f"inputs[{n}] changed",
                 f"Behind the replays of {' '.join(map(str, ROUNDS[turn]))}, inputs[{n}] does not hold what the caller "
                 "wrote. The next replay may be one of the same numbers: only read the inputs.")


IN_POOL = ("In one pool, what lies in the memory that the other graph uses for a while is lost with that one's next "
           "replay. Does the output of graph {n} lie outside of the pool, in a tensor that was made before the "
           "captures, and is it one that graph {other} does not write?")


def _reserved() -> int:
    import torch

    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


_alone: dict[tuple[int, int], int] = {}


def one_graph(case: Case) -> int:
    """Bytes reserved for the larger graph alone, and for an output of each outside of its pool."""
    import torch

    from .judge import session

    key = (max(case.rows), min(case.rows))
    if key not in _alone:
        with session(Case(key)):
            x, step, start = torch.zeros(key[0], COLUMNS, device="cuda"), Step(), _reserved()
            outputs = [torch.zeros(rows, COLUMNS, device="cuda") for rows in key]
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                outputs[0].copy_(step(x))
            _alone[key] = _reserved() - start
            del graph
    return _alone[key]


def _slow_words(run: Ran) -> str:
    if run.facts["captures"]:
        return f"{run.facts['captures']} graphs are captured when one is to be replayed: capture both in __init__."
    if run.facts["calls"]:
        return f"step runs in Python {run.facts['calls']} times: nothing was captured, or it is not replayed."
    return ("The host waits, or launches more than the replay: the caller reads the output on the same stream, which "
            "is order enough.")


def judge_TwoGraphs(answer: Answer) -> Verdict:
    """Both outputs right behind any order of replays, in the memory of one graph."""
    return Pools().run(answer)
