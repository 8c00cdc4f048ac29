"""Run notebooks and store their outputs: ``python -m utils.refresh [notebooks/01_critical_path.ipynb …]``.

For whoever edits the course: without names it runs every lesson and solution, then makes the labs. What is stored
is what strict nbval compares, without widget state and without the version of the Python that ran it.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CELL_TIMEOUT_S = 300


def run_notebook(path: Path) -> None:
    """Execute a notebook from its own folder in a fresh kernel and store its outputs; on an error write nothing."""
    import nbformat
    from nbclient import NotebookClient

    from .sliders import strip_widget_state

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=CELL_TIMEOUT_S, kernel_name="python3", record_timing=False,
                            coalesce_streams=True, resources={"metadata": {"path": str(path.parent)}})
    client.execute()
    notebook.metadata = nbformat.from_dict({
        "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
        "language_info": {"name": "python", "file_extension": ".py", "mimetype": "text/x-python"}})
    strip_widget_state(notebook)
    nbformat.validate(notebook)
    path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8", newline="\n")


def main(names: list[str]) -> int:
    """Run the named notebooks, or all lessons and solutions, and make the labs from the solutions."""
    from .labs import generate

    every = [path for folder in ("notebooks", "solutions") for path in sorted((ROOT / folder).glob("*.ipynb"))]
    for path in [Path(name).resolve() for name in names] or every:
        print(path.parent.name, path.name, flush=True)
        run_notebook(path)
    return generate.main([])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
