"""Judge of ``Releasing``: slots come back once, however a request ends, and never under a step that writes them."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from ..check import Answer, Refused, call
from ..values import shown
from ..verdict import Tick, Verdict
from .data import Cells, Table, lesson, right_rows
from .scripts import BETWEEN, UNDER_WAY, Script, scripts
from .serving import Asked

PUZZLE = "Releasing"
TICKS = ("correct", "freed once")
SHOWN = 12            # events of the log in a witness
LATEST = 31           # steps in which a cancel may come
LISTS = ("waiting", "running", "free")


@dataclass
class State:
    """A workload that is served: the learner's object, the loop's own books, and a log of what happened."""

    script: Script
    serving: Any
    requests: list[Asked]
    cells: Cells = field(default_factory=Cells)
    log: list[str] = field(default_factory=list)
    slots: dict[int, int] = field(default_factory=dict)     # of all that have come in, by id
    cancelled: set[int] = field(default_factory=set)
    under_way: list[Any] = field(default_factory=list)

    def named(self, slot: int) -> str:
        """Who had a slot last."""
        names = [one.name for one in self.requests if self.slots.get(id(one)) == slot]
        return names[-1] if names else "nobody"

    def alive(self, request: Asked) -> bool:
        """Whether it runs: has come in, is not finished, and was not cancelled."""
        return id(request) in self.slots and not request.finished and id(request) not in self.cancelled


def judge_Releasing(answer: Answer) -> Verdict:
    """The expected tokens of all that were not cancelled; each slot free or taken, never both, after every call."""
    tried = scripts()
    for script in tried:
        _serve(answer, script)
    whys = ("the others have their tokens", "after every call each slot is free or taken")
    named = [script.on for script in tried if "random" not in script.on]
    return Verdict(PUZZLE, [Tick(name, True, why) for name, why in zip(TICKS, whys, strict=True)],
                   tried=f"{'; '.join(named)}; {len(tried) - len(named)} workloads at random")


def _serve(answer: Answer, script: Script) -> None:
    """The serving loop with cancels at the times of the script."""
    serving = call(PUZZLE, answer, script.slots, on=script.on)
    requests = [Asked("abcdefghijkl"[n], list(prompt), limit) for n, (prompt, limit) in enumerate(script.asked)]
    state = State(script, serving, requests)
    if not all(isinstance(getattr(serving, name, None), (list, deque)) for name in LISTS):
        raise _refused(state, "correct", "no lists", "Let the class be Releasing(Serving), and keep waiting, running "
                       "and free the lists they are. If it has an __init__, that begins with super().__init__(slots).")
    serving.waiting.extend(requests)
    step = 0
    while serving.waiting or serving.running:
        _cancel(state, step, BETWEEN)
        _admit(state, loaded=False)
        _step(state, step)
        step += 1
    for late in range(step, LATEST):
        _cancel(state, late, BETWEEN)
    for request in requests:
        if id(request) not in state.cancelled and request.tokens != lesson().expected(request):
            raise _refused(state, "correct", f"{request.name}'s tokens", f"{request.name} has {shown(request.tokens)} "
                           f"instead of {shown(lesson().expected(request))}.")


def _step(state: State, step: int) -> None:
    """Launch a step, cancel and admit while it is under way, and give out its tokens."""
    rows = right_rows(state.serving.running, state.script.budget)
    if not rows:
        return
    state.log.append(f"step {step} is launched: {_rows_words(state, rows)}")
    state.serving.rows, state.under_way = list(rows), rows
    flying = [(row.token, state.slots[id(row.request)], row.position, row.last) for row in rows]
    counts = [len(row.request.tokens) for row in rows]
    for row in rows:
        row.request.done = max(row.request.done, min(row.position + 1, len(row.request.prompt)))
    _cancel(state, step, UNDER_WAY)
    _admit(state, loaded=True)
    tokens = state.cells.step((token, slot, position, True) for token, slot, position, _ in flying)
    state.log.append("its tokens are there")
    _call(state, "take", list(tokens))
    state.serving.rows, state.under_way = [], []
    for row, token, before in zip(rows, tokens, counts, strict=True):
        if row.last or not any(other.last and other.request is row.request for other in rows):
            _check_token(state, row, token, before)
    _check(state)


def _admit(state: State, loaded: bool) -> None:
    """First come, first served. ``loaded``: all of the prompt but its last token comes from a store of prefixes."""
    serving = state.serving
    while serving.waiting and serving.free:
        request, slot = serving.waiting[0], serving.free[0]
        del serving.waiting[0], serving.free[0]
        request.slot = state.slots[id(request)] = slot
        serving.running.append(request)
        state.log.append(f"{request.name} comes into slot {slot}")
        if loaded:
            request.done = len(request.prompt) - 1
            state.cells.step((request.prompt[n], slot, n, False) for n in range(request.done))


def _cancel(state: State, step: int, when: str) -> None:
    for at, place, number in state.script.cancels:
        if (at, place) != (step, when):
            continue
        request = state.requests[number]
        state.log.append(f"cancel {request.name}, which {_state_words(state, request)}")
        if not request.finished:
            state.cancelled.add(id(request))
        count = len(request.tokens)
        _call(state, "cancel", request)
        if len(request.tokens) != count:
            raise _refused(state, "correct", f"{request.name}'s tokens change",
                           "A cancel gives no tokens and takes none.")
        _check(state)


def _state_words(state: State, request: Asked) -> str:
    if id(request) in state.cancelled:
        return "was cancelled before"
    if request.finished:
        return "is finished"
    if id(request) not in state.slots:
        return "waits"
    if any(row.request is request for row in state.under_way):
        return f"has rows in the step under way, in slot {state.slots[id(request)]}"
    beside = ", without a row in the step under way" if state.under_way else ""
    return f"runs in slot {state.slots[id(request)]}{beside}"


def _call(state: State, name: str, argument: Any) -> None:
    method = getattr(state.serving, name, None)
    if not callable(method):
        raise _refused(state, "correct", f"there is no {name}", f"Write {name}(self, ...), too.")
    try:
        call(PUZZLE, method, argument, on=f"{name}: {state.script.on}", empty=True)
    except Refused as refused:
        refused.verdict.picture = _log(state)
        raise


def _check_token(state: State, row: Any, token: int, before: int) -> None:
    """A request has the token that its row gave, unless it was cancelled."""
    request, wanted = row.request, bool(row.last)
    if id(request) in state.cancelled:
        wanted = False
    if len(request.tokens) == before + wanted and (not wanted or request.tokens[-1] == token):
        return
    name, given = request.name, shown(request.tokens[before:])
    if id(request) in state.cancelled:
        says = f"{name} was cancelled while the step was under way: what it computed for {name} is thrown away."
    elif len(request.tokens) > before + wanted and row.position < len(request.prompt):
        says = (f"{name}'s prompt goes through the model: what follows a row without row.last is no token of the "
                "answer.")
    else:
        says = f"{name}'s row gives {token}, the next token of {name}, and it gets {given}."
    raise _refused(state, "correct", f"{name} gets {given}", says)


def _check(state: State) -> None:
    """Whether everybody is where they belong, and every slot."""
    _check_requests(state)
    _check_slots(state)


def _check_requests(state: State) -> None:
    waiting, running = list(state.serving.waiting), list(state.serving.running)
    for request in state.requests:
        name, ended = request.name, request.finished or id(request) in state.cancelled
        waits, runs = (sum(one is request for one in some) for some in (waiting, running))
        should_wait = id(request) not in state.slots and not ended
        if waits and not should_wait:
            raise _refused(state, "correct", f"{name} still waits", f"{name} was cancelled while it waited, and will "
                           "be served all the same.")
        if should_wait and not waits:
            raise _refused(state, "correct", f"{name} no longer waits", f"{name} was not cancelled, and is gone from "
                           f"waiting. {_equal_words(state, request)}")
        if state.alive(request) and not runs:
            raise _refused(state, "correct", f"{name} no longer runs", f"{name} is neither finished nor cancelled, and "
                           f"is gone from running. {_equal_words(state, request)}")
        if runs and ended and not state.under_way:
            how = "finished" if request.finished else "cancelled"
            raise _refused(state, "correct", f"{name} still runs", f"{name} is {how}, and would have rows in the next "
                           "step, too.")


def _equal_words(state: State, request: Asked) -> str:
    others = [one.name for one in state.requests if one is not request and one == request]
    return (f"It is equal to {' and '.join(others)}, and `==`, which `in` and `remove` use, does not tell them apart: "
            "`is` does." if others else "")


def _check_slots(state: State) -> None:
    free = list(state.serving.free)
    for slot in free:
        if isinstance(slot, bool) or not isinstance(slot, int) or not 0 <= slot < state.script.slots:
            raise _refused(state, "freed once", f"{shown(slot)} in free", "free holds numbers of slots. Is "
                           "request.slot read before it is set to None?")
        if free.count(slot) > 1:
            raise _refused(state, "freed once", f"slot {slot} is free twice", f"Slot {slot} was freed twice: the next "
                           "two requests that come in would share it, and overwrite each other's cells.")
    for row in state.under_way:
        slot = state.slots[id(row.request)]
        if slot in free:
            raise _refused(state, "freed once", f"slot {slot} is freed too early", f"The step under way still writes "
                           f"position {row.position} of slot {slot}, for {row.request.name}. The slot is free already: "
                           "whoever comes in now, with a prefix that is loaded at once, has its cells overwritten.")
    taken = {state.slots[id(one)]: one.name for one in state.serving.running if id(one) in state.slots}
    for slot in range(state.script.slots):
        if slot in free and slot in taken and any(state.slots.get(id(one)) == slot and state.alive(one)
                                                  for one in state.requests):
            raise _refused(state, "freed once", f"slot {slot} is free and taken", f"Slot {slot} is in free, and "
                           f"{taken[slot]} runs in it.")
        if slot not in free and slot not in taken and not state.under_way:
            raise _refused(state, "freed once", f"slot {slot} never comes back", f"Slot {slot} is neither free nor "
                           f"taken. {state.named(slot)} had it. With every such slot fewer requests run at once, and "
                           "in the end none.")


def _rows_words(state: State, rows: list[Any]) -> str:
    counts: Counter[int] = Counter(id(row.request) for row in rows)
    named = {id(row.request): row.request.name for row in rows}
    return ", ".join(f"{named[key]} {count}" for key, count in counts.items()) + " rows"


def _log(state: State) -> Table:
    lines = state.log[-SHOWN:]
    serving = state.serving
    names = [", ".join(getattr(one, "name", "?") for one in getattr(serving, what, ())) or "nobody"
             for what in ("running", "waiting")]
    return Table("\n".join(["What happened:", *(["  ..."] if len(state.log) > SHOWN else []),
                            *(f"  {line}" for line in lines),
                            f"Now running: {names[0]}; waiting: {names[1]}; free: {shown(list(serving.free))}"]))


def _refused(state: State, tick: str, why: str, says: str) -> Refused:
    at = TICKS.index(tick)
    ticks = [Tick(name, True if place < at else False if place == at else None, why if place == at else "")
             for place, name in enumerate(TICKS)]
    picture = _log(state) if hasattr(state.serving, "free") else None
    return Refused(Verdict(PUZZLE, ticks, says=f"{state.script.on}. {says}", picture=picture))
