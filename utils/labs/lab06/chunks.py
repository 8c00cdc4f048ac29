"""Judge of ``chunk_rows``: the rows of each step of a serving loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..check import Answer, Refused, Unsolved, call
from ..values import number, shown
from ..verdict import Tick, Verdict
from .admit import right_admit
from .data import Cells, Table, Workload, decodes, lesson, random_workload, right_rows

PUZZLE = "chunk_rows"
TICKS = ("correct", "budget", "steps")
FURTHER = 60          # steps that a faulty loop goes on, to see which token is the first wrong one
SHAPE = "Return a list of Row(request, token, position, last)."
WORKLOADS = (
    Workload(2, 8, ((20, 3, 0.0), (2, 6, 0.0))),
    Workload(4, 8, ((3, 9, 0.0), (2, 9, 0.0), (4, 9, 1.0), (20, 4, 3.0))),
    Workload(4, 4, ((3, 6, 0.0), (6, 5, 0.0), (7, 5, 0.0), (9, 5, 0.0), (1, 3, 0.0))),
    Workload(3, 64, ((20, 4, 0.0), (1, 1, 0.0), (40, 3, 2.0), (8, 2, 2.0))),
    Workload(3, 6, ((20, 4, 0.0), (3, 7, 0.0), (14, 3, 0.0), (8, 2, 2.0), (9, 5, 4.0)), prefixes=True),
    random_workload(16, 4, 16, gap_ms=1.5, seed=3),
    random_workload(20, 6, 6, gap_ms=0.7, seed=5),
)


@dataclass(frozen=True)
class Fault:
    """What is wrong with the rows of a step, and a table of them."""

    tick: str
    why: str
    says: str
    table: str = ""


def judge_chunk_rows(answer: Answer) -> Verdict:
    """The expected tokens, never more rows than the budget, decodes in every step, nothing left unused."""
    for load in WORKLOADS:
        def ask(running: list[Any], budget: int, load: Workload = load) -> Any:
            return call(PUZZLE, answer, running, budget, on=str(load))
        _serve(ask, load)
    whys = ("every token is the expected one", "never more rows", "decodes in each, and no row left unused")
    load = WORKLOADS[1]
    return Verdict(PUZZLE, [Tick(name, True, why) for name, why in zip(TICKS, whys, strict=True)],
                   tried="; ".join(map(str, WORKLOADS)),
                   picture=Table("\n".join(["The second workload, rows of each step:", *_steps_of(load)])))


def _serve(ask: Callable[..., Any], load: Workload) -> None:
    """The serving loop; Refused at the first fault, with the first wrong token that comes of it."""
    waiting, running, free, cells, at = load.requests(), [], list(range(load.slots)), Cells(), 0
    while waiting or running:
        for request in right_admit(waiting, running, load.slots, at):
            waiting = [one for one in waiting if one is not request]
            request.slot = free.pop(0)
            running.append(request)
            if load.prefixes and "acegikmoqsuwy".find(request.name) >= 0:
                request.done = len(request.prompt) // 2
                cells.step((request.prompt[n], request.slot, n, False) for n in range(request.done))
        if running:
            shown_to = running[::-1] if at % 2 else running   # in no particular order
            rows, fault = _rows(ask, shown_to, load.budget)
            if fault:
                wrong = _first_wrong(ask, rows, running, load.budget, cells)
                raise _refused(fault, f"{load}. Step {at}: {fault.says}{wrong}")
            _advance(rows, running, cells, free)
        at += 1


def _rows(ask: Callable[..., Any], running: list[Any], budget: int) -> tuple[list[Any], Fault | None]:
    """What the learner's function gives for a step, as the lesson's rows, and what is wrong with it."""
    before = [(one.done, list(one.tokens), list(one.prompt), one.slot) for one in running]
    given = ask(list(running), budget)
    after = [(one.done, list(one.tokens), list(one.prompt), one.slot) for one in running]
    try:
        rows = [_row(row) for row in given]
    except TypeError:
        rows = [None]
    if None in rows:
        return [], Fault("correct", f"returned {shown(given)}", SHAPE)
    for request, (done, tokens, prompt, slot) in zip(running, before, strict=True):
        request.done, request.tokens, request.prompt, request.slot = done, tokens, prompt, slot
    if before != after:
        name = next(one.name for one, was, is_ in zip(running, before, after, strict=True) if was != is_)
        return rows, Fault("correct", f"it changes request {name}", "the loop counts `done` on when the rows have "
                           "gone through the model, and would count them twice: leave the requests as they are.")
    return rows, fault_of(rows, running, budget)


def _row(given: Any) -> Any | None:
    """One row, also as a tuple of the four; None for anything else."""
    try:
        request, token, position, last = (given if isinstance(given, (tuple, list)) else
                                          (given.request, given.token, given.position, given.last))
    except (AttributeError, TypeError, ValueError):
        return None
    if number(token) is None or number(position) is None or not hasattr(request, "slot"):
        return None
    return lesson().Row(request, int(token), int(position), bool(last))


def fault_of(rows: list[Any], running: list[Any], budget: int) -> Fault | None:
    """The first thing that is wrong with the rows of a step, None where nothing is."""
    table = _table(rows, running, budget)
    if strangers := [row for row in rows if not any(row.request is one for one in running)]:
        return Fault("correct", "a request that does not run", f"{shown(strangers[0].request)} does not run.", table)
    for request in running:
        own = [row for row in rows if row.request is request]
        if found := (_decode_fault if decodes(request) else _prefill_fault)(request, own):
            return Fault("correct", found[0], found[1], table)
    count = sum(map(decodes, running))
    if len(rows) > budget:
        return Fault("budget", f"{len(rows)} rows, budget {budget}",
                     f"{len(rows)} rows, where {budget} are allowed: {count} of them decode, which leaves "
                     f"{budget - count} for all prompts together.", table)
    for request in running:
        if decodes(request) and not any(row.request is request for row in rows):
            return Fault("steps", f"{request.name} has no row", f"{request.name} is in decode and has no row: it waits "
                         "for its next token while prompts go through. Decodes come first.", table)
    left = sum(len(one.prompt) - one.done for one in running if not decodes(one)) - (len(rows) - count)
    if left > 0 and len(rows) < budget:
        return Fault("steps", f"{len(rows)} of {budget} rows used", f"{len(rows)} of {budget} rows are used, while "
                     f"{left} tokens of prompts wait. A step is not shorter for it, and there will be more of them.",
                     table)
    return None


def _decode_fault(request: Any, own: list[Any]) -> tuple[str, str] | None:
    name, place = request.name, request.done + len(request.tokens) - 1
    if len(own) > 1:
        return f"{len(own)} rows for {name}", f"{name} is in decode and has {len(own)} rows, where one token is known."
    for row in own:
        if row.position != place:
            says = (f"{name}'s row is at position {row.position}. Its prompt has {len(request.prompt)} tokens, and of "
                    f"the {len(request.tokens)} that followed the last one is not in the cache yet: it goes to "
                    f"{place}.")
            return f"{name} at {row.position} instead of {place}", says
        if row.token != request.tokens[-1]:
            return f"{name}'s token is {row.token}", f"{name} goes on with its last token, {request.tokens[-1]}."
        if not row.last:
            return f"{name}'s token is lost", f"{name} is in decode: what follows its row is its next token (last)."
    return None


def _prefill_fault(request: Any, own: list[Any]) -> tuple[str, str] | None:
    name, done, end = request.name, request.done, len(request.prompt)
    places = [row.position for row in own]
    twice = [place for place, count in Counter(places).items() if count > 1]
    if twice:
        return f"{name}: position {twice[0]} twice", f"{name} has two rows at position {twice[0]}."
    if own and min(places) < done:
        says = (f"{name}'s rows begin at position {min(places)}, but {done} tokens of its prompt have gone through: "
                f"the chunk begins at {done}. Starting over takes a prompt longer than the budget nowhere.")
        return f"{name} starts over", says
    if places and max(places) >= end:
        return f"{name}: position {max(places)}", f"{name}'s prompt has {end} tokens: its last position is {end - 1}."
    skipped = sorted(set(range(done, done + len(places))) - set(places))
    if skipped:
        says = f"{name} has rows up to {max(places)}, and none at {skipped[0]}: that cell would stay empty, or stale."
        return f"{name}: {skipped[0]} is skipped", says
    for row in own:
        if row.token != request.prompt[row.position]:
            return (f"{name}: token {row.token} at {row.position}",
                    f"{name}'s prompt has {request.prompt[row.position]} at position {row.position}, not {row.token}.")
        if row.last and row.position < end - 1:
            says = (f"{name}'s row at {row.position} is marked last, and its prompt goes on to {end - 1}: what follows "
                    "a chunk is no token of the answer. Only the row of the last prompt token gives one.")
            return f"a token after {row.position + 1} of {end} prompt tokens", says
        if not row.last and row.position == end - 1:
            says = f"{name}'s row at {end - 1} is its prompt's last one: what follows it is the first token (last)."
            return f"{name}'s first token is lost", says
    return None


def _advance(rows: list[Any], running: list[Any], cells: Cells, free: list[int]) -> tuple[Any, int] | None:
    """Take a step, right or wrong; the request whose token is wrong, and that token."""
    tokens = cells.step((row.token, row.request.slot, row.position, row.last) for row in rows)
    for row in rows:
        if not decodes(row.request):
            row.request.done += 1
    for row, token in zip(rows, tokens, strict=True):
        if row.last:
            right = lesson().expected(row.request)[len(row.request.tokens):]
            row.request.tokens.append(token)
            if right[:1] != [token]:
                return row.request, token
    for request in [one for one in running if one.finished]:
        running[:] = [one for one in running if one is not request]
        free.append(request.slot)
    return None


def _first_wrong(ask: Callable[..., Any], rows: list[Any], running: list[Any], budget: int, cells: Cells) -> str:
    """Which token is the first wrong one when the loop goes on like this, in words; "" where none is found."""
    own = [row for row in rows if any(row.request is one for one in running) and row.position >= 0]
    for _ in range(FURTHER):
        try:
            wrong = _advance(own, running, cells, [])
        except Exception:   # rows that no model can take
            return ""
        if wrong:
            request, token = wrong
            count = len(request.tokens)
            right = lesson().expected(request)[count - 1:count]
            return (f"\nThe first wrong token that comes of it: number {count} of {request.name} is {token}"
                    + (f" instead of {right[0]}." if right else ", and there should be none."))
        if not running:
            return ""
        try:
            own = [_row(row) for row in ask(list(running), budget)]
        except (Refused, Unsolved, TypeError):
            return ""
        if None in own:
            return ""
    return ""


def _table(rows: list[Any], running: list[Any], budget: int) -> str:
    """The rows of a step, yours and right ones."""
    right = right_rows(running, budget)
    lines = [f"{f'budget {budget}':<26}{'yours':<27}right"]
    for request in running:
        state = "decode" if decodes(request) else f"prompt, {request.done} of {len(request.prompt)} done"
        mine, wanted = (_places([row for row in one if row.request is request]) for one in (rows, right))
        lines.append(f"{f'{request.name}: {state}':<26}{mine:<27}{wanted}")
    return "\n".join([*lines, f"{'rows':<26}{len(rows):<27}{len(right)}"])


def _places(rows: list[Any]) -> str:
    if not rows:
        return "-"
    places = [row.position for row in rows]
    run = places == list(range(places[0], places[0] + len(places)))
    text = (f"{places[0]}" if len(places) == 1 else f"{places[0]} to {places[-1]}" if run else
            ",".join(map(str, places)))
    text = text if len(text) <= 14 else text[:13] + "…"
    tokens = sum(row.last for row in rows)
    return text + (", a token" if tokens == 1 else f", {tokens} tokens" * bool(tokens))


def _steps_of(load: Workload) -> list[str]:
    """The rows of each step of the worked answer, one line each, for the first steps."""
    lines: list[str] = []

    def ask(running: list[Any], budget: int) -> list[Any]:
        rows = right_rows(running, budget)
        parts = [f"{one.name} {_places([row for row in rows if row.request is one])}" for one in running]
        lines.append(f"  {len(lines):2}: {'; '.join(parts)}")
        return rows

    _serve(ask, load)
    return lines[:9]


def _refused(fault: Fault, says: str) -> Refused:
    at = TICKS.index(fault.tick)
    ticks = [Tick(name, True if place < at else False if place == at else None, fault.why if place == at else "")
             for place, name in enumerate(TICKS)]
    return Refused(Verdict(PUZZLE, ticks, says=says, picture=Table(fault.table) if fault.table else None))
