"""Run pip so that a failure ends in one line of advice."""

import collections
import re
import subprocess
import sys
import threading
from pathlib import Path

from utils.bootstrap import machine
from utils.bootstrap.console import Stop

LINES_KEPT = 200
KNOWS_PYTHON_OPTION = (22, 3)   # pip's version that brought --python
AGAIN = "then run the same command again (what was downloaded is kept)"

# First match wins: a name cannot be resolved long before pip says that it found no version.
ADVICE = (
    (r"No space left|Errno 28|Errno 122|WinError 112|not enough space",
     "The disk is full: free some space, {again}."),
    (r"CERTIFICATE_VERIFY_FAILED|SSLError|SSLCertVerification",
     "The download server's certificate was not accepted: a proxy or an old certificate store is in the way. "
     "Ask your network's administrator for its certificate, pass it as PIP_CERT, {again}."),
    (r"ProxyError|Tunnel connection failed|407 Proxy",
     "The proxy refused the connection: check HTTPS_PROXY, {again}."),
    (r"name resolution|getaddrinfo failed|nodename nor servname|Name or service not known|NewConnectionError"
     r"|Network is unreachable|Failed to establish a new connection|ConnectTimeout|ConnectionResetError"
     r"|ReadTimeout|Read timed out|IncompleteRead|Connection broken|No route to host|Connection refused",
     "No connection to the package index: check the network (a proxy goes into HTTPS_PROXY), {again}. "
     "Without any network: README.md, \"No network\"."),
    (r"DO NOT MATCH THE HASHES",
     "A download arrived damaged: run the same command again."),
    (r"No matching distribution found for torch",
     "There is no torch wheel for {machine}. torch needs 64-bit Linux (glibc), 64-bit Windows or macOS on Apple "
     "silicon, and a Python that it supports: look under \"Get Started\" at PyTorch's site."),
    (r"from versions: none",
     "The package index offered nothing for {machine}: check that pip reaches an index (PIP_INDEX_URL, PIP_NO_INDEX), "
     "{again}."),
    (r"No matching distribution found|ResolutionImpossible|Requires-Python",
     "pip found no fitting version for {machine}: see its message above; a newer Python often helps."),
    (r"Permission denied|Errno 13|WinError 5\b|WinError 32\b|Read-only file system",
     "A file in .venv could not be written: close programs that use it (Jupyter, an editor), {again}."),
)


def advice(log: str) -> str:
    """One line for what pip printed on stderr."""
    for pattern, line in ADVICE:
        if re.search(pattern, log):
            return line.format(again=AGAIN, machine=machine.describe())
    return f"pip could not install requirements.txt: its message is above. Mend that, {AGAIN}."


def pip_command(python: Path, has_pip: bool) -> list[str] | None:
    """pip for the environment of ``python``: its own, or this Python's with ``--python``; None without either."""
    if has_pip:
        return [str(python), "-m", "pip"]
    try:
        from pip import __version__ as version
    except ImportError:
        return None
    recent = tuple(int(part) for part in re.findall(r"\d+", version)[:2]) >= KNOWS_PYTHON_OPTION
    return [sys.executable, "-m", "pip", "--python", str(python)] if recent else None


def _forward(stream, kept: "collections.deque[str]") -> None:
    for line in stream:
        kept.append(line)
        sys.stderr.write(line)
        sys.stderr.flush()


def run_pip(pip: list[str], arguments: list[str], env: dict[str, str]) -> None:
    """Run pip with its progress shown. Stop with one line of advice when it fails."""
    command = [*pip, "--no-input", "--disable-pip-version-check", *arguments]
    kept: collections.deque[str] = collections.deque(maxlen=LINES_KEPT)
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True, errors="replace") as process:
        reader = threading.Thread(target=_forward, args=(process.stderr, kept))
        reader.start()
        status = process.wait()
        reader.join()
    if status != 0:
        raise Stop(advice("".join(kept)))
