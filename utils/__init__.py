"""Helper package of the course: everything that lessons use but do not teach.

Importing it needs the standard library alone, so that ``python -m utils`` works before anything is installed.
"""
