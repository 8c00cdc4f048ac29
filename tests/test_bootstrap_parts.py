"""Single decisions of the bootstrap that a small course on this machine cannot show."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from utils.bootstrap import building, install, lab, machine, probe, state, testing
from utils.bootstrap.console import Stop

ROOT = Path(__file__).resolve().parents[1]


# old Pythons

def old_pythons():
    for version in ("2.7", "3.6", "3.7", "3.8", "3.9"):
        places = [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
        yield from (str(path) for path in places
                    if path and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0)


OLD = list(old_pythons())


def test_entry_is_readable_by_old_pythons():
    """Only constructs of Python 2.7 stand before the version test; checked by the grammar that every Python shares."""
    source = (ROOT / "utils" / "__main__.py").read_text(encoding="ascii")
    before = source.split("if sys.version_info < NEEDED")[0]
    for newer in ('f"', "f'", ":=", "->", "nonlocal", "async ", "print(", "match ", "from __future__"):
        assert newer not in before, newer
    init = (ROOT / "utils" / "__init__.py").read_text(encoding="ascii")
    code = init.split('"""')[2]
    assert code.split("if sys.version_info >= (3, 10):")[0].split() == ["import", "sys"]


@pytest.mark.skipif(not OLD, reason="no old Python on this machine")
def test_old_python_gets_one_line():
    for python in OLD:
        done = subprocess.run([python, "-m", "utils", "lab"], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 1 and done.stdout == ""
        lines = done.stderr.splitlines()
        assert len(lines) == 1 and lines[0].startswith("Python 3.10 or newer is needed, this is Python "), lines


# requirements

def test_requirements_are_read(tmp_path):
    path = tmp_path / "requirements.txt"
    path.write_text("# words\ntorch>=2.9   # why\n\nnbval\npytest-xdist[psutil]>=3.6,<4\n")
    assert probe.requirements(path) == {"torch": "2.9", "nbval": "", "pytest-xdist": "3.6"}


def test_the_course_asks_for_everything_it_imports():
    wanted = probe.requirements(ROOT / "requirements.txt")
    assert list(wanted)[:5] == ["torch", "jupyterlab", "matplotlib", "ipywidgets", "nbval"]
    assert probe.unmet(wanted) == []


@pytest.mark.parametrize("have, lowest, fits", [
    ("2.9.0", "2.9", True), ("2.9", "2.9.0", True), ("2.14.1+cpu", "2.9", True), ("2.10.0.dev1", "2.9", True),
    ("2.8.9", "2.9", False), ("1", "", True)])
def test_versions(monkeypatch, have, lowest, fits):
    monkeypatch.setattr(probe.importlib.metadata, "version", lambda _: have)
    assert probe.unmet({"torch": lowest}) == ([] if fits else [f"torch ({have}, needs {lowest})"])


# making an environment

def test_missing_ensurepip_names_the_debian_package(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    monkeypatch.setitem(sys.modules, "pip", None)
    monkeypatch.setattr(building.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Stop, match=rf"apt install python3\.{sys.version_info[1]}-venv"):
        building.make(tmp_path / ".venv")


def test_missing_ensurepip_is_made_up_for_by_this_pythons_pip(monkeypatch, tmp_path):
    """What works without a download: an environment without pip, filled by ``pip --python``."""
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    real = building.importlib.util.find_spec
    monkeypatch.setattr(building.importlib.util, "find_spec", lambda name: None if name == "virtualenv" else real(name))
    venv = tmp_path / ".venv"
    venv.mkdir()
    building.make(venv)
    found = state.look(state.venv_python(venv), ROOT / "requirements.txt")
    assert found is not None and found["has_pip"] is False
    assert install.pip_command(state.venv_python(venv), has_pip=False) == [
        sys.executable, "-m", "pip", "--python", str(state.venv_python(venv))]


def test_pip_too_old_for_other_environments(monkeypatch):
    import pip

    monkeypatch.setattr(pip, "__version__", "22.0.2")       # Ubuntu 22.04
    assert install.pip_command(Path("python"), has_pip=False) is None


def test_python_of_an_environment(monkeypatch):
    assert state.venv_python(Path("v")) == Path("v/bin/python")
    monkeypatch.setattr(os, "name", "nt")
    assert state.venv_python(_WindowsPath("v")) == "v\\Scripts\\python.exe"


class _WindowsPath(str):
    """pathlib refuses to make Windows paths elsewhere."""

    def __truediv__(self, other):
        return _WindowsPath(f"{self}\\{other}")


@pytest.mark.parametrize("system, nvidia, expected", [
    ("linux", False, "A CPU build takes a third"), ("win32", True, "is a CPU build"), ("linux", True, ""),
    ("darwin", False, "")])
def test_long_downloads_are_announced(monkeypatch, capsys, tmp_path, system, nvidia, expected):
    monkeypatch.setattr(machine.sys, "platform", system)
    monkeypatch.setattr(machine, "sees_nvidia", lambda: nvidia)
    monkeypatch.setattr(machine, "free_gib", lambda _: 1000.0)
    building.announce(tmp_path / ".venv")
    first, *more = capsys.readouterr().out.splitlines()
    assert ("6 GB on disk" if system == "linux" else "2 GB on disk") in first
    assert len(more) == bool(expected) and (not expected or expected in more[0])


def test_a_full_disk_is_announced(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(machine, "free_gib", lambda _: 1.25)
    building.announce(tmp_path / ".venv")
    assert "Only 1.2 GB are free there" in capsys.readouterr().out


# pip's failures

@pytest.mark.parametrize("log, expected", [
    ("ERROR: Could not install packages: [Errno 28] No space left on device", "The disk is full"),
    ("WARNING: Retrying ... SSLError(SSLCertVerificationError(1, '[CERTIFICATE_VERIFY_FAILED]", "certificate"),
    ("WARNING: Retrying ... ProxyError('Cannot connect to proxy', OSError('Tunnel connection failed: 407", "The proxy"),
    ("WARNING: ... NewConnectionError: [Errno -3] Temporary failure in name resolution\nERROR: No matching "
     "distribution found for torch>=2.9", "No connection to the package index"),
    ("ERROR: Could not find a version that satisfies the requirement torch>=2.9 (from versions: 2.2.2)\n"
     "ERROR: No matching distribution found for torch>=2.9", "There is no torch wheel for Python 3."),
    ("ERROR: Could not find a version that satisfies the requirement orjson (from versions: none)", "offered nothing"),
    ("ERROR: ResolutionImpossible: for help visit", "found no fitting version"),
    ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE", "arrived damaged"),
    ("ERROR: [WinError 5] Access is denied: 'C:\\\\x\\\\.venv\\\\torch.dll'", "could not be written"),
    ("ERROR: something new", "its message is above"),
])
def test_pip_failures_end_in_one_line(log, expected):
    line = install.advice(log)
    assert expected in line and "\n" not in line and line.isascii()


def test_pip_output_is_passed_on(capfd):
    script = "import sys; print('progress'); print('ERROR: No space left on device', file=sys.stderr); sys.exit(1)"
    with pytest.raises(Stop, match="disk is full"):
        install.run_pip([sys.executable, "-c", script], [], dict(os.environ))
    out, err = capfd.readouterr()
    assert out == "progress\n" and "No space left" in err


# starting JupyterLab

@pytest.fixture
def desk(monkeypatch):
    monkeypatch.setattr(machine, "has_display", lambda: True)
    monkeypatch.setattr(machine, "is_root", lambda: False)
    return monkeypatch


def lab_options(*arguments):
    return lab.command(Path("py"), Path("/course"), "my/", list(arguments))[3:]


def test_lab_on_a_desk(desk):
    assert lab_options("--port=1") == ["--ServerApp.root_dir=" + str(Path("/course")),
                                       "--LabApp.default_url=/lab/tree/my/notebooks/00_start_here.ipynb", "--port=1"]


def test_lab_without_a_screen_and_as_root(desk, capsys):
    desk.setattr(machine, "has_display", lambda: False)
    desk.setattr(machine, "is_root", lambda: True)
    assert lab_options()[2:] == ["--no-browser", "--allow-root"]
    assert "No display here" in capsys.readouterr().out
    assert lab_options("--no-browser", "--allow-root")[2:] == ["--no-browser", "--allow-root"]


@pytest.mark.parametrize("platform, variables, expected", [
    ("linux", {}, False), ("linux", {"DISPLAY": ":0"}, True), ("linux", {"WAYLAND_DISPLAY": "w"}, True),
    ("linux", {"BROWSER": "firefox"}, True), ("darwin", {}, True), ("win32", {}, True)])
def test_display(monkeypatch, platform, variables, expected):
    monkeypatch.setattr(machine.sys, "platform", platform)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert machine.has_display() is expected


# the test command

def test_arguments_are_split(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert testing.split([]) == ([], [], [])
    assert testing.split(["-k", "tests", "-q"]) == (["-k", "tests", "-q"], [], [])
    assert testing.split(["tests/test_start.py::test_x", "-x", "notebooks"]) == (
        ["-x"], ["tests/test_start.py::test_x"], ["notebooks"])


def test_runs():
    (first, tests), (second, notebooks) = testing.runs(["-k", "dag"], [], [], strict=True)
    assert (first, second) == ("tests", "notebooks")
    assert tests[0] == "tests" and notebooks[:2] == ["--nbval", "--nbval-current-env"]
    for arguments in (tests, notebooks):
        assert arguments[-2:] == ["-k", "dag"] and "loadscope" in arguments
    assert {"notebooks", "solutions"} <= set(notebooks)
    assert [name for name, _ in testing.runs([], ["tests/a.py"], [], strict=True)] == ["tests"]
    assert testing.runs([], [], ["notebooks"], strict=False)[0][1][0] == "--nbval-lax"
    assert "-n" not in testing.runs(["--pdb"], [], [], strict=True)[0][1]


@pytest.mark.parametrize("statuses, expected", [([0, 0], 0), ([5, 0], 0), ([5, 5], 5), ([1, 0], 1), ([0, 1], 1),
                                                ([5, 3], 3)])
def test_one_exit_status(statuses, expected):
    assert testing.outcome(statuses) == expected


@pytest.mark.parametrize("gpu, flag", [(True, "--nbval-lax"), (False, "--nbval")])
def test_both_runs_are_made(monkeypatch, gpu, flag):
    monkeypatch.setattr(testing, "has_usable_gpu", lambda *_: gpu)
    calls = []
    status = testing.run(Path("py"), [], lambda command, more: calls.append((command, more)) or len(calls) - 1)
    assert status == 1 and [command[3] for command, _ in calls] == ["tests", flag]
    assert all(more == {"COURSE_FIXED_OUTPUTS": "1", "OMP_NUM_THREADS": "1"} for _, more in calls)
