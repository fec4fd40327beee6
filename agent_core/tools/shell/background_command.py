"""
A command in the background; its output also goes to a file of the workspace, whose size is limited.

Whatever the sandbox is, it runs a script of the shell, so the file is written by the script itself: `tee`
copies what the command says, and is ended at the limit, upon which the command cannot write any more.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from agent_core.confined_files import open_below
from agent_core.prompt import fence
from agent_core.tools.shell.shell_tool import clean_output

_MOST_BLOCKS = 9_766
"""Of 512 bytes: 5 MB."""
_TAIL = 12_000


def script_for(command: str, job_id: str) -> str:
    """A script that runs a command, says what it says, ends as it ends, and keeps what it said in a file."""
    return f"""mkdir -p jobs || exit 1
exec 4>&1
status=$({{ {{ /bin/sh -c {shlex.quote(command)} 2>&1 3>&- 4>&-; echo "$?" >&3; }} |
( ulimit -f {_MOST_BLOCKS}; exec tee jobs/{job_id}.log ) >&4 3>&-; }} 3>&1)
exit "${{status:-1}}"
"""


def output_of(work: Path, job_id: str) -> str:
    """Return the end of a command's output so far, fenced. Blocks."""
    try:
        handle = open_below(work, f"jobs/{job_id}.log")
    except (LookupError, ValueError, OSError):
        return "It has printed nothing yet."
    with os.fdopen(handle, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - _TAIL))
        text = clean_output(file.read(_TAIL))
    if not text.strip():
        return "It has printed nothing yet."
    if size > _TAIL:
        text = f"[… {size - _TAIL} bytes before this are in work/jobs/{job_id}.log …]\n{text}"
    return fence("output", text)
