"""Judge of ``stage_order``: one forward and one backward in turn, with no deadlock, few bubbles and little memory."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from ... import dag
from ...timeline import timeline
from ..check import Answer, Refused, call
from ..values import shown
from ..verdict import Picture, Tick, Verdict
from .link import task_of
from .reading import is_row, listing
from .stages import Orders, Size, Task, one_f_one_b

PUZZLE = "stage_order"
TICKS = ("correct", "runs", "memory", "time")
SIZES = tuple(Size(*each) for each in ((4, 8), (1, 1), (1, 5), (2, 1), (4, 1), (4, 2), (3, 3), (4, 5), (5, 3), (8, 20)))
TIMES = ((1, 2), (1, 1), (3, 1), (1, 50), (50, 1))   # forward, backward; the last two prove it for any: 50 > m + p
DRAWN = Size(5, 8)                   # a picture of more is no help
SHAPE = 'Return a list of ("F", n) and ("B", n): this stage\'s tasks in their order.'


def judge_stage_order(answer: Answer) -> Verdict:
    """Any orders that run, keep at most min(p - s, m) micro-batches on stage s, and take (m + p - 1)(f + b)."""
    for size in SIZES:
        orders = Orders(size, tuple(_read(answer, stage, size) for stage in range(size.stages)))
        _judge_deadlock(orders)
        _judge_memory(orders)
        for forward, backward in TIMES:
            _judge_time(orders, forward, backward)
        if size == SIZES[0]:
            first = orders
    whys = ("each task once, on every stage", f"no deadlock, {len(SIZES)} sizes",
            "at most min(p - s, m) micro-batches on stage s", "bubbles (p - 1)/(m + p - 1)")
    tried = f"{'; '.join(map(str, SIZES))}; forward:backward {', '.join(f'{f}:{b}' for f, b in TIMES)}"
    return Verdict(PUZZLE, [Tick(name, True, why) for name, why in zip(TICKS, whys, strict=True)], tried=tried,
                   picture=drawn(first, target=False))


def drawn(orders: Orders | None, times: tuple[float, float] = TIMES[0], target: bool = True) -> Picture | None:
    """The timeline of these orders, as far as they run, and of the target; None for what is too large to see."""
    size = orders.size if orders else SIZES[0]
    if any(mine > most for mine, most in zip(size, DRAWN, strict=True)):
        return None
    runs = {"yours": orders.plan(*times)} if orders else {}
    if target:
        runs["target"] = one_f_one_b(size).plan(*times)
    if not all(plan.runs for plan in runs.values()):
        return None
    whole = all(len(plan.runs) == 2 * size.stages * size.micro_batches for plan in runs.values())
    bound = (size.micro_batches + size.stages - 1) * sum(times) if whole else None
    return timeline(runs, critical=False, unit="units", bound=bound, bound_kind="target" if whole else "",
                    title=f"{size}, forward {times[0]:g}, backward {times[1]:g}{'' if whole else ': until it stops'}")


# --- each task once ------------------------------------------------------------------------------------------------

def _read(answer: Answer, stage: int, size: Size) -> tuple[Task, ...]:
    count, on = size.micro_batches, f"stage {stage} of {size}"
    given = call(PUZZLE, listing(answer, 2 * count), stage, *size, on=on)
    if not is_row(given):
        raise _refused("correct", f"returned {shown(given)}, {on}", SHAPE)
    wanted = [(what, n) for what in "FB" for n in range(count)]
    tasks: list[Task] = []
    for item in given:
        task = task_of(item)
        if task is None:
            raise _refused("correct", f"{shown(item)} is no task, {on}", SHAPE)
        if task not in wanted:
            raise _refused("correct", f"there is no {_say(task)}, {on}",
                           f'{_numbered(count)} with an "F" and a "B".{_few(size)}')
        if task in tasks:
            raise _refused("correct", f"{_say(task)} twice, {on}",
                           f"Each task runs once.{_again(given, size)}{_few(size)}")
        tasks.append(task)
    if missing := [task for task in wanted if task not in tasks]:
        raise _refused("correct", f"{_say(missing[0])} is missing, {on}", _missing(tasks, missing, size))
    return tuple(tasks)


def _numbered(count: int) -> str:
    return f"The micro-batches are 0 to {count - 1}, each" if count > 1 else "There is micro-batch 0 only,"


def _again(given: Any, size: Size) -> str:
    """Whether these may be the tasks of several calls."""
    tasks = len(given) if hasattr(given, "__len__") else 0
    return " Does every call begin with a new list?" if tasks >= 4 * size.micro_batches else ""


def _missing(tasks: list[Task], missing: list[Task], size: Size) -> str:
    backwards = [task for task in missing if task[0] == "B"]
    if len(backwards) == len(missing) and missing[-1] == ("B", size.micro_batches - 1):
        return (f"The last backwards are missing, {len(missing)} of them: when the last forward is done, the "
                "micro-batches that the stage still keeps have to be worked off.")
    return f"{len(tasks)} of {2 * size.micro_batches} tasks are there.{_few(size)}"


def _few(size: Size) -> str:
    """What is special about few micro-batches."""
    return (" There are fewer micro-batches than stages here, so that a stage may run out of forwards before it has "
            "done as many as it could keep." if size.micro_batches < size.stages else "")


def _say(task: Task) -> str:
    return f"{task[0]} {task[1]}"


# --- does it run, and what does it keep ----------------------------------------------------------------------------

def _judge_deadlock(orders: Orders) -> None:
    reached = orders.reached()
    waits = []
    for stage, (at, tasks) in enumerate(zip(reached, orders.of, strict=True)):
        if at < len(tasks):
            what, n = tasks[at]
            done = {(*task, other) for other, count in enumerate(reached) for task in orders.of[other][:count]}
            needed = next(one for one in orders.needs((what, n, stage)) if one not in done)
            where = "this stage, which stands behind it" if needed[2] == stage else f"stage {needed[2]}"
            waits.append(f"stage {stage} has come to {what} {n} and waits for {needed[0]} {needed[1]} of {where}")
    if waits:
        says = f"Nothing goes on any more: {'; '.join(waits[:4])}{'; …' * (len(waits) > 4)}.{_backwards(orders)}"
        raise _refused("runs", f"{orders.size}: the stages wait for each other", says,
                       drawn(orders, target=False))


def _backwards(orders: Orders) -> str:
    """Whether a stage begins with more forwards than the one before it, in words."""
    first = [orders.first_forwards(stage) for stage in range(orders.size.stages)]
    for stage, (before, here) in enumerate(pairwise(first), 1):
        if 0 < before < here:
            return (f" Stage {stage} begins with {here} forwards, and stage {stage - 1} sends {before} before it waits "
                    "for a backward. What is nearer to the end turns round sooner.")
    return ""


def _judge_memory(orders: Orders) -> None:
    for stage, most in ((stage, orders.size.most(stage)) for stage in range(orders.size.stages)):
        kept = orders.kept(stage)
        if max(kept) <= most:
            continue
        at = next(at for at, count in enumerate(kept) if count > most)
        done = {n for what, n in orders.of[stage][:at + 1] if what == "B"}
        held = [n for what, n in orders.of[stage][:at + 1] if what == "F" and n not in done]
        says = (f"After {_say(orders.of[stage][at])} stage {stage} keeps the activations of {len(held)} micro-batches, "
                f"{', '.join(map(str, held))}; at most {most} are allowed. {_many(orders, stage)}")
        raise _refused("memory", f"stage {stage} keeps {max(kept)}, not {most}, {orders.size}", says,
                       drawn(orders))


def _many(orders: Orders, stage: int) -> str:
    """Why a stage keeps more than it may, in words."""
    size, first = orders.size, [orders.first_forwards(each) for each in range(orders.size.stages)]
    if all(count == size.micro_batches for count in first) and size.micro_batches > 1:
        return "All forwards before the first backward: that is GPipe, which keeps every micro-batch."
    if len(set(first)) == 1 and size.stages > 1 and first[0] > 1:
        return (f"Every stage begins with {first[0]} forwards. What comes back to a stage first has passed the stages "
                "behind it: the last stage can turn round at once.")
    if first[stage] > size.most(stage):
        return (f"It begins with {first[stage]} forwards. A micro-batch is back after it has been on the stages "
                f"behind: {size.most(stage)} {'is' if size.most(stage) == 1 else 'are'} enough to be busy until then.")
    return "From the first backward on, one backward makes room for one forward."


def _judge_time(orders: Orders, forward: float, backward: float) -> None:
    size = orders.size
    plan, best = orders.plan(forward, backward), (size.micro_batches + size.stages - 1) * (forward + backward)
    if plan.makespan <= best * (1 + 1e-9):
        return
    share = 1 - size.micro_batches * (forward + backward) / plan.makespan
    few = [stage for stage in range(size.stages) if orders.first_forwards(stage) < size.most(stage)]
    says = (f"With forward {forward:g} and backward {backward:g} bubbles are {share:.1%} of the time, and "
            f"{(size.stages - 1) / (size.micro_batches + size.stages - 1):.1%} with the target. ")
    if few:
        count = orders.first_forwards(few[0])
        says += (f"Stage {few[0]} begins with {count} forward{'s' * (count != 1)}, and then rests until the first "
                 f"backward is back from the stages behind it. It may keep {size.most(few[0])}. ")
    says += _rest(orders, plan, one_f_one_b(size).plan(forward, backward))
    raise _refused("time", f"{plan.makespan:g} instead of {best:g}, {size}", says,
                   drawn(orders, (forward, backward)))


def _rest(orders: Orders, plan: dag.Schedule, best: dag.Schedule) -> str:
    """The first rest of a stage that is longer than there in the target, and what the stage waits for."""
    longer = []
    for stage, (mine, target) in enumerate(zip(orders.of, one_f_one_b(orders.size).of, strict=True)):
        ends = 0.0, 0.0
        for pair in zip(mine, target, strict=True):
            runs = [each.runs[(*task, stage)] for each, task in zip((plan, best), pair, strict=True)]
            rests = [run.start - end for run, end in zip(runs, ends, strict=True)]
            if rests[0] > rests[1] + 1e-9:
                longer.append((ends[0], stage, pair[0]))
                break
            ends = runs[0].end, runs[1].end
    since, stage, task = min(longer)   # there is one, as the whole takes longer
    last = max(orders.needs((*task, stage)), key=lambda one: plan.runs[one].end)
    return (f"Stage {stage} rests from {since:g} to {plan.runs[(*task, stage)].start:g}, before {_say(task)}, which "
            f"waits for {last[0]} {last[1]} of stage {last[2]}.")


def _refused(tick: str, why: str, says: str, picture: Picture | None = None) -> Refused:
    at = TICKS.index(tick)
    ticks = [Tick(name, True if place < at else False if place == at else None, why if place == at else "")
             for place, name in enumerate(TICKS)]
    return Refused(Verdict(PUZZLE, ticks, says=says, picture=picture))
