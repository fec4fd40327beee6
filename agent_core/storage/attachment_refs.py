"""Finds the attachments that any history names, by a search through the bytes, without parsing a line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import anyio.to_thread

_PATH = re.compile(rb"attachments/[0-9a-f]{2}/[0-9a-f]{64}\.[a-z0-9]{1,8}")
_LONGEST = 100
_BLOCK_BYTES = 1024 * 1024


def named_files(folder: Path) -> Iterator[str]:
    """Yield every `Attachment.path` named in histories below ``folder``. Blocks. Raises OSError."""
    for history in sorted(folder.rglob("*.jsonl*")):
        if not history.is_file():
            continue
        rest = b""
        with history.open("rb") as lines:
            while block := lines.read(_BLOCK_BYTES):
                block = rest + block
                for found in _PATH.finditer(block):
                    yield found[0].decode()
                rest = block[-_LONGEST:]


async def named_in_files(folder: Path) -> set[str]:
    """The same, in a worker thread."""
    return await anyio.to_thread.run_sync(lambda: set(named_files(folder)))
