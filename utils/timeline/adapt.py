"""Panels from what the course draws: traces, schedules, and several of them for comparison."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..dag import lower_bound
from ..intervals import Intervals, measure, subtract, union
from .kinds import CODE, ENGINE_NAMES, ENGINES, SHOWN_ENGINES, code_of
from .memory import budgets_of, memory_panel, share_scale
from .model import Facts, Lane, Panel, check_window, idle_gaps
from .names import clean, short_name, size_name
from .units import US_PER_UNIT

WORKER = "worker"
ROUNDING = 1e-9     # of a load: what sums of floats in different orders differ by


@dataclass(frozen=True)
class Options:
    """What the caller of ``timeline`` asked for."""

    start: float | None = None
    stop: float | None = None
    critical: bool | Iterable[Any] = True
    bound: float | Mapping[str, float] | None = None
    bound_kind: str = ""
    unit: str = "ms"
    lanes: Sequence[str] | None = None
    memory: bool = False
    budget: float | Mapping[str, float] | None = None

    def bound_of(self, name: str) -> float | None:
        bound = self.bound.get(name) if isinstance(self.bound, Mapping) else self.bound
        if bound is not None and not (np.isscalar(bound) and np.isfinite(bound) and bound >= 0):
            raise ValueError(f"bound is {bound!r}: give a time of at least 0 in the unit of the run")
        return bound


def panels_of(x: Any, options: Options) -> list[Panel]:
    """One panel for a trace or a schedule, one each for a mapping (name → run) or a sequence of them."""
    if isinstance(x, Mapping):
        runs = [(clean(name), run) for name, run in x.items()]
    elif isinstance(x, (list, tuple)):
        runs = [(getattr(run, "name", "") or f"run {index}", run) for index, run in enumerate(x, 1)]
    else:
        runs = [(clean(getattr(x, "name", "") or ""), x)]
    if not runs:
        raise ValueError("nothing to draw: give at least one trace or schedule")
    budgets = budgets_of(options.budget, [name for name, _ in runs])
    panels = [_panel_of(name, run, replace(options, budget=budgets[name])) for name, run in runs]
    return _zoomed(share_scale(panels) if options.memory else panels, options)


def _zoomed(panels: list[Panel], options: Options) -> list[Panel]:
    """Panels with the window that was asked for; without one, each keeps all of its own run."""
    whole = min(panel.window[0] for panel in panels), max(panel.window[1] for panel in panels)
    window = check_window(options.start, options.stop, whole)
    if options.start is None and options.stop is None:
        return panels
    return [replace(panel, window=window) for panel in panels]


def _panel_of(name: str, run: Any, options: Options) -> Panel:
    if hasattr(run, "runs") and hasattr(run, "graph"):
        if options.memory:
            raise ValueError(f"{name or 'a schedule'} has no memory over time, only tasks and their times: "
                             "memory=True and budget= are for traces")
        return _schedule_panel(name, run, options)
    if hasattr(run, "columns"):
        return _trace_panel(name, run, options)
    raise TypeError(f"a timeline shows a Trace or a Schedule, or several of them, not {type(run).__name__}")


# traces: times in µs
def _trace_panel(name: str, trace: Any, options: Options) -> Panel:
    table = trace.columns
    start = _times(table["start_us"], "start_us")
    stop = start + _times(table["duration_us"], "duration_us", least=0.0)
    engine, stream = _texts(table["lane"]), _texts(table["stream"])
    kind = _kind_codes(_texts(table["kind"]))
    facts = _trace_facts(start, stop, engine, kind, options, name)

    # lanes: engines from top to bottom, their streams by number
    keys, key_of = _lane_keys(engine, stream, options)
    keys, key_of = _without_idle_streams(keys, key_of, start, stop, options)
    kept = np.flatnonzero(key_of >= 0)
    order = kept[np.lexsort((start[kept], key_of[kept]))]
    threads = sum(key[0] == "host" for key in keys)
    lanes = tuple(_trace_lane(*key, threads) for key in keys)
    whole = (float(start[order].min()), float(stop[order].max())) if order.size else (0.0, 0.0)
    memory = memory_panel(trace, name, whole[1], options.budget) if options.memory else None
    if memory:
        whole = min(whole[0], float(memory.time[0])), max(whole[1], float(memory.time[-1]))
    window = check_window(None, None, whole)
    critical = np.zeros(order.size, dtype=bool)
    if not isinstance(options.critical, bool):
        critical = np.isin(order, np.asarray(list(options.critical), dtype=np.int64))
    computing = engine == "compute"
    idle = idle_gaps(union(start[computing], stop[computing]), _device_span(start, stop, engine))
    return Panel(
        name=name, unit="us", lanes=lanes, lane=key_of[order], start=start[order], stop=stop[order],
        kind=kind[order], label=_trace_label(table, order), critical=critical, window=window, facts=facts,
        gaps={index: idle for index, lane in enumerate(lanes) if lane.engine == "compute"}, cut_labels=True,
        memory=memory,
    )


def _times(values: Sequence[float], column: str, least: float = -np.inf) -> NDArray[np.float64]:
    times = np.asarray(values, dtype=np.float64)
    bad = np.flatnonzero(~np.isfinite(times) | (times < least))
    if bad.size:
        raise ValueError(f"row {bad[0]} of the trace has {column} = {times[bad[0]]:g}: "
                         "every span needs a finite start and a duration of at least 0")
    return times


def _texts(values: Sequence[Any]) -> NDArray[Any]:
    array = np.asarray(values)
    if array.dtype.kind in "iu" or array.dtype.kind == "U":
        return array
    return np.asarray([_text(value) for value in array.tolist()], dtype=str)


def _text(value: Any) -> str:
    if value is None or value != value:      # NaN differs from itself
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _kind_codes(kinds: NDArray[Any]) -> NDArray[np.int64]:
    names, index = np.unique(kinds, return_inverse=True)
    return np.asarray([code_of(str(name)) for name in names], dtype=np.int64)[index.reshape(-1)]


def _lane_keys(
    engine: NDArray[Any], stream: NDArray[Any], options: Options
) -> tuple[list[tuple[str, str]], NDArray[np.int64]]:
    """The shown lanes as (engine, stream), and for each span its lane or −1."""
    engines, engine_of = np.unique(engine, return_inverse=True)
    streams, stream_of = np.unique(stream, return_inverse=True)
    pairs, pair_of = np.unique(engine_of * max(len(streams), 1) + stream_of, return_inverse=True)
    keys = [(str(engines[pair // len(streams)]), str(streams[pair % len(streams)])) for pair in pairs]
    wanted = _wanted(engines, options)
    shown = sorted((key for key in keys if key[0] in wanted), key=_lane_rank)
    rank = {key: index for index, key in enumerate(shown)}
    place = np.asarray([rank.get(key, -1) for key in keys], dtype=np.int64)
    return shown, place[pair_of.reshape(-1)] if len(place) else np.empty(0, dtype=np.int64)


def _without_idle_streams(
    keys: list[tuple[str, str]], key_of: NDArray[np.int64], start: NDArray[np.float64], stop: NDArray[np.float64],
    options: Options,
) -> tuple[list[tuple[str, str]], NDArray[np.int64]]:
    """Leave out streams that do nothing in the window asked for, where another one of their engine does something."""
    if options.start is None and options.stop is None:
        return keys, key_of
    begin, end = check_window(options.start, options.stop, (-np.inf, np.inf))
    seen = (key_of >= 0) & (start < end) & (stop > begin)
    used = set(key_of[seen].tolist())
    engines = {keys[index][0] for index in used}
    kept = [index for index, key in enumerate(keys) if index in used or key[0] not in engines]
    place = np.full(len(keys) + 1, -1, dtype=np.int64)          # the last one is for spans without a lane
    place[kept] = np.arange(len(kept))
    return [keys[index] for index in kept], place[key_of]


def _wanted(engines: NDArray[Any], options: Options) -> set[str]:
    present = {str(engine) for engine in engines}
    if options.lanes is None:
        return {engine for engine in present if engine in SHOWN_ENGINES or engine not in ENGINES}
    if unknown := set(options.lanes) - present - set(ENGINES):
        raise ValueError(f"there are no lanes {sorted(unknown)}; the trace has {sorted(present)}")
    return set(options.lanes)


def _lane_rank(key: tuple[str, str]) -> tuple[int, str, int, str]:
    engine, stream = key
    rank = ENGINES.index(engine) if engine in ENGINES else len(ENGINES)
    return rank, engine, int(stream) if stream.isdecimal() else -1, stream


def _trace_lane(engine: str, stream: str, threads: int) -> Lane:
    what = "thread" if engine == "host" else "stream"
    plain = stream in ("", "-1") or (engine == "host" and threads == 1)
    return Lane(engine, ENGINE_NAMES.get(engine, engine), "" if plain else f"{what} {clean(stream)}")


def _device_span(start: NDArray[np.float64], stop: NDArray[np.float64], engine: NDArray[Any]) -> tuple[float, float]:
    on_device = ~np.isin(engine, ("host", "sync"))
    chosen = on_device if on_device.any() else np.ones(len(start), dtype=bool)
    return (float(start[chosen].min()), float(stop[chosen].max())) if len(start) else (0.0, 0.0)


def _trace_facts(
    start: NDArray[np.float64], stop: NDArray[np.float64], engine: NDArray[Any], kind: NDArray[np.int64],
    options: Options, name: str,
) -> Facts:
    first, last = _device_span(start, stop, engine)
    copies, kernels = np.isin(kind, (CODE["h2d"], CODE["d2h"])), kind == CODE["kernel"]
    uncovered = None
    if copies.any():
        uncovered = measure(subtract(union(start[copies], stop[copies]), union(start[kernels], stop[kernels])))
    return Facts(last - first, options.bound_of(name), options.bound_kind, uncovered)


def _trace_label(table: Mapping[str, Sequence[Any]], order: NDArray[np.int64]) -> Any:
    names, kinds, sizes = table["name"], table["kind"], table.get("bytes")

    def label(bar: int) -> str:
        span = order[bar]
        size = sizes[span] if sizes is not None and str(kinds[span]) in ("h2d", "d2h") else None
        is_copy = size is not None and size == size and size > 0 and str(names[span]).startswith("Memcpy")
        return size_name(size) if is_copy else short_name(str(names[span]))

    return label


# schedules: times in the unit of the graph
def _schedule_panel(name: str, schedule: Any, options: Options) -> Panel:
    graph, runs = schedule.graph, list(schedule.runs.values())
    keys = _unit_keys(schedule)
    place = {key: index for index, key in enumerate(keys)}
    runs.sort(key=lambda run: (place[run.resource, run.unit], run.start))
    tasks = [run.task for run in runs]
    window = check_window(None, None, (0.0, float(schedule.makespan)))
    path = _critical_tasks(schedule, options)
    labels = [clean(graph.nodes[task].get("label", task)) for task in tasks]
    lane = np.asarray([place[run.resource, run.unit] for run in runs], dtype=np.int64)
    start = np.asarray([run.start for run in runs], dtype=np.float64)
    stop = np.asarray([run.end for run in runs], dtype=np.float64)
    return Panel(
        name=name, unit=options.unit, lanes=_unit_lanes(schedule, keys), lane=lane, start=start, stop=stop,
        kind=np.asarray([code_of(graph.nodes[task].get("kind"), graph.nodes[task].get("resource"))
                         for task, run in zip(tasks, runs, strict=True)], dtype=np.int64),
        label=labels.__getitem__, critical=np.asarray([task in set(path) for task in tasks], dtype=bool),
        window=window, facts=_schedule_facts(schedule, options, name),
        path=tuple(clean(graph.nodes[task].get("label", task)) for task in path),
        gaps=_schedule_gaps(schedule, keys, lane, start, stop), keep_unit=True,
    )


def _unit_keys(schedule: Any) -> list[tuple[str, int]]:
    keys = [(name, unit) for name, count in schedule.resources.items() for unit in range(count)]
    return sorted(keys, key=lambda key: ENGINES.index(key[0]) if key[0] in ENGINES else len(ENGINES))


def _unit_lanes(schedule: Any, keys: list[tuple[str, int]]) -> tuple[Lane, ...]:
    streams: dict[tuple[str, int], set[str]] = {key: set() for key in keys}
    for run in schedule.runs.values():
        streams[run.resource, run.unit].add(clean(schedule.graph.nodes[run.task].get("stream", "")))
    lanes = []
    for name, unit in keys:
        stream = next(iter(streams[name, unit])) if len(streams[name, unit]) == 1 else ""
        which = str(unit + 1) if schedule.resources[name] > 1 or name == WORKER else ""
        detail = f"{which} stream {stream}".strip() if stream else which
        lanes.append(Lane(name, ENGINE_NAMES.get(name, clean(name)), detail))
    return tuple(lanes)


def _critical_tasks(schedule: Any, options: Options) -> tuple[Any, ...]:
    if options.critical is True:
        return tuple(schedule.critical)
    return () if options.critical is False else tuple(options.critical)


def _schedule_facts(schedule: Any, options: Options, name: str) -> Facts:
    given = options.bound_of(name)
    if given is not None:
        return Facts(schedule.makespan, given, options.bound_kind)
    workers = schedule.resources.get(WORKER) if set(schedule.resources) == {WORKER} else None
    bound = lower_bound(schedule.graph, workers or schedule.resources)
    return Facts(schedule.makespan, bound.length, options.bound_kind or _cold(bound.limited_by))


def _cold(limited_by: str) -> str:
    if limited_by == "critical path":
        return f"cold: {limited_by}"
    return f"cold: load of {ENGINE_NAMES.get(limited_by, clean(limited_by))}"


def _schedule_gaps(
    schedule: Any, keys: list[tuple[str, int]], lane: NDArray[np.int64], start: NDArray[np.float64],
    stop: NDArray[np.float64],
) -> dict[int, Intervals]:
    """Idle times on the compute units; without any, on those of the resources with the largest load per unit."""
    if not len(lane):
        return {}
    load = dict.fromkeys(schedule.resources, 0.0)
    for run in schedule.runs.values():
        load[run.resource] += (run.end - run.start) / schedule.resources[run.resource]
    least = max(load.values()) * (1 - ROUNDING)
    shaded = {"compute"} if "compute" in load else {name for name in load if load[name] >= least}
    span = (0.0, float(schedule.makespan))
    return {index: idle_gaps(union(start[lane == index], stop[lane == index]), span)
            for index, key in enumerate(keys) if key[0] in shaded}


def check_unit(unit: str) -> str:
    """A unit of time, or any other short word, which is printed as it is."""
    if not isinstance(unit, str) or len(unit) > 12:
        raise ValueError(f"unit is {unit!r}: give one of {', '.join(US_PER_UNIT)} or a short word such as 'steps'")
    return clean(unit)
