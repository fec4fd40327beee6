"""
What a new home begins with: the address of its console, and the files of its workspace, which are comments
that say what belongs there, so none changes a prompt.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

from agent_core.files import make_folder, write_new
from agent_core.persona import FILE_NAME, STARTER

_CHECKLIST = """\
<!--
What should your assistant look at from time to time? It reads this list at each check-in and writes to you
only if there is something to say. For example:

- [ ] Is there frost in the forecast for the next night?
-->
"""
_PORTS = range(8811, 8831)  # of the first twenty homes on one machine
_FILES = {FILE_NAME: STARTER, "HEARTBEAT.md": _CHECKLIST}


def begin_workspace(folder: Path) -> None:
    """Make the folder and its first files, where they are missing; what cannot be written is left out."""
    for name, text in _FILES.items():
        with suppress(OSError):
            make_folder(folder)
            if not (folder / name).exists():
                write_new(folder / name, text.encode())


def free_address() -> str:
    """Return an address of this machine that nothing listens on now; empty if there is none."""
    for port in _PORTS:
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return f"127.0.0.1:{port}"
    return ""
