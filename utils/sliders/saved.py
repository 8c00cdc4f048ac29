"""What a notebook keeps of its widgets when it is committed."""

from __future__ import annotations

from typing import Any

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def strip_widget_state(notebook: Any) -> Any:
    """Remove widget views, ``metadata.widgets`` and ``language_info.version`` from a notebook, in place; return it.

    Without a kernel a widget view shows an error message even beside a picture; without the view, readers show the
    picture. ``notebook``: a nbformat v4 NotebookNode or the dict of its JSON.
    """
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            for part in ("data", "metadata"):
                output.get(part, {}).pop(WIDGET_VIEW, None)
    notebook["metadata"].pop("widgets", None)
    notebook["metadata"].get("language_info", {}).pop("version", None)
    return notebook
