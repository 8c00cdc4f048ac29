"""The project's text: readable everywhere, true to its own commands, about itself only."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEXT = {".py", ".md", ".txt", ".toml", ".ipynb", ".json", ".cfg", ".yml", ".sh", ""}
MAX_BYTES = 1024**2
HOSTS = ["py" + "pi.org", "python" + "hosted.org", "download.py" + "torch.org", "npm" + "js.", "anaconda" + ".org",
         "deb." + "debian.org"]
PLACES = re.compile(r"(?<![\w./~-])/(?:wor" + r"k|roo" + r"t|tm" + r"p/te" + r"am|op" + r"t/v" + r"env)(?:/|\b)(?!\w)")


def tracked():
    """Files under version control; without git, all files outside ignored folders."""
    try:
        listing = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True)
        names = [name for name in listing.stdout.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        skipped = {".venv", "my", ".git", "__pycache__"}
        names = [path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*")
                 if path.is_file() and not ({path.relative_to(ROOT).parts[0], *path.parts[-2:-1]} & skipped)]
    return [ROOT / name for name in names if (ROOT / name).is_file()]


FILES = tracked()
TEXTS = [path for path in FILES if path.suffix in TEXT]


def name(path):
    return path.relative_to(ROOT).as_posix()


def test_files_are_found():
    found = {name(path) for path in TEXTS}
    assert {"README.md", "requirements.txt", "utils/__main__.py", "tests/test_text_hygiene.py", ".ci/run"} <= found


CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u200b-\u200f\u202a-\u202e\ufeff]")


def unreadable(data):
    """What keeps a file's text from being plain UTF-8 with \\n line ends, in words; "" for a good one."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        return str(error)
    if "\r" in text:
        return "has \\r in its line ends"
    if text and not text.endswith("\n"):
        return "its last line is not ended"
    return f"has invisible characters {sorted(set(CONTROLS.findall(text)))}" if CONTROLS.search(text) else ""


def foreign(text):
    """Package registries by host, and folders of one particular machine, that a text names."""
    return [host for host in HOSTS if host in text.lower()] + [match[0] for match in PLACES.finditer(text)]


def test_text_is_plain():
    assert {name(path): fault for path in TEXTS if (fault := unreadable(path.read_bytes()))} == {}


def test_text_names_no_host_and_no_place():
    assert {name(path): found for path in TEXTS if (found := foreign(path.read_text(encoding="utf-8")))} == {}


def test_unreadable_text_is_caught():
    bad = (b"a\r\n", b"\xff\n", b"no end", "zero\u200bwidth\n".encode(), b"\x1b[0m\n")
    assert all(unreadable(data) for data in bad) and unreadable("\u6d41 fine\n".encode()) == ""


def test_places_are_caught():
    for text in ("see /wor" + "k/main", "in /roo" + "t/.cache", '"/tm' + 'p/te' + 'am"', "from py" + "pi.org"):
        assert foreign(text), text
    for text in ("their /network", "a/work/b", "~/workspace", "the /workers"):
        assert not foreign(text), text


def test_files_are_small():
    assert [name(path) for path in FILES if path.stat().st_size > MAX_BYTES] == []


def test_set_up_is_ascii():
    """Printed on consoles and read by pip in any locale."""
    files = [ROOT / "requirements.txt", ROOT / "utils" / "__main__.py", ROOT / "utils" / "__init__.py",
             *(ROOT / "utils" / "bootstrap").glob("*.py")]
    assert len(files) > 10
    assert [name(path) for path in files if not path.read_bytes().isascii()] == []


def test_set_up_needs_the_standard_library_alone():
    script = ("import sys, utils, utils.bootstrap.commands; own = {'utils', '__main__'}; "
              "print([m for m in sys.modules if m.split('.')[0] not in sys.stdlib_module_names | own])")
    done = subprocess.run([sys.executable, "-S", "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


# README

README = (ROOT / "README.md").read_text(encoding="utf-8")


def commands():
    """Lines of code blocks in README that start a command of the course."""
    blocks = re.findall(r"```\n(.*?)```", README, re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.startswith("python3 -m utils ")]


def test_ci_runs_the_readme_command_and_nothing_else():
    tests = [line for line in commands() if line.startswith("python3 -m utils test")]
    assert len(tests) == 1
    lines = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line and not line.startswith("#")]
    assert lines == ["set -eu", 'cd "$(dirname "$0")/.."', tests[0]]


def test_readme_commands_exist():
    done = subprocess.run([sys.executable, "-m", "utils", "--help"], cwd=ROOT, capture_output=True, text=True)
    known = set(re.findall(r"^python3 -m utils (\w+)", done.stdout, re.MULTILINE))
    assert known == {"lab", "test", "update"}
    assert set(re.findall(r"python3 -m utils (\w+)", README)) <= known


def test_readme_links():
    targets = [target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", README)]
    assert "docs/overview.png" in targets
    dead = [target for target in targets if not re.match(r"https?:", target) and not (ROOT / target).exists()]
    assert dead == []


def test_readme_table_is_honest():
    """A lesson is marked as here exactly if its notebook is, and then linked, as is its lab."""
    rows = re.findall(r"^\| (?:\[)?(\d\d) [^|]*\|[^|]*\|[^|]*\| (yes|planned) \|$", README, re.MULTILINE)
    assert [number for number, _ in rows] == [f"{number:02}" for number in range(11)]
    here = {path.name[:2] for path in (ROOT / "notebooks").glob("[0-9]*.ipynb")}
    assert {number for number, state in rows if state == "yes"} == here
    for path in [*(ROOT / "notebooks").glob("[0-9]*.ipynb"), *(ROOT / "labs").glob("*.ipynb")]:
        assert f"({name(path)})" in README


def test_readme_minutes_are_those_of_the_lessons():
    for path in (ROOT / "notebooks").glob("[0-9]*.ipynb"):
        minutes = re.search(r"\*\*Time\*\* (\d+) minutes(?:, and (\d+) for the lab)?", path.read_text(encoding="utf-8"))
        assert minutes, f"{path.name} says no time"
        row = next(line for line in README.splitlines() if line.startswith("|") and f"({name(path)})" in line)
        assert row.split("|")[3].strip() == " + ".join(filter(None, minutes.groups())), path.name


def test_readme_explains_every_failure_of_the_set_up():
    from utils.bootstrap import install

    rows = [row.strip() for row in re.findall(r"^\| ([^|]+) \|[^|]*\|$", README, re.MULTILINE)]
    for _, line in install.ADVICE:
        assert any(line.startswith(row) for row in rows), line
    for heading in ("Smaller install", "No network", "torch does not use the GPU", "On a machine without a screen"):
        assert f"**{heading}.**" in README
