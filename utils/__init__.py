"""Helper package of the course: everything that lessons use but do not teach.

Importing it needs the standard library alone, so that ``python -m utils`` works before anything is installed.
"""

import sys

if sys.version_info >= (3, 10):  # noqa: UP036  an older Python gets a clear line from `python -m utils` instead
    from .start import start  # noqa: F401
