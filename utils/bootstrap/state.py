"""What is known of a ``.venv``: whether it is ready, and if not, what is wrong with it.

``.venv/course.json`` names the installed requirements only after everything was installed and imported once, so that an
interrupted set-up is not taken for done.
"""

import hashlib
import json
import os
import subprocess
from pathlib import Path

from utils.bootstrap import install, probe

STAMP, LOCK = "course.json", "course.lock"
REDIRECTS = ("PYTHONHOME", "PYTHONPATH", "PIP_TARGET", "PIP_PREFIX", "PIP_REQUIRE_VIRTUALENV", "__PYVENV_LAUNCHER__")
LOOK_S = 120   # a first start from a cold network disk


def venv_python(venv: Path) -> Path:
    return venv / "Scripts" / "python.exe" if os.name == "nt" else venv / "bin" / "python"


def clean_env() -> dict[str, str]:
    """This process's variables without those that make a .venv's Python or pip work on other folders."""
    env = {name: value for name, value in os.environ.items() if name not in REDIRECTS}
    return env | {"PIP_USER": "0"}


def look(python: Path, wanted: Path) -> dict | None:
    """What the environment of ``python`` has (see probe.describe), or None when it does not run."""
    command = [str(python), "-I", probe.__file__, str(wanted)]
    try:
        done = subprocess.run(command, env=clean_env(), capture_output=True, text=True, timeout=LOOK_S)
        return json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def real_path(path: Path) -> str:
    """The same text whatever the locale decodes file names with."""
    return os.fsencode(os.path.realpath(path)).decode("utf-8", "backslashreplace")


def expected_stamp(venv: Path, wanted: Path, python: str) -> dict[str, str]:
    digest = hashlib.sha256(wanted.read_bytes()).hexdigest()
    return {"requirements": digest, "python": python, "path": real_path(venv)}


def read_stamp(venv: Path) -> dict[str, str]:
    try:
        stamp = json.loads((venv / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def write_stamp(venv: Path, stamp: dict[str, str]) -> None:
    draft = venv / (STAMP + ".draft")
    draft.write_text(json.dumps(stamp), encoding="utf-8")
    os.replace(draft, venv / STAMP)


def is_ready(venv: Path, wanted: Path) -> bool:
    """Installed for these requirements, here, by a Python that still runs, and nothing was taken out since."""
    stamp = read_stamp(venv)
    if not stamp or stamp != expected_stamp(venv, wanted, stamp.get("python", "")):
        return False
    found = look(venv_python(venv), wanted)
    return found is not None and found["python"] == stamp["python"] and not found["unmet"]


def fault_of(venv: Path, wanted: Path) -> str | None:
    """Why an existing .venv must be made anew, in a few words; None if it can be used or completed."""
    stamp = read_stamp(venv)
    if stamp.get("path", real_path(venv)) != real_path(venv):
        return "the course was moved or copied here"
    found = look(venv_python(venv), wanted)
    if found is None:
        return "its Python does not run"
    if stamp.get("python", found["python"]) != found["python"]:
        return f"its Python changed from {stamp['python']} to {found['python']}"
    if not os.path.samefile(found["prefix"], venv):
        return "its Python belongs to another folder"
    if tuple(map(int, found["python"].split("."))) < (3, 10):
        return f"its Python is {found['python']}, 3.10 is needed"
    if install.pip_command(venv_python(venv), found["has_pip"]) is None:
        return "it has no pip"
    return None
