"""
Replaces files as a whole: after a crash, a file has the old content or the new. Temporary file in the same
folder, fsync, rename, fsync of the folder. Everything is for the owner of the process only, blocks, and is
called in worker threads.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def replace(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace the content of ``path`` atomically, readable only by us. Raises OSError; the old one stays."""
    make_folder(path.parent)
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        write_new(temporary, data)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        sync(path.parent)


def write_new(path: Path, data: bytes) -> None:
    """Write a file from its beginning and make its content, but not yet its name, durable."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        write_all(handle, data)
        os.fsync(handle)
    finally:
        os.close(handle)


def write_all(handle: int, data: bytes) -> None:
    """Write everything, in as many pieces as the system takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def make_folder(folder: Path) -> None:
    """Make ``folder`` and what is missing above it."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        sync(folder.parent)


def sync(path: Path) -> None:
    """Make the content of a file, or the names in a folder, durable."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
