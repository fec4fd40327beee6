"""Reading and writing without what `os` and `io` load, for the small interpreters (Linux)."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
else:
    import posix as os  # as in `process_tree`

_PIECE = 65536


def write_file(path: str, text: str, flags: int = 0) -> None:
    """Write to a file that is there, or is made if ``flags`` say so."""
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o600)
    try:
        write_all(handle, text.encode("utf-8", "surrogateescape"))
    finally:
        os.close(handle)


def write_all(handle: int, content: bytes) -> None:
    """Write as often as it takes."""
    while content:
        content = content[os.write(handle, content) :]


def read_all(handle: int) -> bytes:
    """Everything until the end of the file."""
    pieces = []
    while piece := os.read(handle, _PIECE):
        pieces.append(piece)
    return b"".join(pieces)


def read_frame(handle: int) -> bytes:
    """One order of which the length comes first; the file goes on."""
    content = b""
    while len(content) < 8 or len(content) < 8 + int.from_bytes(content[:8], "little"):
        piece = os.read(handle, _PIECE)
        if not piece:
            raise EOFError("no order")
        content += piece
    return content[8:]
