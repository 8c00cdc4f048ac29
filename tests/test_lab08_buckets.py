"""Lab 08, buckets: captures while serving, the wrong size, and padding that writes what is in use are refused."""

import pytest
import torch
from lab08_answers import SOLUTION, judged, passes, refused

PUZZLE = "Bucketed"
Good = SOLUTION.Bucketed


class Lazy:
    """Captures when a size is first needed."""

    def __init__(self, model, sizes, spare):
        self.model, self.sizes, self.spare, self.made = model, sizes, spare, {}

    def __call__(self, *rows):
        size = min(size for size in self.sizes if size >= len(rows[0]))
        if size not in self.made:
            self.made[size] = Good(self.model, [size], self.spare)
        return self.made[size](*rows)


class PerStep(Lazy):
    def __call__(self, *rows):
        self.made.clear()
        return super().__call__(*rows)


class Largest(Good):
    def __init__(self, model, sizes, spare):
        super().__init__(model, [max(sizes)], spare)


class Eager:
    def __init__(self, model, sizes, spare):
        self.model = model

    def __call__(self, *rows):
        return self.model(*rows)


class EagerAlone(Good):
    """A single row is not worth a graph."""

    def __init__(self, model, sizes, spare):
        super().__init__(model, sizes, spare)
        self.model = model

    def __call__(self, *rows):
        return self.model(*rows) if len(rows[0]) == 1 else super().__call__(*rows)


class Chosen(Good):
    """Chooses the size in another way."""

    def __init__(self, model, sizes, spare):
        super().__init__(model, sizes, spare)
        self.graphs = {size: self.graphs[size] for size in sizes}

    def size(self, count):
        return min(size for size in self.graphs if size >= count)

    def prepare(self, rows):
        self.rows.copy_(self.padding)
        for line, values in zip(self.rows, rows, strict=True):
            line[:len(values)].copy_(values)

    def output(self, size, count):
        return self.graphs[size][1][:count]

    def __call__(self, *rows):
        self.prepare(rows)
        size = self.size(len(rows[0]))
        self.graphs[size][0].replay()
        return self.output(size, len(rows[0]))


class NextLarger(Chosen):
    def size(self, count):
        return min((size for size in self.graphs if size > count), default=max(self.graphs))


class TooSmall(Chosen):
    def size(self, count):
        return max((size for size in self.graphs if size <= count), default=min(self.graphs))


class AsGiven(Chosen):
    """Takes the sizes to be sorted."""

    def size(self, count):
        return next(size for size in self.graphs if size >= count)


class Stale(Chosen):
    """Behind the rows of this step stand those of the last one."""

    def prepare(self, rows):
        for line, values in zip(self.rows, rows, strict=True):
            line[:len(values)].copy_(values)


class ZeroSlot(Chosen):
    """Padding rows in slot 0 while serving."""

    def prepare(self, rows):
        self.rows.zero_()
        for line, values in zip(self.rows, rows, strict=True):
            line[:len(values)].copy_(values)


class ZeroStart(Good):
    """The warm-up writes a cell of slot 0."""

    def __init__(self, model, sizes, spare):
        model(*torch.zeros(3, max(sizes), dtype=torch.int64, device="cuda"))
        super().__init__(model, sizes, spare)


class LastSlot(Good):
    """Takes the spare slot to be the last one."""

    def __init__(self, model, sizes, spare):
        super().__init__(model, sizes, model.slots - 1)


class NoSlot(Good):
    """Padding rows of slot -1, which is an index from the end."""

    def __init__(self, model, sizes, spare):
        super().__init__(model, sizes, -1)


class LateLastSlot(Chosen):
    def prepare(self, rows):
        self.padding[1] = -1
        super().prepare(rows)


class NeverCut(Chosen):
    def output(self, size, count):
        return self.graphs[size][1]


class LastOutput(Chosen):
    """The output of the largest size, whichever was replayed."""

    def output(self, size, count):
        return self.graphs[max(self.graphs)][1][:count]


class Rebinding(Chosen):
    def prepare(self, rows):
        self.rows = torch.stack(rows)


class Swapped(Chosen):
    def prepare(self, rows):
        super().prepare((rows[0], rows[2], rows[1]))


class Waiting(Chosen):
    def output(self, size, count):
        torch.cuda.synchronize()
        return super().output(size, count)


class ToHost(Chosen):
    def output(self, size, count):
        return super().output(size, count).cpu()


class Aside(Chosen):
    """Replays on a stream of its own that waits for nobody."""
    forth, back = False, True

    def __init__(self, model, sizes, spare):
        super().__init__(model, sizes, spare)
        torch.cuda.synchronize()
        self.stream = torch.cuda.Stream()

    def __call__(self, *rows):
        if self.forth:
            self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            found = super().__call__(*rows)
        if self.back:
            torch.cuda.current_stream().wait_stream(self.stream)
        return found


class AsideUnread(Aside):
    forth, back = True, False


class NoCall:
    def __init__(self, *_):
        pass


WRONG = [
    (Lazy, "graphs are captured while requests are served"),
    (PerStep, "graphs are captured while requests are served"),
    (Largest, "a padding row, too"),
    (Eager, "with few rows the launches are the bound"),
    (EagerAlone, "with few rows the launches are the bound"),
    (NextLarger, "a padding row, too"),
    (TooSmall, "gives an int64 tensor of shape (8,)"),
    (AsGiven, "a padding row, too"),
    (Stale, "each of them writes a cell, too"),
    (ZeroSlot, "each of them writes a cell, too"),
    (ZeroStart, "Also a warm-up writes a cell for each of its rows."),
    (LastSlot, "are free for that"),
    (NoSlot, "When nobody was served yet, the cell of slot 5, position 0"),
    (LateLastSlot, "While serving, the cell of slot 5, position 0"),
    (NeverCut, "Return what follows each of the"),
    (LastOutput, "wrong tokens"),
    (Rebinding, "a slot or a position of which the cache has none"),
    (Swapped, "a slot or a position of which the cache has none"),
    (ToHost, "gives a tensor on the CPU"),
    (Aside, "What runs on another stream has to wait for that one"),
    (AsideUnread, "What runs on another stream has to wait for that one"),
    (NoCall, "Write __call__"),
]


@pytest.mark.parametrize("at", range(len(WRONG)))
def test_wrong_answers_are_refused(at):
    refused(*WRONG[at], PUZZLE)


class LastRowAgain(Chosen):
    """Padding repeats the last row: the same token in the same cell."""

    def prepare(self, rows):
        for line, values in zip(self.rows, rows, strict=True):
            line[:len(values)].copy_(values)
            line[len(values):].copy_(values[-1:].expand(len(line) - len(values)))


class Joined(Chosen):
    def prepare(self, rows):
        size = self.size(len(rows[0]))
        self.rows[:, :size].copy_(torch.cat([torch.stack(rows), self.padding[:, len(rows[0]):size]], 1))


class AsideInOrder(Aside):
    forth = True


class OfEachCount(Good):
    """No padding at all."""

    def __init__(self, model, sizes, spare):
        super().__init__(model, range(1, max(sizes) + 1), spare)


class InOnePool(Good):
    """Inputs and outputs of each size for itself, one pool, captured by hand without a warm-up."""

    def __init__(self, model, sizes, spare):
        self.kept, pool, side = {}, torch.cuda.graph_pool_handle(), torch.cuda.Stream()
        for size in sizes:
            rows = torch.tensor([[0], [spare], [0]], device="cuda").expand(3, size).contiguous()
            output = torch.zeros(size, dtype=torch.int64, device="cuda")
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.stream(side):
                graph.capture_begin(pool=pool)
                output.copy_(model(*rows))
                graph.capture_end()
            self.kept[size] = graph, rows, output, rows.clone()

    def __call__(self, *rows):
        graph, static, output, padding = self.kept[min(size for size in self.kept if size >= len(rows[0]))]
        static.copy_(padding)
        static[:, :len(rows[0])] = torch.stack(rows)
        graph.replay()
        return output[:len(rows[0])].clone()


RIGHT = [LastRowAgain, Joined, AsideInOrder, OfEachCount, InOnePool, Waiting]


@pytest.mark.parametrize("at", range(len(RIGHT)))
def test_right_answers_pass(at):
    verdict = passes(RIGHT[at], PUZZLE)
    assert bool(verdict.advice) == (RIGHT[at] in (OfEachCount, Waiting))


def test_stub_and_solution():
    class Stub:
        def __init__(self, *_):
            raise NotImplementedError()
    assert judged(Stub, PUZZLE).pending
    verdict = passes(Good, PUZZLE)
    assert not verdict.advice and verdict.tried
