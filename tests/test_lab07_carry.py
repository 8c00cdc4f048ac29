"""Lab 07, carry-over: the first wrong row is named, and what carry makes of a small case, once and again."""

import pytest
import torch
from lab07_answers import SOLUTION, passes, refused

PUZZLE = "CarryOver"


class Right(SOLUTION.CarryOver):
    """The worked answer, of which each wrong variant replaces one part."""


def known(request):
    return [*request.prompt, *request.tokens, -1][request.done]


def with_row(row):
    return type("WithRow", (Right,), {"row": lambda self, newest, request: row(newest, request)})


def with_carry(carry, placeholder=-1):
    def row(self, newest, request):
        token, source = Right.row(self, newest, request)
        return (placeholder if source >= 0 else token), source
    return type("WithCarry", (Right,), {"carry": lambda self, *parts: carry(*parts), "row": row})


def first_row(newest, request):
    """Whatever row it has, not its last."""
    found = [n for n, row in enumerate(newest) if row.request is request]
    return (-1, found[0]) if found else (known(request), -1)


def any_row(newest, request):
    """Also of a chunk that is not the last."""
    found = [n for n, row in enumerate(newest) if row.request is request]
    return (-1, found[-1]) if found else (known(request), -1)


def newest_token(newest, request):
    """Right in decode, and not in the middle of a prompt."""
    token, source = Right().row(newest, request)
    return (token if source >= 0 else [*request.prompt, *request.tokens][-1]), source


def by_name(newest, request):
    found = {row.request.name: n for n, row in enumerate(newest) if row.last}
    return (-1, found[request.name]) if request.name in found else (known(request), -1)


def by_slot_number(newest, request):
    return (-1, request.slot) if any(row.request is request for row in newest) else (known(request), -1)


class Remembers(Right):
    """Where it was in any step before, also if it was left out since."""

    def __init__(self):
        self.rows = {}

    def row(self, newest, request):
        self.rows.update({id(row.request): n for n, row in enumerate(newest) if row.last})
        return (-1, self.rows[id(request)]) if id(request) in self.rows else (known(request), -1)


def always_carried(newest, request):
    found = [n for n, row in enumerate(newest) if row.last and row.request is request]
    return -1, (found or [0])[0]


def shifted(newest, request):
    token, source = Right().row(newest, request)
    return token, source - 1 if source >= 0 else source


def picked(sources, before):
    return before[sources.clamp(min=0)]


def add(tokens, sources, before):
    return tokens + torch.where(sources >= 0, picked(sources, before) + 1, 0)      # from -1 on


def add_to_zero(tokens, sources, before):
    return tokens + torch.where(sources >= 0, picked(sources, before), 0)


def truncate(tokens, sources, before):
    return torch.where(sources >= 0, before[:len(tokens)], tokens)


def where_zero(tokens, sources, before):
    return torch.where(tokens == 0, picked(sources, before), tokens)


def clamps_sources(tokens, sources, before):
    carried = sources >= 0
    return torch.where(carried, before[sources.clamp_(min=0)], tokens)


def in_place_on_before(tokens, sources, before):
    result = torch.where(sources >= 0, picked(sources, before), tokens)
    before[:len(tokens)] = result
    return result


def item(tokens, sources, before):
    for n in range(len(tokens)):
        if sources[n].item() >= 0:
            tokens[n] = before[sources[n].item()]
    return tokens


def if_any(tokens, sources, before):
    return torch.where(sources >= 0, picked(sources, before), tokens) if (sources >= 0).any() else tokens


def mask(tokens, sources, before):
    tokens[sources >= 0] = before[sources[sources >= 0]]
    return tokens


def on_the_host(tokens, sources, before):
    rows, pairs = before.tolist(), zip(tokens.tolist(), sources.tolist(), strict=True)
    return torch.tensor([rows[source] if source >= 0 else token for token, source in pairs]).to("cuda")


WRONG = [
    (with_carry(add), "select, do not add"),
    (with_carry(add_to_zero, placeholder=0), "select, do not add"),
    (with_carry(truncate), "of each source the token of *that* row"),
    (with_carry(where_zero, placeholder=0), "of each source"),
    (with_carry(clamps_sources), "changes sources into"),
    (with_carry(in_place_on_before), "only read it"),
    (with_carry(item), "the selection has to stay there"),
    (with_carry(if_any), "the selection has to stay there"),
    (with_carry(mask), "the selection has to stay there"),
    (with_carry(on_the_host), "the selection has to stay there"),
    (with_carry(lambda tokens, sources, before: tokens), "of each source the token of *that* row"),
    (with_carry(lambda tokens, sources, before: before), "Return the tokens, int64 on the GPU, of shape"),
    (with_carry(lambda tokens, sources, before: None), "returned None"),
    (with_carry(lambda tokens, sources, before: tokens.cpu()), "on cpu. Return the tokens"),
    (with_row(first_row), "no token of the answer"),
    (with_row(any_row), "no token of the answer"),
    (with_row(newest_token), "Its token is known, and it is another one."),
    (with_row(by_name), "there is another request's"),
    (with_row(by_slot_number), "The newest step has"),
    (Remembers, "nothing is carried over"),
    (with_row(always_carried), "nothing is carried over"),
    (with_row(shifted), "The newest step has"),
    (with_row(lambda newest, request: (known(request), -1)), "The newest step gives its token"),
    (with_row(lambda newest, request: (-1, -1)), "Its token is known, and it is another one."),
    (with_row(lambda newest, request: -1), "Return two whole numbers"),
    (with_row(lambda newest, request: newest[99]), "it raised IndexError"),
    (type("NoCarry", (), {"row": SOLUTION.CarryOver.row}), "Write carry(self, ...), too."),
]


@pytest.mark.parametrize("at", range(len(WRONG)))
def test_wrong_carry_overs_are_refused(at):
    refused(*WRONG[at], PUZZLE)


def negative_index(tokens, sources, before):
    return torch.where(sources < 0, tokens, before[sources])       # -1 reads the last one, which is not taken


def arithmetic(tokens, sources, before):
    carried = (sources >= 0).long()
    return tokens * (1 - carried) + picked(sources, before) * carried


def in_place(tokens, sources, before):
    tokens.copy_(torch.where(sources >= 0, torch.gather(before, 0, sources.clamp(min=0)), tokens))
    return tokens


def by_placeholder(tokens, sources, before):
    return torch.where(tokens == -1, picked(sources, before), tokens)


class ByDictionary(Right):
    def row(self, newest, request):
        found = {row.request: n for n, row in enumerate(newest) if row.last}
        return (0, found[request]) if request in found else (known(request), -7)


class ByPlace(Right):
    """Not by `last`, but by what is known."""

    def row(self, newest, request):
        found = [*request.prompt, *request.tokens][request.done:]
        return (found[0], -1) if found else (-1, max(n for n, row in enumerate(newest) if row.request is request))


RIGHT = [ByPlace, with_carry(negative_index), with_carry(arithmetic), with_carry(in_place), with_carry(by_placeholder),
         with_carry(SOLUTION.CarryOver().carry, placeholder=-99), ByDictionary]


@pytest.mark.parametrize("at", range(len(RIGHT)))
def test_right_carry_overs_pass(at):
    passes(RIGHT[at], PUZZLE)
