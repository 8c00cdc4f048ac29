"""Watches lesson 07's scheduler: disturbs it as a workload says, and judges each step's rows and slots."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from utils.lessons import import_lesson

lesson_06 = import_lesson("06_continuous_batching")

MOST_STEPS = 5000                       # looks for somebody to serve included; no workload needs as many


class Watch:
    """Goes before a scheduler."""

    def begin(self, workload: Any, requests: list[Any]) -> None:
        self.workload, self.known, self.first = workload, list(requests), list(requests)
        self.to_do, self.calls, self.launched, self.at_ms = list(workload.disturbances), 0, [], 0.0
        self.kept: dict[Any, int] = {}                      # who was cancelled, and how many tokens there were
        self.allowed: Counter = Counter()                   # rows that may be wasted, by request
        self.admitted: Counter = Counter()
        self.released: Counter = Counter()
        self.preempted, self.skipped, self.found = 0, 0, []
        self.add(*random.Random(len(requests)).sample(requests, len(requests)))

    def note(self, fine: bool, text: str) -> None:
        if not fine and text not in self.found:
            self.found.append(text)

    # what happens to requests

    def disturb(self, under_way: bool) -> None:
        for each in [each for each in self.to_do if each.after <= len(self.launched) and each.under_way == under_way]:
            self.to_do.remove(each)
            request = self.known[each.who % len(self.known)]
            if request.finished or request in self.kept:
                continue
            self.allowed[request] += 2 if under_way else 1
            if each.how == "preempt":
                self.preempted += request in self.running
                self.preempt(request)
                continue
            self.kept[request] = len(request.tokens)
            self.cancel(request)
            self.cancel(request)
            if each.how == "resubmit":
                self.known.append(lesson_06.Request(request.name, list(request.prompt), request.limit, self.at_ms))
                self.add(self.known[-1])

    def left(self, request, coming):
        count = super().left(request, coming)
        if (self.calls, self.known.index(request)) in self.workload.skips:
            self.skipped += count > 0
            return 0
        return count

    # what is seen

    def admit(self, at_ms):
        before = set(self.running)
        super().admit(at_ms)
        for request in set(self.running) - before:
            self.admitted[request] += 1

    def release(self, request):
        self.note(request in self.running and request.slot not in self.free, "a slot is freed that was free")
        self.released[request] += 1
        super().release(request)

    def step(self, at_ms):
        if self.calls > MOST_STEPS:
            raise RuntimeError(f"not through after {MOST_STEPS} steps")
        self.at_ms = at_ms
        self.disturb(under_way=False)
        done = {request: request.done for request in self.known}
        rows = super().step(at_ms)
        self.calls += 1
        self.check_slots()
        self.check_rows(rows, done)
        if rows:
            self.launched.append([(row.request, row.slot, row.position, row.last) for row in rows])
        self.previous = [(row.request, row.last) for row in rows]
        return rows

    def check_slots(self):
        held = [request.slot for request in self.running]
        self.note(sorted([*self.free, *held]) == list(range(self.slots)), f"free {self.free}, held {held}")
        self.note(not set(self.running) & set(self.waiting), "somebody waits and runs")

    def check_rows(self, rows, done):
        """In order, each once; a placeholder comes from the row that gives it, and only where it has to."""
        self.note(len(rows) <= self.budget, f"{len(rows)} rows, the budget is {self.budget}")
        at, before = dict(done), getattr(self, "previous", [])
        for row in rows:
            words = [*row.request.prompt, *row.request.tokens]
            self.note(row.request in self.running and row.slot == row.request.slot, "a row of nobody who runs")
            self.note(row.position == at[row.request] or row.position == 0, f"position {row.position} out of order")
            at[row.request] = row.position + 1
            if row.position < len(words):
                self.note((row.token, row.source) == (words[row.position], -1), "a token that is known, and another")
            else:
                self.note(row.token == -1 and row.position == len(words), "a token that nobody can know")
                self.note(0 <= row.source < len(before) and before[row.source] == (row.request, True),
                          "carried over from another's row, or from one that gives no token")

    # afterwards

    def wrong_rows(self, steps: int) -> list[str]:
        """What is wrong with steps, slots and wasted rows."""
        self.note(steps == len(self.launched), f"{steps} steps, {len(self.launched)} launched")
        self.note(not self.waiting and not self.running and sorted(self.free) == list(range(self.slots)),
                  f"at the end {len(self.waiting)} wait, {len(self.running)} run, free: {list(self.free)}")
        self.note(self.admitted == self.released, "a slot that was given away came back never, or twice")
        wasted = self.wasted_rows()
        for request in self.known:
            by_eos = request not in self.kept and len(request.tokens) < request.limit
            self.note(0 <= wasted[request] <= self.allowed[request] + by_eos,
                      f"{wasted[request]} rows wasted; by EOS: {by_eos}, by leaving: {self.allowed[request]}")
        under_way = any(each.under_way for each in self.workload.disturbances)
        total = sum(wasted.values())
        self.note(self.wasted == total or (under_way and self.wasted < total), f"{self.wasted} counted, {total} wasted")
        return self.found

    def wasted_rows(self) -> dict[Any, int]:
        """Rows that were to give a token, without the tokens that came."""
        rows = Counter(request for step in self.launched for request, *_, last in step if last)
        return {request: rows[request] - len(request.tokens) for request in self.known}

    def count(self, steps: int) -> Counter:
        ended = [request for request in self.known if request not in self.kept]
        by_eos = sum(len(request.tokens) < request.limit for request in ended)
        rows = [({row[0] for row in step}, {row[0] for row in step if row[3]}) for step in self.launched]
        chunks = set().union(*(some - done for some, done in rows))
        return Counter(workloads=1, requests=len(self.known), tokens=sum(len(request.tokens) for request in self.known),
                       steps=steps, ended_by_eos=by_eos, ended_by_limit=len(ended) - by_eos, cancelled=len(self.kept),
                       sent_again=len(self.known) - len(self.first), preempted=self.preempted, skipped=self.skipped,
                       prompts_in_chunks=len(chunks), wasted_rows=sum(self.wasted_rows().values()))


def wrong_requests(watch: Watch, reference: list[list[int]]) -> list[str]:
    """Whose tokens are not the synchronous loop's, or, when cancelled, not the first of them, or came later."""
    wrong = []
    tokens = {**dict(zip(watch.first, reference, strict=True))}
    for n, request in enumerate(watch.known):
        wanted = tokens.get(request) or lesson_06.expected(request)
        if request in watch.kept:
            wanted = wanted[:watch.kept[request]]
        if request.tokens != wanted:
            wrong.append(f"request {n} got {request.tokens} in the place of {wanted}")
        if len(request.times_ms) != len(request.tokens) or sorted(request.times_ms) != request.times_ms:
            wrong.append(f"request {n}: times {request.times_ms} of {len(request.tokens)} tokens")
        if request.slot is not None:
            wrong.append(f"request {n} still has slot {request.slot}")
    return wrong
