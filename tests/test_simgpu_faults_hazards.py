"""Race detection, graphs, interrupts and threads of the simulated device, where they once went wrong unnoticed."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from utils import simgpu  # noqa: E402
from utils.simgpu import RTX_5060_LAPTOP, session  # noqa: E402

ROOT = Path(__file__).parents[1]
N = 1 << 18
CU = {"device": "cuda"}
NB = {"non_blocking": True}


def kinds(gpu) -> list[str]:
    return [hazard.kind for hazard in gpu.hazards]


# memory that is used again


@pytest.mark.parametrize("numerics", ["exact", "adversarial"])
def test_empty_does_not_undo_a_write_that_is_ordered_after_the_old_users(numerics):
    with session(RTX_5060_LAPTOP, numerics=numerics) as gpu:
        here, side = torch.cuda.current_stream(), torch.cuda.Stream()
        first, second = torch.cuda.Event(), torch.cuda.Event()
        source = torch.full((N,), 3.0).pin_memory()
        old = torch.ones(N, **CU)
        torch.cuda.synchronize()
        used = old + 1
        first.record()
        address = old.data_ptr()
        del old
        torch.cuda._sleep(10**7)
        buffer = torch.empty(N, **CU)
        assert buffer.data_ptr() == address
        with torch.cuda.stream(side):
            side.wait_event(first)
            buffer.copy_(source, **NB)
            second.record()
        second.synchronize()
        here.wait_event(second)
        assert buffer[0].item() == 3.0 and used[0].item() == 2.0
        assert gpu.hazards == []


def test_empty_over_a_pending_user_still_counts_as_unwritten():
    with session(RTX_5060_LAPTOP) as gpu:
        old = torch.ones(N, **CU)
        used = old + 1
        del old
        buffer = torch.empty(N, **CU)
        assert math.isnan(buffer[0].item()) and used[0].item() == 2.0
        assert gpu.hazards == []


def test_record_stream_inside_a_capture_keeps_the_block_until_the_capture_ends():
    with session(RTX_5060_LAPTOP) as gpu:
        side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            here = torch.cuda.current_stream()
            first = torch.ones(N, **CU)
            side.wait_stream(here)
            with torch.cuda.stream(side):
                kept = first * 2
            first.record_stream(side)
            address = first.data_ptr()
            del first
            again = torch.zeros(N, **CU)
            assert again.data_ptr() != address
            here.wait_stream(side)
        graph.replay()
        assert kept[0].item() == 2.0 and again[0].item() == 0.0
        assert gpu.hazards == []


def test_the_allocators_wait_computes_nothing_early_under_adversarial_numerics():
    with session(RTX_5060_LAPTOP, numerics="adversarial") as gpu:
        side = torch.cuda.Stream()
        source, shared, out = torch.full((N,), 7.0, **CU), torch.ones(N, **CU), torch.zeros(N, **CU)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            out.copy_(source)
            shared.add_(1)
        shared.record_stream(side)
        del shared
        simgpu.host_work(10_000)
        torch.empty(8, **CU)
        source.fill_(0.0)
        torch.cuda.synchronize()
        assert kinds(gpu) == ["WAR"] and out[0].item() != 7.0


def test_a_block_handed_on_after_record_stream_does_not_change_what_its_old_users_see():
    with session(RTX_5060_LAPTOP, numerics="adversarial") as gpu:
        side = torch.cuda.Stream()
        shared, out = torch.full((N,), 5.0, **CU), torch.zeros(N, **CU)
        address = shared.data_ptr()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            out.copy_(shared)
        shared.record_stream(side)
        del shared
        simgpu.host_work(10_000)
        torch.empty(8, **CU)
        fresh = torch.full((N,), 9.0, **CU)
        assert fresh.data_ptr() == address
        torch.cuda.current_stream().synchronize()
        assert fresh[0].item() == 9.0
        torch.cuda.synchronize()
        assert out[0].item() == 5.0 and gpu.hazards == []


# Ctrl-C


def _interrupted_program(gpu):
    x, y = torch.ones(N, **CU), torch.zeros(N, **CU)
    torch.cuda.synchronize()
    x.mul_(2)
    hit = gpu.machine.heap[-1][3]
    run = hit.run
    y.add_(1)
    z = y + 1

    def interrupted(op):
        run(op)
        raise KeyboardInterrupt

    hit.run = interrupted
    return x, z


@pytest.mark.parametrize("numerics", ["exact", "adversarial"])
def test_ctrl_c_during_a_computation_leaves_the_rest_right_and_its_own_result_marked(numerics):
    with session(RTX_5060_LAPTOP, numerics=numerics) as gpu:
        x, z = _interrupted_program(gpu)
        with pytest.raises(KeyboardInterrupt):
            torch.cuda.synchronize()
        torch.cuda.synchronize()
        assert z[0].item() == 2.0
        assert math.isnan(x[0].item()) and math.isnan((x + 1)[5].item())


def test_a_signal_during_a_flush_takes_effect_between_two_operations():
    import signal

    with session(RTX_5060_LAPTOP) as gpu:
        x = torch.ones(N, **CU)
        torch.cuda.synchronize()
        x.mul_(2)
        first = gpu.machine.heap[-1][3]
        run = first.run

        def signalled(op):
            signal.raise_signal(signal.SIGINT)
            run(op)

        first.run = signalled
        x.add_(1)
        with pytest.raises(KeyboardInterrupt):
            torch.cuda.synchronize()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert x[0].item() == 3.0


# graphs


FORK_VALUES = {"exact": None, "adversarial": "wrong"}


@pytest.mark.parametrize("numerics", list(FORK_VALUES))
def test_a_race_between_captured_branches_goes_wrong_at_replay(numerics):
    with session(RTX_5060_LAPTOP, numerics=numerics) as gpu:
        side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        source, target = torch.full((N,), 2.0).pin_memory(), torch.zeros(N, **CU)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            here = torch.cuda.current_stream()
            side.wait_stream(here)
            with torch.cuda.stream(side):
                target.copy_(source, **NB)
            seen = target * 1
            here.wait_stream(side)
        for _ in range(2):
            graph.replay()
            torch.cuda.synchronize()
            assert math.isnan(seen[0].item())  # both run at once, in either mode
        assert kinds(gpu)[0] in ("RAW", "WAR")


def test_a_replay_is_one_entry_of_the_launch_queue():
    with session(RTX_5060_LAPTOP) as gpu:
        x, graph = torch.ones(16, **CU), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(400):
                x.add_(1)
        before = gpu.machine.host_ns
        for _ in range(6):
            graph.replay()
        assert gpu.machine.host_ns - before == 6 * RTX_5060_LAPTOP.launch_ns
        assert gpu.queue.pending == 6
        torch.cuda.synchronize()
        assert gpu.queue.pending == 0


# writes that torch does not see, and those that it does


def test_a_numpy_write_before_the_host_is_ordered_after_the_copy_is_found():
    with session(RTX_5060_LAPTOP) as gpu:
        side, x, p = torch.cuda.Stream(), torch.ones(N, **CU), torch.zeros(N).pin_memory()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            x.copy_(p, **NB)
        simgpu.host_work(10_000)
        torch.cuda.current_stream().synchronize()  # runs the copy, orders nothing after it
        p.numpy()[:] = 3
        torch.cuda.synchronize()
        assert kinds(gpu) == ["WAR"] and "outside torch" in gpu.hazards[0].second.name


def test_what_the_device_itself_writes_there_later_is_no_write_outside_torch():
    with session(RTX_5060_LAPTOP) as gpu:
        x, p = torch.ones(N, **CU), torch.zeros(N).pin_memory()
        torch.cuda.synchronize()
        x.copy_(p, **NB)
        x.add_(4)
        p.copy_(x, **NB)
        torch.cuda.synchronize()
        p.numpy()[:] = 3
        torch.cuda.synchronize()
        assert gpu.hazards == []


def test_a_write_by_torch_is_blamed_on_torch_only():
    with session(RTX_5060_LAPTOP) as gpu:
        x, y, p = torch.ones(N, **CU), torch.ones(N, **CU), torch.zeros(N).pin_memory()
        torch.cuda.synchronize()
        x.copy_(p, **NB)
        y.copy_(p, **NB)
        p.fill_(3.0)
        torch.cuda.synchronize()
        assert [h.second.name for h in gpu.hazards] == ["host fill"]


# what a hazard says


def test_host_operations_are_told_apart_and_bear_no_number_of_the_device():
    with session(RTX_5060_LAPTOP) as gpu:
        x, p = torch.ones(N, **CU), torch.zeros(N).pin_memory()
        torch.cuda.synchronize()
        p.copy_(x, **NB)
        p.max()
        p.fill_(0.0)
        x.add_(1)
        assert [h.second.name for h in gpu.hazards] == ["host max", "host fill"]
        assert "host fill (host)" in str(gpu.hazards[1]) and "host fill #" not in str(gpu.hazards[1])


def test_the_line_that_is_suggested_names_the_stream_that_must_wait():
    with session(RTX_5060_LAPTOP) as gpu:
        side = torch.cuda.Stream()
        old = torch.ones(N, **CU)
        torch.cuda.synchronize()
        used = old + 1  # on the block's own stream
        del old
        buffer = torch.empty(N, **CU)
        with torch.cuda.stream(side):
            buffer.fill_(2.0)
        assert used.shape == (N,) and kinds(gpu) == ["WAR"]
        assert gpu.hazards[0].fix.startswith("stream_1.wait_stream(torch.cuda.default_stream())")
        assert "record_stream" not in gpu.hazards[0].fix


# threads


def test_a_new_thread_starts_on_the_default_stream_whatever_its_ident():
    seen = []
    with session(RTX_5060_LAPTOP) as gpu:
        side = torch.cuda.Stream()

        def one():
            torch.cuda.set_stream(side)
            seen.append(torch.cuda.current_stream().queue.name)

        def two():
            seen.append(torch.cuda.current_stream().queue.name)

        for target in (one, two, one, two):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
        assert seen == [side.queue.name, "default stream"] * 2 and gpu.queue is gpu.default




# what the host does with pinned memory while a copy into it is pending

READS = """
torch.nn.Linear(512, 2)(p.view(-1, 512))
F.scaled_dot_product_attention(*[p[:64].view(1, 1, 8, 8)] * 3)
torch.rms_norm(p.view(-1, 512), (512,))
F.layer_norm(p.view(-1, 512), (512,))
F.one_hot(ints[:4])
p.type(torch.float64)
torch.as_tensor(p, dtype=torch.float64)
torch.asarray(p, dtype=torch.float64)
torch.tensor([p[0], p[1]])
torch.full((3,), p[0], device="cuda")
gpu4 + p[0]
gpu4.fill_(p[0])
torch.where(gpu4 > 0, gpu4, p[0])
torch.full_like(gpu4, p[0])
pickle.dumps(p)
torch.save(p, io.BytesIO())
copy.deepcopy(p)
p.untyped_storage()[0]
repr(p)
p[0].item()
float(p[0])
p[:4].tolist()
p.view(512, 512).t().contiguous()
torch.from_numpy(p.numpy()[16:]).sum()
torch.cat([p, p])
""".strip().splitlines()
WRITES = """
torch.zeros(N, out=p)
torch.arange(N, out=p)
torch.randn(N, out=p)
torch.add(p, p, out=p)
p[3] = 4
p[:3].add_(1)
p.data.zero_()
p.normal_()
p.untyped_storage().fill_(0)
p.view(512, 512).fill_diagonal_(1)
""".strip().splitlines()
TOUCH_NOTHING = """
p.split_with_sizes([N // 2, N // 2])
p.view(512, 512).hsplit(2)
torch.broadcast_to(p, (2, N))
p.view(512, 512).moveaxis(0, 1)
p.view(512, 512).swapdims(0, 1)
torch.meshgrid(p[:4], p[:4], indexing="ij")
torch.broadcast_tensors(p, p[:1])
torch.view_as_complex(p.view(-1, 2))
torch.atleast_1d(p), torch.atleast_2d(p), torch.atleast_3d(p)
torch.unsafe_split(p, N // 2)
torch.unsafe_chunk(p, 2)
p.view(512, 512).adjoint()
p.type_as(p), p.type(torch.float32), p.type()
p.positive(), p.resolve_conj(), p.resolve_neg()
p.is_conj(), p.is_neg(), p.is_inference(), p.dim_order()
torch.result_type(p, 1.0), p.is_set_to(p)
p.unsqueeze_(0).squeeze_()
p.view(512, 512).t_()
p.reshape(512, 512), p.flatten(), p.contiguous(), p.ravel(), p.float(), p.cpu(), p.pin_memory()
torch.as_tensor(p), torch.asarray(p), torch.as_tensor(p, dtype=torch.float32)
torch.zeros_like(p), torch.ones_like(p), torch.full_like(p, 1.0), p.new_zeros(3)
p.shape, p.stride(), p.dtype, p.data_ptr(), len(p), hash(p), p.numpy(), p.detach(), p.data
torch.nn.Parameter(p)
""".strip().splitlines()


def _while_a_copy_is_pending(line: str, inference: bool) -> list:
    import copy
    import io
    import pickle

    import torch.nn.functional as F

    with session(RTX_5060_LAPTOP) as gpu, torch.inference_mode(inference):
        side, x, i = torch.cuda.Stream(), torch.ones(N, **CU), torch.ones(N, dtype=torch.int64, **CU)
        p, ints = torch.zeros(N).pin_memory(), torch.zeros(N, dtype=torch.int64).pin_memory()
        gpu4 = torch.ones(4, **CU)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(10**6)
            p.copy_(x, **NB)
            ints.copy_(i, **NB)
        names = {"torch": torch, "F": F, "copy": copy, "io": io, "pickle": pickle, "N": N}
        exec(line, names, {"p": p, "ints": ints, "gpu4": gpu4})
        return [hazard.kind for hazard in gpu.hazards if hazard.host]


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("line", READS)
def test_every_read_by_torch_is_checked(line, inference):
    assert _while_a_copy_is_pending(line, inference) == ["RAW"]


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("line", WRITES)
def test_every_write_by_torch_is_checked(line, inference):
    assert _while_a_copy_is_pending(line, inference) == ["WAW"]


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("line", TOUCH_NOTHING)
def test_views_and_questions_touch_nothing(line, inference):
    assert _while_a_copy_is_pending(line, inference) == []


def test_part_of_a_pinned_buffer_cut_out_by_numpy_is_pinned():
    with session(RTX_5060_LAPTOP) as gpu:
        x, p = torch.arange(float(N), **CU), torch.zeros(N).pin_memory()
        part = torch.from_numpy(p.numpy()[16:])
        assert part.is_pinned() and not torch.from_numpy(p.numpy().copy()).is_pinned()
        torch.cuda.synchronize()
        part.copy_(x[16:], **NB)
        assert gpu.notes == [] and gpu.hazards == []
        assert p[:16].sum().item() == 0 and gpu.hazards == []  # other bytes
        assert part[0].isnan().item() or part[0].item() in (0.0, 16.0)
        assert [h.byte_range[0] for h in gpu.hazards] == [64]
        torch.cuda.synchronize()
        assert p[16].item() == 16.0 and p[-1].item() == N - 1


def test_torch_is_as_before_after_a_session():
    before = torch.UntypedStorage.__getitem__, torch.Tensor._reduce_ex_internal
    with session(RTX_5060_LAPTOP):
        pass
    assert (torch.UntypedStorage.__getitem__, torch.Tensor._reduce_ex_internal) == before


# strided ranges


def test_halves_of_many_rows_are_apart():
    with session(RTX_5060_LAPTOP) as gpu:
        one, two = torch.cuda.Stream(), torch.cuda.Stream()
        rows, cache = torch.zeros(70_000, 4, **CU), torch.zeros(4, 8, 4096, 4, **CU)
        torch.cuda.synchronize()
        with torch.cuda.stream(one):
            rows[:, :2].fill_(1)
            cache[:, :, :, :2].fill_(1)
        with torch.cuda.stream(two):
            rows[:, 2:].fill_(2)
            cache[:, :, :, 2:].fill_(2)
        torch.cuda.synchronize()
        assert gpu.hazards == [] and rows.sum().item() == 6 * 70_000
        with torch.cuda.stream(one):
            cache[:, :, :, :2].fill_(1)
        with torch.cuda.stream(two):
            cache[:, :, :, 1:].fill_(2)
        assert kinds(gpu) == ["WAW"]


def test_strided_ranges_meet_exactly_where_their_bytes_do():
    import random

    from utils.simgpu.space import extent, meet, runs_of

    draw = random.Random(0)
    answers = []
    for _ in range(3000):
        keys = []
        for _ in range(2):
            dims = draw.randint(1, 3)
            shape = tuple(draw.randint(1, 5) for _ in range(dims))
            stride = tuple(draw.choice([1, 2, 3, 4, 6, 8, 12, 20, 40]) for _ in range(dims))
            span, pattern = extent(shape, stride, 2)
            low = 2 * draw.randint(0, 60)
            keys.append((low, low + span, pattern))
        first, second = ({byte for run in runs_of(key) for byte in range(*run)} for key in keys)
        answers.append(bool(first & second))
        assert meet(*keys) is answers[-1]
    assert 500 < sum(answers) < 2500


# sessions, threads and other names


def test_an_install_left_inside_a_session_is_ended_with_it():
    before = torch.cuda.Stream
    with pytest.raises(RuntimeError, match="uninstall"), session(RTX_5060_LAPTOP):
        simgpu.install()
    assert torch.cuda.Stream is before
    with pytest.raises(ZeroDivisionError), session(RTX_5060_LAPTOP):
        simgpu.install()
        raise ZeroDivisionError
    assert torch.cuda.Stream is before
    with session(RTX_5060_LAPTOP):
        assert torch.ones(1, **CU).item() == 1.0


def test_a_pool_whose_thread_is_older_than_the_session_works():
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        with session(RTX_5060_LAPTOP):
            assert pool.submit(lambda: torch.ones(3).to("cuda").sum().item()).result() == 3.0
            assert pool.submit(lambda: torch.ones(3, **CU).is_cuda).result()


def test_another_thread_older_than_the_session_gets_a_clear_error():
    begin, seen = threading.Event(), []

    def work():
        begin.wait()
        try:
            torch.ones(3).to("cuda")
        except RuntimeError as error:
            seen.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    with session(RTX_5060_LAPTOP):
        begin.set()
        thread.join()
    assert len(seen) == 1 and "started before the simulated device" in seen[0]


def test_device_neutral_names():
    before = torch.Event, torch.Stream, torch.accelerator.synchronize
    with session(RTX_5060_LAPTOP) as gpu:
        x, side = torch.ones(N, **CU), torch.Stream("cuda")
        start, end = (torch.Event("cuda", enable_timing=True) for _ in range(2))
        torch.accelerator.synchronize()
        with side:
            assert torch.accelerator.current_stream() == side
            start.record()
            x.add_(1)
            end.record(side)
        torch.accelerator.current_stream().wait_event(end)
        assert x[0].item() == 2.0 and start.elapsed_time(end) > 0
        assert torch.accelerator.current_accelerator().type == "cuda" and torch.accelerator.device_count() == 1
        assert gpu.hazards == []
        with pytest.raises(simgpu.Unsupported, match="is not modelled"):
            torch.Event("cpu")
    assert (torch.Event, torch.Stream, torch.accelerator.synchronize) == before


# graphs and pinned memory


@pytest.mark.parametrize("numerics", ["exact", "adversarial"])
def test_a_captured_copy_into_pinned_memory_that_is_gone_is_found(numerics):
    with session(RTX_5060_LAPTOP, numerics=numerics) as gpu:
        x, graph, kept = torch.ones(N, **CU), torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            x.to("cpu", **NB)
        with torch.cuda.graph(kept):
            out = (x * 3).to("cpu", **NB)
        kept.replay()
        torch.cuda.synchronize()
        assert gpu.hazards == [] and out[-1].item() == 3.0
        graph.replay()
        torch.cuda.synchronize()
        assert kinds(gpu) == ["WAW"] and gpu.hazards[0].host and "pinned" in gpu.hazards[0].first.name
        assert "keep the pinned tensor" in gpu.hazards[0].fix


def test_a_captured_copy_from_a_part_that_numpy_cut_out_reads_that_part():
    with session(RTX_5060_LAPTOP) as gpu:
        p, x, graph = torch.zeros(64).pin_memory(), torch.zeros(32, **CU), torch.cuda.CUDAGraph()
        part = torch.from_numpy(p.numpy()[32:])
        with torch.cuda.graph(graph):
            x.copy_(part, **NB)
        p.copy_(torch.arange(64.0))
        graph.replay()
        assert x.tolist() == list(range(32, 64)) and gpu.hazards == []


def test_the_check_of_host_memory_does_not_import_the_compiler():
    import subprocess
    import sys

    program = """
import sys, torch
from utils import simgpu
with simgpu.session():
    p = torch.zeros(4).pin_memory()
    p.add_(1)
assert "torch._dynamo" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
