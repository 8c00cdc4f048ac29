"""``python3 -m utils COMMAND``: the commands of the course and their options."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from utils.bootstrap import environment, lab, state, testing, update
from utils.bootstrap.console import Stop, harden_output, say

ROOT = Path(__file__).resolve().parents[2]
HELP = """\
python3 -m utils lab  [--here] [--in-place] [options of jupyter lab]
    open the course in JupyterLab, at the first lesson. Your working copies lie in my/: an update of the course
    never touches what you edited there.  --in-place opens the course's own files instead.
python3 -m utils test [--here] [options and paths of pytest]
    run all tests: pytest on tests/, then every notebook and solution with its outputs compared.
python3 -m utils update
    bring the course up to date with git; files that you edited outside my/ are moved to my/ first.

lab and test do the set-up by themselves: .venv beside the course, with requirements.txt installed (once).
--here uses the Python environment that you started this with, and installs nothing.
Windows: py -m utils ...   From another folder: python3 path/to/course/utils ..."""


def take_flag(arguments: list[str], flag: str) -> bool:
    """Remove ``flag`` from the arguments; whether it was there."""
    found = flag in arguments
    arguments[:] = [argument for argument in arguments if argument != flag]
    return found


def call(command: list[str], env: dict[str, str]) -> int:
    """Run in the course's folder; Ctrl-C, which reaches the child too, is its business, and a SIGTERM is passed on."""
    with subprocess.Popen(command, cwd=ROOT, env=env) as child:
        answers = {signal.SIGINT: lambda *_: None, signal.SIGTERM: lambda *_: child.terminate()}
        before = {number: signal.signal(number, answer) for number, answer in answers.items()}
        try:
            return child.wait()
        finally:
            for number, answer in before.items():
                signal.signal(number, answer)


def become(command: list[str], env: dict[str, str]) -> int:
    """Go on as this command in the course's folder, so that no signal can leave it behind; on Windows, call it."""
    if os.name == "nt":
        return call(command, env)
    sys.stdout.flush()
    os.chdir(ROOT)
    os.execve(command[0], command, env)


def prepare(arguments: list[str]) -> tuple[Path, dict[str, str]]:
    """The Python to use and the variables to start it with."""
    if take_flag(arguments, "--here"):
        return environment.current_python(ROOT), dict(os.environ)
    return environment.ready_python(ROOT), state.clean_env()


def run_lab(arguments: list[str]) -> int:
    in_place = take_flag(arguments, "--in-place")
    python, env = prepare(arguments)
    folder = "" if in_place else lab.working_folder(ROOT)
    return become(lab.command(python, ROOT, folder, arguments), env)


def run_test(arguments: list[str]) -> int:
    python, env = prepare(arguments)
    return testing.run(python, arguments, lambda command, more: call(command, {**env, **more}))


def main(arguments: list[str]) -> int:
    """Exit status of the command; 2 for one that does not exist."""
    harden_output()
    name, rest = (arguments[0], list(arguments[1:])) if arguments else ("help", [])
    commands = {"lab": run_lab, "test": run_test, "update": lambda _: update.run(ROOT)}
    if name in ("help", "-h", "--help") or {"-h", "--help"} & set(rest):
        say(HELP)
        return 0
    if name not in commands:
        print(f"There is no command {name!r}.\n\n{HELP}", file=sys.stderr)
        return 2
    try:
        return commands[name](rest)
    except Stop as reason:
        print(f"Stopped: {reason}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted. The same command goes on from here.", file=sys.stderr)
        return 130
