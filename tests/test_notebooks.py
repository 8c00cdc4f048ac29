"""Every notebook of the course is what it has to be, and the rules that say so catch what they are for."""

import copy
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import notebook_rules as rules
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from utils.bootstrap import testing, workspace
from utils.labs import generate

ROOT = Path(__file__).resolve().parents[1]
CELL_TIMEOUT_S = 180
LESSONS, LABS, SOLUTIONS = (sorted((ROOT / folder).glob("*.ipynb")) for folder in ("notebooks", "labs", "solutions"))
EVERY = [*LESSONS, *LABS, *SOLUTIONS]


def name(path):
    return f"{path.parent.name}/{path.name}"


def test_there_are_notebooks():
    assert {"00_start_here", "01_critical_path"} <= {path.stem for path in LESSONS}
    assert [path.stem for path in LABS] == [path.stem for path in SOLUTIONS], "every lab has its solution"
    assert LABS and {path.stem for path in LABS} < {path.stem for path in LESSONS}, "every lab has its lesson"


@pytest.mark.parametrize("rule", rules.RUN, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("path", [*LESSONS, *SOLUTIONS], ids=name)
def test_lessons_and_solutions(path, rule):
    assert rule(rules.read(path)) == []


@pytest.mark.parametrize("rule", rules.LAB, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("path", LABS, ids=name)
def test_labs(path, rule):
    assert rule(rules.read(path)) == []


@pytest.mark.parametrize("path", EVERY, ids=name)
def test_notebooks_are_valid_and_utf8(path):
    nbformat.validate(rules.read(path))
    assert b"\r" not in path.read_bytes() and path.read_bytes().decode("utf-8").endswith("}\n")


def test_labs_are_what_their_solutions_make():
    pairs = generate.pairs()
    assert len(pairs) == len(SOLUTIONS)
    for solution, lab in pairs:
        same = lab.read_text(encoding="utf-8") == generate.render(solution)
        assert same, f"{name(lab)} is not what its solution makes: run python -m utils.labs.generate"


@pytest.fixture(scope="module")
def my_course(tmp_path_factory):
    """The course with a learner's working copies in my/, without touching this checkout's own."""
    root = tmp_path_factory.mktemp("course")
    for part in ("utils", "notebooks", "labs", "solutions", "docs", "traces", "benchmarks"):
        if (ROOT / part).exists():
            shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    assert workspace.refresh(root) == []
    return root


@pytest.mark.parametrize("path", EVERY, ids=name)
def test_links(path, my_course):
    notebook = rules.read(path)
    assert rules.links_lead_somewhere(notebook, path.parent) == []
    assert rules.links_lead_somewhere(notebook, my_course / "my" / path.parent.name) == [], "seen from a working copy"


@pytest.mark.parametrize("path", LABS, ids=name)
def test_unsolved_lab_runs_to_its_end(path, my_course):
    """As a learner finds it, in my/labs: nothing crashes, each check says that its puzzle is not done yet."""
    lab = rules.read(my_course / "my" / "labs" / path.name)
    client = NotebookClient(lab, timeout=CELL_TIMEOUT_S, kernel_name="python3",
                            resources={"metadata": {"path": str(my_course / "my" / "labs")}})
    client.execute()
    checks = [(number, cell) for number, cell in rules.code_cells(lab) if cell.source.startswith("check(")]
    assert checks
    for number, cell in checks:
        shown = "\n".join(text for output in cell.outputs for text in rules.texts(output))
        assert "not done yet" in shown, f"cell {number} shows {shown!r}"
    assert rules.outputs_cannot_drift(lab) == []


# utils is this course's, whatever else is called utils

@pytest.mark.parametrize("folder", ["notebooks", "labs", "my/notebooks", "my/labs"])
def test_first_cell_finds_this_utils(folder, my_course, tmp_path):
    decoy = "raise ImportError('this is not the utils of the course')\n"
    (tmp_path / "utils").mkdir()
    (tmp_path / "utils" / "__init__.py").write_text(decoy)
    stray = my_course / folder / "utils.py"
    stray.write_text(decoy)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    try:
        done = subprocess.run([sys.executable, "-c", rules.FIRST_CELL + "\nimport utils; print(utils.__file__)"],
                              cwd=stray.parent, env=env, capture_output=True, text=True)
    finally:
        stray.unlink()
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.splitlines()[-1]).samefile(my_course / "utils" / "__init__.py")


# the rules catch what they are for

def good():
    """A small notebook that breaks no rule."""
    cells = [new_markdown_cell("[this](good.ipynb)"),
             new_code_cell(rules.FIRST_CELL, execution_count=1),
             new_code_cell("print(2)", execution_count=2, outputs=[new_output("stream", name="stdout", text="2\n")]),
             new_code_cell("figure", execution_count=3, outputs=[new_output("execute_result", execution_count=3, data={
                 "image/png": "AAAA", "text/plain": "copy |###--|\nbound 2 ms, actual 3 ms"})])]
    return new_notebook(cells=cells, metadata={"language_info": {"name": "python"}})


def cleared(notebook):
    for _, cell in rules.code_cells(notebook):
        cell.execution_count, cell.outputs = None, []


def prints(text, stream="stdout"):
    def spoil(notebook):
        notebook.cells[2].outputs = [new_output("stream", name=stream, text=text)]
    return spoil


def spoil_cell(**changes):
    def spoil(notebook):
        notebook.cells[2].update(changes)
    return spoil


def with_error(notebook):
    notebook.cells[2].outputs = [new_output("error", ename="ValueError", evalue="no", traceback=["ValueError: no"])]


def picture(text):
    def spoil(notebook):
        notebook.cells[3].outputs[0].data["text/plain"] = text
    return spoil


def widget(notebook):
    notebook.cells[3].outputs[0].data["application/vnd.jupyter.widget-view+json"] = {"model_id": "1"}


SPOILED = [
    (rules.executed_in_order, cleared, "cleared"),
    (rules.executed_in_order, lambda notebook: notebook.cells.clear(), "no code cells"),
    (rules.executed_in_order, spoil_cell(execution_count=None), "execution count None, expected 2"),
    (rules.executed_in_order, spoil_cell(execution_count=3), "execution count 3, expected 2"),
    (rules.executed_in_order, lambda notebook: notebook.cells.pop(1), "execution count 2, expected 1"),
    (rules.outputs_cannot_drift, prints("x", "stderr"), "stderr"),
    (rules.outputs_cannot_drift, with_error, "ended with ValueError"),
    (rules.outputs_cannot_drift, prints("saved to /home/ann/x.json"), "a path"),
    (rules.outputs_cannot_drift, prints("C:\\Users\\ann"), "a path"),
    (rules.outputs_cannot_drift, prints("<Axes at 0x7f3a5c0b2d90>"), "an address"),
    (rules.outputs_cannot_drift, prints("torch 2.14"), "a version"),
    (rules.outputs_cannot_drift, prints("3.11.7 (main)"), "a version"),
    (rules.outputs_cannot_drift, prints("UserWarning: slow"), "a warning"),
    (rules.everything_is_compared, spoil_cell(source="# NBVAL_IGNORE_OUTPUT\nprint(2)"), "not compared"),
    (rules.everything_is_compared, spoil_cell(metadata={"tags": ["nbval-skip"]}), "not compared"),
    (rules.everything_is_compared, picture("<Figure size 800x360 with 1 Axes>"), "without text"),
    (rules.shown_without_a_kernel, widget, "widget view"),
    (rules.shown_without_a_kernel, lambda notebook: notebook.metadata.update(widgets={}), "metadata.widgets"),
    (rules.shown_without_a_kernel, lambda book: book.metadata.language_info.update(version="3"), "info.version"),
    (rules.cells_are_short, spoil_cell(source="x = 1\n" * 25 + "y"), "26 lines"),
    (rules.starts_as_agreed, lambda notebook: notebook.cells.pop(1), "not the agreed one"),
]


@pytest.mark.parametrize("rule, spoil, complaint", SPOILED)
def test_rules_catch(rule, spoil, complaint):
    notebook = good()
    assert rule(notebook) == []
    spoil(notebook)
    assert any(complaint in fault for fault in rule(notebook)), rule(notebook)


def test_rules_allow():
    notebook = good()
    marked = "### BEGIN SOLUTION\n" + "x = 1\n" * 25 + "### END SOLUTION"
    notebook.cells[2] = new_code_cell(marked, execution_count=2, metadata={"tags": ["raises-exception"]},
                                      outputs=[new_output("error", ename="ValueError", evalue="no", traceback=[])])
    for rule in rules.RUN:
        assert rule(notebook) == []
    cleared(notebook)
    assert rules.has_no_outputs(notebook) == []


def test_outputs_in_a_lab_are_caught():
    notebook = good()
    assert [fault.split(":")[0] for fault in rules.has_no_outputs(notebook)] == ["cell 1", "cell 2", "cell 3"]
    cleared(notebook)
    notebook.cells[2].execution_count = 7
    assert rules.has_no_outputs(notebook) == ["cell 2: has outputs or an execution count"]


def test_dead_links_are_caught(tmp_path):
    (tmp_path / "good.ipynb").write_text("{}")
    notebook = good()
    assert rules.links_lead_somewhere(notebook, tmp_path) == []
    notebook.cells[0].source += ' ![a](gone.png) <img src="gone.svg"> [b](https://example.org) [c](#part)'
    assert [fault.split()[5] for fault in rules.links_lead_somewhere(notebook, tmp_path)] == ["gone.png", "gone.svg"]


def test_drift_of_a_lab_is_caught():
    solution = rules.read(SOLUTIONS[0])
    drifted = copy.deepcopy(solution)
    drifted.cells[0].source += " One more word."
    assert generate.generate(drifted) != generate.generate(solution)


@pytest.mark.parametrize("printed, status", [("2\n", 0), ("3\n", 1)])
def test_the_command_compares_outputs(printed, status, tmp_path):
    """The very options of ``python3 -m utils test``: a wrong output fails, the right one passes."""
    cell = new_code_cell("print(1 + 1)", execution_count=1, outputs=[new_output("stream", name="stdout", text=printed)])
    path = tmp_path / "small.ipynb"
    nbformat.write(new_notebook(cells=[cell]), path)
    (_, arguments), = testing.runs(["-p", "no:cacheprovider", "-n", "0"], [], [str(path)], strict=True)
    done = subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
