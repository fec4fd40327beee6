"""
The process that reads a PDF document. It is started by path and imports nothing of squidbot.

The document comes on standard input. Standard output has one JSON object a line: first the title, or what is
wrong, then the text of each page, and at the end ``{"done": true}``. Its time and memory are the kernel's to
limit, and its parent ends it.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

_MEMORY_BYTES = 400_000_000
_CPU_S = 20
_MOST_CHARS = 2_000_000
_PR_SET_PDEATHSIG = 1


def _limit() -> None:
    # Where memory is short, this process is the one to go.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    for what, most in (
        (resource.RLIMIT_AS, _MEMORY_BYTES),
        (resource.RLIMIT_CPU, _CPU_S),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 64),
    ):
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)  # noqa: PLW2901 - the same, lower
        resource.setrlimit(what, (most, most))
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def _say(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _read(content: bytes) -> None:
    import pypdf  # noqa: PLC0415 - after the limits are set

    reader = pypdf.PdfReader(BytesIO(content), strict=False)
    # Many are encrypted with no password, only to forbid printing.
    if reader.is_encrypted and not reader.decrypt(""):
        _say(problem="is encrypted")
        return
    title = reader.metadata.title if reader.metadata else None
    _say(title=title if isinstance(title, str) else "", pages=len(reader.pages))
    chars = 0
    for page in reader.pages:
        text = page.extract_text()
        _say(text=text)
        chars += len(text)
        if chars > _MOST_CHARS:
            return
    _say(done=True)


if __name__ == "__main__":
    _limit()
    try:
        _read(sys.stdin.buffer.read())
    except Exception:  # noqa: BLE001 - a broken document breaks the library anywhere
        _say(problem="is broken")
