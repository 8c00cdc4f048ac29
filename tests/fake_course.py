"""A small course in a folder of its own: the real bootstrap, tiny wheels in place of the real packages, no network."""

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LAB = """import json, os, sys
print('LAB', json.dumps({'args': sys.argv[1:], 'cwd': os.getcwd(), 'prefix': sys.prefix, 'pid': os.getpid()}))
"""
BROKEN = "raise RuntimeError('half a package')\n"


def make_wheel(folder: Path, name: str, version: str, main: str = "", init: str = "") -> Path:
    """A wheel holding one package with ``__init__`` and ``__main__``."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    files = {f"{name}/__init__.py": init, f"{name}/__main__.py": main,
             f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
             f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}
    record = "".join(f"{path},sha256={_digest(text)},{len(text)}\n" for path, text in files.items())
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in {**files, f"{info}/RECORD": record + f"{info}/RECORD,,\n"}.items():
            wheel.writestr(file, text)
    return path


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


class FakeCourse:
    """The course's bootstrap at ``root``; ``run("lab")`` is ``python3 -m utils lab`` there."""

    def __init__(self, root: Path) -> None:
        self.root, self.wheels = root, root.parent / "wheels"
        shutil.copytree(ROOT / "utils" / "bootstrap", root / "utils" / "bootstrap",
                        ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("__init__.py", "__main__.py", "start.py"):
            shutil.copy(ROOT / "utils" / name, root / "utils" / name)
        for folder in ("notebooks", "labs", "solutions"):
            (root / folder).mkdir()
        (root / "notebooks" / "00_start_here.ipynb").write_text("{}")
        make_wheel(self.wheels, "jupyterlab", "4.5", main=LAB)
        self.require("jupyterlab>=4.2")

    def require(self, *lines: str) -> None:
        (self.root / "requirements.txt").write_text("\n".join(lines) + "\n")

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    @property
    def python(self) -> Path:
        return self.venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    def env(self, **more: str) -> dict[str, str]:
        hidden = ("PIP_", "PYTHON", "DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": self.wheels.as_uri(), "PIP_CONFIG_FILE": os.devnull}
        return {**kept, **offline, **more}

    def start(self, *arguments: str, python: str = sys.executable, cwd: Path | None = None,
              entry: tuple[str, ...] = ("-m", "utils"), **env: str) -> subprocess.Popen:
        return subprocess.Popen([python, *entry, *arguments], cwd=cwd or self.root, env=self.env(**env), text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run(self, *arguments: str, **how) -> subprocess.CompletedProcess:
        with self.start(*arguments, **how) as process:
            out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)
