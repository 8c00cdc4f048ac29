"""Lab 08, carry-over in a graph: what adds, changes what it reads, or waits for a value is refused."""

import pytest
import torch
from lab08_answers import SOLUTION, judged, passes, refused

PUZZLE = "carry_over"


def selected(tokens, sources, before):
    return torch.where(sources >= 0, before[sources.clamp(min=0)], tokens)


def adds_to_tokens(tokens, sources, before, ids):
    tokens += torch.where(sources >= 0, before[sources.clamp(min=0)] + 1, 0)
    ids.copy_(tokens)


def adds_to_ids(tokens, sources, before, ids):
    ids += selected(tokens, sources, before)


def adds_behind_copy(tokens, sources, before, ids):
    ids.copy_(tokens)
    ids += torch.where(sources >= 0, before[sources.clamp(min=0)], 0)


def overwrites_placeholder(tokens, sources, before, ids):
    tokens.copy_(torch.where(tokens == -1, before[sources.clamp(min=0)], tokens))
    ids.copy_(tokens)


def clamps_in_place(tokens, sources, before, ids):
    ids.copy_(torch.where(sources >= 0, before[sources.clamp_(min=0)], tokens))


def clears_sources(tokens, sources, before, ids):
    ids.copy_(selected(tokens, sources, before))
    sources.fill_(-1)


def changes_before(tokens, sources, before, ids):
    before.copy_(before[sources.clamp(min=0)])
    ids.copy_(torch.where(sources >= 0, before, tokens))


def by_row(tokens, sources, before, ids):
    ids.copy_(torch.where(sources >= 0, before, tokens))


def not_first_row(tokens, sources, before, ids):
    ids.copy_(torch.where(sources > 0, before[sources.clamp(min=0)], tokens))


def all_carried(tokens, sources, before, ids):
    ids.copy_(before[sources.clamp(min=0)])


def scattered(tokens, sources, before, ids):
    ids.copy_(tokens)
    ids.scatter_(0, sources.clamp(min=0), before)


def in_float32(tokens, sources, before, ids):
    ids.copy_(selected(tokens.float(), sources, before.float()))


def new_memory(tokens, sources, before, ids):
    ids.data = selected(tokens, sources, before)


def in_order_of_rows(tokens, sources, before, ids):
    ids.copy_(tokens)
    ids.masked_scatter_(sources >= 0, before[sources.clamp(min=0)])


def by_mask(tokens, sources, before, ids):
    mask = sources >= 0
    ids.copy_(tokens)
    ids[mask] = before[sources[mask]]


def row_by_row(tokens, sources, before, ids):
    for n in range(len(ids)):
        ids[n] = before[sources[n]] if sources[n] >= 0 else tokens[n]


def on_host(tokens, sources, before, ids):
    rows = zip(tokens.tolist(), sources.tolist(), strict=True)
    given = before.tolist()
    ids.copy_(torch.tensor([token if source < 0 else given[source] for token, source in rows]))


def waits(tokens, sources, before, ids):
    torch.cuda.synchronize()
    ids.copy_(selected(tokens, sources, before))


def returned(tokens, sources, before, ids):
    return selected(tokens, sources, before)


def if_any(tokens, sources, before, ids):
    ids.copy_(selected(tokens, sources, before) if (sources >= 0).any() else tokens)


def remembering():
    """Computes from what the sources were in the first call with these tensors."""
    known = {}

    def answer(tokens, sources, before, ids):
        if ids not in known:
            known[ids] = sources.clone()
        ids.copy_(selected(tokens, known[ids], before))
    return answer


def once():
    """Only the first call with these tensors does anything."""
    seen = []

    def answer(tokens, sources, before, ids):
        if not any(one is ids for one in seen):
            ids.copy_(selected(tokens, sources, before))
        seen.append(ids)
    return answer


def aside(tokens, sources, before, ids):
    """On a stream of its own, which waits and is waited for, but not as the capture needs it."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        ids.copy_(selected(tokens, sources, before))


WRONG = [
    (adds_to_tokens, "tokens changed"),
    (adds_to_ids, "ids is"),
    (adds_behind_copy, "That is what adding gives"),
    (overwrites_placeholder, "tokens changed"),
    (clamps_in_place, "sources changed"),
    (clears_sources, "sources changed"),
    (changes_before, "before changed"),
    (by_row, "That takes the same row of the step before"),
    (not_first_row, "A placeholder is left."),
    (all_carried, "Where the source is -1 the token stays what it is"),
    (scattered, "ids is"),
    (in_float32, "a float holds not every one of them"),
    (new_memory, "ids is [-9"),
    (in_order_of_rows, "A row with a source gets before[source]"),
    (by_mask, "A select works on all rows"),
    (row_by_row, "A select works on all rows"),
    (on_host, "A select works on all rows"),
    (waits, "it cannot be captured"),
    (if_any, "it cannot be captured"),
    (returned, "ids is [-9"),
    (remembering(), "Run once, without a graph, it was right."),
    (once(), "launched nothing on the captured stream"),
    (aside, "Launch there, or wait for it"),
]


@pytest.mark.parametrize("at", range(len(WRONG)))
def test_wrong_answers_are_refused(at):
    refused(*WRONG[at], PUZZLE)


def by_placeholder(tokens, sources, before, ids):
    """An index of -1 is the last row, and is not selected."""
    torch.where(tokens == -1, before[sources], tokens, out=ids)


def multiplied(tokens, sources, before, ids):
    carried = (sources >= 0).long()
    ids.copy_(before.gather(0, sources.clamp(min=0)) * carried + tokens * (1 - carried))


def adds_from_the_start(tokens, sources, before, ids):
    """The addition begins from the tokens each time: it may run again."""
    ids.copy_(tokens)
    ids += torch.where(sources >= 0, before[sources.clamp(min=0)] + 1, 0)


def forked(tokens, sources, before, ids):
    side, here = torch.cuda.Stream(), torch.cuda.current_stream()
    side.wait_stream(here)
    with torch.cuda.stream(side):
        ids.copy_(selected(tokens, sources, before))
    here.wait_stream(side)


def one_table(tokens, sources, before, ids):
    table = torch.cat([tokens, before])
    rows = torch.arange(len(ids), device="cuda")
    torch.index_select(table, 0, torch.where(sources < 0, rows, sources + len(ids)), out=ids)


RIGHT = [by_placeholder, multiplied, adds_from_the_start, forked, one_table]


@pytest.mark.parametrize("at", range(len(RIGHT)))
def test_right_answers_pass(at):
    passes(RIGHT[at], PUZZLE)


def test_stub_and_solution():
    def stub(*_):
        raise NotImplementedError()
    assert judged(stub, PUZZLE).pending
    verdict = passes(SOLUTION.carry_over, PUZZLE)
    assert not verdict.advice and verdict.tried
