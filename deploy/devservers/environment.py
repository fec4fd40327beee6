"""Private Python environments for the tools that development servers are made of.

Synapse pins some sixty packages, most of them in versions that the gateway does not want; the mail tools
pin a few more. Neither may ever become a dependency of squidbot itself, so each gets a virtual
environment of its own in the user's cache folder, made on first use.

How a half-made environment can never be used: the work happens under a file lock, a leftover without a
marker is thrown away first, and the marker (which names the requirements' hash and the Python) is written
last. The second use only reads the marker.

Every requirement is pinned and hash-checked, and only wheels are installed: nothing is compiled or run
during the installation. Where packages come from is the user's own configuration of uv or pip; nothing is
named here. To renew the pins, see `requirements/README.md`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from devservers.errors import ToolsMissing
from devservers.process import Say, clean_environment, silent, tail

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Tools: TypeAlias = Literal["synapse", "mail", "speech", "listen", "mcp", "dav"]

REQUIREMENTS = Path(__file__).with_name("requirements")
INSTALL_LIMIT_S = 1800.0
PROGRESS_EVERY_S = 10.0
NAMES = {
    "synapse": "Synapse",
    "mail": "the mail tools",
    "speech": "Piper with a voice",
    "listen": "Whisper with its weights",
    "mcp": "the MCP servers of PyPI",
    "dav": "the calendar servers",
}
WHAT = {
    "synapse": "the Matrix server Synapse (150 MB on disk)",
    "mail": "the mail tools (3 MB on disk)",
    "speech": "the speech engine Piper with a voice (300 MB on disk)",
    "listen": "the engine faster-whisper with its weights (700 MB on disk)",
    "mcp": "MCP servers of PyPI (70 MB on disk)",
    "dav": "the calendar servers Radicale and Xandikos (40 MB on disk)",
}


def cache_folder() -> Path:
    """Give the folder for everything that can be made again."""
    own = os.environ.get("SQUIDBOT_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    base = Path(shared).expanduser() if shared else Path.home() / ".cache"
    return base.absolute() / "squidbot"


def prepare_tools(tools: Tools, *, say: Say | None = None, limit_s: float = INSTALL_LIMIT_S) -> Path:
    """Give the Python of a tool environment; make it, if it is not there yet, within a time."""
    requirements = REQUIREMENTS / f"{tools}.txt"
    wanted = _marker_text(requirements)
    parent = cache_folder() / "tools"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = parent / f"{tools}-py{version}"
    python = folder / "bin" / "python"
    if _is_ready(folder, wanted):
        return python
    parent.mkdir(parents=True, exist_ok=True)
    report = say or silent
    with _locked(parent / f"{folder.name}.lock", report, tools):
        if not _is_ready(folder, wanted):
            _make(folder, requirements, tools=tools, say=report, limit_s=limit_s)
            (folder / "ready.json").write_text(wanted)
    return python


def _marker_text(requirements: Path) -> str:
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()
    return json.dumps({"requirements": digest, "python": sys.version, "base": sys.base_prefix})


def _is_ready(folder: Path, wanted: str) -> bool:
    try:
        return (folder / "ready.json").read_text() == wanted and (folder / "bin" / "python").exists()
    except OSError:
        return False


@contextlib.contextmanager
def _locked(path: Path, say: Say, tools: Tools) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say(f"waiting for another squidbot that installs {NAMES[tools]}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(folder: Path, requirements: Path, *, tools: Tools, say: Say, limit_s: float) -> None:
    """Install with uv where it is at hand, otherwise (or when that fails) with pip."""
    log = folder.with_suffix(folder.suffix + ".log")
    log.write_text("")
    say(f"installing {WHAT[tools]} into {folder}, once")
    started = time.monotonic()
    uv = os.environ.get("UV") or shutil.which("uv")
    ways = [_pip_commands(folder, requirements)]
    if uv:
        ways.insert(0, _uv_commands(uv, folder, requirements))
    for way in ways:
        shutil.rmtree(folder, ignore_errors=True)
        if all(_run(command, log=log, say=say, tools=tools, until=started + limit_s) for command in way):
            say(f"{NAMES[tools]}: installed in {time.monotonic() - started:.0f} s")
            return
    shutil.rmtree(folder, ignore_errors=True)
    raise ToolsMissing(
        f"could not install {WHAT[tools]}. It needs a package index (see the configuration of uv or pip) and "
        f"Python's venv module. The end of {log}:\n{tail(log)}"
    )


def _uv_commands(uv: str, folder: Path, requirements: Path) -> list[list[str]]:
    return [
        [uv, "venv", "--quiet", "--no-project", "--python", sys.executable, str(folder)],
        [
            *(uv, "pip", "install", "--quiet", "--python", str(folder / "bin" / "python")),
            *("--only-binary", ":all:", "--require-hashes", "--no-deps", "-r", str(requirements)),
        ],
    ]


def _pip_commands(folder: Path, requirements: Path) -> list[list[str]]:
    return [
        [sys.executable, "-m", "venv", str(folder)],
        [
            *(str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input"),
            *("--disable-pip-version-check", "--only-binary", ":all:", "--require-hashes", "--no-deps"),
            *("-r", str(requirements)),
        ],
    ]


def _run(command: Sequence[str], *, log: Path, say: Say, tools: Tools, until: float) -> bool:
    """Run one step until a time; its words go to the log."""
    environment = clean_environment({"UV_PYTHON_DOWNLOADS": "never"})
    started = time.monotonic()
    with log.open("ab") as output:
        try:
            step = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=log.parent,
                env=environment,
            )
        except OSError as error:
            output.write(f"{command[0]}: {error}\n".encode())
            return False
    with step:
        while True:
            try:
                return step.wait(max(0.0, min(PROGRESS_EVERY_S, until - time.monotonic()))) == 0
            except subprocess.TimeoutExpired:
                if time.monotonic() >= until:
                    step.kill()
                    log.write_text(f"{log.read_text()}given up: it takes too long\n")
                    return False
                say(f"{NAMES[tools]}: still installing ({time.monotonic() - started:.0f} s)")
            except BaseException:
                step.kill()
                raise
