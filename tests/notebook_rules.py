"""What must hold in every committed notebook; each rule returns its complaints as texts, [] when all is well.

Strict nbval does not compare cells that were never executed, nor pictures, so these rules close its gaps.
"""

import json
import re
from pathlib import Path

import nbformat

MAX_LINES = 25
FIRST_CELL = """\
import sys, pathlib
root = next(p for p in (pathlib.Path.cwd(), *pathlib.Path.cwd().parents) if (p / "utils" / "start.py").is_file())
sys.path.insert(0, str(root))
from utils import start
device = start()"""
MARKER = re.compile(r"\s*### (BEGIN|END) (SOLUTION|HIDDEN TESTS)\s*$")
UNCOMPARED = re.compile(r"nbval[-_ ]?(ignore|skip)|pytest_validate_ignore", re.IGNORECASE)
BARE_REPR = re.compile(r"\s*<[^>]*>\s*")

# Text that differs between machines, or from one release of a library to the next.
DRIFTING = {
    "a path": re.compile(r"(?<![\w.])/(?:home|root|work|tmp|usr|opt|var|mnt|Users|content)/|[A-Za-z]:\\|site-packages"),
    "an address": re.compile(r"\b0x[0-9a-fA-F]{6,}\b"),
    "a version": re.compile(r"\b\d+\.\d+\.\d+\b|\b(?:python|torch|numpy|pandas|networkx|matplotlib|cuda)[ =v]+\d+\.\d+",
                            re.IGNORECASE),
    "a traceback": re.compile(r"Traceback \(most recent call last\)"),
    "a warning": re.compile(r"\b\w*Warning: "),
}


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def code_cells(notebook):
    """(position in the notebook, cell) of every code cell."""
    return [(number, cell) for number, cell in enumerate(notebook.cells) if cell.cell_type == "code"]


def texts(output):
    """Everything in an output that is compared or read as text."""
    if output.output_type == "stream":
        yield output.text
    elif output.output_type == "error":
        yield "\n".join([output.ename, output.evalue, *output.traceback])
    else:
        yield from (data if isinstance(data, str) else json.dumps(data) for mime, data in output.data.items()
                    if mime not in ("image/png", "image/jpeg"))


def executed_in_order(notebook):
    """Every code cell was executed, once, from 1, in one go."""
    cells = code_cells(notebook)
    counts = [cell.execution_count for _, cell in cells]
    if not cells:
        return ["there are no code cells"]
    if all(count is None for count in counts):
        return ["the notebook was cleared: nothing was executed"]
    return [f"cell {number}: execution count {cell.execution_count}, expected {expected}"
            for expected, (number, cell) in enumerate(cells, 1) if cell.execution_count != expected]


def outputs_cannot_drift(notebook):
    """Outputs hold nothing that another machine or another day would print differently, and no errors."""
    faults = []
    for number, cell in code_cells(notebook):
        for output in cell.outputs:
            if output.output_type == "stream" and output.name == "stderr":
                faults.append(f"cell {number}: output on stderr")
            if output.output_type == "error" and "raises-exception" not in cell.metadata.get("tags", []):
                faults.append(f"cell {number}: ended with {output.ename}")
            faults += [f"cell {number}: {what} in the output: {match[0]!r}" for text in texts(output)
                       for what, pattern in DRIFTING.items() if (match := pattern.search(text))]
    return faults


def everything_is_compared(notebook):
    """No cell is taken out of strict comparison, and every picture comes with text that stands for it."""
    faults = []
    for number, cell in code_cells(notebook):
        if UNCOMPARED.search(cell.source) or any(UNCOMPARED.search(tag) for tag in cell.metadata.get("tags", [])):
            faults.append(f"cell {number}: its output is not compared")
        pictures = [output for output in cell.outputs if "image/png" in output.get("data", {})]
        printed = any(output.output_type == "stream" for output in cell.outputs)
        faults += [f"cell {number}: a picture without text that says what it shows" for output in pictures
                   if not printed and BARE_REPR.fullmatch(output.data.get("text/plain", "<>"))]
    return faults


def shown_without_a_kernel(notebook):
    """No widget views, which show "model not found" in a saved notebook, and no version of the Python that ran it."""
    faults = [f"metadata.{name} is stored" for name in ("widgets",) if name in notebook.metadata]
    if "version" in notebook.metadata.get("language_info", {}):
        faults.append("metadata.language_info.version is stored")
    return faults + [f"cell {number}: a widget view is stored" for number, cell in code_cells(notebook)
                     for output in cell.outputs if any("widget-view" in mime for mime in output.get("data", {}))]


def cells_are_short(notebook):
    """No code cell needs scrolling; solution markers do not count."""
    lengths = [(number, sum(not MARKER.match(line) for line in cell.source.split("\n")))
               for number, cell in code_cells(notebook)]
    return [f"cell {number}: {lines} lines, {MAX_LINES} are allowed" for number, lines in lengths if lines > MAX_LINES]


def starts_as_agreed(notebook):
    cells = code_cells(notebook)
    return [] if cells and cells[0][1].source == FIRST_CELL else ["the first code cell is not the agreed one"]


def has_no_outputs(notebook):
    """A lab is handed out clean."""
    return [f"cell {number}: has outputs or an execution count" for number, cell in code_cells(notebook)
            if cell.outputs or cell.execution_count is not None]


def links_lead_somewhere(notebook, folder: Path):
    """Relative links and pictures exist as seen from ``folder``."""
    faults = []
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type != "markdown":
            continue
        for target in re.findall(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"", cell.source):
            target = (target[0] or target[1]).split("#")[0]
            if target and not re.match(r"[a-z]+:", target) and not (folder / target).exists():
                faults.append(f"cell {number}: the link to {target} leads nowhere")
    return faults


EVERY = (starts_as_agreed, cells_are_short, shown_without_a_kernel)
RUN = (*EVERY, executed_in_order, outputs_cannot_drift, everything_is_compared)
LAB = (*EVERY, has_no_outputs)
