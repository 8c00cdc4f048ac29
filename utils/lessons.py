"""Import what a lesson teaches from the notebook that teaches it.

Code that a lesson explains lives in that lesson alone. Cells tagged ``export`` hold its finished definitions; a later
lesson, a lab check or a benchmark gets them from here, so nothing is pasted twice:

>>> import_lesson("01_critical_path").critical_path(graph)
"""

from __future__ import annotations

import json
import linecache
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
EXPORT_TAG = "export"


class LessonError(ImportError):
    """A lesson, or a cell of it, cannot be imported; the message says which and why."""


def import_lesson(stem: str) -> ModuleType:
    """Return a module holding everything that the ``export`` cells of a notebook define.

    ``stem``: such as ``"01_critical_path"`` (in ``notebooks/``) or ``"solutions/01_critical_path"``. The cells run once
    per process, in order, without the rest of the notebook. Raises LessonError for an unknown notebook, for one that
    exports nothing, and when a cell fails.
    """
    return _load(_find(stem))


def _find(stem: str) -> Path:
    path = ROOT / (stem if "/" in stem else f"notebooks/{stem}")
    path = path.with_name(path.name.removesuffix(".ipynb") + ".ipynb")
    if not path.is_file():
        known = ", ".join(sorted(found.stem for found in path.parent.glob("*.ipynb"))) or "none"
        raise LessonError(f"there is no notebook {path.stem!r} in {path.parent.name}/ (there: {known})")
    return path


@cache
def _load(path: Path) -> ModuleType:
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise LessonError(f"{path.parent.name}/{path.name} is not a notebook: {error}") from None
    cells = [(number, "".join(cell["source"])) for number, cell in enumerate(notebook["cells"])
             if cell["cell_type"] == "code" and EXPORT_TAG in (cell["metadata"].get("tags") or ())]
    if not cells:
        raise LessonError(f"{path.parent.name}/{path.name} exports nothing: tag a cell {EXPORT_TAG!r}")
    module = ModuleType(f"lesson_{path.parent.name}_{path.stem}")
    sys.modules[module.__name__] = module   # dataclasses look up the module of their class
    for number, source in cells:
        _run(source, f"<{path.parent.name}/{path.name}, cell {number}>", module)
    return module


def _run(source: str, label: str, module: ModuleType) -> None:
    linecache.cache[label] = (len(source), None, source.splitlines(keepends=True), label)   # readable tracebacks
    try:
        exec(compile(source, label, "exec", dont_inherit=True), module.__dict__)
    except Exception as error:
        raise LessonError(f"{label} fails when imported: {type(error).__name__}: {error}") from error
