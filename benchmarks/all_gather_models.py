"""Parts of all_gather.py about whole models: resident, gathered layer by layer, and PyTorch's FSDP2."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from benchmarks.all_gather_ranks import first_in, peers_of
from benchmarks.all_gather_world import World, gathered, lesson
from benchmarks.onload_mlp import rotated
from benchmarks.onload_programs import DTYPE, Product, copies_alone, onload
from benchmarks.onload_windows import BACK_TO_BACK, Program, compare, measure, ratio, summary
from utils.trace import record

RESIDENT, GATHERS, SERIAL = "resident", "gathers alone", "one slot"
RING, RING_3 = "two slots, prefetch", "three slots, prefetch"
FIRST_IN, COPIES = "two slots, gather first", "two slots, copy engines"
FSDP, FSDP_EXPLICIT = "FSDP2", "FSDP2, explicit prefetch"
TRACE_CALLS = 2


# ---- the MLP

def mlp_weights(world: World, layers: int, width: int) -> list[torch.Tensor]:
    """The same on all ranks; on the GPU, or small in host memory."""
    drawn = (torch.randn(width, width, device=world.plain) / width**0.5 for _ in range(layers))
    return [world.same(weight.to(DTYPE)) for weight in drawn]


def mlp_programs(world: World, weights: list[torch.Tensor]) -> tuple[dict[str, Program], dict[str, int]]:
    """What is compared, by name, and the bytes that each of them holds between calls."""
    group = world.group(weights)
    models = {name: lesson.GatheredMLP(group, slots) for name, slots in ((SERIAL, 1), (RING, 2), (RING_3, 3))}
    models[FIRST_IN] = first_in(group)
    if (peers := peers_of(world, group.mine, weights)) is not None:
        models[COPIES] = lesson.GatheredMLP(peers, 2)
    programs = {RESIDENT: Program(RESIDENT, onload.lesson.ResidentMLP(weights))}
    programs |= {name: Program(name, model, model.ring) for name, model in models.items()}
    programs[GATHERS] = gathers_alone(group.gather, len(group), [group.buffer(), group.buffer()])
    sharded = {name: fsdp(world, [Product(weight.clone()) for weight in weights], name == FSDP_EXPLICIT)
               for name in (FSDP, FSDP_EXPLICIT)}
    programs |= {name: program for name, (program, _) in sharded.items()}
    shards = sum(shard.nbytes for shard in group.mine)
    held = {RESIDENT: sum(weight.nbytes for weight in weights)}
    held |= {name: nbytes for name, (_, nbytes) in sharded.items()}
    return programs, held | {name: shards + sum(buffer.nbytes for buffer in model.ring.buffers)
                             for name, model in models.items()}


def gathers_alone(gather: Callable[[int, torch.Tensor], None], layers: int, buffers: list[torch.Tensor]) -> Program:
    program = copies_alone([partial(gather, i) for i in range(layers)], buffers)
    program.name = GATHERS
    return program


def fsdp(world: World, layers: Sequence[nn.Module], explicit: bool) -> tuple[Program, int]:
    """The layers under fully_shard, each one for itself; explicit: each launches the next one's gather."""
    # small: not a group of its own, for which PyTorch 2.9 would ask for NCCL beside a simulated device
    mesh = (DeviceMesh.from_group(dist.group.WORLD, "cpu") if world.small
            else init_device_mesh(world.plain.type, (world.ranks,)))
    model = Layers(layers)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh)
    if explicit:
        for layer, following in pairwise(model.layers):
            layer.set_modules_to_forward_prefetch([following])
    held = sum(parameter.to_local().nbytes for parameter in model.parameters())
    return Program(FSDP_EXPLICIT if explicit else FSDP, partial(on_cpu, model) if world.small else model), held


class Layers(nn.Module):
    """One layer after the other."""

    def __init__(self, layers: Sequence[nn.Module]):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor, **more: Any) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, **more)
        return x


def on_cpu(model: nn.Module, x: torch.Tensor, **more: Any) -> torch.Tensor:
    """FSDP2 knows no simulated device."""
    more = {name: tuple(part.cpu() for part in value) for name, value in more.items()}
    return model(x.cpu(), **more).to("cuda")


# ---- layers of a transformer

class GatheredLayers(onload.StreamedLayers):
    """Lesson 04's streamed layers, gathered: each rank keeps its shard of every block."""

    def __init__(self, world: World, layers: Sequence[nn.Module], slots: int = 2):
        super().__init__(layers, slots)
        self.world = world

    def keep_shards(self) -> int:
        """Take the shards out of the packed host memory, whose values are all ranks' now; returns their bytes."""
        rank, ranks = self.world.rank, self.world.ranks
        self.mine = {id(block): lesson.shard(block.host, ranks)[rank].to(self.world.plain, copy=True)
                     for blocks in self.blocks for block in blocks}
        return sum(shard.nbytes for shard in self.mine.values())

    def copy_in(self, i: int, buffer: torch.Tensor) -> None:
        for block, piece in onload.pieces(self.blocks[i], buffer):
            shard = self.mine[id(block)]
            if self.world.small:
                piece.copy_(gathered(shard, self.world.ranks), non_blocking=True)
            else:
                lesson.all_gather(piece, shard)


def llama_programs(world: World, layers: int) -> tuple[dict[str, Program], dict[str, int], Any]:
    from benchmarks import onload_llama as llama

    settings = llama.config(world.small)
    shapes = llama.shapes_of(settings)

    def drawn() -> list[dict[str, torch.Tensor]]:
        """Different tensors with the same values, whenever and on whatever rank."""
        generator = torch.Generator(device=world.plain).manual_seed(1)
        return [{name: world.same(random_like(shape, world.plain, generator)) for name, shape in shapes.items()}
                for _ in range(layers)]

    empty = [{name: torch.empty(shape, dtype=DTYPE) for name, shape in shapes.items()} for _ in range(layers)]
    ours = GatheredLayers(world, [llama.make_layer(settings, tensors) for tensors in empty])
    whole = drawn()
    for layer, tensors in zip(ours.layers, whole, strict=True):
        for name, tensor in llama.tensors_by_name(layer).items():
            tensor.copy_(tensors[name])
    held = {RING: ours.keep_shards() + sum(buffer.nbytes for buffer in ours.ring.buffers)}
    whole = [{name: tensor.to("cuda") for name, tensor in tensors.items()} for tensors in whole]
    held[RESIDENT] = sum(tensor.nbytes for tensors in whole for tensor in tensors.values())
    programs = {RESIDENT: Program(RESIDENT, Layers([llama.make_layer(settings, tensors) for tensors in whole])),
                RING: Program(RING, ours, ours.ring)}
    programs[GATHERS] = gathers_alone(ours.copy_in, layers, [torch.empty_like(each) for each in ours.ring.buffers])
    for name in (FSDP, FSDP_EXPLICIT):
        made = [llama.make_layer(settings, tensors) for tensors in drawn()]
        programs[name], held[name] = fsdp(world, made, name == FSDP_EXPLICIT)
    return programs, held, settings


def random_like(shape: torch.Size, device: torch.device, generator: torch.Generator) -> torch.Tensor:
    """Matrices scaled by their input size, vectors (of norms) near one."""
    drawn = torch.randn(shape, dtype=torch.float32, device=device, generator=generator)
    return (drawn / shape[1] ** 0.5 if len(shape) == 2 else 1 + drawn / 10).to(DTYPE)


def positions(settings: Any, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    like, order = torch.empty(1, dtype=DTYPE), torch.arange(tokens)[None]
    return tuple(part.to("cuda") for part in LlamaRotaryEmbedding(settings)(like, order))


# ---- windows

def compared(world: World, programs: dict[str, Program], shape: tuple[int, ...], calls: int,
             repeats: int) -> dict[str, Any]:
    """Windows of calls back to back, all programs in turn: the slower rank's time, and how many outputs are wrong."""
    generator = torch.Generator().manual_seed(world.rank)           # each rank has tokens of its own
    inputs = [torch.randn(shape, generator=generator).to(DTYPE).to("cuda") for _ in range(calls)]
    expected = [programs[RESIDENT](x) for x in inputs]
    ms: dict[str, list[float]] = {name: [] for name in programs}
    wrong = dict.fromkeys(programs, 0)
    for repeat in range(repeats):
        for name in rotated(list(programs), repeat):
            world.wait()
            found = measure(programs[name], inputs, BACK_TO_BACK, warm_up=2)
            ms[name].append(world.agree(found.ms))
            wrong[name] += int(world.agree(compare(found.outputs, inputs if name == GATHERS else expected)[0]))
            del found
    bound = [max(pair) for pair in zip(ms[GATHERS], ms[RESIDENT], strict=True)]
    return {name: {"ms": summary(ms[name]), "over_bound": ratio(ms[name], bound), "wrong_calls": wrong[name]}
            for name in programs} | {"calls": calls * repeats}


def peak_bytes(programs: dict[str, Program], x: torch.Tensor, held: dict[str, int]) -> dict[str, Any]:
    """Bytes of weights on this GPU, between calls and at the peak of one: what it takes beyond the resident one's."""
    extra = {}
    for name in held:
        programs[name](x)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        output = programs[name](x)
        torch.cuda.synchronize()
        extra[name] = torch.cuda.max_memory_allocated() - before
        del output
    return {name: {"held_bytes": held[name], "peak_bytes": held[name] + extra[name] - extra[RESIDENT]} for name in held}


def mlp(world: World, sizes: dict[str, Any]) -> None:
    weights = mlp_weights(world, sizes["layers"], sizes["width"])
    programs, held = mlp_programs(world, weights)
    world.keep("shape", {"layers": sizes["layers"], "width": sizes["width"], "layer_bytes": weights[0].nbytes})
    world.keep("memory", peak_bytes(programs, torch.zeros(64, sizes["width"], dtype=DTYPE, device="cuda"), held))
    rows = []
    for tokens in sizes["tokens"]:
        ways = compared(world, programs, (tokens, sizes["width"]), sizes["calls"], sizes["repeats"])
        rows.append({"tokens": tokens, "calls": ways.pop("calls"), "ways": ways})
        world.keep("rows", rows)
    for tokens in sizes["traced"]:
        x = torch.randn(tokens, sizes["width"]).to(DTYPE).to("cuda")
        for name, short in ((RING, "ring"), (COPIES, "copies"), (FSDP, "fsdp2")):
            if name in programs:
                traced(world, programs[name], x, f"{short}_b{tokens}")


def traced(world: World, program: Program, x: torch.Tensor, name: str) -> None:
    """Rank 0 records two calls; the others make as many, or rank 0 would wait for their shards."""
    def calls() -> None:
        for _ in range(TRACE_CALLS):
            program(x)
        torch.cuda.synchronize()

    program.start_over()
    world.wait()
    if world.rank == 0 and world.traces is not None:
        trace = record(calls)
        path = world.traces / f"h200x2_{name}.json.gz"
        trace.save(path)
        world.keep("traces", [*world.found.get("traces", []), {"file": path.name, "bytes": path.stat().st_size}])
    else:
        calls()
        calls()
    world.wait()


def llama(world: World, sizes: dict[str, Any]) -> None:
    if importlib.util.find_spec("transformers") is None:
        world.keep("skipped", "transformers is not installed")
        return
    layers = sizes["llama_layers"]
    programs, held, settings = llama_programs(world, layers)
    layer_bytes = held[RESIDENT] // layers
    world.keep("shape", {"layers": layers, "layer_bytes": layer_bytes, "hidden": settings.hidden_size})
    placed(programs, settings, 64)
    x, rows = torch.zeros(1, 64, settings.hidden_size, dtype=DTYPE, device="cuda"), []
    world.keep("memory", peak_bytes(programs, x, held))
    for tokens in sizes["llama_tokens"]:
        placed(programs, settings, tokens)
        shape = (1, tokens, settings.hidden_size)
        ways = compared(world, programs, shape, sizes["llama_calls"], sizes["llama_repeats"])
        rows.append({"tokens": tokens, "calls": ways.pop("calls"), "ways": ways})
        world.keep("rows", rows)


def placed(programs: dict[str, Program], settings: Any, tokens: int) -> None:
    """Tell the layers their tokens' positions."""
    for name, program in programs.items():
        program.more = {} if name == GATHERS else {"position_embeddings": positions(settings, tokens)}
