"""A learner's work survives every update of the course."""

import json
import shutil
import subprocess

import pytest

from utils.bootstrap import update, workspace
from utils.bootstrap.console import Stop


def notebook(*cells, output=None):
    outputs = [{"output_type": "stream", "name": "stdout", "text": output}] if output else []
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [
        {"cell_type": "code", "source": cell, "outputs": outputs, "execution_count": None, "metadata": {}, "id": str(i)}
        for i, cell in enumerate(cells)]})


@pytest.fixture
def root(tmp_path):
    for folder in workspace.FOLDERS:
        (tmp_path / folder).mkdir()
    (tmp_path / "labs" / "01.ipynb").write_text(notebook("stub"))
    (tmp_path / "notebooks" / "00.ipynb").write_text(notebook("lesson"))
    (tmp_path / "notebooks" / "images").mkdir()
    (tmp_path / "notebooks" / "images" / "a.png").write_bytes(b"\x89PNG")
    (tmp_path / "notebooks" / ".ipynb_checkpoints").mkdir()
    (tmp_path / "notebooks" / ".ipynb_checkpoints" / "00-checkpoint.ipynb").write_text("{}")
    return tmp_path


def files(root):
    return sorted(path.relative_to(root / "my").as_posix() for path in (root / "my").rglob("*")
                  if path.is_file() and not path.name.startswith("."))


ALL = ["labs/01.ipynb", "notebooks/00.ipynb", "notebooks/images/a.png"]


def test_first_start_copies_everything_in_the_same_layout(root):
    assert workspace.refresh(root) == [] and files(root) == ALL
    assert (root / "my/labs/01.ipynb").read_text() == notebook("stub")


def test_lessons_are_copied_without_outputs_and_follow_the_course_all_the_same(root):
    lesson = root / "notebooks/00.ipynb"
    ran = json.loads(lesson.read_text())
    cell = {"cell_type": "code", "source": "1", "metadata": {}, "outputs": [{"data": {}}], "execution_count": 1}
    ran["cells"].append(cell)
    lesson.write_text(json.dumps(ran))
    workspace.refresh(root)
    copied = json.loads((root / "my/notebooks/00.ipynb").read_text())["cells"][-1]
    assert copied == {**cell, "outputs": [], "execution_count": None}
    assert workspace.refresh(root) == [] and not (root / "my/earlier").exists()


def test_edits_stay_when_the_course_does_not_change(root):
    workspace.refresh(root)
    (root / "my/labs/01.ipynb").write_text(notebook("answer"))
    assert workspace.refresh(root) == [] and files(root) == ALL
    assert (root / "my/labs/01.ipynb").read_text() == notebook("answer")


def test_unedited_copies_follow_the_course(root):
    workspace.refresh(root)
    (root / "labs/01.ipynb").write_text(notebook("stub 2"))
    assert workspace.refresh(root) == []
    assert (root / "my/labs/01.ipynb").read_text() == notebook("stub 2")


def test_edited_copies_get_the_new_version_beside_them_once(root):
    workspace.refresh(root)
    (root / "my/labs/01.ipynb").write_text(notebook("answer"))
    (root / "labs/01.ipynb").write_text(notebook("stub 2"))
    assert workspace.refresh(root) == [
        "my/labs/01.ipynb has your edits; the course's new version is beside it: my/labs/01.new.ipynb"]
    assert (root / "my/labs/01.ipynb").read_text() == notebook("answer")
    assert (root / "my/labs/01.new.ipynb").read_text() == notebook("stub 2")
    (root / "my/labs/01.new.ipynb").unlink()
    assert workspace.refresh(root) == [] and files(root) == ALL


def test_work_in_a_new_version_stays_too(root):
    workspace.refresh(root)
    (root / "my/labs/01.ipynb").write_text(notebook("answer"))
    (root / "labs/01.ipynb").write_text(notebook("stub 2"))
    workspace.refresh(root)
    (root / "labs/01.ipynb").write_text(notebook("stub 3"))
    workspace.refresh(root)                                    # nobody worked in .new: it is replaced
    assert (root / "my/labs/01.new.ipynb").read_text() == notebook("stub 3")
    (root / "my/labs/01.new.ipynb").write_text(notebook("answer 3"))
    (root / "labs/01.ipynb").write_text(notebook("stub 4"))
    assert workspace.refresh(root)[0].endswith("my/labs/01.new2.ipynb")
    texts = [(root / "my/labs" / name).read_text() for name in ("01.ipynb", "01.new.ipynb", "01.new2.ipynb")]
    assert texts == [notebook("answer"), notebook("answer 3"), notebook("stub 4")]


def test_a_run_is_no_edit_but_its_outputs_are_kept(root):
    workspace.refresh(root)
    (root / "my/notebooks/00.ipynb").write_text(notebook("lesson", output="my GPU: 3 ms"))
    assert workspace.refresh(root) == []
    assert "my GPU" in (root / "my/notebooks/00.ipynb").read_text(), "no new version: nothing is touched"
    (root / "notebooks/00.ipynb").write_text(notebook("lesson 2"))
    assert workspace.refresh(root) == []
    assert json.loads((root / "my/notebooks/00.ipynb").read_text()) == json.loads(notebook("lesson 2"))
    kept = list((root / "my/earlier/notebooks").iterdir())
    assert len(kept) == 1 and "my GPU: 3 ms" in kept[0].read_text()


def test_deleting_a_copy_brings_a_fresh_one(root):
    workspace.refresh(root)
    (root / "my/labs/01.ipynb").write_text(notebook("answer"))
    workspace.refresh(root)
    (root / "my/labs/01.ipynb").unlink()
    workspace.refresh(root)
    assert (root / "my/labs/01.ipynb").read_text() == notebook("stub")


def test_files_that_left_the_course(root):
    workspace.refresh(root)
    (root / "my/labs/01.ipynb").write_text(notebook("answer"))
    (root / "labs/01.ipynb").unlink()
    (root / "notebooks/00.ipynb").unlink()
    workspace.refresh(root)
    assert (root / "my/labs/01.ipynb").read_text() == notebook("answer")
    assert not (root / "my/notebooks/00.ipynb").exists()


@pytest.mark.parametrize("state", ["", "[1]", "{broken"])
def test_lost_state_never_costs_work(root, state):
    workspace.refresh(root)
    (root / "my/labs/01.ipynb").write_text(notebook("answer"))
    (root / "my/.course.json").write_text(state)
    lines = workspace.refresh(root)
    assert (root / "my/labs/01.ipynb").read_text() == notebook("answer") and len(lines) == 1
    assert workspace.refresh(root) == []


def test_own_files_are_left_alone(root):
    workspace.refresh(root)
    (root / "my/labs/mine.ipynb").write_text("anything")
    workspace.refresh(root)
    assert (root / "my/labs/mine.ipynb").read_text() == "anything"


# git

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(folder, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def clone(root):
    """A learner's clone of a course that has moved on since."""
    (root / ".gitignore").write_text("/my/\n.ipynb_checkpoints/\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "one")
    target = root.parent / f"{root.name}-clone"
    git(root, "clone", "-q", str(root), str(target))
    (root / "labs/01.ipynb").write_text(notebook("stub 2"))
    git(root, "commit", "-q", "-a", "-m", "two")
    return target


@needs_git
def test_pull_is_never_blocked_by_work_in_my(clone):
    workspace.refresh(clone)
    (clone / "my/labs/01.ipynb").write_text(notebook("answer"))
    git(clone, "pull", "-q", "--ff-only")
    assert git(clone, "status", "--porcelain") == ""
    assert len(workspace.refresh(clone)) == 1
    assert (clone / "my/labs/01.ipynb").read_text() == notebook("answer")


@needs_git
def test_update_moves_edits_of_the_course_itself_aside(clone, capsys):
    (clone / "labs/01.ipynb").write_text(notebook("answer in place"))
    with pytest.raises(subprocess.CalledProcessError):
        git(clone, "pull", "-q", "--ff-only")
    assert update.run(clone) == 0
    assert (clone / "my/labs/01.mine.ipynb").read_text() == notebook("answer in place")
    assert (clone / "labs/01.ipynb").read_text() == notebook("stub 2") == (clone / "my/labs/01.ipynb").read_text()
    assert "labs/01.ipynb has your edits: kept as my/labs/01.mine.ipynb" in capsys.readouterr().out
    (clone / "labs/01.ipynb").write_text(notebook("again"))
    update.run(clone)
    assert (clone / "my/labs/01.mine2.ipynb").read_text() == notebook("again")


@needs_git
def test_update_reports_what_git_says(root):
    with pytest.raises(Stop, match="did not come from git"):
        update.run(root)
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "one")
    with pytest.raises(Stop, match=r"^git pull: "):
        update.run(root)
