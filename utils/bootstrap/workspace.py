"""A learner's working copies in ``my/``, which git ignores, so that an update of the course never meets edited files.

``my/`` mirrors ``notebooks/``, ``labs/`` and ``solutions/`` and the pages they link to, so that links work. On every
start: what is missing is copied; what the learner has not edited follows the course; what they have edited stays, and a
new version of the file is put beside it (``01_critical_path.new.ipynb``). Only the text of the cells counts as an edit:
a notebook that was merely run is replaced, and the run with its outputs is kept under ``my/earlier/``.
Lessons are copied without their outputs, or the answer to every "predict before you run" would stand right below it.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from utils.bootstrap.lock import locked

FOLDERS = ("notebooks", "labs", "solutions")
LINKED = ("docs", "traces", "benchmarks")       # of these, what a link opens to be read
READABLE = {".md", ".png", ".svg", ".txt"}
STATE, LOCK = ".course.json", ".course.lock"


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def text_digest(data: bytes) -> str:
    """Digest of what a person wrote: of a notebook, its cells without outputs; of anything else, its bytes."""
    try:
        cells = json.loads(data)["cells"]
        written = [[cell["cell_type"], "".join(cell["source"]), cell.get("attachments")] for cell in cells]
    except (ValueError, KeyError, TypeError):
        return digest(data)
    return digest(json.dumps(written).encode())


def for_learner(name: Path, data: bytes) -> bytes:
    """A course file as it is copied: lessons without outputs, anything else as it is."""
    if name.parts[0] != "notebooks" or name.suffix != ".ipynb":
        return data
    try:
        notebook = json.loads(data)
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                cell.update(outputs=[], execution_count=None)
    except (ValueError, KeyError, TypeError, AttributeError):   # no notebook: the learner gets it as it is
        return data
    return (json.dumps(notebook, indent=1, ensure_ascii=False) + "\n").encode()


def course_files(root: Path) -> Iterator[Path]:
    """Files that learners work with and read, relative to the repository root."""
    for folder in (*FOLDERS, *LINKED):
        for path in sorted((root / folder).rglob("*")):
            name = path.relative_to(root)
            if path.is_file() and not any(part.startswith((".", "__")) for part in name.parts) and (
                    folder in FOLDERS or path.suffix in READABLE):
                yield name


def _read_state(my: Path) -> dict[str, str]:
    """Relative path -> text digest of what the course last put there."""
    try:
        state = json.loads((my / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def _write(target: Path, data: bytes) -> None:
    """Whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.draft")
    draft.write_bytes(data)
    os.replace(draft, target)


def _keep_run(my: Path, name: str, data: bytes) -> None:
    """Keep the outputs of a notebook that is about to be replaced."""
    path = Path(name)
    _write(my / "earlier" / path.parent / f"{path.stem}-{digest(data)[:8]}{path.suffix}", data)


def _beside(my: Path, name: str, state: dict[str, str]) -> str:
    """Where a new version goes: NAME.new.ipynb, or the next number when the learner has worked in that, too."""
    path = Path(name)
    for number in range(1, 1000):
        candidate = path.with_name(f"{path.stem}.new{'' if number == 1 else number}{path.suffix}").as_posix()
        target = my / candidate
        if not target.exists() or text_digest(target.read_bytes()) == state.get(candidate):
            return candidate
    raise FileExistsError(f"{my / name}: 999 new versions lie beside it already")


def _refresh_file(my: Path, name: str, new: bytes, state: dict[str, str]) -> str | None:
    """Bring one working copy up to date; returns a line for the learner when they have to look."""
    target, before, now = my / name, state.get(name), text_digest(new)
    if not target.exists():
        _write(target, new)
    else:
        old = target.read_bytes()
        mine = text_digest(old)
        if mine in (before, now):                   # not edited
            if mine != now:
                _keep_run(my, name, old)
                _write(target, new)
        elif before != now:                         # edited, and the course has a newer version
            beside = _beside(my, name, state)
            _write(my / beside, new)
            state[beside] = state[name] = now
            return f"my/{name} has your edits; the course's new version is beside it: my/{beside}"
    state[name] = now
    return None


def _forget_removed(my: Path, names: set[str], state: dict[str, str]) -> None:
    """Delete unedited copies of files that the course no longer has."""
    for name in [name for name in state if name not in names and ".new" not in name]:
        target = my / name
        if target.exists() and text_digest(target.read_bytes()) == state[name]:
            _keep_run(my, name, target.read_bytes())
            target.unlink()
        del state[name]


def refresh(root: Path) -> list[str]:
    """Make or update the working copies; returns lines for the learner. OSError when ``my/`` cannot be written."""
    my = root / "my"
    my.mkdir(exist_ok=True)
    with locked(my / LOCK):
        state = _read_state(my)
        files = {path.as_posix(): for_learner(path, (root / path).read_bytes()) for path in course_files(root)}
        lines = [_refresh_file(my, name, data, state) for name, data in files.items()]
        _forget_removed(my, set(files), state)
        _write(my / STATE, json.dumps(state, indent=1).encode())
    return [line for line in lines if line]
