"""Set-up of the course with the standard library alone: make ``.venv``, install, start JupyterLab, run the tests."""
