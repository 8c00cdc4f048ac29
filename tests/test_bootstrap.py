"""``python3 -m utils lab`` and ``test`` on small fake courses: real environments, real pip, no network."""

import copy
import json
import os
import re
import shutil
import sys

import pytest
from fake_course import BROKEN, LAB, FakeCourse, make_wheel

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def lab_of(done):
    """What the fake JupyterLab saw; fails with everything printed when it was not started."""
    lines = [line for line in done.stdout.splitlines() if line.startswith("LAB ")]
    assert done.returncode == 0 and len(lines) == 1, done.stdout + done.stderr
    return json.loads(lines[0][4:])


def last_error(done):
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A course whose set-up has run, in a folder with a space and letters that no code page has."""
    course = FakeCourse(tmp_path_factory.mktemp("a b") / "Kurs \u6d41\u6c34\u7ebf")
    course.first = course.run("lab")
    return course


@pytest.fixture(scope="module")
def as_installed(installed, tmp_path_factory):
    """A copy of all that belongs to it."""
    return shutil.copytree(installed.root.parent, tmp_path_factory.mktemp("kept") / "copy", symlinks=True)


@pytest.fixture
def ready(installed, as_installed):
    """The same course, for a test that changes it: afterwards all is put back where it was."""
    yield copy.copy(installed)
    shutil.rmtree(installed.root.parent)
    shutil.copytree(as_installed, installed.root.parent, symlinks=True)


@pytest.fixture
def course(tmp_path):
    return FakeCourse(tmp_path / "course")


def test_first_start_does_everything(installed):
    lab = lab_of(installed.first)
    assert lab["prefix"] == str(installed.venv) and lab["cwd"] == str(installed.root)
    assert f"--ServerApp.root_dir={installed.root}" in lab["args"]
    assert "--LabApp.default_url=/lab/tree/my/notebooks/00_start_here.ipynb" in lab["args"]
    assert "Installing the course into" in installed.first.stdout and "Ready." in installed.first.stdout
    assert (installed.root / "my" / "notebooks" / "00_start_here.ipynb").is_file()
    assert "announcements" in (installed.venv / "etc/jupyter/labconfig/page_config.json").read_text()


def test_second_start_installs_nothing_and_passes_arguments_on(installed):
    done = installed.run("lab", "--port=9999", "--no-browser")
    assert lab_of(done)["args"][-2:] == ["--port=9999", "--no-browser"]
    assert done.stdout.count("\n") <= 2 and done.stderr == ""


def test_second_start_needs_no_pip(installed):
    done = installed.run("lab", PIP_FIND_LINKS="/nonexistent")
    assert lab_of(done)["prefix"] == str(installed.venv) and done.stderr == ""


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot replace a process")
def test_a_signal_reaches_the_server(installed):
    """JupyterLab takes the place of the command, so whatever stops the one stops the other."""
    with installed.start("lab") as process:
        out, err = process.communicate(timeout=60)
    assert json.loads(out.splitlines()[-1].removeprefix("LAB "))["pid"] == process.pid, err


def test_from_another_folder(installed, tmp_path):
    done = installed.run("lab", entry=(str(installed.root / "utils"),), cwd=tmp_path)
    assert lab_of(done)["cwd"] == str(installed.root)


def test_in_place(installed):
    lab = lab_of(installed.run("lab", "--in-place"))
    assert "--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb" in lab["args"]


@pytest.mark.parametrize("env", [{"PYTHONIOENCODING": "cp1252"},
                                 {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}])
def test_any_console(installed, env):
    done = installed.run("lab", **env)
    assert done.returncode == 0 and "LAB" in done.stdout, done.stderr


def test_variables_that_redirect_python_and_pip_are_ignored(installed, tmp_path):
    (tmp_path / "jupyterlab.py").write_text(BROKEN)
    assert lab_of(installed.run("lab", PYTHONPATH=str(tmp_path), PIP_USER="1"))["prefix"] == str(installed.venv)


def test_changed_requirements_are_installed(ready):
    course = ready
    make_wheel(course.wheels, "jupyterlab", "4.6", main=LAB)
    course.require("jupyterlab>=4.6")
    done = course.run("lab")
    assert "Ready." in done.stdout and "anew" not in done.stdout
    assert list(course.venv.rglob("jupyterlab-4.6.dist-info"))
    assert "Ready." not in course.run("lab").stdout


def test_interrupted_set_up_is_taken_up_again(ready):
    course = ready
    stamp = course.venv / "course.json"
    state = json.loads(stamp.read_text())
    stamp.write_text(json.dumps({**state, "requirements": "being installed"}))
    package = next(course.venv.rglob("site-packages/jupyterlab"))
    (package / "__init__.py").write_text(BROKEN)            # pip takes it for installed
    done = course.run("lab")
    assert "Making .venv anew" in done.stdout and "half a package" in done.stdout
    assert lab_of(done)["prefix"] == str(course.venv)
    assert json.loads(stamp.read_text()) == state


def test_set_up_killed_before_pip(course):
    """Only half an environment is there: a folder with a configuration and no Python."""
    course.venv.mkdir()
    (course.venv / "pyvenv.cfg").write_text("home = /nowhere\n")
    done = course.run("lab")
    assert "Making .venv anew: its Python does not run." in done.stdout
    lab_of(done)


def test_removed_package_is_installed_again(ready):
    shutil.rmtree(next(ready.venv.rglob("jupyterlab-4.5.dist-info")))
    assert "Ready." in ready.run("lab").stdout


@pytest.mark.skipif(os.name == "nt", reason="moves a folder with running files")
def test_moved_course(ready):
    course = ready
    course.root = course.root.rename(course.root.with_name("moved"))
    done = course.run("lab")
    assert "Making .venv anew: the course was moved or copied here." in done.stdout
    assert lab_of(done)["prefix"] == str(course.venv)


def test_environment_made_by_hand_is_completed(course):
    import venv

    venv.create(course.venv, with_pip=True)
    (course.venv / "mine.txt").write_text("keep")
    done = course.run("lab")
    assert "anew" not in done.stdout and "Ready." in done.stdout
    assert lab_of(done)["prefix"] == str(course.venv) and (course.venv / "mine.txt").exists()


def test_two_at_once(course):
    first, second = course.start("lab"), course.start("lab")
    (out_1, err_1), (out_2, err_2) = first.communicate(timeout=120), second.communicate(timeout=120)
    assert first.returncode == second.returncode == 0, err_1 + err_2
    assert (out_1 + out_2).count("Installing the course") == 1
    assert (out_1 + out_2).count("waiting for it") == 1
    assert out_1.count("LAB ") == out_2.count("LAB ") == 1


# failures: one line each, exit status 1, nothing taken for done

def test_no_network(course):
    done = course.run("lab", PIP_NO_INDEX="0", PIP_FIND_LINKS="", PIP_INDEX_URL="http://127.0.0.1:9/", PIP_RETRIES="1")
    assert last_error(done).startswith("Stopped: No connection to the package index")
    assert json.loads((course.venv / "course.json").read_text())["requirements"] == "being installed"
    lab_of(course.run("lab"))


def test_package_that_cannot_be_imported(course):
    make_wheel(course.wheels, "jupyterlab", "4.5", init=BROKEN)
    assert re.match(r"Stopped: Installed, but it cannot be used: jupyterlab: RuntimeError: half a package\. ",
                    last_error(course.run("lab")))


@pytest.mark.skipif(os.name == "nt" or (os.geteuid() == 0 and not shutil.which("setpriv")), reason="needs another user")
def test_read_only_course(course):
    """One line instead of a set-up; a finished set-up runs, without working copies."""
    prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    for folder in (course.root, *course.root.parents):
        if folder.stat().st_uid == os.geteuid() and folder != folder.parent and "pytest" in str(folder):
            folder.chmod(0o555)
    how = {"python": prefix[0], "entry": (*prefix[1:], sys.executable, "-m", "utils")} if prefix else {}
    try:
        if course.run("--help", **how).returncode != 0:
            pytest.skip("another user cannot start this Python")
        assert re.search(r"\.venv cannot be written \(.+\): copy the course", last_error(course.run("lab", **how)))
    finally:
        course.root.chmod(0o755)


def test_here_names_what_is_missing(course):
    course.require("jupyterlab>=99", "no-such-package>=1")
    error = last_error(course.run("lab", "--here"))
    assert re.search(r"lacks jupyterlab \(\S+, needs 99\), no-such-package \(missing\): run .* -m pip install", error)
    assert not course.venv.exists()


def test_here_uses_this_environment(course):
    """The real JupyterLab of the environment that runs the tests."""
    done = course.run("lab", "--here", "--version")
    assert done.returncode == 0 and re.search(r"^\d+\.\d+\.\d+$", done.stdout, re.MULTILINE), done.stderr
    assert not course.venv.exists()


def test_unknown_command_and_help(course):
    done = course.run("labs")
    assert done.returncode == 2 and "There is no command 'labs'" in done.stderr
    for arguments in ((), ("--help",), ("lab", "--help")):
        done = course.run(*arguments)
        assert done.returncode == 0 and "python3 -m utils lab" in done.stdout and done.stdout.isascii()
    assert not course.venv.exists()
