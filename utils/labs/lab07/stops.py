"""Judge of ``Stopping``: who has a row before the last step is known, who gets its token, and slots that come back."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..check import Answer, Refused, call
from ..lab06.data import Cells, Table
from ..values import shown
from ..verdict import Tick, Verdict
from .serving import requests_lesson
from .stopping import AGAIN, CANCEL, Script, scripts

PUZZLE = "Stopping"
TICKS = ("correct", "freed once", "no waste")
SHOWN = 12            # events of the log in a witness
MOST = 300            # steps
LISTS = ("waiting", "running", "free")


class Flying(NamedTuple):
    """A row that was launched: for which stay of a request in a slot, whether it is the last one, and what it gives."""

    row: Any
    request: Any
    stay: int
    last: bool
    token: int | None


@dataclass
class State:
    """A workload that is served: the learner's object, the loop's own books, and a log of what happened."""

    script: Script
    serving: Any
    requests: list[Any]
    cells: Cells = field(default_factory=Cells)
    log: list[str] = field(default_factory=list)
    tokens: dict[int, list[int]] = field(default_factory=dict)     # that each request has to have, by id
    stays: dict[int, int] = field(default_factory=dict)            # how often it came into a slot
    inside: dict[int, int] = field(default_factory=dict)           # slots of those that have one
    left: dict[int, str] = field(default_factory=dict)             # why it left last
    cancelled: set[int] = field(default_factory=set)
    newest: list[Flying] = field(default_factory=list)
    wasted: int = 0

    def __post_init__(self) -> None:
        self.asked = {id(one): (tuple(one.prompt), one.limit) for one in self.requests}

    def counts(self, flying: Flying) -> bool:
        """Whether somebody waits for what a row gives."""
        key = id(flying.request)
        return flying.last and key in self.inside and self.stays[key] == flying.stay


def judge_Stopping(answer: Answer) -> Verdict:
    """The expected tokens, each once; every slot free or taken; a wasted row for an EOS, none for a limit."""
    picture = None
    for script in scripts():
        state = _serve(answer, script)
        picture = picture or (_log(state, first=True) if "EOS" in script.on else None)
    whys = ("every token is the expected one", "after every call each slot is free or taken",
            "one for an EOS, none for a limit")
    named = [script.on for script in scripts() if "random" not in script.on and "before" not in script.on]
    return Verdict(PUZZLE, [Tick(name, True, why) for name, why in zip(TICKS, whys, strict=True)],
                   tried=f"{'; '.join(named)}; preempt before each of 8 steps; 12 workloads at random", picture=picture)


def _serve(answer: Answer, script: Script) -> State:
    """The asynchronous loop in plain Python: step n is made before the tokens of step n - 1 are taken."""
    serving = call(PUZZLE, answer, script.slots, on=script.on)
    requests = [requests_lesson().Request("abcdefghijklmnopqr"[n], list(prompt), limit)
                for n, (prompt, limit) in enumerate(script.asked)]
    state = State(script, serving, requests)
    if not all(isinstance(getattr(serving, name, None), (list, deque)) for name in LISTS):
        raise _refused(state, "correct", "no lists", "Let the class be Stopping(Serving), and keep waiting, running "
                       "and free the lists they are. If it has an __init__, that begins with super().__init__(slots).")
    serving.waiting.extend(requests)
    state.tokens = {id(one): [] for one in requests}
    last = max((at for at, _, _ in script.events), default=0)
    for step in range(MOST):
        _disturb(state, step)
        _admit(state)
        before, state.newest = state.newest, _launch(state, step)
        serving.newest = [flying.row for flying in state.newest]
        if before:
            _take(state, before, step - 1)
        if step >= last and not (serving.waiting or serving.running or state.newest):
            break
    _check_end(state)
    return state


def _disturb(state: State, step: int) -> None:
    """Cancel, preempt or ask again, as the script says."""
    for at, how, number in state.script.events:
        request = state.requests[number]
        if at != step:
            continue
        if how == AGAIN:
            fresh = requests_lesson().Request(request.name, list(request.prompt), request.limit)
            state.requests.append(fresh)
            state.tokens[id(fresh)], state.asked[id(fresh)] = [], (tuple(fresh.prompt), fresh.limit)
            state.serving.waiting.append(fresh)
            state.log.append(f"another request {request.name} comes, with the same prompt")
            continue
        state.log.append(f"{how} {request.name}, which {_where(state, request)}")
        if not _finished(state, request) and how == CANCEL:
            state.cancelled.add(id(request))
        if id(request) in state.inside:
            del state.inside[id(request)]
            state.left[id(request)] = f"{how}{'ed' if how != CANCEL else 'led'}"
        _call(state, how, request)
        _check(state, f"{how} {request.name}")


def _admit(state: State) -> None:
    serving = state.serving
    while serving.waiting and serving.free:
        request, slot = serving.waiting[0], serving.free[0]
        del serving.waiting[0], serving.free[0]
        request.slot = state.inside[id(request)] = slot
        state.stays[id(request)] = state.stays.get(id(request), 0) + 1
        serving.running.append(request)
        state.log.append(f"{request.name} comes into slot {slot}")


def _launch(state: State, step: int) -> list[Flying]:
    """Make the rows of a step, as far as the learner's has_row lets them, and compute it."""
    coming = {id(one.request): one.token for one in state.newest if state.counts(one)}
    made: list[tuple[Any, int, int, bool]] = []
    for request in sorted(state.serving.running, key=lambda one: one.done < len(one.prompt)):
        if not _has_row(state, request, id(request) in coming, step):
            continue
        known = [*request.prompt, *request.tokens, *([coming[id(request)]] if id(request) in coming else [])]
        stop = min(len(known), request.done + state.script.budget - len(made))
        made += [(request, known[place], place, place == len(known) - 1) for place in range(request.done, stop)]
        request.done = max(request.done, stop)
    given = state.cells.step((token, state.inside[id(one)], place, last) for one, token, place, last in made)
    row = requests_lesson().Row
    if made:
        counts = {one.name: sum(other[0] is one for other in made) for one, *_ in made}
        state.log.append(f"step {step} is launched: " + ", ".join(f"{name} {count}" for name, count in counts.items()) +
                         " rows")
    return [Flying(row(one, token, place, last), one, state.stays[id(one)], last, following)
            for (one, token, place, last), following in zip(made, given, strict=True)]


def _has_row(state: State, request: Any, coming: bool, step: int) -> bool:
    """What the learner says, which has to be right."""
    wants = bool(_call(state, "has_row", request, coming, back=True))
    count = len(request.tokens) + coming
    if wants and count >= request.limit:
        raise _refused(state, "no waste", f"{request.name} has a row behind its limit",
                       f"Step {step}: {request.name} has {len(request.tokens)} tokens{' and one coming' * coming}, "
                       f"and its limit is {request.limit}. A row would give token {count + 1}, which nobody waits for: "
                       "a limit is known in advance, and costs no row.")
    if not wants and count < request.limit:
        why = " Whether the one that is coming is EOS is not known yet; to wait for that takes twice as long." * coming
        raise _refused(state, "correct", f"{request.name} has no row", f"Step {step}: {request.name} has "
                       f"{len(request.tokens)} of at most {request.limit} tokens{', and one coming' * coming}, and no "
                       f"row.{why}")
    return wants


def _take(state: State, before: list[Flying], step: int) -> None:
    """Give out the tokens of the step before the newest one."""
    state.log.append(f"the tokens of step {step} are taken: " +
                     (", ".join(f"{one.request.name} {one.token}" for one in before if one.last) or "none"))
    counted, ended = [one for one in before if state.counts(one)], []
    for one in before:
        if one in counted:
            state.tokens[id(one.request)].append(one.token)
            if _finished(state, one.request):
                ended.append(one.request)
        elif one.last:
            state.wasted += 1
    for request in ended:
        del state.inside[id(request)]
        state.left[id(request)] = "finished"
    _call(state, "take", [one.row for one in before], [one.token if one.last else 1 for one in before])
    asked = {id(one.request): one for one in sorted(before, key=lambda one: one.last)}   # the last row, if it is there
    for one in asked.values():
        _check_tokens(state, one, step, one in counted)
    for request in state.requests:
        if request.tokens != state.tokens[id(request)]:
            raise _refused(state, "correct", f"{request.name} gets {shown(request.tokens)}",
                           f"{request.name} has no row in step {step}, and gets a token of it. The row is that of an "
                           f"earlier request with the name {request.name}, which was cancelled: a row is for one "
                           "request, not for a name or a slot.")
    _check(state, f"the tokens of step {step}")


def _finished(state: State, request: Any) -> bool:
    tokens = state.tokens[id(request)]
    return len(tokens) >= request.limit or tokens[-1:] == [requests_lesson().EOS]


def _where(state: State, request: Any) -> str:
    if id(request) in state.cancelled:
        return "was cancelled before"
    if _finished(state, request):
        return "is finished"
    if id(request) not in state.inside:
        return "waits"
    beside = any(one.request is request and one.last for one in state.newest)
    return f"runs in slot {state.inside[id(request)]}{', with a token on its way' * beside}"


def _call(state: State, name: str, *arguments: Any, back: bool = False) -> Any:
    method = getattr(state.serving, name, None)
    if not callable(method):
        raise _refused(state, "correct", f"there is no {name}", f"Write {name}(self, ...), too.")
    try:
        return call(PUZZLE, method, *arguments, on=f"{name}: {state.script.on}", empty=not back)
    except Refused as refused:
        refused.verdict.picture = _log(state)
        raise


def _check_tokens(state: State, one: Flying, step: int, counted: bool) -> None:
    """A request has exactly the tokens that somebody waited for."""
    request, right = one.request, state.tokens[id(one.request)]
    if request.tokens == right:
        return
    name, why = request.name, state.left.get(id(request), "")
    extra = request.tokens[len(right):]
    if len(request.tokens) < len(right):
        says = f"{name}'s row in step {step} gives {one.token}, which is its next token, and {name} does not get it."
    elif counted or not one.last:
        says = (f"In step {step} {name} has rows that are not a last one: what follows a part of the prompt is no "
                "token of the answer.")
    elif right and _finished(state, request):
        says = (f"{name} is finished. Its row in step {step} was launched when nobody knew that: what it gives, "
                f"{one.token}, is thrown away.")
    elif why.startswith("preempt"):
        says = (f"{name} was preempted while its row of step {step} was under way. It starts over with the tokens that "
                "it has, and its new prefill computes this one again: taken now, it would come twice.")
    else:
        says = (f"{name} was {why or 'moved'} while its row of step {step} was under way: what that gives is thrown "
                "away. (Which stay in a slot was the row for?)")
    raise _refused(state, "correct", f"{name} gets {shown(extra or request.tokens)}",
                   f"{name} has the tokens {shown(request.tokens)} now. {says}")


def _check(state: State, behind: str) -> None:
    """Whether everybody is where they belong, and every slot."""
    serving, names = state.serving, {id(one): one.name for one in state.requests}
    for name in LISTS:
        if not isinstance(getattr(serving, name), (list, deque)):
            raise _refused(state, "correct", f"{name} is no list", f"Behind {behind} {name} is "
                           f"{shown(getattr(serving, name))}. Keep it a list.")
    for request in state.requests:
        if (tuple(request.prompt), request.limit) != state.asked[id(request)]:
            raise _refused(state, "correct", f"{request.name}'s prompt or limit changes", f"Behind {behind} the prompt "
                           f"or the limit of {request.name} is another one. These are what its user asked for.")
    running, free = list(serving.running), list(serving.free)
    for slot in free:
        if isinstance(slot, bool) or not isinstance(slot, int) or not 0 <= slot < state.script.slots:
            raise _refused(state, "freed once", f"{shown(slot)} in free", f"Behind {behind}: free holds numbers of "
                           "slots. Is request.slot read before it is set to None?")
        if free.count(slot) > 1:
            raise _refused(state, "freed once", f"slot {slot} is free twice", f"Behind {behind} slot {slot} is in free "
                           "twice: the next two requests that come in would share it, and overwrite each other's "
                           "cells.")
    for key, slot in state.inside.items():
        if sum(id(one) == key for one in running) != 1:
            raise _refused(state, "correct", f"{names[key]} no longer runs", f"Behind {behind} {names[key]} is neither "
                           "finished nor cancelled, and is gone from running.")
        if slot in free:
            raise _refused(state, "freed once", f"slot {slot} is free and taken", f"Behind {behind} slot {slot} is in "
                           f"free, and {names[key]} runs in it.")
    for request in running:
        if id(request) not in state.inside:
            why = state.left.get(id(request), "gone")
            raise _refused(state, "correct", f"{request.name} still runs", f"Behind {behind} {request.name} is {why}, "
                           f"and still in running: it keeps its slot, while {len(serving.waiting)} requests wait.")
    for slot in range(state.script.slots):
        if slot not in free and slot not in state.inside.values():
            raise _refused(state, "freed once", f"slot {slot} never comes back", f"Behind {behind} slot {slot} is "
                           "neither free nor taken. With every such slot fewer requests run at once, and in the end "
                           "none. (A row that is under way for nobody may be left to itself: the next owner of the "
                           "slot writes its cells in a later step.)")


def _check_end(state: State) -> None:
    for request in state.requests:
        if id(request) not in state.cancelled and request.tokens != requests_lesson().expected(request):
            raise _refused(state, "correct", f"{request.name}'s tokens", f"{request.name} has {shown(request.tokens)} "
                           f"instead of {shown(requests_lesson().expected(request))}.")


def _log(state: State, first: bool = False) -> Table:
    """The last events, or the first ones."""
    serving, dots = state.serving, ["  ..."] * (len(state.log) > SHOWN)
    names = [", ".join(getattr(one, "name", "?") for one in getattr(serving, what, ())) or "nobody"
             for what in ("running", "waiting")]
    lines = [f"  {line}" for line in (state.log[:SHOWN] if first else state.log[-SHOWN:])]
    return Table("\n".join([f"What happened{f', {state.script.on}' * first}:", *([] if first else dots), *lines,
                            *(dots if first else []), f"{'At the end' if first else 'Now'} running: {names[0]}; "
                            f"waiting: {names[1]}; free: {shown(list(serving.free))}; rows wasted: {state.wasted}"]))


def _refused(state: State, tick: str, why: str, says: str) -> Refused:
    at = TICKS.index(tick)
    ticks = [Tick(name, True if place < at else False if place == at else None, why if place == at else "")
             for place, name in enumerate(TICKS)]
    picture = _log(state) if hasattr(state.serving, "free") else None
    return Refused(Verdict(PUZZLE, ticks, says=f"{state.script.on[0].upper()}{state.script.on[1:]}. {says}",
                           picture=picture))
