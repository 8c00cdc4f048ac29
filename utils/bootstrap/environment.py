"""The environment that the course runs in: ``.venv`` beside it, made and filled on first use, or the current one."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from utils.bootstrap import building, probe
from utils.bootstrap.console import Stop, say
from utils.bootstrap.lock import locked
from utils.bootstrap.state import LOCK, fault_of, is_ready, venv_python


@contextlib.contextmanager
def _venv_lock(venv: Path) -> Iterator[None]:
    try:
        venv.mkdir(exist_ok=True)
        with locked(venv / LOCK, lambda: say("Another set-up is running in this folder: waiting for it.")):
            yield
    except OSError as error:
        raise Stop(f"{error.filename or venv} cannot be written ({error.strerror}): copy the course into a folder of "
                   "your own, or use an environment that has everything with --here.") from None


def _hint_at_here(wanted: Path) -> None:
    if not probe.unmet(probe.requirements(wanted)):
        say(f"The current environment ({sys.prefix}) has everything already: Ctrl-C, then the same command with "
            "--here, uses it.")


def _complete(venv: Path, wanted: Path) -> None:
    """Bring an existing environment up to date, or make it anew when that cannot be."""
    if fault := fault_of(venv, wanted):
        _make_anew(venv, wanted, fault)
        return
    try:
        building.fill(venv, wanted)
    except building.Unusable as fault:      # what an interrupted installation left behind
        _make_anew(venv, wanted, str(fault))


def _make_anew(venv: Path, wanted: Path, fault: str) -> None:
    say(f"Making .venv anew: {fault}.")
    building.empty(venv)
    building.make(venv)
    building.fill(venv, wanted)


def ready_python(root: Path) -> Path:
    """The Python of the course's ``.venv``, made or completed first if it has to be."""
    venv, wanted = root / ".venv", root / "requirements.txt"
    if is_ready(venv, wanted):
        return venv_python(venv)
    with _venv_lock(venv):
        if is_ready(venv, wanted):          # another set-up has just done it
            return venv_python(venv)
        if (venv / "pyvenv.cfg").exists():
            _complete(venv, wanted)
        else:
            _hint_at_here(wanted)
            building.empty(venv)
            building.make(venv)
            building.fill(venv, wanted)
    return venv_python(venv)


def current_python(root: Path) -> Path:
    """This very Python, if it has what the course needs. Stop that names what is missing."""
    faults = probe.unmet(probe.requirements(root / "requirements.txt"))
    if faults:
        raise Stop(f"This environment ({sys.prefix}) lacks {', '.join(faults)}: run  "
                   f"\"{sys.executable}\" -m pip install -r requirements.txt  or leave --here out.")
    return Path(sys.executable)
