"""Small secrets on disk: for the owner alone, replaced as a whole, durable when `write_secret` returns."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["write_secret"]


def write_secret(path: Path, text: str) -> None:
    """
    Put a text into a file of mode 0600.

    Raises:
        OSError: It cannot be done; what was there before is still there.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
