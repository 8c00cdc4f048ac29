"""Bring the course up to date with git, when a learner has edited the course's own files, too."""

import shutil
import subprocess
from pathlib import Path

from utils.bootstrap import workspace
from utils.bootstrap.console import Stop, say


def git(root: Path, *arguments: str) -> str:
    """Output of a git command. Stop with git's last line when it fails."""
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, encoding="utf-8",
                          errors="replace")
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise Stop(f"git {arguments[0]}: {last}")
    return done.stdout


def edited(root: Path) -> list[str]:
    """Files of notebooks/, labs/ and solutions/ that differ from the commit that is checked out."""
    listing = git(root, "diff", "HEAD", "--name-only", "-z", "--diff-filter=d", "--", *workspace.FOLDERS)
    return [name for name in listing.split("\0") if name]


def _place_for(root: Path, name: str) -> Path:
    """Free name in my/ for an edited file of the course."""
    path, number = Path(name), 1
    target = root / "my" / path.with_name(f"{path.stem}.mine{path.suffix}")
    while target.exists():
        number += 1
        target = target.with_name(f"{path.stem}.mine{number}{path.suffix}")
    return target


def set_aside(root: Path, names: list[str]) -> None:
    """Copy edited files of the course to my/, then give the originals back to git."""
    for name in names:
        target = _place_for(root, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, target)
        git(root, "checkout", "HEAD", "--", name)
        say(f"{name} has your edits: kept as {target.relative_to(root).as_posix()}")


def run(root: Path) -> int:
    if shutil.which("git") is None or not (root / ".git").exists():
        raise Stop("This copy of the course did not come from git: get the new one, and move your folder my/ into it.")
    set_aside(root, edited(root))
    git(root, "pull", "--ff-only", "--quiet")
    for line in workspace.refresh(root):
        say(line)
    say(f"The course is at {git(root, 'log', '-1', '--format=%h, %cs').strip()}.")
    return 0
