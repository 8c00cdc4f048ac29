"""What a person reads: plain lines, and the one error that ends a command."""

import sys


class Stop(Exception):
    """A reason to end the command; its text is one line: what is wrong and what to do."""


def harden_output() -> None:
    """Let any path be printed on any console: a Windows cp1252 or a C locale cannot show all letters."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def say(line: str) -> None:
    print(line, flush=True)
