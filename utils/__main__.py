"""Entry of ``python3 -m utils``; must be readable by any Python, so that an old one gets a clear line."""

# ruff: noqa: UP030, UP032  f-strings do not exist in the Pythons that are refused here

import os
import sys

NEEDED = (3, 10)


def newer_python():
    """Name of an installed Python that is new enough, or None."""
    import subprocess

    for minor in range(14, NEEDED[1] - 1, -1):
        name = "python3.{0}".format(minor)
        try:
            with open(os.devnull, "w") as null:
                if subprocess.call([name, "-c", ""], stdout=null, stderr=null) == 0:
                    return name
        except OSError:
            pass
    return None


def refuse_old_python():
    found = newer_python()
    if found:
        advice = "This machine has {0}: run  {0} -m utils {1}".format(found, " ".join(sys.argv[1:]))
    else:
        advice = "Install a newer Python (python.org, or your system's packages) and start with that one."
    sys.exit("Python {0}.{1} or newer is needed, this is Python {2} ({3}). {4}".format(
        NEEDED[0], NEEDED[1], sys.version.split()[0], sys.executable, advice))


if sys.version_info < NEEDED:
    refuse_old_python()

# `python3 path/to/course/utils lab` works too: then the folder on sys.path is this one, not the repository root
ROOM = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(ROOM)
sys.path[:] = [ROOT] + [entry for entry in sys.path if os.path.abspath(entry or ".") not in (ROOM, ROOT)]

from utils.bootstrap.commands import main  # noqa: E402  needs the path above

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
