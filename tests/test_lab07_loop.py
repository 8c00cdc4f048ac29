"""Lab 07, the loop: lost, doubled and mistaken steps are named; early waits are refused with their cost."""

import pytest
from lab07_answers import SOLUTION, passes, refused

PUZZLE = "serve"


def synchronous(loop):
    while loop.busy:
        rows = loop.schedule()
        if rows:
            loop.give(rows, loop.tokens(loop.launch(rows)))
        else:
            loop.nobody()


def ends_when_idle(loop):
    flying = None
    while loop.busy:
        rows, launched = loop.schedule(), None
        if rows:
            launched = rows, loop.launch(rows)
        elif not flying:
            return
        if flying:
            loop.give(flying[0], loop.tokens(flying[1]))
        flying = launched


def stops_without_rows(loop):
    flying = None
    while rows := loop.schedule():
        launched = rows, loop.launch(rows)
        if flying:
            loop.give(flying[0], loop.tokens(flying[1]))
        flying = launched
    if flying:
        loop.give(flying[0], loop.tokens(flying[1]))


def last_lost(loop):
    flying = None
    while rows := loop.schedule():
        launched = rows, loop.launch(rows)
        if flying:
            loop.give(flying[0], loop.tokens(flying[1]))
        flying = launched


def scheduled_twice(loop):
    """Looks whether there are rows, and takes others."""
    flying = None
    while loop.busy or flying:
        launched = None
        if loop.schedule() and (rows := loop.schedule()):
            launched = rows, loop.launch(rows)
        elif not flying:
            loop.nobody()
        if flying:
            loop.give(flying[0], loop.tokens(flying[1]))
        flying = launched


def first_at_once(loop):
    """The first step after every pause is waited for at once."""
    flying = None
    while loop.busy or flying:
        rows, launched = loop.schedule(), None
        if rows:
            launched = rows, loop.launch(rows)
            if not flying:
                loop.give(rows, loop.tokens(launched[1]))
                continue
        elif not flying:
            loop.nobody()
        if flying:
            loop.give(flying[0], loop.tokens(flying[1]))
        flying = launched


def first_once(loop):
    """Only the very first step is waited for at once."""
    rows = []
    while not rows:
        rows = loop.schedule() or loop.nobody()
    loop.give(rows, loop.tokens(loop.launch(rows)))
    SOLUTION.serve(loop)


def given_twice(loop):
    flying = None
    while loop.busy or flying:
        rows, launched = loop.schedule(), None
        if rows:
            launched = rows, loop.launch(rows)
        elif not flying:
            loop.nobody()
        for _ in range(2 if flying else 0):
            loop.give(flying[0], loop.tokens(flying[1]))
        flying = launched


def never_forgets(loop):
    """The step before stays `flying` when nobody has rows."""
    flying = None
    while loop.busy:
        rows = loop.schedule()
        launched = (rows, loop.launch(rows)) if rows else None
        if flying:
            loop.give(flying[0], loop.tokens(flying[1]))
        elif not launched:
            loop.nobody()
        flying = launched or flying


def newest_tokens(loop):
    """Waits for the newest step, and gives its tokens to the rows of the one before."""
    flying = None
    while loop.busy or flying:
        rows, launched = loop.schedule(), None
        if rows:
            launched = rows, loop.launch(rows)
        elif not flying:
            loop.nobody()
        if flying:
            loop.give(flying[0], loop.tokens((launched or flying)[1]))
        flying = launched


def one_deeper(loop):
    flying = []
    while loop.busy or flying:
        rows = loop.schedule()
        if rows:
            flying.append((rows, loop.launch(rows)))
        elif not flying:
            loop.nobody()
        if len(flying) > 2 or (flying and not rows):
            before, step = flying.pop(0)
            loop.give(before, loop.tokens(step))


def waits_before_launch(loop):
    """The wait for the step before comes before the next launch."""
    flying = None
    while loop.busy or flying:
        rows = loop.schedule()
        if flying:
            loop.give(flying[0], loop.tokens(flying[1]))
        if not rows and not flying:
            loop.nobody()
        flying = (rows, loop.launch(rows)) if rows else None


def idles_under_way(loop):
    flying = None
    while loop.busy or flying:
        rows, launched = loop.schedule(), None
        if rows:
            launched = rows, loop.launch(rows)
        else:
            for _ in range(50):
                loop.nobody()
        if flying:
            loop.give(flying[0], loop.tokens(flying[1]))
        flying = launched


def polls(loop):
    while loop.busy:
        pass


def gives_none(loop):
    flying = None
    while loop.busy:
        rows = loop.schedule()
        if rows:
            flying = loop.launch(rows)
        if flying:
            loop.tokens(flying)


def launches_empty(loop):
    while loop.busy:
        rows = loop.schedule()
        loop.give(rows, loop.tokens(loop.launch(rows)))


WRONG = [
    (synchronous, "waited for before the next one was launched"),
    (ends_when_idle, "somebody may come later"),
    (scheduled_twice, "were not launched: they count as on their way"),
    (last_lost, "It is the last one: who waits for that?"),
    (stops_without_rows, "somebody may come later"),
    (first_at_once, "waited for before the next one was launched"),
    (first_once, "Step 0 was waited for before the next one was launched"),
    (given_twice, "given twice"),
    (never_forgets, "given twice"),
    (newest_tokens, "keep rows and step together"),
    (one_deeper, "steps were under way at once"),
    (waits_before_launch, "waited for before the next one was launched"),
    (idles_under_way, "nobody() lets time pass"),
    (polls, "the loop is still running"),
    (gives_none, "never given to anybody"),
    (launches_empty, "a step without rows"),
    (lambda loop: None, "somebody may come later"),
    (lambda loop: loop.tokens(3), "give what launch returned"),
    (lambda loop: loop.steps, "it raised AttributeError"),
]


@pytest.mark.parametrize("at", range(len(WRONG)), ids=[one.__name__ for one, _ in WRONG])
def test_wrong_loops_are_refused(at):
    refused(*WRONG[at], PUZZLE)


def with_queue(loop):
    """A list of at most two steps."""
    flying = []
    while loop.busy or flying:
        rows = loop.schedule()
        if rows:
            flying.append((rows, loop.launch(rows)))
        if not rows and not flying:
            loop.nobody()
        while len(flying) > 1 or (flying and not rows):
            before, step = flying.pop(0)
            loop.give(before, loop.tokens(step))


def in_phases(loop):
    """Cold start, steady state and drain, each in its own code."""
    while loop.busy:
        rows = loop.schedule()
        if not rows:
            loop.nobody()
            continue
        step = loop.launch(rows)
        while following := loop.schedule():
            newest = loop.launch(following)
            loop.give(rows, loop.tokens(step))
            rows, step = following, newest
        loop.give(rows, loop.tokens(step))


def while_busy(loop):
    """Nobody waits for what is under way when all have left."""
    flying = None
    while loop.busy:
        rows, done = loop.schedule(), flying
        flying = (rows, loop.launch(rows)) if rows else None
        if done:
            loop.give(done[0], loop.tokens(done[1]))
        elif not flying:
            loop.nobody()


@pytest.mark.parametrize("answer", [with_queue, in_phases, while_busy])
def test_right_loops_pass(answer):
    passes(answer, PUZZLE)
