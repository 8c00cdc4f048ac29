"""The labs under nbgrader: it makes the same cells as this course does, and grades what learners hand in.

Needs the ``instructors`` extra (nbgrader is no requirement of the course) and is skipped without it.
"""

import copy
import re
import shutil

import nbformat
import pytest
from conftest import ROOT

from utils.labs import generate

api = pytest.importorskip("nbgrader.api", reason="nbgrader comes with the instructors extra")
traitlets_config = pytest.importorskip("traitlets.config")
pytestmark = pytest.mark.filterwarnings("default")   # nbgrader and what it stands on warn about themselves

POINTS = {
    "01_critical_path": {"check_critical_paths": 3, "check_slack": 2, "check_best_to_halve": 2, "check_lower_bound": 2,
                         "check_double_buffer_graph": 3},
    "02_streams_and_events": {"check_load_while_computing": 2, "check_add_two": 2, "check_sums_per_step": 2,
                              "check_fetch": 2, "check_save_all": 3, "check_explain_gaps": 2},
    "03_serial_mlp": {"check_measure_ms": 2, "check_peak_mib": 2, "check_break_even_rows": 1,
                      "check_serial_onload": 2},
    "04_double_buffered_onload": {"check_double_buffer": 2, "check_BackToBack": 3, "check_Prefetching": 3,
                                  "check_RingOnload": 3, "check_slots_needed": 2, "check_unequal": 2,
                                  "check_missing_edges": 3},
    "05_offload_and_swap": {"check_store_each": 2, "check_three_lanes": 3, "check_swap": 3, "check_place_layers": 3,
                            "check_reload_up_to": 2},
    "06_continuous_batching": {"check_idle_share": 2, "check_speedup": 1, "check_admit": 2, "check_chunk_rows": 3,
                               "check_Releasing": 3},
    "07_async_batching": {"check_two_slots": 2, "check_launch": 3, "check_CarryOver": 3, "check_serve": 3,
                          "check_Stopping": 3, "check_wall_ms": 2},
    "08_cuda_graphs": {"check_graphed": 2, "check_Bucketed": 3, "check_TwoGraphs": 2, "check_carry_over": 2,
                       "check_inside_or_outside": 2},
    "09_hide_the_network": {"check_gather_and_tokens": 2, "check_what_fits": 2, "check_link_queue": 3,
                            "check_stage_order": 3, "check_as_many_as_needed": 2},
}


@pytest.fixture(scope="module", params=list(POINTS))
def course(tmp_path_factory, request):
    """The stem of a lab, and an nbgrader course folder with the released lab and three hand-ins, graded."""
    stem, points = request.param, POINTS[request.param]
    folder = tmp_path_factory.mktemp("course")
    for name in ("utils", "notebooks", "traces", "benchmarks", "solutions"):
        shutil.copytree(ROOT / name, folder / name)
    (folder / "source" / "lab").mkdir(parents=True)
    shutil.copy(ROOT / "solutions" / f"{stem}.ipynb", folder / "source" / "lab")
    config = traitlets_config.Config()
    config.CourseDirectory.root = str(folder)
    config.CourseDirectory.course_id = "course"
    config.ClearSolutions.code_stub = {"python": "\n".join(generate.STUB)}
    grader = api.Gradebook(f"sqlite:///{folder}/gradebook.db")
    from nbgrader.apps import NbGraderAPI
    manager = NbGraderAPI(config=config)
    made = manager.generate_assignment("lab", create=True)
    assert made["success"], made.get("error")
    hand_in(folder, stem, "nobody", solved=())
    hand_in(folder, stem, "some", solved=[name.removeprefix("check_") for name in list(points)[1::2]])
    hand_in(folder, stem, "all", solved=[name.removeprefix("check_") for name in points])
    for student in ("nobody", "some", "all"):
        graded = manager.autograde("lab", student, create=True)
        assert graded["success"], graded.get("error")
    with grader:
        yield stem, folder, {submission.student.id: {grade.name: grade.auto_score for notebook in submission.notebooks
                                               for grade in notebook.grades}
                       for submission in grader.assignment_submissions("lab")}


def hand_in(folder, stem, student, solved):
    """The lab as this course generates it, with some stubs replaced by their solutions."""
    solution = nbformat.read(ROOT / "solutions" / f"{stem}.ipynb", as_version=4)
    lab = copy.deepcopy(generate.generate(solution))
    for cell, full in zip(lab.cells, solution.cells, strict=True):
        if cell.id in solved:
            cell.source = re.sub(r" *### (BEGIN|END) SOLUTION\n?", "", full.source)
    path = folder / "submitted" / student / "lab" / f"{stem}.ipynb"
    path.parent.mkdir(parents=True)
    nbformat.write(lab, path)


def test_nbgrader_generates_the_same_cells(course):
    stem, folder, _ = course
    released = nbformat.read(folder / "release" / "lab" / f"{stem}.ipynb", as_version=4)
    ours = nbformat.read(ROOT / "labs" / f"{stem}.ipynb", as_version=4)
    assert [(cell.id, cell.source) for cell in released.cells] == [(cell.id, cell.source) for cell in ours.cells]


def test_nbgrader_grades_what_was_solved(course):
    stem, _, scores = course
    points = POINTS[stem]
    assert scores["all"] == points
    assert scores["nobody"] == dict.fromkeys(points, 0)
    assert scores["some"] == {name: points[name] if place % 2 else 0 for place, name in enumerate(points)}
