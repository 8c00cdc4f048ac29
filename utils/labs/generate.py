"""Make the labs from their solutions: ``python -m utils.labs.generate`` writes them, ``--check`` only compares.

A solution notebook marks what a learner writes with ``### BEGIN SOLUTION`` / ``### END SOLUTION`` and what only a
grader runs with ``### BEGIN HIDDEN TESTS`` / ``### END HIDDEN TESTS``. The stub that takes a solution's place is
nbgrader's default, so that ``nbgrader generate_assignment`` on the same solution gives the same sources (but for
blank lines at a cell's end, which are dropped here).
"""

from __future__ import annotations

import copy
import re
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[2]
STUB = ("# YOUR CODE HERE", "raise NotImplementedError()")
SOLUTION, HIDDEN = "SOLUTION", "HIDDEN TESTS"
LEFT_OVER = re.compile(r"^.*#.*\b(BEGIN|END)\s+(SOLUTION|HIDDEN)\b.*$", re.IGNORECASE | re.MULTILINE)


class LabError(ValueError):
    """A solution notebook cannot be turned into a lab; the message names the cell."""


def generate(solution: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return the lab of a solution: stubs for solutions, no hidden tests, no outputs; cell ids and metadata stay.

    Stricter than nbgrader, so that nothing leaks by a typing error. Raises LabError for an unbalanced, nested or
    misspelt marker, for a cell that is marked as a solution in its nbgrader metadata but not by one pair of markers or
    the other way round, for hidden tests outside a graded cell, and for a notebook with nothing to solve.
    """
    lab = copy.deepcopy(solution)
    stubs = 0
    for number, cell in enumerate(lab.cells):
        if cell.cell_type == "code":
            stubs += _empty_cell(cell, number)
        if left := LEFT_OVER.search(cell.source):
            raise LabError(f"cell {number}: {left.group().strip()!r} is no marker; one reads '### BEGIN SOLUTION'")
    if not stubs:
        raise LabError("no '### BEGIN SOLUTION' in any cell: this lab would have nothing to solve")
    return lab


def _empty_cell(cell: nbformat.NotebookNode, number: int) -> int:
    cell.outputs, cell.execution_count = [], None
    lines, hidden = _cut(cell.source.split("\n"), HIDDEN, (), number)
    lines, stubs = _cut(lines, SOLUTION, STUB, number)
    marked = cell.metadata.get("nbgrader", {})
    if stubs > 1:
        raise LabError(f"cell {number} has {stubs} solutions: split it, a cell is one answer")
    if stubs and not marked.get("solution"):
        raise LabError(f"cell {number} holds a solution but its nbgrader metadata does not say so")
    if marked.get("solution") and not stubs:
        raise LabError(f"cell {number} is a solution by its nbgrader metadata but has no '### BEGIN SOLUTION'")
    if hidden and not marked.get("grade"):
        raise LabError(f"cell {number} has hidden tests but is not graded by its nbgrader metadata")
    cell.source = "\n".join(lines).rstrip("\n")
    return stubs


def _cut(lines: list[str], mark: str, stub: tuple[str, ...], number: int) -> tuple[list[str], int]:
    """Replace each region between the two marks by ``stub`` at the indentation of its first mark."""
    kept: list[str] = []
    regions, inside = 0, False
    for line in lines:
        if line.strip() == f"### BEGIN {mark}":
            if inside:
                raise LabError(f"cell {number}: '### BEGIN {mark}' inside another one")
            inside, regions = True, regions + 1
            kept += [line[: len(line) - len(line.lstrip())] + text for text in stub]
        elif line.strip() == f"### END {mark}":
            if not inside:
                raise LabError(f"cell {number}: '### END {mark}' without a beginning")
            inside = False
        elif not inside:
            kept.append(line)
    if inside:
        raise LabError(f"cell {number}: '### BEGIN {mark}' is never ended")
    return kept, regions


def pairs(root: Path = ROOT) -> list[tuple[Path, Path]]:
    """Every solution with the lab it makes; raises LabError when there is none, or a lab without a solution."""
    found = [(path, root / "labs" / path.name) for path in sorted((root / "solutions").glob("*.ipynb"))]
    orphans = {path.name for path in (root / "labs").glob("*.ipynb")} - {path.name for path, _ in found}
    if not found:
        raise LabError(f"no solution notebooks in {(root / 'solutions').name}/")
    if orphans:
        raise LabError(f"labs without a solution to make them from: {', '.join(sorted(orphans))}")
    return found


def render(solution: Path) -> str:
    """The text of the lab file that ``solution`` makes."""
    try:
        lab = generate(nbformat.read(solution, as_version=4))
    except LabError as error:
        raise LabError(f"{solution.name}: {error}") from None
    nbformat.validate(lab)
    return nbformat.writes(lab) + "\n"


def main(arguments: list[str]) -> int:
    """Write every lab, or with ``--check`` name those that differ and return 1."""
    stale = []
    for solution, lab in pairs():
        text = render(solution)
        if lab.is_file() and lab.read_text(encoding="utf-8") == text:
            continue
        stale.append(lab.name)
        if "--check" not in arguments:
            lab.write_text(text, encoding="utf-8", newline="\n")
    if "--check" in arguments:
        print(f"differ from their solutions: {', '.join(stale)}" if stale else "every lab is what its solution makes")
        return int(bool(stale))
    print(f"written: {', '.join(stale)}" if stale else "nothing to do: every lab is what its solution makes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
