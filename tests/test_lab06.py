"""Lab 06: wrong answers are refused in words, with the first fault, and right ones pass, however written."""

from collections import deque

import numpy as np
import pytest
import torch
from answers import judge_as

from utils import intervals
from utils.labs.lab06 import Serving, check
from utils.lessons import import_lesson

SOLUTION = import_lesson("solutions/06_continuous_batching")
PUZZLES = ("idle_share", "speedup", "admit", "chunk_rows", "Releasing")
Row = SOLUTION.Row


def judged(answer, puzzle):
    return judge_as(check, puzzle, answer)


def said(verdict):
    return " ".join(str(verdict).split())


def refused(answer, phrase, puzzle):
    verdict = judged(answer, puzzle)
    assert not verdict.passed and not verdict.pending
    assert phrase in said(verdict), str(verdict)
    assert max(map(len, str(verdict).split("\n"))) <= 84, str(verdict)


@pytest.mark.parametrize("puzzle", PUZZLES)
def test_stub_is_not_done_yet(puzzle):
    def stub(*_):
        raise NotImplementedError()

    class Stub(Serving):
        def take(self, tokens):
            raise NotImplementedError()

    class Half(Serving):
        def cancel(self, request):
            raise NotImplementedError()
    assert all(judged(one, puzzle).pending for one in ((Stub,) if puzzle == "Releasing" else (stub,)))
    if puzzle == "Releasing":
        refused(Half, "Write take(self, ...), too.", puzzle)


@pytest.mark.parametrize("puzzle", PUZZLES)
def test_solution_passes(puzzle):
    verdict = check.judge(getattr(SOLUTION, puzzle))
    assert verdict.passed and not verdict.advice and verdict.tried, str(verdict)


# --- 1: idle share -------------------------------------------------------------------------------------------------

def lane(spans, name):
    return [span for span in spans if span.lane == name]


def total(spans, name):
    return sum(span.end_us - span.start_us for span in lane(spans, name))


def clipped(spans, start, stop):
    return [span._replace(start_us=max(span.start_us, start), end_us=min(span.end_us, stop)) for span in spans
            if span.end_us > start and span.start_us < stop]


def busy(spans, start, stop, lanes=("compute",)):
    own = [span for span in spans if span.lane in lanes]
    union = intervals.union([span.start_us for span in own], [span.end_us for span in own])
    return intervals.measure(intervals.clip(union, start, stop))


def from_first(spans, start, stop):
    own = lane(spans, "compute")
    if not own:
        return 1.0
    return 1 - busy(spans, start, stop) / (max(span.end_us for span in own) - min(span.start_us for span in own))


IDLE = [
    (lambda s, a, b: total(s, "host") / total(s, "compute"), "That is a ratio of idle to busy time."),
    (lambda s, a, b: total(s, "compute") / (total(s, "host") + total(s, "compute")), "in which the GPU is *busy*"),
    (lambda s, a, b: busy(s, a, b) / (b - a), "in which the GPU is *busy*"),
    (lambda s, a, b: total(s, "host") / (total(s, "host") + total(s, "compute")), "That is the host's part"),
    (lambda s, a, b: total(s, "host") / (b - a), "That is the host's part"),
    (lambda s, a, b: 1 - total(clipped(s, a, b), "compute") / (b - a), "That adds up the kernels' spans."),
    (lambda s, a, b: 1 - busy(s, -1e9, 1e9) / (b - a), "A span that reaches over the window's edge"),
    (lambda s, a, b: 1 - busy(s, a, b, ("h2d", "compute", "d2h")) / (b - a), "That counts copies as busy."),
    (lambda s, a, b: 100 * (1 - busy(s, a, b) / (b - a)), "That is in per cent"),
    (lambda s, a, b: b - a - busy(s, a, b), "That is a time in µs"),
    (from_first, "The window's ends count, too."),
    (lambda s, a, b: "a third", "Return one number"),
    (lambda s, a, b: None, "returned None"),
    (lambda s, a, b: 0.31, "the rest of it is idle"),
    (lambda s, a, b: s[0].duration, "it raised AttributeError"),
]


@pytest.mark.parametrize("at", range(len(IDLE)))
def test_wrong_idle_shares_are_refused(at):
    refused(*IDLE[at], "idle_share")


def by_microseconds(spans, start, stop):
    seen = np.zeros(int(stop - start), dtype=bool)
    for span in clipped(lane(spans, "compute"), start, stop):
        seen[int(span.start_us - start):int(span.end_us - start)] = True
    return np.float32(1 - seen.mean())


IDLE_RIGHT = [lambda s, a, b: 1 - busy(s, a, b) / (b - a), by_microseconds,
              lambda s, a, b: torch.tensor(1 - busy(s, a, b) / (b - a)),
              lambda s, a, b: round(1 - busy(s, a, b) / (b - a), 3)]


@pytest.mark.parametrize("at", range(len(IDLE_RIGHT)))
def test_right_idle_shares_pass(at):
    verdict = judged(IDLE_RIGHT[at], "idle_share")
    assert verdict.passed, str(verdict)


# --- 2: speed-up ---------------------------------------------------------------------------------------------------

GAIN = [
    (lambda s: s, "That is the idle share itself."),
    (lambda s: 1 + s, "1 + s adds the saved share"),
    (lambda s: 100 * s, "That is in per cent."),
    (lambda s: 100 / (1 - s) - 100, "That is in per cent."),
    (lambda s: 1 - s, "That is how the *time* of a step changes."),
    (lambda s: max(s, 1 - s), "That is how the *time* of a step changes."),
    (lambda s: 1 / (1 - s) - 1, "That is how much *more*"),
    (lambda s: 1 / (1 - s), "the host is the bound"),
    (lambda s: 1 / s, "when only the host's part is left"),
    (lambda s: 2, "Twice is the limit"),
    (lambda s: 1 + min(s, 1 - s), "1 + s adds the saved share"),
    (lambda s: 1.2, "How long is a step when the host's part"),
    (lambda s: None, "returned None"),
    (lambda s: "1.3 times", "Return one number"),
]


@pytest.mark.parametrize("at", range(len(GAIN)))
def test_wrong_factors_are_refused(at):
    refused(*GAIN[at], "speedup")


def in_steps(share):
    host, gpu = 1000 * share, 1000 * (1 - share)
    ready = done = 0.0
    for _ in range(1000):
        ready += host
        done = max(done, ready) + gpu
    return 1000 * (host + gpu) / done


@pytest.mark.parametrize("answer", [lambda s: 1 / max(s, 1 - s), in_steps, lambda s: np.float64(1 / max(s, 1 - s)),
                                    lambda s: 1 / (1 - s) if s <= 0.5 else 1 / s])
def test_right_factors_pass(answer):
    verdict = judged(answer, "speedup")
    assert verdict.passed, str(verdict)


# --- 3: admission --------------------------------------------------------------------------------------------------

def arrived(waiting, at_ms):
    return sorted((one for one in waiting if one.arrival_ms <= at_ms), key=lambda one: one.arrival_ms)


def fair(waiting, running, slots, at_ms):
    return arrived(waiting, at_ms)[:slots - len(running)]


def rebuilt(waiting, running, slots, at_ms):
    return [SOLUTION.Request(one.name, one.prompt, one.limit) for one in fair(waiting, running, slots, at_ms)]


def impatient(waiting, running, slots, at_ms):
    for one in waiting:
        one.limit = 2
    return fair(waiting, running, slots, at_ms)


ADMIT = [
    (lambda w, r, n, t: [] if r else fair(w, r, n, t), "draining the whole batch first"),
    (lambda w, r, n, t: sorted(w, key=lambda one: one.arrival_ms)[:n - len(r)], "nobody knows of it yet"),
    (lambda w, r, n, t: [one for one in w if one.arrival_ms <= t][:n - len(r)], "`waiting` is in no particular order"),
    (lambda w, r, n, t: arrived(w, t)[::-1][:n - len(r)], "`waiting` is in no particular order"),
    (lambda w, r, n, t: sorted(arrived(w, t), key=lambda one: one.limit)[:n - len(r)], "passed over can wait for ever"),
    (lambda w, r, n, t: arrived(w, t)[:n], "Two requests in one slot overwrite each other's cells."),
    (lambda w, r, n, t: arrived(w, t), "Two requests in one slot overwrite each other's cells."),
    (lambda w, r, n, t: fair(w, r, n, t)[:1], "as many may come in as there are free slots"),
    (lambda w, r, n, t: [one for one in fair(w, r, n, t) if one.arrival_ms < t], "at_ms is its arrival_ms"),
    (lambda w, r, n, t: arrived(w, t)[:n - len(r) - 1], "as many may come in as there are free slots"),
    (lambda w, r, n, t: [], "Nobody runs, and nobody is admitted."),
    (lambda w, r, n, t: [*r, *fair(w, r, n, t)][:n], "does not wait"),
    (lambda w, r, n, t: fair(w, r, n, t)[:1] * 2, "each gets one slot"),
    (lambda w, r, n, t: len(fair(w, r, n, t)), "Return a list of requests"),
    (lambda w, r, n, t: [one.name for one in fair(w, r, n, t)], "does not wait"),
    (rebuilt, "does not wait"),
    (impatient, "are the requests changed?"),
    (lambda w, r, n, t: None, "returned None"),
    (lambda w, r, n, t: w[99], "it raised IndexError"),
]


@pytest.mark.parametrize("at", range(len(ADMIT)))
def test_wrong_admissions_are_refused(at):
    refused(*ADMIT[at], "admit")


def taking(waiting, running, slots, at_ms):
    """Changes the lists it is given, which are copies."""
    found = []
    while waiting and len(running) < slots:
        first = min(waiting, key=lambda one: one.arrival_ms)
        if first.arrival_ms > at_ms:
            break
        waiting.remove(first)
        running.append(first)
        found.append(first)
    return found


@pytest.mark.parametrize("answer", [fair, taking, lambda *state: iter(fair(*state)[::-1]),
                                    lambda *state: tuple(fair(*state)),
                                    lambda w, r, n, t: fair(w[::-1], r, n, t)])
def test_right_admissions_pass(answer):
    verdict = judged(answer, "admit")
    assert verdict.passed, str(verdict)


# --- 4: the rows of a step -----------------------------------------------------------------------------------------

def rows(chunk=lambda one, budget, used: budget - used, begin=lambda one: one.done,
         last=lambda one, n: n == len(one.prompt) - 1, place=lambda one: len(one.prompt) + len(one.tokens) - 1,
         token=lambda one: one.tokens[-1], first="decode", more=lambda made: made, copies=1):
    """The worked answer with something else in one place."""
    def answer(running, budget):
        made = []
        order = running if first == "mixed" else sorted(running, key=lambda one: (one.done < len(one.prompt)) ==
                                                        (first == "decode"))
        for one in order:
            if one.done == len(one.prompt):
                made += [Row(one, token(one), place(one), True)] * copies if len(made) < budget else []
            else:
                stop = min(len(one.prompt), begin(one) + chunk(one, budget, len(made)))
                made += [Row(one, one.prompt[n], n, last(one, n)) for n in range(begin(one), stop)]
        return more(made)
    return answer


def counts_itself(running, budget):
    made = rows()(running, budget)
    for row in made:
        row.request.done += row.position < len(row.request.prompt)
    return made


def skipping(one):
    return one.done + (one.done > 0)


CHUNKS = [
    (rows(last=lambda one, n: True), "what follows a chunk is no token of the answer"),
    (rows(last=lambda one, n: n % 8 == 7 or n == len(one.prompt) - 1), "what follows a chunk is no token"),
    (rows(last=lambda one, n: True), "The first wrong token that comes of it"),
    (rows(last=lambda one, n: False), "first token is lost"),
    (rows(chunk=lambda one, budget, used: budget), "rows, where 8 are allowed"),
    (rows(chunk=lambda one, budget, used: len(one.prompt)), "rows, where 8 are allowed"),
    (rows(first="prompt"), "Decodes come first."),
    (rows(first="mixed"), "Decodes come first."),
    (rows(copies=2), "where one token is known"),
    (rows(begin=lambda one: 0), "Starting over takes a prompt longer than the budget nowhere."),
    (rows(begin=skipping), "that cell would stay empty, or stale"),
    (rows(begin=skipping), "The first wrong token that comes of it"),
    (rows(begin=lambda one: max(0, one.done - 1)), "the chunk begins at"),
    (rows(place=lambda one: len(one.prompt) + len(one.tokens)), "is not in the cache yet"),
    (rows(place=lambda one: len(one.tokens) - 1), "is not in the cache yet"),
    (rows(place=lambda one: len(one.prompt)), "is not in the cache yet"),
    (rows(token=lambda one: one.tokens[0]), "goes on with its last token"),
    (rows(token=lambda one: one.prompt[-1]), "goes on with its last token"),
    (rows(chunk=lambda one, budget, used: min(1, budget - used)), "tokens of prompts wait"),
    (rows(chunk=lambda one, budget, used: min(4, budget - used)), "tokens of prompts wait"),
    (rows(more=lambda made: made + made[:1]), "has two rows at position 0"),
    (rows(more=lambda made: [Row(row.request, row.token, row.position, False) for row in made]), "first token is lost"),
    (rows(more=lambda made: made[:-1]), "tokens of prompts wait"),
    (counts_itself, "would count them twice"),
    (rows(more=lambda made: [row.token for row in made]), "Return a list of Row(request, token, position, last)."),
    (rows(more=lambda made: len(made)), "Return a list of Row(request, token, position, last)."),
    (lambda running, budget: None, "returned None"),
    (lambda running, budget: [], "tokens of prompts wait"),
    (lambda running, budget: running[0].length, "it raised AttributeError"),
]


@pytest.mark.parametrize("at", range(len(CHUNKS)))
def test_wrong_rows_are_refused(at):
    refused(*CHUNKS[at], "chunk_rows")


def round_robin(running, budget):
    """Shares what decodes leave row by row between the prompts."""
    made = [Row(one, one.tokens[-1], len(one.prompt) + len(one.tokens) - 1, True) for one in running
            if one.done >= len(one.prompt)]
    places = {id(one): one.done for one in running}
    while len(made) < budget and (left := [one for one in running if places[id(one)] < len(one.prompt)]):
        for one in left[:budget - len(made)]:
            n = places[id(one)]
            made.append(Row(one, one.prompt[n], n, n + 1 == len(one.prompt)))
            places[id(one)] += 1
    return made


@pytest.mark.parametrize("answer", [rows(), round_robin, rows(more=lambda made: made[::-1]),
                                    rows(more=lambda made: [(row.request, row.token, row.position, row.last)
                                                            for row in made]),
                                    rows(more=lambda made: (row for row in made)),
                                    lambda running, budget: rows()(running[::-1], budget)])
def test_right_rows_pass(answer):
    verdict = judged(answer, "chunk_rows")
    assert verdict.passed, str(verdict)


# --- 5: freed once -------------------------------------------------------------------------------------------------

class Right(Serving):
    """The worked answer in parts, of which each wrong variant replaces one."""

    def take(self, tokens):
        for row, token in zip(self.rows, tokens, strict=True):
            self.give(row, token)
        for request in list(self.running):
            if request.finished or self.is_cancelled(request):
                self.release(request)

    def give(self, row, token):
        if row.last and not self.is_cancelled(row.request):
            row.request.tokens.append(token)

    def is_cancelled(self, request):
        return hasattr(request, "cancelled")

    def cancel(self, request):
        self.waiting = [other for other in self.waiting if other is not request]
        if any(row.request is request for row in self.rows):
            request.cancelled = True
        elif any(other is request for other in self.running):
            self.release(request)

    def release(self, request):
        self.running = [other for other in self.running if other is not request]
        self.free.append(request.slot)


class FreesAtOnce(Right):
    def cancel(self, request):
        self.waiting = [other for other in self.waiting if other is not request]
        if any(other is request for other in self.running):
            request.cancelled = True
            self.release(request)


class FreedByEachCancel(Right):
    def cancel(self, request):
        if request.slot is not None and not self.rows:
            self.running = [other for other in self.running if other is not request]
            self.free.append(request.slot)
        else:
            super().cancel(request)


class EosAndLimit(Right):
    def take(self, tokens):
        for row, token in zip(self.rows, tokens, strict=True):
            self.give(row, token)
            if row.request.tokens[-1:] == [0]:
                self.release(row.request)
            if len(row.request.tokens) >= row.request.limit:
                self.release(row.request)
        for request in list(self.running):
            if self.is_cancelled(request):
                self.release(request)


class NeverFreed(Right):
    def release(self, request):
        self.running = [other for other in self.running if other is not request]


class ForgetsCancelled(Right):
    def take(self, tokens):
        for row, token in zip(self.rows, tokens, strict=True):
            self.give(row, token)
            if row.request.finished:
                self.release(row.request)


class CancelOnlyWaiting(Right):
    def cancel(self, request):
        self.waiting = [other for other in self.waiting if other is not request]


class CancelOnlyRunning(Right):
    def cancel(self, request):
        if any(other is request for other in self.running):
            super().cancel(request)


class ByEqualityRunning(Right):
    def release(self, request):
        self.running.remove(request)
        self.free.append(request.slot)


class ByEqualityWaiting(Right):
    def cancel(self, request):
        if request in self.waiting:
            self.waiting.remove(request)
        else:
            super().cancel(request)


class TokenAfterCancel(Right):
    def give(self, row, token):
        if row.last:
            row.request.tokens.append(token)


class TokenPerChunk(Right):
    def give(self, row, token):
        if not self.is_cancelled(row.request):
            row.request.tokens.append(token)


class NoneFreed(Right):
    def release(self, request):
        request.slot = None
        super().release(request)


class OnlyLimit(Right):
    def take(self, tokens):
        for row, token in zip(self.rows, tokens, strict=True):
            self.give(row, token)
            if len(row.request.tokens) >= row.request.limit or self.is_cancelled(row.request):
                self.running = [other for other in self.running if other is not row.request]
                if row.request.slot not in self.free:
                    self.free.append(row.request.slot)


class StaysRunning(Right):
    def release(self, request):
        self.free.append(request.slot)


class DefersAll(Right):
    def cancel(self, request):
        self.waiting = [other for other in self.waiting if other is not request]
        request.cancelled = True


class Raises(Right):
    def cancel(self, request):
        self.running.remove(request)
        self.free.append(request.slot)


class NoSuper(Right):
    def __init__(self, slots):
        self.slots = slots


class NoCancel(Serving):
    take, give, is_cancelled, release = Right.take, Right.give, Right.is_cancelled, Right.release


class ClearsTokens(Right):
    def cancel(self, request):
        super().cancel(request)
        request.tokens.clear()


RELEASE = [
    (FreesAtOnce, "The step under way still writes"), (FreedByEachCancel, "is free twice"),
    (EosAndLimit, "was freed twice"), (NeverFreed, "never comes back"), (ForgetsCancelled, "still runs"),
    (CancelOnlyWaiting, "still runs"), (CancelOnlyRunning, "will be served all the same"),
    (ByEqualityRunning, "does not tell them apart"), (ByEqualityWaiting, "does not tell them apart"),
    (TokenAfterCancel, "is thrown away"), (TokenPerChunk, "is no token of the answer"),
    (NoneFreed, "Is request.slot read before it is set to None?"), (OnlyLimit, "is finished, and would have rows"),
    (StaysRunning, "is finished, and would have rows"), (DefersAll, "is cancelled, and would have rows"),
    (Raises, "it raised ValueError"), (NoSuper, "super().__init__(slots)"), (NoCancel, "Write cancel(self, ...), too."),
    (ClearsTokens, "A cancel gives no tokens and takes none."),
]


@pytest.mark.parametrize("at", range(len(RELEASE)), ids=[one.__name__ for one, _ in RELEASE])
def test_wrong_releases_are_refused(at):
    refused(*RELEASE[at], "Releasing")


class FreesLate(Right):
    """Everything that is cancelled under way comes back in take, also what has no row in the step."""

    def cancel(self, request):
        self.waiting = deque(other for other in self.waiting if other is not request)
        if any(other is request for other in self.running):
            if self.rows:
                request.cancelled = True
            else:
                self.release(request)


class ByIds(Right):
    """Remembers ids, keeps the lists, and clears slots."""

    def __init__(self, slots):
        super().__init__(slots)
        self.gone = set()

    def is_cancelled(self, request):
        return id(request) in self.gone

    def cancel(self, request):
        for place, other in enumerate(self.waiting):
            if other is request:
                del self.waiting[place]
                return
        if not any(other is request for other in self.running) or id(request) in self.gone:
            return
        self.gone.add(id(request))
        if not any(row.request is request for row in self.rows):
            self.release(request)

    def release(self, request):
        at = next(place for place, other in enumerate(self.running) if other is request)
        del self.running[at]
        self.free.insert(0, request.slot)
        request.slot = None


class LeavesAtOnce(Right):
    """A cancelled request leaves `running` at once, its slot in take."""

    limbo = ()

    def cancel(self, request):
        self.waiting = [other for other in self.waiting if other is not request]
        if any(other is request for other in self.running):
            self.running = [other for other in self.running if other is not request]
            request.cancelled = True
            if any(row.request is request for row in self.rows):
                self.limbo = (*self.limbo, request.slot)
            else:
                self.free.append(request.slot)

    def take(self, tokens):
        super().take(tokens)
        self.free.extend(self.limbo)
        self.limbo = ()


@pytest.mark.parametrize("answer", [Right, FreesLate, ByIds, LeavesAtOnce])
def test_right_releases_pass(answer):
    verdict = judged(answer, "Releasing")
    assert verdict.passed, str(verdict)
