"""All tests of the course: pytest on ``tests/``, then nbval on lessons and solutions, outputs compared strictly.

On a machine with a usable CUDA GPU the notebooks' outputs differ from the committed ones, so there only that they run
is tested (``--nbval-lax``).
"""

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from utils.bootstrap import machine
from utils.bootstrap.console import say

NOTEBOOKS = ("notebooks", "solutions")
CELL_TIMEOUT_S = 180            # nbval's own is 2000: a dead kernel would hold the run for half an hour
MAX_WORKERS = 4
NO_TESTS = 5                    # pytest's exit status when nothing was selected
TAKES_VALUE = {"-k", "-m", "-p", "-c", "-o", "-n", "-r", "-W", "--deselect", "--ignore", "--durations", "--tb",
               "--maxfail", "--rootdir", "--junitxml", "--basetemp"}
ALONE = ("-n", "--numprocesses", "--pdb", "-s", "--capture", "--trace", "-x")
PROBE = "from utils.start import find_gpu; raise SystemExit(0 if find_gpu().device else 3)"


def split(arguments: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Options for both runs, paths for pytest, paths of notebooks."""
    options, tests, notebooks = [], [], []
    for before, argument in zip(["", *arguments], arguments, strict=False):
        path = argument.split("::")[0]
        if argument.startswith("-") or before in TAKES_VALUE or not os.path.exists(path):
            options.append(argument)
        elif path.endswith(".ipynb") or path.rstrip("/\\") in NOTEBOOKS:
            notebooks.append(argument)
        else:
            tests.append(argument)
    return options, tests, notebooks


def workers(options: list[str]) -> list[str]:
    """Spread over the cores, a file's tests in order in one process, unless the caller decides or wants to watch."""
    if any(option.split("=")[0] in ALONE or option.startswith("-n") for option in options):
        return []
    return ["-n", str(min(MAX_WORKERS, os.cpu_count() or 1)), "--dist", "loadscope"]


def without_nbval(options: list[str]) -> list[str]:
    """Tests in ``tests/`` are no notebooks, and nbval takes each process two seconds to load."""
    return [] if any(option.startswith("--nbval") for option in options) else ["-p", "no:nbval"]


def runs(options: list[str], tests: list[str], notebooks: list[str], strict: bool) -> list[tuple[str, list[str]]]:
    """Name and pytest arguments of each run; paths given by the caller leave the other run out."""
    everything = not tests and not notebooks
    result = []
    if everything or tests:
        result.append(("tests", [*(tests or ["tests"]), *without_nbval(options), *workers(options), *options]))
    if everything or notebooks:
        nbval = ["--nbval" if strict else "--nbval-lax", "--nbval-current-env"]
        limits = [f"--nbval-cell-timeout={CELL_TIMEOUT_S}"]
        result.append(("notebooks", [*nbval, *limits, *(notebooks or NOTEBOOKS), *workers(options), *options]))
    return result


def outcome(statuses: list[int]) -> int:
    """One exit status: the first failure; "nothing selected" only if no run selected anything."""
    failures = [status for status in statuses if status not in (0, NO_TESTS)]
    if failures:
        return failures[0]
    return 0 if 0 in statuses else NO_TESTS


def has_usable_gpu(python: Path, root: Path) -> bool:
    if not machine.sees_nvidia():
        return False
    return subprocess.run([str(python), "-c", PROBE], cwd=root, capture_output=True).returncode == 0


def run(python: Path, arguments: list[str], call: Callable[[list[str], Mapping[str, str]], int]) -> int:
    """Run both and return one exit status; ``call(command, more_env)`` runs a command line and returns its status."""
    options, tests, notebooks = split(arguments)
    strict = not has_usable_gpu(python, Path(__file__).resolve().parents[2])
    statuses = []
    more = {"COURSE_FIXED_OUTPUTS": "1",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}   # workers share the cores, products are small
    for name, pytest_arguments in runs(options, tests, notebooks, strict):
        say(f"== {name}: pytest {' '.join(pytest_arguments)}")
        statuses.append(call([str(python), "-m", "pytest", *pytest_arguments], more))
        if statuses[-1] == 2:       # interrupted
            break
    return outcome(statuses)
