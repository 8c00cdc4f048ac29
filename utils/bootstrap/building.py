"""Make a ``.venv`` and fill it."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from utils.bootstrap import install, machine, probe
from utils.bootstrap.console import Stop, say
from utils.bootstrap.state import LOCK, clean_env, expected_stamp, look, venv_python, write_stamp

MODULES = {"pytest-xdist": "xdist"}     # where the module is not called as the package
TRY_IMPORTS = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except BaseException as error:
        sys.exit(f"{name}: {type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}")
"""


class Unusable(Stop):
    """Everything was installed, but something cannot be imported."""


def empty(venv: Path) -> None:
    """Delete what is in .venv, except the lock that is being held."""
    try:
        for entry in venv.iterdir():
            if entry.name == LOCK:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
    except OSError as error:
        raise Stop(f"{venv} is broken and could not be deleted ({error.strerror}): close what uses it "
                   "(Jupyter, an activated shell), delete the folder, and run the same command again.") from None


def _has_ensurepip() -> bool:
    try:
        import ensurepip

        return bool(ensurepip.version())
    except Exception:   # Debian takes ensurepip, or its wheels, out of the Python package
        return False


def makers(venv: Path) -> list[list[str]]:
    """Commands that can make the environment here without a download, best first."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    commands = []
    if _has_ensurepip():
        commands.append([base, "-m", "venv", str(venv)])
    if importlib.util.find_spec("virtualenv"):
        commands.append([sys.executable, "-m", "virtualenv", "--no-download", str(venv)])
    if importlib.util.find_spec("venv") and install.pip_command(venv, has_pip=False):
        commands.append([base, "-m", "venv", "--without-pip", str(venv)])
    return commands


def make(venv: Path) -> None:
    last = ""
    for command in makers(venv):
        done = subprocess.run(command, env=clean_env(), capture_output=True, text=True, errors="replace")
        if done.returncode == 0:
            return
        last = ((done.stderr or done.stdout).strip().splitlines() or [""])[-1]
        empty(venv)
    if last:
        raise Stop(f"The environment {venv} could not be made: {last}")
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    raise Stop(f"This Python cannot make environments: on Debian or Ubuntu run  apt install python{version}-venv  "
               "(as root or with sudo), then run the same command again.")


# filling

def announce(venv: Path) -> None:
    """Say before a long download how long it is, and how to make it shorter."""
    big = machine.gets_cuda_build()
    disk = machine.CUDA_BUILD_DISK_GIB if big else machine.CPU_BUILD_DISK_GIB
    download = machine.CUDA_BUILD_DOWNLOAD_GIB if big else machine.CPU_BUILD_DOWNLOAD_GIB
    say(f"Installing the course into {venv}, once: about {download} GB to download, {disk} GB on disk, "
        "2 to 20 minutes.")
    if big and not machine.sees_nvidia():
        say("No NVIDIA GPU was seen, and the standard torch for Linux carries CUDA. A CPU build takes a third of the "
            "space: README.md, \"Smaller install\".")
    if not big and machine.sees_nvidia():
        say("An NVIDIA GPU was seen, but the standard torch for this system is a CPU build: README.md, "
            "\"torch does not use the GPU\".")
    if machine.free_gib(venv.parent) < disk:
        say(f"Only {machine.free_gib(venv.parent):.1f} GB are free there: this may not be enough.")


def try_imports(python: Path, wanted: Path) -> str:
    """First required module that cannot be imported, with its error in one line; "" when all can."""
    modules = [MODULES.get(name, name) for name in probe.requirements(wanted)]
    done = subprocess.run([str(python), "-I", "-W", "ignore", "-c", TRY_IMPORTS, *modules], env=clean_env(),
                          capture_output=True, text=True, errors="replace")
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["Python ended without a word"])[-1]


def fill(venv: Path, wanted: Path) -> None:
    """Install the requirements and write the stamp. Stop when pip fails or a module cannot be imported."""
    python = venv_python(venv)
    found = look(python, wanted)
    if found is None:
        raise Stop(f"The Python in {venv} does not run: delete that folder and run the same command again.")
    if found["unmet"]:
        announce(venv)
    pip = install.pip_command(python, found["has_pip"])
    assert pip is not None, "makers() and fault_of() see to it that there is a pip"
    stamp = expected_stamp(venv, wanted, found["python"])
    write_stamp(venv, stamp | {"requirements": "being installed"})
    install.run_pip(pip, ["install", "-r", str(wanted)], clean_env())
    if broken := try_imports(python, wanted):
        raise Unusable(f"Installed, but it cannot be used: {broken}. "
                       + ("Install Microsoft's Visual C++ Redistributable, or " if os.name == "nt" else "")
                       + f"delete {venv} and run the same command again.")
    hide_news(venv)
    write_stamp(venv, stamp)
    say("Ready.")


def hide_news(venv: Path) -> None:
    """Keep JupyterLab's question about news from covering the first lesson."""
    config = venv / "etc" / "jupyter" / "labconfig"
    config.mkdir(parents=True, exist_ok=True)
    disabled = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
    (config / "page_config.json").write_text(json.dumps(disabled), encoding="utf-8")
