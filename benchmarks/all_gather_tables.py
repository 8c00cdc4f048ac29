"""Tables of a result of all_gather.py in Markdown, and the same on a page.

    python benchmarks/all_gather_tables.py benchmarks/results/all_gather_h200x2.json traces
    python benchmarks/all_gather_tables.py benchmarks/results/all_gather_h200x2.json traces --page benchmarks/README.md

The second way replaces the tables of one section of the page, and leaves its text alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.all_gather_models import COPIES, GATHERS, RESIDENT
from benchmarks.all_gather_spans import SEEN, Seen, seen
from benchmarks.onload_tables import grid, interval
from benchmarks.onload_windows import ratio, summary

UNSTEADY_PERCENT = 10           # from this spread on a table says between what times a median lies
MIB, GIB = 2**20, 2**30
COPIES_ALONE = "copies alone"
SECTION = "## Layers gathered from another GPU, two H200s\n"


def tables(result: dict[str, Any], folder: Path | None = None) -> Iterator[str]:
    """Of the parts that were measured; with a ``folder``, of its traces as well, which the result names."""
    measured = [part for part in result if "rows" in result[part]]
    if {"rates", "copies"} <= set(measured):
        yield link(result)
    if "mlp" in measured:
        yield from of_model(with_copies(result), "mlp")
        names = [found["file"] for found in result["mlp"].get("traces", [])]
        if folder is not None and names:
            yield from recorded({name: seen(folder / name) for name in names})
    if "llama" in measured:
        yield from of_model(result["llama"], "llama")
    if "pipeline" in measured:
        yield pipeline(result["pipeline"])


# ---- the link

def link(result: dict[str, Any]) -> str:
    heads = [f"{way}{what}" for way in ("NCCL: ", "copies: ") for what in (
        "GB/s", "GB/s beside products", "product, ms", "the same beside them", "slower")]
    return grid("a layer, MiB", heads, [
        (f"{pair[0]['mib']:.0f}", [cell for row in pair for cell in link_cells(row)])
        for pair in zip(result["rates"]["rows"], result["copies"]["rows"], strict=True)])


def link_cells(row: dict[str, Any]) -> list[str]:
    alone = f"{row['gb_per_s']:.0f}"
    if "product_ms" not in row:
        return [alone, "", "", "", ""]
    beside = f"{row['beside_products_gb_per_s']:.0f}" if "beside_products_gb_per_s" in row else "none was done"
    slower = f"{row['product_beside_ms'] / row['product_ms'] - 1:.1%}"
    return [alone, beside, f"{row['product_ms']:.3f}", f"{row['product_beside_ms']:.3f}",
            slower if row["outlasted"] else f"{slower} (moves ended first)"]


# ---- models

def of_model(part: dict[str, Any], name: str) -> Iterator[str]:
    for table in (times, over_bound, hidden, memory):
        yield table(part, name)


def ways(part: dict[str, Any]) -> list[str]:
    """All programs, the sides of the bound first."""
    names = dict.fromkeys(name for row in part["rows"] for name in row["ways"])
    return [name for name in (RESIDENT, GATHERS, COPIES_ALONE) if name in names] + [
        name for name in names if name not in (RESIDENT, GATHERS, COPIES_ALONE)]


def gathered(part: dict[str, Any]) -> list[str]:
    """The programs that both gather and compute."""
    return [name for name in ways(part) if name not in (RESIDENT, GATHERS, COPIES_ALONE)]


def by_tokens(part: dict[str, Any], corner: str, rows: Iterable[tuple[str, list[str]]]) -> str:
    return grid(corner, [row["tokens"] for row in part["rows"]], list(rows))


def times(part: dict[str, Any], name: str) -> str:
    return by_tokens(part, f"{name}, ms per call", (
        (way, [time(row["ways"][way]) if way in row["ways"] else "" for row in part["rows"]]) for way in ways(part)))


def time(way: dict[str, Any]) -> str:
    """The median, and the range where repeats differ much."""
    found = way["ms"]
    low, high = min(found["all"]), max(found["all"])
    spread = f" ({low:.1f} to {high:.1f})" if found["spread_percent"] > UNSTEADY_PERCENT else ""
    return f"{found['median']:.2f}{spread}" + (" wrong" if way["wrong_calls"] else "")


def over_bound(part: dict[str, Any], name: str) -> str:
    return by_tokens(part, f"{name}, over max(gathers alone, products)", (
        (way, [interval(over(row["ways"], way)) if way in row["ways"] else "" for row in part["rows"]])
        for way in gathered(part)))


def hidden(part: dict[str, Any], name: str) -> str:
    return by_tokens(part, f"{name}, hidden of the shorter one", (
        (way, [percent(share(row["ways"], way)) if way in row["ways"] else "" for row in part["rows"]])
        for way in gathered(part)))


def both_alone(row: dict[str, Any], way: str) -> list[tuple[float, float]]:
    """ms of gathers and of products in each repeat; of the gathers that this way makes."""
    gathers = row[COPIES_ALONE if way == COPIES and COPIES_ALONE in row else GATHERS]
    return list(zip(gathers["ms"]["all"], row[RESIDENT]["ms"]["all"], strict=True))


def over(row: dict[str, Any], way: str) -> dict[str, Any]:
    return ratio(row[way]["ms"]["all"], [max(pair) for pair in both_alone(row, way)])


def share(row: dict[str, Any], way: str) -> dict[str, Any]:
    """(gathers + products - call) / min(gathers, products): 1 at the bound, 0 in turn, below 0 where it took longer."""
    pairs = both_alone(row, way)
    saved = [sum(pair) - call for pair, call in zip(pairs, row[way]["ms"]["all"], strict=True)]
    return ratio(saved, [min(pair) for pair in pairs])


def with_copies(result: dict[str, Any]) -> dict[str, Any]:
    """The MLP's part with its layers' copies alone: so many times one of them in the table of the link."""
    part = result["mlp"]
    shape = part["shape"]
    found = [row["ms"] for row in result.get("copies", {}).get("rows", []) if row["mib"] * MIB == shape["layer_bytes"]]
    if not found or COPIES not in ways(part):
        return part
    ms = round(shape["layers"] * found[0], 4)

    def ways_with(row: dict[str, Any]) -> dict[str, Any]:
        repeats = len(row["ways"][RESIDENT]["ms"]["all"])
        return row["ways"] | {COPIES_ALONE: {"ms": summary(repeats * [ms]), "wrong_calls": 0}}
    return part | {"rows": [row | {"ways": ways_with(row)} for row in part["rows"]]}


def percent(found: dict[str, Any]) -> str:
    half = f" ± {100 * (found['interval'][1] - found['mean']):.0f}" if found["interval"] else ""
    return f"{100 * found['mean']:.0f}{half} %"


def memory(part: dict[str, Any], name: str) -> str:
    layer = part["shape"]["layer_bytes"]
    return grid(f"{name}, weights on a GPU", ["between calls, layers", "at the peak, layers", "at the peak, GiB"], [
        (way, [f"{found['held_bytes'] / layer:.1f}", f"{found['peak_bytes'] / layer:.1f}",
               f"{found['peak_bytes'] / GIB:.2f}"]) for way, found in part["memory"].items()])


# ---- traces and the pipeline

def recorded(found: dict[str, Seen]) -> Iterator[str]:
    """Shares of the time; then when gathers begin, and how long they and products take in company."""
    names = {name: name.split("_", 1)[1].removesuffix(".json.gz") for name in found}
    for corner, heads in SEEN.items():
        yield grid(corner, list(heads), [(names[name], [cell(each) for cell in heads.values()])
                                         for name, each in found.items()])


def pipeline(part: dict[str, Any]) -> str:
    names = list(part["rows"][0]["bubble_share"])
    heads = ["bubbles: formula", *names, *(f"ms: {name}" for name in ("products alone", *names)), "wrong outputs"]
    return grid("micro-batches", heads, [
        (row["micro_batches"], [f"{row['formula']:.1%}", *(bubbles(row["bubble_share"][name]) for name in names),
                                *(f"{row['ms'][name]['median']:.2f}" for name in ("products alone", *names)),
                                str(sum(row["wrong"].values()))]) for row in part["rows"]])


def bubbles(found: dict[str, Any]) -> str:
    return f"{statistics.median(found['all']):.1%} ({min(found['all']):.1%} to {max(found['all']):.1%})"


# ---- the page

def placed(page: str, made: Sequence[str]) -> str:
    """The page with these tables in its section: each in the place of its first cell, or behind the one before it."""
    before, title, rest = page.partition(SECTION)
    if not title:
        raise ValueError(f"the page has no section {SECTION.strip()!r}")
    section, following, after = rest.partition("\n## ")
    blocks, corners = section.strip().split("\n\n"), [corner(table) for table in made]
    blocks = [block for block in blocks if not block.startswith("|") or corner(block) in corners]
    at = 0
    for table in made:
        known = [n for n, block in enumerate(blocks) if corner(block) == corner(table)]
        at = known[0] if known else at + 1
        blocks[at:at + len(known)] = [table]
    return before + title + "\n" + "\n\n".join(blocks) + "\n" + following + after


def corner(block: str) -> str:
    """The first cell of a table; "" for text."""
    return block[1:].split("|")[0] if block.startswith("|") else ""


def shown(page: str) -> list[str]:
    """The tables of the section."""
    section = page.partition(SECTION)[2].partition("\n## ")[0]
    return [block for block in section.strip().split("\n\n") if block.startswith("|")]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("traces", type=Path, nargs="?", help="folder of the traces that the result names")
    parser.add_argument("--page", type=Path, help="put the tables there")
    options = parser.parse_args(arguments)
    made = list(tables(json.loads(options.result.read_text(encoding="utf-8")), options.traces))
    if options.page is None:
        print("\n\n".join(made))
    else:
        options.page.write_text(placed(options.page.read_text(encoding="utf-8"), made), encoding="utf-8")


if __name__ == "__main__":
    main()
