"""The worked answers, which set the targets."""

from __future__ import annotations

from typing import Any


def worked(notebook: str, puzzle: str) -> Any:
    """A worked answer out of ``solutions/``; FileNotFoundError, in words, where the notebook is not there."""
    from ..lessons import LessonError, import_lesson

    try:
        return getattr(import_lesson(f"solutions/{notebook}"), puzzle)
    except LessonError as error:
        raise FileNotFoundError(f"target times come from solutions/{notebook}.ipynb, which must lie beside "
                                f"labs/: {error}") from None
