"""The command line that opens JupyterLab at the first lesson."""

from pathlib import Path

from utils.bootstrap import machine, workspace
from utils.bootstrap.console import say

FIRST = "notebooks/00_start_here.ipynb"


def working_folder(root: Path) -> str:
    """``"my/"`` with its copies up to date, or ``""`` where the course's folder cannot be written."""
    try:
        for line in workspace.refresh(root):
            say(line)
    except OSError as error:
        say(f"No working copies in my/ ({error.strerror}: {error.filename}): opening the course's own files.")
        return ""
    return "my/"


def command(python: Path, root: Path, folder: str, arguments: list[str]) -> list[str]:
    """``jupyter lab`` on the course; ``arguments`` come last, so they win."""
    options = [f"--ServerApp.root_dir={root}", f"--LabApp.default_url=/lab/tree/{folder}{FIRST}"]
    if not machine.has_display() and "--no-browser" not in arguments:
        say("No display here: open the address that JupyterLab prints. From another computer, forward its port first: "
            "README.md, \"On a machine without a screen\".")
        options.append("--no-browser")
    if machine.is_root() and "--allow-root" not in arguments:
        options.append("--allow-root")      # containers and rented machines: Jupyter would refuse to start
    return [str(python), "-m", "jupyterlab", *options, *arguments]
