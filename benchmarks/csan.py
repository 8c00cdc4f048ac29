"""What PyTorch's CUDA sanitizer (CSAN) and the simulated device report of small programs with and without races.

    python benchmarks/csan.py --text FILE.txt --output FILE.json    on a CUDA machine: both, and CSAN's report
    python benchmarks/csan.py                                       without one: the simulated device alone

A program is a list of steps, so that it can go on after CSAN raised at one of them; every step's operation has run by
then. Each row says where the first report came (step, counted from 1), or that there was none.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.machine import describe_machine
from utils import simgpu
from utils.lessons import import_lesson

WIDTH = 256
Step = Callable[[], Any]
PROGRAMS: dict[str, tuple[str, bool, Callable[[], list[Step]]]] = {}   # name -> what it does, if it races, its steps


def program(does: str, races: bool) -> Callable[[Callable[[], list[Step]]], Callable[[], list[Step]]]:
    def add(steps: Callable[[], list[Step]]) -> Callable[[], list[Step]]:
        PROGRAMS[steps.__name__] = (does, races, steps)
        return steps
    return add


def square(*more: int, **where: Any) -> torch.Tensor:
    return torch.ones(*more, WIDTH, WIDTH, **(where or {"device": "cuda"}))


def pinned() -> torch.Tensor:
    return square(device="cpu").pin_memory()


def stream() -> Any:
    """A new stream that has waited for all earlier work."""
    made = torch.cuda.Stream()
    made.wait_stream(torch.cuda.current_stream())
    return made


def on(where: Any, work: Step) -> Step:
    def run() -> Any:
        with torch.cuda.stream(where):
            return work()
    return run


def copy(target: torch.Tensor, source: torch.Tensor) -> Step:
    return lambda: target.copy_(source, non_blocking=True)


def weights(layers: int) -> list[torch.Tensor]:
    return [square(device="cpu").to(torch.bfloat16).pin_memory() for _ in range(layers)]


def calls(model: Callable[[torch.Tensor], torch.Tensor], count: int) -> list[Step]:
    x = torch.ones(WIDTH, WIDTH, dtype=torch.bfloat16, device="cuda")
    return [lambda: model(x)] * count


# ---- the lesson's models

@program("PublishedMLP, 3 layers, two calls in a row", True)
def published_mlp() -> list[Step]:
    return calls(import_lesson("04_double_buffered_onload").PublishedMLP(weights(3)), 2)


@program("RingMLP, 3 layers, 2 slots, prefetch, four calls in a row", False)
def ring_mlp() -> list[Step]:
    return calls(import_lesson("04_double_buffered_onload").RingMLP(weights(3)), 4)


# ---- slots cut from one tensor

@program("copy into slot 1 while slot 0 of the same tensor is read", False)
def neighbouring_slots() -> list[Step]:
    slots, x, other = square(2), square(), stream()
    return [lambda: x @ slots[0], on(other, copy(slots[1], pinned()))]


@program("copy into slot 0 while slot 0 is read", True)
def same_slot() -> list[Step]:
    slots, x, other = square(2), square(), stream()
    return [lambda: x @ slots[0], on(other, copy(slots[0], pinned()))]


@program("copy into slot 1 while all slots are read as one tensor", True)
def slot_of_a_whole() -> list[Step]:
    slots, x, other = square(2), square(), stream()
    return [lambda: x @ slots, on(other, copy(slots[1], pinned()))]


@program("copy into the last rows of a matrix while it is read", True)
def part_of_a_matrix() -> list[Step]:
    weight, x, other = square(), square(), stream()
    return [lambda: x @ weight, on(other, copy(weight[WIDTH // 2:], pinned()[WIDTH // 2:]))]


# ---- host memory

@program("result copied to pinned memory, read by the host before a synchronize", True)
def host_reads_early() -> list[Step]:
    x, host = square(), pinned()
    return [lambda: host.copy_(x @ x, non_blocking=True), lambda: host.sum()]


@program("the same read through numpy", True)
def numpy_reads_early() -> list[Step]:
    x, host = square(), pinned()
    return [lambda: host.copy_(x @ x, non_blocking=True), lambda: host.numpy().sum()]


@program("pinned source overwritten by the host right after its copy was queued", True)
def host_writes_early() -> list[Step]:
    target, host = square(), pinned()
    return [copy(target, host), lambda: host.zero_()]


# ---- memory given back

@program("tensor freed while another stream reads it, and its memory used again", True)
def freed_while_read() -> list[Step]:
    held, other = [square()], stream()
    return [on(other, lambda: held[0] @ held[0]), held.clear, lambda: held.append(square())]


@program("the same with record_stream", False)
def freed_while_read_recorded() -> list[Step]:
    held, other = [square()], stream()
    held[0].record_stream(other)
    return [on(other, lambda: held[0] @ held[0]), held.clear, lambda: held.append(square())]


# ---- events, and what is remembered

@program("consumer waits for an event that was never recorded", True)
def wait_before_record() -> list[Step]:
    weight, x, other, loaded = square(), square(), stream(), torch.cuda.Event()
    return [on(other, copy(weight, pinned())), lambda: torch.cuda.current_stream().wait_event(loaded),
            lambda: x @ weight]


@program("consumer waits for the event of another slot", True)
def wait_for_other_slot() -> list[Step]:
    slots, x, other = [square(), square()], square(), stream()
    loaded = [torch.cuda.Event(), torch.cuda.Event()]

    def load(i: int) -> Step:
        return on(other, lambda: (slots[i].copy_(pinned(), non_blocking=True), loaded[i].record()))
    return [load(0), load(1), lambda: torch.cuda.current_stream().wait_event(loaded[0]), lambda: x @ slots[1]]


@program("a reader is overwritten (race 1), then again by a stream that waited for that writer alone (race 2)", True)
def after_the_first() -> list[Step]:
    weight, x, writer = square(), square(), stream()
    third = stream()
    return [lambda: x @ weight, on(writer, copy(weight, pinned())), lambda: third.wait_stream(writer),
            on(third, copy(weight, pinned()))]


# ---- running them

def with_csan(name: str) -> dict[str, Any]:
    """Steps at which CSAN raised, and the text it gave; its memory of earlier programs is cleared first."""
    torch.cuda.synchronize()
    _forget()
    steps, reports, failed = PROGRAMS[name][2](), {}, []
    for number, step in enumerate(steps, 1):
        try:
            with contextlib.redirect_stderr(io.StringIO()):       # it prints what it raises
                step()
        except Exception as error:
            if type(error).__name__ == "CUDASanitizerErrors":
                reports[number] = "\n".join(map(str, error.errors))
            else:
                failed.append(f"step {number}: {type(error).__name__}: {error}")
    torch.cuda.synchronize()
    return {"failed": failed, "steps": sorted(reports), "text": [tidy(text) for _, text in sorted(reports.items())]}


def _forget() -> None:
    from torch.cuda import _sanitizer

    _sanitizer.cuda_sanitizer.dispatch.event_handler.__init__()


def tidy(report: str) -> str:
    """Without addresses and places of one machine: pointers and streams numbered, frames of this repository alone."""
    for word in ("pointer", "stream"):
        found = list(dict.fromkeys(re.findall(rf"{word} (\d+)", report)))
        for number, address in enumerate(found):
            report = re.sub(rf"{word} {address}\b", f"{word} {'ABCDEFGH'[number]}", report)
    lines, keep = [], True
    for line in report.splitlines():
        if frame := re.match(r'\s*File "(.+)", line (\d+), in (.+)', line):
            place = re.search(r"(?:(?:benchmarks|notebooks)/[^/]+)$|<.*>$", frame[1])
            keep = place is not None and "csan.py" not in frame[1]
            line = f'  File "{place[0]}", line {frame[2]}, in {frame[3]}' if place else line
        elif not line.startswith("    "):
            keep = True
        if keep:
            lines.append(line)
    return "\n".join(lines)


def simulated(name: str) -> dict[str, Any]:
    """Steps at which the simulated device found a hazard, and its words."""
    with simgpu.session(simgpu.H200) as gpu:
        steps, found = PROGRAMS[name][2](), []
        for number, step in enumerate(steps, 1):
            before = len(gpu.hazards)
            step()
            found += [number] * (len(gpu.hazards) > before)
        torch.cuda.synchronize()
        late = ["later"] if len(gpu.hazards) and not found else []
        return {"steps": found + late, "text": [str(hazard) for hazard in gpu.hazards]}


def rows(sanitize: bool) -> list[dict[str, Any]]:
    found = []
    for name, (does, races, _) in PROGRAMS.items():
        row = {"program": name, "does": does, "races": races, "simulated": simulated(name)}
        found.append(row)
    if sanitize:
        from torch.cuda import _sanitizer

        _sanitizer.enable_cuda_sanitizer()
        for row in found:
            row["csan"] = with_csan(row["program"])
        _sanitizer.cuda_sanitizer.disable()
    return found


def table(found: Sequence[dict[str, Any]]) -> str:
    def verdict(row: dict[str, Any], who: str) -> str:
        if who not in row:
            return "not run"
        steps = row[who]["steps"]
        return f"step {', '.join(map(str, steps))}" if steps else "nothing"
    lines = ["| program | races | CSAN | simulated device |", "|---|---|---|---|"]
    for row in found:
        races = "yes" if row["races"] else "no"
        lines.append(f"| {row['does']} | {races} | {verdict(row, 'csan')} | {verdict(row, 'simulated')} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, help="CSAN's report on PublishedMLP")
    parser.add_argument("--output", type=Path, help="all rows as JSON")
    options = parser.parse_args()
    found = rows(torch.cuda.is_available())
    if options.output:
        options.output.write_text(json.dumps({"machine": describe_machine(), "rows": found}, indent=1) + "\n")
    if options.text and "csan" in found[0]:
        options.text.write_text("\n".join(found[0]["csan"]["text"]) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
