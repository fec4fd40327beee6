"""The files with which a workspace begins: comments that say what belongs there, so none changes a prompt."""

from __future__ import annotations

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
_FILES = {FILE_NAME: STARTER, "HEARTBEAT.md": _CHECKLIST}


def begin_workspace(folder: Path) -> bool:
    """
    Make the folder and its first files, where they are missing.

    Returns:
        True if the file for the persona is new. What cannot be written is left out: no file is needed.
    """
    made = False
    for name, text in _FILES.items():
        path = folder / name
        try:
            make_folder(folder)
            if not path.exists():
                write_new(path, text.encode())
                made = made or name == FILE_NAME
        except OSError:
            continue
    return made
