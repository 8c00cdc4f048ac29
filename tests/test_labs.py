"""Labs from solutions, verdicts, and importing what a lesson teaches."""

import threading
import time

import nbformat
import pytest
import torch
from nbformat import v4

from utils import simgpu
from utils.labs import generate
from utils.labs.check import Check, Refused, call
from utils.labs.defaults import usual_defaults
from utils.labs.memory import mark, taken_since
from utils.labs.verdict import Tick, Verdict
from utils.labs.watching import QUERIES, watching
from utils.lessons import LessonError, import_lesson

SOLUTION = {"nbgrader": {"solution": True, "grade": False, "grade_id": "a", "locked": False, "task": False,
                         "schema_version": 3}}


GRADED = {"nbgrader": {**SOLUTION["nbgrader"], "solution": False, "grade": True}}


def notebook(*sources, metadata=SOLUTION):
    cells = []
    for number, source in enumerate(sources):
        if "BEGIN HIDDEN TESTS" in source and metadata:
            metadata = GRADED
        cell = v4.new_code_cell(source, metadata=metadata, execution_count=number + 1,
                                outputs=[v4.new_output("stream", text="seen")])
        cell.id = f"cell-{number}"
        cells.append(cell)
    return v4.new_notebook(cells=cells)


def test_a_solution_becomes_a_stub_at_its_own_indentation():
    lab = generate.generate(notebook(
        "def f(x):\n    y = x\n    ### BEGIN SOLUTION\n    for i in y:\n        y += i\n"
        "    ### END SOLUTION\n    return y",
        "check(f)\n### BEGIN HIDDEN TESTS\nassert check.passed(f)\n### END HIDDEN TESTS"))
    assert lab.cells[0].source == (
        "def f(x):\n    y = x\n    # YOUR CODE HERE\n    raise NotImplementedError()\n    return y")
    assert lab.cells[1].source == "check(f)"
    assert [cell.id for cell in lab.cells] == ["cell-0", "cell-1"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in lab.cells)
    assert lab.cells[0].metadata == SOLUTION


def test_generating_leaves_the_solution_as_it_was():
    solution = notebook("### BEGIN SOLUTION\nx = 1\n### END SOLUTION")
    generate.generate(solution)
    assert solution == notebook("### BEGIN SOLUTION\nx = 1\n### END SOLUTION")


@pytest.mark.parametrize(("source", "says"), [
    ("x = 1", "solution by its nbgrader metadata but has no"),
    ("### BEGIN SOLUTION\nx = 1", "cell 0: '### BEGIN SOLUTION' is never ended"),
    ("x = 1\n### END SOLUTION", "cell 0: '### END SOLUTION' without a beginning"),
    ("### BEGIN SOLUTION\n### BEGIN SOLUTION\n### END SOLUTION", "inside another one"),
    ("### BEGIN SOLUTION\n### END SOLUTION\n### BEGIN SOLUTION\n### END SOLUTION", "2 solutions: split it"),
    ("### BEGIN HIDDEN TESTS\nx", "'### BEGIN HIDDEN TESTS' is never ended"),
])
def test_markers_out_of_order_are_refused(source, says):
    with pytest.raises(generate.LabError, match=says):
        generate.generate(notebook(source))


def test_a_solution_without_nbgrader_metadata_is_refused():
    with pytest.raises(generate.LabError, match="nbgrader metadata does not say so"):
        generate.generate(notebook("### BEGIN SOLUTION\n### END SOLUTION", metadata={}))


@pytest.mark.parametrize("mark", ["# BEGIN SOLUTION", "###BEGIN SOLUTION", "### begin solution", "### END HIDDEN TEST"])
def test_a_misspelt_marker_leaks_nothing(mark):
    with pytest.raises(generate.LabError, match="is no marker"):
        generate.generate(notebook(f"### BEGIN SOLUTION\nx = 1\n### END SOLUTION\n{mark}\nsecret = 1"))
    text = notebook("### BEGIN SOLUTION\nx = 1\n### END SOLUTION")
    text.cells.append(v4.new_markdown_cell(f"{mark}\nsecret"))
    with pytest.raises(generate.LabError, match=r"cell 1: .* is no marker"):
        generate.generate(text)


def test_hidden_tests_need_a_graded_cell():
    with pytest.raises(generate.LabError, match="hidden tests but is not graded"):
        generate.generate(notebook("### BEGIN HIDDEN TESTS\n### END HIDDEN TESTS", metadata={}))


def test_every_lab_is_what_its_solution_makes():
    for solution, lab in generate.pairs():
        assert lab.is_file(), f"labs/{lab.name} is missing: run python -m utils.labs.generate"
        assert lab.read_text(encoding="utf-8") == generate.render(solution), f"labs/{lab.name}: generate it again"


def test_pairs_need_solutions_and_no_orphans(tmp_path):
    with pytest.raises(generate.LabError, match="no solution notebooks"):
        generate.pairs(tmp_path)
    for folder, name in (("solutions", "01.ipynb"), ("labs", "01.ipynb"), ("labs", "09.ipynb")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_text("{}")
    with pytest.raises(generate.LabError, match=r"labs without a solution to make them from: 09\.ipynb"):
        generate.pairs(tmp_path)


def test_writing_and_checking_labs(tmp_path, monkeypatch, capsys):
    (tmp_path / "solutions").mkdir()
    (tmp_path / "labs").mkdir()
    nbformat.write(notebook("### BEGIN SOLUTION\nx = 1\n### END SOLUTION"), tmp_path / "solutions" / "01.ipynb")
    monkeypatch.setattr(generate.pairs, "__defaults__", (tmp_path,))
    assert generate.main(["--check"]) == 1
    assert not (tmp_path / "labs" / "01.ipynb").exists()
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    (tmp_path / "labs" / "01.ipynb").write_text("edited by hand")
    assert generate.main(["--check"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "differ from their solutions: 01.ipynb", "written: 01.ipynb", "every lab is what its solution makes",
        "differ from their solutions: 01.ipynb"]


def test_points_and_ids_of_every_solution_are_fit_for_grading():
    for solution, _ in generate.pairs():
        cells = nbformat.read(solution, as_version=4).cells
        marked = [cell.metadata["nbgrader"] for cell in cells if "nbgrader" in cell.metadata]
        assert len({mark["grade_id"] for mark in marked}) == len(marked)
        assert sum(mark["solution"] for mark in marked) == sum(mark["grade"] for mark in marked) >= 3
        assert all(mark["points"] > 0 and mark["locked"] for mark in marked if mark["grade"])


def test_every_puzzle_has_three_hints():
    for solution, _ in generate.pairs():
        cells = nbformat.read(solution, as_version=4).cells
        for number, cell in enumerate(cells):
            if cell.metadata.get("nbgrader", {}).get("solution"):
                text = cells[number - 1].source
                assert [text.count(f"<summary>Hint {step}</summary>") for step in (1, 2, 3)] == [1, 1, 1]


# --- verdicts ------------------------------------------------------------------------------------------------------

def test_a_verdict_passes_only_when_every_tick_holds():
    assert not Verdict("p").passed
    assert Verdict("p", [Tick("correct", True)]).passed
    assert not Verdict("p", [Tick("correct", True), Tick("time", None)]).passed
    assert not Verdict("p", [Tick("correct", True), Tick("time", False)]).passed


def test_a_verdict_fits_80_columns_and_shows_everything():
    verdict = Verdict("p", [Tick("correct", False, "word " * 40)], says="first\n" + "second " * 30,
                      advice=["later " * 20], tried="one; two")
    text = str(verdict)
    assert max(map(len, text.splitlines())) <= 80
    for part in ("p: not yet right", "[ ] correct", "first", "second", "Advice: later", "Tried on: one; two"):
        assert part in text
    assert verdict._repr_mimebundle_() == ({"text/plain": text}, {})


def test_call_turns_a_learners_error_into_a_verdict():
    with pytest.raises(Refused) as refused:
        call("f", lambda x: 1 / x, 0, on="zero")
    assert "it raised ZeroDivisionError on zero" in str(refused.value.verdict)
    with pytest.raises(Refused) as refused:
        call("f", lambda: None, on="nothing")
    assert "f returned None on nothing" in str(refused.value.verdict)


def test_passed_judges_again_when_the_function_changed():
    def judge(answer):
        return Verdict("f", [Tick("correct", answer() == 1)])
    check = Check({"f": judge})

    def make(value):
        def f():
            return value
        return f

    right, wrong = make(1), make(2)
    check.judge(right)
    assert check.passed(right) and not check.passed(wrong) and check.passed(right)


# --- lessons -------------------------------------------------------------------------------------------------------

def test_a_lesson_hands_out_what_it_teaches():
    lesson = import_lesson("01_critical_path")
    assert lesson.critical_path(lesson.article_graph()) == (list("SBCDFT"), 16)
    assert import_lesson("01_critical_path") is lesson


def test_unknown_and_broken_lessons_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("utils.lessons.ROOT", tmp_path)
    (tmp_path / "notebooks").mkdir()
    with pytest.raises(LessonError, match=r"no notebook 'nine' in notebooks/ \(there: none\)"):
        import_lesson("nine")
    (tmp_path / "notebooks" / "cut.ipynb").write_text('{"cells": [')
    with pytest.raises(LessonError, match=r"notebooks/cut\.ipynb is not a notebook"):
        import_lesson("cut")
    nbformat.write(notebook("x = 1", metadata={}), tmp_path / "notebooks" / "plain.ipynb")
    with pytest.raises(LessonError, match="exports nothing"):
        import_lesson("plain")
    nbformat.write(notebook("x = 1 / 0", metadata={"tags": ["export"]}), tmp_path / "notebooks" / "broken.ipynb")
    with pytest.raises(LessonError, match=r"broken\.ipynb, cell 0> fails when imported: ZeroDivisionError"):
        import_lesson("broken")


def test_exported_cells_run_as_they_do_in_the_notebook(tmp_path, monkeypatch):
    monkeypatch.setattr("utils.lessons.ROOT", tmp_path)
    (tmp_path / "notebooks").mkdir()
    source = "from dataclasses import dataclass\n\n@dataclass\nclass Point:\n    x: int = 0"
    nbformat.write(notebook(source, metadata={"tags": ["export"]}), tmp_path / "notebooks" / "point.ipynb")
    point = import_lesson("point").Point
    assert point(3).x == 3
    assert point.__annotations__ == {"x": int}   # not the text "int"


def test_a_lab_with_nothing_to_solve_is_refused():
    with pytest.raises(generate.LabError, match="nothing to solve"):
        generate.generate(notebook("x = 1", metadata={}))


def _settings():
    products = torch.backends.cuda.matmul
    return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_num_threads(),
            torch.get_deterministic_debug_mode(), torch.get_float32_matmul_precision(),
            getattr(products, "fp32_precision", None), products.allow_tf32)


def _enters_inference_mode():
    _left_open.append(torch.inference_mode())
    _left_open[-1].__enter__()


_left_open = []


@pytest.mark.parametrize("change", [
    lambda: torch.set_grad_enabled(False), _enters_inference_mode, lambda: torch.set_num_threads(5),
    lambda: torch.use_deterministic_algorithms(True), lambda: torch.set_float32_matmul_precision("medium"),
    lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True)])
def test_what_an_answer_sets_is_set_back(change):
    before = _settings()
    with usual_defaults():
        change()
        assert _settings() != before
    assert _settings() == before
    _left_open.clear()
    assert _settings() == before


def test_without_gradients_in_the_notebook():
    with torch.no_grad():
        with usual_defaults():
            assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        assert not torch.is_grad_enabled()
    with torch.inference_mode():
        with usual_defaults():
            assert not torch.ones(1).is_inference()
        assert torch.ones(1).is_inference()


# --- what is watched -----------------------------------------------------------------------------------------------

def test_asking_takes_longer_and_longer():
    with simgpu.session(simgpu.H200) as gpu, watching(gpu) as calls:
        torch.cuda._sleep(10**10)   # 10 s
        stream = torch.cuda.current_stream()
        while not stream.query():
            assert calls.queries < 100 * QUERIES
        assert calls.queries > QUERIES and simgpu.clock() > 1e7


def test_a_few_questions_take_their_usual_time():
    with simgpu.session(simgpu.H200) as gpu, watching(gpu):
        torch.cuda._sleep(10**9)
        before = simgpu.clock()
        for _ in range(QUERIES):
            torch.cuda.current_stream().query()
        assert simgpu.clock() - before == pytest.approx(QUERIES * simgpu.H200.query_ns / 1000)


def test_sleep_takes_the_simulated_time_of_its_own_thread_alone():
    with simgpu.session(simgpu.H200) as gpu:
        sleep, before = time.sleep, simgpu.clock()
        with watching(gpu):
            time.sleep(3600)
            other = threading.Thread(target=lambda: time.sleep(0.01))
            other.start()
            other.join()
            with pytest.raises(ValueError):
                time.sleep(-1)
        assert simgpu.clock() - before == pytest.approx(3600e6)
        assert time.sleep is sleep and "query" not in vars(gpu.machine)


def test_streams_that_waited_for_streams():
    with simgpu.session(simgpu.H200) as gpu, watching(gpu) as calls:
        one, other, third = (torch.cuda.Stream() for _ in range(3))
        one.wait_stream(other)
        third.wait_event(one.record_event())
        torch.cuda._sleep(1)
        one.wait_stream(stream=third)
    assert [wait[:2] for wait in calls.waits] == [(one.stream_id, other.stream_id), (one.stream_id, third.stream_id)]
    assert calls.waits[0].at < calls.waits[1].at


def test_memory_is_read_from_the_record_without_workspaces():
    with simgpu.session(simgpu.A100.scaled(1 / 8)) as gpu:
        x = torch.ones(256, 256, device="cuda")
        before = mark(gpu)
        torch.empty_like(x)
        y = x @ x
        torch.cuda.reset_peak_memory_stats()
        del y
        taken, size = taken_since(gpu, before), 4 * 256**2
        assert taken == (size, 0, 2, 2 * size)
        busy, y = torch.cuda.Stream(), x + 1
        with torch.cuda.stream(busy):
            torch.cuda._sleep(10**9)
        y.record_stream(busy)
        del y
        z = x + 2
        assert taken_since(gpu, before) == (2 * size, size, 4, 4 * size) and z is not None
